"""Asks a server for its health and metrics, over HTTP."""

import http.client
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers import RunningServer, free_port, start_beanlite


def start_watched(directory: Path, *flags: str) -> tuple[RunningServer, str]:
    """Start a server that answers probes; return it and the address for them."""
    where = f"127.0.0.1:{free_port()}"
    return start_beanlite(directory, "--health", where, *flags), where


def ask(where: str, path: str, method: str = "GET") -> tuple[int, str]:
    """Send a request; return the status and the body of the response."""
    connection = http.client.HTTPConnection(where, timeout=20)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def metrics(where: str) -> dict[tuple[str, ...], float]:
    """Return the server's samples, each by its name and its label values, which are sorted by the labels' names."""
    status, page = ask(where, "/metrics")
    assert status == 200
    return samples(page)


def samples(page: str) -> dict[tuple[str, ...], float]:
    """Return the samples on a page."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
