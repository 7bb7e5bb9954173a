"""The findings as metrics: how many tubes each kind is about, and the worst of these by name."""

from collections.abc import Callable, Iterator
from typing import Final

from beanlite.core.diagnosis import Diagnosis
from beanlite.core.engine import Engine
from beanlite.core.findings import KINDS, Finding
from beanlite.core.job import SECOND_NS

# For this long the findings of one diagnosis are told.
FRESH_NS: Final = 5 * SECOND_NS
# The most tubes of each kind that have series of their own.
NAMED: Final = 20


class Diagnosed:
    """The lines of the findings, of which a diagnosis is made only if the last one is some seconds old."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._lines = ""
        self._made_ns = 0

    def lines(self, *, backup_failed: bool) -> Iterator[str]:
        """Yield the lines, after empty ones for the slices of a diagnosis."""
        if not self._lines or self._clock() >= self._made_ns + FRESH_NS:
            self._made_ns = self._clock()
            tubes = self._engine.tubes_in_order()
            diagnosis = Diagnosis(self._engine, self._made_ns, named=NAMED)
            place = 0
            while place < len(tubes):
                place = diagnosis.look(tubes, place, self._clock())
                yield ""
            self._lines = _told(diagnosis.findings(backup_failed=backup_failed))
        yield self._lines


def _told(findings: list[Finding]) -> str:
    tubes = dict.fromkeys(KINDS, 0) | {finding.kind: finding.tubes or 1 for finding in findings}
    lines = [
        "# HELP beanlite_findings Tubes that a finding is about; 1 if it is about the server, 0 if there is none.\n",
        "# TYPE beanlite_findings gauge\n",
        *(f'beanlite_findings{{kind="{kind}"}} {number}\n' for kind, number in tubes.items()),
        "# HELP beanlite_finding Jobs that a finding is about, in each of the tubes with the most.\n",
        "# TYPE beanlite_finding gauge\n",
        *(
            f'beanlite_finding{{kind="{each.kind}",severity="{place.severity}",tube="{place.tube}"}} {place.jobs}\n'
            for each in findings
            for place in each.worst
        ),
    ]
    return "".join(lines)
