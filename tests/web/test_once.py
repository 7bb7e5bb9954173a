"""A form that is sent twice, as by a second press before the first one is answered, puts its jobs once."""

import asyncio
import re

import pytest
from starlette.responses import RedirectResponse, Response

from beanlite.errors import BeanliteError
from beanlite.web import once
from beanlite.web.once import Forms


def puts(wire, tube):
    return int(wire.stats(f"stats-tube {tube}")["total-jobs"])


def test_job_is_put_once_from_each_form(web, wire):
    fields = {**web.get("/put").fields, "tube": "mail", "body": "pay 100 EUR"}
    first, second = web.post("/put", fields), web.post("/put", fields)
    assert "The job was put." in first.text
    assert first.path == second.path
    assert puts(wire, "mail") == 1
    web.post("/put", {**fields, "body": "pay 200 EUR"})  # it was edited, as browsers may keep a form
    web.post("/put", {**fields, **web.get("/put").fields})
    assert puts(wire, "mail") == 3


def test_form_that_was_refused_may_be_sent_again(web):
    fields = {**web.get("/put").fields, "tube": "refused", "body": "job", "pri": "many"}
    assert [web.post("/put", fields).status for _ in range(2)] == [422, 422]
    assert web.post("/put", {**fields, "pri": "5"}).status == 200


def test_change_that_was_confirmed_is_made_once(web, wire):
    wire.ask("use source")
    for _ in range(3):
        wire.put(b"job")
    asked = web.post("/change", {"scope": "all", "q": "tube:source", "do": "copy", "to": "copies"})
    first, second = (web.post("/change", asked.fields) for _ in range(2))
    assert "3 jobs copied" in first.text
    assert first.path == second.path
    assert puts(wire, "copies") == 3


def test_schedule_is_run_once_from_each_form(web, wire):
    wire.request("set-schedule", name="nightly", when="0 3 * * *", tube="reports", body="go")
    page = web.get("/policies")
    (form,) = re.findall(r'<form method="post" action="/schedule" class="with">.*?</form>', page.html)
    fields = {**page._replace(html=form).fields, "do": "run"}
    first, second = (web.post("/schedule", fields) for _ in range(2))
    assert "was put by nightly" in first.text
    assert first.path == second.path
    assert puts(wire, "reports") == 1
    wire.request("unset-schedule", name="nightly")


async def test_second_one_waits_for_what_becomes_of_the_first():
    forms, go_on, begun = Forms(), asyncio.Event(), []

    async def answer():
        begun.append(None)
        await go_on.wait()
        return RedirectResponse("/job/1", 303)

    fields = {"token": "t", "body": "job"}
    of_ann = [asyncio.create_task(forms.answer("ann", fields, answer)) for _ in range(3)]
    of_bob = asyncio.create_task(forms.answer("bob", fields, answer))
    await asyncio.sleep(0)
    of_ann[0].cancel()  # its browser has gone
    go_on.set()
    responses = await asyncio.gather(*of_ann[1:], of_bob)
    assert [response.headers["location"] for response in responses] == ["/job/1"] * 3
    assert len(begun) == 2


@pytest.mark.parametrize("fails", [True, False])
async def test_only_what_has_led_somewhere_is_remembered(monkeypatch, fails):
    monkeypatch.setattr(once, "FORMS_MAX", 5)
    forms = Forms()

    async def answer():
        if fails:
            raise BeanliteError("no")
        return Response(status_code=422)

    async def lead_on():
        return RedirectResponse("/", 303)

    for token in range(10):
        await asyncio.gather(forms.answer("", {"token": str(token)}, answer), return_exceptions=True)
    await asyncio.sleep(0)
    assert not forms._all
    for token in range(10):
        await forms.answer("", {"token": str(token)}, lead_on)
    assert len(forms._all) == 5
