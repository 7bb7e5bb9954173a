"""What a client and a server may say, read slowly and strictly: a second opinion beside that of the server."""

import json
import re
from typing import NamedTuple

LINE_MAX = 224
U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1
NOTE_MAX = 4096
REQUEST_MAX = 1 << 20

ALWAYS = {b"BAD_FORMAT", b"UNKNOWN_COMMAND"}
RESERVING = {b"RESERVED", b"DEADLINE_SOON", b"TIMED_OUT"}
FINDING = {b"FOUND", b"NOT_FOUND"}
# What each command may be answered with, besides those of ALWAYS.
ANSWERS = {
    b"put": {b"INSERTED", b"EXPECTED_CRLF", b"JOB_TOO_BIG", b"OUT_OF_MEMORY"},
    b"reserve": RESERVING,
    b"reserve-with-timeout": RESERVING,
    b"reserve-job": {b"RESERVED", b"NOT_FOUND"},
    b"offer": {b"OFFERED", b"DEADLINE_SOON", b"TIMED_OUT"},
    b"take": {b"TAKEN", b"NOT_FOUND"},
    b"decline": {b"DECLINED", b"NOT_FOUND"},
    b"delete": {b"DELETED", b"NOT_FOUND"},
    b"release": {b"RELEASED", b"NOT_FOUND"},
    b"bury": {b"BURIED", b"NOT_FOUND"},
    b"touch": {b"TOUCHED", b"NOT_FOUND"},
    b"note": {b"NOTED", b"NOT_FOUND", b"NOTE_TOO_BIG", b"EXPECTED_CRLF", b"OUT_OF_MEMORY"},
    b"kick": {b"KICKED"},
    b"kick-job": {b"KICKED", b"NOT_FOUND"},
    b"peek": FINDING,
    b"peek-ready": FINDING,
    b"peek-delayed": FINDING,
    b"peek-buried": FINDING,
    b"name": {b"NAMED"},
    b"use": {b"USING"},
    b"watch": {b"WATCHING"},
    b"ignore": {b"WATCHING", b"NOT_IGNORED"},
    b"list-tubes": {b"OK"},
    b"list-tubes-watched": {b"OK"},
    b"list-tube-used": {b"USING"},
    b"stats": {b"OK"},
    b"stats-job": {b"OK", b"NOT_FOUND"},
    b"stats-tube": {b"OK", b"NOT_FOUND"},
    b"pause-tube": {b"PAUSED", b"NOT_FOUND"},
}
# Requests of operators, whose bodies are objects, and their other commands.
REQUEST_ANSWERS = {b"OK", b"REFUSED", b"EXPECTED_CRLF"}
OPERATORS_ANSWERS = {
    b"list-jobs": REQUEST_ANSWERS,
    b"group-jobs": REQUEST_ANSWERS,
    b"list-tube-stats": REQUEST_ANSWERS,
    b"list-clients": REQUEST_ANSWERS,
    b"diagnose": REQUEST_ANSWERS,
    b"show-flow": REQUEST_ANSWERS,
    b"change-jobs": REQUEST_ANSWERS,
    b"set-pause": REQUEST_ANSWERS | {b"NOT_FOUND"},
    b"put-jobs": REQUEST_ANSWERS | {b"JOB_TOO_BIG", b"OUT_OF_MEMORY"},
    b"watch-events": REQUEST_ANSWERS,
    b"set-policy": REQUEST_ANSWERS,
    b"list-policies": REQUEST_ANSWERS,
    b"list-rights": REQUEST_ANSWERS,
    b"set-schedule": REQUEST_ANSWERS,
    b"unset-schedule": REQUEST_ANSWERS | {b"NOT_FOUND"},
    b"run-schedule": REQUEST_ANSWERS | {b"NOT_FOUND", b"OUT_OF_MEMORY"},
    b"list-schedules": REQUEST_ANSWERS,
    b"show-job": {b"OK", b"NOT_FOUND"},
    b"reserve-batch": {b"RESERVED_BATCH", b"DEADLINE_SOON", b"TIMED_OUT"},
    b"act-for": {b"ACTING", b"UNAUTHORIZED"},
    b"relay-for": REQUEST_ANSWERS | {b"UNAUTHORIZED"},
}
# What those may be answered, too, that do not have all rights; and what only they can say.
UNAUTHORIZED = {b"UNAUTHORIZED"}
AUTH_ANSWERS = {b"AUTHENTICATED"}
REPLY = re.compile(
    rb"(?:INSERTED|WATCHING) [1-9]\d*"
    rb"|(?:RESERVED|FOUND|OFFERED) [1-9]\d* (?P<job>\d+)"
    rb"|OK (?P<facts>\d+)"
    rb"|REFUSED (?P<reason>\d+)"
    rb"|RESERVED_BATCH [1-9]\d*"
    rb"|USING [A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}"
    rb"|KICKED(?: \d+)?"
    rb"|DEADLINE_SOON|TIMED_OUT|NOT_FOUND|DELETED|RELEASED|BURIED|TOUCHED|NOT_IGNORED|PAUSED|NOTED|NAMED"
    rb"|TAKEN|DECLINED"
    rb"|UNAUTHORIZED|AUTHENTICATED|ACTING"
    rb"|EXPECTED_CRLF|JOB_TOO_BIG|NOTE_TOO_BIG|OUT_OF_MEMORY|BAD_FORMAT|UNKNOWN_COMMAND"
)
# A field of the header of another protocol, which closes the connection if it is the first that a client sends.
FIELD = re.compile(rb"[A-Za-z0-9-]+:")
REQUEST = re.compile(
    rb"(?:%b) +(\d+)" % b"|".join(word for word, each in OPERATORS_ANSWERS.items() if each >= REQUEST_ANSWERS)
)
PUT = re.compile(rb"put +(\d+) +(\d+) +(\d+) +(\d+)(.*)", re.DOTALL)
NOTE = re.compile(rb"note +(\d+) +(\d+)")


class Requests(NamedTuple):
    """What a client has sent."""

    complete: list[bytes]  # the command's word of each request that has an answer
    missing: int  # bytes of the body that is still to come
    amid_line: bool
    quits: bool


def read_requests(data: bytes, max_job_size: int, *, operator: bool = False) -> Requests:
    """Cut a client's bytes into requests."""
    complete: list[bytes] = []
    at = 0
    while at < len(data):
        end = data.find(b"\r\n", at)
        if end < 0:
            return Requests(complete, 0, amid_line=True, quits=False)
        line = data[at:end]
        at = end + 2
        word = line.partition(b" ")[0]
        if line.startswith(b"quit") and not FIELD.match(line) and b"\0" not in line and len(line) + 2 <= LINE_MAX:
            return Requests(complete, 0, amid_line=False, quits=True)
        size = _body_size(line, max_job_size, operator=operator)
        if size is not None:
            at += size + 2
            if at > len(data):
                return Requests(complete, at - len(data), amid_line=False, quits=False)
        complete.append(b"pause-tube" if word.startswith(b"pause-tube") else word)
    return Requests(complete, 0, amid_line=False, quits=False)


def _body_size(line: bytes, max_job_size: int, *, operator: bool) -> int | None:
    """How long the body behind a line is; None if there is none."""
    request = REQUEST.fullmatch(line)
    if operator and request is not None and len(line) + 2 <= LINE_MAX and int(request[1]) <= U32_MAX:
        return int(request[1])
    note = NOTE.fullmatch(line)
    if note is not None and len(line) + 2 <= LINE_MAX:
        return int(note[2]) if int(note[1]) <= U64_MAX and int(note[2]) <= U32_MAX else None
    found = PUT.fullmatch(line)
    if found is None or len(line) + 2 > LINE_MAX or b"\0" in line:
        return None
    numbers = [int(number) for number in found.groups()[:4]]
    if max(numbers) > U32_MAX or (found[5] and numbers[3] <= max_job_size):
        return None
    return numbers[3]


def read_replies(data: bytes) -> list[bytes]:
    """The first word of each reply. AssertionError: something else than whole replies."""
    words: list[bytes] = []
    of_batch = 0  # how many jobs of a batch are still to come
    at = 0
    while at < len(data):
        end = data.find(b"\r\n", at)
        assert end >= 0, f"no end of line: {data[at:]!r}"
        found = REPLY.fullmatch(data, at, end)
        assert found, f"no reply: {data[at:end]!r}"
        at = end + 2
        if found.lastgroup:
            stop = at + int(found[found.lastgroup])
            assert data[stop : stop + 2] == b"\r\n", f"not the length that it says: {data[end - 40 : stop + 40]!r}"
            if found.lastgroup == "reason" or data.startswith(b"{", at):
                assert isinstance(json.loads(data[at:stop]), dict)
            elif found.lastgroup == "facts":
                assert data.startswith(b"---\n", at), f"no YAML: {data[at:stop]!r}"
                assert data[stop - 1 : stop] == b"\n"
            at = stop + 2
        word, _, number = found[0].partition(b" ")
        if of_batch:
            assert word == b"RESERVED", f"no job of the batch: {found[0]!r}"
            of_batch -= 1
            continue
        if word == b"RESERVED_BATCH":
            of_batch = int(number)
        words.append(word)
    assert not of_batch, "the batch is not complete"
    return words


def check_answers(
    requests: list[bytes], replies: list[bytes], *, operator: bool = False, limited: bool = False
) -> None:
    """Each reply is one that its request may have. AssertionError otherwise."""
    answers = ANSWERS | OPERATORS_ANSWERS if operator else ANSWERS
    if limited:
        answers = {word: each | UNAUTHORIZED for word, each in (answers | {b"auth": AUTH_ANSWERS}).items()}
    for number, (word, reply) in enumerate(zip(requests, replies, strict=False)):
        assert reply in ALWAYS | answers.get(word, set()), f"request {number}, {word!r}, was answered {reply!r}"
