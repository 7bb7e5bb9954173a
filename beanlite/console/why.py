"""What is wrong, and what is known of a tube, in lines for a terminal."""

from collections.abc import Callable, Mapping
from typing import Final

from rich.text import Text

from beanlite.console import tables, units
from beanlite.console.filters import Record
from beanlite.console.several import Servers
from beanlite.core.findings import NOBODY_CONSUMES, NOTE, URGENT, WARNING
from beanlite.core.phrases import rates_text, shell_word

STYLES: Final = {URGENT: "bold red", WARNING: "yellow", NOTE: "dim"}
# What is looked for, as "nothing is wrong" says it.
_LOOKED_FOR: Final = (
    "workers that hang, jobs that crash their workers, tubes that nobody consumes, that grow or are late, policies,"
    " buried jobs, storms of delayed jobs, disk, memory and backups"
)
_WIDTH: Final = max(map(len, STYLES)) + 2


def misspelt(live: Servers, diagnosis: Record) -> dict[str, str]:
    """Return the tubes that nobody consumes and whose names may be misspelt, each with the tube that may be meant."""
    tubes = [
        place["tube"]
        for finding in diagnosis["findings"]
        if finding["kind"] == NOBODY_CONSUMES
        for place in finding["worst"]
    ]
    guesses = {tube: live.misspelt(tube) for tube in tubes}
    return {tube: guess for tube, guess in guesses.items() if guess is not None}


def print_diagnosis(diagnosis: Record, options_of: Callable[[str | None], str], guesses: Mapping[str, str]) -> None:
    """Print a diagnosis; ``guesses`` are misspelt tubes.

    The commands that it names are printed with the options that name the server of a finding.
    """
    target = tables.console()
    known = [{"server": name, **reply} for name, reply in diagnosis.get("servers", {"": diagnosis}).items()]
    tube = diagnosis.get("tube")
    itself = None if tube is None else f"beanlite why {shell_word(tube['name'])}"

    def say(text: Text) -> None:
        target.print(text, soft_wrap=True)

    findings = diagnosis["findings"]
    if all(finding["severity"] == NOTE for finding in findings):
        say(Text.assemble(("nothing is wrong", "bold green"), f": {examined(diagnosis)}; looked for {_LOOKED_FOR}"))
    for finding in findings:
        style = STYLES[finding["severity"]]
        title = Text(f"{finding['severity'] + ':':<{_WIDTH}}", style=style)
        options = options_of(finding.get("server"))
        text = units.on_one_line(told(finding))
        say(title.append(text, style="bold" if finding["severity"] == URGENT else ""))
        indent = " " * _WIDTH
        say(Text(indent + units.on_one_line(finding["do"])))
        if finding["command"] not in {None, itself}:
            say(Text(indent + units.on_one_line(finding["command"]) + options, style="cyan"))
        for place in finding["worst"] if finding["kind"] == NOBODY_CONSUMES else ():
            name = place["tube"]
            if name in guesses:
                say(Text(f"{indent}or is {name} misspelt, and {guesses[name]} was meant? Then move its jobs"))
                command = f"beanlite move --tube {shell_word(name)} --to {shell_word(guesses[name])}"
                say(Text(indent + command + options, style="cyan"))
    for reply in known:
        facts = [] if reply.get("tube") is None else facts_of(reply["tube"])
        if facts and reply["server"]:
            say(Text.assemble((f"{'server':<{_WIDTH}}", "bold"), reply["server"]))
        for title_text, line in facts:
            say(Text.assemble((f"{title_text:<{_WIDTH}}", "bold"), units.on_one_line(line)))


def told(finding: Record) -> str:
    """Return what is wrong, of several servers with the server."""
    return f"{finding['server']}: {finding['text']}" if "server" in finding else str(finding["text"])


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
        facts.append(("reserved", f"{units.jobs(tube['reserved'])} by {clients}, for longest {held}"))
    facts.append(("pace", _pace(tube)))
    facts += [
        ("crashes", f"job {crash['id']}: {crash['losses']} clients left that had it, {_last(crash)}")
        for crash in tube["crashes"]
    ]
    if tube["pause_left_s"]:
        facts.append(("paused", f"for another {units.age(tube['pause_left_s'])}"))
    held_back = [word for word in tube["shut"] if word != "paused"]
    if held_back:
        facts.append(("shut", f"{' and '.join(held_back)} keeps ready jobs waiting"))
    if tube["policy"]:
        facts.append(("policy", ", ".join(f"{key} {value}" for key, value in tube["policy"].items())))
    return facts


def _last(crash: Record) -> str:
    return f"the last {units.age(crash['last_s'])} ago, {tables.peer(crash['by'])}"


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
        watch = units.quantity(tube["watching"], "client watches it", "clients watch it")
        waiting = f"{tube['waiting']:,}" if tube["waiting"] else "nobody"
        watch += f", {waiting} {'wait' if tube['waiting'] > 1 else 'waits'} for a job"
    use = units.quantity(tube["using"], "client uses it", "clients use it") if tube["using"] else "nobody uses it"
    return f"{watch}; {use}"


def _pace(tube: Record) -> str:
    if tube["coming_per_s"] is None:
        return "not known: nothing has happened for some minutes, or only just now"
    coming, deleted = tube["coming_per_s"], tube["deleted_per_s"]
    rates = "{} come, {} are deleted".format(*rates_text(coming, deleted))
    if not coming and not deleted:
        rates = "no job comes, and none is deleted"
    hold_s = tube.get("hold_s")  # a server of an earlier version does not tell it
    moved = "" if (hold_s or 0) < 1 else f"; a job is reserved for {units.age(hold_s)} on average"
    if tube["moved_s"] is not None:
        moved += f"; last reserved, touched, deleted, released or buried {units.age(tube['moved_s'])} ago"
    if not tube["ready"] or coming == deleted:
        return f"{rates}{moved}"
    empty = "never empty" if tube["empty_in_s"] is None else f"empty in {units.age(tube['empty_in_s'])}"
    return f"{rates}: at this rate {empty}{moved}"
