"""A model of a power failure: what a disk may hold, given all that was done to the files of one folder before it.

What is safe is what was synced: the content and the size of a file by a sync of the file, names by a sync of the
folder. Of what came after that anything may be there or not: a write whole, in part (sectors of 512 bytes) or not at
all, a size with or without the bytes, one change of a name and not the one before it.
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
    """A file's content: what lies beyond `data` up to `size` is zeros."""

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
    """A file under whatever names: what of it is safe, and the changes since."""

    safe: Bytes = field(default_factory=Bytes)
    since: list = field(default_factory=list)
    syncing: int = 0
    """How many of the changes a sync that goes on takes along."""

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
    """The files of a folder; to be told operation by operation what is done to them.

    With `journaled` the sync of a new file makes its name safe, too, as ext4 does; else only that of the folder.
    """

    def __init__(self, folder: Path, *, journaled: bool = False) -> None:
        """Begin with what is in the folder, all of it safe."""
        self._journaled = journaled
        self.names = {}
        for path in folder.iterdir():
            data = path.read_bytes()
            attributes = {key: os.getxattr(path, key) for key in os.listxattr(path)}
            self.names[path.name] = File(Bytes(bytearray(data.rstrip(b"\0")), len(data), attributes))
        self.safe_names = dict(self.names)
        self.changes = []  # of names: dictionaries of what each of them is now, or None
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
        """As in a journal: with all that was done to names before it got this one."""
        named = [number for number, change in enumerate(self.changes, 1) if file in change.values()]
        self._save_names(max(named, default=0))

    def _save_names(self, number):
        for change in self.changes[:number]:
            self.safe_names = renamed(self.safe_names, change)
        del self.changes[:number]
        self.syncing = max(0, self.syncing - number)

    # -- what may be there after the power failure: a file's content by its name

    def all(self):
        """As after a kill."""
        return {name: file.now() for name, file in self.names.items()}

    def safe(self):
        """No more than was promised."""
        return {name: file.safe for name, file in self.safe_names.items()}

    def names_only(self):
        """New names, but old contents; a new file is empty."""
        return {name: file.safe for name, file in self.names.items()}

    def contents_only(self):
        """New contents, but under the old names."""
        return {name: file.now() for name, file in self.safe_names.items()}

    def any(self, chance: random.Random):
        """Some of what is not safe."""
        names = self.safe_names
        for change in self.changes:
            if chance.random() < 0.5:
                names = renamed(names, change)
        return {name: torn(file, chance) for name, file in names.items()}


def renamed(names, change):
    return {name: file for name, file in (names | change).items() if file is not None}


def torn(file, chance):
    """Some of the changes that are not safe, each write whole, in part, or not at all."""
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
    """The same for images that are the same."""
    return frozenset((name, *content.key()) for name, content in image.items())


VARIANTS: tuple[Callable, ...] = (Disk.safe, Disk.names_only, Disk.contents_only)
