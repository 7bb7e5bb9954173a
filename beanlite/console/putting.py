"""Puts jobs from arguments, from stdin, or from a file of JSON lines."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from typing import Final, Self

from beanlite.beanstalk.client import Unreachable
from beanlite.client import calls
from beanlite.client.errors import Declined
from beanlite.console.changes import Interrupt
from beanlite.console.filters import JobId, Record
from beanlite.console.live import Live, explanation, on_behalf_of, telling_doubt
from beanlite.console.routing import home, naming
from beanlite.console.several import Servers
from beanlite.core.access import READER
from beanlite.core.job import U32_MAX
from beanlite.core.tube import is_tube_name
from beanlite.errors import BeanliteError, ConfigError
from beanlite.journal.lines import body_of

# How many jobs, and how many bytes of bodies, are put at a time: all of them or none. Escaping a body as JSON can make
# it several times as long, and a request may have 1 MiB.
_BATCH_JOBS: Final = 500
_BATCH_BYTES: Final = 128 << 10


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to put."""

    body: bytes
    tube: str
    pri: int
    delay_s: int
    ttr_s: int

    @classmethod
    def from_line(cls, line: bytes, defaults: Mapping[str, object]) -> Self:
        """Parse a job from a JSON object, in which all but the body may be left out. ValueError: it is malformed."""
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004 - one kind of error for a line
        if ("body" in record) == ("base64" in record):
            raise ValueError("it needs either body or base64")
        facts = {**defaults, **record}
        facts["body"] = _body(facts.pop("base64") if "base64" in facts else facts["body"], encoded="base64" in record)
        if unknown := facts.keys() - {field.name for field in fields(cls)}:
            parts = "body, base64, tube, pri, delay_s and ttr_s"
            raise ValueError(f"{min(unknown)!r} is not a part of a job; these are: {parts}")
        tube = facts["tube"]
        if not isinstance(tube, str) or not is_tube_name(tube.encode(errors="surrogatepass")):
            raise ValueError(f"no tube can have the name {tube!r}")
        for key in ("pri", "delay_s", "ttr_s"):
            value = facts[key]
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= U32_MAX:
                raise ValueError(f"{key}: {value!r} is not allowed; it is a whole number from 0 to {U32_MAX}")
        return cls(**facts)

    def record(self) -> Record:
        """Return the job as a part of a request."""
        facts = asdict(self)
        return body_of(facts.pop("body")) | facts


def _body(value: object, *, encoded: bool) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"the body is {value!r}, and not text")  # noqa: TRY004 - likewise
    return base64.b64decode(value, validate=True) if encoded else value.encode()


def read_jobs(lines: Iterable[bytes], name: str, defaults: Mapping[str, object]) -> Iterator[NewJob]:
    """Yield the jobs of a file of JSON lines. ConfigError: a line is malformed."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield NewJob.from_line(line, defaults)
            except UnicodeDecodeError:
                raise ConfigError(f"{name}, line {number}: it is not UTF-8, and so not JSON") from None
            except json.JSONDecodeError as error:
                why = f"it is not JSON: {error.msg} (character {error.pos + 1})"
                raise ConfigError(f"{name}, line {number}: {why}") from None
            except RecursionError:
                raise ConfigError(f"{name}, line {number}: it is nested too deeply") from None
            except ValueError as error:
                raise ConfigError(f"{name}, line {number}: {error}") from None


def _always() -> bool:
    return True


def _those(number: int) -> str:
    return "the job was put" if number == 1 else f"the last {number} jobs were put"


def put(
    servers: Servers,
    jobs: Iterable[NewJob],
    person: str,
    has_more: Callable[[], bool] = _always,
    doubt: Callable[[int], str] = _those,
) -> Iterator[list[JobId]]:
    """Put jobs on behalf of a person, each where its tube belongs; yield the ids of each batch when it is durable.

    ``has_more``: whether the next job can be had without a wait, for which those before are put first. ``doubt``: what
    is not known of this many next jobs if their answer is lost.

    BeanliteError, also from `jobs`: that fails; it says how many were put before. Ctrl-C stops between two batches,
    once the caller has told the ids of the last one, so that these are exactly those of the jobs put.
    """
    count = 0
    interrupt = Interrupt()
    try:
        for (name, live), those in groupby(jobs, lambda job: home(servers, job.tube)):
            for batch in batches(those, has_more):
                with interrupt.noted():
                    with naming(name):
                        ids = _put_named(name, live, batch, person, doubt)
                    count += len(ids)
                    yield ids  # they are told before a signal ends this
                if interrupt.came:
                    raise KeyboardInterrupt
    except BeanliteError as error:
        if not count:
            raise
        raise type(error)(f"{error}; {count} jobs were put before") from error


def _put_named(name: str, live: Live, batch: list[NewJob], person: str, doubt: Callable[[int], str]) -> list[JobId]:
    """Put a batch; return the ids, each of which says whether its job was there before. BeanliteError."""
    live.check()
    last_id = newest_id(live)
    with telling_doubt(doubt(len(batch))):
        ids = [JobId.of(name, number) for number in put_batch(live, batch, person)]
    new_ids = new_of(ids, last_id)
    for job_id in ids:
        job_id.was_there = int(job_id) not in new_ids
        new_ids.discard(int(job_id))
    return ids


def batches(jobs: Iterable[NewJob], has_more: Callable[[], bool] = _always) -> Iterator[list[NewJob]]:
    """Share jobs out over requests. ``has_more``: as for ``put``."""
    batch: list[NewJob] = []
    size = 0
    for job in jobs:
        if batch and (len(batch) == _BATCH_JOBS or size + len(job.body) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += len(job.body)
        if not has_more():
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def put_batch(server: Live, batch: list[NewJob], person: str) -> list[int]:
    """Put a batch, all of it or nothing; returns the ids. BeanliteError."""
    if len(batch) == 1 and len(batch[0].body) > _BATCH_BYTES:  # too large for a request
        return [_put_one(server, batch[0])]
    request = {"jobs": [job.record() for job in batch], **on_behalf_of(person)}
    ids: list[int] = server.ask("put-jobs", request)["ids"]
    return ids


def newest_id(live: Live) -> int:
    """Return the last id that has been given out: a put that is answered with none above it has put nothing.

    0: the client may put jobs, but not see any; a question for them would count as refused.
    """
    try:
        rights = live.rights()
    except Unreachable:
        raise
    except BeanliteError:  # the server is too old to have rights, and to take bodies once
        return 0
    if not rights.has(READER):
        return 0
    last_id: int = live.list_jobs({"ids": [1]})["last_id"]
    return last_id


def new_of(ids: Iterable[int], last_id: int) -> set[int]:
    """Return the ids of the jobs that were put since ``last_id`` was the last one, of those that puts answered.

    In a tube that takes each body once, the others are of jobs that were there.
    """
    return {int(job_id) for job_id in ids if job_id > last_id}


def put_new(live: Live, job: Record, person: Record) -> tuple[int, bool]:
    """Put a job; returns its id, and whether it is new: where each body is taken once it may be that of another.

    ``person`` is a part of the request.
    """
    last_id = newest_id(live)
    with telling_doubt("the job was put"):
        ids = live.ask("put-jobs", {"jobs": [job], **person})["ids"]
    return ids[0], bool(new_of(ids, last_id))


def run_schedule(live: Live, name: str, person: Record) -> tuple[int, bool]:
    """Have a schedule put its job now; returns what ``put_new`` does."""
    last_id = newest_id(live)
    with telling_doubt("the job was put"):
        job_id = live.ask("run-schedule", {"name": name, **person})["id"]
    return job_id, bool(new_of([job_id], last_id))


def _put_one(server: Live, job: NewJob) -> int:
    """Put a job with ``put``, as any client does, without a person's name."""
    try:
        return server.client.ask(calls.put(job.body, job.pri, job.delay_s, job.ttr_s), job.tube)
    except Declined as error:
        raise BeanliteError(f"{server.name} refused a put: {explanation(str(error))}") from error
