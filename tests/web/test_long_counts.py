"""A count before a change that takes long is given up, and nothing is done for a browser that has gone meanwhile."""

import math
import re

import pytest

from beanlite.console.live import Live
from beanlite.web import changing
from beanlite.web.pages import filter_of
from beanlite.web.site import Site
from beanlite.web.undeleting import not_kept
from tests.support.web import made_by, text_of

MANY = 150  # more than one slice
FORM = {"scope": "all", "q": "tube:default", "back": "/", "to": "copies", "pri": "5"}


@pytest.fixture
def jobs(wire):
    for _ in range(MANY):
        wire.put(b"job")
    return wire


@pytest.fixture
def site(server):
    return Site(name="", connect=lambda _, within_s: Live((server.host, server.port), "", within_s))


def buried(wire):
    return int(wire.stats("stats-tube default")["current-jobs-buried"])


@pytest.mark.parametrize(
    ("do", "done"),
    [("kick", "0 jobs kicked"), ("bury", "150 jobs buried"), ("delete", "150 jobs deleted"), ("copy", "150")],
)
def test_question_tells_that_not_all_are_counted(monkeypatch, jobs, site, web, do, done):
    monkeypatch.setattr(changing, "LOOK_S", 0.0)
    page = made_by(site, "/change", {**FORM, "do": do})
    many = "all that match" if do == "kick" else "at least 100 jobs"
    assert f"<h1>{do.capitalize()} {many}?</h1>" in page
    assert "Only what was found within" in text_of(page)
    assert ("They can't be brought back together" in text_of(page)) == (do in {"kick", "bury"})
    jobs.put(b"put since")
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page)
    assert done in web.post("/change", dict(fields)).text


def test_what_can_be_undone_is_asked_for_if_that_is_not_known(monkeypatch, wire, site, web):
    wire.put(b"job")
    monkeypatch.setattr(changing, "LOOK_S", 0.0)
    page = text_of(made_by(site, "/change", {**FORM, "do": "bury"}))
    assert "Bury 1 job?" in page
    assert "They can't be brought back together" in page
    assert buried(wire) == 0
    assert "1 job buried" in web.post("/change", {**FORM, "do": "bury"}).text


def test_bodies_that_were_not_looked_at_may_not_be_kept(server, wire):
    wire.put(b"job")
    with Live((server.host, server.port)) as live:
        lost = [not_kept(live, filter_of(FORM), 1, 1 << 20, until_s) for until_s in (math.inf, 0.0)]
    assert lost == [0, 1]


@pytest.mark.parametrize("gone", [True, False])
def test_nothing_is_done_for_a_browser_that_has_gone(monkeypatch, jobs, site, gone):
    monkeypatch.setattr(changing, "WAIT_S", 60.0)
    made_by(site, "/change", {**FORM, "do": "bury"}, has_gone=lambda: gone)
    assert buried(jobs) == (0 if gone else MANY)
