"""The fuzzer's corpus, replayed, and a short run of the fuzzer itself. For a long one see ``__main__``."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.grammar import check_answers, read_replies, read_requests
from tests.fuzz.wire import check

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus").iterdir())
SECONDS = 4


def test_the_corpus() -> None:
    """Every input that was once found worth keeping."""
    assert len(CORPUS) > 50
    for path in CORPUS:
        try:
            check(path.read_bytes())
        except Exception as error:
            error.add_note(f"with {path}")
            raise


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not to be had for this Python")
def test_new_inputs(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """A few seconds of new inputs, other ones each time."""
    limits = [f"-max_total_time={SECONDS}", "-rss_limit_mb=1024"]
    command = [sys.executable, "-m", "tests.fuzz", *limits, str(tmp_path), str(HERE / "corpus")]
    fuzzer = subprocess.run(command, check=False, cwd=HERE.parent.parent, capture_output=True, text=True, timeout=60)
    done = re.search(r"Done (\d+) runs", fuzzer.stderr)
    assert fuzzer.returncode == 0, f"{fuzzer.stdout}\n{fuzzer.stderr[-5000:]}"
    assert done
    record_property("fuzzed inputs", int(done[1]))


# -- the judge: what it has to see


def test_requests_are_told_apart() -> None:
    data = (
        b"use a\r\nput 0 0 1 3\r\n\r\n\r\r\nput 0 0 1 999\r\n"
        + b"x" * 1001
        + b"put 0 0 1 x\r\n"
        + b"y" * 300
        + b"\r\nput"
    )
    requests = read_requests(data, 100)
    assert requests.complete == [b"use", b"put", b"put", b"put", b"y" * 300]
    assert requests.amid_line
    assert not requests.quits
    assert read_requests(b"put 0 0 1 3\r\nab", 100).missing == 3
    assert read_requests(b"stats\r\nquitting\r\nstats\r\n", 100) == ([b"stats"], 0, False, True)


@pytest.mark.parametrize(
    "replies",
    [
        b"USING a",
        b"INSERTED 0\r\n",
        b"INSERTED 1 \r\n",
        b"OKAY\r\n",
        b"\r\n",
        b"RESERVED 1 3\r\nab\r\n",
        b"FOUND 1 3\r\nabcd\r\n",
        b"OK 4\r\nabc\n\r\n",
        b"OK 7\r\n---\na: \r\n",
    ],
)
def test_what_is_no_reply(replies: bytes) -> None:
    with pytest.raises(AssertionError):
        read_replies(replies)


def test_replies_are_told_apart() -> None:
    data = b"USING a\r\nRESERVED 1 4\r\n\r\nOK\r\nKICKED\r\nKICKED 3\r\nOK 9\r\n---\na: 1\n\r\n"
    assert read_replies(data) == [b"USING", b"RESERVED", b"KICKED", b"KICKED", b"OK"]


def test_a_reply_to_another_request() -> None:
    check_answers([b"use", b"gibberish"], [b"USING", b"UNKNOWN_COMMAND"])
    with pytest.raises(AssertionError, match="request 1"):
        check_answers([b"use", b"delete"], [b"USING", b"RELEASED"])
