"""``beanlite backup``, ``restore``, ``verify``, ``salvage``, ``compact``."""

import contextlib
import json
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from beanlite.cli.options import (
    AsJson,
    ConfigFile,
    Db,
    Force,
    beside_text,
    existing_db,
    ids_text,
    measure,
    path_of_db,
    url_of_database,
)
from beanlite.cli.paths import as_new_file, as_path, check_new, expect_file, path_given
from beanlite.cli.printing import print_done
from beanlite.console import units
from beanlite.errors import BeanliteError, ConfigError, JournalRefused, JournalUnreadable
from beanlite.host.signals import terminable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beanlite.journal.sqlite.tools.backup import BackupResult
    from beanlite.journal.sqlite.tools.salvage import SalvageResult
    from beanlite.journal.validity import CheckResult

EPILOG: Final = {
    "backup": (
        "Exit codes: 0 the backup is in place; 1 it could not be made, or an old one could not be deleted; 2 a wrong"
        " setting or flag; 3 the database was refused, or is damaged; 130 interrupted. If no backup was made, DEST is"
        " unchanged."
    ),
    "restore": (
        "Exit codes: 0 done; 1 it could not be done; 2 a wrong setting or flag; 3 FILE is damaged or not a beanlite"
        " database, a server holds the database, or another program has it open or has written to it meanwhile; 130"
        " interrupted. After all but 0 the database is unchanged, unless the message says that it is replaced."
    ),
    "verify": (
        "Exit codes: 0 it is sound; 1 it could not be read; 2 a wrong flag; 3 it is damaged, or not a beanlite"
        " database; 130 interrupted."
    ),
    "salvage": (
        "Exit codes: 0 everything is saved; 1 something could not be read or written, and there is no DEST; 2 a wrong"
        " flag; 3 what is sound is in DEST, but something is lost or in doubt; or a server holds SOURCE or nothing in"
        " it can be saved, and there is no DEST; 4 what is sound is in DEST, but the disk failed when it was closed,"
        " and it is not told what is lost; 130 interrupted."
    ),
    "compact": (
        "Exit codes: 0 done; 1 it could not be done; 2 a wrong setting or flag; 3 a server holds the database or was"
        " killed while holding it, another program has it open or has written to it meanwhile, or it is damaged; 130"
        " interrupted. After all but 0 the database is unchanged, unless the message says that it is replaced."
    ),
}
EXAMPLES: Final = """
beanlite backup copy.db
beanlite backup /backups --keep 7 --db /var/lib/beanlite/beanlite.db

beanlite restore /backups/queue.db
beanlite restore --undo
beanlite restore old.db --db new/queue.db

beanlite verify /backups/queue.db
beanlite verify beanlite.db --json
beanlite verify --database postgresql://beanlite@db1,db2/queue

beanlite salvage beanlite.db.replaced-20261123T040000.123Z rescued.db

beanlite compact --db /var/lib/beanlite/beanlite.db
"""


def backup(
    dest: Annotated[
        str,
        typer.Argument(
            metavar="DEST",
            parser=path_given,
            help="The file to write, which must not exist yet; or a folder, in which the file is named after the"
            " database and the time (UTC), such as beanlite-20261122T213456.789Z.db.",
        ),
    ],
    *,
    db: Db = None,
    config_file: ConfigFile = None,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="If DEST is a folder: keep N backups of this database, and delete older ones once the new one is in"
            " place.",
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Copy a database, live or stopped, to one new file.

    The copy is a snapshot of one moment. It is read back and synced before it gets its name.
    """
    source = existing_db(db, config_file, "backup")
    from beanlite.journal.sqlite.file import dated

    if dest == "-":
        raise ConfigError("a backup can't be written to a pipe; ./- names a file")
    file = Path(dest)
    folder = file if os.path.isdir(file) else None  # noqa: PTH112 - Path.is_dir raises an error without permission
    if folder is None and (keep is not None or dest.endswith("/")):
        raise ConfigError(f"{dest} is not a folder")
    if folder is None:
        check_new(file)
    else:
        if force:
            raise ConfigError(f"--force: {dest} is a folder, in which each backup has a name of its own")
        source = Path(os.path.realpath(source))  # names are by the file itself, as those of a server's backups are
        with contextlib.suppress(OSError):  # the backup itself reports what is wrong with the folder
            dated.delete_left(folder, source)
    if folder is None:
        result, seconds = _copy(source, file, force=force)
    else:
        file, result, seconds = _copy_into(folder, source)
    older: list[Path] = []
    failures: list[OSError] = []
    if keep is not None and folder is not None:
        try:
            older, failures = dated.delete_oldest(folder, source, keep, file)
        except OSError as error:
            failures = [error]
    if as_json:
        names = [str(old) for old in older]
        print_done(json.dumps({"file": str(file), **asdict(result), "seconds": seconds, "deleted": names}))
    else:
        summary = f"{file}: {units.jobs(result.jobs)}, {result.size:,} bytes, {seconds} s"
        print_done("\n".join([summary, *(f"{old}: deleted" for old in older)]))
    if failures:
        more = f", and {len(failures) - 1} more" if failures[1:] else ""
        why = f"{failures[0].filename}: {failures[0].strerror}"
        raise BeanliteError(f"{file} is made, but an older backup can't be deleted: {why}{more}")


def _copy_into(folder: Path, source: Path) -> "tuple[Path, BackupResult, float]":
    """Make a dated backup in a folder, and return its path and what ``_copy`` returns."""
    from beanlite.journal.sqlite.file.dated import dated_path

    taken = None
    while True:
        file = dated_path(folder, source, time.time())
        try:
            return file, *_copy(source, file, force=False)
        except BeanliteError as error:
            if file == taken or not isinstance(error.__context__, FileExistsError):
                raise
            # Another backup was given the same name, as the newest one is ahead of the clock, and has ended first.
            taken = file


def _copy(source: Path, file: Path, *, force: bool) -> "tuple[BackupResult, float]":
    """Make a backup, and return what is in it and how many seconds it took."""
    from beanlite.journal.sqlite.tools.backup import backup as copy

    return measure(lambda progress: copy(source, file, progress, replace=force), "MiB", 1 << 20)


def restore(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", parser=as_path, help="The backup to restore; it is only read.")
    ] = None,
    *,
    undo: Annotated[
        bool, typer.Option("--undo", help="Bring back the database that the last restore set aside.")
    ] = False,
    db: Db = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Replace a stopped database with a backup.

    FILE is checked as by "beanlite verify". The old database is set aside as DATABASE.replaced-TIME in the same folder;
    remove it when you are sure. Ids that it gave out after the backup are not given out again.
    """
    if (file is None) != undo:
        raise ConfigError("name either a FILE or --undo")
    target = path_of_db(db, config_file, "restore")
    check_new(target)
    from beanlite.journal.sqlite.tools import restore as journal

    restoring = partial(journal.undo_restore, target) if file is None else partial(journal.restore, file, target)
    result, seconds = measure(restoring, "MiB", 1 << 20)
    if as_json:
        print_done(json.dumps({"file": str(target.absolute()), **asdict(result), "seconds": seconds}))
        return
    aside = "; there was none before" if result.kept is None else f"\n{result.kept}: the database that was replaced"
    print_done(f"{target.absolute()}: {units.jobs(result.jobs)}, as in {result.restored}, {seconds} s{aside}")


def verify(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", parser=as_path, help="A database, live or stopped, or a backup.")
    ] = None,
    *,
    database: Annotated[
        str | None, typer.Option("--database", metavar="URL", help="Check this PostgreSQL database instead.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, for scripts.")] = False,
) -> None:
    """Check a database, live or stopped.

    Prints a line for each check: the file; its -wal (log); SQLite's own check; the schema; the last id, the pauses,
    policies and schedules (state); each job's row; each body's checksum. The whole database is read, and nothing is
    changed. A live database is checked as of one moment: the -wal of a file can't be truncated until the checks end,
    and PostgreSQL can't remove old rows.
    """
    unsound = []
    unread = ""
    with terminable():
        try:
            for finding in _checks(file, database):
                if not finding.sound:
                    unsound.append(finding)
                if as_json:
                    print(json.dumps(finding._asdict()), flush=True)
                else:
                    verdict = "ok" if finding.sound else "DAMAGED" if finding.ours else "REFUSED"
                    print(f"{finding.check:<7} {verdict:<7} {finding.said}", flush=True)
        except JournalUnreadable as error:
            if not unsound:
                raise BeanliteError(f"{file} can't be checked: {error}") from error
            unread = f"; the rest can't be checked: {error}"
    name = "the database" if file is None else file
    if not all(finding.ours for finding in unsound):
        raise JournalRefused(f"{name} can't be checked")
    if unsound:
        raise JournalRefused(f"{name} is not sound: {', '.join(finding.check for finding in unsound)}{unread}")


def _checks(file: Path | None, database: str | None) -> "Iterator[CheckResult]":
    """Return the results of the checks. ConfigError: neither a file nor a database is named, or both."""
    if (file is None) == (database is None):
        raise ConfigError("name either a FILE or a --database")
    if file is not None:
        expect_file(file, "verify")
        from beanlite.journal.sqlite.tools.verify import verify as check_file

        return check_file(file)
    url = url_of_database(None, database, None)
    assert url is not None
    from beanlite.journal.postgres.soundness import verify as check_database  # it may not be installed

    return check_database(url)


def salvage(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", parser=as_path, help="A damaged database that no server holds.")
    ],
    dest: Annotated[
        Path, typer.Argument(metavar="DEST", parser=as_new_file, help="The database to create; it must not exist yet.")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Save what is sound in a damaged database.

    SOURCE and its -wal are only read, page by page and without SQLite. Jobs, pauses, policies, schedules and the last
    id are saved to DEST; totals and history are not. Jobs of which only a part is left are listed.
    """
    expect_file(source, "salvage")
    check_new(dest)
    from beanlite.journal.sqlite.tools.salvage import salvage as save

    result, seconds = measure(partial(save, source, dest), "%")
    if as_json:
        print_done(json.dumps({"file": str(dest), **asdict(result), "seconds": seconds}))
    else:
        others = ", ".join(units.settings(result.pauses, result.policies, result.schedules))
        print_done(f"{dest}: {units.jobs(result.jobs)}, {others}, {seconds} s{beside_text(result.left)}")
    if result.is_all:
        return
    raise JournalRefused("; ".join([*_losses(source, result), *_in_doubt(result)]))


def _losses(source: Path, result: "SalvageResult") -> list[str]:
    left_out = []
    if result.lost:
        left_out.append(f"{units.jobs(len(result.lost))} of which only a part is left ({ids_text(result.lost)})")
    lost = (
        (result.lost_pauses, "pause", ""),
        (result.lost_policies, "policy", "policies"),
        (result.lost_notes, "note", ""),
        (result.lost_schedules, "schedule", ""),
    )
    left_out += [units.quantity(*each) for each in lost if each[0]]
    if result.lost_clock:
        left_out.append("what clock the times are by, which are now taken for UTC")
    if result.unreadable:
        left_out.append(
            f"what stood on {units.quantity(result.unreadable, 'page')} that can't be read, or not understood"
        )
    if result.last_id is None:
        left_out.append("the last id, so that new ones begin a million higher")
    return [f"not saved from {source}: {'; '.join(left_out)}"] if left_out else []


def _in_doubt(result: "SalvageResult") -> list[str]:
    doubts = []
    if result.jobs_at_stop not in {None, result.jobs}:
        doubts.append(f"{units.jobs(result.jobs)} saved, and {result.jobs_at_stop:,} were there at the last stop")
    if result.doubtful:
        jobs = units.jobs(len(result.doubtful))
        doubts.append(f"{jobs} of those saved may have been deleted ({ids_text(result.doubtful)})")
    return doubts


def compact(*, db: Db = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Shrink the file of a stopped database.

    The database is copied without gaps, and the copy is checked, synced and put in its place; the disk needs room for
    both. A running server gives space back by itself, so this helps only after the database was very large.
    """
    path = existing_db(db, config_file, "compact")
    from beanlite.journal.sqlite.tools.compact import compact as shrink

    result, seconds = measure(partial(shrink, path), "MiB", 1 << 20)
    if as_json:
        print_done(json.dumps({"file": str(path), **asdict(result), "seconds": seconds}))
    else:
        jobs = units.jobs(result.jobs)
        print_done(f"{path}: {jobs}, {result.before:,} bytes before, {result.after:,} bytes now, {seconds} s")
