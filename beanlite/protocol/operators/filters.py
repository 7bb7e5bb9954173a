"""The filter by which an operator selects jobs: a part of requests, from which options and forms are made.

This file is not compiled, because pydantic inspects the classes. ``docs/protocol.md`` describes the fields.
"""

from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from beanlite.core.job import ID_MASK, U32_MAX
from beanlite.core.tube import is_tube_name
from beanlite.core.where import Where

IDS_MAX: Final = 1000
CONDITIONS_MAX: Final = 8  # of values in a body
# How many characters these may have.
HOST_MAX: Final = 200
WHERE_MAX: Final = 1000


class Criterion(NamedTuple):
    """The words in which people are asked for the value of a field, and told of it."""

    help: str  # of its option
    phrase: str = ""  # of jobs that fit, with {} for the value; not of a tube or a state, which are told in one phrase
    key: str = ""  # in a line of text that describes jobs, with > or < behind it if the value is a bound
    example: str = ""
    short: str = ""
    value: str = ""  # what stands for it in --help
    number: str = "N"


def check_tube(name: bytes) -> bytes:
    """Return the name of a tube. ValueError: no tube can have it."""
    if not is_tube_name(name):
        raise ValueError("no tube can have this name")
    return name


def check_like(pattern: str) -> str:
    """Return a pattern of names of tubes. ValueError: no tube can have a name that it fits."""
    check_tube(pattern.replace("*", "a").replace("?", "a").encode())
    return pattern


def check_where(where: list[str] | None) -> list[str] | None:
    """Return paths with a value each. ValueError: one is not so, or too long, or they are too many or none."""
    if where is not None and not 0 < len(where) <= CONDITIONS_MAX:
        raise ValueError(f"there are 1 to {CONDITIONS_MAX}, not {len(where)}")
    if any(len(condition) > WHERE_MAX for condition in where or ()):
        raise ValueError(f"{WHERE_MAX} characters at most")
    Where(where or [])
    return where


JobId = Annotated[int, Field(ge=0, le=ID_MASK)]
_Tube = Annotated[str, AfterValidator(lambda name: check_tube(name.encode()).decode())]
# Optional inside, so that the bounds are found in the field.
_Age = Annotated[float | None, Field(ge=0, le=1e11)]  # some thousand years
_Moment = Annotated[float | None, Field(ge=0, le=253_402_300_799)]  # the end of the year 9999
_Pri = Annotated[int | None, Field(ge=0, le=U32_MAX)]
_State = Literal["ready", "delayed", "reserved", "buried"]
_Why = Literal["client", "operator", "tries", "expired"]
_Times = Annotated[int | None, Field(ge=0, le=U32_MAX)]


def _as_shown(host: str | None) -> str | None:
    """Return an address of IPv6 as the server spells it."""
    try:
        address = None if host is None else ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return None if address is None else str(mapped or address)


class Filter(BaseModel):
    """A selection of jobs, which match all criteria; None matches any job."""

    model_config = ConfigDict(defer_build=True)  # only requests are validated

    ids: list[JobId] | None = Field(None, max_length=IDS_MAX)
    tube: Annotated[
        _Tube | None,
        Criterion("Jobs in this tube; * is any text, ? any character.", key="tube", example="web*", short="-t"),
    ] = None
    tube_like: Annotated[str, Field(max_length=200), AfterValidator(check_like)] | None = None
    state: Annotated[
        _State | None, Criterion("Jobs that are ready, reserved, delayed or buried.", key="state", short="-s")
    ] = None
    older_s: Annotated[
        _Age,
        Criterion(
            "Put longer ago than this, such as 90s, 5min, 3h or 2d.", "put more than {} ago", key="age>", example="2d"
        ),
    ] = None
    newer_s: Annotated[
        _Age, Criterion("Put more recently than this.", "put less than {} ago", key="age<", example="5min")
    ] = None
    in_state_s: Annotated[
        _Age, Criterion("In their state for at least this long.", "so for {}", key="in-state>", example="1h")
    ] = None
    since_at: Annotated[
        _Moment,
        Criterion(
            "In their state since this moment or later: 02:00, 24h (ago) or 2026-11-27 14:30.",
            "so since {} UTC or later",
            key="since",
            example="02:00",
        ),
    ] = None
    until_at: Annotated[
        _Moment,
        Criterion(
            "In their state since this moment or earlier; not: due by then.",
            "so since {} UTC or earlier",
            key="until",
            example="24h",
        ),
    ] = None
    pri_min: Annotated[
        _Pri, Criterion("With this pri or a less urgent one.", "of pri {} or more", key="pri>", example="1024")
    ] = None
    pri_max: Annotated[
        _Pri, Criterion("With this pri or a more urgent one.", "of pri {} or less", key="pri<", example="10")
    ] = None
    tries_min: Annotated[
        _Times, Criterion("With so many tries or more.", "with {} tries or more", key="tries>", example="5")
    ] = None
    reserves_min: Annotated[
        _Times,
        Criterion("Reserved this many times or more.", "reserved {} times or more", key="reserves>", example="5"),
    ] = None
    timeouts_min: Annotated[
        _Times,
        Criterion("Timed out this many times or more.", "timed out {} times or more", key="timeouts>", example="2"),
    ] = None
    releases_min: Annotated[
        _Times,
        Criterion("Released this many times or more.", "released {} times or more", key="releases>", example="2"),
    ] = None
    why: Annotated[
        _Why | None, Criterion("Buried by a client or an operator, after too many tries, or as expired.", key="why")
    ] = None
    note_text: Annotated[
        str | None,
        Criterion("With this text in the note; case matters.", "with {!r} in the note", key="note", example="INC-4711"),
    ] = None
    holder: Annotated[
        int | None,
        Field(ge=0),
        Criterion(
            'Held by this connection, as numbered by "clients".',
            "held by connection {}",
            key="holder",
            example="17",
            number="NUMBER",
        ),
    ] = None
    holder_host: Annotated[
        str | None,
        Field(min_length=1, max_length=HOST_MAX),
        AfterValidator(_as_shown),
        Criterion(
            "Held by a client of this host, such as 10.0.0.5; or unix.",
            "held by a client of {}",
            key="host",
            example="10.0.0.5",
            value="HOST",
        ),
    ] = None
    text: Annotated[
        str | None,
        Criterion("With this text in the body; case matters.", "with {!r} in the body", key="text", example="timeout"),
    ] = None
    where: Annotated[
        list[str] | None,
        BeforeValidator(lambda where: [where] if isinstance(where, str) else where),
        AfterValidator(check_where),  # the length, too: behind another validator pydantic would take that of None
        Criterion(
            "With this value at this path in a JSON body: customer=4711, items[0].state=new. Repeatable.",
            "whose body has {}",
            value="PATH=VALUE",
        ),
    ] = None
    up_to_id: Annotated[int | None, Field(ge=0, le=ID_MASK)] = None

    @property
    def looks_into_bodies(self) -> bool:
        """Whether it tells what is in bodies, or in notes, which may quote them."""
        return self.text is not None or self.where is not None or self.note_text is not None

    def criteria(self) -> dict[str, Any]:
        """Return the criteria that are given, as a part of a request."""
        return {key: value for key in Filter.model_fields if (value := getattr(self, key)) is not None}


CRITERIA: Final = {
    key: each for key, field in Filter.model_fields.items() for each in field.metadata if isinstance(each, Criterion)
}
# The names of fields in options and forms, which take a length of time in any unit, and a moment in several forms.
NAMES: Final = {key: key.removesuffix("_s").removesuffix("_at") for key in Filter.model_fields}


def most_of(field: FieldInfo, otherwise: int) -> int:
    """Return the largest number that a field takes, ``otherwise`` if there is none."""
    return next((rule.le for rule in field.metadata if hasattr(rule, "le")), otherwise)
