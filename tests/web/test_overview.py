"""The pages of many tubes: what each of them asks the server for."""

import asyncio
import json
import re
import signal
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from beanlite.beanstalk.client import TIMEOUT_S, Unreachable
from beanlite.console.live import Live
from beanlite.web import overview, questions
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire, put_bytes, until

# More than a server looks at in two slices.
TUBES = 12_000
LAST = -(-(TUBES + 1) // overview.PAGE)


class Counted(Live):
    """Counts what it asks, and how much it is told."""

    commands = told_bytes = 0

    def ask(self, word, request):
        reply = super().ask(word, request)
        self.commands += 1
        self.told_bytes += len(json.dumps(reply))
        return reply


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("web"), "--no-journal") as server, Wire(server.connect()) as wire:
        for first in range(0, TUBES, 1000):
            numbers = range(first, first + 1000)
            # Of each ten, number 0 has one job more than the others; names don't come in the order of the numbers.
            uses = {number: b"use %b\r\n" % name(number).encode() for number in numbers}
            puts = {number: 1 + (number % 10 == 0) for number in numbers}
            wire.send(b"".join(uses[number] + puts[number] * put_bytes(b"") for number in numbers))
            replies = len(uses) + sum(puts.values())
            for _ in range(replies):
                wire.reply()
        yield server


def name(number):
    return f"tube-{number * 7919 % TUBES:05}"


def page_of(server, sort, page):
    """The names on a page, whether there is another, and what it took."""
    with Counted((server.host, server.port)) as live:
        found = overview.tubes(live, "", sort, page)
        return [tube["name"] for tube in found.tubes], found.more, live.commands, live.told_bytes


@pytest.mark.parametrize("sort", overview.SORTS)
def test_a_late_page_takes_no_more_than_the_first(server, sort):
    _, _, commands, told_bytes = page_of(server, sort, 1)
    assert commands <= 4
    for page in (2, 4, LAST // 2, LAST - 1):
        names, more, *took = page_of(server, sort, page)
        assert (len(names), more) == (overview.PAGE, True)
        assert took == [commands, pytest.approx(told_bytes, rel=0.02)]


def test_each_page_goes_on_where_the_one_before_has_ended(server):
    by_name = ["default", *sorted(name(number) for number in range(TUBES))]
    for page in (1, 2, LAST - 1, LAST):
        end = page * overview.PAGE
        assert page_of(server, "name", page)[:2] == (by_name[end - overview.PAGE : end], page != LAST)
    assert page_of(server, "name", LAST + 1)[:2] == ([], False)
    # Those that are equal stand as they were made.
    fuller = [name(number) for number in range(0, TUBES, 10)]
    others = [name(number) for number in range(TUBES) if number % 10]
    by_ready = [*fuller, *others, "default"]
    for page in (1, len(fuller) // overview.PAGE, len(fuller) // overview.PAGE + 1, LAST):
        end = page * overview.PAGE
        assert page_of(server, "ready", page)[0] == by_ready[end - overview.PAGE : end]


async def test_an_answer_that_took_long_is_kept_for_as_long_as_it_took(monkeypatch):
    now_s, asked = [100.0], []

    async def ask(_person, question):
        asked.append(question)
        now_s[0] += 10
        return len(asked)

    monkeypatch.setattr(questions, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    site = questions.Questions(partial(Live, ("nowhere", 1)))
    monkeypatch.setattr(site, "ask", ask)
    for at_s, answer in ((100, 1), (119, 1), (120, 2)):
        now_s[0] = at_s
        assert await site.ask_seldom("", "tubes", _question) == answer
        await asyncio.sleep(0)  # it is noted when it came


def _question(_live):
    pass


def test_page_of_a_tube_says_what_why_says_of_it(tmp_path):
    with start_beanlite(tmp_path, "--no-journal") as server, Wire(server.connect()) as wire:
        wire.ask("use mail")
        job_id = wire.put(b"job")
        for _ in range(5):
            with Wire(server.connect()) as worker:
                assert worker.ask(f"reserve-job {job_id}").startswith("RESERVED")
            until(lambda: wire.stats(f"stats-job {job_id}")["state"] == "ready")
        wire.ask("pause-tube mail 3600")
        with Web(f"127.0.0.1:{server.port}") as web:
            page = web.get("/tube/mail")
        (crash, *_) = wire.request("diagnose", tube="mail")["findings"]
    assert crash["severity"] == "urgent"
    assert crash["text"].partition(",")[0] in page.text
    assert crash["do"] in page.text
    assert f'<a href="/job/{job_id}">' in page.html.partition('class="numbers"')[0]
    assert "Clients nobody watches it; 1 client uses it" in page.text
    assert "Crashes job 1: 5 clients left that had it" in page.text


def test_overview_tells_what_is_due_what_fails_and_what_never_ends(tmp_path):
    with start_beanlite(tmp_path, "--no-journal") as server, Wire(server.connect()) as wire:
        wire.ask("use mail")
        wire.ask("watch mail")
        for delay_s in (0, 0, 60, 9000):
            wire.put(b"job", delay_s=delay_s)
        for end in ("release {} 0 0", "delete {}"):
            wire.ask(end.format(wire.ask("reserve").split()[1]))
        with Live((server.host, server.port)) as live:
            (mail,) = [tube for tube in overview.tubes(live, "", "name", 1).tubes if tube["name"] == "mail"]
            assert (mail["due"], mail["failed"]) == (1, 0.5)
            assert "drain_s" not in mail  # its next job has not waited for long
        with Web(f"127.0.0.1:{server.port}") as web:
            page = web.get("/")
    assert re.search(r'data-label="Due in 30 min">\s*1\s*<', page.html)
    assert 'data-label="Failed">50.0 %<' in page.html


def test_tube_in_arrears_has_a_time_until_it_is_empty():
    def list_tubes(request):
        rates = {"puts_per_s": 1.0, "releases": 0, "timeouts": 0, "buries": 0, "client_gone": 0, "deletes": 5}
        names = {"slow": (600, 3.0), "grows": (600, 1.0), "quick": (5, 3.0)}
        tubes = [
            {"name": name, "ready": 120, "first_ready_s": waits_s, "deletes_per_s": deletes} | rates
            for name, (waits_s, deletes) in names.items()
        ]
        return {"tubes": tubes if "names" in request else [[tube["name"]] for tube in tubes], "next": None}

    live: Any = SimpleNamespace(list_tubes=list_tubes)
    found = overview.tubes(live, "", "name", 1).tubes
    assert [(tube["name"], tube.get("drain_s", "untold")) for tube in found] == [
        ("grows", None), ("quick", "untold"), ("slow", 60),
    ]  # fmt: skip


def test_server_that_does_not_answer_is_asked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(questions, "REPLY_S", 2.0)

    async def ask_twice(server):
        site = questions.Questions(partial(Live, (server.host, server.port)))
        before = await site.ask("", Live.stats)
        server.signal(signal.SIGSTOP)
        began_s = time.monotonic()
        try:
            with pytest.raises(Unreachable, match="does not answer"):
                await site.ask("", Live.stats)
        finally:
            server.signal(signal.SIGCONT)
        assert time.monotonic() - began_s < TIMEOUT_S
        after = await site.ask("", Live.stats)
        site.close()
        return after["total-connections"] - before["total-connections"]

    with start_beanlite(tmp_path, "--no-journal") as server:
        assert asyncio.run(ask_twice(server)) == 1
