"""The objects that operators' commands take as their bodies.

This file is not compiled, because pydantic inspects the classes. ``docs/protocol.md`` describes their fields.
"""

from base64 import b64decode
from ipaddress import ip_address
from typing import Annotated, ClassVar, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from beanlite.core.job import SLICE, U32_MAX
from beanlite.core.notes import NOTE_MAX, is_note
from beanlite.core.policies import ROWS_MAX, is_pattern, text_of_value
from beanlite.core.recurrence import WHEN_MAX, ZONE_MAX
from beanlite.core.schedules import NAME_MAX, is_schedule_name
from beanlite.core.tube import PERSON_BYTES_MAX, is_person
from beanlite.core.where import Paths
from beanlite.host.places import host_and_port
from beanlite.protocol.operators.filters import IDS_MAX, Filter, check_tube
from beanlite.protocol.operators.parts import has_more_parts
from beanlite.settings.wording import in_our_words

RECORDS_MAX: Final = 200
PREVIEW_MAX: Final = 4096
# How many facts can be asked for with ``only``, which returns them for all tubes that a slice looks at.
ONLY_MAX: Final = 2
# Jobs changed by a slice: writing them and their events must not keep others waiting.
CHANGED_MAX: Final = 100
# Paths at which values are told, and jobs that are grouped in a slice.
PATHS_MAX: Final = 8
GROUPED_MAX: Final = 1000
# Names in the certificate of a client.
NAMES_MAX: Final = 1000
# If a request has more mistakes than this, they are only counted: pydantic would list all of them, which takes so long
# that other clients wait.
_MISTAKES_MAX: Final = 1000

# No request has more commas and opening brackets outside of its texts, and no change of policies for each row. One that
# has is not parsed: others would wait.
_PARTS_MAX: Final = 10_000
_PARTS_PER_ROW: Final = 30
# No pattern has more keys.
_KEYS_MAX: Final = 100
# No value of a policy is longer: the longest names a tube.
_VALUE_MAX: Final = 300

_CURSOR: Final = "^[0-9]{1,40}-[0-9]{1,20}$"


def _person(name: str) -> str:
    if not is_person(name):
        raise ValueError(f"a person's name is printable text of 1 to {PERSON_BYTES_MAX} bytes")
    return name


def _schedule_name(name: str) -> str:
    if not is_schedule_name(name):
        raise ValueError(f"the name of a schedule has 1 to {NAME_MAX} printable characters, and no blank")
    return name


def _note(text: bytes) -> bytes:
    if len(text) > NOTE_MAX or not is_note(text):
        raise ValueError(f"a note has at most {NOTE_MAX} bytes of UTF-8, and none of them is NUL")
    return text


def _address(text: str) -> str:
    if text != "unix":
        host, port = host_and_port(text)
        ip_address(host)
        if not 0 < port < 1 << 16:
            raise ValueError(f"{text} has no port")
    return text


def check_path(text: str) -> str:
    """Return a path in bodies. ValueError: it is none."""
    Paths([text])
    return text


def _decode(text: bytes) -> bytes:
    return b64decode(text, validate=True)  # a binascii.Error is a ValueError


TubeName = Annotated[bytes, AfterValidator(check_tube)]
Note = Annotated[bytes, AfterValidator(_note)]
Person = Annotated[str, AfterValidator(_person)]
ScheduleName = Annotated[str, AfterValidator(_schedule_name)]
Address = Annotated[str, Field(max_length=100), AfterValidator(_address)]
CertificateName = Annotated[str, Field(pattern="^cert:[!-~]{1,200}$")]
Path = Annotated[str, Field(max_length=200), AfterValidator(check_path)]
U32 = Annotated[int, Field(ge=0, le=U32_MAX)]
TubeFact = Literal[
    "name", "ready", "reserved", "delayed", "buried", "waiting", "total_jobs", "first_ready_s", "first_buried_s"
]
Cursor = Annotated[str, Field(pattern=_CURSOR)]
Limit = Annotated[int, Field(ge=1, le=RECORDS_MAX)]


class Request(BaseModel):
    """The base of all requests."""

    # Built at the start, unlike the filter, so that no client waits for it.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=False)
    parts_max: ClassVar[int] = _PARTS_MAX


class PagedRequest(Request):
    """A request that may take several slices."""

    after: Cursor | None = None

    @property
    def place(self) -> int | None:
        """The place to continue after; None: begin at the beginning."""
        return None if self.after is None else int(self.after.partition("-")[0])

    @property
    def bound(self) -> int:
        """The highest id to look at, fixed by the first slice for the others; 0 where there is no such bound."""
        return 0 if self.after is None else int(self.after.partition("-")[2])


class Selection(Filter, PagedRequest):
    """A request that selects jobs."""


class ListJobs(Selection):
    """The body of ``list-jobs``."""

    order: Literal["id", "queue"] | None = None
    limit: Limit | None = None
    preview: Annotated[int, Field(ge=0, le=PREVIEW_MAX)] | None = None
    notes: bool | None = None
    paths: Annotated[list[Path], Field(min_length=1, max_length=PATHS_MAX)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.order == "queue" and (self.tube is None or self.state in {None, "reserved"}):
            raise ValueError("the order of a queue needs a tube and a state, which is not reserved")
        return self


class GroupJobs(Selection):
    """The body of ``group-jobs``."""

    fact: Literal["tube", "state", "why", "note"] | None = None
    path: Path | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.fact is None) == (self.path is None):
            raise ValueError("it is either fact or path")
        return self


class ChangeJobs(Selection):
    """The body of ``change-jobs``."""

    do: Literal["kick", "bury", "delete", "release", "move", "copy", "reprioritise", "delay", "note"]
    to: TubeName | None = None
    pri: U32 | None = None
    delay_s: U32 | None = None
    note: Note | None = None
    by: Person | None = None
    dry_run: bool | None = None
    limit: Annotated[int, Field(ge=1, le=CHANGED_MAX)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.criteria():
            raise ValueError("no jobs are named")
        _require(self.do, "to", self.to, {"move", "copy"}, {"move", "copy"})
        _require(self.do, "pri", self.pri, {"reprioritise"}, {"bury", "release", "copy", "reprioritise"})
        _require(self.do, "note", self.note, {"note"}, {"note"})
        _require(self.do, "delay_s", self.delay_s or None, {"delay"}, {"release", "copy", "delay"})
        return self


def _require(do: str, key: str, value: object, required: set[str], allowed: set[str]) -> None:
    if value is None and do in required:
        raise ValueError(f"{do} needs {key}")
    if value is not None and do not in allowed:
        raise ValueError(f"{do} takes no {key}")


class SetPause(Request):
    """The body of ``set-pause``."""

    by: Person | None = None
    tube: TubeName
    pause_s: U32


class ListTubeStats(PagedRequest):
    """The body of ``list-tube-stats``."""

    names: list[TubeName] | None = Field(None, max_length=IDS_MAX)
    like: Annotated[str, Field(max_length=200)] | None = None
    order: TubeFact | None = None
    only: list[TubeFact] | None = Field(None, min_length=1, max_length=ONLY_MAX)
    limit: Limit | None = None
    due_s: U32 | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.due_s is not None and (self.order is not None or self.only is not None):
            raise ValueError("due_s takes no order and no only")
        if self.names is not None and self.like is not None:
            raise ValueError("it is either names or like")
        if self.only is not None and (self.order is not None or self.limit is not None):
            raise ValueError("only takes no order and no limit")
        return self


class Diagnose(Request):
    """The body of ``diagnose``."""

    tube: TubeName | None = None
    like: Annotated[str, Field(max_length=200)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tube is not None and self.like is not None:
            raise ValueError("it is either tube or like")
        return self


class ShowFlow(Request):
    """The body of ``show-flow``."""

    tube: TubeName | None = None
    range: Literal["5min", "hour", "day"]


class ListClients(PagedRequest):
    """The body of ``list-clients``."""

    limit: Limit | None = None


class NewJob(Request):
    """A job in ``put-jobs``."""

    body: bytes | None = None
    base64: Annotated[bytes, AfterValidator(_decode)] | None = None
    tube: TubeName | None = None
    pri: U32 | None = None
    delay_s: U32 | None = None
    ttr_s: U32 | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.body is None) == (self.base64 is None):
            raise ValueError("it is either body or base64")
        return self


class PutJobs(Request):
    """The body of ``put-jobs``."""

    jobs: Annotated[list[NewJob], Field(max_length=SLICE)]
    by: Person | None = None


def _pattern(pattern: bytes) -> bytes:
    if not is_pattern(pattern):
        raise ValueError("it is neither the name of a tube nor a pattern")
    return pattern


PolicyPattern = Annotated[bytes, AfterValidator(_pattern)]
PolicyValue = Annotated[str, Field(max_length=_VALUE_MAX), BeforeValidator(text_of_value)]
PolicyKeys = list[str] | Literal["all"]


class PolicyChange(Request):
    """What changes for the tubes that a pattern matches."""

    pattern: PolicyPattern
    set: dict[str, PolicyValue] | None = Field(None, max_length=_KEYS_MAX)
    unset: PolicyKeys | None = None


class SetPolicy(Request):
    """The body of ``set-policy``: a change for one pattern, or for several."""

    parts_max: ClassVar[int] = ROWS_MAX * _PARTS_PER_ROW

    pattern: PolicyPattern | None = None
    set: dict[str, PolicyValue] | None = Field(None, max_length=_KEYS_MAX)
    unset: PolicyKeys | None = None
    policies: list[PolicyChange] | None = Field(None, max_length=ROWS_MAX)
    prune: bool | None = None
    dry_run: bool | None = None
    by: Person | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.pattern is None) == (self.policies is None):
            raise ValueError("it is either pattern or policies")
        if self.pattern is None and not (self.set is None and self.unset is None):
            raise ValueError("set and unset need a pattern")
        if self.pattern is not None and self.prune:
            raise ValueError("prune needs policies")
        return self

    def changes(self) -> list[PolicyChange]:
        """Return the change for each pattern."""
        if self.pattern is None:
            return self.policies or []
        return [PolicyChange.model_construct(pattern=self.pattern, set=self.set, unset=self.unset)]


class ListPolicies(Request):
    """The body of ``list-policies``."""

    tube: TubeName | None = None


class SetSchedule(Request):
    """The body of ``set-schedule``."""

    by: Person | None = None
    name: ScheduleName
    when: Annotated[str, Field(max_length=WHEN_MAX)]
    zone: Annotated[str, Field(max_length=ZONE_MAX)] | None = None
    tube: TubeName
    body: bytes | None = None
    base64: Annotated[bytes, AfterValidator(_decode)] | None = None
    pri: U32 | None = None
    ttr_s: U32 | None = None
    if_absent: bool | None = None
    missed: Literal["skip", "once"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.body is None) == (self.base64 is None):
            raise ValueError("it is either body or base64")
        return self


class OneSchedule(Request):
    """The body of ``unset-schedule`` and ``run-schedule``."""

    by: Person | None = None
    name: ScheduleName


class ListSchedules(Request):
    """The body of ``list-schedules``."""

    name: ScheduleName | None = None
    after: ScheduleName | None = None


class ListRights(Request):
    """The body of ``list-rights``."""


class RelayFor(Request):
    """The body of ``relay-for``."""

    address: Address
    names: list[CertificateName] | None = Field(None, max_length=NAMES_MAX)
    private: bool | None = None


class WatchEvents(Request):
    """The body of ``watch-events``."""

    tube: TubeName | None = None
    what: list[str] | None = Field(None, max_length=IDS_MAX)


_Model = TypeVar("_Model", bound=Request)


class Refused(Exception):
    """A request that can't be carried out; the text says why."""


def read(model: type[_Model], body: bytes) -> _Model | None:
    """Parse the body of a request; None if it isn't a JSON object. Raises Refused if it isn't a valid request."""
    if has_more_parts(body, model.parts_max):
        raise Refused("there are too many keys and values")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > _MISTAKES_MAX:
            raise Refused(f"{error.error_count()} keys or values are wrong") from None
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid" or (first["type"] == "model_type" and not first["loc"]):
            return None
        place = ".".join(map(str, first["loc"]))
        raise Refused(f"{place}: {in_our_words(first)}" if place else in_our_words(first)) from None
