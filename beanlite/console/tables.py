"""Tables on a terminal, and JSON for scripts."""

import codecs
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len, set_cell_size

from beanlite.console import units
from beanlite.console.bodies import body_lines
from beanlite.console.filters import Record, job_name

if TYPE_CHECKING:
    from rich.console import Console

# The width of output that does not go to a terminal: nothing is cut to fit.
_ENDLESS: Final = 1 << 20
# The gap between two columns, and the width that columns of text shrink to before other columns are left out.
_GAP: Final = "  "
_SHRUNK: Final = 12


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the key of the fact that it shows about each record, and how to show it."""

    key: str
    title: str
    show: Callable[[Any], str]
    shrinks: bool = False
    """Whether the column is cut when the terminal is too narrow. Such a column has text, all others have numbers."""
    none: str = ""
    """What is shown of a fact that is None."""
    leaves: int = 0
    """If cutting is not enough, columns with a number here are left out, the largest number first."""

    def text(self, record: Record) -> str:
        """Return the column's text for a record, on one line."""
        value = record.get(self.key)
        if value is None:
            return self.none if self.key in record else ""
        return units.on_one_line(self.show(value))


class IdColumn(Column):
    """A column that shows which job it is, of several servers with its server."""

    def text(self, record: Record) -> str:
        """Return the column's text for a record."""
        return job_name(record)


class PathColumn(Column):
    """A column that shows what is at a path in a body: its title."""

    def text(self, record: Record) -> str:
        """Return the column's text for a record, on one line."""
        return units.on_one_line(record[self.key][self.title] or "")


def groups(title: str) -> tuple[Column, ...]:
    """Return the columns of numbers of jobs by value."""
    return (
        Column("value", title, lambda value: value or "(empty)", shrinks=True, none="(no value)"),
        Column("jobs", "jobs", units.count),
        Column("share", "share", "{:.1%}".format),
    )


def peer(peer: Record) -> str:
    """Return a client's address, the number of its connection, and what it calls itself."""
    number = f" #{peer['number']}" if peer["number"] else ""  # a schedule has no connection
    return f"{peer['address']}{number}{claim(peer)}"


def claim(peer: Mapping[str, Any]) -> str:
    """Return what a client calls itself, in quotes and with a blank before it; empty if it has not said."""
    return f' "{peer["name"]}"' if peer.get("name") else ""


def doer(by: Record) -> str:
    """Return the client that did something, and the person on whose behalf it did."""
    person = f"for {units.on_one_line(by['person'])}" if by["person"] else ""
    return " ".join(part for part in ("operator" if by["operator"] else "", peer(by), person) if part)


def _if_any(number: int) -> str:
    return units.count(number) if number else ""


def shut_by(shut: Sequence[str]) -> str:
    """Return the policies that keep jobs from being reserved from a tube. A pause has a column of its own."""
    return ", ".join(word for word in shut if word != "paused")


# Records have a server only if several servers are looked at.
SERVER: Final = Column("server", "server", str, shrinks=True)
JOBS: Final = (
    IdColumn("id", "id", str),
    Column("tube", "tube", str, shrinks=True),
    Column("state", "state", str),
    Column("pri", "pri", str),
    Column("age_s", "age", units.age, leaves=2),
    Column("in_state_s", "in state", units.age),
    Column("left_s", "left", units.age, leaves=4),
    Column("size", "size", units.size, leaves=1),
    Column("reserves", "reserves", _if_any, leaves=2),
    Column("timeouts", "timeouts", _if_any, leaves=6),
    Column("releases", "releases", _if_any, leaves=6),
    Column("holder", "last holder", peer, leaves=5),
    Column("why", "why", str, leaves=3),
    Column("note", "note", str, shrinks=True),
    Column("preview", "body", str, shrinks=True),
)
DUE: Final = (Column("due_at", "due", lambda minute: units.utc(minute)[:-3]), Column("jobs", "jobs", units.count))
TUBES: Final = (
    SERVER,
    Column("name", "tube", str, shrinks=True),
    Column("ready", "ready", units.count),
    Column("reserved", "reserved", units.count),
    Column("delayed", "delayed", units.count),
    Column("buried", "buried", units.count),
    Column("bytes", "bytes", units.size, leaves=1),
    Column("first_ready_s", "next waits", units.age, leaves=3),
    Column("oldest_ready_s", "oldest ready", units.age),
    Column("using", "using", units.count, leaves=6),
    Column("watching", "watching", units.count, leaves=5),
    Column("waiting", "waiting", units.count, leaves=4),
    Column("puts_per_min", "puts/min", units.rate, leaves=7),
    Column("deletes_per_min", "deletes/min", units.rate, leaves=7),
    Column("wait_s", "mean wait", units.age, leaves=8),
    Column("hold_s", "mean hold", units.age, leaves=8),
    Column("failed", "failed", "{:.1%}".format, leaves=3),
    Column("drain_s", "empty in", lambda drain_s: units.age(drain_s) if drain_s else "", none="never", leaves=3),
    Column("due", "due in 30 min", _if_any, leaves=4),
    Column("pause_left_s", "paused for", lambda left_s: units.age(left_s) if left_s else "", leaves=2),
    Column("shut", "shut by", shut_by),
)
CLIENTS: Final = (
    SERVER,
    Column("number", "number", str),
    Column("address", "address", str, shrinks=True),
    Column("name", "calls itself", str, shrinks=True),
    Column("uses", "uses", str, shrinks=True),
    Column("watches", "watches", ", ".join, shrinks=True),
    Column("waits_s", "waits for", units.age),
    Column("holds", "holds", units.count),
    Column("oldest_hold_s", "longest hold", units.age),
    Column("stuck", "stuck", str),
    Column("connected_s", "connected for", units.age, leaves=3),
    Column("last", "last command", str, leaves=2),
    Column("silent_s", "silent for", units.age, leaves=2),
    Column("buffered", "buffered", units.size, leaves=1),
)

POLICIES: Final = (
    SERVER,
    Column("pattern", "pattern", str, shrinks=True),
    Column("key", "key", str, shrinks=True),
    Column("value", "value", str, shrinks=True),
    Column("changed_at", "changed", units.utc, shrinks=True, leaves=1),
    Column("changed_by", "by", str, shrinks=True, leaves=2),
)

SCHEDULES: Final = (
    SERVER,
    Column("name", "schedule", str, shrinks=True),
    Column("when", "when", str, shrinks=True),
    Column("zone", "zone", str, shrinks=True, leaves=2),
    Column("tube", "tube", str, shrinks=True),
    Column("next_at", "next (UTC)", units.utc),
    Column("waits_for", "waits for", str, shrinks=True),
    Column("left_out_at", "left out (UTC)", units.utc, leaves=1),
    Column("last_at", "last (UTC)", units.utc, leaves=1),
    Column("last_job", "last job", str, leaves=3),
    Column("error", "error", str, shrinks=True),
    Column("changed_by", "by", str, shrinks=True, leaves=4),
)


def console() -> "Console":
    """Return the console that tables are printed to: as wide as the terminal, or unlimited if stdout is not one."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and a table of jobs or tubes does without

    _keep_widths()
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _ENDLESS)


def _keep_widths() -> None:
    """Have stdout print one character for each that it can't encode, so that columns stay aligned."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


def width_of_stdout() -> int:
    """Return how wide what is printed may be."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _ENDLESS


def _bold(text: str) -> str:
    """Return a text that is bold on a terminal."""
    plain = not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in {"dumb", "unknown"}
    return text if plain else f"\x1b[1m{text}\x1b[0m"


def print_table(records: Iterable[Record], columns: Sequence[Column]) -> int:
    """Print a line for each record, without columns that are empty in all; return how many records there were."""
    rows = [[column.text(record) for column in columns] for record in records]
    shown = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    widths = [max(map(cell_len, [column.title, *(row[at] for row in rows)])) for at, column in enumerate(columns)]
    _keep_widths()
    width = width_of_stdout()
    while sum(_least(columns[at], widths[at]) for at in shown) > width + len(_GAP):
        leaving = max(shown, key=lambda at: columns[at].leaves)
        if not columns[leaving].leaves:
            break
        shown.remove(leaving)
    room = width - len(_GAP) * (len(shown) - 1)
    _shrink(widths, [at for at in shown if columns[at].shrinks], sum(widths[at] for at in shown) - room)
    # Print line by line: laying out a rich Table of 50,000 rows takes a minute.
    if rows:
        title = _GAP.join(_cell(columns[at], columns[at].title, widths[at]) for at in shown)
        print(_bold(title.rstrip()))  # noqa: T201 - as the command line does
    for row in rows:
        print(_GAP.join(_cell(columns[at], row[at], widths[at]) for at in shown).rstrip())  # noqa: T201 - as the command line does
    return len(rows)


def _shrink(widths: list[int], shrinking: Sequence[int], over: int) -> None:
    """Narrow the widest of these columns, one character at a time, by ``over`` in all; each keeps at least one."""
    for _ in range(over):
        at = max(shrinking, key=widths.__getitem__, default=None)
        if at is None or widths[at] == 1:
            return
        widths[at] -= 1


def _cell(column: Column, text: str, width: int) -> str:
    """Return a text cut or padded to a width."""
    blanks = width - cell_len(text)
    if blanks < 0:
        return set_cell_size(text, width - 1) + "…"
    return text + " " * blanks if column.shrinks else " " * blanks + text


def _least(column: Column, width: int) -> int:
    """Return how many characters a column needs at least, including the gap behind it."""
    return (min(width, _SHRUNK) if column.shrinks else width) + len(_GAP)


def print_facts(facts: Record) -> None:
    """Print facts, one per line; those that are None are left out."""
    from rich.table import Table  # noqa: PLC0415 - as for the console
    from rich.text import Text  # noqa: PLC0415 - likewise

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, len(_GAP), 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for key, value in facts.items():
        if value is not None:
            table.add_row(key, Text(units.on_one_line(str(value)), overflow="fold"))
    target = console()
    with target.capture() as capture:
        target.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())  # noqa: T201 - as the command line does


def job_text(job: Record, form: str) -> str:
    """Return the facts about a job, one per line, its body and its history. ConfigError: the body has no such form."""
    history = history_lines(job.get("history", ()), of_one_job=True)
    parts = []
    gone = "" if "state" in job else f"job {job['id']} has gone; "
    if gone and "body" in job:
        parts = [f"{gone}its body in {units.on_one_line(job['tube'])}:\n{body_lines(job['body'], form)}"]
    elif "body" in job:
        note = [f"note:\n{units.on_lines(job['note'].strip())}"] if job.get("note") else []
        parts = ["\n".join(_job_lines(job)), *note, body_lines(job["body"], form)]
    if history:
        parts.append("\n".join([f"{'' if parts else gone}its history:", *history]))
    return "\n\n".join(parts)


def _job_lines(job: Record) -> list[str]:
    from beanlite.journal.columns import SHOWN  # noqa: PLC0415 - only for a single job

    facts = {column.title: column.text(job) for column in JOBS if column.key != "note"} | {
        "put": units.utc(job["created_at"]),
        "delay": units.age(job["delay_s"]),
        "ttr": units.age(job["ttr_s"]),
        **{name: Column(name, name, str).text(job) for name in (*SHOWN, "tries")},
    }
    return [f"{key:<12} {value}" for key, value in facts.items() if value]


def event_line(event: Record) -> str:
    """Return an event of a job or a tube as one line."""
    if "lost" in event:
        where = f" of {event['server']}" if "server" in event else ""
        return f"{event['lost']:,} events{where} were lost, because they were not read in time"
    has_pri = event["id"] and "note" not in event and event["pri"] is not None  # those that recur may differ
    how = [f"pri {event['pri']}"] if has_pri else []
    if told := details(event):
        until = f", until {units.utc(event['at'] + event['delay_s'])}" if not event["id"] and event["delay_s"] else ""
        how.append(told + until)
    return "  ".join(
        (
            units.utc(event["at"]),
            f"{job_name(event) if event['id'] else event.get('server', ''):>8}",
            units.on_one_line(event["tube"]),
            event["what"],
            *how,
            *([f"by {doer(event['by'])}"] if event["by"] else ()),
            *([f"by its {event['policy']}"] if "policy" in event else ()),
        )
    )


def details(event: Record, *, hides: bool = False) -> str:
    """Return what there is to say of an event besides its word and the job's pri; nothing that may be hidden."""
    if "note" in event:
        from beanlite.core.notes import first_line  # noqa: PLC0415 - few events

        if hides or event["note"] is None:  # or they are several
            return ""
        return repr(first_line(event["note"].encode())) if event["note"] else "taken away"
    if "change" in event:
        told = event["change"]
        return units.on_one_line(_schedule(told, hides=hides) if event["what"] == "schedule" else told)
    if event["what"] == "pause":
        return f"for {units.age(event['delay_s'])}" if event["delay_s"] else "ended"
    return f"delay {units.age(event['delay_s'])}" if event["delay_s"] else ""


def _schedule(text: str, *, hides: bool) -> str:
    """Return a schedule in few words, without the body that it puts."""
    try:
        schedule = json.loads(text)
        if schedule["when"] is None:
            return f"{schedule['name']} unset"
        return f"{schedule['name']}: {schedule['when']} {schedule['zone']} -> {schedule['tube']}"
    except (ValueError, KeyError, TypeError):  # the disk has changed it
        return "" if hides else text


def history_lines(history: Sequence[Record], *, of_one_job: bool) -> list[str]:
    """Return a history as lines, of which one stands for events that recur; of one job, also for several together."""
    from beanlite.console.folding import fold, without_puts_of_copies  # noqa: PLC0415 - few commands need it

    lines = []
    history = history if of_one_job else list(without_puts_of_copies(history))
    for line in fold(history) if of_one_job else fold(history, 1):
        event = line.events[0]
        if line.times == 1:
            lines.append(event_line(event))
            continue
        events = history[line.end - line.times * len(line.events) : line.end]
        if any(each["by"] != event["by"] for each in events):
            event = {**event, "by": _in_common(event["by"])}
        if "note" in event and any(each.get("note") != event["note"] for each in events):
            event = {**event, "note": None}
        last = history[line.end - 1]
        of_last = "" if last["id"] == event["id"] else f" for job {job_name(last)}"
        times = f"{line.times:,} times, the last{of_last} at {units.utc(line.last_at)}"
        lines.append(f"{event_line({**event, 'what': line.words})}  {times}")
    return lines


def _in_common(by: Record | None) -> Record | None:
    """Return what the doers of events that recur have in common, if that is more than that they are clients."""
    if not by or not (by["operator"] or by["person"]):
        return None
    return {**by, "address": "" if by["operator"] else "clients", "number": 0, "name": None}


def print_json(records: Iterable[Record]) -> None:
    """Print the records as JSON, one object per line; as ASCII if stdout has another encoding than JSON's, UTF-8."""
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    for record in records:
        print(json.dumps(record, ensure_ascii=not is_utf8))  # noqa: T201 - as the command line does
