"""A standby that forwards its clients to the active server."""
