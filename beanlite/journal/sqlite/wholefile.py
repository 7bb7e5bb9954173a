"""Files that appear as a whole or not at all: written under another name, synced, and renamed."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_whole(dest: Path) -> Iterator[Path]:
    """Yield an empty file of mode 0600 beside `dest`, to be filled by name; it becomes `dest` at the end of the block.

    If the block raises, it is removed. OSError: `dest` exists already, or can't be written, synced or given its name.
    """
    if os.path.lexists(dest):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(dest))
    descriptor, name = tempfile.mkstemp(dir=dest.parent, prefix=f".{dest.name}.", suffix=".partial")
    ours = os.fstat(descriptor)
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
        sync(partial)
        partial.rename(dest)
        sync(dest.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            if os.path.samestat(dest.stat(), ours):  # it had already been renamed
                dest.unlink()
        raise


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk. OSError: that failed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
