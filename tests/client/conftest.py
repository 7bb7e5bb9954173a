"""Both servers, each for the tests of a file."""

import pytest

from tests.client.mortal import Mortal
from tests.support.needs import need
from tests.support.servers import beanstalkd_program, start_beanlite, start_beanstalkd


@pytest.fixture(scope="module", params=["beanlite", "beanstalkd"])
def server(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("client")
    if request.param == "beanstalkd":
        need(beanstalkd_program(), "beanstalkd is not installed")
        with start_beanstalkd(folder, "-z", "10000") as server:
            yield server
        return
    with start_beanlite(folder, "--max-job-size", "10000") as server:
        yield server
    assert "Traceback" not in server.log_text()


@pytest.fixture
def url(server):
    return f"beanlite://{server.host}:{server.port}"


@pytest.fixture
def tube(request):
    """A tube that only this test has."""
    return request.node.originalname


@pytest.fixture
def is_beanlite(request):
    return "beanlite" in request.node.callspec.params.values()


@pytest.fixture
async def mortal(tmp_path):
    async with Mortal(tmp_path) as mortal:
        yield mortal
