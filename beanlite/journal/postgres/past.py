"""Answers operators' queries about the past of a queue in a database, whether a server is running on it or not.

The answers have the same form as a server's (docs/protocol.md).
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from beanlite.core.events import NOTE, POLICY, SCHEDULE
from beanlite.core.where import Where
from beanlite.errors import JournalRefused
from beanlite.journal.columns import SHOWN, as_list
from beanlite.journal.postgres.link import Link
from beanlite.journal.postgres.reader import connected, telling
from beanlite.journal.postgres.schema import has_history
from beanlite.journal.told import BY_SCHEDULE, FOR, OPERATOR, Record, event_of, job_of

# How long another program may lock a table: somebody waits for the answer.
_PATIENCE: Final = (
    "SELECT set_config('lock_timeout', '5s', false), set_config('default_transaction_read_only', 'on', false)"
)
_JOB: Final = f"""
    SELECT id, tube, state, pri, delay_s, ttr_s, {as_list(tuple(SHOWN))}, tries, size,
           created_at, age_s, in_state_s, greatest(due_in_s, 0) AS left_s, holder, holder_conn, why, note, body
    FROM all_jobs WHERE id = $1
"""
# Events, with the fields that a server sends to watchers.
_EVENTS: Final = f"""
    SELECT n, at, job AS id, tube, what, by, conn, pri, delay_s,
           CASE WHEN what IN ('{POLICY}', '{SCHEDULE}') THEN body_text(body) END AS change,
           CASE what WHEN '{NOTE}' THEN coalesce(body_text(body), '') END AS note
    FROM history
"""
_HAS_BODY: Final = "what = 'delete' AND body IS NOT NULL"
# When the first event happened that no operator caused.
_KEPT: Final = f"SELECT at FROM history WHERE by IS NULL OR NOT starts_with(by, '{OPERATOR}') ORDER BY n LIMIT 1"
_DELETIONS: Final = f"""
    SELECT job, n, length(body) AS size FROM history WHERE n > $1 AND n <= $2 AND {_HAS_BODY} ORDER BY n
"""
_BODIES: Final = "SELECT n, body FROM history WHERE n = ANY ($1) AND body IS NOT NULL"
_DELETED: Final = f"SELECT tube, pri, body FROM history WHERE job = $1 AND {_HAS_BODY} ORDER BY n DESC LIMIT 1"
# The address of a client, without the mark of operators.
_ADDRESS: Final = f"CASE WHEN starts_with(by, '{OPERATOR}') THEN substr(by, {len(OPERATOR) + 1}) ELSE by END || ' '"
# Who has done something, without the mark of a schedule: it may be named for.
_DOER: Final = f"CASE WHEN starts_with(by, '{BY_SCHEDULE}') THEN substr(by, {len(BY_SCHEDULE) + 1}) ELSE by END"
# The conditions that events meet, with {} for the parameter. A person is told behind FOR, a client by its host or
# address.
_CONDITIONS: Final = {
    "id": "job = {}::bigint",
    "tube": "tube = {}::text",
    "what": "what = ANY ({}::text[])",
    "by": f"""(strpos({_DOER}, '{FOR}') > 0 AND substr({_DOER}, strpos({_DOER}, '{FOR}') + {len(FOR)}) = {{0}}::text
        OR starts_with({_ADDRESS}, {{0}}::text || ':') OR starts_with({_ADDRESS}, '[' || {{0}}::text || ']:')
        OR starts_with({_ADDRESS}, {{0}}::text || ' '))""",
    "operators": f"starts_with(by, '{OPERATOR}') AND {{}}::boolean",
    "since_at": "at >= {}::float8",
    "until_at": "at <= {}::float8",
    "ids": "job = ANY ({}::bigint[])",
}
# Events, and bodies, that are read at a time.
_EVENTS_READ: Final = 1000
_BODIES_READ: Final = 100
# The recent totals of some tubes, by the hour or by the day; and of all tubes together. Not those that are yet to come,
# as a clock that was ahead leaves them.
_NOW: Final = "extract(epoch FROM clock_timestamp())"
_RECENT: Final = f"span_s = $1 AND at > {_NOW} - $1 * $2 AND at <= {_NOW}"
_TOTALS: Final = f"""
    SELECT at, tube, put, reserved, deleted, released, timed_out, buried, kicked, waited_s, held_s,
           dead, expired, refused, duplicates, client_gone, delay_over
    FROM totals WHERE {_RECENT} AND tube = ANY ($3) ORDER BY at
"""
_TOTALS_OF_ALL: Final = f"""
    SELECT at, sum(put)::bigint AS put, sum(deleted)::bigint AS deleted, sum(delay_over)::bigint AS delay_over
    FROM totals WHERE {_RECENT} GROUP BY at ORDER BY at
"""
_HAS_TUBE: Final = (
    "SELECT EXISTS (SELECT FROM jobs WHERE tube = $1) OR EXISTS (SELECT FROM pauses WHERE tube = $1) AS known"
)


class PastLook:
    """A read-only view of a database. Its methods raise BeanliteError if it can't be read."""

    def __init__(self, runner: asyncio.Runner, link: Link, name: str) -> None:
        self._runner = runner
        self._link = link
        self._name = name

    def show_job(self, job_id: int, events: int = 0) -> Record | None:
        """Return everything known about a job, with the last ``events`` of its history, 0 meaning all.

        One that is gone may still have a history.
        """
        rows = self._rows(_JOB, job_id)
        history = self._rows(f"{_EVENTS} WHERE job = $1 ORDER BY n DESC LIMIT $2", job_id, events or None)[::-1]
        if not rows and not history:
            return None
        return {**(job_of(rows[0]) if rows else {"id": job_id}), "history": [event_of(row) for row in history]}

    def history(self, which: Mapping[str, Any], limit: int) -> Iterator[Record]:
        """Yield the last ``limit`` events that meet the conditions, 0 meaning all, the oldest first."""
        where, values = _conditions_of(which)
        if "where" in which:
            yield from self._events_with_bodies(which, limit)
            return
        last = f"SELECT n FROM history WHERE {where} ORDER BY n DESC LIMIT ${len(values) + 1}"
        (bounds,) = self._rows(f"SELECT min(n) - 1 AS n, max(n) AS end FROM ({last}) AS last", *values, limit or None)
        after, end = len(values) + 1, len(values) + 2
        events = f"{_EVENTS} WHERE n > ${after} AND n <= ${end} AND {where} ORDER BY n LIMIT {_EVENTS_READ}"
        rows: list[Record] = [bounds]
        while rows and rows[-1]["n"] is not None:
            rows = self._rows(events, *values, rows[-1]["n"], bounds["end"])
            yield from map(event_of, [dict(row) for row in rows])

    def _events_with_bodies(self, which: Mapping[str, Any], limit: int) -> Iterator[Record]:
        """Yield the last events likewise whose bodies have certain values; all of the bodies are read for that."""
        numbers = [n for n, _ in self._deletions_of(which, limit)]
        for at in range(0, len(numbers), _EVENTS_READ):
            rows = self._rows(f"{_EVENTS} WHERE n = ANY ($1) ORDER BY n", numbers[at : at + _EVENTS_READ])
            yield from map(event_of, rows)

    def deletions_of(self, which: Mapping[str, Any]) -> list[int]:
        """Return the jobs whose deletions meet the conditions, and whose bodies are kept."""
        return [job for _, job in self._deletions_of(which, 0)]

    def _deletions_of(self, which: Mapping[str, Any], limit: int) -> list[tuple[int, int]]:
        """Return the number and the job of each of the last ``limit`` such deletions, in order; 0: of all."""
        where, values = _conditions_of(which)
        fits = Where(which["where"]).fits if "where" in which else lambda _: True
        body = "body" if "where" in which else "NULL AS body"
        statement = f"""
            SELECT n, job, {body} FROM history
            WHERE n < ${len(values) + 1} AND {where} AND {_HAS_BODY} ORDER BY n DESC LIMIT {_BODIES_READ}
        """
        matches: list[tuple[int, int]] = []
        before = (1 << 63) - 1
        while rows := self._rows(statement, *values, before):
            matches += [(row["n"], row["job"]) for row in rows if fits(row["body"])]
            before = rows[-1]["n"]
            if limit and len(matches) >= limit:
                break
        return matches[: limit or None][::-1]

    def kept_since(self) -> float | None:
        """Return since when what clients do is kept; None: it is not."""
        rows = self._rows(_KEPT)
        return float(rows[0]["at"]) if rows else None

    def end_of_history(self) -> int:
        """Return the number of the last event; later ones have higher numbers."""
        return int(self._rows("SELECT coalesce(max(n), 0) AS n FROM history")[0]["n"])

    def deletions(self, after: int, end: int) -> list[tuple[int, int, int]]:
        """Return the deletions with a body that have numbers above ``after`` up to ``end``: job, number, size."""
        return [(row["job"], row["n"], row["size"]) for row in self._rows(_DELETIONS, after, end)]

    def bodies(self, events: Sequence[int]) -> dict[int, bytes]:
        """Return the bodies that are kept with events, by their numbers."""
        return {row["n"]: row["body"] for row in self._rows(_BODIES, events)}

    def deleted_job(self, job_id: int) -> Record | None:
        """Return what the history knows of a job that was deleted: its tube, pri and body; None without a body."""
        rows = self._rows(_DELETED, job_id)
        return rows[0] if rows else None

    def alive(self) -> Record:
        """Return the server that has the lease, or had it last."""
        return self._rows("SELECT * FROM alive")[0]

    def has_tube(self, tube: str) -> bool:
        """Whether there is a job in a tube, or a pause of it."""
        return bool(self._rows(_HAS_TUBE, tube)[0]["known"])

    def totals(self, span_s: int, spans: int, tubes: Sequence[str]) -> list[Record]:
        """Return the totals of these tubes in the last ``spans`` hours or days, as given by ``span_s``."""
        return self._rows(_TOTALS, span_s, spans, tubes)

    def totals_of_all(self, span_s: int, spans: int) -> list[Record]:
        """Return the totals of all tubes together, likewise."""
        return self._rows(_TOTALS_OF_ALL, span_s, spans)

    def _rows(self, statement: str, *values: object) -> list[Record]:
        with telling(self._name):
            return [dict(row) for row in self._runner.run(self._link.rows(statement, *map(_storable, values)))]


def _conditions_of(which: Mapping[str, Any]) -> tuple[str, list[object]]:
    """Return conditions of events in SQL, and their parameters."""
    keys = [key for key in which if key in _CONDITIONS]
    conditions = [_CONDITIONS[key].format(f"${place}") for place, key in enumerate(keys, 1)]
    return " AND ".join(conditions or ["true"]), [which[key] for key in keys]


def _storable(value: object) -> object:
    """Return a value to search for; what no text in the database can contain becomes what none contains."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode().replace("\0", "?")
    return value


@contextmanager
def looking(url: str) -> Iterator[PastLook]:
    """Connect for reading only. BeanliteError: that fails. JournalRefused: there is no queue, or an older one."""
    with connected(url) as (runner, link, name):
        with telling(name):
            if not runner.run(has_history(link, name)):
                raise JournalRefused(f"{name} can be looked into when a server of this version has served it")
            runner.run(link.rows(_PATIENCE))
        yield PastLook(runner, link, name)
