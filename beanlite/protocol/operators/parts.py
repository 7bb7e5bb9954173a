"""How many parts a request has, which tells before it is parsed how long that would keep others waiting."""


def has_more_parts(body: bytes, most: int) -> bool:
    """Whether JSON has more commas and opening brackets outside of its texts."""
    return _count(body) > most and _count(_without_texts(body)) > most


def _count(body: bytes) -> int:
    return body.count(b",") + body.count(b"{") + body.count(b"[")


def _without_texts(body: bytes) -> bytes:
    return b"".join(body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
