"""What ``beanlite top`` shows, and how."""
