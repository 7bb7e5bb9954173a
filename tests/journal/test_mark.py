"""The mark of a file: which server had it last, and whether all that belongs to it is there at the next start."""

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.file import mark
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.mark import ATTRIBUTE, Mark
from beanlite.journal.sqlite.file.wal import commit_frames
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import batch_in, make, refusal, writer
from tests.support.needs import need_attributes
from tests.support.servers import start_beanlite
from tests.support.wire import Wire

FRAME = 24 + 4096


@pytest.fixture
def path(tmp_path):
    need_attributes(tmp_path)
    return tmp_path / "queue.db"


@pytest.fixture
def killed(path):
    """The file of a killed server, with ten batches in its -wal."""
    with writer(path, "idle"):
        pass
    return path


def state_of(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = Mark.read(descriptor)
        return found and found.state
    finally:
        os.close(descriptor)


def after_a_reboot(monkeypatch):
    monkeypatch.setattr(mark, "boot_id", lambda: "another")


def test_mark_says_whether_the_file_is_served(path):
    database = open_database(path)
    assert state_of(path) == "serving"
    assert database.close() is None
    assert state_of(path) == "stopped"


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_file_that_was_emptied_is_not_taken_for_a_new_one(path, end):
    if end == "stopped":
        make(path, batches=3)
    else:
        with writer(path, "idle"):
            pass
        Path(f"{path}-wal").unlink()
    os.truncate(path, 0)
    assert refusal(path) == f"{path} is empty, but held a queue; put it back, or remove it to begin with an empty one"
    path.unlink()
    assert batch_in(path) == 0


@pytest.mark.parametrize("cut", [1, 100, FRAME, 3 * FRAME, "header", "all", "removed"])
def test_a_wal_cut_at_its_end_after_a_kill_is_refused(killed, cut):
    wal = Path(f"{killed}-wal")
    kept = wal.read_bytes()
    if cut == "removed":
        wal.unlink()
    else:
        os.truncate(wal, {"header": 32, "all": 0}[cut] if isinstance(cut, str) else len(kept) - cut)
    assert f"{wal} is missing or cut short, with commits that were acknowledged" in refusal(killed)
    wal.write_bytes(kept)
    assert batch_in(killed) == 10


def test_operator_may_choose_to_continue_without_the_wal(killed):
    os.truncate(f"{killed}-wal", 100)
    assert "remove the -shm" in refusal(killed)
    Path(f"{killed}-shm").unlink()
    assert batch_in(killed) < 10


def test_after_a_reboot_a_wal_may_be_short(killed, monkeypatch):
    after_a_reboot(monkeypatch)
    os.truncate(f"{killed}-wal", Path(f"{killed}-wal").stat().st_size - 1)
    assert batch_in(killed) == 9


def test_after_a_kill_a_damaged_last_commit_is_reported(killed):
    with Path(f"{killed}-wal").open("r+b") as wal:
        wal.seek(-1, os.SEEK_END)
        wal.write(b"\xff")
    database = open_database(killed)
    assert database.lost_batches == 1
    assert database.damaged_wal is not None
    assert database.close() is None


@pytest.mark.parametrize("fsync", ["always", "0ms", "50ms", "never"])
def test_unsynced_commits_that_a_power_failure_took_are_not_damage(path, monkeypatch, fsync):
    with start_beanlite(path.parent, "--fsync", fsync) as server, Wire(server.connect()) as wire:
        for _ in range(9):
            wire.put(b"job")
        server.kill()
    after_a_reboot(monkeypatch)
    with Path(f"{path}-wal").open("r+b") as wal:
        wal.seek(-4 * FRAME, os.SEEK_END)
        wal.write(bytes(FRAME))  # one of them never reached the disk, although later ones did
    assert all(finding.sound for finding in verify(path)) is (fsync in {"50ms", "never"})
    database = open_database(path)
    assert database.lost_batches > 1
    assert (database.damaged_wal is None) is (fsync in {"50ms", "never"})
    assert database.close() is None


@contextmanager
def reading_elsewhere(path):
    """Another program that has a transaction open, so that the -wal can't be emptied."""
    code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN'); c.execute('SELECT * FROM jobs')"
    command = [sys.executable, "-c", f"{code}; print(flush=True); sys.stdin.read()", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        reader.stdout.readline()
        yield
        reader.kill()  # if it closed the file in an orderly way, it would move the -wal into it


def leave_torn(path, monkeypatch, *, frame):
    """Leave a file of a server that a power failure took: this frame, counted from the end, did not reach the disk."""
    with start_beanlite(path.parent, "--fsync", "50ms") as server, Wire(server.connect()) as wire:
        for _ in range(9):
            wire.put(b"job")
        server.kill()
    after_a_reboot(monkeypatch)
    with Path(f"{path}-wal").open("r+b") as wal:
        wal.seek(frame * FRAME, os.SEEK_END)
        wal.write(bytes(FRAME))


def start_and_kill(path):
    """Open the file in a process that ends without closing it."""
    start = os.fork()
    if not start:
        open_database(path, fsync="50ms")
        os._exit(0)
    os.waitpid(start, 0)


@pytest.mark.parametrize("beside", [nullcontext, reading_elsewhere])
def test_commits_lost_in_a_power_failure_are_told_by_one_start_only(path, monkeypatch, beside):
    leave_torn(path, monkeypatch, frame=-4)
    with beside(path):
        start_and_kill(path)
    database = open_database(path)
    assert (database.lost_batches, database.damaged_wal) == (0, None)
    assert database.close() is None


def test_few_commits_lost_in_a_power_failure_are_not_left_behind(path, monkeypatch):
    leave_torn(path, monkeypatch, frame=-2)
    commits = commit_frames(path)
    with reading_elsewhere(path):
        start_and_kill(path)
        assert commit_frames(path) == commits[:-1]  # what the next start writes would lead to the last one


def test_the_mark_is_on_the_disk_before_there_is_a_commit(path, monkeypatch):
    done = []

    def noted(word, call, descriptor, *given):
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            done.append(word)
        call(descriptor, *given)

    for name in ("setxattr", "fsync"):
        monkeypatch.setattr(os, name, partial(noted, name, getattr(os, name)))
    database = open_database(path, fsync="50ms")
    assert done == ["fsync", "setxattr", "fsync"]  # the first makes sure that the new file is empty
    assert database.close() is None


@pytest.mark.parametrize("fsync", ["always", "50ms"])
def test_where_there_are_no_marks_the_setting_tells(killed, fsync):
    os.removexattr(killed, ATTRIBUTE)
    Path(f"{killed}-shm").unlink()
    with Path(f"{killed}-wal").open("r+b") as wal:
        wal.seek(-40 * FRAME, os.SEEK_END)
        wal.write(bytes(FRAME))
    database = open_database(killed, fsync=fsync)
    assert database.lost_batches > 1
    assert (database.damaged_wal is None) is (fsync != "always")
    assert database.close() is None


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder / "queue.db"


def test_renamed_file_of_a_killed_server_is_not_served_without_wal(killed, elsewhere):
    killed.rename(elsewhere)  # as with a bind mount of the file alone
    assert f"{elsewhere} was last served as {killed}, and its -wal may be beside that name" in refusal(elsewhere)
    shutil.copy(f"{killed}-wal", f"{elsewhere}-wal")
    assert "its -wal may be beside that name" in refusal(elsewhere)  # there are two now
    Path(f"{killed}-wal").unlink()
    Path(f"{killed}-shm").unlink()
    assert batch_in(elsewhere) == 10


def move(path, elsewhere):
    """Move the file with everything that belongs to it, as mv does."""
    for file in path.parent.glob(f"{path.name}*"):
        file.rename(elsewhere.with_name(file.name))


def test_a_killed_servers_file_may_be_moved_with_its_wal(killed, elsewhere):
    move(killed, elsewhere)
    with writer(killed, "idle"):  # another queue in its place
        assert batch_in(elsewhere) == 10


def test_moved_file_is_served_without_its_wal_if_that_is_in_the_file(killed, elsewhere):
    with closing(sqlite3.connect(killed)) as reader:  # the last one to close it
        assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (30,)
    assert not Path(f"{killed}-wal").exists()
    move(killed, elsewhere)
    assert batch_in(elsewhere) == 10


@pytest.mark.parametrize("place", ["gone", "a file"])
def test_if_the_old_name_is_out_of_reach_a_wal_of_its_own_is_enough(killed, tmp_path, place):
    folder = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(folder)
    if place == "a file":
        tmp_path.touch()
    elsewhere = folder / killed.name
    kept = Path(f"{elsewhere}-wal").read_bytes()
    Path(f"{elsewhere}-wal").unlink()
    assert "its -wal may be beside that name" in refusal(elsewhere)
    Path(f"{elsewhere}-wal").write_bytes(kept)
    assert batch_in(elsewhere) == 10


def test_a_backup_that_is_copied_over_a_killed_servers_file_is_served(killed, tmp_path):
    copy = tmp_path / "copy.db"
    backup(killed, copy)
    killed.write_bytes(copy.read_bytes())
    assert "-wal belongs to another file" in refusal(killed)
    Path(f"{killed}-wal").unlink()
    assert batch_in(killed) == 10


def test_a_file_name_need_not_be_text(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.db"))
    make(path, batches=3)
    assert state_of(path) == "stopped"
    assert batch_in(path) == 3


@pytest.mark.parametrize("looker", ["a backup", "a reader that stays"])
def test_program_that_opens_a_damaged_wal_first_hides_no_loss(killed, tmp_path, looker):
    with Path(f"{killed}-wal").open("r+b") as wal:
        wal.seek(32 + 9 * FRAME)
        wal.write(bytes(FRAME))
    with closing(sqlite3.connect(killed)) as reader:
        if looker == "a backup":
            with pytest.raises(JournalRefused, match="follow a damaged frame"):
                backup(killed, tmp_path / "copy.db")
        else:
            reader.execute("SELECT 1 FROM jobs").fetchone()
        database = open_database(killed)
        assert database.lost_batches > 1
        assert database.damaged_wal is not None
        database.close()


def test_commit_beside_the_copying_of_a_damaged_wal_is_kept(killed, monkeypatch):
    with Path(f"{killed}-wal").open("r+b") as file:
        file.seek(32 + 9 * FRAME)
        file.write(bytes(FRAME))
    copy = shutil.copyfile

    def copy_late(*given):
        copy(*given)
        with closing(sqlite3.connect(killed)) as other:
            other.executescript("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (17)")

    monkeypatch.setattr(shutil, "copyfile", copy_late)
    database = open_database(killed)
    assert database.damaged_wal is not None
    assert database.connection.execute("SELECT x FROM theirs").fetchall() == [(17,)]
    assert database.close() is None
    assert all(finding.sound for finding in verify(killed))


def test_a_damaged_wal_that_can_not_be_copied_stays_where_it_is(killed, monkeypatch):
    wal = Path(f"{killed}-wal")
    with wal.open("r+b") as file:
        file.seek(32 + 9 * FRAME)
        file.write(bytes(FRAME))
    content = wal.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copyfile", full)
            assert "is damaged, and can't be copied" in refusal(killed)
        assert wal.read_bytes() == content
    database = open_database(killed)
    assert database.damaged_wal.read_bytes() == content
    database.close()


def test_a_stopped_file_may_be_moved(path, tmp_path):
    make(path, batches=3)
    path.rename(tmp_path / "other.db")
    assert batch_in(tmp_path / "other.db") == 3


def test_a_copy_is_not_taken_for_the_original(killed, tmp_path):
    copy = tmp_path / "copy.db"
    shutil.copy2(killed, copy)
    assert os.getxattr(copy, ATTRIBUTE) == os.getxattr(killed, ATTRIBUTE)
    assert batch_in(copy) < 10


def test_two_names_are_refused(path, tmp_path):
    make(path)
    (tmp_path / "link.db").hardlink_to(path)
    for name in (path, tmp_path / "link.db"):
        assert f"{name} has 2 names (hard links), and its -wal would be found under one of them only" in refusal(name)
    (tmp_path / "link.db").unlink()
    assert batch_in(path) == 0


def test_nonsense_in_place_of_the_mark_is_ignored(path):
    make(path, batches=3)
    for nonsense in (b"", b"serving", b"\xff\xff", b"serving x y z /", b"serving 1 - always /elsewhere"):
        os.setxattr(path, ATTRIBUTE, nonsense)
        assert batch_in(path) == 3


@pytest.mark.parametrize("beside", ["-wal", "-shm", "-journal"])
def test_pipe_beside_the_file_is_refused(path, beside):
    make(path)
    pipe = path.with_name(path.name + beside)
    os.mkfifo(pipe)
    assert refusal(path) == f"{pipe} is no regular file; move it away"
