"""A router in front of two servers, without sockets."""

import pytest

from tests.router.cores import Net


@pytest.fixture
def net():
    """Two servers: the second one has the tubes b and b.x, the first one all others."""
    return Net(["a"], ["b", "b.x"])


@pytest.fixture
def client(net):
    return net.client()


@pytest.fixture
def worker(net):
    """A client that watches tubes of both servers."""
    worker = net.client()
    worker.send(b"watch a\r\nwatch b\r\nignore default\r\n")
    return worker
