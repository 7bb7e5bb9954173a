"""What a server tells of its jobs and tubes, and what its file tells, is the same."""

import random
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from beanlite.cli import main
from beanlite.console import listing, outlook
from beanlite.console.file import File
from beanlite.console.filters import filter_by, filter_text
from beanlite.console.listing import first
from beanlite.console.live import Live
from beanlite.console.several import only
from beanlite.console.top.sampling import Sampler
from beanlite.errors import BeanliteError, ConfigError
from beanlite.protocol.operators.filters import NAMES, Filter
from tests.support.wire import Wire, until


def ids(source, *, sort="id", limit=0, **which):
    return [job["id"] for job in listing.jobs(source, filter_by(**which), sort, limit, None).records]


@pytest.mark.parametrize("state", ["ready", "reserved", "delayed", "buried"])
def test_jobs_of_a_state(source, queue, state):
    assert ids(source, state=state) == sorted(getattr(queue, state))


def test_filters(source, queue):
    assert ids(source) == queue.all
    assert ids(source, tube="other") == queue.ready[-1:]
    assert ids(source, tube="nobody") == []
    assert ids(source, older_s=3600) == []
    assert ids(source, newer_s=3600, state="buried") == sorted(queue.buried)
    assert ids(source, in_state_s=3600) == []
    assert ids(source, pri_min=7, tube="mail") == sorted(queue.buried)
    assert ids(source, pri_max=0, state="ready") == queue.ready[-1:]
    assert ids(source, text="user7@") == queue.ready[3:4]
    assert ids(source, text="\xff") == []
    assert ids(source, up_to_id=queue.all[2]) == queue.all[:3]
    assert ids(source, holder=holder(queue)) == queue.reserved
    assert ids(source, holder=999) == []


# A value for each criterion that not all jobs of the queue meet.
NARROW = {
    "ids": [1], "tube": "other", "state": "buried", "older_s": 3600.0, "newer_s": 0.0, "in_state_s": 3600.0,
    "since_at": 4e9, "until_at": 1e9, "pri_min": 7, "pri_max": 0, "reserves_min": 1, "holder": 999,
    "holder_host": "10.0.0.1", "text": "user7@", "where": "to=user7@example.org", "up_to_id": 1,
    "tube_like": "oth*", "tries_min": 1, "timeouts_min": 1, "releases_min": 1, "why": "client", "note_text": "INC-4711",
}  # fmt: skip


@pytest.mark.parametrize("key", Filter.model_fields)
def test_server_and_file_evaluate_each_criterion(source, queue, key):
    assert set(ids(source, **{key: NARROW[key]})) < set(queue.all)


def test_filter_is_told_in_words():
    which = filter_by(
        state="buried",
        tube="web*",
        since_at=0.0,
        until_at=3600.5,
        reserves_min=5,
        holder_host="10.0.0.5",
        where=["a=1", "b=x"],
    )
    assert filter_text(which) == (
        "buried in tube web*, so since 1970-01-01 00:00:00 UTC or later, so since 1970-01-01 01:00:00 UTC or earlier,"
        " reserved 5 times or more, held by a client of 10.0.0.5, whose body has a=1 and b=x"
    )


def test_path_that_is_none_is_an_error():
    with pytest.raises(ConfigError, match="where: 'customer' is not a path and a value"):
        filter_by(where="customer")


def test_jobs_has_an_option_for_each_criterion(capsys):
    assert main(["jobs", "--help"]) == 0
    said = capsys.readouterr().out
    options = {key: f"--{name.replace('_', '-')} " for key, name in NAMES.items()}
    assert {key for key, option in options.items() if option not in said} == {"ids", "tube_like", "up_to_id"}


def holder(queue):
    """The number of the connection that holds jobs."""
    with Live(queue.address) as live:
        (found,) = [
            client["number"] for client in listing.everything(live.list_clients, {}, "clients") if client["holds"]
        ]
    return found


def test_orders(source, queue):
    by_queue = ids(source, sort="queue", tube="mail", state="ready")
    assert by_queue == sorted(queue.ready[:-1], key=lambda job_id: ((job_id - queue.all[0]) % 3, job_id))
    assert ids(source, sort="queue", tube="mail", state="buried") == queue.buried
    assert ids(source, sort="queue", tube="mail", state="delayed") == queue.delayed
    assert ids(source, sort="pri", limit=2) == [*queue.ready[-1:], *ids(source, sort="pri", limit=0)[1:2]]
    assert ids(source, sort="size", limit=1) == queue.ready[-1:]
    assert len(ids(source, sort="age", limit=3)) == 3
    assert ids(source, sort="reserves", limit=4) == sorted(queue.reserved + queue.buried)
    assert ids(source, sort="reserves", limit=5)[4:] == ids(source, sort="reserves")[4:5] == queue.ready[:1]


@pytest.mark.parametrize("reserves", [lambda n: n * 7919 % 1000, lambda n: n // 9800])
def test_list_of_the_most_reserved_jobs_asks_for_ever_fewer(reserves):
    jobs = [{"id": n, "reserves": reserves(n)} for n in range(10_000)]
    told: list[dict] = []

    def list_jobs(request):
        rest = [job for job in jobs[request.get("after") or 0 :] if job["reserves"] >= request.get("reserves_min", 0)]
        part = rest[: request["limit"]]
        told.extend(part)
        return {"jobs": part, "next": part[-1]["id"] + 1 if len(part) == request["limit"] else None}

    source: Any = SimpleNamespace(list_jobs=list_jobs)
    for which, limit in ((filter_by(), 20), (filter_by(), 300), (filter_by(reserves_min=999), 3)):
        told.clear()
        page = listing.jobs(source, which, "reserves", limit, None)
        fit = [job for job in jobs if job["reserves"] >= (which.reserves_min or 0)]
        assert page.records == sorted(fit, key=lambda job: (-job["reserves"], job["id"]))[:limit]
        assert len(told) < 2000


@pytest.mark.parametrize(
    ("sort", "key", "criterion", "passes"),
    [
        ("age", "age_s", "older_s", lambda job, bound: job["age_s"] >= bound),
        ("in-state", "in_state_s", "in_state_s", lambda job, bound: job["in_state_s"] >= bound),
        ("pri", "pri", "pri_max", lambda job, bound: job["pri"] <= bound),
        ("timeouts", "timeouts", "reserves_min", lambda job, bound: job["reserves"] >= bound),
    ],
)
def test_sorted_list_of_very_many_jobs_asks_for_few_of_them(sort, key, criterion, passes):
    chance = random.Random(1)
    jobs = [{"id": n, key: (value := chance.randrange(1000)), "reserves": value + n % 3} for n in range(10_000)]
    told: list[dict] = []

    def list_jobs(request):
        bound = request.get(criterion)
        rest = [job for job in jobs[request.get("after") or 0 :] if bound is None or passes(job, bound)]
        part = rest[: request["limit"]]
        told.extend(part)
        return {"jobs": part, "next": part[-1]["id"] + 1 if len(part) == request["limit"] else None}

    source: Any = SimpleNamespace(list_jobs=list_jobs)
    page = listing.jobs(source, filter_by(), sort, 20, None)
    sign = 1 if sort == "pri" else -1
    assert page.records == sorted(jobs, key=lambda job: (sign * job[key], job["id"]))[:20]
    assert len(told) < 2000


@pytest.mark.parametrize("sort", ["id", "size", "age"])
def test_list_ends_when_its_time_is_up(sort):
    jobs = [{"id": n, "size": n, "age_s": n} for n in range(1000)]

    def list_jobs(request):
        at = int(request.get("after") or 0)
        return {"jobs": jobs[at : at + 10], "next": str(at + 10) if at < 990 else None}

    source: Any = SimpleNamespace(list_jobs=list_jobs)
    page = listing.jobs(source, filter_by(), sort, 50, None, (), time.monotonic())
    assert sorted(job["id"] for job in page.records) == list(range(10))
    assert (page.is_cut, page.after) == (True, "10" if sort == "id" else None)
    assert not listing.jobs(source, filter_by(), sort, 50, None, (), time.monotonic() + 1000).is_cut


def test_jobs_without_the_fact_that_sorts_them_come_last():
    jobs: list[dict[str, Any]] = [{"id": n, "in_state_s": None if n < 300 else n} for n in range(500)]

    def list_jobs(request):
        rest = jobs[request.get("after") or 0 :]
        part = [job for job in rest if (job["in_state_s"] or 0) >= request.get("in_state_s", 0)][:200]
        return {"jobs": part, "next": part[-1]["id"] + 1 if len(part) == 200 else None}

    assert ids(SimpleNamespace(list_jobs=list_jobs), sort="in-state", limit=3) == [499, 498, 497]


def test_a_list_goes_on_where_it_ended(source, queue):
    for sort, which, expected in (
        ("id", filter_by(), queue.all),
        ("queue", filter_by(tube="mail", state="ready"), ids(source, sort="queue", tube="mail", state="ready")),
    ):
        found, after = [], None
        while True:
            records, after, _ = listing.jobs(source, which, sort, 2, after)
            found += [job["id"] for job in records]
            if after is None:
                break
        assert found == expected


def test_a_slice_in_which_nothing_is_found_is_not_the_end(own_queue):
    """A server looks at some thousand jobs at a time."""
    with Wire(own_queue.server.connect()) as client:
        client.send(b"put 0 0 60 1\r\nx\r\n" * 9000)
        for _ in range(9000):
            client.reply()
        last = client.put(b"needle")
    with Live(own_queue.address) as live:
        assert ids(live, text="needle") == ids(live, text="needle", limit=5) == [last]


@pytest.mark.parametrize(
    ("sort", "which", "after", "said"),
    [
        (
            "colour",
            {},
            None,
            "jobs are sorted by id, queue, age, in-state, pri, size, timeouts, reserves, not by 'colour'",
        ),
        ("queue", {"tube": "mail"}, None, "--sort queue needs --tube, and --state ready, delayed or buried"),
        ("queue", {"state": "ready"}, None, "--sort queue needs --tube"),
        ("queue", {"tube": "mail", "state": "reserved"}, None, "--sort queue needs --tube"),
        ("age", {}, "5", "--after goes on only in a list that is sorted by id or queue"),
        ("id", {}, "5-5", "--after: '5-5' is not from a list of a file's jobs"),
        ("id", {}, "9" * 19, "--after: '9+' is not from a list of a file's jobs"),
    ],
)
def test_orders_that_there_are_not(queue, sort, which, after, said):
    with File(queue.db) as source, pytest.raises(ConfigError, match=said):
        listing.jobs(source, filter_by(**which), sort, 0, after)


@pytest.mark.parametrize(
    ("sort", "knows", "does_not", "said"),
    [
        ("bytes", "file", "live", "--sort bytes needs --db"),
        ("waiting", "live", "file", "--sort waiting needs a server"),
    ],
)
def test_tubes_are_not_sorted_by_what_is_not_known(queue, sort, knows, does_not, said):
    with Live(queue.address) as live, File(queue.db) as file:
        sources: dict[str, listing.Source] = {"live": live, "file": file}
        assert listing.tubes(sources[knows], "*", sort, 0)[1]
        with pytest.raises(ConfigError, match=said):
            listing.tubes(sources[does_not], "*", sort, 0)


def test_what_is_not_utf_8(queue):
    """A file can be searched for any bytes, a server only for text."""
    with File(queue.db) as file:
        assert ids(file, text="later \udcff") == queue.delayed[:1]
        assert listing.tubes(file, "m\udcff", "name", 0) == ([], 0)
        with pytest.raises(BeanliteError, match="there is no tube m"):
            file.check_tube("m\udcff")
    with Live(queue.address) as live, pytest.raises(ConfigError, match="asked for UTF-8 only"):
        ids(live, text="later \udcff")
    with pytest.raises(ConfigError, match="no tube can have the name"):
        filter_by(tube="m\udcff")


def test_both_tell_the_same_of_a_job(queue):
    """But for what a second makes."""
    with Live(queue.address) as live, File(queue.db) as file:
        for job_id in queue.all:
            told, read = live.show_job(job_id), file.show_job(job_id)
            assert [event["what"] for event in (read or {}).pop("history")] == []  # none is kept
            for job in told or {}, read or {}:
                for key in ("age_s", "in_state_s", "left_s", "created_at"):
                    job[key] = job[key] if job[key] is None else round(job[key], -2)
            assert told == read
        assert live.show_job(999) is file.show_job(999) is None


def test_tubes(source):
    found, total = listing.tubes(source, "*", "name", 0)
    assert total == len(found)
    shown = [{key: tube[key] for key in ("name", "ready", "reserved", "delayed", "buried")} for tube in found]
    assert [tube for tube in shown if tube["name"] != "default"] == [
        {"name": "mail", "ready": 5, "reserved": 2, "delayed": 2, "buried": 2},
        {"name": "other", "ready": 1, "reserved": 0, "delayed": 0, "buried": 0},
    ]
    found, more = listing.tubes(source, "*", "ready", 1)
    assert ([tube["name"] for tube in found], more) == (["mail"], total)
    assert [tube["name"] for tube in listing.tubes(source, "ma*l", "oldest", 0)[0]] == ["mail"]
    assert listing.tubes(source, "mai?", "buried", 0)[0][0]["buried"] == 2
    assert [tube["name"] for tube in listing.tubes(source, "[!do]*", "name", 0)[0]] == ["mail"]
    assert [tube["name"] for tube in listing.tubes(source, "[^m]*", "name", 0)[0]] == ["mail"]
    assert 450 < listing.tubes(source, "other", "name", 0)[0][0]["pause_left_s"] <= 500


def test_tubes_are_told_with_what_fails_and_what_is_due(source):
    until(lambda: listing.tubes(source, "mail", "name", 0)[0][0]["failed"])  # a file knows it a second late
    (mail,) = listing.tubes(source, "mail", "name", 0)[0]
    assert (mail["failed"], mail["due"]) == (1.0, 1)
    (other,) = listing.tubes(source, "other", "name", 0)[0]
    assert (other["failed"], other["due"]) == (None, 0)
    assert listing.tubes(source, "*", "due", 1)[0][0]["name"] == "mail"
    assert listing.tubes(source, "*", "failed", 1)[0][0]["name"] == "mail"


@pytest.fixture
def coming_back(own_queue, monkeypatch):
    """The server, of whose tubes one is dropped and made again when it has been listed."""
    list_tubes = Live.list_tubes

    def list_one(live, request):
        reply = list_tubes(live, {**request, "limit": 1})
        if any(tube["name"] == "back" for tube in reply["tubes"]) and reply["next"] is not None:
            client.ask("use default")
            client.ask("use back")
        return reply

    monkeypatch.setattr(Live, "list_tubes", list_one)
    with Wire(own_queue.server.connect()) as client, Wire(own_queue.server.connect()) as behind:
        client.ask("use back")
        behind.ask("use behind")
        yield own_queue.address


def test_tube_that_comes_back_amid_a_list_is_told_once(coming_back):
    with Live(coming_back) as live:
        rows, total = listing.tubes(live, "*", "name", 0)
    assert [row["name"] for row in rows] == ["back", "behind", "default", "mail", "other"]
    assert total == 5


def test_tube_that_comes_back_amid_a_list_is_once_in_top(coming_back):
    with closing(Sampler(only(coming_back).places[0])) as sampler:
        tubes = sampler.sample().tubes
    assert sorted(tube["name"] for tube in tubes) == ["back", "behind", "default", "mail", "other"]


def telling(key, *parts):
    """Return a source that tells a list in these slices."""

    def tell(request):
        at = request.get("after") or 0
        return {key: parts[at], "next": at + 1 if at + 1 < len(parts) else None}

    return SimpleNamespace(**{f"list_{key}": tell})


def test_tube_that_comes_back_amid_a_list_is_named_once():
    source: Any = telling("tubes", [["a", 1], ["b", 1]], [["a", 2]])
    assert listing.every_tube(source, {"only": ["name", "ready"]}) == [["a", 2], ["b", 1]]


def test_job_that_moves_back_in_its_queue_is_listed_once():
    source: Any = telling("jobs", [{"id": 3}, {"id": 1}], [{"id": 1}, {"id": 2}])
    page = listing.jobs(source, filter_by(tube="mail", state="ready"), "queue", 0, None)
    assert [job["id"] for job in page.records] == [3, 1, 2]


def test_rates_of_a_server_are_measured(own_queue, monkeypatch):
    def work(over_s):
        assert over_s == 30
        with Wire(own_queue.server.connect()) as wire:
            wire.ask("use other")
            for job_id in [wire.put(b"x") for _ in range(2)] + own_queue.ready[-1:]:
                wire.ask(f"delete {job_id}")
            wire.ask("use new")
            wire.put(b"x")

    own_queue.worker.ask("watch other")
    clock = iter([0.0, 30.0])
    monkeypatch.setattr(outlook, "time", SimpleNamespace(sleep=work, monotonic=lambda: next(clock)))
    with Live(own_queue.address) as live:
        tubes = {tube["name"]: tube for tube in listing.tubes(live, "*", "name", 0, 30)[0]}
        told = {name: [tube[key] for key in RATES] for name, tube in tubes.items()}
    assert told == {"default": [0, 0, 0], "mail": [0, 0, None], "other": [4, 6, 0], "new": [2, 0, None]}
    with File(own_queue.db) as file, pytest.raises(ConfigError, match="--over needs a server"):
        listing.tubes(file, "*", "name", 0, 1)


RATES = ("puts_per_min", "deletes_per_min", "drain_s")


@pytest.mark.parametrize(
    ("ready", "puts", "deletes", "drain_s"),
    [(90, 10, 40, 180), (0, 10, 5, 0), (900, 5, 5, None), (9, None, None, None)],
)
def test_tube_drains_at_the_rate_of_deletes_beyond_puts(ready, puts, deletes, drain_s):
    tube = {"ready": ready, "deletes": 0, "puts_per_min": puts, "deletes_per_min": deletes}
    outlook.add_outlook(tube)
    assert tube["drain_s"] == drain_s


@pytest.mark.parametrize(
    ("puts", "deletes", "is_steady"), [(5, 5, True), (2, 1, True), (60, 50, True), (60, 40, False)]
)
def test_small_tube_whose_rates_are_about_equal_is_steady(puts, deletes, is_steady):
    tube = {"ready": 9, "deletes": 0, "puts_per_min": puts, "deletes_per_min": deletes}
    outlook.add_outlook(tube)
    assert ("drain_s" not in tube) == is_steady


def test_share_that_failed_is_of_all_that_ended():
    tube = {"ready": 1, "deletes": 6, "releases": 1, "timeouts": 2, "buries": 3}
    outlook.add_outlook(tube)
    assert tube["failed"] == 0.5
    assert "drain_s" not in tube  # without rates it is not known
    file = {"ready": 1, "puts_per_min": 1, "deletes_per_min": 3, "releases_per_min": 1, "timeouts_per_min": None}
    outlook.add_outlook(file)
    assert (file["failed"], file["drain_s"]) == (0.25, 30)


def test_those_that_lack_a_fact_come_last():
    records: list[dict] = [{"n": 1}, {"n": None}, {"n": 3}, {}, {"n": 2}]
    assert first(records, "n", largest=True, limit=3) == [{"n": 3}, {"n": 2}, {"n": 1}]
    assert first(records, "n", largest=False, limit=0) == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": None}, {}]
    assert first(records, "n", largest=True, limit=0)[-2:] == [{"n": None}, {}]


def test_moment_still_to_come_is_not_that_of_what_is_due(queue, capsys):
    later = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() + 86_400))
    for words in (["--until", later], ["--until", "23:59:59"]):
        assert main(["jobs", "--state", "delayed", "--connect", "{}:{}".format(*queue.address), *words]) == 2
        err = capsys.readouterr().err
        assert " is still to come" in err
        assert "what is due soon is told by beanlite jobs --group-by due, and by beanlite tubes --sort due" in err
