"""Filters as operators give them, and as they are told of them; and the names of tubes in them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from beanlite.console import units
from beanlite.core.tube import is_tube_name
from beanlite.errors import ConfigError

if TYPE_CHECKING:
    from beanlite.protocol.operators.filters import Filter

Record = dict[str, Any]
"""The facts about a job, a tube or a client, under the protocol's names."""

# How a value is told, by what its key has behind the name.
_WORDS: Final[dict[str, Callable[[Any], str]]] = {"_s": units.age, "_at": units.utc}
# What makes a name stand for any number of tubes, of which there may be none.
WILDCARDS: Final = frozenset("*?")
STATES: Final = ("ready", "reserved", "delayed", "buried")
# Why a job is buried.
WHYS: Final = ("client", "operator", "tries", "expired")
# The largest number that a database takes: no id of a job is larger.
ID_MAX: Final = (1 << 63) - 1


class JobId(int):
    """The id of a job, perhaps with its server: ``two:17``."""

    server: str | None = None
    was_there = False
    """Whether a put was answered with the id of a job that was there before, as its tube takes each body once."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an id that an operator has given. ValueError: it is none."""
        server, _, number = text.rpartition(":")
        if not number.isascii() or not number.isdecimal():
            raise ValueError(f"{number!r} is not a whole number")
        if len(number.lstrip("0")) > len(str(ID_MAX)) or int(number) > ID_MAX:
            raise ValueError(f"{number} is more than {ID_MAX}")
        if int(number) < 1:
            raise ValueError(f"{number} is less than 1")
        return cls.of(server, int(number))

    @classmethod
    def of(cls, server: str, number: int) -> Self:
        """Make the id of a job of a server; of a single server, which has no name, the id alone."""
        job_id = cls(number)
        job_id.server = server or None
        return job_id

    def record(self) -> Record:
        """Return the id as JSON has it, with ``put`` as false if the job was there before."""
        server = {"server": self.server} if self.server else {}
        return {**server, "id": int(self), **({"put": False} if self.was_there else {})}

    def __str__(self) -> str:
        return f"{self.server}:{self:d}" if self.server else f"{self:d}"


def pattern_of(text: str) -> str:
    """Return what names have to be like for a text: itself if it has a wildcard, or to have it in them; "": any."""
    return text if not text or WILDCARDS & set(text) else f"*{text}*"


def own_ids(ids: Sequence[int], name: str = "") -> list[int]:
    """Return ids for a single server, or a file, which may have a name. ConfigError: one names another server."""
    for job_id in ids:
        if isinstance(job_id, JobId) and job_id.server not in {None, name}:
            if name:
                raise ConfigError(f"there is no server {job_id.server}, only {name}")
            raise ConfigError(f"{job_id} names one of several servers, and only one is looked at: say {int(job_id)}")
    return [int(job_id) for job_id in ids]


def job_name(job: Record) -> str:
    """Return by what a job is named: its id, of several servers with the server."""
    return f"{job['server']}:{job['id']}" if "server" in job else str(job["id"])


def tube_name(tube: Record) -> str:
    """Return by what a tube is named: of several servers with the server."""
    return f"{tube['server']}:{tube['name']}" if "server" in tube else str(tube["name"])


def identity(tube: Record) -> tuple[str, str]:
    """Return by what a tube is told from the others: several servers may have one of this name."""
    return tube.get("server", ""), tube["name"]


def filter_by(**criteria: Any) -> "Filter":  # noqa: ANN401 - as the fields of the model
    """Return a filter, unchecked but for words and names. ConfigError: there can't be such ones.

    A tube with a wildcard stands for all whose names match.
    """
    # pydantic is slow to import
    from beanlite.protocol.operators.filters import (  # noqa: PLC0415
        HOST_MAX,
        Filter,
        check_like,
        check_where,
    )

    tube = criteria.get("tube")
    if tube is not None:
        if WILDCARDS & set(tube):
            criteria |= {"tube": None, "tube_like": tube}
        else:
            encode_tube(tube)
    if isinstance(criteria.get("where"), str):
        criteria["where"] = [criteria["where"]]
    filter_ = Filter.model_construct(**criteria)
    if filter_.state is not None and filter_.state not in STATES:
        raise ConfigError(f"there is no state {filter_.state!r}, only {', '.join(STATES)}")
    if filter_.why is not None and filter_.why not in WHYS:
        raise ConfigError(f"why: there is no {filter_.why!r}, only {', '.join(WHYS)}")
    if filter_.holder_host is not None and not 0 < len(filter_.holder_host) <= HOST_MAX:
        raise ConfigError(f"holder-host: an address has 1 to {HOST_MAX} characters")
    try:
        if filter_.tube_like is not None:
            check_like(filter_.tube_like)
    except ValueError:
        raise ConfigError(f"no tube can have a name like {filter_.tube_like!r}") from None
    try:
        check_where(filter_.where)
    except ValueError as error:
        raise ConfigError(f"where: {error}") from None
    return filter_


def after(which: "Filter", passed_s: float) -> "Filter":
    """Return the filter that selects the same jobs a time later, when all of them are older by that."""
    ages = {name: getattr(which, name) for name in ("older_s", "newer_s", "in_state_s")}
    return which.model_copy(update={name: age_s + passed_s for name, age_s in ages.items() if age_s is not None})


def settled(which: "Filter", passed_s: float) -> "Filter":
    """Return the filter without the jobs that have come to its state since a time ago; as it is, if it has none."""
    if (which.state, which.why, which.holder, which.holder_host) == (None,) * 4:  # only reserved jobs have a holder
        return which
    return which.model_copy(update={"in_state_s": max(which.in_state_s or 0.0, passed_s)})


def filter_text(which: "Filter") -> str:
    """Describe a filter, to follow a number of jobs: "buried in tube mail, put more than 2 d ago"."""
    from beanlite.protocol.operators.filters import CRITERIA, NAMES  # noqa: PLC0415 - likewise

    tube = which.tube or which.tube_like
    where = " ".join(part for part in (which.state, tube and f"in tube {tube}") if part)
    parts = [where] if where else []
    for key, value in which.criteria().items():
        if key in CRITERIA and CRITERIA[key].phrase:
            parts.append(CRITERIA[key].phrase.format(_value_text(key.removeprefix(NAMES[key]), value)))
    return ", ".join(parts)


def _value_text(end: str, value: Any) -> str:  # noqa: ANN401 - as in _WORDS
    return " and ".join(value) if isinstance(value, list) else _WORDS.get(end, str)(value)


def encode_tube(name: str) -> bytes:
    """Return the name of a tube as it is sent. ConfigError: no tube can have it.

    In a command's line, what follows a line end in the name would be carried out as a command of its own.
    """
    data = name.encode(errors="surrogateescape")
    if not is_tube_name(data):
        raise ConfigError(f"no tube can have the name {name!r}")
    return data
