"""The thirty questions of an operator on call, with their true answers in a night: by its script, not by a server.

Workers go on while somebody looks: numbers are those of the beginning, unless an answer says more.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from tests.night.live import CRASH_S, MAILERS, STUCK
from tests.night.script import (
    DEAD_WEBHOOKS,
    DELETED,
    DELETED_JOBS,
    HOUR_S,
    LARGEST,
    MINUTE_S,
    POISON_RESERVES,
    WAVE_JOBS,
    WAVES_MIN,
    Night,
    tube_of,
)


class Question(NamedTuple):
    """A question."""

    asks: str
    answer: Callable[[Night], str]


def _worst(night: Night) -> str:
    del night
    return (
        "urgent: mail hangs (after a minute), a job of thumbnails kills its workers; then: nobody consumes legacy-sync"
        " and emial, puts into invoices are refused, events grows, search-index is held back, translations is late,"
        " waves of reminders are due, reports.nightly is paused, jobs of payments and webhooks are buried"
    )


def _poison(night: Night) -> str:
    job = night.poison
    return (
        f"job {job.id} of thumbnails, {job.body}: {POISON_RESERVES} times before the scene began,"
        f" and once every {CRASH_S:.0f} s since"
    )


def _unconsumed(night: Night) -> str:
    tubes = [f"{tube} ({night.count(tube, 'ready'):,} jobs)" for tube in ("legacy-sync", "emial")]
    return f"{' and '.join(tubes)}; for 9 and for 7 hours"


def _empty(night: Night) -> str:
    tube = tube_of("backfill")
    ready = night.count("backfill", "ready")
    return f"{ready:,} jobs at {tube.going:.0f} a second: {ready / tube.going / 60:.0f} minutes after the beginning"


def _due(night: Night) -> str:
    due = night.due(30 * MINUTE_S)
    return f"{due.total():,}: {', '.join(f'{jobs:,} in {tube}' for tube, jobs in due.most_common())}"


def _waves(night: Night) -> str:
    del night
    minutes = ", ".join(map(str, WAVES_MIN))
    return f"{WAVE_JOBS:,} at a time, within 20 s, {minutes} minutes after the beginning"


def _buried(night: Night) -> str:
    tubes = [f"{night.count(tube, 'buried')} in {tube}" for tube in ("payments", "webhooks")]
    oldest_s = max(job.in_state_s for job in night.present if job.state == "buried")
    return f"{' and '.join(tubes)}; the first for {oldest_s / HOUR_S:.1f} hours"


def _errors(night: Night) -> str:
    return "; ".join(f"{jobs} of {note!r}" for note, jobs in night.errors("payments"))


def _timeouts(night: Night) -> str:
    note, jobs = night.errors("payments")[0]
    return f"{jobs}, whose note is {note!r}; kick them by their ids, or by a filter that finds the note"


def _customer(night: Night) -> str:
    (first, jobs), (second, fewer) = night.customers()[:2]
    return f"{first}, with {jobs:,}; {second} is next, with {fewer:,}"


def _of_customer(night: Night) -> str:
    jobs = [job for job in night.present if job.tube == "payments" and job.body.get("customer") == LARGEST]
    buried = [str(job.id) for job in jobs if job.state == "buried"]
    return f"buried: {', '.join(buried) or 'none'}; those that wait come and go"


def _deleted(night: Night) -> str:
    jobs = night.deleted
    return f"ann, at 02:14: {DELETED_JOBS} jobs of exports, from job {jobs[0].id} to job {jobs[-1].id}"


def _fate(night: Night) -> str:
    job = night.deleted[0]
    return f"(job {job.id}) put by shop1/exports/88, and deleted by ann at 02:14, before any worker had it"


QUESTIONS: Final = (
    Question("What is wrong, the worst first?", _worst),
    Question(
        "Which tube hangs, and since when?",
        lambda _: "mail: since some seconds after the beginning, when its workers took their last jobs",
    ),
    Question(
        "Which workers hang there, and where do they run?",
        lambda _: ", ".join(f"web3/mailer/{2210 + number}" for number in range(MAILERS)) + ": by their names on web3",
    ),
    Question(
        "A worker of orders has had a job since the beginning. Which worker, and which job?",
        lambda _: f"{STUCK}; the job is the one that it has reserved",
    ),
    Question("Which job kills its workers, how often has it, and what is in it?", _poison),
    Question("Which tubes does nobody consume? How many jobs wait there, and for how long?", _unconsumed),
    Question(
        "One of them is a misspelt name. Of which tube, and with which command do its jobs get into that one?",
        lambda _: "emial is mail: move the jobs of emial to mail",
    ),
    Question(
        "Which tube is paused, by whom, since when and until when? How many jobs wait?",
        lambda night: f"reports.nightly, by bob, at 03:10 for 48 hours; {night.count('reports.nightly', 'ready'):,}",
    ),
    Question(
        "Which tube grows, how fast, and when will it be empty?",
        lambda _: "events: {0.coming:.0f} a second come and {0.going:.0f} go; never".format(tube_of("events")),
    ),
    Question("When will backfill be empty?", _empty),
    Question(
        "Where are puts refused, why, and who set the limit, when?",
        lambda _: "invoices has 500 jobs, and max_jobs=500; carl, at 04:05",
    ),
    Question(
        "What keeps the jobs of search-index waiting? Who set that?",
        lambda _: "max_reserved=2, while two workers have a job each for long; carl, at 04:20",
    ),
    Question(
        "Which tube is late, though its workers work? By how much, and why?",
        lambda _: "translations: by some 5 hours; its one worker does a job in 10 s",
    ),
    Question("How many delayed jobs are due within half an hour, and in which tubes?", _due),
    Question("When do the next waves of reminders come, and how large is each?", _waves),
    Question("How many jobs are buried, where, and since when?", _buried),
    Question("What are the most frequent errors of the buried jobs of payments?", _errors),
    Question("How many of these are timeouts at the provider, and how are only those tried again?", _timeouts),
    Question(
        "Which jobs have died of a policy, after how many tries, and of what?",
        lambda _: f"{DEAD_WEBHOOKS} of webhooks, after 3 tries (max_tries=3, set by ann): 410 Gone",
    ),
    Question("Which customer has the most jobs?", _customer),
    Question(f"Which jobs of customer {LARGEST} are buried in payments?", _of_customer),
    Question(
        "Which jobs are reserved, the longest first, and by whom?",
        lambda _: f"those of web3/mailer and {STUCK} since the beginning, those of search1 and search2 as well",
    ),
    Question(f"Who deleted the jobs of customer {DELETED}? When, and how many?", _deleted),
    Question(
        "Can they be got back, and how?",
        lambda _: "yes: the history has their bodies; they are put again, with new ids",
    ),
    Question(
        "What have operators changed since 02:00?",
        lambda _: (
            f"02:14 ann deleted {DELETED_JOBS} jobs of exports; 03:10 bob paused reports.nightly; 04:05 carl set"
            " max_jobs=500 for invoices; 04:20 carl set max_reserved=2 for search-index; at the beginning ann set the"
            " schedule"
        ),
    ),
    Question(
        "Which jobs fail again and again?",
        lambda night: f"job {night.poison.id} of thumbnails; far behind, the dead ones of webhooks",
    ),
    Question("Is the disk filling? How much memory do the jobs take?", lambda _: "no; about 23 MB of what is allowed"),
    Question("When was the last backup?", lambda _: "never: none are made"),
    Question(
        "When does the schedule put its next job, where, and who set it?",
        lambda _: "nightly: at 03:00 in Berlin, into reports.nightly; ann",
    ),
    Question("What became of the first job of exports that ann deleted? Who had put it?", _fate),
)
