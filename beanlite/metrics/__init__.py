"""The metrics: what Prometheus is told of a server."""
