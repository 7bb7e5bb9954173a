"""What systemd is told while a server stands by, and while its recovery waits."""

import asyncio
import contextlib
import socket

import asyncpg

from beanlite.core.job import SECOND_NS
from beanlite.host import systemd as host_systemd
from tests.journal.postgres.serving import SOON_S, Postgres, ServingPostgres, served, until
from tests.journal.postgres.test_lease import Still


@contextlib.contextmanager
def told_to_systemd(tmp_path, monkeypatch):
    """Listen in place of systemd, and yield a function that returns the messages since its last call."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        def told():
            messages = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    messages.append(systemd.recv(1000).split(b"\n"))
            return messages

        yield told


async def test_systemd_is_not_told_at_each_look(database, tmp_path, monkeypatch):
    first = await served(database, node="first", lease_s=100)
    with told_to_systemd(tmp_path, monkeypatch) as told:
        clock = Still()
        second = ServingPostgres(Postgres(database, node="second", lease_s=100, clock=clock))
        waiting = asyncio.create_task(second.start())
        await until(lambda: second.medium.standing_by == [True])
        statuses = []
        for _ in range(3):
            await clock.looked_at()
            statuses += [message[0] for message in told() if message[0] != b"WATCHDOG=1"]
            clock.now_ns += 2 * SECOND_NS
        assert statuses == [b"READY=1", *[b"STATUS=Standing by"] * 3]
    await first.stop()
    await (await waiting).stop()


async def test_watchdog_is_fed_while_the_recovery_waits_for_a_lock(database, tmp_path, monkeypatch):
    """It watches a server that has stood by, which must not be killed for what is out of its hands."""
    monkeypatch.setattr(host_systemd, "_PATIENCE_S", 0.01)
    first = await served(database, node="first")
    await first.put()
    holder = await asyncpg.connect(database)
    with told_to_systemd(tmp_path, monkeypatch) as told:
        second = ServingPostgres(Postgres(database, node="second"))
        waiting = asyncio.create_task(second.start())
        await until(lambda: second.medium.standing_by == [True])
        async with holder.transaction():
            await holder.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
            await first.stop()
            await until(lambda: b"STATUS=Recovering" in [message[0] for message in told()] or waiting.done())
            for _ in range(3):  # and the status stays
                await until(lambda: {message[0] for message in told()} == {b"WATCHDOG=1"})
        await asyncio.wait_for(waiting, SOON_S)
        told()
        await asyncio.sleep(0.1)
        assert told() == []
    await holder.close()
    await second.stop()
