"""A server with TLS, and what its clients have, for the tests of TLS."""

import os
from pathlib import Path

import pytest

from tests.support.certificates import Authority, tls_flags
from tests.support.servers import start_beanlite
from tests.support.wire import until


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def own(authority):
    return authority.sign("server")


@pytest.fixture(scope="module")
def known(authority):
    """What a client with a certificate has."""
    return authority.client(authority.sign("client"))


@pytest.fixture(params=["uvloop", "asyncio"])
def server(request, tmp_path, authority, own):
    """One that asks for certificates; for asyncio's own loop, uvloop is hidden."""
    environment = {}
    if request.param == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError")
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    flags = [*tls_flags(own, authority.file), "-z", "2000000", "--tls-min", "1.2"]
    with start_beanlite(tmp_path / "q", *flags, environment=environment) as server:
        until(lambda: " tls=" in server.log_text())
        yield server
