"""The certificates of the server, of whom its clients' must be, and what TLS has to be like."""

from __future__ import annotations

import re
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from beanlite.errors import ConfigError
from beanlite.host.shown import read_key, read_pem, receiving_context

if TYPE_CHECKING:
    from beanlite.settings.config import Settings

DAY_S: Final = 86400
# A certificate that ends in less than this is told of.
SOON_S: Final = 30 * DAY_S
_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
# The tags of DER, by which the end of a certificate is found.
_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0


class Certificates(NamedTuple):
    """What the loop needs to do TLS, and how long that lasts."""

    context: ssl.SSLContext
    ends_s: dict[str, float]
    """When the first certificate of the server's file and the last one of the clients' CAs end, in UTC seconds."""
    files: dict[str, Path]


def load_certificates(settings: Settings) -> Certificates:
    """Read all files anew. ConfigError: one of them can't be read, or is of no use, or does not fit the others."""
    assert settings.tls_cert is not None
    assert settings.tls_key is not None
    context = receiving_context()
    if settings.tls_min == "1.3":
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # connections last long
    files = {"tls_cert": settings.tls_cert}
    ends_s = {"tls_cert": min(_ends("tls_cert", settings.tls_cert))}
    _load_own(context, settings.tls_cert, settings.tls_key)
    if settings.tls_clients is not None:
        files["tls_clients"] = settings.tls_clients
        ends_s["tls_clients"] = max(_ends("tls_clients", settings.tls_clients))
        ask_for_certificates(context, "tls_clients", settings.tls_clients)
    return Certificates(context, ends_s, files)


def ask_for_certificates(context: ssl.SSLContext, option: str, path: Path) -> None:
    """Have clients need a certificate that an authority in this file vouches for. ConfigError: it can't be used."""
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option}: {path} can't be used: {in_words(error)}") from error
    context.verify_mode = ssl.CERT_REQUIRED


def _load_own(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    def refuse() -> NoReturn:
        raise ConfigError(f"tls_key: {key} is encrypted; beanlite asks for no password, so store the key without one")

    if "PRIVATE KEY-----" not in read_key("tls_key", key):
        raise ConfigError(f"tls_key: {key} has no private key in PEM form")
    try:
        context.load_cert_chain(cert, key, refuse)
    except ssl.SSLError as error:
        if error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
            raise ConfigError(f"tls_key: {key} is not the key of {cert}") from error
        raise ConfigError(f"tls_cert: {cert} and {key} can't be used: {in_words(error)}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls_cert: {cert} and {key} can't be used: {in_words(error)}") from error


def in_words(error: Exception) -> str:
    """Return what OpenSSL has found wrong, without the place in its sources."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _ends(setting: str, path: Path) -> list[float]:
    """Return when each certificate in a file ends."""
    blocks = _PEM.findall(read_pem(setting, path))
    if not blocks:
        raise ConfigError(f"{setting}: {path} has no certificate in PEM form")
    try:
        return [_end_of(ssl.PEM_cert_to_DER_cert(block)) for block in blocks]
    except (IndexError, ValueError) as error:
        raise ConfigError(f"{setting}: {path} has a damaged certificate") from error


def _end_of(der: bytes) -> float:
    """Return when a certificate ends, in UTC seconds. IndexError or ValueError: it is none.

    Python shows what is in a certificate only once a peer has sent it.
    """
    at = _inside(der, _inside(der, 0))  # the signed part
    if der[at] == _VERSION:
        at = _behind(der, at)
    for _ in range(3):  # the serial number, the algorithm and the issuer
        at = _behind(der, at)
    end = _behind(der, _inside(der, at))  # behind its beginning
    text = der[_inside(der, end) : _behind(der, end)].decode("ascii")
    form = "%y%m%d%H%M%SZ" if der[end] == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()


def _inside(der: bytes, at: int) -> int:
    """Return where the contents of the element at this place begin."""
    return at + 2 + (der[at + 1] & 0x7F if der[at + 1] & 0x80 else 0)


def _behind(der: bytes, at: int) -> int:
    """Return where the next element begins."""
    begin = _inside(der, at)
    return begin + (int.from_bytes(der[at + 2 : begin], "big") if begin > at + 2 else der[at + 1])


def expiries(certificates: Certificates) -> tuple[list[str], list[str]]:
    """Return in words which certificates have expired, and when the others will."""
    now_s = time.time()
    expired, others = [], []
    for setting, ends_s in certificates.ends_s.items():
        place, date = f"{setting}: {certificates.files[setting]}", time.strftime("%Y-%m-%d", time.gmtime(ends_s))
        days = int(ends_s - now_s) // DAY_S
        if ends_s <= now_s:
            expired.append(f"{place} has expired on {date}")
        elif ends_s < now_s + SOON_S:
            others.append(f"{place} expires soon, on {date} (in {days} days)")
        else:
            others.append(f"{place} expires on {date} (in {days} days)")
    return expired, others
