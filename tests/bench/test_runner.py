"""The bench's parts: latencies, what must come back, what is sent, and what is made of it."""

import pytest

from beanlite.beanstalk.client import Unreachable
from beanlite.errors import ConfigError
from tests.bench import report, workloads
from tests.bench.histogram import Histogram
from tests.bench.replies import Jobs, Lines, OtherReply
from tests.bench.runner import Options, Round
from tests.bench.target import Target, is_beanlite, reached


def histogram(*latencies_ns):
    made = Histogram()
    for ns in latencies_ns:
        made.record(ns)
    return made


def test_short_latencies_are_exact():
    made = histogram(*range(1, 101))
    assert [made.percentile_ns(percent) for percent in (0, 1, 50, 99, 99.9, 100)] == [1, 1, 50, 99, 100, 100]


@pytest.mark.parametrize("ns", [127, 128, 129, 1_000, 12_345, 999_999, 60_000_000_000, (1 << 46) - 1])
def test_a_latency_is_known_to_within_1_percent(ns):
    assert histogram(ns, 1 << 47, 1 << 47).percentile_ns(1) == pytest.approx(ns, rel=0.01)


def test_nothing_is_reported_above_the_longest():
    assert histogram(1_000_001).percentile_ns(50) == histogram(1_000_001).max_ns == 1_000_001


def test_percentiles_count_what_they_say():
    made = histogram(*[1_000] * 990, *[50_000] * 9, 7_000_000)
    assert made.percentile_ns(99) == pytest.approx(1_000, rel=0.01)
    assert made.percentile_ns(99.9) == pytest.approx(50_000, rel=0.01)
    assert made.max_ns == 7_000_000


def test_none_is_0():
    assert Histogram().percentile_ns(50) == 0


def test_two_processes_count_as_one():
    made = histogram(1, 2, 3)
    made.merge(Histogram.load(histogram(100, 5_000_000).dump()))
    assert [made.percentile_ns(percent) for percent in (20, 60, 80)] == [1, 3, 100]
    assert made.max_ns == 5_000_000


INSERTED = Lines(b"INSERTED ")


@pytest.mark.parametrize("data", [b"", b"INS", b"INSERTED 1\r\n", b"INSERTED 1\r\nINSERTED 2"])
def test_lines_that_are_missing_are_waited_for(data):
    assert INSERTED.read(data, 2) is None


def test_lines_that_are_due():
    assert Lines(b"DELETED\r\n").read(b"DELETED\r\n" * 3, 3) == []
    assert INSERTED.read(b"INSERTED 1\r\nINSERTED 2\r\n", 2) == []


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"INSERTED 1\r\nBURIED 2\r\nINS", r"^b'BURIED 2\\r\\n' came where INSERTED was due$"),
        (b"INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n", "INSERTED 3"),
        (b"INSERTED 1\r\nINSERTED 2\r\nINS", "^b'INS' came"),
        (b"INSERTED 1\r\nxINSERTED 2\r\n", "^b'xINSERTED 2"),
        (b"DRAINING\r\nDRAINING\r\n", "^b'DRAINING"),
    ],
)
def test_another_line_is_shown(data, shown):
    with pytest.raises(OtherReply, match=shown):
        INSERTED.read(data, 2)


RESERVED = Jobs(b"xxx", may_end=False)
TAKEN = Jobs(b"xxx", may_end=True)
TWO = b"RESERVED 7 3\r\nxxx\r\nRESERVED 18 3\r\nxxx\r\n"


@pytest.mark.parametrize("length", range(len(TWO)))
def test_jobs_that_are_missing_are_waited_for(length):
    assert RESERVED.read(TWO[:length], 2) is None


def test_jobs_that_are_due():
    assert RESERVED.read(TWO, 2) == [b"7", b"18"]
    assert TAKEN.read(TWO, 2) == [b"7", b"18"]


def test_empty_bodies():
    assert Jobs(b"", may_end=False).read(b"RESERVED 1 0\r\n\r\nRESERVED 2 0\r\n\r\n", 2) == [b"1", b"2"]


def test_jobs_until_there_are_none():
    assert TAKEN.read(TWO + b"TIMED_OUT\r\n", 4) is None
    assert TAKEN.read(TWO + b"TIMED_OUT\r\nTIMED_OUT\r\n", 4) == [b"7", b"18"]
    assert TAKEN.read(b"TIMED_OUT\r\n", 1) == []
    given_back_meanwhile = TWO[:19] + b"TIMED_OUT\r\n" + TWO[19:]
    assert TAKEN.read(given_back_meanwhile, 3) == [b"7", b"18"]


@pytest.mark.parametrize(
    ("jobs", "data", "shown"),
    [
        (RESERVED, b"TIMED_OUT\r\n", r"^b'TIMED_OUT\\r\\n' came where RESERVED was due$"),
        (RESERVED, b"DEADLINE_SOON\r\n" + TWO[:19], "^b'DEADLINE_SOON"),
        (TAKEN, b"DEADLINE_SOON\r\n", "^b'DEADLINE_SOON"),
        (RESERVED, TWO.replace(b"xxx", b"yyy"), "yyy"),
        (RESERVED, TWO.replace(b"18", b"1x"), "1x"),
        (TAKEN, b"TIMED_OUT\r\nRESERVED 7 3\r\nyyy\r\n", "yyy"),
        (RESERVED, TWO + b"RESERVED 19 3\r\nxxx\r\nOUT_OF_MEMORY\r\n", "OUT_OF_MEMORY"),
    ],
)
def test_what_is_no_job_of_ours_is_shown(jobs, data, shown):
    with pytest.raises(OtherReply, match=shown):
        jobs.read(data, 2)


def test_each_command_is_sent_for_each_job():
    (steps,) = workloads.roles("mixed", 2, 3)
    assert [step.request([b"7", b"18"]) for step in steps] == [
        b"put 1024 0 3600 3\r\nxxx\r\n" * 2,
        b"reserve\r\n" * 2,
        b"release 7 1024 3600\r\nrelease 18 1024 3600\r\n",
        b"kick-job 7\r\nkick-job 18\r\n",
        b"reserve\r\n" * 2,
        b"bury 7 1024\r\nbury 18 1024\r\n",
        b"kick-job 7\r\nkick-job 18\r\n",
        b"reserve\r\n" * 2,
        b"delete 7\r\ndelete 18\r\n",
    ]


@pytest.mark.parametrize(
    ("workload", "finishing"),
    [
        ("noop", [[]]),
        ("put", [["put"]]),
        ("cycle", [["delete"]]),
        ("drain", [["delete"]]),
        ("pc", [[], ["delete"]]),
        ("mixed", [["delete"]]),
    ],
)
def test_a_job_is_counted_once(workload, finishing):
    roles = workloads.roles(workload, 1, 1)
    assert [[step.name for step in steps if step.finishes] for steps in roles] == finishing


@pytest.mark.parametrize("place", ["", "x", "x:", ":1", "x:y", "x:65536", "name=x", "unix:", "name=unix:"])
def test_no_address(place):
    with pytest.raises(ConfigError, match="--connect takes HOST:PORT, tls://HOST:PORT or unix:PATH, not "):
        reached(place)


def test_a_name_is_told_apart_from_a_path(tmp_path):
    with pytest.raises(Unreachable, match=r"at unix:.*/a=b\.sock: No such file or directory$"):
        reached(f"here=unix:{tmp_path}/a=b.sock")
    with pytest.raises(Unreachable, match=r"at unix:.*/a=b\.sock: No such file or directory$"):
        reached(f"unix:{tmp_path}/a=b.sock")


@pytest.mark.parametrize(
    ("command", "ours"),
    [("beanlite --fsync 50ms", True), ("taskset -c 0 /usr/bin/beanlite", True), ("beanstalkd -b beanlite.db", False)],
)
def test_which_command_is_ours(command, ours):
    assert is_beanlite(command) == ours


def round_of(speed, **others):
    shares = {"generator_busy": 0.5, "server_busy": 0.5, "queued": 0.0} | others
    latencies = {"p50_us": speed, "p99_us": 0, "p999_us": 0, "max_us": speed}
    return Round(1, speed, 0, commands_per_s=speed, jobs_per_s=0, **latencies, **shares, left=0)


def summary(*rounds, **options):
    targets = [Target(f"t{number}", ("h", 1), "", None) for number in range(len(rounds))]
    return report.summary(Options(**options), targets, rounds)


def test_the_ratio_is_the_median_of_the_rounds_ratios():
    """Which is not the ratio of the medians: a round in which the machine was slow counts no less."""
    first, second = summary([round_of(10), round_of(100), round_of(40)], [round_of(20), round_of(50), round_of(120)])
    assert (first["commands_per_s"], first["ratio"], first["max_us"]) == (40, 1.0, 100)
    assert (second["commands_per_s"], second["ratio"], second["p50_us"]) == (50, 2.0, 50)
    assert [one["commands_per_s"] for one in second["rounds"]] == [20, 50, 120]


@pytest.mark.parametrize(
    ("figures", "rate", "limit"),
    [
        ({"generator_busy": 0.95, "server_busy": 0.5}, 0, "generator"),
        ({"generator_busy": 0.95, "server_busy": None}, 0, "generator"),
        ({"generator_busy": 0.95, "server_busy": 0.95}, 0, "both"),
        ({"generator_busy": 0.5, "server_busy": 0.95}, 0, "server"),
        ({"generator_busy": 0.5, "server_busy": 0.5}, 0, "wait"),
        ({"generator_busy": 0.5, "server_busy": 0.5, "queued": 0.2}, 0, "machine"),
        ({"generator_busy": 0.5, "server_busy": None}, 0, "unknown"),
        ({"generator_busy": 0.95, "server_busy": 0.95}, 100, "rate"),
        ({"generator_busy": 0.95, "server_busy": 0.5}, 200, "generator"),
    ],
)
def test_the_limit_is_named(figures, rate, limit):
    (target,) = summary([round_of(100, **figures)], rate=rate)
    assert target["limit"] == limit
