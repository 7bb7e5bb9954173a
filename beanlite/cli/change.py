"""The commands that change jobs, such as ``beanlite kick``, and ``beanlite pause``."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import typer

from beanlite.beanstalk.client import TIMEOUT_S
from beanlite.cli import completion
from beanlite.cli.groups import Ids, Json, ServerOption, age_option, grouped, seconds_of
from beanlite.cli.options import IDS_SHOWN, ids_text
from beanlite.cli.printing import prefix, print_done, server_key
from beanlite.cli.which import Which
from beanlite.console import changes, routing, units
from beanlite.console.expiring import expiring
from beanlite.console.filters import Record, after, encode_tube, filter_by, filter_text, settled
from beanlite.console.live import Live, by_me
from beanlite.core.job import U32_MAX
from beanlite.errors import BeanliteError, ConfigError
from beanlite.protocol.operators.filters import Filter

EXAMPLES: Final = """
beanlite kick 17 18                          these two jobs
beanlite kick --tube mail                    all buried jobs of a tube
beanlite kick --tube mail --note-text timeout    only those with such a note
beanlite kick --tube mail --state delayed    all delayed jobs

beanlite bury 17
beanlite bury --tube mail --text @example.org --dry-run

beanlite delete 17
beanlite delete --tube mail --state buried --older 30d
beanlite delete --tube mail --text spam --yes

beanlite release 17
beanlite release --holder 42                 all jobs that this connection holds

beanlite move 17 --to mail-broken
beanlite move --tube mail --state buried --text timeout --to mail-broken

beanlite copy 17 --to mail-test
beanlite copy --tube mail --newer 1h --to mail-test

beanlite reprioritise 17 --pri 0
beanlite reprioritise --tube mail --older 1h --pri 10

beanlite delay 17 --by 10min
beanlite delay --tube mail --state ready --by 1h

beanlite note 17 --note 'the customer has moved'
beanlite note 17 --note ''                   take the note away
beanlite note --tube mail --state buried --note 'see INC-4711'

beanlite flush mail
beanlite flush mail --yes                    without asking, for scripts

beanlite pause mail 10min
beanlite pause mail 0                        end the pause
"""
_SLICES: Final = (
    "Jobs are changed in slices, each durable before the next, so that no client waits; jobs put after the command"
    " began are left alone. Ctrl-C ends the command between two slices. Exit codes: 0 done; 1 a server can't be"
    " reached or refuses the command, there is no such tube, a job given by its id was not changed, or the answer was"
    " no; 2 a wrong setting or flag; 130 interrupted (the output says how many jobs were changed)."
)
EPILOG: Final = {
    **dict.fromkeys(("kick", "bury", "delete", "release", "move", "reprioritise", "delay", "note", "flush"), _SLICES),
    "copy": f"{_SLICES} Given again, copy copies all of them once more.",
    "pause": (
        "Exit codes: 0 done; 1 a server can't be reached or refuses the command, or there is no such tube; 2 a wrong"
        " setting or flag; 130 Ctrl-C."
    ),
}
# The exit code after Ctrl-C.
INTERRUPTED: Final = 130

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")]
Tube = Annotated[str, typer.Argument(metavar="TUBE", help="The tube.", autocompletion=completion.tubes)]
To = Annotated[str, typer.Option(metavar="TUBE", help="The tube to put them in.", autocompletion=completion.tubes)]
Pri = Annotated[int, typer.Option("--pri", min=0, max=U32_MAX, metavar="N", help="The new pri; 0 comes first.")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class How(ServerOption):
    """The server at which a change is made, and how it is reported."""

    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, only report how many jobs it would be.")
    ] = False
    as_json: Json = False


@grouped
def kick(ids: Ids = None, *, which: Which, how: How) -> int:
    """Make buried or delayed jobs ready.

    Delayed jobs only if they are given by their ids or by --state delayed.
    """
    return _carry_out({"do": "kick"}, which.filter(ids, state="buried"), how)


@grouped
def bury(ids: Ids = None, *, which: Which, how: How) -> int:
    """Set jobs aside until they are kicked.

    This includes jobs that a client holds.
    """
    return _carry_out({"do": "bury"}, which.filter(ids), how)


@grouped
def delete(ids: Ids = None, *, which: Which, how: How, yes: Yes = False) -> int:
    """Delete jobs.

    This includes jobs that a client holds: its next command for such a job is answered NOT_FOUND. They can be put again
    ("beanlite undelete") if the history keeps their bodies, and are lost if not.
    """
    return _carry_out({"do": "delete"}, which.filter(ids), how, ask=not yes)


@grouped
def flush(tube: Tube, *, how: How, yes: Yes = False) -> int:
    """Delete all jobs in a tube.

    They are deleted whatever their state; jobs put in the meantime stay.
    """
    encode_tube(tube)
    return _carry_out({"do": "delete"}, filter_by(tube=tube), how, ask=not yes, command="flush")


@grouped
def release(ids: Ids = None, *, which: Which, how: How) -> int:
    """Make reserved jobs ready.

    They are taken from the clients that hold them.
    """
    return _carry_out({"do": "release"}, which.filter(ids, state="reserved"), how)


@grouped
def move(ids: Ids = None, *, to: To, which: Which, how: How) -> int:
    """Move jobs to another tube.

    They keep their ids, ages and counters.
    """
    encode_tube(to)
    return _carry_out({"do": "move", "to": to}, which.filter(ids), how)


@grouped
def copy(ids: Ids = None, *, to: To, which: Which, how: How) -> int:
    """Copy jobs to another tube, as new jobs."""
    encode_tube(to)
    return _carry_out({"do": "copy", "to": to}, which.filter(ids), how)


@grouped
def reprioritise(ids: Ids = None, *, pri: Pri, which: Which, how: How) -> int:
    """Give jobs another pri."""
    return _carry_out({"do": "reprioritise", "pri": pri}, which.filter(ids), how)


@grouped
def delay(
    ids: Ids = None,
    *,
    by: Annotated[float, age_option("--by", text="Delay, counted from now, such as 90s, 5min, 3h or 2d.")],
    which: Which,
    how: How,
) -> int:
    """Delay ready jobs, or change the delay of delayed ones."""
    if not by:
        raise ConfigError("--by: a delay is longer than 0 s; kick makes delayed jobs ready")
    return _carry_out({"do": "delay", "delay_s": seconds_of("--by", by)}, which.filter(ids), how)


@grouped
def note(
    ids: Ids = None,
    *,
    left: Annotated[str, typer.Option("--note", metavar="TEXT", help="The note; '' takes it away.")],
    which: Which,
    how: How,
) -> int:
    """Leave a note on jobs, such as why they failed.

    It replaces the one that a job has, and stays with the job until the job is deleted.
    """
    return _carry_out({"do": "note", "note": left}, which.filter(ids), how)


@grouped
def pause(
    tube: Tube,
    time: Annotated[float, age_option(text="How long, such as 90s, 5min or 3h; 0 ends a pause.")],
    *,
    server: ServerOption,
    as_json: Json = False,
) -> None:
    """Stop clients from reserving from a tube for some time."""
    encode_tube(tube)
    pause_s = seconds_of("TIME", time)
    with server.open(TIMEOUT_S) as servers:
        for name in routing.servers_of(servers, tube):
            with routing.naming(name):
                servers.lives[name].pause(tube, pause_s, by_me())
            if as_json:
                print_done(json.dumps({**server_key(name), "tube": tube, "pause_s": pause_s}))
            else:
                state = f"is paused for {units.age(pause_s)}" if pause_s else "is not paused"
                print_done(f"{prefix(name)}{tube} {state}")


def _carry_out(what: Record, which: Filter, how: How, *, ask: bool = False, command: str | None = None) -> int:
    """Make a change, and report the result; return the exit code. ``command`` names it, if not what it does."""
    if not which.criteria():
        raise ConfigError("say which jobs: by their ids, or by --tube, --state, --text or another option")
    ask = ask and not how.dry_run
    if ask and not sys.stdin.isatty():
        raise ConfigError(f"{command or what['do']} asks first, and there is no terminal to ask at: say --yes")
    exit_code = 0
    with how.open(TIMEOUT_S) as servers:
        shares = routing.shares(servers, which)
        if "to" in what:
            routing.check_target(servers, what, shares)
            _tell_expiring(shares, what)
        began_s = time.monotonic()
        selections = _ask(shares, what, which) if ask else [share.which for share in shares]
        for share, selected in zip(shares, selections, strict=True):
            selection = _as_of(selected, began_s) if ask and selected is not None else selected
            try:
                exit_code = max(exit_code, _change(share, selection, what, how, command or what["do"]))
            except BeanliteError as error:
                if not share.server:
                    raise
                print(f"beanlite: {share.server}: {error}", file=sys.stderr)
                exit_code = max(exit_code, error.exit_code)
            if exit_code == INTERRUPTED:
                break
    return exit_code


def _tell_expiring(shares: list[routing.Share], what: Record) -> None:
    """Say on stderr how many jobs will be too old for the tube to which they are moved."""
    for share in shares:
        number, why = expiring(share.live, what, share.which)
        if number:
            print(f"beanlite: {prefix(share.server)}{why}", file=sys.stderr)


def _change(share: routing.Share, selection: Filter | None, what: Record, how: How, command: str) -> int:
    """Make a change in one server, and report it; return the exit code. BeanliteError: a job was not changed."""
    which = share.which
    with _progress(command) as progress:
        request = {**what, **by_me(), "dry_run": how.dry_run}
        outcome = changes.Result() if selection is None else changes.change(share.live, request, selection, progress)
    reasons = _reasons(share.live, what, which, outcome)
    word = changes.DONE_WORDS[what["do"]]
    if how.as_json:
        facts = {"done": outcome.done, "skipped": outcome.skipped, "interrupted": outcome.interrupted}
        ids = {"unchanged": sorted(outcome.unchanged_ids if which.ids is None else set(which.ids) - outcome.changed)}
        text = json.dumps({**server_key(share.server), "do": what["do"], **facts, "dry_run": how.dry_run, **ids})
    else:
        would = "would be " if how.dry_run else ""
        rest = f", {outcome.skipped:,} left unchanged" if outcome.skipped else ""
        rest += f" ({reasons})" if reasons and which.ids is None else ""
        end = ", then interrupted" if outcome.interrupted else ""
        text = f"{prefix(share.server)}{units.jobs(outcome.done)} {would}{word}{rest}{end}"
    if how.dry_run:
        print(text)
    else:
        print_done(text)
    if outcome.interrupted:
        return INTERRUPTED
    if which.ids is not None and outcome.done < len(set(which.ids)):
        these = "not all of these jobs could be" if len(set(which.ids)) > 1 else "the job could not be"
        raise BeanliteError(f"{these} {word}: {reasons}")
    return 0


def _reasons(server: Live, what: Record, which: Filter, outcome: changes.Result) -> str:
    """Name the jobs that were not changed, though selected, and why not; of many, the first ones."""
    unchanged = sorted(outcome.unchanged_ids)[:IDS_SHOWN]
    jobs: dict[int, Record] = {}
    if unchanged:
        with contextlib.suppress(BeanliteError):  # what was changed is told all the same
            jobs = {job["id"]: job for job in server.list_jobs({"ids": unchanged})["jobs"]}
    ids_by_reason: dict[str, list[int]] = {}
    for job_id in unchanged:
        job = jobs.get(job_id, {"state": "in another state", "tube": ""})
        why = "in that tube already" if what["do"] == "move" and job["tube"] == what["to"] else job["state"]
        if (what["do"], why) == ("release", "reserved"):
            why = "offered and not taken, or was reserved since"
        ids_by_reason.setdefault(why, []).append(job_id)
    missing = sorted(set(which.ids or ()) - outcome.changed - outcome.unchanged_ids)
    if missing:
        fits = "" if which.criteria().keys() == {"ids"} else ", or not what the options ask for"
        ids_by_reason[f"gone{fits}"] = missing
    parts = [f"{ids_text(ids)} {'is' if len(ids) == 1 else 'are'} {why}" for why, ids in ids_by_reason.items()]
    more = outcome.skipped - len(unchanged)
    return "; ".join([*parts, *([f"and {more:,} more"] if more > 0 else ())])


def _ask(shares: list[routing.Share], what: Record, which: Filter) -> list[Filter | None]:
    """Ask the operator to confirm the number of jobs; return their filters. BeanliteError: not confirmed.

    If a server has none its filter is None, and if all have none nothing is asked: what is put later has not been
    agreed to.
    """
    trials = [changes.trial(share.live, what, share.which) for share in shares]
    count = sum(trial.done for trial in trials)
    if count:
        pairs = zip(shares, trials, strict=True)
        each = ", ".join(f"{trial.done:,} in {share.server}" for share, trial in pairs if share.server and trial.done)
        jobs = units.jobs(count) + (f" ({each})" if each else "")
        question = f"{what['do'].capitalize()} {jobs} {filter_text(which)}".rstrip()  # which are not the ids
        if not _confirmed(f"{question}?"):
            raise BeanliteError(f"no job was {changes.DONE_WORDS[what['do']]}")
    return [
        share.which.model_copy(update={"up_to_id": trial.last_id}) if trial.done else None
        for share, trial in zip(shares, trials, strict=True)
    ]


def _as_of(which: Filter, moment_s: float) -> Filter:
    """Return the filter without what has grown old enough since a moment of the monotonic clock, or come to its state.

    That has not been agreed to.
    """
    passed_s = time.monotonic() - moment_s
    return settled(after(which, passed_s), passed_s)


def _confirmed(question: str) -> bool:
    """Ask the operator; the end of the input (Ctrl-D) means no."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as error:
        print(file=sys.stderr)  # the cursor is still behind the question
        if isinstance(error.__context__, EOFError):
            return False
        raise KeyboardInterrupt from error


@contextlib.contextmanager
def _progress(word: str) -> Iterator[Callable[[changes.Result], None]]:
    """Show the progress of a change in a line on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        yield lambda outcome: print(f"\r{word}: {units.jobs(outcome.done)}", end="", file=sys.stderr, flush=True)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
