"""What the pages change: only what was meant, and asked for twice if it can't be undone."""

import html
import re
import signal

import pytest

from beanlite.web.pages import filter_of
from tests.support.web import Web
from tests.support.wire import until


@pytest.fixture(scope="module")
def web(server):
    with Web(f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db") as web:
        yield web


def counts(wire, tube="default"):
    stats = wire.stats(f"stats-tube {tube}")
    return [int(stats[f"current-jobs-{state}"]) for state in ("ready", "delayed", "buried")]


def test_what_fits_is_counted_then_asked_for_then_copied(web, wire):
    for number in range(250):
        wire.put(b"odd" if number % 2 else b"even")
    asked = web.post("/change", {"scope": "all", "tube": "default", "text": "odd", "do": "copy", "to": "other"})
    assert "Copy 125 jobs?" in asked.text
    assert "to tube other" in asked.text
    assert counts(wire) == [250, 0, 0]
    wire.put(b"odd, but too late")
    done = web.post("/change", asked.fields)
    assert "125 jobs copied" in done.text
    assert (counts(wire), counts(wire, "other")) == ([251, 0, 0], [125, 0, 0])


def test_what_is_buried_after_the_question_stays(web, wire):
    first, second = wire.put(b"1"), wire.put(b"2")
    web.post("/change", {"ids": first, "do": "bury"})
    asked = web.post("/change", {"scope": "all", "q": "tube:default state:buried", "do": "delete"})
    assert "Delete 1 job?" in asked.text
    web.post("/change", {"ids": second, "do": "bury"})
    assert "1 job deleted" in web.post("/change", asked.fields).text
    assert counts(wire) == [0, 0, 1]


def test_all_that_match_are_those_that_the_page_has_told(web, wire):
    first, second = wire.put(b"1"), wire.put(b"2")
    page = web.get("/tube/default?q=state:ready")
    assert "all 2 that match" in page.text
    third = wire.put(b"3")
    assert "2 jobs buried" in web.post("/change", {**page.fields, "scope": "all", "do": "bury"}).text
    page = web.get("/tube/default?q=state:buried")
    for job_id in (third, wire.put(b"4")):
        web.post("/change", {"ids": job_id, "do": "bury"})
    assert "2 jobs kicked" in web.post("/change", {**page.fields, "scope": "all", "do": "kick"}).text
    page = web.get("/tube/default?q=")
    fifth = wire.put(b"5")
    asked = web.post("/change", {**page.fields, "scope": "all", "do": "delete"})
    assert "Delete 4 jobs?" in asked.text
    assert "4 jobs deleted" in web.post("/change", asked.fields).text
    found = [wire.ask(f"peek {job_id}").split()[0] for job_id in (first, second, third, fifth)]
    assert found == ["NOT_FOUND"] * 3 + ["FOUND"]


def test_jobs_that_are_selected_are_meant_however_old_the_page_is(web, wire):
    page = web.get("/tube/default?q=tries:>=0")
    job_id = wire.put(b"job")
    assert "1 job buried" in web.post("/change", {**page.fields, "scope": "ticked", "id": job_id, "do": "bury"}).text


def test_last_id_alone_does_not_say_which_jobs_are_meant(web, wire):
    wire.put(b"job")
    assert web.post("/change", {"scope": "all", "up_to_id": 1 << 40, "do": "delete"}).status == 400
    assert counts(wire) == [1, 0, 0]


def test_jobs_that_were_not_counted_are_too_young_for_the_answer(web, wire):
    wire.put(b"job")
    asked = web.post("/change", {"scope": "all", "q": "tube:default age:>0s", "do": "delete"})
    assert "Delete 1 job?" in asked.text
    an_hour_ago = {**asked.fields, "asked_ms": int(asked.fields["asked_ms"]) - 3600_000}
    assert "0 jobs deleted" in web.post("/change", an_hour_ago).text
    assert "1 job deleted" in web.post("/change", asked.fields).text


def test_filter_of_an_answer_is_that_of_the_question(monkeypatch):
    asked_s = 1_700_000_000
    monkeypatch.setattr("beanlite.web.pages.time.time", lambda: asked_s + 7200.0)
    line = "age:>5s age:<1h in-state:>2min since:1h"
    now, then = filter_of({"q": line}), filter_of({"q": line, "asked_ms": str(asked_s * 1000)})
    assert (now.older_s, now.newer_s, now.in_state_s, now.since_at) == (5, 3600, 120, asked_s + 3600)
    assert (then.older_s, then.newer_s, then.in_state_s, then.since_at) == (7205, 10_800, 7320, asked_s - 3600)


def test_only_what_is_ticked_is_deleted(web, wire):
    ids = [wire.put(b"job") for _ in range(4)]
    asked = web.post("/change", {"scope": "ticked", "tube": "default", "id": ids[1:3], "do": "delete"})
    assert "Delete 2 jobs?" in asked.text
    assert "can't be brought back" in asked.text
    web.post("/change", asked.fields)
    assert [wire.ask(f"peek {job_id}").split()[0] for job_id in ids] == ["FOUND", "NOT_FOUND", "NOT_FOUND", "FOUND"]


@pytest.mark.parametrize(
    ("how", "before", "after"),
    [
        ({"do": "kick"}, "bury", [1, 0, 0]),
        ({"do": "bury"}, "", [0, 0, 1]),
        ({"do": "delay", "delay": "5min"}, "", [0, 1, 0]),
        ({"do": "copy", "to": "default"}, "", [2, 0, 0]),
        ({"do": "release"}, "reserve", [1, 0, 0]),
        ({"do": "reprioritise", "pri": "5"}, "", [1, 0, 0]),
    ],
)
def test_each_change_of_one_job(web, wire, how, before, after):
    job_id = wire.put(b"job")
    if before:
        assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
    if before == "bury":
        assert wire.ask(f"bury {job_id} 0") == "BURIED"
    done = web.post("/change", {"ids": job_id, "back": f"/job/{job_id}", **how})
    if how["do"] in ("copy", "release"):
        assert "1 job?" in done.text
        done = web.post("/change", done.fields)
    assert f"Job {job_id}" in done.text
    assert "1 job " in done.text
    assert counts(wire) == after
    if "pri" in how:
        assert wire.stats(f"stats-job {job_id}")["pri"] == "5"


def test_note_is_left_and_shown_and_taken_away(web, wire):
    job_id = wire.put(b"job")
    asked = web.post("/change", {"ids": str(job_id), "do": "note", "note": "<b>why</b>\r\nit failed", "back": "/"})
    assert "Leave a note on 1 job?" in asked.text
    assert "1 job noted" in web.post("/change", asked.fields).text
    page = web.get(f"/job/{job_id}")
    assert "<b>why</b> it failed" in page.text
    assert "note: <b>why</b>" in page.text  # in the history
    assert "Note Body" in web.get("/jobs").text
    asked = web.post("/change", {"ids": str(job_id), "do": "note", "note": "", "back": "/"})
    assert "the note is taken away" in asked.text
    web.post("/change", asked.fields)
    page = web.get(f"/job/{job_id}").text
    assert ("Leave a note" in page, "Change the note" in page) == (True, False)
    assert "Note Body" not in web.get("/jobs").text


def test_note_that_is_too_long_is_told_and_kept(web, wire):
    job_id = wire.put(b"job")
    note = "é" * 3000
    page = web.post("/change", {"ids": job_id, "do": "note", "note": note, "back": f"/job/{job_id}"})
    assert (page.status, page.html.count('role="alert"')) == (200, 1)
    assert "4,096 bytes at most, and this has 6,000" in page.text
    (kept,) = re.findall(r'<textarea name="note"[^>]*aria-invalid="true"[^>]*>\s*([^<]*)<', page.html)
    assert html.unescape(kept) == note


def test_a_change_that_takes_long_is_followed(web, wire, server):
    asked = web.post("/change", {"ids": wire.put(b"job"), "do": "copy", "to": "default"})
    server.signal(signal.SIGSTOP)
    try:
        page = web.post("/change", asked.fields)
    finally:
        server.signal(signal.SIGCONT)
    assert page.path.startswith("/change/")
    assert "0 jobs so far" in page.text
    until(lambda: "1 job copied." in web.get(page.path).text)
    assert counts(wire) == [2, 0, 0]


def test_a_job_in_no_state_for_it_is_left_alone(web, wire):
    job_id = wire.put(b"job")
    page = web.post("/change", {"ids": job_id, "do": "kick"})
    assert "0 jobs kicked, 1 left unchanged" in page.text
    assert "Undo" not in page.text


def test_selected_of_jobs_that_were_found_by_id_are_changed_alone(web, wire):
    first, second = wire.put(b"job"), wire.put(b"job")
    found = web.get(f"/jobs?q=id:{first},{second}+job").fields
    page = web.post("/change", {**found, "scope": "ticked", "id": first, "do": "bury"})
    assert "1 job buried" in page.text
    assert [wire.stats(f"stats-job {job_id}")["state"] for job_id in (first, second)] == ["buried", "ready"]
    assert "1 job buried, 1 left unchanged" in web.post("/change", {**found, "scope": "all", "do": "bury"}).text


@pytest.mark.parametrize(
    "fields",
    [
        {"do": "explode", "ids": 1},
        {"do": "kick"},
        {"do": "kick", "id": list(range(2000))},
    ],
)
def test_what_no_form_of_ours_says_is_refused(web, wire, fields):
    wire.put(b"job")
    assert web.post("/change", fields).status == 400
    assert counts(wire) == [1, 0, 0]


@pytest.mark.parametrize(
    ("path", "fields", "name", "why"),
    [
        ("/change", {"do": "kick", "scope": "ticked", "tube": "default"}, "", "no job is selected"),
        ("/change", {"do": "move", "ids": 1}, "to", "say to which tube"),
        ("/change", {"do": "move", "ids": 1, "to": "a b"}, "to", "no tube can have the name 'a b'"),
        ("/change", {"do": "delay", "ids": 1, "delay": "soon"}, "delay", "'soon' is not a length of time"),
        ("/change", {"do": "delay", "ids": 1}, "delay", "a length of time, such as"),
        ("/change", {"do": "reprioritise", "ids": 1, "pri": "-1"}, "pri", "a whole number from 0"),
        ("/change", {"do": "kick", "ids": "x"}, "", "id:x: 'x' is not a whole number"),
        ("/change", {"do": "kick", "state": "lost"}, "", "state:lost: one of ready, reserved"),
        ("/pause", {"tube": "default", "for": "soon"}, "for", "'soon' is not a length of time"),
        ("/pause", {"tube": "default", "for": ""}, "for", "0 ends a pause"),
        ("/policy", {"pattern": "default", "key": "max_tries", "value": "many"}, "value", "refused set-policy"),
        ("/policy", {"pattern": "default", "key": "max_tries", "value": " "}, "value", "say which"),
        ("/policy", {"pattern": "a b", "key": "max_tries", "value": "5"}, "pattern", "neither the name of a tube nor"),
    ],
)
def test_a_mistake_is_told_in_its_form_which_is_kept(web, wire, path, fields, name, why):
    wire.put(b"job")
    page = web.post(path, {"back": "/tube/default?state=ready", **fields})
    assert (page.status, page.path.partition("?")[0]) == (200, "/tube/default")
    assert why in page.text
    assert page.html.count('role="alert"') == 1
    if name:
        (field,) = re.findall(rf'<input name="{name}" value="([^"]*)" [^>]*aria-invalid="true"', page.html)
        assert html.unescape(field) == fields.get(name, "")
    assert counts(wire) == [1, 0, 0]
    assert why not in web.get("/tube/default?state=ready").text


@pytest.mark.parametrize(
    ("path", "fields", "back", "why"),
    [
        ("/change", {"do": "move", "ids": 1 << 40}, f"/job/{1 << 40}", "say to which tube"),
        ("/pause", {"tube": "gone", "for": "<abc>"}, "/tube/gone", "'<abc>' is not a length of time"),
        ("/policy", {"pattern": "gone", "key": "ttl", "value": "x"}, "/tube/gone", "refused set-policy"),
        ("/change", {"do": "kick", "scope": "ticked"}, "/clients", "no job is selected"),
    ],
)
def test_a_mistake_is_told_where_its_form_is_not(web, path, fields, back, why):
    page = web.post(path, {"back": back, **fields})
    assert page.path.startswith(back)
    assert page.html.count('role="alert"') == 1
    assert why in page.text
    assert 'role="alert"' not in web.get(back).html


def test_a_mistake_keeps_what_was_selected(web, wire):
    ids = [wire.put(b"job") for _ in range(3)]
    fields = {"back": "/tube/default", "scope": "ticked", "id": ids[:2], "do": "move", "to": "a b"}
    page = web.post("/change", fields)
    assert re.findall(r'name="id" value="(\d+)"[^>]* checked', page.html) == [str(job_id) for job_id in ids[:2]]


def test_a_job_is_put_by_hand(web, wire):
    page = web.post("/put", {"tube": "by-hand", "pri": "5", "delay": "0", "ttr": "2min", "body": "grüße\r\nall"})
    assert "The job was put" in page.text
    assert "grüße" in page.text
    job_id = page.path.partition("?")[0].removeprefix("/job/")
    assert wire.ask(f"peek {job_id}").startswith("FOUND ")
    assert wire.body == "grüße\nall".encode()
    facts = wire.stats(f"stats-job {job_id}")
    assert [facts[key] for key in ("tube", "state", "pri", "ttr")] == ['"by-hand"', "ready", "5", "120"]
    again = web.post("/put", {"tube": "-", "pri": "many", "body": "kept"})
    assert again.status == 422
    assert "kept" in again.text
    assert "no tube can have the name 'a b'" in web.post("/put", {"tube": "a b", "body": "kept"}).text


def test_a_tube_is_paused_and_goes_on(web, wire):
    wire.put(b"job")
    page = web.post("/pause", {"tube": "default", "for": "5min", "back": "/tube/default"})
    assert "default is paused for 5 min" in page.text
    assert int(wire.stats("stats-tube default")["pause-time-left"]) > 290
    page = web.post("/pause", {"tube": "default", "for": "0", "back": "/tube/default"})
    assert "not paused any more" in page.text
    assert wire.stats("stats-tube default")["pause-time-left"] == "0"
    assert web.post("/pause", {"tube": "none", "for": "5min"}).status == 409


def test_a_pause_lasts_at_least_as_long_as_asked(web, wire):
    wire.put(b"job")
    page = web.post("/pause", {"tube": "default", "for": "99.5", "back": "/tube/default"})
    assert "default is paused for 1 min 40 s" in page.text
    assert wire.stats("stats-tube default")["pause"] == "100"
    page = web.post("/pause", {"tube": "default", "for": "0.4", "back": "/tube/default"})
    assert "default is paused for 1 s" in page.text
    web.post("/pause", {"tube": "default", "for": "1.1h", "back": "/tube/default"})
    assert wire.stats("stats-tube default")["pause"] == "3960"  # as a float it is a little more


def test_a_job_waits_at_least_as_long_as_asked(web, wire):
    page = web.post("/put", {"tube": "default", "delay": "99.5", "ttr": "0.4", "body": "job"})
    job_id = page.path.partition("?")[0].removeprefix("/job/")
    facts = wire.stats(f"stats-job {job_id}")
    assert (facts["delay"], facts["ttr"]) == ("100", "1")
    web.post("/change", {"ids": job_id, "do": "delay", "delay": "199.5", "sure": 1})
    assert wire.stats(f"stats-job {job_id}")["delay"] == "200"


def test_it_leads_back_to_pages_of_its_own_only(web, wire):
    wire.put(b"job")
    for back in ("https://example.org/", "//example.org/", "/\\example.org", "/\t/example.org", "/\n\\example.org"):
        page = web.post("/pause", {"tube": "default", "for": "0", "back": back})
        assert (page.status, "Overview" in page.text) == (200, True)
    assert "example.org" not in web.get("/changes").text
    page = web.post("/pause", {"tube": "default", "for": "0", "back": "/tube/default?q=a%2Fb"})
    assert page.path.startswith("/tube/default?q=a%2Fb&")


def test_what_operators_did_is_in_the_history(web, wire):
    job_id = wire.put(b"job")
    web.post("/change", {"ids": job_id, "do": "bury"})
    until(lambda: "operator 127.0.0.1" in web.get(f"/job/{job_id}").text)
