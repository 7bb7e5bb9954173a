"""Real routers in front of real servers: clients of the field, servers that die, files that change, and TLS."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import greenstalk
import pytest

from beanlite.cli import main
from tests.router.routers import servers_file, start_router
from tests.support.needs import need
from tests.support.servers import beanstalkd_program, start_beanlite, start_beanstalkd
from tests.support.tls_clients import rest_of
from tests.support.wire import Wire, put_bytes, until

TUBES = [["a"], ["b"], ["c"]]


@pytest.fixture
def fleet(tmp_path):
    """A router in front of three servers, which have the tubes a, b and c."""
    servers = [start_beanlite(tmp_path / str(number)) for number in range(3)]
    with start_router(tmp_path / "router", servers, TUBES) as router:
        yield router
    assert "Traceback" not in router.log_text()


@pytest.fixture
def wire(fleet):
    with Wire(fleet.connect()) as wire:
        yield wire


def client_of(router, **options):
    return greenstalk.Client(("127.0.0.1", router.port), **options)


def start_again(server, *more):
    """Start a server again on its file and its port."""
    flags = ["serve", "--db", str(server.directory / "queue.db"), "-l", "127.0.0.1", "-p", str(server.port), *more]
    with (server.directory / "again.log").open("wb") as sink:
        process = subprocess.Popen([sys.executable, "-m", "beanlite", *flags], stdout=sink, stderr=sink)
    server.process = process


def test_greenstalk_works_with_tubes_on_three_servers(fleet):
    with client_of(fleet, watch=["a", "b", "c"]) as worker, client_of(fleet) as producer:
        ids = []
        for tube in "abcabc":
            producer.use(tube)
            ids.append(producer.put(f"for {tube}"))
        assert sorted(job_id % 64 for job_id in ids) == [1, 1, 2, 2, 3, 3]
        assert len(set(ids)) == 6
        assert sorted(producer.tubes()) == ["a", "b", "c", "default"]
        done = []
        for _ in range(6):
            job = worker.reserve(timeout=5)
            done.append(job.id)
            if len(done) % 2:
                worker.delete(job)
            else:
                worker.bury(job)
        assert sorted(done) == sorted(ids)
        with pytest.raises(greenstalk.TimedOutError):
            worker.reserve(timeout=0)
        buried = [job_id for job_id in ids if done.index(job_id) % 2]
        for job_id in buried:
            producer.kick_job(greenstalk.Job(job_id, ""))
        assert sorted(worker.reserve(timeout=5).id for _ in buried) == sorted(buried)


def test_waiting_worker_is_given_a_job_of_any_server_at_once(fleet):
    with client_of(fleet, watch=["a", "b", "c"]) as worker, client_of(fleet) as producer:
        for tube in "abc":
            worker._sock.settimeout(5)
            worker._sock.sendall(b"reserve\r\n")
            until(lambda: sum(stats_at(server)["current-waiting"] == "1" for server in fleet.upstreams) == 3)
            producer.use(tube)
            job_id = producer.put("x")
            line = worker._reader.readline()
            assert line == b"RESERVED %d 1\r\n" % job_id
            worker._reader.readline()
            worker.delete(greenstalk.Job(job_id, ""))
    for server in fleet.upstreams:
        with Wire(server.connect()) as wire:
            assert wire.stats()["cmd-release"] == "0"


def stats_at(server):
    with Wire(server.connect()) as wire:
        return wire.stats()


def test_dead_server_blocks_its_tubes_only(fleet, wire):
    two = fleet.upstreams[1]
    with client_of(fleet, watch=["a", "b"]) as worker, client_of(fleet, use="b") as producer:
        kept = producer.put("kept")
        worker._sock.settimeout(30)
        two.kill()
        wire.ask("use a")
        worker._sock.sendall(b"reserve\r\n")
        job_id = wire.put(b"x")
        assert worker._reader.readline() == b"RESERVED %d 1\r\n" % job_id
        worker._reader.readline()
        worker.delete(greenstalk.Job(job_id, ""))
        until(lambda: "server away" in fleet.log_text())
        assert wire.ask("use b") == "USING b"
        assert wire.ask("put 0 0 60 1", b"y") == "INTERNAL_ERROR"
        assert wire.stats()["router-servers-away"] == "1"
        worker._sock.sendall(b"reserve\r\n")
        start_again(two)
        assert worker._reader.readline() == b"RESERVED %d 4\r\n" % kept
        assert wire.put(b"y") > kept
    until(lambda: "server back" in fleet.log_text())
    assert fleet.log_text().count("server away") == 1


def test_put_whose_answer_is_lost_closes_the_connection(fleet, wire):
    wire.ask("use b")
    two = fleet.upstreams[1]
    two.signal(signal.SIGSTOP)
    wire.send(put_bytes(b"x") + b"list-tube-used\r\n")
    until(lambda: unread_bytes(two) > 0)
    two.kill()
    assert wire.is_closed()
    assert not wire._received
    start_again(two)


@pytest.mark.parametrize("reserves", [False, True])
def test_replies_that_wait_for_a_halted_server_are_not_gathered(fleet, wire, reserves):
    wire.ask("watch c")
    wire.ask("watch a")
    wire.ask("use a")
    job_id = wire.put(b"x" * 60_000)
    wire.ask("use b")
    other_id = wire.put(b"y")
    before = resident(fleet)
    two = fleet.upstreams[1]
    two.signal(signal.SIGSTOP)
    wire.send(b"peek %d\r\n" % other_id + b"peek %d\r\n" % job_id * 900 + b"reserve\r\n" * reserves)
    until(lambda: unsent_bytes(fleet.upstreams[0]) > 500_000)
    with Wire(fleet.connect()) as other:  # the router has read what it reads
        assert {other.ask(f"peek {job_id}") for _ in range(100)} == {f"FOUND {job_id} 60000"}
    assert resident(fleet) - before < 20_000_000
    two.signal(signal.SIGCONT)
    assert wire.reply() == f"FOUND {other_id} 1"
    assert {wire.reply() for _ in range(900)} == {f"FOUND {job_id} 60000"}
    assert not reserves or wire.reply() == f"RESERVED {job_id} 60000"


def test_lost_server_for_whose_reply_others_wait_is_read_from(fleet, wire):
    wire.ask("use a")
    job_id = wire.put(b"x" * 60_000)
    wire.ask("use b")
    other_id = wire.put(b"y")
    two = fleet.upstreams[1]
    two.signal(signal.SIGSTOP)
    wire.send(b"stats-tube b\r\npeek %d\r\n" % other_id + b"peek %d\r\n" % job_id * 900)
    until(lambda: unsent_bytes(fleet.upstreams[0]) > 500_000)
    two.kill()
    start_again(two)
    assert wire.reply().startswith("OK ")
    assert wire.reply() in {f"FOUND {other_id} 1", "INTERNAL_ERROR"}  # by then it may be known that the server is away
    assert {wire.reply() for _ in range(900)} == {f"FOUND {job_id} 60000"}


def test_client_that_reads_late_gets_each_reply_once(fleet, wire):
    wire.ask("use a")
    ids = [wire.put(b"x" * 60_000) for _ in range(3)]
    asked = [ids[at * 7 // 5 % 3] for at in range(900)]
    wire.send(b"".join(b"peek %d\r\n" % job_id for job_id in asked))
    until(lambda: unsent_bytes(fleet) > 50_000)
    assert [wire.reply() for _ in asked] == [f"FOUND {job_id} 60000" for job_id in asked]
    assert wire.ask("list-tube-used") == "USING a"


def resident(server):
    (kib,) = re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())
    return int(kib) << 10


def unsent_bytes(server):
    """How many bytes a server has sent on its connections that the other side has not taken."""
    return sum(int(row[4].split(":")[0], 16) for row in _connections(server))


def unread_bytes(server):
    """How many bytes are in the queues of a server's connections."""
    return sum(int(row[4].split(":")[1], 16) for row in _connections(server))


def _connections(server):
    port = f"{server.port:04X}"
    with Path("/proc/net/tcp").open(encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    return [row for row in rows if row[1].endswith(":" + port) and row[3] == "01"]


def test_put_that_was_not_sent_waits_for_a_server_that_starts_again(fleet, wire):
    two = fleet.upstreams[1]
    two.kill()
    wire.send(b"use b\r\n" + put_bytes(b"x"))  # on a connection to it that is open, the put may have been sent
    start_again(two)
    assert wire.reply() == "USING b"
    assert wire.reply().startswith("INSERTED")


def test_changed_file_of_servers_is_read_again(fleet, wire):
    wire.ask("use b")
    before = wire.put(b"x")
    worker = Wire(fleet.connect())
    worker.ask("watch b")
    servers_file(
        fleet.directory / "servers.toml",
        fleet.upstreams,
        [["a", "b"], [], ["c"]],
        version=2,
        moved='[moved]\nb = { from = "s2", to = "s1" }\n',
    )
    until(lambda: wire.stats()["router-map-version"] == "2")
    after = wire.put(b"y")
    assert (before % 64, after % 64) == (2, 1)
    assert [worker.ask("reserve"), worker.ask("reserve")] == [f"RESERVED {before} 1", f"RESERVED {after} 1"]
    worker.close()


@pytest.fixture
def shifted(tmp_path):
    """Two servers, and a router that knows the first one as s1; and a function that gives s1 these addresses."""
    servers = [start_beanlite(tmp_path / str(number)) for number in range(2)]
    with start_router(tmp_path / "router", servers[:1]) as router:
        router.upstreams = servers

        def shift(*at, name="s1", version=2):
            places = [f"127.0.0.1:{servers[each].port}" for each in at]
            file = router.directory / "servers.toml"
            file.write_text(f"version = {version}\n[servers.{name}]\nnumber = 1\nconnect = {places}\n")
            until(lambda: f"map_version={version}" in router.log_text())

        yield router, shift
    assert "Traceback" not in router.log_text()


@pytest.mark.parametrize("name", ["s1", "other"])
def test_connected_client_follows_a_server_to_its_new_address(shifted, name):
    router, shift = shifted
    with Wire(router.connect()) as producer, Wire(router.connect()) as worker, Wire(router.connect()) as holder:
        assert [producer.put(b"old"), producer.put(b"old")] == [65, 129]
        assert [holder.ask("reserve"), holder.ask("reserve")] == ["RESERVED 65 3", "RESERVED 129 3"]
        worker.send(b"reserve\r\n")
        until(lambda: stats_at(router.upstreams[0])["current-waiting"] == "1")
        shift(1, name=name)
        assert producer.put(b"new") == 65
        assert (worker.reply(), worker.body) == ("RESERVED 65 3", b"new")
        assert [holder.ask("delete 65"), holder.ask("delete 129"), holder.ask("peek 65")][:2] == ["DELETED"] * 2
        assert holder.body == b"new"
        assert producer.put(b"new") == 129
    until(lambda: stats_at(router.upstreams[0])["current-connections"] == "1")


def test_half_closed_client_does_not_wait_for_an_address_given_up(shifted):
    router, shift = shifted
    server = router.upstreams[0]
    with router.connect() as client:
        client.sendall(b"reserve\r\n")
        until(lambda: stats_at(server)["current-waiting"] == "1")
        server.signal(signal.SIGSTOP)
        try:
            client.shutdown(socket.SHUT_WR)
            shift(1)
            assert rest_of(client) == b"TIMED_OUT\r\n"
        finally:
            server.signal(signal.SIGCONT)


def test_server_with_one_more_address_disturbs_no_client(shifted):
    router, shift = shifted
    with Wire(router.connect()) as wire:
        wire.put(b"x")
        before = stats_at(router.upstreams[0])["total-connections"]
        shift(1, 0)
        shift(0, 1, version=3)
        assert wire.put(b"y") == 129
        after = stats_at(router.upstreams[0])["total-connections"]
        assert int(after) - int(before) <= 3  # of which one is of this test, and the others look for the server


@pytest.mark.parametrize("text", ["version = 0", "version = " + "[" * 5000], ids=["old", "nested"])
def test_file_of_servers_that_is_wrong_is_not_taken(text, fleet, wire):
    file = fleet.directory / "servers.toml"
    file.write_text(text)
    fleet.process.send_signal(signal.SIGHUP)
    until(lambda: "file of servers not taken" in fleet.log_text())
    assert wire.put(b"x") % 64 in {1, 2, 3}
    servers_file(file, fleet.upstreams, TUBES, version=2)
    until(lambda: wire.stats()["router-map-version"] == "2")


def test_drained_client_and_stopped_router_lose_nothing(fleet):
    with Wire(fleet.connect()) as wire:
        wire.send(put_bytes(b"x") * 2000)
        while len(wire._received) < 5000:
            wire._receive()
        assert fleet.stop() == 0
        assert wire.is_closed()
        acknowledged = wire._received.count(b"INSERTED")
        assert acknowledged >= 300
    jobs = sum(int(stats_at(server)["current-jobs-ready"]) for server in fleet.upstreams)
    assert jobs >= acknowledged


def test_whoever_asks_after_a_client_has_gone_finds_its_job_ready(fleet, wire):
    wire.ask("watch b")
    wire.ask("use b")
    wire.put(b"x")
    for _ in range(50):
        with Wire(fleet.connect()) as other:
            other.ask("watch b")
            assert other.ask("reserve").startswith("RESERVED")
        assert wire.ask("peek-ready").startswith("FOUND")


def test_half_closed_client_gets_all_replies(fleet):
    with socket.create_connection(("127.0.0.1", fleet.port), 10) as sock:
        lines = b"".join(b"use %b\r\n%b" % (tube, put_bytes(b"x")) for tube in (b"a", b"b", b"c") * 20)
        sock.sendall(lines + b"watch b\r\nreserve\r\nreserve-with-timeout 100\r\nlist-tube-used\r\n")
        sock.shutdown(socket.SHUT_WR)
        said = b""
        while data := sock.recv(1 << 16):
            said += data
    assert said.count(b"INSERTED") == 60
    assert said.count(b"RESERVED") == 2
    assert said.endswith(b"USING c\r\n")


def test_client_that_does_not_read_takes_no_memory(fleet, wire):
    wire.ask("use b")
    job_id = wire.put(bytes(60_000))
    before = resident_kib(fleet)
    greedy = fleet.connect()
    greedy.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while True:
            greedy.sendall(b"peek %d\r\n" % job_id * 1000)
    assert resident_kib(fleet) - before < 100_000
    greedy.settimeout(10)
    assert wire.ask(f"delete {job_id}") == "DELETED"
    greedy.close()


def resident_kib(server):
    with Path(f"/proc/{server.process.pid}/status").open(encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_old_servers_are_asked_in_turns(tmp_path):
    need(beanstalkd_program(), "beanstalkd is not installed")
    with ExitStack() as stack:
        servers = [start_beanlite(tmp_path / "ours"), start_beanstalkd(tmp_path / "theirs")]
        router = stack.enter_context(start_router(tmp_path / "router", servers, [["a"], ["b"]]))
        worker = stack.enter_context(client_of(router, watch=["a", "b"]))
        producer = stack.enter_context(client_of(router))
        for tube in "ba":
            worker._sock.settimeout(10)
            worker._sock.sendall(b"reserve\r\n")
            producer.use(tube)
            job_id = producer.put("x")
            assert worker._reader.readline() == b"RESERVED %d 1\r\n" % job_id
            worker._reader.readline()
        with pytest.raises(greenstalk.TimedOutError):
            worker.reserve(timeout=1)


@pytest.mark.parametrize("command", ["tubes", "kick 1", "put --tube a x", "schedule list"])
def test_operator_is_told_that_a_router_is_none_of_the_servers(command, fleet, capsys):
    assert main([*command.split(), "--connect", f"127.0.0.1:{fleet.port}"]) == 1
    why = "does not understand the commands of operators: it is a router; name its servers by --servers"
    assert why in capsys.readouterr().err
