"""``python -m tests.bench`` against real servers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beanlite import is_compiled
from beanlite.client import calls
from tests.bench import control
from tests.bench.__main__ import main
from tests.support.authority import Authority
from tests.support.servers import beanstalkd_program, start_beanlite
from tests.support.tls_front import TlsFront

ROOT = Path(__file__).parents[2]
SHORT = "--seconds 0.1 --warmup 0.02 --rounds 1 --connections 4".split()
needs_beanstalkd = pytest.mark.skipif(beanstalkd_program() is None, reason="beanstalkd is not installed")


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("server"), "--no-journal") as running:
        yield running


@pytest.fixture
def at(server):
    return f"127.0.0.1:{server.port}"


def asked(server, command):
    """A reply with a body, as pairs of key and value."""
    with server.connect() as client, client.makefile("rb") as lines:
        client.sendall(command)
        text = lines.read(int(lines.readline().split()[1])).decode()
    return dict(line.partition(": ")[::2] for line in text.splitlines())


def bench(capsys, *arguments):
    assert main([*SHORT, "--json", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


COUNTERS = {
    "noop": ["cmd-list-tube-used"],
    "put": ["cmd-put"],
    "cycle": ["cmd-put", "cmd-reserve", "cmd-delete"],
    "drain": ["cmd-reserve-with-timeout", "cmd-delete"],
    "pc": ["cmd-put", "cmd-reserve", "cmd-delete"],
    # kick-job has no counter; one follows each release and each bury
    "mixed": ["cmd-put", "cmd-reserve", "cmd-delete", *2 * ["cmd-release", "cmd-bury"]],
}


@pytest.mark.parametrize("workload", COUNTERS)
def test_a_workload_is_carried_out_counted_and_cleared_away(workload, server, at, capsys):
    before = asked(server, b"stats\r\n")
    result = bench(capsys, workload, "--connect", at, *"--depth 3 --tubes 2 --jobs 2000 --processes 2 -t 0.5".split())
    after = asked(server, b"stats\r\n")
    (target,) = result["targets"]
    (did,) = target["rounds"]
    carried_out = {key: int(after[key]) - int(before[key]) for key in after if key.startswith("cmd-")}
    assert 0 < did["commands"] <= sum(carried_out[key] for key in COUNTERS[workload])
    assert did["jobs"] <= carried_out["cmd-put" if workload == "put" else "cmd-delete"]
    assert (did["jobs"] > 0) == (workload != "noop")
    assert 0 < did["p50_us"] <= did["p99_us"] <= did["p999_us"] <= did["max_us"]
    assert target["left"] == 0
    assert [after[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried")] == ["0"] * 4


@pytest.mark.parametrize(
    "load",
    [
        "cycle --depth 300 --seconds 1.5",
        "cycle --depth 20 --body 60000 --seconds 1.5",
        "drain --jobs 2000",
        "noop --rate 500",
    ],
)
def test_load_is_carried_out_over_tls(load, server, tmp_path, capsys):
    authority = Authority(tmp_path)
    with TlsFront(server.port, authority.issue("server")) as front:
        result = bench(capsys, *load.split(), "--connect", f"tls={front.where}", "--tls-ca", str(authority.file))
    (target,) = result["targets"]
    assert (target["name"], target["left"]) == ("tls", 0)
    assert target["rounds"][0]["commands"] > 0


def test_server_that_is_not_trusted_is_told(server, tmp_path, capsys):
    with TlsFront(server.port, Authority(tmp_path).issue("server")) as front:
        assert main([*SHORT, "noop", "--connect", front.where]) == 1
    assert "the server's certificate is not trusted" in capsys.readouterr().err


def test_the_warm_up_is_not_counted(server, at, capsys):
    before = int(asked(server, b"stats\r\n")["cmd-list-tube-used"])
    (target,) = bench(capsys, "noop", "--connect", at, "--warmup", "0.8", "--seconds", "0.3")["targets"]
    carried_out = int(asked(server, b"stats\r\n")["cmd-list-tube-used"]) - before
    assert 0 < target["rounds"][0]["commands"] < carried_out * 0.9  # on a busy machine half is not sure


def test_drain_ends_when_nothing_is_left(server, at, capsys):
    before = int(asked(server, b"stats\r\n")["total-jobs"])
    result = bench(capsys, "drain", "--connect", at, "--jobs", "1003", "--tubes", "3", "--seconds", "60")
    assert int(asked(server, b"stats\r\n")["total-jobs"]) - before == 1003
    (did,) = result["targets"][0]["rounds"]
    assert (did["jobs"], did["commands"]) == (1003, 2 * 1003 + 4)  # four clients are told that there is no more
    assert did["seconds"] < 60


def test_the_json(server, at, capsys):
    result = bench(capsys, "--connect", f"one={at}", "--connect", at, "--rounds", "2", "--body", "0")
    assert set(result) == {"beanlite", "compiled", "when", "machine", "generator_cores", "pinned", "load", "targets"}
    assert set(result["machine"]) == {"cores", "cpu", "kernel", "python", "file_system"}
    assert (result["load"]["connections"], result["load"]["body"], result["load"]["workload"]) == (4, 0, "cycle")
    one, other = result["targets"]
    assert (one["name"], other["name"], one["ratio"]) == ("one", at, 1.0)
    ratios = [b["commands_per_s"] / a["commands_per_s"] for a, b in zip(one["rounds"], other["rounds"], strict=True)]
    assert other["ratio"] == pytest.approx(sum(ratios) / 2)
    assert other["cores"] == sorted(os.sched_getaffinity(server.process.pid))
    assert set(one) == {
        "name", "version", "cores", "ratio", "limit", "left", "rounds", "commands_per_s", "jobs_per_s", "p50_us",
        "p99_us", "p999_us", "max_us", "generator_busy", "server_busy", "queued",
    }  # fmt: skip


def test_alone_it_starts_a_beanlite_of_its_own(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("BEANLITE_FSYNC", "not for the servers that it starts")
    # Longer than the disk stands still: with nothing done there is no ratio.
    assert main([*SHORT, "--seconds", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    heading, _, _, _, _, names, figures, *_ = out.splitlines()
    assert heading == "cycle: 4 connections, 1 at a time, 100-byte bodies, 1 tube, 1 round of 1 s after 0.02 s"
    assert names.split()[:3] == ["commands/s", "jobs/s", "ratio"]
    assert figures.split()[0] == "beanlite"
    assert figures.split()[3] == "1.00"
    assert list(tmp_path.iterdir()) == []


def test_beanlite_is_the_installed_one_in_any_folder(capsys, tmp_path):
    (tmp_path / "beanlite.py").write_text("raise SystemExit('not this one')")
    result = bench(capsys, "--against", "beanlite --no-journal")
    assert (result["beanlite"], result["compiled"]) == (result["targets"][0]["version"], is_compiled())


@needs_beanstalkd
def test_side_by_side_with_beanstalkd(capsys, tmp_path):
    result = bench(capsys, "mixed", "--against", "beanstalkd -b . -f0", "--against", "beanlite --no-journal")
    assert [target["name"] for target in result["targets"]] == ["beanstalkd -b . -f0", "beanlite --no-journal"]
    result = bench(capsys, "cycle", "--against", "beanstalkd")
    assert [target["name"] for target in result["targets"]] == ["beanstalkd", "beanlite"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_server_and_generator_each_on_their_cores(capsys):
    result = bench(capsys, "--pin", "--against", "beanlite --no-journal")
    mine = sorted(os.sched_getaffinity(0))
    assert (result["targets"][0]["cores"], result["generator_cores"]) == (mine[:1], mine[1:])


def test_on_a_unix_socket(capsys, tmp_path):
    path = tmp_path / "server.sock"
    command = [sys.executable, "-m", "beanlite", "serve", "--no-journal", "--socket", path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "started" in process.stderr.readline()
            (target,) = bench(capsys, "--connect", f"unix:{path}")["targets"]
        finally:
            process.terminate()
    assert (target["name"], target["left"]) == (f"unix:{path}", 0)


@pytest.mark.usefixtures("server")
def test_the_rate_is_kept(at, capsys):
    result = bench(capsys, "--connect", at, "--rate", "300", "--warmup", "0.02", "--seconds", "0.5")
    # What was due in the warm-up may be sent after it; and each client may be ahead by a command.
    assert 0 < result["targets"][0]["rounds"][0]["commands"] <= 300 * 0.52 + 4


def test_more_clients_beside_are_not_counted(server, at, capsys):
    before = asked(server, b"stats\r\n")
    result = bench(capsys, "cycle", "--connect", at, "--beside", "2")
    after = asked(server, b"stats\r\n")
    assert int(after["cmd-list-tube-used"]) > int(before["cmd-list-tube-used"])
    (did,) = result["targets"][0]["rounds"]
    assert did["commands"] <= 3 * did["jobs"] + 3 * 4  # each client may be amid a cycle, at the begin and the end


@pytest.mark.parametrize(
    ("line", "said", "code"),
    [
        ("--connect 127.0.0.1:1", "no server can be reached at 127.0.0.1:1: Connection refused", 1),
        (
            "--connect x=unix:/nowhere.sock",
            "no server can be reached at unix:/nowhere.sock: No such file or directory",
            1,
        ),
        ("--against ./no-such-server", "./no-such-server is not installed", 2),
        ("--against /", "/ can't be started: Permission denied", 2),
        ("--against false", "false ended with 1: it said nothing", 1),
        ("--against 'x", '--against "\'x": No closing quotation', 2),
        ("nope", "there is no workload 'nope', only noop, put, cycle, drain, pc, mixed", 2),
        ("pc -c 1", "pc needs two connections: one puts, the other reserves", 2),
        ("pc --rate 5", "--rate has no meaning in pc", 2),
        ("-c 1 --processes 2", "there are more --processes than --connections", 2),
        ("--dir nowhere", "nowhere is not a directory", 2),
        ("--dir=", "--dir is empty", 2),
        ("--dir /proc", "no folder can be made in /proc: No such file or directory; name another --dir", 2),
        ("--nope", "No such option: --nope; python -m tests.bench --help tells how", 2),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(line, said, code, capsys):
    assert main(line.split(" ")) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"bench: {said}\n")


@pytest.mark.usefixtures("server")
def test_an_unexpected_reply_fails_and_is_shown(at, capsys):
    assert main([*SHORT, "put", "--body", "65536", "--connect", f"it={at}"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "bench: it: b'JOB_TOO_BIG\\r\\n' came where INSERTED was due\n")


@pytest.mark.parametrize(
    ("workload", "said"), [("put", r"b'DRAINING\r\n' came where INSERTED was due"), ("drain", "DRAINING")]
)
def test_a_reply_that_is_refused_later_fails_too(workload, said, capsys, tmp_path):
    with start_beanlite(tmp_path / "server", "--no-journal") as server:
        server.signal(signal.SIGUSR1)
        assert main([*SHORT, workload, "--connect", f"it=127.0.0.1:{server.port}"]) == 1
    assert capsys.readouterr().err == f"bench: it: {said}\n"


def test_a_server_that_closes_connections_is_an_error(capsys, tmp_path):
    with start_beanlite(tmp_path / "server", "--no-journal", "--max-connections", "3") as server:
        assert main([*SHORT, "--connect", f"it=127.0.0.1:{server.port}"]) == 1
    err = capsys.readouterr().err
    assert "the server closed a connection" in err or err == "bench: it: Connection reset by peer\n"


def test_jobs_that_stay_are_reported(server, at, capsys, monkeypatch):
    """A job of ours that somebody else holds."""
    monkeypatch.setattr(control, "CLEARED_WITHIN_S", 0.0)
    with server.connect() as somebody:
        somebody.sendall(b"watch bench-%d-0\r\nreserve\r\n" % os.getpid())
        assert somebody.recv(100) == b"WATCHING 2\r\n"
        assert main([*SHORT, "put", "--json", "--connect", f"it={at}"]) == 0
        out, err = capsys.readouterr()
        somebody.sendall(b"delete %b\r\n" % somebody.recv(200).split()[1])
        assert somebody.recv(100) == b"DELETED\r\n"
    assert json.loads(out)["targets"][0]["left"] == 1
    assert err == "bench: it: 1 jobs could not be deleted\n"


def test_an_interrupted_bench_leaves_nothing(server, at, tmp_path):
    """Neither a job, nor a server of its own, nor a file."""
    before = asked(server, b"stats\r\n")
    line = f"mixed -t 0.1 -r 1000 --warmup 0 --connect {at} --against beanlite --dir {tmp_path}"
    process = subprocess.Popen([sys.executable, "-m", "tests.bench", *line.split()], cwd=ROOT)
    while int(asked(server, b"stats\r\n")["cmd-bury"]) == int(before["cmd-bury"]):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 130
    after = asked(server, b"stats\r\n")
    assert [after[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried")] == ["0"] * 4
    assert list(tmp_path.iterdir()) == []


def test_interrupted_as_it_clears_away_it_still_does(server, at, monkeypatch):
    interrupts = [KeyboardInterrupt]
    delete_ready = control.Control._delete_ready

    def interrupted_once(self, size):
        if interrupts:
            assert self.ask(calls.reserve(0))
            raise interrupts.pop()
        delete_ready(self, size)

    monkeypatch.setattr(control.Control, "_delete_ready", interrupted_once)
    assert main([*SHORT, "put", "--seconds", "0.5", "--connect", at]) == 130
    after = asked(server, b"stats\r\n")
    assert [after[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried")] == ["0"] * 4
