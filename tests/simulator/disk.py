"""A disk that fails on demand, and its contents after a power failure; both build on tests/faults/."""

import contextlib
import ctypes
import errno
import functools
import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tests.faults.forker import CHANGES, FAIL_ON, FAIL_ONCE, KINDS, RECORD
from tests.faults.power import Disk
from tests.faults.record import Operation

SYNC, READ = KINDS.index("sync"), KINDS.index("read")
EIO = errno.EIO


@functools.cache
def _shim() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class FaultyDisk:
    """The files of one folder, in which faults.c sees every file operation of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shim = _shim()
        self._came = self._shim.faults_came
        self._trace = os.memfd_create("trace")
        self._model = Disk(folder)
        self.dies = False
        """Whether there is a moment at which the process is killed."""
        self.arm()

    # -- faults

    def arm(self, number: int = 0, action: int = RECORD, kinds: int = CHANGES, error: int = errno.EIO) -> None:
        """Take this action at the n-th operation of these kinds from now on; 0: never."""
        self._shim.faults_arm(os.fsencode(self.folder), self._trace, kinds, ctypes.c_long(number), action, error)

    def disarm(self) -> None:
        """Stop observing file operations."""
        self._shim.faults_arm(b"", -1, 0, ctypes.c_long(0), RECORD, 0)

    def die_at(self, number: int) -> None:
        """Kill the process before the n-th change."""
        self.dies = True
        self.arm(number, FAIL_ON)

    def fail_at(self, number: int, kinds: int, error: int, *, for_good: bool) -> None:
        """Have the n-th operation of these kinds fail, and ``for_good`` all later ones as well."""
        self.dies = False
        self.arm(number, FAIL_ON if for_good else FAIL_ONCE, kinds, error)

    def die(self) -> None:
        """Kill the process now: none of its further changes reach the disk."""
        self.die_at(1)

    def came(self) -> bool:
        """Return whether the moment has come at which the process is killed."""
        return self.dies and bool(self._came())

    def live(self) -> None:
        """End all faults."""
        self.dies = False
        self.arm()

    def due(self, kind: int) -> OSError | None:
        """Return the error with which a simulated operation of this kind has to fail, or None."""
        number = self._shim.faults_due(kind)
        return OSError(number, os.strerror(number)) if number else None

    def room(self, size: int) -> None:
        """Set the number of free bytes; -1: more than enough."""
        self._shim.faults_room(ctypes.c_long(size))

    def quota(self, size: int) -> None:
        """Set how many bytes may still be written, which statvfs does not show; ``room`` lifts this limit."""
        self._shim.faults_quota(ctypes.c_long(size))

    def begin_sync(self, descriptor: int) -> None:
        """Note in the trace that a sync of the file begins: it covers everything written so far."""
        os.write(self._trace, b"sync %b 0 0\n\n" % self._name(descriptor))

    def end_sync(self, descriptor: int) -> None:
        """Note in the trace that the sync of the file has ended."""
        os.write(self._trace, b"synced %b 0 0\n\n" % self._name(descriptor))

    def _name(self, descriptor: int) -> bytes:
        return os.readlink(b"/proc/self/fd/%d" % descriptor).rpartition(b"/")[2]  # noqa: PTH115 - as bytes

    # -- the contents

    def _read_trace(self) -> None:
        size = os.lseek(self._trace, 0, os.SEEK_CUR)
        raw, at = os.pread(self._trace, size, 0), 0
        os.ftruncate(self._trace, 0)
        os.lseek(self._trace, 0, os.SEEK_SET)
        do = self._model.do
        while at < len(raw):
            end = raw.index(b"\n", at)
            kind, name, offset, length = raw[at:end].split(b" ")
            at = end + 1 + int(length)
            if kind != b"read":
                do(Operation(kind.decode(), name.decode(), int(offset), raw[end + 1 : at]))
            at += 1

    def settle(self) -> None:
        """Keep everything that was written: the process is gone, but the machine goes on.

        The trace is read only if the power fails, now or at the end of a later life.
        """
        self.live()

    def fail_power(self, chance: random.Random) -> None:
        """Replace the contents with what a power failure may leave: changes that were not synced survive in part."""
        self.live()
        self._read_trace()
        way = chance.random()
        image = self._model.any(chance) if way < 0.8 else self._model.safe() if way < 0.9 else self._model.names_only()
        self.disarm()
        for path in self.folder.iterdir():
            if path.name not in image:
                path.unlink()
        for name, content in image.items():
            path = self.folder / name
            # Write into the existing file: the mark identifies it by its inode number.
            with path.open("r+b" if path.exists() else "w+b") as file:
                file.truncate(0)
                file.write(content.data)
                file.truncate(content.size)
            for key in os.listxattr(path):
                os.removexattr(path, key)
            for key, value in content.attributes.items():
                os.setxattr(path, key, value)
        self._model = Disk(self.folder)
        self.arm()

    def close(self) -> None:
        """Disarm the library, and free what the disk uses."""
        self.disarm()
        self.room(-1)
        os.close(self._trace)


class Opened:
    """The connections and file descriptors that a server has opened, to be closed after it is killed."""

    def __init__(self) -> None:
        self.connections: list[sqlite3.Connection] = []
        self.descriptors: set[int] = set()

    def close(self) -> None:
        """Close everything, as the kernel does."""
        for connection in self.connections:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        for descriptor in sorted(self.descriptors):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.connections.clear()
        self.descriptors.clear()


opened = Opened()
_connect, _open, _close = sqlite3.connect, os.open, os.close


@contextlib.contextmanager
def beside(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection as another program would. It ends with the server at the latest: the process is the same."""
    connection = _connect(path, timeout=0, isolation_level=None)
    opened.connections.append(connection)
    try:
        yield connection
    finally:
        connection.close()


def install() -> None:
    """Keep track of everything opened from now on; to be called once."""

    def connect(*given, **named):
        connection = _connect(*given, **named)
        if given and str(given[0]) != ":memory:":
            opened.connections.append(connection)
        return connection

    def open_(path, flags, *given, **named):
        descriptor = _open(path, flags, *given, **named)
        opened.descriptors.add(descriptor)
        return descriptor

    def close(descriptor):
        opened.descriptors.discard(descriptor)
        _close(descriptor)

    for module, name, value in ((sqlite3, "connect", connect), (os, "open", open_), (os, "close", close)):
        setattr(module, name, value)
