"""A small client of the protocol."""
