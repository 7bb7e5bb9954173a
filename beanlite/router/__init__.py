"""A router: clients speak to it as to one server, and their tubes are on several."""
