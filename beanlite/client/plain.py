"""What the errors of connections mean, in plain words."""

import os
import re
import ssl
from typing import Final

# OpenSSL's codes for a certificate that is not accepted.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_OTHER_NAMES: Final = frozenset({62, 64})
NOT_TRUSTED: Final = "the server's certificate is not trusted: "
NO_TLS: Final = "the server does not speak TLS at this port"
NO_CERTIFICATE: Final = "the server asks for a client certificate, or has no cipher in common"
NOT_ACCEPTED: Final = "the server does not accept the client's certificate"
_NO_VERSION: Final = "the server and this client have no version of TLS in common"
# What OpenSSL's reasons mean.
_MEANINGS: Final = {
    "HTTP_REQUEST": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "UNEXPECTED_MESSAGE": NO_TLS,
    "WRONG_VERSION_NUMBER": NO_TLS,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": NO_CERTIFICATE,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": NO_CERTIFICATE,
    "SSLV3_ALERT_BAD_CERTIFICATE": NOT_ACCEPTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{NOT_ACCEPTED}: it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"{NOT_ACCEPTED}: it is revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": NOT_ACCEPTED,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": f"{NOT_ACCEPTED}: it is not for clients",
    "TLSV1_ALERT_ACCESS_DENIED": NOT_ACCEPTED,
    "TLSV1_ALERT_UNKNOWN_CA": f"{NOT_ACCEPTED}: it does not trust its authority",
    "NO_PROTOCOLS_AVAILABLE": _NO_VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": _NO_VERSION,
    "UNSUPPORTED_PROTOCOL": _NO_VERSION,
}
# The numbers in an error of asyncio's that names each of several addresses.
_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")


def in_plain_words(error: OSError) -> str:
    """Return why a connection could not be made, or has ended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _about_certificate(error)
    if isinstance(error, ssl.SSLEOFError):
        return "the connection was closed amid TLS; the server may not speak TLS at this port"
    if isinstance(error, ssl.SSLError):
        return _MEANINGS.get(error.reason or "", f"TLS failed: {error}")
    numbers = [error.errno] if error.errno else [int(number) for number in _NUMBER.findall(str(error))]
    reasons = dict.fromkeys(os.strerror(number) for number in numbers if number > 0)  # a resolver's are below 0
    return " and ".join(reasons) or error.strerror or str(error)


def _about_certificate(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return "the server's certificate has expired"
    if error.verify_code == _NOT_YET_VALID:
        return "the server's certificate is not valid yet; one of the two clocks may be wrong"
    if error.verify_code in _OTHER_NAMES:
        return f"the server's certificate is for another name: {error.verify_message.rstrip('.')}"
    return f"{NOT_TRUSTED}{error.verify_message}"
