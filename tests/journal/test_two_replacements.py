"""Two commands that replace the same file, and a server that is started on it between them."""

import pytest

from beanlite.errors import BeanliteError
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.tools import dump
from beanlite.journal.sqlite.tools.backup import backup
from tests.journal.test_restore import ids
from tests.support.journal_files import make, write_batch


@pytest.fixture
def dest(path):
    make(path, batches=2)
    backup(path, path.with_name("spare.db"))
    return path.with_name("spare.db")


def export_amid_which(what, path, dest):
    def write(sink):
        what()
        return sink.write(b"{}\n")

    dump.export_to_file(write, dest, path, replace=True)


def test_they_exclude_each_other(path, dest):
    def second():
        with pytest.raises(BeanliteError, match="another command holds it"):
            backup(path, dest, replace=True)

    export_amid_which(second, path, dest)
    assert dest.read_text() == "{}\n"


@pytest.mark.usefixtures("poor_locks")
def test_where_they_cant_the_first_spares_what_the_second_put_there(path, dest):
    def second():
        backup(path, dest, replace=True)
        database = open_database(dest)
        write_batch(database.connection, 3)
        database.close()

    with pytest.raises(BeanliteError, match="another command has replaced it meanwhile"):
        export_amid_which(second, path, dest)
    assert ids(dest)[0] == list(range(1, 10))


def test_a_file_that_is_moved_away_meanwhile_is_no_hindrance(path, dest):
    export_amid_which(lambda: dest.rename(dest.with_name("moved.db")), path, dest)
    assert dest.read_text() == "{}\n"
    assert ids(dest.with_name("moved.db"))[0] == list(range(1, 7))
