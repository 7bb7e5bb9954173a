"""Finds the numbered SQL files that create the schema of a database."""

import os
from pathlib import Path

from beanlite.errors import JournalUnreadable

_PACKAGE = Path(__file__).parents[1]
# The folder of the migrations: inside the package if it was installed from a wheel, beside it in a checkout.
FOLDER = next(
    (folder for folder in (_PACKAGE / "migrations", _PACKAGE.parent / "migrations") if folder.is_dir()),
    _PACKAGE / "migrations",
)


def find_migrations(folder: Path = FOLDER) -> list[Path]:
    """Return the migrations in a folder, in order.

    JournalUnreadable: they can't be read. RuntimeError: they are not numbered from 1 without gaps.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".sql")
        for path in files:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise JournalUnreadable(
            f"installation can't be read: {error.filename}: {error.strerror}; see who may read the installation"
        ) from error
    if not files:
        raise JournalUnreadable(f"installation is incomplete: no migrations in {folder}; install it again")
    if [path.name[:5] for path in files] != [f"{number:04}_" for number in range(1, len(files) + 1)]:
        raise RuntimeError(f"the migrations in {folder} are not numbered 0001_ and so on")
    return files
