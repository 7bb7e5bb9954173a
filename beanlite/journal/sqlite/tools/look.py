"""Answers operators' queries about a database file, whether a server is running on it or not.

The answers have the same form as a server's (docs/protocol.md). To be used in a separate process: in the server's own,
closing the file would drop SQLite's locks on it.
"""

import fnmatch
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from beanlite.core.events import NOTE, POLICY, SCHEDULE
from beanlite.core.notes import first_line
from beanlite.core.policies import PolicyRow
from beanlite.core.where import Paths, Where
from beanlite.errors import JournalRefused
from beanlite.journal.columns import COUNTERS, SHOWN, TEXTS, as_list
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.fileformat import damaged, refused, text_of
from beanlite.journal.sqlite.file.migrations import check_texts, read_version
from beanlite.journal.sqlite.file.policy_tables import read_policies
from beanlite.journal.sqlite.tools.reading import reading
from beanlite.journal.told import BY_SCHEDULE, FOR, OPERATOR, Record, event_of, first_line_of, job_of


def _is_of_host(address: str, host: str) -> str:
    """Return a condition in SQL, as ``core.tube.is_of_host`` has it."""
    forms = f"{host} || ':'", f"'[' || {host} || ']:'", f"{host} || ' '"
    return f"({' OR '.join(f'instr({address} || char(32), {form}) = 1' for form in forms)})"


# The facts about a job. A preview, of the length requested, is selected separately.
_JOB: Final = f"""
    SELECT id, tube, state, pri, delay_s, ttr_s, {as_list(tuple(SHOWN))}, tries, size,
           created_at, age_s, in_state_s, max(due_in_s, 0) AS left_s, holder, holder_conn, why
"""
# Events, with the fields that a server sends to watchers.
_EVENTS: Final = f"""
    SELECT n, at, job AS id, tube, what, by, conn, pri, delay_s,
           CASE WHEN what IN ('{POLICY}', '{SCHEDULE}') THEN CAST(body AS TEXT) END AS change,
           CASE what WHEN '{NOTE}' THEN coalesce(CAST(body AS TEXT), '') END AS note
    FROM history
"""
_HISTORY: Final = f"{_EVENTS} WHERE job = :id ORDER BY n DESC LIMIT :events"
# Deletions with their bodies; those of a part of the history, some of them, and that of a job.
_DELETIONS: Final = """
    SELECT job, n, length(body) AS size FROM history
    WHERE n > :after AND n <= :end AND what = 'delete' AND body IS NOT NULL ORDER BY n
"""
_BODIES: Final = """
    SELECT n, body FROM history WHERE n IN (SELECT value FROM json_each(:events)) AND body IS NOT NULL
"""
_DELETED: Final = """
    SELECT tube, pri, body FROM history
    WHERE job = :id AND what = 'delete' AND body IS NOT NULL ORDER BY n DESC LIMIT 1
"""
_HAS_BODY: Final = "what = 'delete' AND body IS NOT NULL"
# When the first event happened that no operator caused.
_KEPT: Final = f"SELECT at FROM history WHERE by IS NULL OR instr(by, '{OPERATOR}') <> 1 ORDER BY n LIMIT 1"
# Tubes, with their rates per minute over this hour and the previous one, and how many delayed jobs are due soon.
_TUBES: Final = """
    SELECT tubes.*, CAST(paused_until - (julianday('now') - 2440587.5) * 86400 AS INTEGER) AS pause_left_s,
           rates.put AS puts_per_min, rates.reserved AS reserves_per_min, rates.deleted AS deletes_per_min,
           rates.released AS releases_per_min, rates.timed_out AS timeouts_per_min, rates.buried AS buries_per_min,
           rates.client_gone AS client_gone_per_min, rates.wait_s, rates.hold_s,
           CASE WHEN :due_s IS NOT NULL THEN coalesce(soon.due, 0) END AS due
    FROM tubes LEFT JOIN rates USING (tube) LEFT JOIN (
        SELECT tube, count(*) AS due FROM all_jobs WHERE state = 'delayed' AND due_in_s <= :due_s GROUP BY tube
    ) AS soon USING (tube)
"""
# The conditions that the keys of a filter stand for. Their values are passed as parameters.
_CONDITIONS: Final = {
    "ids": "id IN (SELECT value FROM json_each(:ids))",
    "tube": "tube = :tube",
    "tube_like": "like_tube(CAST(tube AS BLOB))",
    "state": "state = :state",
    "older_s": "age_s >= :older_s",
    "newer_s": "age_s < :newer_s",
    "in_state_s": "in_state_s >= :in_state_s",
    "since_at": "since_at >= :since_at",
    "until_at": "since_at <= :until_at",
    "pri_min": "pri >= :pri_min",
    "pri_max": "pri <= :pri_max",
    "tries_min": "tries >= :tries_min",
    "reserves_min": "reserves >= :reserves_min",
    "timeouts_min": "timeouts >= :timeouts_min",
    "releases_min": "releases >= :releases_min",
    "why": "why = :why",
    "note_text": "instr(note, :note_text)",
    "holder": "state = 'reserved' AND holder_conn = :holder",
    "holder_host": f"state = 'reserved' AND {_is_of_host('holder', ':holder_host')}",
    "text": "instr(body, CAST(:text AS BLOB))",
    "where": "body IS NOT NULL AND fits(CAST(body AS BLOB))",
    "up_to_id": "id <= :up_to_id",
}
# Who has done something, without the mark of a schedule: it may be named for.
_DOER: Final = f"substr(by, 1 + {len(BY_SCHEDULE)} * (instr(by, '{BY_SCHEDULE}') = 1))"
# Likewise of the history. A person is told behind FOR, a client by its host or address.
_CONDITIONS_OF_EVENTS: Final = {
    "id": "job = :id",
    "tube": "tube = :tube",
    "what": "what IN (SELECT value FROM json_each(:what))",
    "by": f"""(instr({_DOER}, '{FOR}') AND substr({_DOER}, instr({_DOER}, '{FOR}') + {len(FOR)}) = :by
        OR {_is_of_host(f"substr(by, 1 + {len(OPERATOR)} * (instr(by, '{OPERATOR}') = 1))", ":by")})""",
    "operators": f"instr(by, '{OPERATOR}') = 1",
    "since_at": "at >= :since_at",
    "until_at": "at <= :until_at",
    "where": f"{_HAS_BODY} AND fits(CAST(body AS BLOB))",
    "ids": "job IN (SELECT value FROM json_each(:ids))",
}
# Events that are read at a time.
_EVENTS_READ: Final = 1000
# Recent totals, and not those that are yet to come, as a clock that was ahead leaves them.
_RECENT: Final = """
    span_s = :span_s AND at > CAST(strftime('%s', 'now') AS INTEGER) - :span_s * :spans
    AND at <= CAST(strftime('%s', 'now') AS INTEGER)
"""
# Those of some tubes, by the hour or by the day.
_TOTALS: Final = f"""
    SELECT at, tube, put, reserved, deleted, released, timed_out, buried, kicked, waited_s, held_s,
           dead, expired, refused, duplicates, client_gone, delay_over
    FROM totals WHERE {_RECENT} AND tube IN (SELECT value FROM json_each(:tubes)) ORDER BY at
"""
# Likewise of all tubes together.
_TOTALS_OF_ALL: Final = f"""
    SELECT at, sum(put) AS put, sum(deleted) AS deleted, sum(delay_over) AS delay_over
    FROM totals WHERE {_RECENT} GROUP BY at ORDER BY at
"""
# The order in which the jobs of each queue leave it.
_QUEUES: Final = {"ready": "pri, id", "delayed": "due_at, id", "buried": "buried_seq"}
# The types of the values, unless the disk has changed them: SQLite does not check types when it reads.
_TYPES: Final = {
    **dict.fromkeys(("pri", "delay_s", "ttr_s", "size", *COUNTERS), int),
    **dict.fromkeys(("age_s", "in_state_s", "left_s", "holder_conn"), int | None),
    **dict.fromkeys(TEXTS, str | None),
    "tube": str,
    "created_at": float | int,
    "body": bytes,
    "preview": bytes | None,
    "note": str | None,
}
# The last second that can be converted to a date.
_LAST_S: Final = 253_402_300_799
# What Python has SQLite say of any exception.
_FUNCTION_RAISED: Final = "user-defined function raised exception"
# How long another program may lock the file. Somebody waits for the answer, and a stop of the page in the browser for
# the thread that asks.
_WAIT_S: Final = 5.0


class Look:
    """A read-only view of an open file. Its methods raise JournalRefused if the file is damaged."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._raised: BaseException | None = None
        """What a function of ours has raised amid a statement: SQLite only tells that one did."""

    def list_jobs(self, request: Mapping[str, Any]) -> Record:
        """Return the jobs that fit a filter; the cursor is the last id, or in queue order the count of jobs so far."""
        conditions, parameters = self._conditions(request)
        after = int(parameters.get("after", 0))
        parameters |= {"after": after, "preview": request.get("preview", 0)}
        if parameters.get("order") == "queue":
            end = f"ORDER BY {_QUEUES[parameters['state']]} LIMIT :limit OFFSET :after"
        else:
            conditions.append("id > :after")
            end = "ORDER BY id LIMIT :limit"
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        more = ", note" if request.get("notes") else ""
        if request.get("paths"):
            paths = Paths(request["paths"])
            self._function("values_of", lambda body: json.dumps(paths.values(body or b"")))
            more += ', values_of(CAST(body AS BLOB)) AS "values"'
        rows = self._rows(f"{_JOB}, substr(body, 1, :preview) AS preview{more} FROM all_jobs {where} {end}", parameters)
        for row in rows:
            if isinstance(row.get("note"), str):
                row["note"] = first_line_of(row["note"]) or None
            if "values" in row:
                row["values"] = json.loads(row["values"])
        jobs = [self._job(row) for row in rows]
        cursor = None
        if jobs and len(jobs) == parameters["limit"]:
            cursor = str(after + len(jobs) if parameters.get("order") == "queue" else jobs[-1]["id"])
        return {"jobs": jobs, "next": cursor}

    def group_jobs(self, request: Mapping[str, Any]) -> Record:
        """Return how many of the jobs that fit a filter have each value, all at once."""
        conditions, parameters = self._conditions(request)
        key = f"nullif({request['fact']}, '')" if "fact" in request else "value_of(CAST(body AS BLOB))"
        if request.get("fact") == "note":
            self._function("first_line", self._first_line)
            key = "nullif(first_line(CAST(note AS BLOB)), '')"
        if "path" in request:
            path = Paths([request["path"]])
            self._function("value_of", lambda body: path.values(body or b"")[0])
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        statement = f"SELECT {key} AS value, count(*) AS jobs FROM all_jobs {where} GROUP BY value ORDER BY jobs DESC"
        rows = self._rows(statement, parameters)
        jobs = sum(row["jobs"] for row in rows)
        return {"groups": [[row["value"], row["jobs"]] for row in rows], "next": None, "looked": jobs}

    def _first_line(self, note: bytes | None) -> str | None:
        try:
            return None if note is None else first_line(note)
        except UnicodeDecodeError:
            raise damaged(self._path, "a note has changed") from None

    def _conditions(self, request: Mapping[str, Any]) -> tuple[list[str], Record]:
        """Return the conditions of a filter in SQL, and what they need."""
        parameters = {key: value for key, value in request.items() if value is not None}
        conditions = [_CONDITIONS[key] for key in parameters if key in _CONDITIONS]
        if "where" in parameters:
            self._function("fits", Where(parameters.pop("where")).fits)
        if "tube_like" in parameters:
            fits = re.compile(fnmatch.translate(parameters["tube_like"]).encode()).match
            self._function("like_tube", lambda tube: fits(tube) is not None)
        parameters.pop("paths", None)
        return conditions, {**parameters, "ids": json.dumps(request.get("ids"))}

    def show_job(self, job_id: int, events: int = 0) -> Record | None:
        """Return everything known about a job, with the last ``events`` of its history, 0 meaning all.

        One that is gone may still have a history.
        """
        rows = self._rows(f"{_JOB}, note, body FROM all_jobs WHERE id = :id", {"id": job_id})
        history = self._rows(_HISTORY, {"id": job_id, "events": events or -1})[::-1]
        if not rows and not history:
            return None
        return {**(self._job(rows[0]) if rows else {"id": job_id}), "history": [event_of(row) for row in history]}

    def history(self, which: Mapping[str, Any], limit: int) -> Iterator[Record]:
        """Yield the last ``limit`` events that meet the conditions, 0 meaning all, the oldest first."""
        where, parameters = self._conditions_of_events(which)
        parameters["limit"] = limit or -1
        last = f"SELECT n FROM history WHERE {where} ORDER BY n DESC LIMIT :limit"
        (bounds,) = self._rows(f"SELECT min(n) - 1 AS after, max(n) AS end FROM ({last})", parameters)
        events = f"{_EVENTS} WHERE n > :after AND n <= :end AND {where} ORDER BY n LIMIT {_EVENTS_READ}"
        while bounds["after"] is not None:
            rows = self._rows(events, parameters | bounds)
            bounds["after"] = rows[-1]["n"] if rows else None
            yield from map(event_of, rows)

    def deletions_of(self, which: Mapping[str, Any]) -> list[int]:
        """Return the jobs whose deletions meet the conditions, and whose bodies are kept."""
        where, parameters = self._conditions_of_events(which)
        rows = self._rows(f"SELECT job FROM history WHERE {where} AND {_HAS_BODY} ORDER BY n", parameters)
        return [row["job"] for row in rows]

    def _conditions_of_events(self, which: Mapping[str, Any]) -> tuple[str, Record]:
        """Return conditions of events in SQL, and what they need."""
        parameters = {**which, "what": json.dumps(which.get("what")), "ids": json.dumps(which.get("ids"))}
        if "where" in parameters:
            self._function("fits", Where(parameters.pop("where")).fits)
        return " AND ".join([_CONDITIONS_OF_EVENTS[key] for key in which] or ["1"]), parameters

    def kept_since(self) -> float | None:
        """Return since when what clients do is kept; None: it is not."""
        rows = self._rows(_KEPT, {})
        return float(rows[0]["at"]) if rows else None

    def end_of_history(self) -> int:
        """Return the number of the last event; later ones have higher numbers."""
        (row,) = self._rows("SELECT coalesce(max(n), 0) AS n FROM history", {})
        return int(row["n"])

    def deletions(self, after: int, end: int) -> list[tuple[int, int, int]]:
        """Return the deletions with a body that have numbers above ``after`` up to ``end``: job, number, size."""
        rows = self._rows(_DELETIONS, {"after": after, "end": end})
        return [(row["job"], row["n"], row["size"]) for row in rows]

    def bodies(self, events: Sequence[int]) -> dict[int, bytes]:
        """Return the bodies that are kept with events, by their numbers."""
        rows = self._rows(_BODIES, {"events": json.dumps(events)})
        return {row["n"]: row["body"] for row in rows}

    def deleted_job(self, job_id: int) -> Record | None:
        """Return what the history knows of a job that was deleted: its tube, pri and body; None without a body."""
        rows = self._rows(_DELETED, {"id": job_id})
        return rows[0] if rows else None

    def list_tubes(self, request: Mapping[str, Any]) -> Record:
        """Return all tubes whose name matches, without paging: counting their jobs reads every job anyway."""
        fits = re.compile(fnmatch.translate(request.get("like") or "*")).match  # as a server does; GLOB has other rules
        rows = self._rows(_TUBES, {"due_s": request.get("due_s")})
        if any(not isinstance(row["tube"], str) for row in rows):
            raise damaged(self._path, "a job is in a tube that has no name")
        return {"tubes": [{"name": row.pop("tube"), **row} for row in rows if fits(row["tube"])], "next": None}

    def list_policies(self) -> list[PolicyRow]:
        """Return all policies."""
        return read_policies(self._connection, self._path)

    def alive(self) -> Record:
        """Return the server that has the file, or had it last; empty if none has had it."""
        servers = self._rows("SELECT * FROM alive", {})
        return servers[0] if servers else {}

    def stats(self) -> Record:
        """Return that server, and the number of jobs by state."""
        counts = self._rows("SELECT state, count(*) AS jobs FROM jobs GROUP BY state", {})
        if not {row["state"] for row in counts} <= {"reserved", *_QUEUES}:
            raise damaged(self._path, "a job is in no state")
        jobs = dict.fromkeys(("ready", "reserved", "delayed", "buried"), 0) | {
            row["state"]: row["jobs"] for row in counts
        }
        return {**self.alive(), **jobs}

    def totals(self, span_s: int, spans: int, tubes: Sequence[str]) -> list[Record]:
        """Return the totals of these tubes in the last ``spans`` hours or days, as given by ``span_s``."""
        return self._rows(_TOTALS, {"span_s": span_s, "spans": spans, "tubes": json.dumps(tubes)})

    def totals_of_all(self, span_s: int, spans: int) -> list[Record]:
        """Return the totals of all tubes together, likewise."""
        return self._rows(_TOTALS_OF_ALL, {"span_s": span_s, "spans": spans})

    def _function(self, name: str, function: Callable[[Any], Any]) -> None:
        """Have a function of one argument in SQL: a BLOB, as text may be damaged, which would pass for a signal."""

        def call(argument: Any) -> Any:  # noqa: ANN401 - whatever SQLite has
            try:
                return function(argument)
            except BaseException as error:
                self._raised = error
                raise

        self._connection.create_function(name, 1, call)

    @contextmanager
    def _raising(self) -> Iterator[None]:
        """Raise what a function of ours raises in this block, such as KeyboardInterrupt: the file is not to blame."""
        self._raised = None
        try:
            yield
        except sqlite3.Error as error:
            if self._raised is None and text_of(error) == _FUNCTION_RAISED:  # a signal came before ``call`` had begun
                raise KeyboardInterrupt from None
            raise self._raised or error from None

    def _job(self, row: Record) -> Record:
        for name, types in _TYPES.items():
            if name in row and not isinstance(row[name], types):
                raise damaged(self._path, f"the {name} of job {row['id']} has changed")
        if (row["state"] not in _QUEUES and row["state"] != "reserved") or abs(row["created_at"]) > _LAST_S:
            raise damaged(self._path, f"the row of job {row['id']} has changed")
        return job_of(row)

    def _rows(self, statement: str, parameters: Mapping[str, Any]) -> list[Record]:
        bound = {key: _bound(parameters[key]) for key in parameters}
        with refused(self._path), self._raising():
            try:
                cursor = self._connection.execute(statement, bound)
            except sqlite3.OperationalError as error:
                if text_of(error) == _FUNCTION_RAISED:
                    raise
                views = check_texts(self._connection, self._path, find_migrations())
                if error.sqlite_errorcode != sqlite3.SQLITE_ERROR or not views:
                    raise
                why = f"{text_of(error)}; these views are not as beanlite makes them: {', '.join(views)}"
                raise JournalRefused(f"{self._path} can't be looked into: {why}; no job depends on them") from error
            with closing(cursor):
                names = [column[0] for column in cursor.description]
                return [dict(zip(names, row, strict=True)) for row in cursor]


def _bound(value: Any) -> Any:  # noqa: ANN401 - whatever SQLite takes
    """Return a value to search for: as bytes, if it is text that is not UTF-8, which SQLite can't take."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode(errors="surrogateescape")
    return value


@contextmanager
def looking(path: Path) -> Iterator[Look]:
    """Open a file for reading only. JournalRefused: it can't be opened, is not ours, or has an older version."""
    with reading(path, _WAIT_S) as connection:
        with refused(path):
            version = read_version(connection)
        if version < len(find_migrations()):
            raise JournalRefused(
                f"{path} has version {version}, and can be looked into when a server of this version has served it"
            )
        yield Look(connection, path)
