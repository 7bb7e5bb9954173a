"""What top shows, on screens of two sizes, of a real server."""

import dataclasses
import re
import signal
import sys
from contextlib import closing

import pytest

from beanlite.console.live import Live
from beanlite.console.several import only
from beanlite.console.top import sampling
from beanlite.console.top.app import Top
from beanlite.console.top.grid import Table
from beanlite.console.top.jobs_screen import JobScreen, JobsScreen, _text_of
from beanlite.console.top.layout import trends
from beanlite.console.top.sampling import WITHIN_S, Sampler
from beanlite.console.top.summary import summary
from beanlite.console.top.tubes_screen import TubesScreen
from tests.support.wire import Wire, until

SMALL, LARGE = (80, 24), (200, 50)


def lines(app):
    """The screen as text."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


async def shown(pilot, condition):
    """Wait until the screen shows something; it is looked at in threads."""
    for _ in range(1000):
        await pilot.pause(0.01)
        if condition("\n".join(lines(pilot.app))):
            return lines(pilot.app)
    raise AssertionError("\n".join(lines(pilot.app)))


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_the_server_and_its_tubes(queue, size):
    app = Top(only(queue.address))
    async with app.run_test(size=size) as pilot:
        found = await shown(pilot, lambda text: "puts/s, " in text and "mail" in text)
        assert {len(line) for line in found} == {size[0]}
        assert len(found) == size[1]
        text = "\n".join(found)
        assert "6 ready, 2 reserved, 2 delayed, 2 buried; " in text
        for title in ("server", "jobs", "rates", "latency", "memory"):
            assert f"\n {title} " in f"\n{text}"
        (titles,) = [line for line in found if "ready▾" in line]
        assert all(title in titles for title in ("tube", "reserved", "delayed", "buried", "puts/s", "deletes/s"))
        assert ("paused for" in titles) == (size == LARGE)
        (mail,) = [line.split() for line in found if line.strip().startswith("mail ")]
        assert mail[:7] == ["mail", "5", "2", "2", "2", "0.0", "0.0"]


async def test_sorting(queue):
    app = Top(only(queue.address))
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, lambda text: "mail" in text)

        def first():
            return app.screen.query_one(Table).key_at(0)

        assert first() == "mail"  # the most ready jobs
        await pilot.press("r")
        assert first() == "default"
        await pilot.press("S")
        assert "tube▾" in "\n".join(lines(app))
        assert first() == "default"  # from a to z
        await pilot.press("r")
        assert first() == "other"
        await pilot.press("s", "s")
        assert "reserved▾" in "\n".join(lines(app))
        await pilot.click(Table, offset=(2, 0))
        assert "tube▾" in "\n".join(lines(app))


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_keys_lead_down_to_a_job_and_back(queue, size):
    app = Top(only(queue.address))
    async with app.run_test(size=size) as pilot:
        await shown(pilot, lambda text: "mail" in text)
        await pilot.press("enter")
        found = await shown(pilot, lambda text: "tube mail: 11 jobs, in any state, by id" in text)
        assert isinstance(app.screen, JobsScreen)
        assert any("buried" in line and '{"to": "user0' in line for line in found)
        await pilot.press("s")
        await shown(pilot, lambda text: "tube mail: 5 jobs, ready, as they come out of their queue" in text)
        await pilot.press("s")
        await shown(pilot, lambda text: "tube mail: 2 jobs, reserved, by id" in text)
        await pilot.press("down", "enter")
        await shown(pilot, lambda text: '"to": "user3@example.org"' in text and "last holder" in text)
        assert isinstance(app.screen, JobScreen)
        await pilot.press("escape", "escape")
        assert isinstance(app.screen, TubesScreen)
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.parametrize(
    "body", [b"[" + b"0," * 32_000 + b"0]", b"x" * 65_535 + b"\n" * 10_000, b"\xff" * 65_535, "é".encode() * 50_000]
)
def test_job_that_would_fill_a_thousand_screens_is_cut(queue, body):
    (place,) = only(queue.address).places
    with Live(queue.address) as live:
        facts = live.show_job(queue.ready[0])
    assert facts is not None
    assert "left out" not in _text_of(facts, place)
    text = _text_of({**facts, "body": body}, place)
    assert len(text) < 70_000
    assert text.count("\n") < 1010
    command = f"beanlite job {facts['id']} --connect 127.0.0.1:{queue.server.port}"
    assert text.endswith(f"\n\nThe rest is left out: {command} shows all.")


async def test_job_of_very_many_lines_is_shown_at_once(queue):
    with Wire(queue.server.connect()) as client:
        client.ask("use large")
        job_id = client.put(b"[" + b"0," * 32_000 + b"0]")
        (place,) = only(queue.address).places
        app = Top(only(queue.address))
        async with app.run_test(size=SMALL) as pilot:
            app.push_screen(JobScreen(place, job_id))
            await shown(pilot, lambda text: "62.5 KiB" in text)
            assert app.screen.query_one("#job").size.height < 1050
        client.ask(f"delete {job_id}")


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_screen_tells_how_tubes_do(size, own_queue):
    app = Top(only(own_queue.address))
    async with app.run_test(size=size) as pilot:
        found = await shown(pilot, lambda text: "mail: in|out " in text)
        assert any("mail: in|out" in line and "0 of 1 clients wait; the next one waits " in line for line in found)
        with Wire(own_queue.server.connect()) as client:
            client.ask("use mail")
            for _ in range(100):
                client.put(b"x")
        found = await shown(pilot, lambda text: re.search(r"in\|out [ ▁-▇]*█[ ▁-▇]*\|", text))
        await pilot.press("down")
        await shown(pilot, lambda text: "other: in|out" in text and "; paused for " in text)
        titles = next(line for line in found if "ready▾" in line)
        shown_at = {"next waits": LARGE, "waiting": LARGE, "watching": LARGE, "wrong": LARGE, "in|out": LARGE}
        assert all((title in titles) == (size == least) for title, least in shown_at.items())


async def test_filter_leaves_tubes_whose_names_fit(queue):
    app = Top(only(queue.address))
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, lambda text: "mail" in text)

        def names():
            table = app.screen.query_one(Table)
            return {table.key_at(row) for row in range(table.row_count)}

        await pilot.press("slash", *"the", "enter")
        assert names() == {"other"}
        await pilot.press("enter")
        await shown(pilot, lambda text: "tube other: 1 job" in text)
        await pilot.press("escape", "escape")
        assert names() == {"default", "mail", "other"}
        await pilot.press("slash", *"?a*l")
        assert names() == {"mail"}


async def test_kick_is_done_only_after_a_yes(own_queue):
    app = Top(only(own_queue.address))
    with Live(own_queue.address) as live:

        def states():
            return [(live.show_job(job_id) or {})["state"] for job_id in own_queue.buried]

        async with app.run_test(size=SMALL, notifications=True) as pilot:
            await shown(pilot, lambda text: "mail" in text)
            await pilot.press("k")
            await shown(pilot, lambda text: "Kick 2 jobs that are buried in tube mail?" in text)
            await pilot.press("n")
            assert states() == ["buried", "buried"]
            await pilot.press("k", "y")
            await shown(pilot, lambda text: "2 jobs kicked in tube mail" in text)
            assert states() == ["ready", "ready"]
            await shown(pilot, lambda text: " 0 buried" in text)
            await pilot.press("k")
            await shown(pilot, lambda text: "mail has no buried jobs" in text)


async def test_kick_leaves_what_is_buried_while_it_asks(own_queue):
    app = Top(only(own_queue.address))
    with Live(own_queue.address) as live:
        async with app.run_test(size=SMALL, notifications=True) as pilot:
            await shown(pilot, lambda text: "mail" in text)
            await pilot.press("k")
            await shown(pilot, lambda text: "Kick 2 jobs that are buried in tube mail?" in text)
            live.ask("change-jobs", {"do": "bury", "ids": own_queue.ready[:1]})
            await pilot.press("y")
            await shown(pilot, lambda text: "2 jobs kicked in tube mail" in text)
        assert (live.show_job(own_queue.ready[0]) or {})["state"] == "buried"


async def test_pause_asks_for_how_long(own_queue):
    app = Top(only(own_queue.address))
    async with app.run_test(size=SMALL, notifications=True) as pilot:
        await shown(pilot, lambda text: "mail" in text)
        await pilot.press("p")
        await shown(pilot, lambda text: "Pause tube mail for how long?" in text)
        await pilot.press("escape")
        await pilot.press("p", *"soon", "enter")
        await shown(pilot, lambda text: "'soon' is not a length of time" in text)
        await pilot.press("p", *"10min", "enter")
        await shown(pilot, lambda text: "tube mail is paused for 10 min" in text and "(paused) mail" in text)
        await pilot.press("p", "0", "enter")
        await shown(pilot, lambda text: "tube mail is not paused" in text)


async def test_question_mark_tells_the_keys(queue):
    app = Top(only(queue.address))
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, lambda text: "mail" in text)
        await pilot.press("question_mark")
        await shown(pilot, lambda text: "kick the buried jobs of the tube" in text)
        await pilot.press("escape")
        assert isinstance(app.screen, TubesScreen)


def test_once_prints_one_screen_as_text(queue, run):
    code, out, err = run(queue, "top", "--once")
    assert (code, err) == (0, "")
    summary_text, _, table = out.partition("\n\n")
    assert "6 ready, 2 reserved, 2 delayed, 2 buried; " in summary_text
    titles, mail, *_ = table.splitlines()
    assert "next waits" in titles
    assert mail.split()[:7] == ["mail", "5", "2", "2", "2", "0.0", "0.0"]
    assert "\x1b" not in out


def test_once_says_when_there_are_more_tubes_than_it_shows(queue, run):
    with Wire(queue.server.connect()) as client:
        for number in range(300):
            client.ask(f"watch tube-{number}")
        code, out, err = run(queue, "top", "--once")
    rows = out.partition("\n\n")[2].splitlines()[1:]
    assert (code, len(rows)) == (0, 200)
    assert re.fullmatch(r"These are 200 of 3\d\d tubes: beanlite tubes shows all\n", err)


@pytest.mark.parametrize("columns", [80, 100])
def test_once_fits_the_terminal(queue, run, monkeypatch, columns):
    """Columns are left out as on the screen, the last one first, so that the names of tubes can be told."""
    with Wire(queue.server.connect()) as client:
        client.ask(f"use {'long-name' * 9}")
        client.put(b"job")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    code, out, _ = run(queue, "top", "--once")
    lines = out.splitlines()
    assert code == 0
    assert [line for line in lines if len(line) > columns] == []
    assert any(line.startswith("long-namelo") for line in lines)


def test_tubes_are_marked_with_what_is_wrong():
    tubes = [{"name": "mail"}, {"name": "other"}]
    places = [{"tube": "mail"}, {"tube": "gone"}]
    sampling.mark(tubes, [{"kind": "hung", "worst": places}, {"kind": "growing", "worst": places}])
    assert [tube["wrong"] for tube in tubes] == ["hung, growing", ""]


def test_bars_of_in_and_out_have_one_scale():
    assert trends([(0.0, 0.0), (8.0, 4.0), (1.0, 0.01)]) == ("        █▁", "        ▄▁")


async def test_ctrl_c_ends_the_program(queue):
    async with Top(only(queue.address)).run_test() as pilot:
        await pilot.press("enter", "ctrl+c")
        await pilot.pause()
        assert not pilot.app.is_running


async def test_the_cursor_stays_with_its_tube(queue):
    app = Top(only(queue.address))
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, lambda text: "mail" in text)
        await pilot.press("down")
        table = app.screen.query_one(Table)
        marked = table.key_at(table.cursor_row)
        await pilot.press("r")
        assert table.key_at(table.cursor_row) == marked
        await pilot.resize_terminal(*LARGE)
        await shown(pilot, lambda text: "paused for" in text)
        assert table.key_at(table.cursor_row) == marked


async def test_a_server_that_goes_and_comes_back(own_queue):
    app = Top(only(own_queue.address))
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, lambda text: "mail" in text)
        own_queue.server.kill()
        await shown(pilot, lambda text: "Trying again every second." in text)
        table = app.screen.query_one(Table)
        assert table.opacity < 1
        await pilot.press("s")
        await pilot.resize_terminal(*LARGE)
        await shown(pilot, lambda text: "paused for" in text)
        assert "Trying again every second." in "\n".join(lines(app))
        await pilot.press("enter")
        await shown(pilot, lambda text: "no server can be reached" in text)


async def test_server_that_does_not_answer_is_told_soon_and_tried_again(own_queue, monkeypatch):
    monkeypatch.setitem(Sampler.__init__.__kwdefaults__, "within_s", 1.0)
    app = Top(only(own_queue.address))
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, lambda text: "mail" in text)
        own_queue.server.signal(signal.SIGSTOP)
        try:
            await shown(pilot, lambda text: "does not answer" in text and "Trying again every second." in text)
        finally:
            own_queue.server.signal(signal.SIGCONT)
        await shown(pilot, lambda text: "rates" in text and "Trying again" not in text)
        assert app.screen.query_one(Table).opacity == 1


def test_single_server_has_no_longer_to_answer_than_one_of_several(queue):
    (place,) = only(queue.address).places
    for is_one_of_several in (False, True):
        with closing(Sampler(place, is_one_of_several=is_one_of_several)) as sampler:
            assert sampler._server.client.socket.gettimeout() == WITHIN_S


async def test_answer_that_comes_after_its_screen_was_closed_is_ignored(own_queue):
    app = Top(only(own_queue.address))
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, lambda text: "mail" in text)
        await pilot.press("enter")
        await shown(pilot, lambda text: "in any state, by id" in text)
        closed = app.screen
        assert isinstance(closed, JobsScreen)
        await pilot.press("escape")
        await pilot.pause()
        closed.tell(closed._show, "late", [])
        await pilot.pause()
        assert app.is_running
        assert isinstance(app.screen, TubesScreen)


def test_rates_are_of_the_time_between_two_samples(own_queue, monkeypatch):
    monkeypatch.setattr(sampling, "_PAUSE_FACTOR", 0)
    sampler = Sampler(only(own_queue.address).places[0])
    first = sampler.sample()
    assert "batches_per_s" not in first.stats
    assert "deletes/s\nlatency " in str(summary(first, "here"))  # what is not known yet is left out
    with own_queue.server.connect() as client:
        client.sendall(b"use mail\r\nput 0 0 1 1\r\nx\r\n" * 50)
        received = b""
        while received.count(b"INSERTED") < 50:
            received += client.recv(65536)
    second = sampler.sample()
    sampler.close()
    passed_s = second.at_s - first.at_s
    (mail,) = [tube for tube in second.tubes if tube["name"] == "mail"]
    assert mail["puts_per_s"] == pytest.approx(50 / passed_s)
    assert mail["deletes_per_s"] == 0
    assert len(second.latencies_s) == 2
    last, middle, worst = second.latency
    assert 0 < last <= worst
    assert 0 < middle <= worst


def test_rates_count_jobs_and_not_commands(own_queue, monkeypatch):
    monkeypatch.setattr(sampling, "_PAUSE_FACTOR", 0)
    sampler = Sampler(only(own_queue.address).places[0])
    sampler.sample()
    with Live(own_queue.address) as live, Wire(own_queue.server.connect()) as client:
        live.ask("put-jobs", {"jobs": [{"body": "x", "tube": "batch"}] * 500})
        (batch,) = [tube for tube in sampler.sample().tubes if tube["name"] == "batch"]
        assert batch["puts_per_s"] > 0
        for _ in range(200):
            assert client.ask("delete 999999") == "NOT_FOUND"
        client.ask("watch batch")
        client.ask("ignore default")
        assert client.ask("reserve-batch 400 0") == "RESERVED_BATCH 400"
        assert live.ask("change-jobs", {"do": "delete", "tube": "batch", "state": "ready"})["done"] == 100

        def counted():
            stats = sampler.sample().stats
            puts, reserves, deletes = (stats[f"{what}_per_s"] for what in ("puts", "reserves", "deletes"))
            return puts > reserves == pytest.approx(4 * deletes, rel=0.05) and deletes > 0

        until(counted)
    sampler.close()


def test_slow_list_of_tubes_is_sampled_seldom_and_all_else_is_not(own_queue, monkeypatch):
    monkeypatch.setattr(sampling, "_PAUSE_FACTOR", 1e9)
    sampler = Sampler(only(own_queue.address).places[0])
    first = sampler.sample()
    with Wire(own_queue.server.connect()) as client:
        client.ask("use another")
        client.put(b"x")
        second = sampler.sample()
        assert second.tubes is first.tubes
        assert second.stats["cmd-put"] == first.stats["cmd-put"] + 1
        monkeypatch.setattr(sampler, "_list_at_s", 0.0)
        third = sampler.sample()
    sampler.close()
    (another,) = [tube for tube in third.tubes if tube["name"] == "another"]
    assert another["puts_per_s"] == pytest.approx(1 / (third.at_s - first.at_s))
    seen = str(summary(dataclasses.replace(second, at_s=second.tubes_at_s + 34), "here"))
    assert "; tubes as of 34 s ago\njobs " in seen
    assert "as of" not in str(summary(third, "here"))
