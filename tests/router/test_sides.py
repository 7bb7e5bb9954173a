"""The connections of one client of the router, with servers and a client that are not there."""

import asyncio

from beanlite.beanstalk.over_tls import context_for
from beanlite.router import upstream as module
from beanlite.router.known import Map
from beanlite.router.router_host import RouterHost
from beanlite.router.sides import ClientSide
from beanlite.router.upstream import Upstream
from tests.router.cores import fleet_of, put


class Wire(asyncio.Transport):
    """A transport that keeps what is sent on it."""

    def __init__(self):
        super().__init__()
        self.sent = b""
        self.calls = []

    def write(self, data):
        self.sent += data

    def is_closing(self):
        return bool(self.calls)

    def get_write_buffer_size(self):
        return 0

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def write_eof(self):
        pass

    def close(self):
        self.calls.append("close")

    def abort(self):
        self.calls.append("abort")


class Host:
    """A router of one server, and its one client."""

    def __init__(self):
        self.map = Map(fleet_of([[]]))
        server = self.map.servers[1]
        upstream = Upstream(server, [("127.0.0.1", 1)], context_for, lambda: None)
        upstream._note_reached(upstream.addresses[0])
        self.upstreams = {1: upstream}
        self.clients = []
        self.host = RouterHost(self.map, self.upstreams, dict, self.admit, self.clients.remove)
        self.client = ClientSide(self.host)
        self.wire = Wire()
        self.client.connection_made(self.wire)

    def admit(self, client):
        self.clients.append(client)
        return True


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_put_is_answered_after_any_exception_of_a_connection(monkeypatch, caplog):
    async def fail(*_more):
        raise ZeroDivisionError

    async def ask():
        host = Host()
        host.client.data_received(put(b"x"))
        await settle()
        assert host.wire.sent == b"INTERNAL_ERROR\r\n"

    monkeypatch.setattr(module, "dial", fail)
    asyncio.run(ask())
    assert "ZeroDivisionError" in caplog.text
