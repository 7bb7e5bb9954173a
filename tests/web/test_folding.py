"""A job's history in few lines."""

import re

import pytest

from beanlite.console.folding import fold, one_by_one
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire, until

TIMES = "\N{MULTIPLICATION SIGN}"


def event(what, number=1, **facts):
    by = {"address": f"10.0.0.1:{number}", "number": number, "operator": False, "person": None}
    return {"at": number, "id": 1, "tube": "mail", "what": what, "by": by, "pri": 0, "delay_s": 0, **facts}


def words(history):
    return [(line.times, [each["what"] for each in line.events], line.end) for line in fold(history)]


def test_like_events_are_one_line():
    tries = [event(what, number) for number in range(1590) for what in ("reserve", "client gone")]
    history = [event("put", by=None), *tries, event("reserve", 2000)]
    assert words(history) == [(1, ["put"], 1), (1590, ["reserve", "client gone"], 3181), (1, ["reserve"], 3182)]
    line = fold(history)[1]
    assert (line.first_at, line.last_at) == (0, 1589)


@pytest.mark.parametrize(
    "facts",
    [
        {"tube": "other"},
        {"pri": 1},
        {"delay_s": 5},
        {"by": None},
        {"by": None, "policy": "max_tries"},
        {"by": {"address": "10.0.0.1:1", "number": 1, "operator": True, "person": "ann"}},
    ],
)
def test_events_that_differ_are_lines_of_their_own(facts):
    history = [event("touch")] * 4 + [event("touch", **facts)] + [event("touch")] * 2
    assert [line.times for line in fold(history)] == [4, 1, 1, 1]


BY_ANN = {"address": "10.0.0.1:1", "number": 1, "operator": True, "person": "ann"}


@pytest.mark.parametrize(
    ("what", "pris", "delays", "told"),
    [
        ("delete", [5, 10, 5, 100], [0, 9, 0, 9], [(4, None, None)]),
        ("move", [5, 5, 5, 5], [0, 9, 0, 0], [(4, 5, None)]),
        ("bury", [5, 5, 5, 6], [9, 9, 9, 9], [(4, None, 9)]),
        ("reprioritise", [5, 5, 5, 6], [0, 9, 0, 0], [(3, 5, None), (1, 6, 0)]),
        ("delay", [5, 5, 6, 6], [9, 9, 9, 8], [(3, None, 9), (1, 6, 8)]),
        ("release", [5, 5, 6, 6], [9, 9, 9, 8], [(3, None, 9), (1, 6, 8)]),
    ],
)
def test_operators_events_differ_by_what_was_asked_for(what, pris, delays, told):
    history = [event(what, by=BY_ANN, pri=pri, delay_s=delay_s) for pri, delay_s in zip(pris, delays, strict=True)]
    lines = fold(history)
    assert [(line.times, line.events[0]["pri"], line.events[0]["delay_s"]) for line in lines] == told
    assert [each["pri"] for each in history] == pris


def test_page_of_a_job_tells_no_pri_that_differs(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        job_id = wire.put(b"job")
        for pri in (101, 102, 103):
            wire.ask(f"reserve-job {job_id}")
            wire.ask(f"bury {job_id} {pri}")
            wire.request("change-jobs", do="kick", ids=[job_id])
        with Web(f"127.0.0.1:{server.port}", "--db", tmp_path / "queue.db") as web:
            page = web.get(f"/job/{job_id}").html.partition('id="history"')[2]
    assert f">3 {TIMES} kick</a>" in page
    assert re.findall('data-label="pri">([^<]*)<', page) == [""]


def test_longest_cycle_is_found():
    four = [event(what) for what in ("reserve", "touch", "touch", "release")]
    assert words(four * 5) == [(5, ["reserve", "touch", "touch", "release"], 20)]
    assert words([event("touch")] * 12) == [(12, ["touch"], 12)]
    assert words([]) == []


def test_words_of_a_cycle_are_folded_too():
    tries = [event(what) for what in ("reserve", "release")] * 5
    (line,) = fold([*tries, event("bury", by=None, policy="max_tries")] * 80)
    assert (line.times, line.words) == (80, f"(5 {TIMES} reserve, release), bury")


def test_page_of_a_job_that_was_tried_often_is_short(tmp_path):
    with start_beanlite(tmp_path, "--history", "1d") as server, Wire(server.connect()) as wire:
        job_id = wire.put(b"job")
        wire.send(b"".join(b"reserve\r\nrelease %d %d 0\r\n" % (job_id, number // 200) for number in range(400)))
        for _ in range(400):
            assert wire.reply().startswith("RESERVED")
            assert wire.reply() == "RELEASED"
        with Web(f"127.0.0.1:{server.port}", "--db", tmp_path / "queue.db") as web:
            until(lambda: f"200 {TIMES} reserve, release" in web.get(f"/job/{job_id}").text)
            page = web.get(f"/job/{job_id}")
            assert len(page.html) < 20_000
            assert page.html.count(f" {TIMES} ") == 2
            opened = web.get(f"/job/{job_id}?events=401")
            assert "Events 302 to 401 of 801" in opened.text
            assert opened.html.count("<td>reserve</td>") == 50
            assert "Events 1 to 1 of 801" in web.get(f"/job/{job_id}?events=1").text
            assert web.get(f"/job/{job_id}?events=x").status == 400


def test_line_tells_how_long_clients_held_the_job():
    tries = [event(what, at) for at in (0, 10, 20) for what in ("reserve", "touch")]
    for number, each in enumerate(tries):
        each["at"] += 4 * (number % 2)
    history = [event("put", 0), *tries[:2], event("release", 6), event("reserve", 10), event("ttr over", 12)]
    history += [event("kick", 13), event("delete", 14)]
    assert [line.held_s for line in one_by_one(history, 2, 8)] == [None, 6, None, 2, None, None]
    often = [event(what, at) for at in range(0, 60, 10) for what in ("reserve", "release")]
    for each in often[1::2]:
        each["at"] += 3
    assert [line.held_s for line in fold(often)] == [3]
