"""Jobs are read from lines of JSON."""

import json
import signal
from functools import partial

import pytest

from beanlite.beanstalk.client import Unreachable
from beanlite.console.live import Live
from beanlite.console.putting import NewJob, batches, put, put_new, read_jobs, run_schedule
from beanlite.errors import ConfigError
from tests.support.servers import start_beanlite

DEFAULTS = {"tube": "default", "pri": 1024, "delay_s": 0, "ttr_s": 60}


def read(*lines):
    return list(read_jobs(lines, "jobs.jsonl", DEFAULTS))


def test_a_line_may_leave_out_all_but_the_body():
    assert read(
        b'{"body": "\xc3\xa4"}\n', b"\n", b'{"base64": "AP8=", "tube": "mail", "pri": 0, "delay_s": 5, "ttr_s": 1}'
    ) == [
        NewJob("ä".encode(), "default", 1024, 0, 60),
        NewJob(b"\x00\xff", "mail", 0, 5, 1),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"x", r"it is not JSON: Expecting value \(character 1\)$"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "it needs either body or base64"),
        (b'{"body": "", "base64": ""}', "it needs either body or base64"),
        (b'{"body": 5}', "the body is 5, and not text"),
        (b'{"body": "", "delay": 5}', "'delay' is not a part of a job"),
        (b'{"body": "", "tube": 5}', "no tube can have the name 5"),
        (b'{"body": "", "tube": "a b"}', "no tube can have the name 'a b'"),
        (b'{"body": "", "pri": -1}', "pri: -1 is not allowed"),
        (b'{"body": "", "pri": true}', "pri: True is not allowed"),
        (b'{"body": "", "ttr_s": 4294967296}', "ttr_s: 4294967296 is not allowed"),
        (b'{"body": "", "delay_s": 1.5}', "delay_s: 1.5 is not allowed"),
        (b'{"base64": "x"}', "base64|padding"),
        (b'{"body": "\xff"}', "it is not UTF-8, and so not JSON"),
    ],
)
def test_a_mistake_names_its_line(line, said):
    with pytest.raises(ConfigError, match=rf"^jobs\.jsonl, line 3: .*({said})"):
        read(b'{"body": ""}', b"", line)


def test_what_is_told_of_a_job_reads_back():
    for job in (NewJob(b"\xff", "t", 1, 2, 3), NewJob(b"x\n", "t", 1, 2, 3)):
        record = job.record()
        assert NewJob.from_line(json.dumps(record).encode(), {}) == job


def test_batches_are_bounded_in_number_and_bytes():
    small = [NewJob(b"", "t", 0, 0, 0)] * 1001
    assert [len(batch) for batch in batches(small)] == [500, 500, 1]
    large = [NewJob(b"x" * 100_000, "t", 0, 0, 0)] * 2 + [NewJob(b"x" * 1_000_000, "t", 0, 0, 0)]
    assert [len(batch) for batch in batches(large)] == [1, 1, 1]


def test_jobs_of_a_lost_reply_may_have_been_put(tmp_path, monkeypatch):
    with start_beanlite(tmp_path) as server, Live((server.host, server.port)) as live:
        putting = put(live, [NewJob(b"x", "t", 1, 2, 3)] * 501, "")
        assert len(next(putting)) == 500

        def kill(_):
            server.kill()
            return 500

        monkeypatch.setattr("beanlite.console.putting.newest_id", kill)
        said = "closed a connection; it is not known whether the job was put; 500 jobs were put before$"
        with pytest.raises(Unreachable, match=said):
            next(putting)


@pytest.mark.parametrize("ask", [partial(run_schedule, name="nightly"), partial(put_new, job={})])
def test_one_job_of_a_lost_reply_may_have_been_put(ask, tmp_path, monkeypatch):
    with start_beanlite(tmp_path) as server, Live((server.host, server.port)) as live:
        monkeypatch.setattr("beanlite.console.putting.newest_id", lambda _: live.check() or server.kill() or 0)
        with pytest.raises(Unreachable, match="a connection; it is not known whether the job was put"):
            ask(live, person={})


def test_an_interrupt_waits_for_the_ids_of_what_was_put():
    class Server(Live):
        def __init__(self):
            self.name = "server"
            self._understands = True
            self.asked = 0

        def ask(self, word, request):
            if word == "list-rights":
                return {"everything": False, "rights": []}
            assert word == "put-jobs"
            self.asked += 1
            signal.raise_signal(signal.SIGINT)
            return {"ids": list(range(len(request["jobs"])))}

    server = Server()
    batches = put(server, [NewJob(b"x", "t", 1, 2, 3)] * 600, "")
    assert next(batches) == list(range(500))
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert server.asked == 1  # a second interrupt would end it as well


def test_an_interrupt_waits_until_the_ids_are_told(tmp_path):
    told = []

    def put_and_tell(live):
        for ids in put(live, [NewJob(b"x", "t", 1, 2, 3)] * 600, ""):
            signal.raise_signal(signal.SIGINT)
            told.extend(ids)

    with start_beanlite(tmp_path, "--no-journal") as server, Live((server.host, server.port)) as live:
        with pytest.raises(KeyboardInterrupt):
            put_and_tell(live)
        assert (told, live.stats()["total-jobs"]) == (list(range(1, 501)), 500)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
