"""The state machine of a work queue: no I/O, no clock, no protocol."""
