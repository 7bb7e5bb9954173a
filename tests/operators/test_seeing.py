"""What the commands of operators show of a server or a file, and what they say where nobody can be asked."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from beanlite.cli import main
from beanlite.console import tables
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.tools.look import looking
from beanlite.settings.values import DB_NAME
from tests.support.journal_files import make
from tests.support.needs import need
from tests.support.servers import beanstalkd_program, start_beanlite, start_beanstalkd
from tests.support.wire import Wire, until

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "100"}
# Runs a command with Ctrl-C at the first line of the code that reads a file, then at the second, and so on, until it
# comes too late. Each process is a new one, which is killed if it doesn't end. All have what they import from the first
# run, and end without freeing it.
PRESSING = """
import gc, os, signal, sys
from beanlite.cli import main, see
from beanlite.journal.sqlite.tools import look, reading
from beanlite.console import file

files = {module.__file__ for module in (see, file, look, reading)}

def press(left):
    def trace(frame, event, _):
        nonlocal left
        left -= event == "line"
        if event == "line" and left == 0:
            signal.raise_signal(signal.SIGINT)
        return trace
    sys.settrace(lambda frame, *_: trace if frame.f_code.co_filename in files else None)

code, presses = 130, 0
main(sys.argv[1:])
gc.freeze()
while code == 130:
    presses += 1
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        press(presses)
        os._exit(main(sys.argv[1:]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(presses, code)
"""


def test_a_locked_file_does_not_keep_whoever_looks_waiting_for_long(tmp_path):
    make(tmp_path / "queue.db", batches=1)
    with looking(tmp_path / "queue.db") as look:
        assert look._connection.execute("PRAGMA busy_timeout").fetchone() == (5000,)


def test_tables_fit_the_terminal(queue, run, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        for words in (["jobs"], ["tubes"], ["clients"]):
            _, out, _ = run(queue, *words)
            shown = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
            assert max(map(len, shown)) <= columns, words
            assert not any("…" in line[:40] for line in shown), words


def test_a_long_table_is_not_laid_out_as_a_whole(capsys, monkeypatch):
    """That takes rich a minute for 50,000 rows."""
    monkeypatch.delattr(Console, "print")
    assert tables.print_table([{"number": n, "address": f"peer {n}"} for n in range(1000)], tables.CLIENTS) == 1000
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[8]) == ("number  address", "     7  peer 7")


@pytest.mark.parametrize(("columns", "title"), [(23, "number  holds  buffered"), (22, "number  holds")])
def test_a_column_is_left_out_only_where_it_does_not_fit(columns, title, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    tables.print_table([{"number": 1, "holds": 2, "buffered": 3}], tables.CLIENTS)
    assert re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()[0] == title


def test_wide_characters_keep_columns_straight(capsys):
    records = [{"number": 1, "address": "日本", "uses": "a"}, {"number": 22, "address": "mail", "uses": "b"}]
    tables.print_table(records, tables.CLIENTS)
    assert capsys.readouterr().out.splitlines()[1:] == ["     1  日本     a", "    22  mail     b"]


def test_what_is_no_terminal_gets_all_of_it(queue, run):
    _, out, _ = run(queue, "jobs", "--tube", "other")
    assert "x" * 200 in out


def test_tubes_are_shown_with_their_outlook(capsys):
    tube = {"name": "mail", "ready": 5, "failed": 0.125, "drain_s": None, "due": 10_000}
    tables.print_table([tube, {"name": "other", "ready": 5, "failed": None, "drain_s": 90, "due": 0}], tables.TUBES)
    assert capsys.readouterr().out.splitlines() == [
        "tube   ready  failed    empty in  due in 30 min",
        "mail       5   12.5%       never         10,000",
        "other      5          1 min 30 s",
    ]


def test_jobs_are_shown_with_how_often_they_were_reserved(own_queue, run):
    own_queue.worker.ask(f"release {own_queue.reserved[0]} 0 0")
    title, *rows = run(own_queue, "jobs", "--tube", "mail", "--sort", "reserves", "--limit", "5")[1].splitlines()
    assert "reserves" in title
    assert "releases" in title
    assert "timeouts" not in title  # of none
    at = title.index("reserves")
    assert [row[at : at + 8].strip() for row in rows] == ["1", "1", "1", "1", ""]


@pytest.mark.parametrize("sort", ["age", "size"])
def test_cut_list_that_can_not_be_continued_says_so(sort, queue, run):
    code, out, err = run(queue, "jobs", "--tube", "mail", "--sort", sort, "--limit", "2")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err == "Cut after 2 jobs; there may be more: --limit\n"
    assert run(queue, "jobs", "--tube", "other", "--sort", sort, "--limit", "2")[2] == ""
    assert run(queue, "jobs", "--sort", sort, "--limit", "0")[2] == ""


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_cut_list_of_tubes_says_so_to_scripts_as_well(form, queue, run):
    code, _, err = run(queue, "tubes", "--limit", "1", *form)
    assert (code, err) == (0, "These are 1 of 3 tubes: --limit\n")
    assert run(queue, "tubes", "--limit", "3", *form)[2] == ""


def test_a_job_is_shown_whole(queue, run):
    _, out, _ = run(queue, "job", "1")
    assert '\n{\n  "to": "user0@example.org"\n}\n' in out
    assert "why          client" in out
    assert json.loads(run(queue, "job", "10", "--json")[1])["base64"] == "bGF0ZXIg/wA="
    assert "6c 61 74 65 72 20 ff 00" in run(queue, "job", "10")[1]
    code, out, err = run(queue, "job", "99")
    assert (code, out) == (1, "")
    assert err == "beanlite: there is no job 99; beanlite job 99 --db PATH shows what the database still has of it\n"


def test_json_is_json_whatever_the_encoding_of_stdout(own_queue, run):
    """In ASCII Python writes an ä as \\xe4, which JSON does not know, and in Latin-1 as a byte that is not UTF-8."""
    run(own_queue, "put", "--tube", "odd", "ä€")
    for encoding in "ascii", "latin-1", "utf-8":
        options = ["--connect", f"127.0.0.1:{own_queue.server.port}", "--json"]
        command = [sys.executable, "-m", "beanlite", "jobs", "--tube", "odd", *options]
        environment = {**ENVIRONMENT, "PYTHONIOENCODING": encoding}
        out = subprocess.run(command, capture_output=True, check=True, env=environment).stdout
        assert json.loads(out)["preview"] == "ä€"


def test_a_file_knows_rates_and_what_became_of_a_job(tmp_path, capsys):
    with start_beanlite(tmp_path, "--history", "7d") as server, Wire(server.connect()) as client:
        client.ask("use mail")
        client.ask("watch mail")
        for job_id in 1, 2:
            assert client.put(b"x") == job_id
        client.ask("reserve")
        client.ask("delete 1")
        assert main(["bury", "2", "--connect", f"127.0.0.1:{server.port}"]) == 0
        server.stop()
    db = ["--db", str(tmp_path / "queue.db")]
    capsys.readouterr()
    assert main(["job", "1", *db]) == 0
    gone = capsys.readouterr().out.splitlines()
    assert gone[0] == "job 1 has gone; its history:"
    assert [line.split("  ")[-3] for line in gone[1:]] == ["put", "reserve", "delete"]
    assert main(["job", "2", "--json", *db]) == 0
    history = json.loads(capsys.readouterr().out)["history"]
    assert [(event["what"], event["by"]["operator"]) for event in history] == [("put", False), ("bury", True)]
    assert main(["job", "1", "--body", "raw", *db]) == 1
    assert main(["tubes", "--json", *db]) == 0
    (mail,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert mail["puts_per_min"] > mail["deletes_per_min"] > 0


def test_history_names_the_person_at_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "ann")
    with start_beanlite(tmp_path, "--history", "7d") as server, Wire(server.connect()) as client:
        at = ["--connect", f"127.0.0.1:{server.port}"]
        assert main(["put", "--tube", "mail", "x", *at]) == 0
        assert main(["bury", "1", *at]) == 0
        client.ask("kick-job 1")
        server.stop()
    db = ["--db", str(tmp_path / "queue.db")]
    capsys.readouterr()
    assert main(["job", "1", *db]) == 0
    put, bury, kick = capsys.readouterr().out.splitlines()[-3:]
    assert re.search(r"  by 127\.0\.0\.1:\d+ #\d+ for ann$", put)
    assert re.search(r"  by operator 127\.0\.0\.1:\d+ #\d+ for ann$", bury)
    assert re.search(r"  by 127\.0\.0\.1:\d+ #\d+$", kick)
    assert main(["job", "1", "--json", *db]) == 0
    history = json.loads(capsys.readouterr().out)["history"]
    assert [(event["by"]["operator"], event["by"]["person"]) for event in history] == [
        (False, "ann"), (True, "ann"), (False, None),
    ]  # fmt: skip


def test_clients_and_stats(queue, run):
    _, out, _ = run(queue, "clients", "--json")
    assert [client["holds"] for client in map(json.loads, out.splitlines())] == [2]  # and not this command's own
    assert "asks" not in out
    (default,) = map(json.loads, run(queue, "tubes", "default", "--json")[1].splitlines())
    assert (default["using"], default["watching"]) == (1, 1)  # the worker
    found = json.loads(run(queue, "stats", "--json")[1])
    assert (found["current-jobs-ready"], found["current-jobs-buried"]) == (6, 2)
    facts = {key: rest for key, *rest in map(str.split, run(queue, "stats")[1].splitlines())}
    assert facts["current-jobs-ready"] == ["6"]
    assert facts["backup-succeeded-at"] == ["0", "(never)"]
    assert facts["max-job-size"] == ["65535", "(64.0", "KiB)"]
    assert facts["uptime"][1].startswith("(")
    assert int(facts["database-bytes"][0]) == queue.db.stat().st_size
    disk = os.statvfs(queue.db.parent)
    assert int(facts["disk-free"][0]) == pytest.approx(disk.f_bavail * disk.f_frsize, rel=0.1)


def test_clients_of_a_tube_are_sorted(tmp_path, capsys):
    def numbers(*options):
        capsys.readouterr()
        assert main(["clients", "--json", *connect, *options]) == 0
        return [json.loads(line)["number"] for line in capsys.readouterr().out.splitlines()]

    with start_beanlite(tmp_path) as server, ExitStack() as stack:
        connect = ["--connect", f"127.0.0.1:{server.port}"]
        producer, idle, busy = (stack.enter_context(Wire(server.connect())) for _ in range(3))
        producer.ask("use mail")
        producer.put(b"1")
        for wire in (idle, busy):
            wire.ask("watch mail")
        busy.ask("reserve")
        every = numbers()
        assert len(every) == 3
        assert numbers("--tube", "mail", "--sort", "hold") == [every[2], every[0], every[1]]
        assert numbers("--tube", "default") == every
        idle.ask("ignore mail")
        assert numbers("--tube", "mail") == [every[0], every[2]]
        assert main(["clients", "--tube", "mial", *connect]) == 1
        assert "did you mean mail?" in capsys.readouterr().err
        assert main(["clients", "--sort", "luck", *connect]) == 2
        told = "clients are sorted by number, holds, hold, silent, connected, not by 'luck'"
        assert told in capsys.readouterr().err


def test_a_file_tells_of_each_state_and_of_what_there_is(queue, capsys):
    assert main(["stats", "--db", str(queue.db), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found[state] for state in ("ready", "reserved", "delayed", "buried")] == [6, 2, 2, 2]
    assert found["stopped"] is None
    assert main(["stats", "--db", str(queue.db)]) == 0
    assert "None" not in capsys.readouterr().out


def test_tail_tells_what_happens(own_queue):
    command = [sys.executable, "-m", "beanlite", "tail", "--tube", "new", "--what", "put", "--what", "delete"]
    command += ["--json", "--connect", f"127.0.0.1:{own_queue.server.port}"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process,
        own_queue.server.connect() as connection,
        Wire(connection) as client,
    ):
        client.ask("use new")
        told: list[dict] = []
        first = threading.Thread(target=lambda: told.append(json.loads(process.stdout.readline() or "{}")))
        first.start()
        try:
            until(lambda: client.put(b"x") and not first.is_alive())
            process.send_signal(signal.SIGINT)
            # Just before it reads, a signal would wait for what is read.
            until(lambda: client.put(b"x") and process.poll() is not None)
            assert process.returncode == 130
        finally:
            process.kill()
            first.join()
    assert [told[0][key] for key in ("what", "tube", "pri")] == ["put", "new", 0]


def test_an_event_is_a_line():
    by = {"address": "10.0.0.1:5", "number": 7, "operator": False, "person": None}
    event = {"at": 0, "id": 12, "tube": "mail", "what": "release", "by": by, "pri": 3, "delay_s": 60, "size": 1}
    line = tables.event_line(event)
    assert line.endswith("        12  mail  release  pri 3  delay 1 min  by 10.0.0.1:5 #7")
    line = tables.event_line(event | {"id": 0, "what": "pause", "pri": 0, "delay_s": 600})
    assert line.endswith("            mail  pause  for 10 min, until 1970-01-01 00:10:00  by 10.0.0.1:5 #7")


# -- who can't be asked


def test_server_without_a_connection_left_is_told_apart(tmp_path, capsys):
    with start_beanlite(tmp_path, "--max-connections", "1") as server, Wire(server.connect()) as client:
        client.ask("stats")
        assert main(["tubes", "--connect", f"127.0.0.1:{server.port}"]) == 1
        assert "it may have as many as max_connections allows" in capsys.readouterr().err


def test_another_server_is_told_apart(tmp_path, capsys):
    need(beanstalkd_program(), "beanstalkd is not installed")
    with start_beanstalkd(tmp_path) as server:
        assert main(["jobs", "--connect", f"127.0.0.1:{server.port}"]) == 1
        said = capsys.readouterr().err
        assert "does not understand the commands of operators: it is another server" in said
        with Wire(server.connect()) as client:
            assert client.stats()["current-jobs-ready"] == "0"


@pytest.mark.parametrize(
    ("command", "answer", "why"),
    [
        ("why", b"UNKNOWN_COMMAND\r\n", "diagnose: UNKNOWN_COMMAND (it is older than this program)"),
        (
            "tubes",
            b'REFUSED 30\r\n{"error":"due_s: unknown key"}\r\n',
            "list-tube-stats: due_s: unknown key; it is older than this program",
        ),
    ],
)
def test_server_that_is_too_old_is_told(command, answer, why, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    if line == b"show-job 0\r\n":
                        connection.sendall(b"NOT_FOUND\r\n")
                    elif line.startswith((b"diagnose", b"list-")):
                        connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        name = f"127.0.0.1:{listener.getsockname()[1]}"
        assert main([command, "--connect", name]) == 1
        server.join()
    assert capsys.readouterr().err == f"beanlite: {name} refused {why}\n"


def test_a_server_is_named_as_connect_takes_it(tmp_path, capsys):
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as closed:
        places = [f"[::1]:{closed.getsockname()[1]}", f"unix:{tmp_path}/none"]
    for place in places:
        assert main(["stats", "--connect", place]) == 1
        assert f"no server can be reached at {place}: " in capsys.readouterr().err


def test_where_the_settings_say(queue, tmp_path, monkeypatch, capsys):
    (tmp_path / "beanlite.toml").write_text(f'host = "0.0.0.0"\nport = {queue.server.port}\n')
    assert main(["jobs", "-n", "1", "--json", "--config", str(tmp_path / "beanlite.toml")]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == 1
    monkeypatch.setenv("BEANLITE_PORT", str(queue.server.port))
    assert main(["jobs", "-n", "1", "--json"]) == 0
    assert main(["jobs", "--connect", "nowhere"]) == 2
    assert main(["jobs", "--connect", f"unix:{tmp_path}/none"]) == 1


def test_a_state_without_jobs_is_counted(tmp_path, capsys):
    open_database(tmp_path / "queue.db").close()
    assert main(["stats", "--db", str(tmp_path / "queue.db"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["delayed"] == 0


def test_a_file_that_nobody_serves(tmp_path, capsys):
    open_database(tmp_path / "queue.db").connection.close()
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["jobs", "--db", str(tmp_path / "queue.db")]) == 0
    assert capsys.readouterr().err == "no jobs\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert main(["jobs", "--db", str(tmp_path / "other.db")]) == 3


def test_a_folder_stands_for_the_database_in_it_as_for_the_server(tmp_path, capsys):
    open_database(tmp_path / DB_NAME).connection.close()
    assert main(["jobs", "--db", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "no jobs\n"


def test_a_file_of_an_older_version_is_refused(tmp_path, capsys):
    old = tmp_path / "migrations"
    old.mkdir()
    shutil.copy(find_migrations()[0], old)
    open_database(tmp_path / "queue.db", old).connection.close()
    assert main(["jobs", "--db", str(tmp_path / "queue.db")]) == 3
    assert "has version 1, and can be looked into when a server" in capsys.readouterr().err


def test_ctrl_c_at_any_moment_ends_the_reading_of_a_file(tmp_path):
    make(tmp_path / "queue.db", batches=1)
    command = [sys.executable, "-c", PRESSING, "jobs", "--db", str(tmp_path / "queue.db")]
    done = subprocess.run(command, capture_output=True, check=False, text=True, env=ENVIRONMENT)
    presses, code = done.stdout.splitlines()[-1].split()
    assert (code, done.stderr) == ("0", "")
    assert int(presses) > 30
    assert [file.name for file in tmp_path.iterdir()] == ["queue.db"]
