"""The undo of a restore: what comes back, and what is said if nothing can."""

import signal
from pathlib import Path

import pytest

from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.tools.restore import restore, undo_restore
from tests.journal.test_restore import ids, kept_by, names, source, target
from tests.support.journal_files import make, writer

__all__ = ["source", "target"]  # fixtures


def test_an_undo_that_can_not_remove_what_came_back_says_so(source, target, monkeypatch):
    make(target, batches=4)
    kept, unlink = kept_by(restore(source, target)), Path.unlink

    def failing(path, **how):
        if path == kept:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, **how)

    monkeypatch.setattr(Path, "unlink", failing)
    match = r"queue\.db is as it was before the restore, but .*Z can't be removed: Operation not permitted$"
    with pytest.raises(BeanliteError, match=match):
        undo_restore(target)
    assert ids(target) == (list(range(1, 13)), 12)


def test_undo_and_undo_of_the_undo(source, target):
    make(target, batches=4)
    restore(source, target)
    first = undo_restore(target)
    assert ids(target) == (list(range(1, 13)), 12)
    assert names(target) == ["queue.db", kept_by(first).name]
    second = undo_restore(target)
    assert ids(target) == ([1, 2, 3], 12)
    assert names(target) == ["queue.db", kept_by(second).name]


def test_a_signal_while_what_came_back_is_removed_is_too_late(source, target, monkeypatch):
    make(target, batches=4)
    kept, unlink = kept_by(restore(source, target)), Path.unlink

    def interrupted(path, **how):
        if path == kept:
            signal.raise_signal(signal.SIGINT)
        unlink(path, **how)

    monkeypatch.setattr(Path, "unlink", interrupted)
    result = undo_restore(target)
    assert names(target) == ["queue.db", kept_by(result).name]
    assert ids(target) == (list(range(1, 13)), 12)


def test_undo_refuses_what_a_server_holds(source, target):
    make(target, batches=4)
    kept = kept_by(restore(source, target))
    kept.unlink()
    with writer(kept, "idle"), pytest.raises(JournalRefused, match=rf"a server or another command holds {kept}"):
        undo_restore(target)
    assert kept.exists()
    assert ids(target)[0] == [1, 2, 3]
    undo_restore(target)
    assert len(ids(target)[0]) == 30  # those in its -wal, too


def test_no_server_starts_on_what_an_undo_is_about_to_remove(source, target, monkeypatch):
    make(target, batches=4)
    kept, unlink = kept_by(restore(source, target)), Path.unlink

    def started(path, **how):
        if path == kept:
            with pytest.raises(JournalRefused, match="a server or another command holds"):
                open_database(kept)
        unlink(path, **how)

    monkeypatch.setattr(Path, "unlink", started)
    undo_restore(target)
    assert not kept.exists()


def test_nothing_to_undo(target):
    with pytest.raises(BeanliteError, match=r"there is no .*queue\.db\.replaced-… to bring back"):
        undo_restore(target)
    assert names(target) == []


def test_undo_where_what_was_set_aside_is_out_of_reach(source, target):
    make(target, batches=4)
    kept = kept_by(restore(source, target))
    kept.unlink()
    kept.symlink_to("gone.db")  # as if its disk were not mounted
    with pytest.raises(BeanliteError, match=r"replaced-.*Z can't be read: No such file or directory$"):
        undo_restore(target)
    assert ids(target)[0] == [1, 2, 3]


def test_undo_after_the_clock_was_set_back(source, target):
    """The names of files that are set aside sort by the order of the restores, whatever the clock says."""
    make(target, batches=4)
    first = kept_by(restore(source, target))
    first.rename(target.with_name("queue.db.replaced-20990101T000000.000Z"))
    make(source.with_name("second.db"), batches=2)
    assert kept_by(restore(source.with_name("second.db"), target)).name == "queue.db.replaced-20990101T000000.001Z"
    undo_restore(target)
    assert ids(target)[0] == [1, 2, 3]


def test_undo_of_a_restore_that_has_replaced_nothing(source, target):
    make(target, batches=4)
    kept = kept_by(restore(source, target))
    target.unlink()
    assert restore(source, target).kept is None
    with pytest.raises(BeanliteError, match=r"nothing to bring back: the last restore of .* replaced no database"):
        undo_restore(target)
    assert ids(target)[0] == [1, 2, 3]
    assert kept.exists()
