"""Every transcript, played against beanlite and against the reference, each on a fresh server of its own.

Some are played against beanlite with a PostgreSQL database as well; ``ALL_ON_POSTGRESQL=1`` makes that all of them.

The sessions run in the background, several at a time, because many of them wait; a test waits for its own.
"""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.session import Mismatch, Session
from tests.conformance.transcript import Transcript, read_all
from tests.support.needs import need
from tests.support.postgres import PART, Cluster, programs
from tests.support.servers import (
    RunningServer,
    beanstalkd_program,
    beanstalkd_version,
    start_beanlite,
    start_beanstalkd,
)

HERE = Path(__file__).parent
TRANSCRIPTS = read_all(HERE / "transcripts")
FILE_FLAGS = {"--no-journal", "--history", "-b", "-f", "-F"}
SESSIONS_AT_ONCE = 12
# A starting server takes a whole core: more at once would only blur the times of the sessions under way.
STARTING = threading.Semaphore(2)

# Those whose flags are about the file, or about having none, have no meaning there.
ON_POSTGRESQL = [transcript for transcript in TRANSCRIPTS if not FILE_FLAGS & set(transcript.flags)][::PART]

TRIES = 8  # a machine or a disk that stands still for some tenths of a second makes a difference, too

Outcome = list[str]
"""What differed in each try; an empty string if nothing did."""
Outcomes = dict[tuple[str, str], "Future[Outcome]"]


def marked(transcript: Transcript, server: str) -> str:
    """Why the server is expected to differ, or an empty string."""
    if server != "beanstalkd":
        return ""
    if transcript.since_1_13 and beanstalkd_version() < (1, 13):
        return transcript.since_1_13
    return transcript.defect


def play_until_it_agrees(
    transcript: Transcript, server: str, directory: Path, cluster: Cluster | None = None
) -> Outcome:
    """Play a transcript; a timed one that unexpectedly differs again, each time on a fresh server."""
    outcome = [play(transcript, server, directory / "1", cluster)]
    may_agree = transcript.is_timed() and not marked(transcript, server)
    while outcome[-1] and may_agree and len(outcome) < TRIES:
        outcome.append(play(transcript, server, directory / str(len(outcome) + 1), cluster))
    return outcome


def start(server: str, directory: Path, transcript: Transcript, cluster: Cluster | None) -> RunningServer:
    """A fresh server; ``cluster`` is for those that have their jobs in PostgreSQL."""
    with STARTING:
        if server == "beanstalkd":
            return start_beanstalkd(directory, *transcript.flags)
        if server == "beanlite":
            return start_beanlite(directory, *transcript.flags)
        assert cluster is not None
        flags = ("--database", cluster.new_database(), "--require-sync", "false")
        return start_beanlite(directory, *transcript.flags, *flags)


def play(transcript: Transcript, server: str, directory: Path, cluster: Cluster | None) -> str:
    """Play a transcript on a fresh server; what differs, or an empty string. AssertionError: a bug of the server's."""
    running = start(server, directory, transcript, cluster)
    difference = ""
    with running:
        try:
            Session(running).play(transcript)
        except Mismatch as mismatch:
            difference = f"{transcript.title} ({transcript.rule})\n{mismatch}"
    assert "Traceback" not in running.log_text(), f"{transcript.name}: {running.log_text()}"
    return difference


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """The outcomes of all chosen sessions, which start now: the long ones first."""
    chosen: list[tuple[Transcript, str]] = [
        (item.callspec.params["transcript"], item.callspec.params["server"])  # type: ignore[misc]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function in {test_transcript, test_on_postgresql}
    ]
    on_postgresql = programs() is not None and any(server == "postgresql" for _, server in chosen)
    cluster: Cluster | None = request.getfixturevalue("postgres") if on_postgresql else None
    chosen.sort(key=lambda pair: -pair[0].waits_s())
    if beanstalkd_program() is None:
        chosen = [pair for pair in chosen if pair[1] != "beanstalkd"]
    if cluster is None:
        chosen = [pair for pair in chosen if pair[1] != "postgresql"]
    with ThreadPoolExecutor(SESSIONS_AT_ONCE) as pool:
        yield {
            (transcript.name, server): pool.submit(
                play_until_it_agrees,
                transcript,
                server,
                tmp_path_factory.mktemp(transcript.name.replace("/", "-")),
                cluster,
            )
            for transcript, server in chosen
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("server", ["beanlite", "beanstalkd"])
@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.name)
def test_transcript(
    transcript: Transcript, server: str, outcomes: Outcomes, record_property: Callable[[str, object], None]
) -> None:
    """The server does what the transcript says; where it is marked, the reference does not."""
    need(server != "beanstalkd" or beanstalkd_program(), "beanstalkd is not installed")
    mark = marked(transcript, server)
    record_property("transcript server", server)
    *before, difference = outcomes[transcript.name, server].result()
    record_property("transcript played again", before)
    if mark and difference:
        pytest.xfail(mark)
    if mark:
        pytest.fail(f"{transcript.name}: marked as different, but the reference agrees: {mark}")
    if difference:
        pytest.fail(difference, pytrace=False)


@pytest.mark.parametrize("server", ["postgresql"])
@pytest.mark.parametrize("transcript", ON_POSTGRESQL, ids=lambda transcript: transcript.name)
def test_on_postgresql(transcript: Transcript, server: str, outcomes: Outcomes) -> None:
    """Clients do not notice where the jobs are."""
    need(programs(), "PostgreSQL is not installed")
    *_, difference = outcomes[transcript.name, server].result()
    if difference:
        pytest.fail(difference, pytrace=False)


@pytest.mark.parametrize("defect", sorted({transcript.defect for transcript in TRANSCRIPTS if transcript.defect}))
def test_a_defect_of_the_reference_is_listed_as_a_difference(defect: str) -> None:
    """What is marked as a defect of the reference is a difference that users are told of, in the same words."""
    page = (HERE.parent.parent / "docs/differences.md").read_text()
    listed = [" ".join(item.split()) for item in re.split(r"\n- |\n\n", page)]
    assert defect in listed
