"""What is wrong, and what is known of a tube, in lines for a terminal."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rich.text import Text

from beanlite.console import outlook, tables, units
from beanlite.console.filters import Record
from beanlite.console.live import Live
from beanlite.console.names import Meant
from beanlite.console.several import Servers
from beanlite.core.findings import (
    HUNG,
    LATE,
    LEFT_BURIED,
    NOBODY_CONSUMES,
    NOTE,
    PAUSED,
    SET_ASIDE,
    SHUT,
    URGENT,
    WARNING,
)
from beanlite.core.phrases import named, rates_text, shell_word

STYLES: Final = {URGENT: "bold red", WARNING: "yellow", NOTE: "dim"}
# What is looked for, as "nothing is wrong" says it.
_LOOKED_FOR: Final = (
    "workers that hang, jobs that crash their workers, tubes that nobody consumes, that grow or are late, policies,"
    " buried jobs, storms of delayed jobs, "
)
# The findings that tell for how long something has been so.
LASTING: Final = frozenset({HUNG, LATE, LEFT_BURIED, NOBODY_CONSUMES, PAUSED, SET_ASIDE, SHUT})
# The kind of the finding that a server does not answer; it can't tell that itself.
AWAY: Final = "away"
# A reservation is told as a long one if it has lasted for so long, and so many times as long as others do.
_LONG_S: Final = 60
_LONG_TIMES: Final = 10
_WIDTH: Final = max(map(len, STYLES)) + 2
# The command of a finding that asks no server.
_FOR_FILES: Final = "beanlite backup DEST"


def misspelt(live: Servers, diagnosis: Record) -> dict[str, Meant]:
    """Return the tubes that nobody consumes and whose names may be misspelt, each with the tube that may be meant."""
    tubes = [
        place["tube"]
        for finding in diagnosis["findings"]
        if finding["kind"] == NOBODY_CONSUMES
        for place in finding["worst"]
    ]
    guesses = {tube: live.misspelt(tube) for tube in tubes}
    return {tube: guess for tube, guess in guesses.items() if guess is not None}


def add_policies(live: Servers, diagnosis: Record, tube: str) -> None:
    """Add the policies that hold for a tube to what is known of it, with who set them, and when."""
    replies = diagnosis.get("servers", {"": diagnosis})
    if not any((reply.get("tube") or {}).get("policy") for reply in replies.values()):
        return
    for name, rows in live.each(lambda each: each.list_policies({"tube": tube})["policies"]).items():
        if (replies.get(name) or {}).get("tube"):
            replies[name]["tube"]["policies"] = rows


def add_away(live: Servers, diagnosis: Record) -> None:
    """Add the servers that have not answered to what is wrong, before all else."""
    for name, why in reversed(list(live.away.items())):
        finding = {
            "kind": AWAY,
            "severity": URGENT,
            "tubes": 0,
            "jobs": 0,
            "seconds": 0,
            "worst": [],
            "text": why,
            "do": "nothing is known of its tubes until it answers",
            "command": None,
        }
        diagnosis["findings"].insert(0, {"server": name, **finding})
        reply = diagnosis["servers"].setdefault(name, {"findings": [], "tubes": 0, "jobs": 0, "tube": None})
        reply["findings"].insert(0, finding)


def looked_at(live: Servers) -> str:
    """Return what is looked at besides the tubes: with jobs in memory or in PostgreSQL, a server makes no backups."""
    replies = live.each(Live.stats).values()
    if any(stats.get("backup-succeeded-at") or stats.get("backup-failed-at") for stats in replies):
        return "disk, memory and backups"
    has_file = any(stats.get("binlog-max-size") for stats in replies)
    return "disk and memory" + ("; no scheduled backup was ever made" if has_file else "")


def print_diagnosis(
    diagnosis: Record, options_of: Callable[[str | None], str], guesses: Mapping[str, Meant], rest: str
) -> None:
    """Print a diagnosis; ``guesses`` are misspelt tubes, ``rest`` is what is looked at besides the tubes.

    The commands that it names are printed with the options that name the server of a finding.
    """
    target = tables.console()
    known = [{"server": name, **reply} for name, reply in diagnosis.get("servers", {"": diagnosis}).items()]
    tube = diagnosis.get("tube")
    itself = None if tube is None else f"beanlite why {shell_word(tube['name'])}"
    findings = diagnosis["findings"]
    lines = []
    if all(finding["severity"] == NOTE for finding in findings):
        text = f": {examined(diagnosis)}; looked for {_LOOKED_FOR}{rest}"
        lines.append(Text.assemble(("nothing is wrong", "bold green"), text))
    for finding in findings:
        lines += _finding_lines(finding, itself, options_of, guesses)
    for reply in known:
        if reply.get("tube") is not None:
            lines += _fact_lines(reply["tube"], reply["server"], options_of(reply["server"] or None))
    for line in lines:
        target.print(line, soft_wrap=True)


def _finding_lines(
    finding: Record, itself: str | None, options_of: Callable[[str | None], str], guesses: Mapping[str, Meant]
) -> Iterator[Text]:
    """Yield the lines of a finding; ``itself`` is the command that prints them."""
    indent = " " * _WIDTH
    title = Text(f"{finding['severity'] + ':':<{_WIDTH}}", style=STYLES[finding["severity"]])
    text = units.on_one_line(f"{told(finding)}{_since(finding)}")
    yield title.append(text, style="bold" if finding["severity"] == URGENT else "")
    yield Text(indent + units.on_one_line(finding["do"]))
    options = "" if finding["kind"] == AWAY else options_of(finding.get("server"))
    if finding["command"] not in {None, itself}:
        yield Text(indent + units.on_one_line(asked_of(finding["command"], options)), style="cyan")
    for place in finding["worst"] if finding["kind"] == NOBODY_CONSUMES else ():
        name = place["tube"]
        meant = guesses.get(name)
        if meant is None:
            continue
        doubt = f"{indent}or is {name} misspelt, and {meant.tube}"
        if finding.get("server", "") not in meant.servers:  # jobs do not move to another server so
            yield Text(f"{doubt} of {named(meant.servers, len(meant.servers))} was meant?")
            continue
        yield Text(f"{doubt} was meant? Then move its jobs")
        command = f"beanlite move --tube {shell_word(name)} --to {shell_word(meant.tube)}"
        yield Text(indent + command + options, style="cyan")


def _fact_lines(tube: Record, server: str, options: str) -> Iterator[Text]:
    """Yield the lines of what is known of a tube, of several servers with the server; ``options`` name that server."""
    facts = facts_of(tube)
    if facts and server:
        yield Text.assemble((f"{'server':<{_WIDTH}}", "bold"), server)
    for title, line in facts:
        yield Text.assemble((f"{title:<{_WIDTH}}", "bold"), units.on_one_line(line))
        if title == "paused":
            who = f"by whom: beanlite history --what pause --tube {shell_word(tube['name'])}"
            who += " --db FILE" if options else ""  # of another server than that of the settings
            yield Text(" " * _WIDTH + who, style="cyan")


def asked_of(command: str, options: str) -> str:
    """Return the command of a finding with the options that name its server; one for files has none of these."""
    return command if command == _FOR_FILES else command + options


def told(finding: Record) -> str:
    """Return what is wrong, of several servers with the server."""
    return f"{finding['server']}: {finding['text']}" if "server" in finding else str(finding["text"])


def _since(finding: Record) -> str:
    """Return since when something has been so."""
    if finding["kind"] not in LASTING or not finding["seconds"]:
        return ""
    return f" (since {units.utc(time.time() - finding['seconds'])} UTC)"


def examined(diagnosis: Record) -> str:
    """Return which part of the queue was examined."""
    return f"{units.quantity(diagnosis['tubes'], 'tube')} with {units.jobs(diagnosis['jobs'])}"


def facts_of(tube: Record) -> list[tuple[str, str]]:
    """Return everything that matters about a tube, also what is as it should be: lines with their titles."""
    facts = [("tube", tube["name"]), ("jobs", _jobs(tube)), ("clients", _clients(tube))]
    if tube["oldest_hold"] is not None:
        hold = tube["oldest_hold"]
        clients = units.quantity(tube["holders"], "client")
        held = f"job {hold['id']} for {units.age(hold['seconds'])} by {tables.peer(hold['holder'])}"
        facts.append(("reserved", f"{units.jobs(tube['reserved'])} by {clients}, for longest {held}{_others(tube)}"))
    facts.append(("pace", _pace(tube)))
    facts += [
        ("crashes", f"job {crash['id']}: {crash['losses']} clients left that had it, {_last(crash)}")
        for crash in tube["crashes"]
    ]
    if tube["pause_left_s"]:
        facts.append(("paused", _pause(tube)))
    held_back = [word for word in tube["shut"] if word != "paused"]
    if held_back:
        facts.append(("shut", f"{' and '.join(held_back)} keeps ready jobs waiting"))
    if tube.get("policies"):
        facts += [("policy", _policy(row)) for row in tube["policies"]]
    elif tube["policy"]:
        facts.append(("policy", ", ".join(f"{key} {value}" for key, value in tube["policy"].items())))
    return facts


def _last(crash: Record) -> str:
    return f"the last {units.age(crash['last_s'])} ago, {tables.peer(crash['by'])}"


def _others(tube: Record) -> str:
    """Return for how long others have a job of a tube, if that is much shorter than the longest."""
    hold_s = tube.get("hold_s")  # a server of an earlier version does not tell it
    if hold_s is None or tube["oldest_hold"]["seconds"] < max(_LONG_S, _LONG_TIMES * hold_s):
        return ""
    return f"; on average it is {units.age(hold_s) if hold_s >= 1 else 'less than 1 s'}"


def _pause(tube: Record) -> str:
    now_s, left_s = time.time(), tube["pause_left_s"]
    since, until = units.utc(now_s + left_s - tube["pause_s"]), units.utc(now_s + left_s)
    return f"since {since} UTC, for another {units.age(left_s)}, until {until} UTC"


def _policy(row: Record) -> str:
    by = f", set by {row['changed_by']} at {units.utc(row['changed_at'])} UTC" if row["changed_by"] else ""
    return f"{row['key']} {row['value']}, of {row['pattern']}{by}"


def _jobs(tube: Record) -> str:
    waits = f" (the next one for {units.age(tube['first_ready_s'])})" if tube["ready"] else ""
    since = f" (the first for {units.age(tube['first_buried_s'])})" if tube["buried"] else ""
    return (
        f"{tube['ready']:,} ready{waits}, {tube['reserved']:,} reserved, {tube['delayed']:,} delayed,"
        f" {tube['buried']:,} buried{since}"
    )


def _clients(tube: Record) -> str:
    if not tube["watching"]:
        watch = "nobody watches it"
    else:
        holding = min(tube["holders"], tube["watching"])
        idle = max(0, tube["watching"] - tube["waiting"] - holding)
        watch = units.quantity(tube["watching"], "client watches it", "clients watch it")
        watch += f": {_verb(holding, 'has', 'have')} a job of it, {_verb(tube['waiting'], 'waits', 'wait')} for one,"
        watch += f" {_verb(idle, 'does', 'do')} neither"
    use = units.quantity(tube["using"], "client uses it", "clients use it") if tube["using"] else "nobody uses it"
    return f"{watch}; {use}"


def _verb(number: int, verb: str, verbs: str) -> str:
    return f"{number:,} {verb}" if number == 1 else f"{number:,} {verbs}" if number else f"none {verb}"


def _pace(tube: Record) -> str:
    if tube["coming_per_s"] is None:
        return "not known: nothing has happened for some minutes, or only just now"
    coming, deleted = tube["coming_per_s"], tube["deleted_per_s"]
    rates = "{} come, {} are deleted".format(*rates_text(coming, deleted))
    if not coming and not deleted:
        rates = "no job comes, and none is deleted"
    rates += " (in the last minutes)"
    hold_s = tube.get("hold_s")  # a server of an earlier version does not tell it
    moved = "" if (hold_s or 0) < 1 else f"; a job is reserved for {units.age(hold_s)} on average"
    if tube["moved_s"] is not None:
        moved += f"; last reserved, touched, deleted, released or buried {units.age(tube['moved_s'])} ago"
    if not tube["ready"]:
        return f"{rates}{moved}"
    if outlook.is_steady(tube["ready"], coming * 60, deleted * 60):
        return f"{rates}: steady{moved}"
    if coming == deleted:
        return f"{rates}{moved}"
    empty = "never empty" if tube["empty_in_s"] is None else f"empty in {units.age(tube['empty_in_s'])}"
    return f"{rates}: at this rate {empty}{moved}"
