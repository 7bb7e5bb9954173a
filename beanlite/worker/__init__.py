"""What runs a function for each job: ``beanlite work``."""
