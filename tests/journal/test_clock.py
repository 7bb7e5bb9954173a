"""The machine's clock is set while a server runs, or between two runs: delays, pauses and ages are not affected."""

import asyncio
import contextlib
import os
import sqlite3
import struct
from contextlib import closing

import pytest

from beanlite.commit.group import GroupCommit
from beanlite.core.job import SECOND_NS
from beanlite.errors import JournalRefused
from beanlite.host.clock import EPOCH_S, Clock
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.sqlite.file import heartbeat
from beanlite.journal.sqlite.served.journal import SqliteJournal
from beanlite.journal.sqlite.tools.dump import dump
from beanlite.journal.sqlite.tools.filling import filling
from beanlite.journal.sqlite.tools.load import load
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.core import Core, put
from tests.support.inside import abandon

HOUR_S = 3600
START_S = 1_000_000_000  # UTC since 2000
ALL = HistoryBounds(HOUR_S * 24, 1 << 30, bodies=False)


class Machine:
    """A machine on which time passes, and whose clock can be set."""

    def __init__(self, monkeypatch, path):
        self.since_boot_ns, self.utc_ns, self.boot = 5 * SECOND_NS, START_S * SECOND_NS, "first"
        self.path = path
        monkeypatch.setattr(heartbeat, "boot_id", lambda: self.boot)

    def set_clock(self, by_s):
        self.utc_ns += int(by_s * SECOND_NS)

    def pass_s(self, seconds):
        self.since_boot_ns += int(seconds * SECOND_NS)
        self.utc_ns += int(seconds * SECOND_NS)

    def reboot(self):
        self.boot, self.since_boot_ns = "second", 0

    @contextlib.asynccontextmanager
    async def serving(self, *, killed=False):
        server = Running(self)
        await server.start()
        try:
            yield server
            await server.store()
        except BaseException:
            killed = True
            raise
        finally:
            await server.end(killed=killed)

    def ask(self, statement):
        with closing(sqlite3.connect(self.path)) as reader:
            return reader.execute(statement).fetchall()


class Running:
    """The journal of a server on that machine, and its client."""

    def __init__(self, machine):
        self.machine = machine
        self.clock = Clock(lambda: machine.since_boot_ns, lambda: machine.utc_ns)
        self.core = Core()
        self.journal = SqliteJournal(machine.path, "always", 0, 65535, "unix:socket", ALL)

    async def start(self):
        core = self.core
        core.engine.ledger.start_recording()
        assert await self.journal.recover(core.engine, self.clock, asyncio.Event())
        core.service.utc_s = self.clock.utc_s
        core.now_ns = self.clock()
        self.client = core.client(operator=True)
        loop = asyncio.get_running_loop()
        self.group = GroupCommit(
            loop,
            core.engine,
            self.journal,
            tell_failure=raise_it,
            tell_room=lambda: None,
            tell_events=lambda _: None,
            clock=self.clock,
        )

    def send(self, data):
        self.core.now_ns = self.clock()
        self.core.engine.tick(self.core.now_ns)
        return self.core.send(self.client, data)

    def left_s(self, job_id=1):
        reply = self.send(b"stats-job %d\r\n" % job_id)
        return int(reply.partition(b"time-left: ")[2].split()[0])

    async def store(self):
        """Store everything, and give the sign of life that is then due."""
        await self.group.flush()
        self.journal._writer.chronicle._heartbeat.beat(0)

    async def end(self, *, killed):
        if killed:
            database = self.journal._writer._database
            await abandon(self.journal)
            database.connection.close()
            for descriptor in (database.index, database.file):
                os.close(descriptor)
        else:
            await self.journal.close()


def raise_it(error):
    raise error


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return Machine(monkeypatch, tmp_path / "queue.db")


STEPS = [-2 * HOUR_S, 2 * HOUR_S, 400 * 24 * HOUR_S]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("by_s", STEPS)
async def test_set_while_it_serves(machine, by_s, killed):
    async with machine.serving(killed=killed) as server:
        put(server.core, server.client, delay_s=HOUR_S)
        server.send(b"pause-tube default 3600\r\n")
        machine.pass_s(60)
        machine.set_clock(by_s)
        await server.store()
    machine.reboot()
    machine.pass_s(600)
    async with machine.serving() as server:
        assert server.left_s() == HOUR_S - 660
        assert b"pause-time-left: 2940\n" in server.send(b"stats-tube default\r\n")
        assert b"age: 660\n" in server.send(b"stats-job 1\r\n")
        machine.pass_s(HOUR_S - 660)
        assert b"state: ready" in server.send(b"stats-job 1\r\n")


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("by_s", STEPS)
async def test_set_between_two_servers_of_one_boot(machine, by_s, killed):
    async with machine.serving(killed=killed) as server:
        put(server.core, server.client, delay_s=HOUR_S)
    machine.pass_s(60)
    machine.set_clock(by_s)
    async with machine.serving() as server:
        assert server.left_s() == HOUR_S - 60


async def test_set_back_while_the_machine_was_off(machine):
    """For how long it was off is not known, so no time is taken to have passed."""
    async with machine.serving() as server:
        put(server.core, server.client, delay_s=HOUR_S)
        machine.pass_s(60)
    machine.reboot()
    machine.set_clock(-HOUR_S)
    async with machine.serving() as server:
        assert server.left_s() == HOUR_S - 60
        assert b"age: 60\n" in server.send(b"stats-job 1\r\n")


async def test_a_time_since_boot_that_is_another_one_does_not_count(machine):
    """As in a container with a time namespace of its own, which has the boot id of the machine."""
    machine.since_boot_ns = HOUR_S * SECOND_NS
    async with machine.serving() as server:
        put(server.core, server.client, delay_s=HOUR_S)
    machine.pass_s(60)
    machine.since_boot_ns = 5 * SECOND_NS
    async with machine.serving() as server:
        assert server.left_s() == HOUR_S - 60
        assert b"age: 60\n" in server.send(b"stats-job 1\r\n")


async def test_a_clock_that_was_never_set_and_then_is(machine):
    """As on a machine without a battery, the clock begins in 1970."""
    machine.utc_ns = -EPOCH_S * SECOND_NS
    async with machine.serving() as server:
        assert server.clock() == 0  # the engine has no earlier times
        put(server.core, server.client, delay_s=HOUR_S)
    machine.set_clock(EPOCH_S + START_S)
    async with machine.serving() as server:
        assert server.left_s() == HOUR_S
        assert b"age: 0\n" in server.send(b"stats-job 1\r\n")


async def test_people_are_told_utc(machine):
    async with machine.serving() as server:
        machine.set_clock(2 * HOUR_S)
        put(server.core, server.client, delay_s=HOUR_S)
        server.send(b"pause-tube default 3600\r\n")
        utc_s = START_S + EPOCH_S + 2 * HOUR_S
        await server.store()
        assert machine.ask("SELECT created_at, due_at, since_at FROM all_jobs") == [(utc_s, utc_s + HOUR_S, utc_s)]
        assert machine.ask("SELECT paused_until FROM tubes") == [(utc_s + HOUR_S,)]
        assert machine.ask("SELECT DISTINCT at FROM history") == [(utc_s,)]
        assert machine.ask("SELECT created_at, due_at FROM delayed") == [(utc_s, utc_s + HOUR_S)]
        assert b'"created_at":%.1f,' % utc_s in server.send(b"show-job 1\r\n")


async def test_lines_have_utc_whatever_the_clocks_were(machine):
    async with machine.serving() as server:
        machine.set_clock(2 * HOUR_S)
        put(server.core, server.client, delay_s=HOUR_S)
        server.send(b"pause-tube default 3600\r\n")
    with closing(sqlite3.connect(machine.path)) as connection:
        lines = list(dump(connection, machine.path))
    utc_s = START_S + EPOCH_S + 2 * HOUR_S
    assert f'"until": {utc_s + HOUR_S:.1f}' in lines[1]
    assert f'"created_at": {utc_s:.1f}, "due_at": {utc_s + HOUR_S:.1f}' in lines[2]
    load([line.encode() for line in lines], machine.path, new_ids=True)
    assert len(set(machine.ask("SELECT created_at, due_at, since FROM jobs"))) == 1
    assert machine.ask("SELECT created_at, due_at FROM all_jobs") == [(utc_s, utc_s + HOUR_S)] * 2


async def test_a_file_without_jobs_takes_the_clock_as_it_is(machine):
    async with machine.serving() as server:
        machine.set_clock(2 * HOUR_S)
        put(server.core, server.client)
        server.send(b"delete 1\r\n")
    async with machine.serving() as server:
        assert server.clock() == machine.utc_ns


def refusal(machine):
    """Return the reason why both a server and verify reject the file."""
    (found,) = [finding.said for finding in verify(machine.path) if not finding.sound]
    with pytest.raises(JournalRefused) as error:
        asyncio.run(Running(machine).start())
    assert str(error.value) == found
    return found


@pytest.fixture
def with_a_delay(machine):
    """Make a file with a delayed job, by a clock that differs from the machine's."""

    async def serve():
        async with machine.serving() as server:
            put(server.core, server.client, delay_s=HOUR_S)
            machine.pass_s(60.25)
            machine.set_clock(2.5)

    asyncio.run(serve())


FAR = [
    "seen_at = 1e300",
    "ahead_s = -1e300",
    "offset_ns = 1 << 62, seen_at = -1e200",
    "seen_at = 1e17",
    "offset_ns = ~(1 << 63)",
]


@pytest.mark.usefixtures("with_a_delay")
@pytest.mark.parametrize("damage", FAR)
def test_what_no_clock_shows_is_refused(machine, damage):
    with filling(machine.path) as queue:
        queue.connection.execute(f"UPDATE server SET {damage}")  # noqa: S608 - our own words
    assert "server row has impossible values" in refusal(machine)


@pytest.mark.usefixtures("with_a_delay")
@pytest.mark.parametrize("column", ["seen_at", "ahead_s", "offset_ns"])
def test_a_clock_in_which_a_bit_has_flipped_is_refused(machine, column):
    """Otherwise all delays would end at once, or never."""
    ((value,),) = machine.ask(f"SELECT {column} FROM server")  # noqa: S608 - our own words
    stored = struct.pack(">d" if isinstance(value, float) else ">q", value)
    content = bytearray(machine.path.read_bytes())
    place = content.index(stored, content.index(b"unix:socket"))
    content[place + 2] ^= 1
    machine.path.write_bytes(content)
    assert "server row does not match its checksum" in refusal(machine)
