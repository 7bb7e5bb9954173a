"""Telling those who watch: only what is durable, in slices, and with a count of what is lost."""

import asyncio
import json

import pytest

from beanlite.core.access import READER, Rights
from beanlite.net import feed
from beanlite.net.operators import Operators
from tests.support.simulated import Client, FakeJournal, settle, simulated

WATCH = b"watch-events 2\r\n{}\r\n"
PUT = b"put 0 0 60 1\r\nx\r\n"


def events(said):
    """What a watcher has been told."""
    lines = said.split(b"\r\n")
    return [json.loads(body) for head, body in zip(lines[::2], lines[1::2], strict=False) if head.startswith(b"EVENT ")]


def words(said):
    return [event.get("what", event.get("lost")) for event in events(said)]


def test_nothing_is_told_that_a_crash_could_undo():
    async def play(server, journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        watcher.said = b""
        journal.holds = True
        await producer.ask(PUT)
        await asyncio.sleep(60)
        assert watcher.said == b""
        journal.holds = False
        journal.let_go()
        await settle()
        assert words(watcher.said) == ["put"]

    assert simulated(play) is None


def test_no_event_precedes_the_reply_to_the_command_that_asks_for_it():
    async def play(server, journal):
        other, watcher, producer = Client(server), Client(server), Client(server)
        await other.ask(WATCH)
        journal.holds = True
        await producer.ask(PUT)
        watcher.send(PUT + WATCH)  # they wait for the batch after that of the producer
        await settle()
        await other.ask(PUT)  # but the watcher hears of this put, too, before it can be told
        journal.let_go()
        await asyncio.sleep(60)
        assert watcher.said == b""
        journal.holds = False
        journal.let_go()
        await asyncio.sleep(feed.RETRY_S)
        await settle()
        replies = b"INSERTED 2\r\nOK 2\r\n{}\r\n"
        assert watcher.said.startswith(replies)
        assert 3 in [event["id"] for event in events(watcher.said.removeprefix(replies))]

    assert simulated(play) is None


def test_what_happened_before_is_not_told_even_if_it_is_stored_later():
    async def play(server, journal):
        other, watcher, producer = Client(server), Client(server), Client(server)
        await other.ask(WATCH)
        journal.holds = True
        await producer.ask(PUT)  # in a batch that is being stored
        await producer.ask(PUT)  # in the next one
        await asyncio.sleep(1)
        await watcher.ask(WATCH)
        watcher.said = b""
        await producer.ask(PUT)
        journal.holds = False
        journal.let_go()
        await settle()
        assert [event["id"] for event in events(watcher.said)] == [3]

    assert simulated(play) is None


def test_changes_that_cancel_out_are_told_at_once_without_a_journal(monkeypatch):
    monkeypatch.setattr(FakeJournal, "immediate", True)

    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        await producer.ask(PUT + b"delete 1\r\n")
        await asyncio.sleep(1)
        assert words(watcher.said) == ["put", "delete"]

    assert simulated(play) is None


def test_events_are_made_only_while_somebody_watches():
    async def play(server, _journal):
        ledger = server.parts.engine.ledger
        first, second = Client(server), Client(server)
        assert not ledger.recording
        for watcher in (first, second, second):
            await watcher.ask(WATCH)
        assert ledger.recording == 2
        for watcher in (first, second):
            watcher.close()
            await settle()
        assert not ledger.recording
        assert not server.parts.feed._watchers

    assert simulated(play) is None


def test_client_that_is_gone_before_its_turn_to_leave_is_sent_nothing():
    async def play(server, _):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        watcher.closed = True
        watcher.protocol.ending.lose()  # its turn to leave comes when this one has not lasted too long
        assert await producer.ask(PUT) == b"INSERTED 1\r\n"
        await settle()
        assert not server.parts.feed._watchers

    assert simulated(play) is None


def test_client_gets_no_more_events_after_losing_its_rights():
    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        watcher.said = b""
        await server.parts.roster.change(100, 16, Operators("none"), None)
        await producer.ask(PUT)
        await settle()
        assert watcher.said == b""
        assert not server.parts.engine.ledger.recording
        assert await watcher.ask(b"list-tube-used\r\n") == b"USING default\r\n"

    assert simulated(play) is None


def test_many_events_are_told_in_slices(monkeypatch):
    monkeypatch.setattr(feed, "AT_ONCE", 1)
    monkeypatch.setattr(feed, "SHARE", 3)

    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        watcher.said = b""
        written = []
        monkeypatch.setattr(watcher, "write", written.append)
        await producer.ask(PUT * 10)
        await asyncio.sleep(1)
        assert [len(events(part)) for part in written] == [3, 3, 3, 1]
        assert [event["id"] for part in written for event in events(part)] == list(range(1, 11))

    assert simulated(play) is None


def test_slices_of_a_client_with_many_globs_have_fewer_events(monkeypatch):
    monkeypatch.setattr(feed, "AT_ONCE", 1)
    monkeypatch.setattr(feed, "SHARE", 6)

    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        watcher.protocol.session.rights = Rights([(READER, b"def*"), (READER, b"?")])
        written = []
        monkeypatch.setattr(watcher, "write", written.append)
        await producer.ask(PUT * 5)
        await asyncio.sleep(1)
        assert [len(events(part)) for part in written] == [2, 2, 1]

    assert simulated(play) is None


def test_clients_that_watch_take_turns(monkeypatch):
    monkeypatch.setattr(feed, "AT_ONCE", 1)
    monkeypatch.setattr(feed, "SHARE", 2)

    async def play(server, _journal):
        watchers, producer = [Client(server) for _ in range(3)], Client(server)
        written = []
        for number, watcher in enumerate(watchers):
            await watcher.ask(WATCH)
            monkeypatch.setattr(watcher, "write", lambda part, by=number: written.append((by, len(events(part)))))
        await producer.ask(PUT * 5)
        await asyncio.sleep(1)
        assert written == [(by, jobs) for jobs in (2, 2, 1) for by in range(3)]

    assert simulated(play) is None


def test_very_many_clients_that_watch_are_sent_an_event_in_slices():
    async def play(server, _journal):
        watchers, producer = [Client(server) for _ in range(200)], Client(server)
        for watcher in watchers:
            await watcher.ask(WATCH)
            watcher.said = b""
        producer.send(PUT)
        told = 0
        for _ in range(100):
            await asyncio.sleep(0)
            before, told = told, sum(bool(watcher.said) for watcher in watchers)
            assert told - before <= feed.AT_ONCE // feed.SEND_COST
        assert [words(watcher.said) for watcher in watchers] == [["put"]] * 200

    assert simulated(play) is None


def test_few_clients_that_watch_are_each_sent_events_once_in_a_turn(monkeypatch):
    async def play(server, _journal):
        watchers, producer = [Client(server) for _ in range(2)], Client(server)
        written = []
        for watcher in watchers:
            await watcher.ask(WATCH)
            monkeypatch.setattr(watcher, "write", lambda part, to=watcher: written.append((to, len(events(part)))))
        producer.send(PUT * 300)
        told = 0
        for _ in range(100):
            await asyncio.sleep(0)
            part, told = written[told:], len(written)
            assert len(part) == len({watcher for watcher, _ in part})
        assert [sum(count for to, count in written if to is watcher) for watcher in watchers] == [300, 300]

    assert simulated(play) is None


def test_many_clients_that_do_not_read_leave_little_for_one_turn(monkeypatch):
    monkeypatch.setattr(feed, "UNREAD_ALL", 20_000)

    async def play(server, _journal):
        watchers, producer = [Client(server) for _ in range(20)], Client(server)
        for watcher in watchers:
            await watcher.ask(WATCH)
            watcher.said = b""
            monkeypatch.setattr(watcher, "get_write_buffer_size", lambda of=watcher: len(of.said))
        await producer.ask(PUT * 400)
        await asyncio.sleep(2 * feed.RETRY_S)
        most = feed.UNREAD_ALL + len(watchers) * feed.SHARE * 500
        assert sum(len(watcher.said) for watcher in watchers) <= most
        told = [0] * len(watchers)
        for _ in range(400):
            for number, watcher in enumerate(watchers):
                told[number] += len(events(watcher.said))
                watcher.said = b""
            await asyncio.sleep(feed.RETRY_S)
        assert told == [400] * len(watchers)

    assert simulated(play) is None


def test_slow_reader_hears_how_many_events_it_lost(monkeypatch):
    monkeypatch.setattr(feed, "KEPT_MAX", 4)

    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        watcher.said = b""
        unread = feed.UNREAD_MAX + 1
        monkeypatch.setattr(watcher, "get_write_buffer_size", lambda: unread)
        await producer.ask(PUT * 9)
        assert watcher.said == b""
        unread = 0
        await asyncio.sleep(feed.RETRY_S)
        assert words(watcher.said) == [5, *["put"] * 4]
        assert [event["id"] for event in events(watcher.said)[1:]] == [6, 7, 8, 9]
        watcher.said = b""
        await producer.ask(PUT)
        assert words(watcher.said) == ["put"]

    assert simulated(play) is None


def test_slow_reader_keeps_no_bodies_of_deleted_jobs_in_memory(monkeypatch):
    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        monkeypatch.setattr(watcher, "get_write_buffer_size", lambda: feed.UNREAD_MAX + 1)
        await producer.ask(PUT + b"delete 1\r\n")
        assert [(event.what, event.body) for event in server.parts.feed._events] == [("put", None), ("delete", None)]
        watcher.close()
        await settle()
        await producer.ask(PUT)
        await asyncio.sleep(feed.RETRY_S)
        assert server.parts.feed._events == []

    assert simulated(play) is None


@pytest.mark.parametrize("size", [10, 5000])
def test_slow_reader_keeps_no_large_bodies_of_schedules_in_memory(size):
    async def play(server, _journal):
        watcher, operator = Client(server), Client(server)
        await watcher.ask(WATCH)
        setting = {"name": "s", "when": "every 1h", "tube": "t", "body": size * "b"}
        request = json.dumps(setting).encode()
        said = await operator.ask(b"set-schedule %d\r\n%b\r\n" % (len(request), request))
        assert said.startswith(b"OK "), said
        assert len(server.parts.feed._events[-1].body) < 1000
        await settle()
        (told,) = [json.loads(event["change"]) for event in events(watcher.said) if event.get("what") == "schedule"]
        assert (told["name"], told["tube"], told.get("body")) == ("s", "t", 10 * "b" if size == 10 else None)

    assert simulated(play) is None


def test_last_request_to_watch_counts_from_then_on():
    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        await producer.ask(PUT)
        await watcher.ask(b'watch-events 20\r\n{"what": ["delete"]}\r\n')
        watcher.said = b""
        await producer.ask(PUT + b"delete 1\r\n")
        assert words(watcher.said) == ["delete"]

    assert simulated(play) is None


def test_events_not_told_yet_are_told_after_another_request_to_watch(monkeypatch):
    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        unread = feed.UNREAD_MAX + 1
        monkeypatch.setattr(watcher, "get_write_buffer_size", lambda: unread)
        await producer.ask(PUT * 5)
        assert await watcher.ask(b'watch-events 20\r\n{"what": ["delete"]}\r\n') == b"OK 2\r\n{}\r\n"
        watcher.said = b""
        unread = 0
        await asyncio.sleep(feed.RETRY_S)
        await settle()
        assert words(watcher.said) == ["put"] * 5

    assert simulated(play) is None


def test_what_a_client_watches_that_is_no_word_of_ours_is_not_kept():
    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        what = json.dumps({"what": ["x" * 100_000, "delete"]}).encode()
        await watcher.ask(b"watch-events %d\r\n%b\r\n" % (len(what), what))
        (watching,) = server.parts.feed._watchers.values()
        assert watching.wishes[0].words == {"delete"}
        watcher.said = b""
        await producer.ask(PUT + b"delete 1\r\n")
        assert words(watcher.said) == ["delete"]

    assert simulated(play) is None


def test_a_client_that_lags_does_not_keep_others_waiting(monkeypatch):
    async def play(server, _journal):
        lagging, watcher, producer = Client(server), Client(server), Client(server)
        for client in (lagging, watcher):
            await client.ask(WATCH)
            client.said = b""
        unread = feed.UNREAD_MAX + 1
        monkeypatch.setattr(lagging, "get_write_buffer_size", lambda: unread)
        for number in range(1, 4):
            await producer.ask(PUT)
            await asyncio.sleep(feed.RETRY_S / 3)
            assert len(events(watcher.said)) == number
        assert lagging.said == b""
        unread = 0
        await asyncio.sleep(feed.RETRY_S)
        assert [event["id"] for event in events(lagging.said)] == [1, 2, 3]

    assert simulated(play) is None


def test_client_that_watches_anew_again_and_again_takes_no_memory(monkeypatch):
    async def play(server, _journal):
        watcher, producer = Client(server), Client(server)
        await watcher.ask(WATCH)
        monkeypatch.setattr(watcher, "get_write_buffer_size", lambda: feed.UNREAD_MAX + 1)
        for _ in range(2 * feed.CHANGES_MAX):
            await producer.ask(PUT)
            await watcher.ask(WATCH)
        (watching,) = server.parts.feed._watchers.values()
        assert len(watching.wishes) == feed.CHANGES_MAX

    assert simulated(play) is None
