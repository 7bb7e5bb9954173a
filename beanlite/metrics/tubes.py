"""The metrics of each tube: a limited number of tubes have series of their own, and the others are summed.

There may be very many of these lines, and the library takes as long to format one as the server takes for a command.
So they are formatted here, in slices.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from beanlite.core.engine import Engine
from beanlite.core.job import BURIED, DELAYED, READY, RESERVED
from beanlite.core.snapshot import first_s, policy_counts, shut_words
from beanlite.core.tube import Tube

# Tubes that are examined in one go.
SLICE: Final = 50
# The label for all tubes that have no series of their own; it is not a possible name of a tube.
REST: Final = "[rest]"
# The events that are counted, which are the names of attributes of a tally.
EVENTS: Final = (
    "put", "reserved", "deleted", "released", "timed_out", "client_gone", "buried", "kicked", "delay_over",
)  # fmt: skip
# What policies do to jobs and puts, counted likewise, each with its meaning.
POLICY_COUNTS: Final = {
    "dead": "Jobs of a tube that came back after too many tries.",
    "expired": "Jobs of a tube that became too old.",
    "refused": "Puts into a tube that would have been more jobs than it may have.",
    "duplicates": "Puts into a tube whose job was there already.",
}
# Each metric with its type and meaning, in the order of the page.
_METRICS: Final = {
    "beanlite_tube_jobs": (
        "gauge",
        "Jobs of a tube by state; the tube [rest] is all that have no series of their own.",
    ),
    "beanlite_tube_oldest_ready_seconds": (
        "gauge",
        "For how long the job has been ready that is next to be reserved from a tube; 0 if none is ready.",
    ),
    "beanlite_tube_watching_clients": ("gauge", "Clients that watch a tube, and so would be given its jobs."),
    "beanlite_tube_waiting_clients": ("gauge", "Clients that wait for a job of a tube."),
    "beanlite_tube_paused": ("gauge", "1 while a tube is paused."),
    "beanlite_tube_job_events_total": (
        "counter",
        "What has happened to jobs of a tube since it was made or the server started.",
    ),
    "beanlite_tube_shut": ("gauge", "1 while jobs of a tube are ready, and a pause or a policy keeps them waiting."),
    **{f"beanlite_tube_{name}_total": ("counter", meaning) for name, meaning in POLICY_COUNTS.items()},
}


def tube_lines(engine: Engine, most: int, clock: Callable[[], int]) -> Iterator[str]:
    """Yield the lines of the tubes in slices, some of them empty; ``most`` tubes have series of their own.

    Those are the tubes that were made first, so that a tube does not lose its series to another one while it exists.
    """
    own = list(islice(engine.tubes.values(), most))
    lines: dict[str, list[str]] = {name: [] for name in _METRICS}
    for start in range(0, len(own), SLICE):
        now_ns = clock()
        for tube in own[start : start + SLICE]:
            if engine.tubes.get(tube.name) is tube:
                _tell(engine, tube, now_ns, lines)
        yield ""
    rest = _rest(engine, most)
    if rest is not None:
        lines["beanlite_tube_jobs"] += _by_state(REST, *rest)
    for name, (kind, meaning) in _METRICS.items():
        yield f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n" + "".join(lines[name])


def _tell(engine: Engine, tube: Tube, now_ns: int, lines: dict[str, list[str]]) -> None:
    name = tube.name.decode()  # no character that a name may have needs escaping
    lines["beanlite_tube_jobs"] += _by_state(name, *_counts(tube))
    of_tube = f'{{tube="{name}"}}'
    for metric, value in (
        ("beanlite_tube_oldest_ready_seconds", first_s(engine, tube.ready, now_ns) or 0),
        ("beanlite_tube_watching_clients", tube.watching),
        ("beanlite_tube_waiting_clients", len(tube.waiting)),
        ("beanlite_tube_paused", int(tube.pause_until_ns > 0)),
    ):
        lines[metric].append(f"{metric}{of_tube} {value}\n")
    tallies = [tally for tally in (tube.taken, tube.tally) if tally is not None]
    lines["beanlite_tube_job_events_total"] += [
        f'beanlite_tube_job_events_total{{tube="{name}",event="{event}"}} '
        f"{sum(getattr(tally, event) for tally in tallies)}\n"
        for event in EVENTS
    ]
    if tube.shut and len(tube.ready):
        lines["beanlite_tube_shut"] += [
            f'beanlite_tube_shut{{tube="{name}",why="{word}"}} 1\n' for word in shut_words(tube)
        ]
    counts = policy_counts(tube)
    if tube.rules is not None or any(counts):
        for what, count in zip(POLICY_COUNTS, counts, strict=True):
            metric = f"beanlite_tube_{what}_total"
            lines[metric].append(f"{metric}{of_tube} {count}\n")


def _counts(tube: Tube) -> tuple[int, int, int, int]:
    return len(tube.ready), tube.reserved, len(tube.delayed), len(tube.buried)


def _rest(engine: Engine, most: int) -> tuple[int, int, int, int] | None:
    """Return the number of jobs in each state in tubes without series of their own; None if there are no such tubes."""
    if len(engine.tubes) <= most:
        return None
    counts = engine.counts
    ready = len(engine.jobs) - counts.reserved - counts.delayed - counts.buried
    reserved, delayed, buried = counts.reserved, counts.delayed, counts.buried
    for tube in islice(engine.tubes.values(), most):
        of_tube = _counts(tube)
        ready -= of_tube[0]
        reserved -= of_tube[1]
        delayed -= of_tube[2]
        buried -= of_tube[3]
    return ready, reserved, delayed, buried


def _by_state(tube: str, ready: int, reserved: int, delayed: int, buried: int) -> list[str]:
    states = ((READY, ready), (RESERVED, reserved), (DELAYED, delayed), (BURIED, buried))
    return [f'beanlite_tube_jobs{{tube="{tube}",state="{state.value}"}} {jobs}\n' for state, jobs in states]
