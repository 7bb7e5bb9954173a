"""Sockets and connections."""
