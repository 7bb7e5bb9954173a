"""What the pages tell where a reader could take one thing for another, or not know how to go on."""

import asyncio
import json
import re
import subprocess
import sys
import urllib.parse
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from beanlite.console.live import Live
from beanlite.web import counting, finding
from beanlite.web.moments import Moments
from beanlite.web.overview import _page_of
from beanlite.web.safety import User
from beanlite.web.site import UNKNOWN, Site
from tests.support.access import allow
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire
from tests.web.test_people import EVERYTHING, of


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = ("--history", "1d", "--history-bodies")
    with start_beanlite(tmp_path_factory.mktemp("told"), *flags) as server, Wire(server.connect()) as wire:
        wire.ask("use mail")
        ids = [wire.put(b'{"customer": %d}' % number, pri=7) for number in range(3)]
        for job_id in ids[:2]:
            assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
            assert wire.ask(f"bury {job_id} 7") == "BURIED"
        wire.ask("name web3/mailer/17")
        wire.ask("use exports")
        deleted = [wire.put(b'{"customer": 4711}') for _ in range(2)]
        assert wire.request("change-jobs", do="delete", ids=deleted, by="ann")["done"] == 2
        wire.put(b"held")
        wire.ask("watch exports")
        assert wire.ask("reserve").startswith("RESERVED")
        yield server


@pytest.fixture(scope="module")
def web(server):
    with Web(f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db") as web:
        yield web


def find(web, line, path="/jobs", **more):
    return web.get(f"{path}?{urllib.parse.urlencode({'q': line, **more})}")


def test_list_that_is_empty_leads_to_what_was_deleted(web):
    page = find(web, "customer:4711")
    assert "No job fits" in page.text
    assert '<a href="/changes?body=customer%3A4711">Changes</a> tells whether operators deleted such jobs' in page.html
    changes = web.get("/changes?body=customer%3A4711")
    assert "delete exports 2 job 4 to 5" in changes.text
    assert "beanlite undelete puts again all that fit" in changes.text
    assert "Nothing that operators have done fits" in web.get("/changes?body=customer%3A4712").text
    assert 'href="/changes?tube=exports&amp;body=' in find(web, "tube:exports customer:5").html
    for line in ("tube:none", "buried", "id:4"):
        assert "Changes</a> tells" not in find(web, line).html


def test_values_of_deleted_jobs_that_make_no_sense_are_told(web, server):
    for line in ("state:ready", "since:02:00 customer:1", "customer"):
        page = web.get(f"/changes?{urllib.parse.urlencode({'body': line})}")
        assert (page.status, "only values in JSON bodies can be looked for, such as" in page.text) == (400, True)
    with Web(f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db", "--hide-bodies") as hiding:
        page = hiding.get("/changes?body=customer%3A4711")
        assert (page.status, "delete exports" in page.text) == (400, False)
        assert "bodies are hidden here" in page.text
        assert '"customer"' not in hiding.get("/job/4").text  # 4711 alone may be part of a client's port
        assert hiding.get("/job/4?body=raw").status == hiding.get("/job/1?body=raw").status == 404


def test_job_that_has_gone_shows_the_body_that_is_kept(web):
    page = web.get("/job/4")
    assert "The history keeps it since the job was deleted" in page.text
    assert '{ "customer": 4711 }' in page.text
    assert web.get("/job/4?body=raw").html == '{"customer": 4711}'


def test_kept_body_is_shown_to_those_who_may_read_the_tube(tmp_path):
    rules = tmp_path / "access.toml"
    rules.write_text(EVERYTHING + allow("person:ann", ["mail"], "operator") + allow("person:bob", ["sms"], "operator"))
    flags = ("--history", "1d", "--history-bodies", "--access", str(rules))
    with start_beanlite(tmp_path, *flags) as server, Wire(server.connect()) as wire:
        wire.ask("use mail")
        wire.request("change-jobs", do="delete", ids=[wire.put(b"kept text")])
        with Web(f"127.0.0.1:{server.port}", "--db", tmp_path / "queue.db", "--user-header", "X-User") as web:
            for path in ("/job/1", "/job/1?body=raw"):
                assert "kept text" in of(web, "ann").get(path).html
                assert "kept text" not in of(web, "bob").get(path).html
            found = of(web, "bob").get("/changes?body=a%3A1")
            assert (found.status, "delete mail" in found.text) == (200, False)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("buried", "did you mean state:buried?"),
        ("tube=mail", "did you mean tube:mail?"),
        ('error="timed out"', 'did you mean error:"timed out"?'),
        ("client:web3", "holder:17 or host:10.0.0.5"),
        ('"buried"', "fewer conditions"),
    ],
)
def test_word_that_reads_like_a_condition_is_told(web, line, meant):
    page = find(web, line)
    assert "No job fits" in page.text
    assert meant in page.text.partition("No job fits")[2]


def test_filters_and_tabs_keep_the_span_of_the_chart(web):
    page = find(web, "state:buried", "/tube/mail", span="day")
    assert page.fields["span"] == "day"
    assert '<a href="/tube/mail?span=day">All</a>' in page.html
    assert 'href="/tube/mail?span=day&amp;q=state%3Aready"' in page.html
    assert 'href="/tube/mail?state=ready&amp;span=day"' in page.html
    overview = web.get("/?span=day")
    assert overview.fields["span"] == "day"
    assert 'href="/?sort=buried&amp;span=day"' in overview.html


def test_order_of_the_queue_is_offered_where_there_is_one(web):
    menu = "<option( selected)?>queue</option>"
    assert not re.search(menu, web.get("/jobs").html)
    assert "sorted by id: queue is for the ready, delayed or buried" in web.get("/jobs?sort=queue").text
    assert re.search(menu, web.get("/tube/mail").html)
    assert "sorted by id: queue is for" in web.get("/tube/mail?sort=queue").text
    assert "sorted by id" not in find(web, "state:buried", "/tube/mail", sort="queue").text


def test_groups_without_a_value_lead_to_notes(web):
    page = web.get("/tube/mail?group=error.type&q=state%3Aburied")
    assert "no value 2 100.0 %" in page.text
    assert "No job has anything at error.type in its body" in page.text
    assert '<a href="/tube/mail?q=state%3Aburied&amp;group=note">note</a>' in page.html
    assert "No job has anything" not in web.get("/tube/mail?group=customer").text


def test_jobs_of_a_tube_are_not_grouped_by_it(web):
    page = web.get("/tube/mail?group=tube&q=state%3Aburied")
    assert '<a href="/tube/mail?q=state%3Aburied">mail</a>' in page.html
    hint = web.get("/tube/mail?group=error.type").text
    assert ("by state, why" in hint, "by tube, state" in hint) == (True, False)
    assert 'placeholder="note, customer"' in page.html
    assert "A path in a JSON body, or state, why, note" in page.text
    assert "A path in a JSON body, or tube, state, why, note" in web.get("/jobs").text


def test_count_that_goes_on_does_not_look_finished(server, monkeypatch):
    async def hangs(_count, steps):
        steps.close()

    monkeypatch.setattr(counting, "_run", hangs)

    async def page():
        site = Site(name="", connect=lambda _, __: Live((server.host, server.port)))
        app = SimpleNamespace(state=SimpleNamespace(site=site))
        path = {"path": "/jobs", "raw_path": b"/jobs", "query_string": b"group=customer"}
        request = Request({"type": "http", "method": "GET", **path, "headers": [], "app": app})
        request.state.user, request.state.rights = User("", may_change=True), UNKNOWN
        try:
            return (await finding.jobs(request)).body.decode()
        finally:
            await site.close()

    html = asyncio.run(page())
    assert "Still counting: 0 of 4 jobs looked at" in html
    assert "they go on while this page is open" in html


def test_list_leaves_out_what_is_the_same_in_each_row(web):
    page = find(web, "state:buried", "/tube/mail")
    assert "Each has pri 7, and was buried by a client." in page.text
    assert not re.search("<th[^>]*>(pri|State|Why)</th>", page.html)
    assert re.search("<th[^>]*>pri</th>", web.get("/jobs").html)


def test_client_leads_to_its_jobs(web):
    page = web.get("/clients")
    assert re.search('<a class="name" href="/jobs[?]holder=([0-9]+)">web3/mailer/17</a>', page.html)
    assert "Buffered" not in page.text
    assert re.search('<a href="/jobs[?]holder=[0-9]+">&#34;web3/mailer/17&#34; #', find(web, "state:reserved").html)


def test_lengths_of_time_have_their_beginning(web):
    page = find(web, "state:buried")
    assert re.search('data-label="In state"><time datetime="[^"]*" data-age title="since 20', page.html)
    assert re.search("Buried for [0-9]+ s, since 20[0-9]", web.get("/job/1").text)
    assert re.search(r"are buried, .*--state buried --connect \S+ · since 20", web.get("/tube/mail").text)


def test_page_of_tubes_behind_the_last_one_blames_no_name(web):
    assert "These were all. Show all tubes" in web.get("/?page=2").text


def test_refusals_are_in_one_place(web):
    assert "Refused Puts for lack of memory 0 Backups" in web.get("/journal").text


def import_old(folder, tube="default"):
    """Import a job that was put years ago, and buried; returns the database."""
    counts = {"reserves": 1, "buries": 1, "timeouts": 0, "releases": 0, "kicks": 0}
    state = {"state": "buried", "created_at": 1_700_000_000, "since": 1_700_000_000, "buried_seq": 1}
    job = {"kind": "job", "id": 1, "tube": tube, "pri": 0, "delay_s": 0, "ttr_s": 60, "body": "old"}
    (folder / "jobs.jsonl").write_text(json.dumps(job | state | counts))
    command = [sys.executable, "-m", "beanlite", "import", folder / "jobs.jsonl", "--db", folder / "queue.db"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "queue.db"


def test_events_that_are_hidden_are_not_told_to_be_missing(tmp_path):
    rules = tmp_path / "access.toml"
    rules.write_text(EVERYTHING + allow("person:ann", ["mail"], "operator"))
    database = import_old(tmp_path, "sms")
    with start_beanlite(tmp_path, "--history", "1d", "--access", str(rules)) as server, Wire(server.connect()) as wire:
        for how in ({"do": "reprioritise", "pri": 5}, {"do": "move", "to": "mail"}):
            wire.request("change-jobs", ids=[1], **how)
        with Web(f"127.0.0.1:{server.port}", "--db", database, "--user-header", "X-User") as web:
            assert "Events since 20" not in of(web, "ann").get("/job/1").text


def test_job_tells_since_when_its_events_are_kept(tmp_path):
    database = import_old(tmp_path)
    with start_beanlite(tmp_path, "--history", "1d") as server, Wire(server.connect()) as wire:
        new_id = wire.put(b"new")
        with Web(f"127.0.0.1:{server.port}", "--db", database) as web:
            assert "Last holder not known" in web.get("/job/1").text
            assert "Last holder none yet" in web.get(f"/job/{new_id}").text
            assert "Events since" not in web.get(f"/job/{new_id}").text
            wire.request("change-jobs", do="reprioritise", pri=5, ids=[1])
            assert "Events since 20" in web.get("/job/1").text


@pytest.mark.parametrize(
    ("command", "page"),
    [
        ("beanlite jobs --tube mail --state reserved", "/tube/mail?sort=in-state&state=reserved#jobs"),
        ("beanlite jobs --tube 'a;b' --state delayed --sort queue", "/tube/a%3Bb?state=delayed&sort=queue#jobs"),
        ("beanlite job 17", "/job/17"),
        ("beanlite clients", "/clients"),
        ("beanlite policy show mail", "/tube/mail#policies"),
        ("beanlite pause mail 0", ""),
        ("", ""),
    ],
)
def test_command_of_a_finding_leads_to_the_same_on_the_page(command, page):
    assert _page_of(command) == page


def test_moment_does_not_move_with_the_seconds_of_an_age():
    now = [1000.0]
    moments = Moments(lambda: now[0])
    assert moments.since("start", 100) == 900
    now[0] = 1002.9
    assert moments.since("start", 101) == 900
    assert moments.since("other", 101) == pytest.approx(901.9)
    now[0] = 1100.0
    assert moments.since("start", 5) == 1095
