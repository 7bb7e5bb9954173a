"""The names of tubes, to say which one may be meant by a name that no tube has."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final, NamedTuple

from beanlite.console.filters import Record, encode_tube
from beanlite.errors import BeanliteError

# How many names of tubes are compared with one that does not exist: with more nobody would wait for it.
_COMPARED_MAX: Final = 20_000
# How similar the name of a tube is that nobody consumes to that of the tube that was meant: emial to mail.
_MISSPELT: Final = 0.66


class Meant(NamedTuple):
    """A tube that may have been meant by another name."""

    tube: str
    servers: list[str]
    """The servers at which clients watch it; a single one has no name."""


class Names:
    """What has tubes: a server, or several."""

    def list_tubes(self, request: Record) -> Record:
        """Return a slice of the tubes."""
        raise NotImplementedError

    def check_tube(self, tube: str) -> None:
        """Check that a tube exists. BeanliteError: it does not. ConfigError: it can't."""
        encode_tube(tube)
        if not self.list_tubes({"names": [tube]})["tubes"]:
            raise self.no_tube(tube)

    def no_tube(self, tube: str) -> BeanliteError:
        """Return the error that there is no such tube, with one whose name is similar, if there is one."""
        suggestion = similar(tube, self._names())
        return BeanliteError(f"there is no tube {tube}: it has no job, and nobody uses or watches it{suggestion}")

    def misspelt(self, tube: str) -> Meant | None:
        """Return the tube whose name this one may be, misspelt; None if no client watches such a tube."""
        close = get_close_matches(tube, [name for name in self._names() if name != tube], n=1, cutoff=_MISSPELT)
        tubes = self.list_tubes({"names": close})["tubes"] if close else []
        servers = [each.get("server", "") for each in tubes if each["watching"]]
        return Meant(close[0], servers) if servers else None

    def _names(self) -> list[str]:
        """Return the names of the tubes; of very many, a part."""
        request: Record = {"only": ["name"]}
        names: list[str] = []
        while len(names) < _COMPARED_MAX:
            reply = self.list_tubes(request)
            names += (name for (name,) in reply["tubes"])
            if reply["next"] is None:
                break
            request["after"] = reply["next"]
        return names


def similar(tube: str, tubes: Iterable[str]) -> str:
    """Return the end of a message that there is no such tube: the one that may be meant, if there is one."""
    close = get_close_matches(tube, tubes, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
