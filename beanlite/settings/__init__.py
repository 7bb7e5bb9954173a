"""The settings: their names, defaults, units and checks."""
