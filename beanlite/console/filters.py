"""The filter by which an operator selects jobs, and the names of tubes in it."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from beanlite.console import units
from beanlite.core.tube import is_tube_name
from beanlite.errors import ConfigError

Record = dict[str, Any]
"""The facts about a job, a tube or a client, under the protocol's names."""

STATES: Final = ("ready", "reserved", "delayed", "buried")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects the jobs that match all criteria; None matches any job."""

    ids: tuple[int, ...] | None = None
    tube: str | None = None
    state: str | None = None
    older_s: float | None = None
    newer_s: float | None = None
    in_state_s: float | None = None
    pri_min: int | None = None
    pri_max: int | None = None
    holder: int | None = None
    """The number of a connection."""
    text: str | None = None
    up_to_id: int | None = None

    def __post_init__(self) -> None:
        """Check the tube and the state. ConfigError: no tube can have this name, or there is no such state."""
        if self.tube is not None:
            encode_tube(self.tube)
        if self.state is not None and self.state not in STATES:
            raise ConfigError(f"there is no state {self.state!r}, only {', '.join(STATES)}")

    @property
    def is_empty(self) -> bool:
        """Whether the filter selects all jobs."""
        return not self.request()

    def request(self) -> Record:
        """Return the filter as a part of a request."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        """Describe the filter, to follow a number of jobs: "buried in tube mail, put more than 2 d ago"."""
        parts = []
        if self.state is not None:
            parts.append(self.state)
        if self.tube is not None:
            parts.append(f"in tube {self.tube}")
        said = [" ".join(parts)] if parts else []
        for value, words in (
            (self.older_s, f"put more than {units.age(self.older_s)} ago"),
            (self.newer_s, f"put less than {units.age(self.newer_s)} ago"),
            (self.in_state_s, f"so for {units.age(self.in_state_s)}"),
            (self.pri_min, f"of pri {self.pri_min} or more"),
            (self.pri_max, f"of pri {self.pri_max} or less"),
            (self.holder, f"held by connection {self.holder}"),
            (self.text, f"with {self.text!r} in the body"),
        ):
            if value is not None:
                said.append(words)
        return ", ".join(said)


def encode_tube(name: str) -> bytes:
    """Return the name of a tube as it is sent. ConfigError: no tube can have it.

    In a command's line, what follows a line end in the name would be carried out as a command of its own.
    """
    encoded = name.encode(errors="surrogateescape")
    if not is_tube_name(encoded):
        raise ConfigError(f"no tube can have the name {name!r}")
    return encoded
