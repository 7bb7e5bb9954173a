"""A queue as lines of JSON, between databases of whatever kind. A line has what a row has, by the names of its columns.

::

    {"kind": "queue", "format": 1, "last_id": 2}
    {"kind": "pause", "tube": "mail", "pause_s": 60, "until": 1795383356.5}
    {"kind": "job", "id": 1, "tube": "mail", "state": "ready", …, "created_at": 1795383296.7, …, "body": "text"}
    {"kind": "end"}

What is NULL is left out. Times are UTC seconds. A body that is not UTF-8 is in "base64" instead.
"""

import base64
import json
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final

FORMAT: Final = 1
# After how many lines the caller hears how far it is.
LINES_PER_CALL: Final = 1000


def line_of(kind: str, values: dict[str, object]) -> str:
    """A line."""
    return json.dumps({"kind": kind} | values, ensure_ascii=False)


def body_of(body: bytes) -> dict[str, object]:
    """What the line of a job has for its body."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def write_lines(lines: Iterable[str], sink: BinaryIO, progress: Callable[[int], None] | None) -> int:
    """Write all of them, and return their number; `progress` hears it every so often. OSError: no more is taken."""
    count = 0
    for count, line in enumerate(lines, 1):
        sink.write(f"{line}\n".encode())
        if progress is not None and count % LINES_PER_CALL == 0:
            progress(count)
    sink.flush()
    return count
