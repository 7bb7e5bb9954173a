"""What the command line and top show of tubes and jobs with a policy."""

import json
from typing import Any

import pytest

from beanlite.cli import main
from beanlite.console import tables
from beanlite.console.file import File
from beanlite.console.live import Live
from beanlite.console.several import only
from beanlite.console.top.app import Top
from tests.operators.test_top import SMALL, shown
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with tubes that are shut: one is full, another is paused, and from a third too much was reserved."""
    with start_beanlite(tmp_path_factory.mktemp("shut"), "--no-journal") as server, Wire(server.connect()) as wire:
        for name, policy in (("full", {"max_reserved": 1, "max_tries": 9}), ("slow", {"rate": "1/h"})):
            wire.request("set-policy", pattern=name, set=policy)
        for name in ("full", "slow", "still", "open"):
            wire.ask(f"use {name}")
            for body in (b"first", b"second"):
                wire.put(body)
        wire.ask("pause-tube still 1000")
        wire.ask("watch full")
        wire.ask("reserve")
        wire.ask("release 1 0 0")
        assert wire.ask("reserve").startswith("RESERVED 1 ")
        yield server


def run(server, capsys, *command):
    assert main([*command, "--connect", f"{server.host}:{server.port}"]) == 0
    return capsys.readouterr().out


def test_tubes_that_are_shut_are_marked(server, capsys):
    head, *lines = run(server, capsys, "tubes").splitlines()
    assert head.endswith("  shut by")
    ends = {line.split()[0]: line.split()[-1] for line in lines}
    assert (ends["full"], ends["slow"]) == ("max_reserved", "rate")
    assert not {ends["still"], ends["open"]} & {"paused", "max_reserved", "rate"}
    tubes = [json.loads(line) for line in run(server, capsys, "tubes", "--json").splitlines()]
    assert {tube["name"]: (tube["shut"], tube["policy"]) for tube in tubes} == {
        "default": ([], None),
        "full": (["max_reserved"], {"max_tries": "9", "max_reserved": "1"}),
        "slow": (["rate"], {"rate": "1/h"}),
        "still": (["paused"], None),
        "open": ([], None),
    }


def test_events_name_the_policy_that_did_it(server):
    with Wire(server.connect()) as wire, Wire(server.connect()) as watcher:
        wire.request("set-policy", pattern="tried", set={"max_tries": 1, "retry": "1s"})
        watcher.request("watch-events", tube="tried")
        wire.ask("use tried")
        wire.ask("watch tried")
        wire.ask("ignore default")
        job_id = wire.put(b"job")
        wire.ask("reserve")
        wire.ask(f"release {job_id} 0 0")
        events = []
        while not events or events[-1]["what"] != "bury":
            assert watcher.reply().startswith("EVENT ")
            events.append(json.loads(watcher.body))
        wire.ask(f"delete {job_id}")
    assert [(event["what"], event["by"] is None, event.get("policy")) for event in events] == [
        ("put", False, None),
        ("reserve", False, None),
        ("release", False, None),
        ("bury", True, "max_tries"),
    ]
    assert tables.event_line(events[-1]).endswith("  tried  bury  pri 0  by its max_tries")


def test_a_job_has_its_tries(server, capsys):
    lines = run(server, capsys, "job", "1").splitlines()
    assert [line.split() for line in lines if line.startswith(("reserves", "forgiven", "tries"))] == [
        ["reserves", "2"],
        ["forgiven", "0"],
        ["tries", "2"],
    ]


async def test_top_marks_tubes_that_are_shut(server):
    async with Top(only((server.host, server.port))).run_test(size=SMALL) as pilot:
        lines = await shown(pilot, lambda text: "open" in text)
        names = {" ".join(line.split()[:2]) for line in lines}
        assert {"(full) full", "(rate) slow", "(paused) still", "open 2"} <= names


def test_tries_of_a_job_in_a_server_and_in_its_file(own_queue):
    job_id = own_queue.buried[0]
    with Live(own_queue.address) as live:
        live.ask("change-jobs", {"do": "kick", "ids": [job_id]})
        assert own_queue.worker.ask(f"reserve-job {job_id}").startswith("RESERVED")
        assert own_queue.worker.ask(f"release {job_id} 0 0") == "RELEASED"
        jobs: list[Any] = [live.show_job(job_id)]
    with File(own_queue.db) as file:
        jobs += [file.show_job(job_id), *file.list_jobs({"ids": [job_id], "limit": 1})["jobs"]]
    assert [(job["reserves"], job["forgiven"], job["tries"]) for job in jobs] == [(2, 1, 1)] * 3


def test_history_in_a_file_names_the_policy_that_did_it(tmp_path, capsys):
    with start_beanlite(tmp_path, "--history", "1d") as server:
        with Wire(server.connect()) as wire:
            wire.request("set-policy", pattern="default", set={"max_tries": 1})
            wire.put(b"job")
            wire.ask("reserve")
            wire.ask("release 1 0 0")
        assert main(["job", "1", "--db", str(tmp_path / "queue.db")]) == 0
        assert capsys.readouterr().out.endswith("  default  bury  pri 0  by its max_tries\n")
        with Web(f"{server.host}:{server.port}", "--db", tmp_path / "queue.db") as web:
            assert "bury default 0 its max_tries" in web.get("/job/1").text
