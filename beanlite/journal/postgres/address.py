"""The address of a database: a URL, which may name several hosts, and may contain a password."""

import os
import re
from configparser import Error as ConfigParserError, RawConfigParser
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qs, unquote, urlencode, urlsplit, urlunsplit

from beanlite.errors import JournalRefused
from beanlite.host import log
from beanlite.settings.values import is_loopback

# A host in a URL, with its port.
_PLACE: Final = re.compile(r"([^:\[\]]*|\[[^\]]*\])(:[0-9]*)?")
SAFE: Final = "verify-full"
"""The only mode of TLS in which nobody on the way can read jobs, or pass for the database."""
# asyncpg's mode by default: it goes on in clear text if the database, or somebody on the way, says that it has no TLS.
_DEFAULT_MODE: Final = "prefer"
# The parameters that are paths of files: asyncpg would not say which of them is missing.
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


class Entry(NamedTuple):
    """Which database to use, and this server's identity in it."""

    url: str
    node: str
    """The name of this server, for people."""
    address: str
    """Where other servers reach this one."""
    lease_s: float
    require_sync: bool


def _split(url: str) -> tuple[SplitResult, str, list[str]]:
    """Return the URL's parts, the user with the password, and the hosts. ValueError: they can't be told apart."""
    url.encode()  # bytes that are not UTF-8 can't be sent
    parts = urlsplit(url)
    who, _, places = parts.netloc.rpartition("@")
    hosts = places.split(",")
    if "@" in f"{who}{parts.path}{parts.fragment}" or not all(map(_PLACE.fullmatch, hosts)):
        raise ValueError("a character is not encoded")
    return parts, who, hosts


def _query_of(url: str) -> dict[str, str]:
    """Return the parameters of a URL, and those of the service that it names.

    JournalRefused: there is no such service. (asyncpg would go to the database that is the default.)
    """
    query = {key: values[-1] for key, values in parse_qs(urlsplit(url).query).items()}
    if "service" not in query:
        return query
    service, services = query.pop("service"), RawConfigParser(delimiters="=")
    file = Path(os.environ.get("PGSERVICEFILE") or "~/.pg_service.conf")
    try:
        services.read_string(file.expanduser().read_text())
        return {**services[service], **query}
    except OSError as error:
        why = str(error.strerror)
    except RuntimeError:
        why = "nobody knows the home folder of this user"
    except KeyError:
        why = f"it has no section [{service}]"
    except (ConfigParserError, ValueError):  # whose text may contain a password
        why = "it is no file of services"
    raise JournalRefused(f"{public_url(url)} can't be used: service: {file}: {why}")


def hosts_of(url: str) -> list[str]:
    """Return a URL for each host: one that does not answer must not use up the time of the others.

    ValueError: it is no URL of a database. JournalRefused: it names several hosts in another way, or a service or a
    file that can't be read.
    """
    parts, who, hosts = _split(url)
    query = _query_of(url)
    default = query.get("host", "" if all(hosts) else os.environ.get("PGHOST", ""))
    if "," in default:
        raise JournalRefused(
            f"{public_url(url)} can't be used: several hosts have to be named before the database, as in"
            " postgresql://db1,db2/queue"
        )
    for key in _FILES:
        path = query.get(key)
        if path is not None:
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise JournalRefused(f"{public_url(url)} can't be used: {key}: {path}: {error.strerror}") from error
    if "service" in parse_qs(parts.query):
        parts = parts._replace(path=parts.path.rstrip("/"), query=urlencode(query))  # an empty name would count as one
    at = "@" if who else ""
    return [urlunsplit(parts._replace(netloc=f"{who}{at}{host}")) for host in hosts]


def sslmode_of(url: str) -> str:
    """Return the mode of TLS of the connection to a database. Raises JournalRefused as ``hosts_of`` does."""
    return _query_of(url).get("sslmode") or os.environ.get("PGSSLMODE") or _DEFAULT_MODE


def exposed_hosts(url: str) -> list[str]:
    """Return the hosts on other machines that are reached in a mode in which others may read or change what is sent.

    Raises JournalRefused as ``hosts_of`` does.
    """
    try:
        _, _, places = _split(url)
    except ValueError:
        return []
    if sslmode_of(url) == SAFE:
        return []
    default = _query_of(url).get("host", os.environ.get("PGHOST", ""))
    matches = filter(None, map(_PLACE.fullmatch, places))
    hosts = [unquote(match[1]).strip("[]") or default for match in matches]
    return [host for host in hosts if host and not host.startswith(("/", "@")) and not is_loopback(host)]


def warn_of_exposure(url: str) -> None:
    """Log a warning if others could read the jobs on their way to the database, or pass for it."""
    hosts = exposed_hosts(url)
    if hosts:
        log.warning(
            f"others on the network may read jobs, or pass for the database; add sslmode={SAFE}",
            hosts=", ".join(hosts),
            sslmode=sslmode_of(url),
        )


def public_url(url: str) -> str:
    """Return the URL without its password, for people; only its scheme if the password could be anywhere in it."""
    try:
        parts, who, hosts = _split(url)
    except ValueError:
        parts = None
    if parts is None or "@" in parts.query:
        scheme, colon, _ = url.partition("://")
        return f"{scheme if colon else ''}://..."
    user = who.partition(":")[0]
    return f"{parts.scheme}://{user}{'@' if who else ''}{','.join(hosts)}{parts.path}"
