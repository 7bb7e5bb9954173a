"""A server, its pages and a client of it, for files that need no others."""

import pytest

from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("web")) as server:
        yield server


@pytest.fixture(scope="module")
def web(server):
    with Web(f"127.0.0.1:{server.port}") as web:
        yield web


@pytest.fixture
def wire(server):
    """A client of a server without jobs."""
    with Wire(server.connect()) as wire:
        yield wire
        while wire.request("change-jobs", do="delete", pri_min=0)["next"] is not None:
            pass
        wire.ask("pause-tube default 0")
