"""Which jobs an operator means, and in which order they are listed."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from beanlite.errors import ConfigError
from beanlite.operators import units

Record = dict[str, Any]
"""What is known of a job, a tube or a client, under the names that the protocol gives it."""

STATES: Final = ("ready", "reserved", "delayed", "buried")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Jobs of which all of this is true; None says nothing. It has as many attributes as jobs can be told apart by."""

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
        """ConfigError: no job is in such a state."""
        if self.state is not None and self.state not in STATES:
            raise ConfigError(f"--state: there is no state {self.state!r}, only {', '.join(STATES)}")

    @property
    def is_empty(self) -> bool:
        """Whether it means all jobs."""
        return not self.request()

    def request(self) -> Record:
        """The filter as a part of a request."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        """What it means, behind a number of jobs: "buried in tube mail, put more than 2 d ago"."""
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
