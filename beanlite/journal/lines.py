"""A queue as lines of JSON, for transfer between databases of any kind. A line has a row's values by column name.

::

    {"kind": "queue", "format": 1, "last_id": 2}
    {"kind": "pause", "tube": "mail", "pause_s": 60, "until": 1795383356.5}
    {"kind": "policy", "pattern": "mail*", "key": "max_tries", "value": "5", "changed_at": 1795383296.7, …}
    {"kind": "schedule", "name": "nightly", "timing": "0 3 * * *", "zone": "UTC", "tube": "mail", …, "body": "text"}
    {"kind": "job", "id": 1, "tube": "mail", "state": "ready", …, "created_at": 1795383296.7, …, "body": "text"}
    {"kind": "end"}

NULL values are left out. Times are UTC seconds. A body that is not UTF-8 is in "base64" instead. A job may have a
"note".
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import BinaryIO, Final

from beanlite.errors import BeanliteError

FORMAT: Final = 1
# The number of lines between two reports of progress to the caller.
LINES_PER_CALL: Final = 1000
# A line has room for the largest body that a server can be set to take, in base64, and for the rest of a job.
LINE_MAX: Final = (1 << 30) * 4 // 3 + (1 << 16)
# So many bytes of a line are read before it is looked at.
_HEAD_BYTES: Final = 1 << 16


def line_of(kind: str, values: dict[str, object]) -> str:
    """Return a record of a kind with these values, as a line of JSON without a newline."""
    return json.dumps({"kind": kind} | values, ensure_ascii=False)


def body_of(body: bytes) -> dict[str, object]:
    """Return a body as JSON can hold it: as text, or in base64 if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def read_lines(source: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a source. BeanliteError: one is too long.

    What has no end and is no JSON object, as /dev/zero, ends with its first bytes, which are no JSON either.
    """
    for number in count(1):
        line = source.readline(_HEAD_BYTES)
        if len(line) == _HEAD_BYTES and not line.endswith(b"\n") and line.lstrip().startswith(b"{"):
            line += source.readline(LINE_MAX - _HEAD_BYTES)
            if len(line) == LINE_MAX:
                raise BeanliteError(f"line {number} has {LINE_MAX:,} bytes or more, and no job is so large")
        if line:
            yield line
        if not line.endswith(b"\n"):
            break


def write_lines(lines: Iterable[str], sink: BinaryIO, progress: Callable[[int], None] | None) -> int:
    """Write all lines and return their number; `progress` is given it now and then. OSError: writing has failed."""
    count = 0
    for count, line in enumerate(lines, 1):
        sink.write(f"{line}\n".encode())
        if progress is not None and count % LINES_PER_CALL == 0:
            progress(count)
    sink.flush()
    return count
