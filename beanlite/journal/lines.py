"""A queue as lines of JSON, for transfer between databases of any kind. A line has a row's values by column name.

::

    {"kind": "queue", "format": 1, "last_id": 2}
    {"kind": "pause", "tube": "mail", "pause_s": 60, "until": 1795383356.5}
    {"kind": "job", "id": 1, "tube": "mail", "state": "ready", …, "created_at": 1795383296.7, …, "body": "text"}
    {"kind": "end"}

NULL values are left out. Times are UTC seconds. A body that is not UTF-8 is in "base64" instead.
"""

import base64
import json
from collections.abc import Callable, Iterable
from typing import BinaryIO, Final

FORMAT: Final = 1
# The number of lines between two reports of progress to the caller.
LINES_PER_CALL: Final = 1000


def line_of(kind: str, values: dict[str, object]) -> str:
    """A record of a kind with these values, as a line of JSON without a newline."""
    return json.dumps({"kind": kind} | values, ensure_ascii=False)


def body_of(body: bytes) -> dict[str, object]:
    """A body as JSON can hold it: as text, or in base64 if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def write_lines(lines: Iterable[str], sink: BinaryIO, progress: Callable[[int], None] | None) -> int:
    """Write all lines and return their number; `progress` is given it now and then. OSError: writing has failed."""
    count = 0
    for count, line in enumerate(lines, 1):
        sink.write(f"{line}\n".encode())
        if progress is not None and count % LINES_PER_CALL == 0:
            progress(count)
    sink.flush()
    return count
