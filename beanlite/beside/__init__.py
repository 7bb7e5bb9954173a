"""The processes that the server runs beside itself."""
