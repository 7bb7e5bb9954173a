"""The transcripts of the protocol, played against a router in front of one server: the same, byte for byte, but ids.

Its number is 63, so that the ids which transcripts name without having seen them are those of a server.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.session import Mismatch, Session
from tests.conformance.transcript import Transcript, read_all
from tests.router.routers import start_router
from tests.support.servers import start_beanlite

TRANSCRIPTS = read_all(Path(__file__).parent.parent / "conformance" / "transcripts")
SESSIONS_AT_ONCE = 6
TRIES = 8  # as for those of servers


def play(transcript: Transcript, directory: Path) -> str:
    """Play a transcript; return what differs, or an empty string."""
    difference = ""
    server = start_beanlite(directory / "server", *transcript.flags)
    with start_router(directory / "router", [server], first=63) as router:
        try:
            Session(router).play(transcript)
        except Mismatch as mismatch:
            difference = f"{transcript.title} ({transcript.rule})\n{mismatch}"
    assert "Traceback" not in router.log_text() + server.log_text()
    return difference


def play_until_it_agrees(transcript: Transcript, directory: Path) -> str:
    difference = play(transcript, directory / "1")
    for again in range(1, TRIES if transcript.is_timed() else 1):
        if difference:
            difference = play(transcript, directory / str(again + 1))
    return difference


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The outcomes of all chosen transcripts, which are played at the same time: the long ones first."""
    chosen = [item.callspec.params["transcript"] for item in request.session.items if item.function is test_transcript]
    chosen.sort(key=lambda transcript: -transcript.waits_s())
    with ThreadPoolExecutor(SESSIONS_AT_ONCE) as pool:
        yield {
            transcript.name: pool.submit(
                play_until_it_agrees, transcript, tmp_path_factory.mktemp(transcript.name.replace("/", "-"))
            )
            for transcript in chosen
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.name)
def test_transcript(transcript, outcomes):
    difference = outcomes[transcript.name].result()
    if difference:
        pytest.fail(difference, pytrace=False)
