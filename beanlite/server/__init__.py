"""The server: its parts and how they are wired to each other, its start, its stop, and its reloads."""
