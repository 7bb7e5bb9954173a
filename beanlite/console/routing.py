"""Which of several servers a change is for. A single server is asked as it is, and has no name."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from beanlite.console import changes, listing
from beanlite.console.filters import JobId, Record, own_ids
from beanlite.console.live import Live
from beanlite.console.several import Servers, Several
from beanlite.core.phrases import jobs_text, named as named_in
from beanlite.errors import BeanliteError, ConfigError

if TYPE_CHECKING:
    from beanlite.protocol.operators.filters import Filter


@contextmanager
def naming(server: str) -> Iterator[None]:
    """Have errors tell which of several servers they are of; a single one has no name."""
    try:
        yield
    except BeanliteError as error:
        if not server:
            raise
        raise type(error)(f"{server}: {error}") from error


class Share(NamedTuple):
    """What a change is for in one server."""

    server: str
    """Its name; empty if there is only one."""
    live: Live
    which: "Filter"
    """The jobs."""


def shares(servers: Servers, which: "Filter") -> list[Share]:
    """Return the share of each server in a change. BeanliteError: what it is for is not known, or is away.

    Jobs are where their ids say; those of a tube where it belongs, and all others in any server.
    """
    if not isinstance(servers, Several):
        own = None if which.ids is None else own_ids(which.ids, servers.server)
        return [Share("", servers, which.model_copy(update={"ids": own}))]
    if which.ids is not None:
        ids = _by_server(servers, [each if isinstance(each, JobId) else JobId(each) for each in which.ids])
        servers.away.clear()  # none of those is needed
        return [Share(name, servers.one(name), which.model_copy(update={"ids": ids[name]})) for name in ids]
    names = list(servers.lives) if which.tube is None else servers_of(servers, which.tube)
    return [Share(name, servers.lives[name], which) for name in names]


def _by_server(servers: Several, ids: list[JobId]) -> dict[str, list[int]]:
    """Return the ids by their servers, which are asked for those that are given without. BeanliteError: not known."""
    by_server: dict[str, list[int]] = defaultdict(list)
    bare = sorted({int(job_id) for job_id in ids if job_id.server is None})
    places: dict[int, list[str]] = {job_id: [] for job_id in bare}
    if bare:
        for name, there in servers.each(lambda live: _those_of(live, bare)).items():
            for job_id in there:
                places[job_id].append(name)
    if bare and servers.away:
        raise BeanliteError(
            f"job {bare[0]} may be in {' or '.join(servers.away)}; say where it is, as in {_example(servers, bare[0])}"
        )
    for job_id, names in places.items():
        if not names:
            raise BeanliteError(f"there is no job {job_id}")
        if len(names) > 1:
            which = " or ".join(f"{name}:{job_id}" for name in names)
            raise BeanliteError(f"{all_of(names)} have a job {job_id} each; say {which}")
        by_server[names[0]].append(job_id)
    for each in ids:
        if each.server is not None:
            servers.one(each.server)
            by_server[each.server].append(int(each))
    return by_server


def all_of(names: list[str]) -> str:
    """Return names of servers as text: one, two and three."""
    return named_in(names, len(names))


def _example(servers: Several, job_id: int) -> str:
    return f"{next(iter(servers.places))}:{job_id}"


def _those_of(live: Live, ids: list[int]) -> list[int]:
    """Return which of these jobs a server has."""
    return [
        job["id"]
        for at in range(0, len(ids), listing.NAMED_MAX)
        for job in listing.everything(live.list_jobs, {"ids": ids[at : at + listing.NAMED_MAX]}, "jobs")
    ]


def servers_of(servers: Servers, tube: str) -> list[str]:
    """Return the servers that have a tube, and in which it belongs. BeanliteError: none has it, or one is away."""
    homes = list(servers.lives)
    if not isinstance(servers, Several):
        return homes
    if servers.fleet is not None:
        homes = [member.name for member in servers.fleet.homes(tube.encode())]
        for name in homes:
            servers.one(name)
    have = [
        name for name, reply in servers.each(lambda live: live.list_tubes({"names": [tube]})).items() if reply["tubes"]
    ]
    for name in homes if servers.fleet is not None else ():  # it may not have answered
        servers.one(name)
    names = [name for name in homes if name in have]
    if names:
        if servers.fleet is not None:
            servers.away.clear()  # none of those is needed
        return names
    if have:
        raise BeanliteError(
            f"tube {tube} belongs to {all_of(homes)}, and only {all_of(have)} has it: name that server by --connect"
        )
    raise servers.no_tube(tube)


def home(servers: Servers, tube: str) -> tuple[str, Live]:
    """Return the server into which jobs of a tube are put. ConfigError: no file says so. Unreachable: it is away."""
    if not isinstance(servers, Several):
        return "", servers
    if servers.fleet is None:
        raise ConfigError(f"nothing says which server has tube {tube}: name one by --connect, or a file by --servers")
    name = servers.fleet.home(tube.encode()).name
    return name, servers.one(name)


def check_target(servers: Servers, what: Record, shares: list[Share]) -> None:
    """Check that jobs are moved or copied within the server in which they are. BeanliteError: the tube is another's."""
    if servers.fleet is None:
        return
    where = servers.fleet.home(what["to"].encode()).name
    for share in shares:
        if share.server != where:
            count = changes.trial(share.live, what, share.which).done
            if count:
                raise BeanliteError(
                    f"tube {what['to']} belongs to {where}, and {jobs_text(count)} would have to leave {share.server};"
                    f" none was {changes.DONE_WORDS[what['do']]}"
                )
