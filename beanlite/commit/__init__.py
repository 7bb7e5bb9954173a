"""The group commit: replies wait here until what they acknowledge is stored."""
