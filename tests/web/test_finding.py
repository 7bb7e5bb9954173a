"""Lists of jobs that take long to find: what has been found by then is shown, and that it is not all."""

import html
import re

import pytest

from beanlite.console.live import Live
from beanlite.web import finding
from beanlite.web.site import Site
from tests.support.servers import start_beanlite
from tests.support.web import made_by, text_of
from tests.support.wire import Wire

# More than a server looks at in a slice.
JOBS = 4100


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("found"), "--no-journal") as server, Wire(server.connect()) as wire:
        wire.send(b"put 0 0 60 1\r\nx\r\n" * (JOBS - 1) + b"put 0 0 60 4\r\nlast\r\n")
        assert all(wire.reply().startswith("INSERTED") for _ in range(JOBS))
        yield server


@pytest.fixture
def get(server):
    """Get a page, as its application makes it."""

    def get(target):
        site = Site(name="", connect=lambda _, within_s: Live((server.host, server.port), "", within_s))
        return made_by(site, target)

    return get


def test_list_without_end_goes_on_where_it_was_cut(get, monkeypatch):
    monkeypatch.setattr(finding, "LOOK_S", 0.0)
    page = get("/jobs?q=last")
    assert "No job fits so far: not all could be looked at within" in text_of(page)
    assert "all jobs that match" in text_of(page)
    (more,) = re.findall('<a href="([^"]*)" rel="next">Go on</a>', page)
    page = get(html.unescape(more))
    assert f'/job/{JOBS}"' in page
    assert "Go on" not in page


@pytest.mark.parametrize("sort", ["size", "age"])
def test_sorted_list_says_that_others_may_come_first(get, monkeypatch, sort):
    told = "Not all jobs could be looked at within"
    assert told not in text_of(get(f"/jobs?sort={sort}"))
    monkeypatch.setattr(finding, "LOOK_S", 0.0)
    page = get(f"/jobs?sort={sort}")
    assert told in text_of(page)
    assert "Others may come first" in text_of(page)
    assert page.count("<tr data-id=") == finding.JOBS


def test_names_of_tubes_are_looked_for_likewise(get, monkeypatch):
    monkeypatch.setattr(finding, "LOOK_S", 0.0)
    assert '"word":"tube:default"' in get("/complete?word=tube:d")
