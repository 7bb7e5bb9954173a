"""A job is edited and put again."""

import re

import pytest

from beanlite.web.again import unfit
from tests.support.web import Web


def form_of(page):
    """What the form to put a job begins with."""
    fields = re.findall(r'<input name="(\w+)" value="([^"]*)"', page.html)
    (body,) = re.findall(r"<textarea [^>]*>\n(.*)</textarea>", page.html, re.DOTALL)
    return {**page.fields, **dict(fields), "body": body}


def test_form_begins_with_the_job(web, wire):
    wire.ask("use mail")
    job_id = wire.put("gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n\n\nlast".encode(), pri=7, delay_s=90, ttr_s=120)
    assert f'href="/put?from={job_id}"' in web.get(f"/job/{job_id}").html
    fields = form_of(web.get(f"/put?from={job_id}"))
    assert fields["body"].endswith("n\n\nlast")
    assert [fields[key] for key in ("tube", "pri", "delay", "ttr", "old", "old_state")] == [
        "mail", "7", "90s", "120s", str(job_id), "delayed",
    ]  # fmt: skip
    page = web.post("/put", {**fields, "delay": "0", "body": "new"})
    assert "The job was put." in page.text
    new = int(page.path.partition("?")[0].removeprefix("/job/"))
    facts = wire.stats(f"stats-job {new}")
    assert [facts[key] for key in ("tube", "state", "pri", "ttr")] == ['"mail"', "ready", "7", "120"]
    assert wire.ask(f"peek {job_id}").startswith("FOUND")


def test_old_job_is_deleted_once_the_new_one_is_put(web, wire):
    job_id = wire.put(b"old")
    fields = form_of(web.get(f"/put?from={job_id}"))
    refused = web.post("/put", {**fields, "delete": "1", "pri": "many"})
    assert (refused.status, 'name="pri" value="many"' in refused.html) == (422, True)
    assert 'name="delete" value="1" checked' in refused.html
    assert wire.ask(f"peek {job_id}").startswith("FOUND")
    page = web.post("/put", {**fields, "delete": "1"})
    assert f"The job was put, and job {job_id} was deleted." in page.text
    assert wire.ask(f"peek {job_id}") == "NOT_FOUND"


@pytest.mark.parametrize("delete", ["1", ""])
def test_job_that_was_not_put_because_it_is_there_is_kept(web, wire, delete):
    wire.request("set-policy", pattern="once", set={"unique": "present"})
    wire.ask("use once")
    job_id = wire.put(b"precious")
    fields = form_of(web.get(f"/put?from={job_id}"))
    page = web.post("/put", {**fields, "pri": "7", "delete": delete})
    assert f"Nothing was put: job {job_id} has this body already, and once takes each body once." in page.text
    assert "was put, " not in page.text
    assert wire.stats(f"stats-job {job_id}")["state"] == "ready"


def test_old_job_is_kept_if_another_has_the_new_body(web, wire):
    wire.request("set-policy", pattern="once", set={"unique": "present"})
    wire.ask("use once")
    old, other = wire.put(b"AAA"), wire.put(b"BBB")
    fields = form_of(web.get(f"/put?from={old}"))
    page = web.post("/put", {**fields, "body": "BBB", "delete": "1"})
    assert f"Nothing was put: job {other} has this body already, and once takes each body once." in page.text
    assert wire.ask(f"peek {old}").startswith("FOUND")
    page = web.post("/put", {"tube": "once", "body": "AAA"})
    assert f"Nothing was put: job {old} has this body already" in page.text


def test_old_job_that_has_changed_is_kept(web, wire):
    job_id = wire.put(b"old")
    fields = form_of(web.get(f"/put?from={job_id}"))
    assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
    page = web.post("/put", {**fields, "delete": "1"})
    assert f"job {job_id} was not deleted: it is not ready any more" in page.text
    assert wire.ask(f"delete {job_id}") == "DELETED"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff", "it is not text"),
        (b"a\r\nb", "does not send back"),
        (b"a\0b", "does not send back"),
        (b"%" * 500_000, "too long"),
        (b"\n" * 200_000, "too long"),  # a browser sends %0D%0A for each
        (b"\xff" * 1_100_000, "too long"),  # which is seen without a look at it
        (b"text", ""),
    ],
)
def test_only_text_that_browsers_send_back_can_be_edited(body, why):
    assert why in unfit(body)
    assert bool(why) == bool(unfit(body))


def test_page_says_why_a_body_can_not_be_edited(web, wire):
    job_id = wire.put(b"\xff")
    assert "Its body can't be edited here: it is not text (UTF-8)." in web.get(f"/job/{job_id}").text
    page = web.get(f"/put?from={job_id}")
    assert (page.status, "can't be edited here: it is not text" in page.text) == (409, True)
    assert web.get("/put?from=999999").status == 409


def test_hidden_bodies_are_not_edited(server, wire):
    job_id = wire.put(b"secret")
    with Web(f"127.0.0.1:{server.port}", "--hide-bodies") as web:
        assert "Edit and put again" not in web.get(f"/job/{job_id}").text
        page = web.get(f"/put?from={job_id}")
        assert (page.status, "secret" in page.html) == (409, False)
