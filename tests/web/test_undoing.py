"""What the pages undo: exactly what was changed, as far as it is still unchanged."""

import re
import subprocess
import sys

import pytest

from beanlite.console.changes import Result, slices
from beanlite.console.filters import filter_by, settled
from beanlite.console.live import Live
from beanlite.errors import BeanliteError
from beanlite.protocol.operators.requests import CHANGED_MAX
from beanlite.web import undoing
from beanlite.web.undeleting import PutAgain
from beanlite.web.undoing import UndoJobs, UndoPause, Undos
from tests.support.servers import start_beanlite
from tests.support.web import Web, ended
from tests.support.wire import Wire, until


def facts(wire, job_id):
    stats = wire.stats(f"stats-job {job_id}")
    return stats["tube"].strip('"'), stats["state"], int(stats["pri"]), int(stats["time-left"]) > 500


def reserve(wire, job_id):
    assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")


def put_in_each_state(wire):
    """The ids of a ready, a delayed, a buried and a reserved job."""
    ids = [wire.put(b"job", pri=9), wire.put(b"job", pri=8, delay_s=1000), wire.put(b"job"), wire.put(b"job")]
    for job_id in ids[2:]:
        reserve(wire, job_id)
    assert wire.ask(f"bury {ids[2]} 7") == "BURIED"
    return ids


def undo(web, page):
    (token,) = re.findall('name="undo" value="([^"]*)"', page.html)
    return ended(web, web.post("/undo", {"undo": token, "back": "/jobs"}))


@pytest.mark.parametrize(
    ("how", "concerned"),
    [
        ({"do": "kick"}, [1, 2]),
        ({"do": "bury", "state": "ready"}, [0]),
        ({"do": "delay", "delay": "5min"}, [0, 1]),
        ({"do": "move", "to": "other"}, [0, 1, 2, 3]),
        ({"do": "reprioritise", "pri": "5"}, [0, 1, 2, 3]),
    ],
)
def test_undo_brings_back_what_was_changed(web, wire, how, concerned):
    ids = put_in_each_state(wire)
    before = [facts(wire, job_id) for job_id in ids]
    page = ended(web, web.post("/change", {"ids": ",".join(map(str, ids)), **how}))
    assert f"{len(concerned)} job" in page.text
    assert [at for at, job_id in enumerate(ids) if facts(wire, job_id) != before[at]] == concerned
    page = undo(web, page)
    assert re.search(rf"{len(concerned)} jobs?( brought back)?\.", page.text)
    assert [facts(wire, job_id) for job_id in ids] == before
    assert 990 < int(wire.stats(f"stats-job {ids[1]}")["time-left"]) <= 1000
    assert wire.ask(f"touch {ids[3]}") == "TOUCHED"


def test_undo_leaves_alone_what_has_changed_since(web, wire):
    ids = [wire.put(b"job", delay_s=1000) for _ in range(5)]
    page = ended(web, web.post("/change", {"ids": ",".join(map(str, ids)), "do": "kick"}))
    assert "5 jobs" in page.text
    until(lambda: wire.request("list-jobs", ids=ids, in_state_s=0.2)["jobs"])
    reserve(wire, ids[0])
    reserve(wire, ids[1])
    assert wire.ask(f"delete {ids[1]}") == "DELETED"
    reserve(wire, ids[4])
    assert wire.ask(f"release {ids[4]} 0 0") == "RELEASED"
    assert re.search("2 jobs brought back, 3 have changed since|2 jobs, and 3 left unchanged", undo(web, page).text)
    assert [facts(wire, job_id)[1] for job_id in (ids[0], *ids[2:])] == ["reserved", "delayed", "delayed", "ready"]


def test_undo_of_all_that_match_spans_slices(web, wire):
    for number in range(250):
        wire.put(b"job", pri=number % 3)
    page = ended(web, web.post("/change", {"scope": "all", "tube": "default", "do": "reprioritise", "pri": "9"}))
    assert "250 jobs" in page.text
    assert {job["pri"] for job in wire.request("list-jobs", limit=200)["jobs"]} == {9}
    assert "250 jobs" in undo(web, page).text
    pris = [job["pri"] for job in wire.request("list-jobs", limit=200)["jobs"]]
    assert pris == [number % 3 for number in range(200)]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"do": "delete"}, "can't be brought back, unless there is a backup"),
        ({"do": "bury"}, "2 jobs can't be brought back: reserved ones do not return"),
        ({"do": "release"}, "do not get them back"),
        ({"do": "copy", "to": "other"}, "can't be taken back together"),
    ],
)
def test_what_can_not_be_undone_is_asked_for(web, wire, how, why):
    ids = put_in_each_state(wire)
    before = [facts(wire, job_id) for job_id in ids]
    asked = web.post("/change", {"ids": ",".join(map(str, ids)), **how})
    assert why in asked.text
    assert [facts(wire, job_id) for job_id in ids] == before
    assert 'name="undo"' not in web.post("/change", asked.fields).html


def test_undo_is_done_once_and_by_nobody_else(web, wire):
    page = web.post("/change", {"ids": wire.put(b"job"), "do": "bury"})
    (token,) = re.findall('name="undo" value="([^"]*)"', page.html)
    assert web.post("/undo", {"undo": token}).status == 200
    again = web.post("/undo", {"undo": token})
    assert (again.status, "can't be undone any more" in again.text) == (409, True)


def test_pause_is_undone_to_what_it_was(web, wire):
    wire.put(b"job")
    assert wire.ask("pause-tube default 1000") == "PAUSED"
    page = web.post("/pause", {"tube": "default", "for": "5min", "back": "/tube/default"})
    assert "default is paused as before" in undo(web, page).text
    assert 990 < int(wire.stats("stats-tube default")["pause-time-left"]) <= 1000
    page = web.post("/pause", {"tube": "default", "for": "0", "back": "/tube/default"})
    assert "default is paused as before" in undo(web, page).text
    page = web.post("/pause", {"tube": "default", "for": "0", "back": "/tube/default"})
    page = web.post("/pause", {"tube": "default", "for": "5min", "back": "/tube/default"})
    assert "default is not paused any more" in undo(web, page).text
    page = web.post("/pause", {"tube": "default", "for": "5min", "back": "/tube/default"})
    assert wire.ask("pause-tube default 500") == "PAUSED"
    assert "has changed since, and was left as it is" in undo(web, page).text


def test_undo_that_failed_is_tried_again(tmp_path):
    with start_beanlite(tmp_path) as server, Web(f"127.0.0.1:{server.port}") as web:
        with Wire(server.connect()) as wire:
            job_id = wire.put(b"job")
            web.post("/change", {"ids": job_id, "do": "bury"})
            web.post("/pause", {"tube": "default", "for": "1h"})
        server.kill()
        tokens = re.findall('name="undo" value="([^"]*)"', web.get("/changes").html)
        assert [web.post("/undo", {"undo": token}).status for token in tokens] == [503, 503]
        page = web.get("/changes")
        assert "undone" not in page.text
        command = [sys.executable, "-m", "beanlite", "serve", "-l", "127.0.0.1", "-p", str(server.port)]
        with subprocess.Popen([*command, "--db", tmp_path / "queue.db"], stderr=subprocess.DEVNULL) as again:
            until(lambda: web.get("/clients").status == 200)
            for token in tokens:
                assert "can't be undone" not in ended(web, web.post("/undo", {"undo": token})).text
            tube = web.get("/tube/default")
            again.terminate()
    assert "ready 1" in tube.text
    assert "Paused" not in tube.text


def test_undo_belongs_to_the_user_that_made_the_change():
    undos = Undos()
    token = undos.keep("ann", UndoPause("default", 0, 60))
    with pytest.raises(BeanliteError, match="can't be undone any more"):
        undos.take("bob", token)
    assert isinstance(undos.take("ann", token), UndoPause)


def test_oldest_changes_are_forgotten(monkeypatch):
    monkeypatch.setattr(undoing, "JOBS_MAX", 10)
    undos = Undos()
    tokens = [undos.keep("", UndoJobs({"do": "kick"}, 4)) for _ in range(3)]
    with pytest.raises(BeanliteError):
        undos.take("", tokens[0])
    assert all(undos.take("", token) for token in tokens[1:])


@pytest.mark.parametrize(
    ("policy", "fate"),
    [
        ({"ttl": "2s", "expired": "delete"}, "deleted"),
        ({"ttl": "2s"}, "buried"),
        ({"ttl": "2s", "expired": "move:else"}, "moved on to else"),
    ],
)
def test_move_to_where_jobs_are_too_old_is_asked_first(web, wire, policy, fate):
    wire.request("set-policy", pattern="brief", set=policy)
    ids = put_in_each_state(wire)
    asked = web.post("/change", {"ids": ",".join(map(str, ids)), "do": "move", "to": "brief"})
    assert "Move 4 jobs?" in asked.text
    said = f"brief has ttl=2s: 3 jobs are too old for it, or will be within a minute, and then {fate}."
    assert f"They can't be brought back: {said}" in asked.text
    assert facts(wire, ids[0])[0] == "default"
    assert "1 job moved" in web.post("/change", {"ids": ids[2], "do": "move", "to": "brief"}).text  # buried
    wire.request("set-policy", pattern="brief", set={"ttl": "1h"})
    assert "1 job moved" in web.post("/change", {"ids": ids[0], "do": "move", "to": "brief"}).text
    wire.request("set-policy", policies=[], prune=True)


@pytest.mark.parametrize("kind", ["slices", "undo", "again"])
def test_what_comes_to_the_state_during_a_change_is_left_alone(server, wire, kind):
    ids = [wire.put(b"job") for _ in range(CHANGED_MAX + 1)]
    late = wire.put(b"late")
    reserve(wire, late)
    until(lambda: len(wire.request("list-jobs", tube="default", older_s=0.05, limit=200)["jobs"]) == len(ids) + 1)
    what = {"do": "delete" if kind == "again" else "bury"}
    again = PutAgain(server.directory / "queue.db")
    changes = {"slices": slices, "undo": UndoJobs(what, 0).change, "again": again.change}
    which = settled(filter_by(tube="default", state="ready", up_to_id=late), 0.05)
    outcome = Result()
    with Live((server.host, server.port), "") as live:
        for _ in changes[kind](live, what, which, outcome):
            if outcome.done == CHANGED_MAX:
                assert wire.ask(f"release {late} 0 0") == "RELEASED"
                until(lambda: wire.request("list-jobs", ids=[late], in_state_s=0.1)["jobs"])
    assert outcome.done == len(ids)
    assert facts(wire, late)[1] == "ready"


@pytest.mark.parametrize(("criterion", "value"), [("state", "reserved"), ("holder", 7), ("holder_host", "10.0.0.5")])
def test_what_is_reserved_since_is_not_meant(criterion, value):
    assert settled(filter_by(**{criterion: value}), 5.0).in_state_s == 5.0
    assert settled(filter_by(tube="default"), 5.0).in_state_s is None
