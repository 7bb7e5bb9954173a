"""The connections of one client of the router, with servers and a client that are not there."""

import asyncio

import pytest

from beanlite.beanstalk.over_tls import context_for
from beanlite.router import sides, upstream as module
from beanlite.router.known import Map
from beanlite.router.parting import Partings
from beanlite.router.router_host import RouterHost
from beanlite.router.sides import ClientSide
from beanlite.router.upstream import Upstream
from tests.router.cores import fleet_of, put


class Wire(asyncio.Transport):
    """A transport that keeps what is sent on it."""

    def __init__(self):
        super().__init__({"ssl_object": "TLS"})  # there is no socket that could be shut down
        self.sent = b""
        self.unsent = 0
        self.reads = True
        self.calls = []

    def write(self, data):
        self.sent += data

    def is_closing(self):
        return bool(self.calls)

    def get_write_buffer_size(self):
        return self.unsent

    def set_protocol(self, protocol):
        pass

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def write_eof(self):
        pass

    def close(self):
        self.calls.append("close")

    def abort(self):
        self.calls.append("abort")


class Host:
    """A router of one server, or of some with these tubes, and its one client."""

    def __init__(self, *tubes):
        self.map = Map(fleet_of(tubes or [[]]))
        self.upstreams = {}
        for number in self.map.servers:
            self.reach(number, 1)
        self.clients = []
        self.host = RouterHost(self.map, self.upstreams, dict, self.admit, self.clients.remove, False, Partings())
        self.client = ClientSide(self.host)
        self.wire = Wire()
        self.client.connection_made(self.wire)
        self.made = []
        """The connections to the servers, and the transport of each."""

    def reach(self, number, port):
        """Have a server be found at a port."""
        upstream = Upstream(self.map.servers[number], [("127.0.0.1", port)], context_for, lambda: None)
        upstream._note_reached(upstream.addresses[0])
        self.upstreams[number] = upstream

    async def dial(self, _address, end, *_more):
        """Make a connection, in place of that function."""
        wire = Wire()
        self.made.append((end, wire))
        end.connection_made(wire)

    def move(self, *numbers):
        """Give the first server, or these, another address."""
        for number in numbers or [1]:
            self.reach(number, 2)
        self.map.change(self.map.fleet)
        self.client.look_again()

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


@pytest.mark.parametrize("by", ["look_again", "come_back"])
def test_commands_wait_for_the_address_at_which_a_server_greets(monkeypatch, by):
    async def ask():
        host = Host()
        monkeypatch.setattr(module, "dial", host.dial)
        host.client.data_received(b"use a\r\n")
        await settle()
        host.made[0][0].data_received(b"USING a\r\n")
        host.made[0][0].connection_lost(None)
        host.client.data_received(put(b"x") + b"use default\r\nput 0 0 60 1\r\n")
        await settle()
        if by == "come_back":
            upstream = host.upstreams[1]
            upstream.addresses.append(("127.0.0.1", 2))
            upstream._silent.add(upstream.addresses[0])
            upstream._address = upstream.addresses[1]
            host.client.come_back()
        else:
            host.move()
        host.client.data_received(b"y")
        await settle()
        assert [wire.sent for _, wire in host.made] == [b"use a\r\n"] * 3
        assert [wire.calls for _, wire in host.made] == [[], ["close"], []]
        end, wire = host.made[2]
        end.data_received(b"USING a\r\n")
        host.client.data_received(b"\r\n")
        assert wire.sent == b"use a\r\n" + put(b"x") + b"use default\r\n" + put(b"y")
        end.data_received(b"INSERTED 1\r\nUSING default\r\nINSERTED 2\r\n")
        assert host.wire.sent == b"USING a\r\nINSERTED 65\r\nUSING default\r\nINSERTED 129\r\n"

    asyncio.run(ask())


def test_put_waits_for_a_server_that_restarts_amid_the_greeting(monkeypatch):
    """Its kernel accepts a connection that it never takes. One that only closes them is not asked for ever."""

    async def lose_greeting(host):
        host.made[-1][0].connection_lost(None)
        host.client.data_received(put(b"x"))
        await settle()
        assert host.made[-1][1].sent == b"use a\r\n"
        await lose(host)

    async def lose(host):
        host.made[-1][0].connection_lost(ConnectionResetError())
        await settle()
        host.made[-1][0].data_received(b"NOT_FOUND\r\n" * 2)  # to the question what it understands
        await settle()

    async def ask():
        host = Host()
        monkeypatch.setattr(module, "dial", host.dial)
        host.client.data_received(b"use a\r\n")
        await settle()
        host.made[-1][0].data_received(b"USING a\r\n")
        host.wire.sent = b""
        for number in 1, 2:
            await lose_greeting(host)
            end, wire = host.made[-1]
            end.data_received(b"USING a\r\n")
            assert wire.sent == b"use a\r\n" + put(b"x")
            end.data_received(b"INSERTED %d\r\n" % number)
        await lose_greeting(host)
        assert host.wire.sent == b"INSERTED 65\r\nINSERTED 129\r\n"
        await lose(host)
        assert host.wire.sent == b"INSERTED 65\r\nINSERTED 129\r\nINTERNAL_ERROR\r\n"

    asyncio.run(ask())


def test_job_of_a_server_that_is_in_the_file_no_more_can_be_finished(monkeypatch):
    async def ask():
        host = Host(["a"], ["b"])
        monkeypatch.setattr(module, "dial", host.dial)
        host.client.data_received(b"reserve-job 66\r\nreserve-job 130\r\n")
        await settle()
        ((end, wire),) = host.made
        end.data_received(b"RESERVED 1 1\r\nx\r\nRESERVED 2 1\r\ny\r\n")
        host.wire.sent = b""
        del host.upstreams[2]
        host.map.change(fleet_of([["a"]]))
        host.client.look_again()
        host.client.data_received(b"touch 66\r\ndelete 66\r\nrelease 130 0 0\r\n")
        assert wire.sent.endswith(b"touch 1\r\ndelete 1\r\nrelease 2 0 0\r\n")
        end.data_received(b"TOUCHED\r\nDELETED\r\n")
        assert not wire.calls
        end.data_received(b"RELEASED\r\n")
        assert wire.calls == ["close"]
        host.client.data_received(b"peek 130\r\n")
        assert host.wire.sent == b"TOUCHED\r\nDELETED\r\nRELEASED\r\nNOT_FOUND\r\n"

    asyncio.run(ask())


def test_put_is_not_lost_with_a_second_address_that_goes(monkeypatch):
    """With the first one's connection a reserve ends, and the put behind it goes to the other server."""

    async def ask():
        host = Host(["a"], ["b"], ["c"])
        monkeypatch.setattr(module, "dial", host.dial)
        for asked, reply in (
            (b"watch a\r\n", b"WATCHING 2\r\n"),
            (b"watch c\r\n", b"WATCHING 2\r\nWATCHING 1\r\n"),
            (b"use b\r\n", b"USING b\r\n"),
        ):
            host.client.data_received(asked)
            await settle()
            host.made[-1][0].data_received(reply)
        ends = {end.lane.number: (end, wire) for end, wire in host.made}
        host.map.servers[3].away = True
        ends[3][0].connection_lost(None)
        host.client.data_received(b"reserve-with-timeout 0\r\n" + put(b"x"))
        assert ends[1][1].sent.endswith(b"reserve-with-timeout 0\r\n")
        host.wire.sent = b""
        host.move(1, 2)
        assert host.wire.sent == b"TIMED_OUT\r\n"
        end, wire = ends[2]
        assert wire.sent.endswith(put(b"x"))
        assert not wire.calls
        end.data_received(b"INSERTED 1\r\n")
        assert host.wire.sent == b"TIMED_OUT\r\nINSERTED 66\r\n"
        assert wire.calls == ["close"]
        assert not host.wire.calls

    asyncio.run(ask())


@pytest.mark.parametrize("ahead", [b"delete 66\r\nwatch b.x\r\n", b"release 66 0 0\r\n"])
def test_reserve_moves_once_commands_before_it_are_answered(monkeypatch, ahead):
    """The file changes before that, when the end of the connection would cost the client replies."""

    async def ask():
        host = Host(["a"], ["b", "b.x"])
        monkeypatch.setattr(module, "dial", host.dial)
        host.client.data_received(b"watch b\r\nignore default\r\nreserve\r\n")
        await settle()
        ((end, wire),) = host.made
        end.data_received(b"WATCHING 2\r\nWATCHING 1\r\nRESERVED 1 1\r\nx\r\n")
        host.client.data_received(ahead + b"reserve\r\n")
        host.map.change(fleet_of([["a", "b", "b.x"], ["c"]]))
        host.client.look_again()
        assert not wire.calls
        end.data_received(b"DELETED\r\nWATCHING 2\r\n" if ahead.startswith(b"delete") else b"RELEASED\r\n")
        assert wire.calls == ["close"]
        await settle()
        assert host.made[1][0].lane.number == 1

    asyncio.run(ask())


@pytest.mark.parametrize("last", [b"quit\r\n", b""])
def test_client_that_reads_its_last_replies_slowly_gets_them_all(last):
    async def ask():
        host = Host()
        host.wire.unsent = 3
        host.client.data_received(last) if last else host.client.eof_received()
        assert not host.clients
        (parting,) = host.host.partings._all
        calls = [] if last else ["close"]
        while host.wire.unsent:
            host.wire.unsent -= 1
            parting._on_timer()
            assert host.wire.calls == calls
        parting._on_timer()
        assert host.wire.calls == [*calls, "abort"]
        parting.connection_lost(None)
        assert not host.host.partings

    asyncio.run(ask())


async def reach_both(host):
    """Have the client watch a tube of each of two servers; return the connections to these."""
    for asked, reply in (b"watch a\r\n", b"WATCHING 2\r\n"), (b"watch b\r\n", b"WATCHING 2\r\nWATCHING 1\r\n"):
        host.client.data_received(asked)
        await settle()
        host.made[-1][0].data_received(reply)
    host.wire.sent = b""
    host.client.session.turn = 1  # so that the first one is asked first
    return [end for end, _ in host.made]


@pytest.mark.parametrize("by", ["client", "other server"])
def test_server_that_is_not_read_from_is_not_passed_over(monkeypatch, by):
    """It is not halted: its replies wait for a client that reads slowly, or for the reply of another server."""

    async def ask():
        now_s = [1.0]
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0])
        host = Host(["a"], ["b"])
        monkeypatch.setattr(module, "dial", host.dial)
        one, two = await reach_both(host)
        wire = one.transport
        host.client.data_received(b"peek 66\r\n" * (by == "other server") + b"reserve-with-timeout 0\r\n" * 2)
        one.data_received(b"RESERVED 1 1\r\nx\r\n")
        if by == "client":
            host.client.pause_writing()
        assert not wire.reads
        now_s[0] += 60
        await settle()
        if by == "client":
            host.client.resume_writing()
        else:
            two.data_received(b"NOT_FOUND\r\n")
        assert wire.reads
        await settle()
        one.data_received(b"RESERVED 2 1\r\ny\r\n")
        assert host.wire.sent.endswith(b"RESERVED 65 1\r\nx\r\nRESERVED 129 1\r\ny\r\n")
        now_s[0] += 60
        await settle()
        assert wire.sent.count(b"reserve") == 2

    monkeypatch.setattr(sides, "HELD_MAX", 10)
    asyncio.run(ask())


def test_stop_does_not_wait_for_the_rest_of_a_body(monkeypatch):
    async def ask():
        host = Host()
        monkeypatch.setattr(module, "dial", host.dial)
        host.client.data_received(b"list-tube-used\r\nput 0 0 60 10\r\nabc")
        await settle()
        host.client.end_commands()
        assert host.client.owes
        host.made[0][0].data_received(b"USING default\r\n")
        assert host.wire.sent == b"USING default\r\n"
        assert not host.client.owes

    asyncio.run(ask())


@pytest.mark.parametrize("servers", [1, 2])
def test_stop_waits_for_what_was_sent_before_a_reserve_that_waits(monkeypatch, servers):
    async def ask():
        host = Host(["a"], ["b"])
        monkeypatch.setattr(module, "dial", host.dial)
        ends = await reach_both(host)
        if servers == 1:
            host.client.data_received(b"ignore b\r\n")
            ends[1].data_received(b"WATCHING 2\r\nWATCHING 1\r\n")
            host.wire.sent = b""
        host.client.data_received(put(b"x") + b"reserve-with-timeout 0\r\nreserve-with-timeout 9\r\n")
        host.client.end_commands()
        assert host.client.owes
        ends[0].data_received(b"INSERTED 1\r\n")
        assert host.client.owes
        for end in ends[:servers]:
            end.data_received(b"TIMED_OUT\r\n" * servers)
        assert host.wire.sent == b"INSERTED 65\r\nTIMED_OUT\r\n"
        assert not host.client.owes

    asyncio.run(ask())


def test_closed_connection_says_nothing_of_the_one_that_follows_it(monkeypatch):
    async def ask():
        host = Host()
        monkeypatch.setattr(module, "dial", host.dial)
        host.client.data_received(b"list-tubes\r\n")
        await settle()
        old = host.made[0][0]
        old.data_received(b"OK 0\r\n\r\n")
        host.move()
        host.client.data_received(b"list-tubes\r\n")
        await settle()
        new = host.made[1][0]
        assert new.lane is old.lane
        old.pause_writing()
        assert not new.lane.clogged
        new.pause_writing()
        old.resume_writing()
        assert new.lane.clogged

    asyncio.run(ask())


def test_client_that_leaves_ends_the_latest_try_to_connect(monkeypatch):
    """The one before may end later, if its connection was lost as it was made."""
    tries = []

    async def dial(_address, end, *_more):
        tries.append(asyncio.current_task())
        if len(tries) == 1:
            end.connection_made(Wire())
            end.has_heard = True
            end.connection_lost(None)
        else:
            await asyncio.Event().wait()

    async def ask():
        host = Host()
        monkeypatch.setattr(module, "dial", dial)
        host.client.data_received(b"reserve\r\n")
        await settle()
        assert [task.done() for task in tries] == [True, False]
        host.client.connection_lost(None)
        await settle()
        assert tries[1].cancelled()

    asyncio.run(ask())
