"""Commands that take long wait for their turn, however short their lines are, and others are served meanwhile."""

import asyncio

import pytest

from beanlite.core.engine import Engine
from beanlite.core.job import SLICE
from beanlite.net import turns
from beanlite.net.turns import LONG_TURN_NS, RESUMED_NS, RESUMED_STEPS, TIMER_MAX_S, TURN_NS, Turns
from beanlite.protocol.blocked import KICKING, LOOKING, WORKING, YIELDING
from beanlite.protocol.framing import is_one_put
from tests.support.inside import connect, serving, until
from tests.support.simulated import Client, settle, simulated
from tests.support.step_by_step import StepByStep


@pytest.fixture
def loop():
    return StepByStep()


@pytest.fixture
def client_turns(loop):
    made = Turns(loop, Engine(), loop, lambda: loop.now_ns, lambda *_: None)
    made.served(one_by_one=True)
    return made


def taking(loop, took, what, takes_ns):
    def resume():
        took.append(what)
        loop.now_ns += takes_ns

    return resume


def test_what_takes_long_is_done_once_a_turn_beside_those_that_go_on(loop, client_turns):
    took = []
    for number in range(3):
        client_turns.resume_later(taking(loop, took, f"kick {number}", 10 * TURN_NS), WORKING)
        client_turns.resume_later(taking(loop, took, f"list {number}", 10 * TURN_NS), LOOKING)
        client_turns.resume_later(taking(loop, took, f"next {number}", RESUMED_NS // 2), YIELDING)
    loop.turn()
    assert took == ["next 0", "next 1", "next 2", "list 0", "kick 0"]
    loop.turn()
    loop.turn()
    assert took[5:] == ["list 1", "kick 1", "list 2", "kick 2"]


def test_what_is_quick_is_done_several_times_a_turn(loop, client_turns):
    took = []
    for number in range(10):
        client_turns.resume_later(taking(loop, took, number, RESUMED_NS // 4), LOOKING)
    loop.turn()
    assert took == [0, 1, 2, 3, 4]


def test_what_changes_nothing_goes_on_while_the_batch_is_full(loop, client_turns):
    took = []
    steps = []
    client_turns.resume_later(taking(loop, took, "list", 1), LOOKING)
    client_turns.resume_later(lambda: steps.append(client_turns.steps), LOOKING)
    for kind in (WORKING, KICKING, YIELDING):
        client_turns.resume_later(taking(loop, took, kind, 1), kind)
    loop.full = True
    loop.turn()
    loop.turn()
    assert took == ["list"]
    assert steps == [0]  # what comes after it may need room
    loop.full = False
    client_turns.resume_soon()
    client_turns.served(one_by_one=True)
    client_turns.resume_later(lambda: steps.append(client_turns.steps), LOOKING)
    loop.turn()
    assert took == ["list", YIELDING, WORKING, KICKING]
    assert steps == [0, RESUMED_STEPS]


def test_clients_that_send_are_not_put_off_for_what_took_long(loop, client_turns):
    client_turns.resume_later(taking(loop, [], "kick", 10 * TURN_NS), WORKING)
    loop.turn()
    assert client_turns.now_unless_late() != turns.LATE
    loop.now_ns += TURN_NS + 1
    assert client_turns.now_unless_late() == turns.LATE


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (b"put 0 0 10 40\r\n" + b"\n" * 40 + b"\r\n", True),
        (b"put 0 0 10 100\r\n" + b"\n" * 40, True),
        (b"put 0 0 10 1\r\nx\r\n" * 2, False),
        (b"put 0 0 10 x\r\n", False),
        (b"put 0 0 10 " + b"9" * 5000 + b"\r\n", False),
        (b"delete 1\r\n" * 20, False),
    ],
)
def test_put_of_many_lines_is_no_pipeline(data, is_one):
    assert is_one_put(data) is is_one


def test_pipelines_are_put_off_in_a_long_turn(loop, client_turns):
    assert client_turns.received(1000, is_much=True) != turns.LATE
    loop.now_ns += LONG_TURN_NS
    assert client_turns.received(1000, is_much=True) != turns.LATE
    loop.now_ns += 1
    assert client_turns.received(1000, is_much=True) == turns.LATE
    assert client_turns.received(20, is_much=False) != turns.LATE
    assert client_turns.received(1000, is_much=True) == turns.LATE


def test_timer_is_bounded_in_case_the_machine_sleeps(loop, client_turns):
    client_turns._timers.set(client_turns._engine.tubes[b"default"], loop.now_ns + 10**15)
    client_turns.follow_up(client_turns.now())
    ((delay_s, _),) = loop.timers
    assert delay_s == TIMER_MAX_S <= 5


LONG = [
    b"stats\r\n",
    b"stats-job 1\r\n",
    b"stats-tube default\r\n",
    b"list-tubes\r\n",
    b"list-tubes-watched\r\n",
    b"kick 2\r\n",
    b"list-jobs 2\r\n{}\r\n",
    b'group-jobs 17\r\n{"fact": "state"}\r\n',
    b"list-clients 2\r\n{}\r\n",
    b"diagnose 2\r\n{}\r\n",
    b'show-flow 16\r\n{"range":"hour"}\r\n',
    b"list-tube-stats 2\r\n{}\r\n",
    b"show-job 1\r\n",
    b"change-jobs 37\r\n" + b'{"do": "kick", "tube": "default"}    \r\n',
    b'put-jobs 25\r\n{"jobs": [{"body": "x"}]}\r\n',
    b"reserve-batch 5 0\r\n",
    b"watch-events 2\r\n{}\r\n",
]
SHORT = [b"kick 1\r\n", b"list-tube-used\r\n", b"peek 1\r\n", b"put 0 0 10 1\r\nx\r\n", b"reserve\r\n", b"use x\r\n"]


@pytest.mark.parametrize("command", [*LONG, *SHORT])
async def test_long_command_is_not_carried_out_where_it_is_read(tmp_path, command):
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        client[1].write(b"put 0 0 10 1\r\nx\r\n" + b"put 0 100 10 1\r\nx\r\n" * 11)
        for _ in range(12):
            await client[0].readline()
        (connection,) = server.parts.roster.connections.values()
        connection.data_received(command)
        assert (connection.session.aside is not None) is (command in LONG)
        assert await asyncio.wait_for(client[0].readline(), 10)
        assert connection.session.aside is None


async def test_each_slice_of_a_kick_lets_others_be_served(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        kicker = await connect(server)
        kicker[1].write(b"put 0 100 10 1\r\nx\r\n" * 3 * SLICE)
        for _ in range(3 * SLICE):
            await kicker[0].readline()
        (connection,) = server.parts.roster.connections.values()
        connection.data_received(b"kick %d\r\n" % (3 * SLICE))
        seen = []
        async with asyncio.timeout(10):
            while server.parts.engine.counts.delayed:
                seen.append(server.parts.engine.counts.delayed)
                await asyncio.sleep(0)  # until others have had their turn
        assert sorted(set(seen)) == [SLICE, 2 * SLICE, 3 * SLICE]
        assert await asyncio.wait_for(kicker[0].readline(), 10) == b"KICKED %d\r\n" % (3 * SLICE)


async def test_a_request_that_waits_for_its_turn_is_counted(tmp_path, monkeypatch):
    size = 500_000
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await until(lambda: server.parts.roster.connections)
        (connection,) = server.parts.roster.connections.values()
        now_ns = server.wiring.turns.glance()
        with monkeypatch.context() as halted:  # lest the turn be late
            halted.setattr(server.wiring.turns, "_clock", lambda: now_ns)
            connection.data_received(b"list-jobs %d\r\n" % size)
            connection.data_received(b"{}" + b" " * (size - 2))
            connection.data_received(b"\r\n")
        assert connection.session.aside is not None
        assert server.parts.engine.memory.buffer_bytes == size
        await until(lambda: not server.parts.engine.memory.buffer_bytes)


@pytest.mark.parametrize("command", [b"stats\r\n", b"reserve-batch 5 0\r\n"])
def test_no_more_replies_are_made_for_a_client_that_does_not_read(monkeypatch, command):
    async def play(server, _journal):
        client = Client(server)
        monkeypatch.setattr(client, "get_write_buffer_size", lambda: 100_000)
        client.protocol.pause_writing()
        assert await client.ask(command) == b""
        client.protocol.resume_writing()
        await settle()
        assert client.said

    assert simulated(play) is None
