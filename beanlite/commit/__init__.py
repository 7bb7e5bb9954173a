"""The group commit: replies wait here until the changes that they acknowledge are stored."""
