"""Samples of a server's state, with rates computed from one sample to the next."""

import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Final

from beanlite.beanstalk.client import TIMEOUT_S
from beanlite.console import listing
from beanlite.console.filters import Record
from beanlite.console.several import Place, reach, reach_only, summed
from beanlite.core.findings import NOTE, SEVERITIES

# Seconds between samples.
EVERY_S: Final = 1.0
# How many rates of a tube are kept, for its trend.
TREND: Final = 10
# Most tubes are idle, and share this.
_IDLE: Final = (0.0, 0.0)
# For how many samples latencies are kept: about a minute.
_LATENCIES: Final = 60
# What the server tells itself: commands don't tell how many jobs are reserved in batches, or deleted by operators.
_FLOW_RATES: Final = ("puts_per_s", "reserves_per_s", "deletes_per_s")
_SERVER_RATES: Final = {"batches_per_s": "journal-batches"}
# After listing the tubes, wait this many times as long as it took before listing them again, to spare servers with
# many.
_PAUSE_FACTOR: Final = 10
# Seconds from one diagnosis to the next, at least.
_DIAGNOSED_S: Final = 5.0
# How long a server may take for a reply to a screen: nobody can quit before it has come.
WITHIN_S: Final = 3.0
_TUBE_RATES: Final = {"puts_per_s": "total_jobs", "deletes_per_s": "deletes"}


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a server at one moment."""

    at_s: float
    stats: Record
    """The reply to ``stats``, batches per second since the previous sample, and jobs per second of the last ten."""
    tubes: list[Record]
    """All tubes, likewise; the same list as in the previous sample, unless it was time to list them again.

    ``trend`` has the last rates of each, and ``wrong`` the kinds of findings of which it is one of the worst.
    """
    tubes_at_s: float
    """When the tubes were listed."""
    findings: list[Record]
    """What is wrong, the worst first, without notes; as of some seconds ago."""
    latencies_s: list[float]
    """How long a command that does nothing took, in recent samples; this one is the last."""

    @property
    def latency(self) -> tuple[float, float, float]:
        """The latest latency, the median and the worst."""
        return self.latencies_s[-1], median(self.latencies_s), max(self.latencies_s)


class Sampler:
    """Takes samples over a connection. BeanliteError: the server can't be reached, or refuses a command."""

    def __init__(self, place: Place, *, is_one_of_several: bool = False, within_s: float = WITHIN_S) -> None:
        """Connect; replies have to come within a time."""
        self._server = (reach if is_one_of_several else reach_only)(place, within_s=within_s)
        self._name = {"server": place.name} if is_one_of_several else {}
        self._latencies_s: deque[float] = deque(maxlen=_LATENCIES)
        self._before: Sample | None = None
        self._list_at_s = 0.0
        """When it is time to list the tubes again."""
        self._flow: Record = {}
        """How many jobs come and go, as of when the tubes were listed."""
        self._findings: list[Record] = []
        self._diagnose_at_s = 0.0
        """When it is time to ask again what is wrong."""

    def sample(self) -> Sample:
        """Take a sample."""
        began_s = time.perf_counter()
        self._server.do_nothing()
        self._latencies_s.append(time.perf_counter() - began_s)
        before, at_s = self._before, time.monotonic()
        stats = self._server.stats()
        if self._name:  # only what can be added up is told of several
            stats = summed([stats])
        if before is not None:
            stats |= _rates(stats, before.stats, _SERVER_RATES, at_s - before.at_s)
        if before is None or at_s >= self._list_at_s:
            flow = self._server.ask("show-flow", {"range": "5min"})
            self._flow = {rate: flow[rate] for rate in _FLOW_RATES}
            tubes, tubes_at_s = self._list_tubes(before, at_s), at_s
        else:
            tubes, tubes_at_s = before.tubes, before.tubes_at_s
        if at_s >= self._diagnose_at_s:
            self._findings = self._diagnose(at_s)
        mark(tubes, self._findings)
        self._before = Sample(at_s, stats | self._flow, tubes, tubes_at_s, self._findings, list(self._latencies_s))
        return self._before

    def _list_tubes(self, before: Sample | None, at_s: float) -> list[Record]:
        tubes = listing.every_tube(self._server, {})
        ended_s = time.monotonic()
        self._list_at_s = ended_s + _PAUSE_FACTOR * (ended_s - at_s)
        for tube in tubes:
            tube.update(self._name)
        if before is not None:
            earlier = {tube["name"]: tube for tube in before.tubes}
            for tube in tubes:
                # A tube that did not exist before has had all its jobs since then.
                was = earlier.get(tube["name"], {})
                tube.update(_rates(tube, was, _TUBE_RATES, at_s - before.tubes_at_s))
                rates = (tube["puts_per_s"], tube["deletes_per_s"])
                tube["trend"] = (*was.get("trend", ())[1 - TREND :], rates if any(rates) else _IDLE)
        return tubes

    def _diagnose(self, at_s: float) -> list[Record]:
        findings = self._server.diagnose({})["findings"]
        ended_s = time.monotonic()
        self._diagnose_at_s = ended_s + max(_DIAGNOSED_S, _PAUSE_FACTOR * (ended_s - at_s))
        return [{**self._name, **finding} for finding in findings if finding["severity"] != NOTE]

    def close(self) -> None:
        """Close the connection."""
        self._server.close()


def sample_twice(place: Place, *, is_one_of_several: bool) -> Sample:
    """Return a sample with rates, after the second that it takes to measure them. BeanliteError: that fails."""
    within_s = WITHIN_S if is_one_of_several else TIMEOUT_S  # a single server is not tried again
    with closing(Sampler(place, is_one_of_several=is_one_of_several, within_s=within_s)) as sampler:
        sampler.sample()
        time.sleep(EVERY_S)
        return sampler.sample()


def merged(samples: Collection[Sample]) -> Sample:
    """Return the samples of several servers as one; that of a single one as it is."""
    if len(samples) == 1:
        return next(iter(samples))
    now_s = max(sample.at_s for sample in samples)
    findings = [finding for sample in samples for finding in sample.findings]
    findings.sort(key=lambda finding: SEVERITIES.index(finding["severity"]))
    latencies_s = [latency_s for sample in samples for latency_s in sample.latencies_s]
    return Sample(
        now_s,
        summed(sample.stats for sample in samples),
        [tube for sample in samples for tube in sample.tubes],
        now_s - max(sample.at_s - sample.tubes_at_s for sample in samples),
        findings,
        [*latencies_s, max(sample.latencies_s[-1] for sample in samples)],
    )


def mark(tubes: list[Record], findings: list[Record]) -> None:
    """Note at each tube what is wrong with it."""
    wrong: dict[str, list[str]] = {}
    for finding in findings:
        for place in finding["worst"]:
            wrong.setdefault(place["tube"], []).append(finding["kind"])
    for tube in tubes:
        tube["wrong"] = ", ".join(wrong.get(tube["name"], ()))


def _rates(now: Record, before: Record, rates: Mapping[str, str], passed_s: float) -> Record:
    """Return the rates per second; 0 for a counter that was reset, as when a tube was dropped and made again."""
    return {name: max(0.0, now[key] - before.get(key, 0)) / passed_s for name, key in rates.items()}
