"""A client for programs: producers and workers, on asyncio or blocking.

`connect` is for asyncio, `connect_blocking` for other programs; both have the same methods. It needs nothing but
Python's own library, knows nothing of the server, and speaks to beanstalkd as well.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from beanlite.client.calls import PeekedJob, Statistics
from beanlite.client.errors import (
    BadFormat,
    Buried,
    CannotConnect,
    ClientError,
    ConnectionLost,
    DeadlineSoon,
    Declined,
    Draining,
    InternalError,
    JobLost,
    JobTooBig,
    NotFound,
    NotIgnored,
    OutOfMemory,
    PutUnknown,
    SomePutsFailed,
    TimedOut,
    Unauthorized,
    UnexpectedReply,
    UnknownCommand,
)

if TYPE_CHECKING:
    from beanlite.client.asynchronous import Queue, connect
    from beanlite.client.blocking import BlockingQueue, connect_blocking
    from beanlite.client.reserved import Job
    from beanlite.client.reserved_blocking import BlockingJob

__all__ = [
    "BadFormat",
    "BlockingJob",
    "BlockingQueue",
    "Buried",
    "CannotConnect",
    "ClientError",
    "ConnectionLost",
    "DeadlineSoon",
    "Declined",
    "Draining",
    "InternalError",
    "Job",
    "JobLost",
    "JobTooBig",
    "NotFound",
    "NotIgnored",
    "OutOfMemory",
    "PeekedJob",
    "PutUnknown",
    "Queue",
    "SomePutsFailed",
    "Statistics",
    "TimedOut",
    "Unauthorized",
    "UnexpectedReply",
    "UnknownCommand",
    "connect",
    "connect_blocking",
]


_MODULES = {
    "BlockingJob": "reserved_blocking",
    "BlockingQueue": "blocking",
    "Job": "reserved",
    "Queue": "asynchronous",
    "connect": "asynchronous",
    "connect_blocking": "blocking",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - mypy knows the types from above
    """Import one of the two when it is asked for: a blocking program does not wait for the import of asyncio."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"beanlite.client.{_MODULES[name]}"), name)
