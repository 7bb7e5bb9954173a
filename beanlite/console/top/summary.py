"""What ``beanlite top`` says of a server as a whole, and all of it once, for scripts."""

import sys
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from rich.text import Text

from beanlite.beanstalk.client import address_text
from beanlite.console import listing, tables, units
from beanlite.console.filters import STATES
from beanlite.console.several import Places, at_once
from beanlite.console.top.layout import TUBES
from beanlite.console.top.sampling import Sample, merged, sample_twice
from beanlite.console.why import STYLES, told
from beanlite.errors import BeanliteError

# From this age on the screen shows how old the list of tubes is.
_OLD_S: Final = 2.0
# How many findings the screen shows.
_FINDINGS: Final = 3
_NONE_AWAY: Final[Mapping[str, str]] = MappingProxyType({})
# How long the first screen may take of several servers.
_ONCE_S: Final = 30.0
# The most rows of a table.
ROWS: Final = 200


def summary(sample: Sample, name: str, findings: int = _FINDINGS, away: Mapping[str, str] = _NONE_AWAY) -> Text:
    """Return the facts about the server as a whole, on five lines of no more than 80 characters, and what is wrong.

    ``findings``: how many of these it has at most. ``away``: why servers among several are not among them.
    """
    stats = sample.stats
    now, middle, worst = map(units.milliseconds, sample.latency)
    jobs = ", ".join(f"{units.short(stats[f'current-jobs-{state}'])} {state}" for state in STATES)
    known = [what for what in ("puts", "reserves", "deletes", "batches") if f"{what}_per_s" in stats]
    rates = ", ".join(f"{units.rate(stats[f'{what}_per_s'])} {what}/s" for what in known)
    trouble = [word for key, word in (("disk-full", "DISK FULL"), ("draining", "DRAINING")) if stats[key] == "true"]
    memory = f"{units.size(stats['memory-used'])} of {units.size(stats['memory-max'])}"
    clients = f"{units.short(stats['current-connections'])} clients, {units.short(stats['current-waiting'])} wait"
    old_s = sample.at_s - sample.tubes_at_s
    old = f"; tubes as of {units.age(old_s)} ago" if old_s >= _OLD_S else ""
    one = f"{stats['version']} at {name}, up {units.age(stats['uptime'])}{old}" if "version" in stats else ""
    lines = (
        ("server", one) if one else ("servers", f"{name}{old}"),
        ("jobs", f"{jobs}; {units.short(stats['current-tubes'])} tubes"),
        ("rates", rates),
        ("latency", f"{now}; of the last minute: median {middle}, worst {worst}"),
        ("memory", f"{memory}; {clients}; -wal {units.size(stats['journal-wal-bytes'])}"),
    )
    text = Text(no_wrap=True, overflow="ellipsis")
    for title, line in lines:
        text.append(f"{title:<9}", style="bold").append(f"{line}\n")
    text.right_crop(1)
    if trouble:
        text.append(f"  {' '.join(trouble)}", style="bold red")
    for server, why in away.items():
        text.append(f"\n{'away':<9}{server}: {units.on_one_line(why)}", style="bold red")
    for finding in sample.findings[:findings]:
        text.append(f"\n{finding['severity']:<9}", style=STYLES[finding["severity"]])
        text.append(units.on_one_line(told(finding)))
    more = len(sample.findings) - findings
    return text.append(f"\n{'':9}and {more} more: beanlite why", style="dim") if more > 0 else text


def heading(places: Places) -> str:
    """Return the name of the server, or of all."""
    if len(places.places) == 1:
        return " or ".join(address_text(each) for each in places.places[0].addresses)
    return ", ".join(place.name for place in places.places)


def print_once(places: Places) -> dict[str, str]:
    """Print what the first screen shows, after the second that it takes to measure rates; return why servers are away.

    BeanliteError: that fails in all of them.
    """
    errors: Mapping[str, BeanliteError] = {}
    if len(places.places) == 1:
        samples = {"": sample_twice(places.places[0], is_one_of_several=False)}
    else:
        calls = {place.name: partial(sample_twice, place, is_one_of_several=True) for place in places.places}
        samples, errors = at_once(calls, _ONCE_S)
    if not samples:
        raise next(iter(errors.values()))
    sample = merged(samples.values())
    away = {name: str(error) for name, error in errors.items()}
    for line in summary(sample, heading(places), len(sample.findings), away).split("\n"):
        line.truncate(tables.width_of_stdout(), overflow="ellipsis")
        print(line.plain)  # noqa: T201 - as the command line does
    print()  # noqa: T201 - likewise
    rows = listing.first(sample.tubes, TUBES[1].key, largest=True, limit=ROWS)
    columns = [
        tables.SERVER,
        *(tables.Column(each.key, each.title, each.show, not each.width, leaves=each.from_width) for each in TUBES),
    ]
    columns = [column for column in columns if column.key != "trend"]  # there is none yet
    columns.append(tables.Column("shut", "shut by", tables.shut_by, leaves=1))
    if not tables.print_table(rows, columns):
        print("no tubes", file=sys.stderr)  # noqa: T201 - likewise
    elif len(rows) < len(sample.tubes):
        print(f"These are {len(rows)} of {len(sample.tubes):,} tubes: beanlite tubes shows all", file=sys.stderr)  # noqa: T201
    return away
