"""The list of what operators did, wherever they did it."""

import html
import re
import time

import pytest

from beanlite.console.stored import looking_at
from beanlite.core.access import OPERATOR, Rights
from beanlite.web import operating
from tests.support.access import allow
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire
from tests.web.test_people import EVERYTHING, of


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operating")
    rules = folder / "access.toml"
    rules.write_text(
        EVERYTHING
        + allow("person:ann", ["mail"], "operator")
        + allow("person:root", ["*"], "operator")
        + allow("person:carl", ["*"], "reader")
    )
    with start_beanlite(folder, "--access", str(rules)) as server:
        yield server


@pytest.fixture(scope="module")
def webs(server):
    """Two pages for the same server: one on which it was changed, and one that looks on."""
    flags = (f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db", "--user-header", "X-User")
    with Web(*flags) as elsewhere, Web(*flags) as web, Wire(server.connect()) as wire:
        wire.ask("use mail")
        ids = ",".join(str(wire.put(b"job")) for _ in range(40))
        of(elsewhere, "ann").post("/change", {"ids": ids, "do": "bury"})
        of(elsewhere, "root").post("/pause", {"tube": "mail", "for": "5min"})
        of(elsewhere, "root").post("/policy", {"pattern": "mail*", "key": "ttl", "value": "9d"})
        yield web


def rows(web, query=""):
    """The text of each line, without its time and address."""
    page = web.get(f"/changes{query}")
    assert page.status == 200
    body = page.html.partition('id="deeds"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    texts = [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in body.split("<tr>")[1:]]
    return [html.unescape(re.sub(r"^.* UTC | 127\.0\.0\.1:\d+", "", text)) for text in texts]


def test_what_operators_did_elsewhere_is_told(webs):
    lines = ["root policy ttl=9d mail*", "root pause for 5 min mail", "ann bury mail 40 job 1 to 40"]
    assert rows(of(webs, "root")) == lines
    assert "Nothing has been changed here since this page was started" in webs.get("/changes").text


def test_deeds_are_chosen_by_person_tube_and_time(webs):
    root = of(webs, "root")
    assert rows(root, "?by=ann") == ["ann bury mail 40 job 1 to 40"]
    assert rows(root, "?tube=mail&by=root") == ["root pause for 5 min mail"]
    assert len(rows(root, "?since=1h")) == 3
    assert rows(root, f"?since={time.gmtime().tm_year + 1}-01-01") == []
    assert "Nothing that operators have done fits" in root.get("/changes?by=nobody").text
    one_by_one = rows(root, "?by=ann&each=1")
    assert len(one_by_one) == 40
    assert one_by_one[0] == "ann bury mail 1 job 40"


def test_wrong_moment_is_told_at_its_field(webs):
    page = of(webs, "root").get("/changes?since=soon&by=ann")
    assert page.status == 400
    assert "'soon' is no moment" in page.text
    assert 'value="soon"' in page.html
    assert 'value="ann"' in page.html


def test_person_is_told_its_own_deeds_alone(webs):
    assert rows(of(webs, "ann"), "?by=root") == []
    assert rows(of(webs, "ann")) == ["ann bury mail 40 job 1 to 40"]
    assert rows(of(webs, "carl")) == []


@pytest.mark.usefixtures("webs")
def test_person_is_told_its_own_deeds_behind_those_of_others(server, monkeypatch):
    monkeypatch.setattr(operating, "EVENTS_MAX", 1)
    asked, rights = operating.Asked.of({}), Rights([(OPERATOR, b"mail")])
    with looking_at(server.directory / "queue.db") as look:
        (deed,) = operating.deeds(look, asked, rights, "ann", hides=False)
    assert (deed.what, deed.jobs) == ("bury", 1)


def test_refresh_does_not_read_the_history(webs):
    assert 'id="deeds"' in of(webs, "root").get("/changes").html
    assert 'id="deeds"' not in webs.get("/changes", **{"beanlite-live": "1"}).html


def test_pause_is_told_with_its_person_and_end(webs):
    text = of(webs, "root").get("/tube/mail").text
    told = re.search(r"Paused by root at (\S+ \S+) UTC ?, until (\S+ \S+) UTC ?\.", text)
    assert told
    at, until = (time.mktime(time.strptime(moment, "%Y-%m-%d %H:%M:%S")) for moment in told.groups())
    assert until - at == pytest.approx(300, abs=1)


def test_page_for_readers_tells_what_operators_did(tmp_path):
    with start_beanlite(tmp_path) as server:
        flags = (f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db")
        with Wire(server.connect()) as wire, Web(*flags, "--read-only") as web:
            wire.ask("use mail")
            wire.put(b"job")
            wire.request("change-jobs", do="note", ids=[1], note="a secret", by="ann")
            wire.request("change-jobs", do="note", ids=[1], note="", by="ann")
            assert 'href="/changes"' in web.get("/").html
            assert rows(web) == ["ann note taken away mail 1 job 1", "ann note 'a secret' mail 1 job 1"]
            with Web(*flags, "--hide-bodies") as discreet:
                assert rows(discreet) == ["ann note mail 1 job 1"] * 2
            server.kill()
            assert "known to the server alone" in web.get("/changes").text


def test_copies_of_many_jobs_are_one_line(tmp_path):
    with start_beanlite(tmp_path, "--history", "7d") as server:
        flags = (f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db")
        with Wire(server.connect()) as wire, Web(*flags) as web:
            wire.request("put-jobs", jobs=[{"tube": "mail", "body": str(n)} for n in range(3)])
            wire.request("change-jobs", do="copy", tube="mail", to="again", by="ann")
            assert rows(web) == ["ann copy again 3 job 4 to 6"]
            assert len(rows(web, "?each=1")) == 6


def test_move_of_jobs_with_several_delays_is_one_line(tmp_path):
    with start_beanlite(tmp_path) as server:
        with Wire(server.connect()) as wire:
            for number in range(6):
                wire.put(b"x", pri=number, delay_s=1000 * (number % 2))
            wire.request("change-jobs", do="move", to="other", pri_min=0, by="ann")
            wire.request("change-jobs", do="delay", delay_s=60, ids=[1, 2, 3], by="ann")
        with Web(f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db") as web:
            told = rows(web)
    assert told == ["ann delay delay 1 min other 3 job 1 to 3", "ann move other 6 job 1 to 6"]


def test_end_of_a_pause_and_of_a_schedule_are_told(tmp_path):
    with start_beanlite(tmp_path) as server:
        flags = (f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db")
        with Wire(server.connect()) as wire, Web(*flags, "--hide-bodies") as web:
            wire.ask("use mail")
            wire.request(
                "set-schedule", name="nightly", when="0 3 * * *", zone="Asia/Tokyo", tube="mail", body="x", by="ann"
            )
            wire.request("unset-schedule", name="nightly", by="ann")
            wire.request("set-pause", tube="mail", pause_s=0, by="ann")
            ended, unset, was_set = rows(web)
    assert ended == "ann pause ended mail"
    assert unset.startswith("ann schedule nightly unset")
    assert was_set == "ann schedule nightly: 0 3 * * * Asia/Tokyo -> mail mail"
