"""A model of a power failure: what a disk may hold after it, given all operations on the files of a folder before it.

Synced changes are safe: the content and the size of a file after a sync of the file, names after a sync of the folder.
Any later change may or may not be there: a write as a whole, in part (sectors of 512 bytes) or not at all, a size with
or without the bytes, one change of a name without the previous one.
"""

import os
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
FOLDER = "."


@dataclass
class Bytes:
    """A file's content: `data`, followed by zeros up to `size`."""

    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    attributes: dict[str, bytes] = field(default_factory=dict)

    def write(self, offset, data):
        if data:
            self.data.extend(bytes(max(0, offset + len(data) - len(self.data))))
            self.data[offset : offset + len(data)] = data
            self.size = max(self.size, offset + len(data))

    def resize(self, size):
        del self.data[size:]
        self.size = size

    def key(self):
        return bytes(self.data).rstrip(b"\0"), self.size, frozenset(self.attributes.items())


@dataclass(eq=False)
class File:
    """A file, whatever its names: its safe content, and the changes since."""

    safe: Bytes = field(default_factory=Bytes)
    since: list = field(default_factory=list)
    syncing: int = 0
    """How many of the changes the sync that is under way covers."""

    def synced(self):
        for operation in self.since[: self.syncing]:
            apply(self.safe, operation)
        del self.since[: self.syncing]
        self.syncing = 0

    def now(self):
        content = deepcopy(self.safe)
        for operation in self.since:
            apply(content, operation)
        return content


def apply(content, operation):
    if operation.kind == "write":
        content.write(operation.offset, operation.data)
    elif operation.kind == "truncate":
        content.resize(operation.offset)
    elif operation.kind == "allocate":
        content.size = max(content.size, operation.offset)
    elif operation.kind == "xattr":
        key, is_set, value = operation.data.partition(b"=")
        content.attributes.pop(key.decode(), None)
        if is_set:
            content.attributes[key.decode()] = value


class Disk:
    """The files of a folder, which are changed operation by operation with `do`.

    With `journaled`, a sync of a new file also makes its name safe, as on ext4; otherwise only that of the folder does.
    """

    def __init__(self, folder: Path, *, journaled: bool = False) -> None:
        """Begin with the contents of the folder, all of them safe."""
        self._journaled = journaled
        self.names = {}
        for path in folder.iterdir():
            data = path.read_bytes()
            attributes = {key: os.getxattr(path, key) for key in os.listxattr(path)}
            self.names[path.name] = File(Bytes(bytearray(data.rstrip(b"\0")), len(data), attributes))
        self.safe_names = dict(self.names)
        # Of names: each is a dictionary from names to files, or None for a name that is gone.
        self.changes: list[dict] = []
        self.syncing = 0

    def do(self, operation):
        if operation.name == FOLDER:
            self._sync_names(operation)
        elif operation.kind == "create":
            self._rename({operation.name: File()})
        elif operation.kind == "unlink":
            self._rename({operation.name: None})
        elif operation.kind in {"rename", "link"}:
            gone = {operation.name: None} if operation.kind == "rename" else {}
            self._rename(gone | {operation.data.decode(): self.names[operation.name]})
        elif operation.kind in {"write", "truncate", "allocate", "xattr"}:
            self.names[operation.name].since.append(operation)
        elif operation.kind == "sync":
            file = self.names[operation.name]
            file.syncing = len(file.since)
        elif operation.kind == "synced":
            file = self.names[operation.name]
            file.synced()
            if self._journaled:
                self._name_is_safe(file)
        elif operation.kind not in {"note", "read"}:
            raise NotImplementedError(f"the model knows nothing of {operation}")

    def _rename(self, change):
        self.changes.append(change)
        self.names = renamed(self.names, change)

    def _sync_names(self, operation):
        if operation.kind == "sync":
            self.syncing = len(self.changes)
        else:
            self._save_names(self.syncing)

    def _name_is_safe(self, file):
        """Make the file's name safe, with all earlier changes of names, as a journal does."""
        named = [number for number, change in enumerate(self.changes, 1) if file in change.values()]
        self._save_names(max(named, default=0))

    def _save_names(self, number):
        for change in self.changes[:number]:
            self.safe_names = renamed(self.safe_names, change)
        del self.changes[:number]
        self.syncing = max(0, self.syncing - number)

    # -- what may be there after the power failure: the contents of files by name

    def all(self):
        """Return everything that was written, as after a kill."""
        return {name: file.now() for name, file in self.names.items()}

    def safe(self):
        """Return only what was promised."""
        return {name: file.safe for name, file in self.safe_names.items()}

    def names_only(self):
        """Return new names with old contents; a new file is empty."""
        return {name: file.safe for name, file in self.names.items()}

    def contents_only(self):
        """Return new contents under the old names."""
        return {name: file.now() for name, file in self.safe_names.items()}

    def any(self, chance: random.Random):
        """Return a random part of the changes that are not safe."""
        names = self.safe_names
        for change in self.changes:
            if chance.random() < 0.5:
                names = renamed(names, change)
        return {name: torn(file, chance) for name, file in names.items()}


def renamed(names, change):
    return {name: file for name, file in (names | change).items() if file is not None}


def torn(file, chance):
    """Return the content with some of the changes that are not safe: each write whole, in part, or not at all."""
    content = deepcopy(file.safe)
    keep_size = chance.random() < 0.3
    for operation in file.since:
        if operation.kind != "write":
            if chance.random() < 0.5:
                apply(content, operation)
            continue
        size = content.size
        share = chance.choice((0, 0.5, 1))
        end = operation.offset + len(operation.data)
        for start in range(operation.offset - operation.offset % SECTOR, end, SECTOR):
            if chance.random() < share:
                first = max(start, operation.offset)
                part = operation.data[first - operation.offset : start + SECTOR - operation.offset]
                content.write(first, part)
        if keep_size:
            content.resize(size)
        elif chance.random() < 0.5:
            content.size = max(content.size, end)
    return content


def write_image(image: dict[str, Bytes], folder: Path):
    folder.mkdir()
    for name, content in image.items():
        with (folder / name).open("wb") as file:
            file.write(content.data)
            file.truncate(content.size)
        for key, value in content.attributes.items():
            os.setxattr(folder / name, key, value)


def key_of(image: dict[str, Bytes]):
    """Return a key that is the same for equal images."""
    return frozenset((name, *content.key()) for name, content in image.items())


VARIANTS: tuple[Callable, ...] = (Disk.safe, Disk.names_only, Disk.contents_only)
