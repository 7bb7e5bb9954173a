"""Log lines on stderr: an event, its fields, and the time in UTC, as text or as one JSON object per line.

log.info("started", address="127.0.0.1:11300", jobs=3)

2026-11-20T19:34:00Z INFO  beanlite: started address=127.0.0.1:11300 jobs=3
{"time": "2026-11-20T19:34:00Z", "level": "info", "event": "started", "address": "127.0.0.1:11300", "jobs": 3}
"""

import json
import logging
import os
import re
import sys
import time
import traceback
from typing import TextIO

from beanlite.host.stderr import Stderr

# The least time between two warnings of a kind.
SELDOM_S = 60.0
# How many events a Seldom knows: some name a process, and there is no end of these.
EVENTS_MAX = 50

_logger = logging.getLogger("beanlite")
# Values that need no quotes in a text line.
_BARE = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f]+")
_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}
# As they are called in JSON lines.
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# Syslog priorities, for the systemd journal.
_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3}


def debug(event: str, **fields: object) -> None:
    """Log a detail that only helps to trace a fault."""
    _logger.debug(event, extra={"fields": fields})


def is_debug() -> bool:
    """Whether ``debug`` logs anything, for callers that want to avoid the cost of gathering the fields."""
    return _logger.isEnabledFor(logging.DEBUG)


def info(event: str, **fields: object) -> None:
    """Log a step in the server's life."""
    _logger.info(event, extra={"fields": fields})


def warning(event: str, **fields: object) -> None:
    """Log something that an operator should look at soon."""
    _logger.warning(event, extra={"fields": fields})


def error(event: str, *, exc: BaseException | None = None, **fields: object) -> None:
    """Log a failure; `exc` adds its traceback."""
    _logger.error(event, exc_info=exc, extra={"fields": fields})


class Seldom:
    """Limits warnings that could come endlessly: the first of each event is logged, and then at most one a minute."""

    def __init__(self) -> None:
        """Start with no warnings."""
        self._dropped: dict[str, tuple[float, int]] = {}
        """When each event may be logged again, and how often it was dropped, in the order of logging."""

    def warning(self, event: str, **fields: object) -> None:
        """Log a warning, or drop it; the next one logged reports in `times` how many there were since."""
        now_s = time.monotonic()
        next_s, times = self._dropped.get(event, (now_s, 0))
        if now_s < next_s:
            self._dropped[event] = next_s, times + 1
            return
        self._dropped.pop(event, None)
        self._dropped[event] = now_s + SELDOM_S, 0
        if len(self._dropped) > EVENTS_MAX:
            del self._dropped[next(iter(self._dropped))]
        warning(event, **fields, **({"times": times + 1} if times else {}))


def is_rare(times: int) -> bool:
    """Whether ``times`` is a power of two: what happens for the 1st, 2nd, 4th, 8th … time is worth a warning."""
    return times & (times - 1) == 0


def setup(level: str, form: str, stream: TextIO | None = None) -> None:
    """Log from `level` (debug, info, warning, error) upwards, in `form` (text, json), to stderr or `stream`."""
    stream = stream or sys.stderr
    handler = _Handler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(stream))
    root = logging.getLogger()  # so that asyncio's warnings take the same form
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _logger.setLevel(level.upper())


def setup_child() -> None:
    """Log warnings to stderr in a form that the parent logs again (``relay``); all that is not ours stays as it is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    _logger.handlers[:] = [handler]
    _logger.propagate = False
    _logger.setLevel(logging.WARNING)


def relay(line: str) -> bool:
    """Log again what a child has logged, at its level; return whether the line is such a one."""
    try:
        fields = json.loads(line)
        level, event = _LEVELS[fields.pop("level")], fields.pop("event")
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return False
    if not isinstance(event, str):
        return False
    fields.pop("time", None)
    _logger.log(level, event, extra={"fields": fields})
    return True


class _Handler(logging.StreamHandler[TextIO]):
    """Reports lost lines before it writes the next one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write `record`, if there is room for it."""
        file = getattr(self.stream, "buffer", None)
        if isinstance(file, Stderr) and file.lost_lines:
            lines, file.lost_lines = file.lost_lines, 0
            event = "the log had no room: lines are lost"
            note = {"name": _logger.name, "levelname": "WARNING", "msg": event, "fields": {"lines": lines}}
            super().emit(logging.makeLogRecord(note))
            if file.lost_lines:  # the report is lost, too
                file.lost_lines = lines
        super().emit(record)


class TextFormatter(logging.Formatter):
    """Lines for people: coloured on a terminal, with syslog's priority in front for the systemd journal."""

    def __init__(self, stream: TextIO) -> None:
        """Find out once what `stream` is connected to."""
        super().__init__()
        self._coloured = stream.isatty() and not os.environ.get("NO_COLOR")
        self._journald = _is_journald(stream)

    def format(self, record: logging.LogRecord) -> str:
        """Format `record` as one line, with any traceback below it."""
        level, colour = f"{record.levelname:<5}", _COLOURS.get(record.levelname)
        if self._coloured and colour:
            level = f"{colour}{level}\x1b[0m"
        line = f"{_utc(record)} {level} {record.name}: {record.getMessage()}"
        if self._journald:
            line = f"<{_PRIORITIES.get(record.levelname, 6)}>{line}"
        line += "".join(f" {key}={_quote(value)}" for key, value in _fields(record).items())
        return f"{line}\n{traceback_of(record.exc_info[1])}".rstrip("\n") if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Lines for programs: one JSON object each, with any traceback in the field `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format `record` as one line."""
        line: dict[str, object] = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = traceback_of(record.exc_info[1]).rstrip("\n")
        return json.dumps(line | _fields(record), default=str)


def traceback_of(error: BaseException | None) -> str:
    """Return the traceback of an error; without its text if the error's own code fails at that, by whatever."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - SystemExit would end who only wants to log
        frames = "".join(traceback.format_tb(None if error is None else error.__traceback__))
        return f"{frames}{type(error).__name__}: its text can't be shown\n"


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields


def _utc(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))


def _quote(value: object) -> str:
    """Quote a value if need be, so that it can't break out of its line: a peer may have chosen it."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _is_journald(stream: TextIO) -> bool:
    """Whether systemd connected `stream` to its journal: if so, JOURNAL_STREAM holds its device:inode."""
    place = os.environ.get("JOURNAL_STREAM")
    if not place:
        return False
    try:
        stat = os.fstat(stream.fileno())
    except OSError:  # not a real file: in a test, or closed
        return False
    return place == f"{stat.st_dev}:{stat.st_ino}"
