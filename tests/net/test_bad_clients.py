"""Clients that send nonsense, vanish, or don't read: the others don't notice, and the log has no traceback."""

import itertools
import random
import re
import resource
import signal
import socket
import struct
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.servers import start_beanlite
from tests.support.wire import Wire, put_bytes, until

MIB = 1 << 20


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("bad")) as server:
        yield server
    assert "Traceback" not in server.log_text()


@pytest.fixture
def server(running):
    """The server of all tests of this file, which has to be there and well after each of them."""
    yield running
    with Wire(running.connect()) as wire:
        wire.ask("use check")
        wire.ask("watch check")
        job_id = wire.put(b"well")
        assert wire.ask(f"reserve-job {job_id}") == f"RESERVED {job_id} 4"
        assert wire.ask(f"delete {job_id}") == "DELETED"
        stats = wire.stats()
        assert (stats["current-waiting"], stats["current-jobs-reserved"]) == ("0", "0")
        until(lambda: wire.stats()["current-connections"] == "1")


@pytest.fixture
def wire(server, request):
    """A well-behaved client with a tube of its own."""
    with Wire(server.connect()) as wire:
        use_and_watch(wire, request.node.name)
        yield wire


@pytest.fixture
def bad(server, request):
    """A client with the same tube, to be closed by the test in any way it likes."""
    with Wire(server.connect()) as bad:
        use_and_watch(bad, request.node.name)
        yield bad


def use_and_watch(wire, test):
    """A tube of this test's own, and no other."""
    tube = re.sub(r"\W", "_", test)
    assert wire.ask(f"use {tube}") == f"USING {tube}"
    assert wire.ask(f"watch {tube}") == "WATCHING 2"
    assert wire.ask("ignore default") == "WATCHING 1"


def reset(wire):
    """Go without a word: the server gets an error, not an end."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def vanish(wire, how):
    reset(wire) if how == "reset" else wire.close()


def resident(server):
    """Bytes of memory."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def send_until_held_back(wire, data, limit):
    """Send over and over, until the server reads no more; returns how many bytes it took."""
    wire.socket.settimeout(0.5)
    sent = 0
    try:
        while sent < limit:
            sent += wire.socket.send(data)
    except TimeoutError:
        pass
    return sent


ways = pytest.mark.parametrize("how", ["close", "reset"])


@ways
def test_half_a_body_and_gone(wire, bad, how):
    before = wire.stats()["total-jobs"]
    bad.send(put_bytes(b"x" * 1000)[:500])
    vanish(bad, how)
    until(lambda: wire.stats()["current-connections"] == "1")
    assert wire.stats()["total-jobs"] == before
    assert wire.ask("peek-ready") == "NOT_FOUND"


@ways
@pytest.mark.parametrize("command", ["reserve", "reserve-with-timeout 100"])
def test_gone_while_it_waits(wire, bad, how, command):
    bad.send(command.encode() + b"\r\n")
    until(lambda: wire.stats()["current-waiting"] == "1")
    vanish(bad, how)
    until(lambda: wire.stats()["current-waiting"] == "0")
    job_id = wire.put(b"for the one who is left")
    assert wire.ask("reserve-with-timeout 0").startswith(f"RESERVED {job_id} ")
    assert wire.ask(f"delete {job_id}") == "DELETED"


@ways
def test_gone_with_replies_that_wait_for_a_commit(server, wire, bad, how):
    """What it has put is there, or not: but the batch and the others in it get on."""
    name = wire.ask("list-tube-used").split()[1]
    server.signal(signal.SIGSTOP)
    bad.send(put_bytes(b"left behind") * 10)
    vanish(bad, how)
    wire.send(put_bytes(b"mine"))
    server.signal(signal.SIGCONT)
    word, job_id = wire.reply().split()
    assert word == "INSERTED"
    assert wire.ask(f"delete {job_id}") == "DELETED"
    until(lambda: wire.stats()["current-connections"] == "1")
    for _ in range(int(wire.stats(f"stats-tube {name}")["current-jobs-ready"])):
        assert wire.ask(f"delete {wire.ask('peek-ready').split()[1]}") == "DELETED"


@ways
def test_gone_as_its_time_runs_out(server, wire, how):
    with ExitStack() as stack:
        waiting = [stack.enter_context(Wire(server.connect())) for _ in range(20)]
        for each in waiting:
            each.send(b"reserve-with-timeout 1\r\n")
        end = time.monotonic() + 1
        for number, each in enumerate(waiting):
            moment = end + (number - 10) / 10_000
            until(partial(lambda moment: time.monotonic() >= moment, moment))
            vanish(each, how)
    until(lambda: wire.stats()["current-connections"] == "1")


@ways
def test_gone_amid_many_expirations(server, wire, how):
    """More is due at once than is done in one go, so that a client may go between the moment its wait is over and the
    moment it is told so."""
    jobs = 3500
    wire.send(put_bytes(b"late", delay_s=2) * jobs)
    ids = [int(wire.reply().split()[1]) for _ in range(jobs)]
    with Wire(server.connect()) as bad:
        bad.send(b"reserve-with-timeout 2\r\n")
        until(lambda: wire.stats()["current-waiting"] == "1")
        server.signal(signal.SIGSTOP)
        end = time.monotonic() + 2.1
        until(lambda: time.monotonic() > end)
        vanish(bad, how)
        server.signal(signal.SIGCONT)
    until(lambda: wire.stats()["current-jobs-delayed"] == "0")
    wire.send(b"".join(b"delete %d\r\n" % job_id for job_id in ids))
    assert {wire.reply() for _ in ids} == {"DELETED"}


@ways
def test_gone_with_a_reservation(wire, bad, how):
    job_id = wire.put(b"job", ttr_s=100)
    assert bad.ask("reserve").startswith(f"RESERVED {job_id}")
    vanish(bad, how)
    assert wire.ask("reserve-with-timeout 10").startswith(f"RESERVED {job_id}")
    stats = wire.stats(f"stats-job {job_id}")
    assert (stats["timeouts"], stats["reserves"]) == ("0", "2")
    assert wire.ask(f"delete {job_id}") == "DELETED"


@ways
def test_gone_as_its_reservation_times_out(server, wire, bad, how):
    job_id = wire.put(b"job", ttr_s=1)
    assert bad.ask("reserve").startswith(f"RESERVED {job_id}")
    server.signal(signal.SIGSTOP)
    end = time.monotonic() + 1.1
    until(lambda: time.monotonic() > end)
    vanish(bad, how)
    server.signal(signal.SIGCONT)
    assert wire.ask("reserve-with-timeout 10").startswith(f"RESERVED {job_id}")
    assert wire.stats(f"stats-job {job_id}")["timeouts"] in {"0", "1"}
    assert wire.ask(f"delete {job_id}") == "DELETED"


@pytest.mark.parametrize("command", [b"peek %d\r\n", b"stats\r\n", b"list-tubes\r\n"])
def test_a_client_that_does_not_read_is_not_buffered_without_end(server, wire, bad, command):
    job_id = wire.put(b"x" * 60_000)
    before = resident(server)
    request = (command % job_id if b"%" in command else command) * 20_000
    taken = send_until_held_back(bad, request, limit=100 * MIB)
    assert taken < 50 * MIB
    assert resident(server) - before < 30 * MIB
    assert wire.ask("list-tube-used").startswith("USING")
    bad.socket.settimeout(10)
    whole = taken // len(command % job_id if b"%" in command else command)
    for _ in range(min(whole, 1000)):  # it goes on when the client reads
        assert bad.reply().startswith(("FOUND", "OK"))
    vanish(bad, "close")
    assert wire.ask(f"delete {job_id}") == "DELETED"


def test_a_slow_reader_gets_every_reply_even_when_it_sends_no_more(wire, bad):
    job_id = wire.put(b"x" * 60_000)
    bad.send(b"peek %d\r\n" % job_id * 200)
    bad.socket.shutdown(socket.SHUT_WR)
    for _ in range(200):
        assert bad.reply() == f"FOUND {job_id} 60000"
    assert bad.is_closed()
    assert wire.ask(f"delete {job_id}") == "DELETED"


def test_commands_behind_a_reserve_are_held_back(server, wire, bad):
    before = resident(server)
    bad.send(b"reserve\r\n")
    sent = send_until_held_back(bad, b"list-tube-used\r\n" * 10_000, limit=100 * MIB)
    assert sent < 50 * MIB
    assert resident(server) - before < 30 * MIB
    job_id = wire.put(b"at last")
    bad.socket.settimeout(10)
    assert bad.reply() == f"RESERVED {job_id} 7"
    for _ in range(sent // 16):
        assert bad.reply().startswith("USING")
    vanish(bad, "close")
    assert wire.ask("reserve").startswith(f"RESERVED {job_id} ")
    assert wire.ask(f"delete {job_id}") == "DELETED"


def test_commands_during_a_long_kick_are_answered_in_order(wire, bad):
    jobs = 5000
    wire.send(put_bytes(b"", delay_s=1000) * jobs)
    ids = [int(wire.reply().split()[1]) for _ in range(jobs)]
    bad.send(b"kick 1000000\r\n")
    for _ in range(50):
        bad.send(b"list-tube-used\r\n")
    assert bad.reply() == f"KICKED {jobs}"
    assert {bad.reply()[:5] for _ in range(50)} == {"USING"}
    wire.send(b"".join(b"delete %d\r\n" % job_id for job_id in ids))
    assert {wire.reply() for _ in ids} == {"DELETED"}


def test_a_client_that_never_waits_for_replies_lets_others_in_between(tmp_path):
    jobs = 100_000
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as bad, Wire(server.connect()) as wire:
        reader = threading.Thread(target=lambda: [bad.reply() for _ in range(jobs)])
        reader.start()
        sender = threading.Thread(target=bad.send, args=(put_bytes(b"x") * jobs,))
        sender.start()
        seen = set()
        while str(jobs) not in seen:
            seen.add(wire.stats()["total-jobs"])
        sender.join()
        reader.join()
    assert len(seen) > 20


def test_a_body_that_never_comes_takes_no_memory(server, wire, bad):
    before = resident(server)
    bad.send(b"put 0 0 60 1073741824\r\n")
    assert wire.ask("list-tube-used").startswith("USING")
    for _ in range(64):
        bad.send(b"\0" * MIB)
    assert resident(server) - before < 30 * MIB


def test_long_lines(server, wire, bad):
    before = resident(server)
    for _ in range(64):
        bad.send(b"a" * (MIB - 1) + b"\r\n")
    assert resident(server) - before < 30 * MIB
    for _ in range(63):
        assert bad.reply() == "BAD_FORMAT"
    bad.send(b"list-tube-used\r\n")
    assert bad.reply() == "BAD_FORMAT"
    assert bad.reply().startswith("USING")
    assert wire.ask("list-tube-used").startswith("USING")


def test_garbage(server, wire):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    chance = random.Random(seed)
    words = [b"put ", b"0 ", b"1 0 1 ", b"delete ", b"kick ", b"use ", b"\r\n", b"\n", b"\0", b"99999999999999999999 "]
    words += [b"watch x\r\n", b"ignore default\r\n", b"stats\r\n", b"peek-ready\r\n", b"reserve-with-timeout 0\r\n"]
    for _ in range(50):
        with Wire(server.connect()) as bad:
            pieces = [chance.choice((*words, chance.randbytes(chance.randrange(1, 300)))) for _ in range(200)]
            bad.send(b"".join(pieces))
            vanish(bad, chance.choice(("close", "reset")))
        assert wire.ask("list-tube-used").startswith("USING")
    until(lambda: wire.stats()["current-connections"] == "1")
    wire.ask("watch default")
    for tube in wire_tubes(wire):
        wire.ask(f"use {tube}")
        while (reply := wire.ask("peek-ready")) != "NOT_FOUND" or (reply := wire.ask("peek-delayed")) != "NOT_FOUND":
            assert wire.ask(f"delete {reply.split()[1]}") == "DELETED"


def test_a_request_of_a_browser(tmp_path):
    """Its header is answered, and what it is a header for is not carried out, whenever it comes."""
    header = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:11300\r\nOrigin: http://other.example\r\n\r\n"
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        for pieces in ([header + put_bytes(b"x")], [header, put_bytes(b"x"), put_bytes(b"x")]):
            with Wire(server.connect()) as bad:
                bad.send(pieces[0])
                assert bad.reply() == "UNKNOWN_COMMAND"
                for piece in pieces[1:]:
                    bad.send(piece)
                assert bad.is_closed()
        stats = wire.stats()
        assert (stats["total-jobs"], stats["refused-protocol"]) == ("0", "2")
        assert server.log_text().count("connection closed: HTTP or another protocol") == 2


def wire_tubes(wire):
    assert wire.ask("list-tubes").startswith("OK")
    return [line.removeprefix("- ") for line in wire.body.decode().splitlines()[1:]]


def test_no_descriptors_left(tmp_path):
    with start_beanlite(tmp_path) as server, ExitStack() as stack:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (40, 40))
        wires = [stack.enter_context(Wire(server.connect())) for _ in range(60)]
        assert wires[0].put(b"job") == 1
        for wire in itertools.islice(wires, 1, None):
            wire.close()
        until(lambda: wires[0].stats()["current-connections"] == "1")
        with Wire(server.connect()) as wire:
            assert wire.put(b"job") == 2
    assert "Traceback" not in server.log_text()
