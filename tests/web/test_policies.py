"""Policies and schedules on the pages: what is told of them, and what is changed there."""

import asyncio
import html
import re
import socket

import pytest

from tests.support.inside import serving
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire, until


@pytest.fixture
def wire(server):
    """A client of a server without jobs, policies and schedules."""
    with Wire(server.connect()) as wire:
        wire.ask("use mail")
        wire.ask("watch mail")
        yield wire
        wire.request("set-policy", policies=[], prune=True)
        for schedule in wire.request("list-schedules")["schedules"]:
            wire.request("unset-schedule", name=schedule["name"])
        while wire.request("change-jobs", do="delete", pri_min=0)["next"] is not None:
            pass


def rows(page, heading):
    """The cells of each row of the table that follows a heading."""
    table = page.html.partition(f'id="{heading}"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in re.findall("<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall("<tr>(.*?)</tr>", table, re.DOTALL)
    ]


def test_tube_shows_its_policy_and_where_each_value_is_from(web, wire):
    wire.request("set-policy", pattern="*", set={"max_tries": 5, "retry": "5s", "ttl": "1d"}, by="ann")
    wire.request("set-policy", pattern="mail", set={"max_tries": 9, "ttl": "off"}, by="bob")
    found = [[*row[:3], *row[4:]] for row in rows(web.get("/tube/mail"), "policies")]
    assert found == [
        ["max_tries", "9", "this tube", "bob", "Unset"],
        ["retry", "5s", "*", "ann", "Unset for *"],
        ["ttl", "off", "this tube", "bob", "Unset"],
    ]
    wire.request("set-policy", policies=[], prune=True)
    assert "Nothing is set for this tube" in web.get("/tube/mail").text


def test_tube_says_what_keeps_its_jobs_waiting(web, wire):
    wire.request("set-policy", pattern="mail", set={"max_reserved": 1})
    wire.put(b"first")
    assert "Its jobs wait" not in web.get("/tube/mail").text
    assert wire.ask("reserve").startswith("RESERVED")
    assert "Its jobs wait" not in web.get("/tube/mail").text
    wire.put(b"second")
    assert "Its jobs wait because of max_reserved : 1." in web.get("/tube/mail").text
    assert '<span class="badge">max_reserved</span>' in web.get("/").html


def test_job_shows_its_tries(web, wire):
    wire.request("set-policy", pattern="mail", set={"max_tries": 2})
    job_id = wire.put(b"job")
    for _ in range(2):
        wire.ask("reserve")
        wire.ask(f"release {job_id} 0 0")
    page = web.get(f"/job/{job_id}").text
    assert "after too many tries" in page
    assert "Tries 2" in page
    tube = web.get("/tube/mail").text
    assert "1 job with too many tries, 0 too old" in tube


def test_policy_is_set_and_unset_under_a_tube(web, wire):
    form = {"pattern": "mail", "back": "/tube/mail"}
    page = web.post("/policy", {**form, "key": "max_tries", "value": " 5 "})
    assert "mail: max_tries=5; mail has max_tries without retry: jobs come back at once." in page.text
    assert [row[:2] for row in rows(page, "policies")] == [["max_tries", "5"]]
    assert "Nothing has changed" in web.post("/policy", {**form, "key": "max_tries", "value": "5"}).text
    refused = web.post("/policy", {**form, "key": "max_tries", "value": "many"})
    assert (refused.path.partition("?")[0], "many" in refused.text) == ("/tube/mail", True)
    assert "say which" in web.post("/policy", {**form, "key": "max_tries"}).text
    assert "say for which tubes" in web.post("/policy", {"key": "max_tries", "value": "5", "back": "/policies"}).text
    page = web.post("/policy", {**form, "key": "max_tries", "unset": "1"})
    assert "mail: unset max_tries (was 5)." in page.text
    assert wire.request("list-policies")["policies"] == []


def test_all_policies_are_on_a_page(web, wire):
    wire.request("set-policy", pattern="a.*", set={"rate": "5/h"}, by="<ann>")
    wire.request("set-policy", pattern="b", set={"fair": True}, by="bob")
    page = web.get("/policies")
    assert [[*row[:3], row[4]] for row in rows(page, "main")] == [
        ["a.*", "rate", "5/h", "&lt;ann&gt;"],
        ["b", "fair", "true", "bob"],
    ]
    page = web.post("/policy", {"pattern": "a.*", "key": "rate", "unset": "1", "back": "/policies"})
    assert [row[0] for row in rows(page, "main")] == ["b"]


def set_schedule(wire, **what):
    wire.request("set-schedule", **{"name": "nightly", "when": "0 3 * * *", "tube": "reports"} | what)


def test_refusal_is_told_where_policies_come_from_a_file(tmp_path):
    file = tmp_path / "policies.toml"
    file.write_text("# none yet\n")
    with start_beanlite(tmp_path, "--policies", str(file)) as server, Web(f"127.0.0.1:{server.port}") as web:
        page = web.post("/policy", {"pattern": "mail", "key": "ttl", "value": "1d", "back": "/policies"})
        assert "refused set-policy" in page.text


def test_schedules_are_listed_run_and_removed(web, wire):
    assert "puts no jobs by itself" in web.get("/policies").text
    set_schedule(wire, body="<go>", zone="Europe/Berlin", by="ann", missed="once")
    set_schedule(wire, name="often", when="every 5m", base64="/w==", if_absent=False)
    (nightly, often) = rows(web.get("/policies"), "schedules")
    assert nightly[:4] == ["nightly", "0 3 * * * Europe/Berlin", "reports", "&lt;go&gt;"]
    assert nightly[5:8] == ["never", "no", "put once"]
    assert nightly[9:] == ["ann", "Run Remove"]
    assert [often[1], often[3], *often[6:8]] == ["every 5m", "not text", "yes", "skipped"]
    page = web.post("/schedule", {"name": "nightly", "do": "run", "back": "/policies"})
    (job_id,) = re.findall("Job ([0-9]+) was put by nightly", page.text)
    assert f'<a href="/job/{job_id}">' in page.html
    assert wire.ask(f"peek {job_id}").startswith("FOUND")
    assert wire.body == b"<go>"
    page = web.post("/schedule", {"name": "nightly", "do": "unset", "back": "/policies"})
    assert "The schedule nightly was removed" in page.text
    assert [row[0] for row in rows(page, "schedules")] == ["often"]
    assert web.post("/schedule", {"name": "nightly", "do": "run"}).status == 409
    assert web.post("/schedule", {"name": "often", "do": "delete"}).status == 400


def test_schedule_that_waits_is_marked(web, wire):
    set_schedule(wire, when="every 1s", tube="mail", body="x")
    until(lambda: wire.request("list-schedules")["schedules"][0]["last_job"])
    job_id = wire.request("list-schedules")["schedules"][0]["last_job"]
    wire.request("change-jobs", do="bury", ids=[job_id])
    until(lambda: " none at " in rows(web.get("/policies"), "schedules")[0][5])
    ((_, _, _, _, following, *_),) = rows(web.get("/policies"), "schedules")
    assert following.endswith(f"UTC waits for job {job_id} (buried)")


def test_run_of_a_schedule_that_puts_nothing_says_so(web, wire):
    wire.request("set-policy", pattern="reports", set={"unique": "present"})
    set_schedule(wire, body="go")
    first = web.post("/schedule", {"name": "nightly", "do": "run", "back": "/policies"})
    (job_id,) = re.findall("Job ([0-9]+) was put by nightly", first.text)
    page = web.post("/schedule", {"name": "nightly", "do": "run", "back": "/policies"})
    assert f"Nothing was put: job {job_id} has this body already" in page.text
    wire.request("set-policy", policies=[], prune=True)


async def test_schedule_that_cannot_run_is_marked(tmp_path):
    why = "'Europe/Atlantis' is no zone"
    async with serving(tmp_path / "queue.db") as (server, _):
        where = server._listener.address

        def page():
            host, port = where.split(":")
            with Web(where) as web, Wire(socket.create_connection((host, int(port)))) as wire:
                set_schedule(wire, body="x", zone="Europe/Berlin")
                server.parts.engine.scheduler.errors["nightly"] = why
                return web.get("/policies")

        ((_, _, _, _, following, *_),) = rows(await asyncio.to_thread(page), "schedules")
    assert html.unescape(following) == why


def test_job_of_a_schedule_is_told_without_a_connection(tmp_path):
    with start_beanlite(tmp_path, "--history", "1h") as server:
        with Wire(server.connect()) as wire:
            set_schedule(wire, body="go")
            job_id = wire.request("run-schedule", name="nightly", by="ann")["id"]
        with Web(f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db") as web:
            assert "schedule nightly for ann" in web.get(f"/job/{job_id}").text


def test_readers_see_policies_and_schedules_without_forms_and_bodies(server, wire):
    wire.request("set-policy", pattern="mail", set={"max_tries": 5})
    set_schedule(wire, body="secret")
    with Web(f"127.0.0.1:{server.port}", "--read-only", "--hide-bodies") as web:
        for page in (web.get("/policies"), web.get("/tube/mail")):
            assert "max_tries" in page.html
            assert 'method="post"' not in page.html
        assert "secret" not in web.get("/policies").html
        assert web.post("/policy", {"pattern": "mail", "key": "max_tries", "value": "6"}).status == 403
        assert web.post("/schedule", {"name": "nightly", "do": "unset"}).status == 403
    assert wire.request("list-policies")["policies"][0]["value"] == "5"


def test_other_sites_change_no_policy(web, wire):
    fields = {"pattern": "mail", "key": "max_tries", "value": "5"}
    assert web.post("/policy", fields, sec_fetch_site="cross-site").status == 403
    assert web.post("/schedule", {"name": "x", "do": "unset"}, sec_fetch_site="cross-site").status == 403
    assert wire.request("list-policies")["policies"] == []


def test_users_change_policies_by_their_name(server, wire):
    with Web(f"127.0.0.1:{server.port}", "--user-header", "x-user") as web:
        web.post("/policy", {"pattern": "mail", "key": "max_tries", "value": "5"}, x_user="ann")
    assert wire.request("list-policies")["policies"][0]["changed_by"] == "ann"


def test_policies_of_a_file_are_only_shown(tmp_path):
    file = tmp_path / "policies.toml"
    file.write_text('["*"]\nmax_tries = 5\nretry = "5s"\n')
    with (
        start_beanlite(tmp_path / "server", "--no-journal", "--policies", str(file)) as server,
        Web(f"127.0.0.1:{server.port}") as web,
    ):
        for page in (web.get("/policies"), web.get("/tube/default")):
            assert f"Policies come from {file}: change that file" in page.text
            assert "max_tries" in page.text
            assert 'action="/policy"' not in page.html
        refused = web.post("/policy", {"pattern": "*", "key": "max_tries", "value": "6"})
        assert f"policies come from {file}" in refused.text


def test_schedule_is_set_and_mistakes_are_told_at_the_field(web, wire):
    fields = {"do": "set", "name": "nightly", "when": "0 3 * * *", "zone": "Europe/Berlin", "tube": "reports"}
    more = {"pri": "7", "ttr": "5min", "body": "a\r\nb", "once": "1", "back": "/policies"}
    assert "The schedule nightly was set" in web.post("/schedule", {**fields, **more}).text
    (schedule,) = wire.request("list-schedules")["schedules"]
    expected = {"when": "0 3 * * *", "zone": "Europe/Berlin", "tube": "reports", "body": "a\nb", "pri": 7, "ttr_s": 300}
    assert schedule.items() >= {**expected, "if_absent": True, "missed": "once"}.items()
    for wrong, name, why in (
        ({"name": " "}, "name", "say which"),
        ({"tube": "-x"}, "tube", "no tube can have the name"),
        ({"ttr": "soon"}, "ttr", "soon"),
        ({"name": "a b"}, "name", "and no blank"),
        ({"zone": "x" * 65}, "zone", "longer than 64 characters"),
        ({"when": "61 * * * *"}, "when", "refused set-schedule"),
        ({"zone": "Mars/Phobos"}, "when", "Mars/Phobos"),
    ):
        page = web.post("/schedule", {**fields, **more, **wrong})
        marked = re.search('name="([a-z]*)" [^>]*aria-invalid="true"', page.html)
        assert marked, wrong
        assert marked[1] == name
        assert why in page.text
        assert "<details open>" in page.html
        assert ">\na\nb<" in page.html.replace("\r", "")
    assert len(wire.request("list-schedules")["schedules"]) == 1
