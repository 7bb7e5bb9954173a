"""The screens of ``beanlite top``, and the samples that they show."""
