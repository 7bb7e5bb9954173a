"""What commands say of a PostgreSQL database that can't be reached: one line, without Python's words."""

import pytest

from beanlite.cli import main
from beanlite.journal.postgres.link import text_of
from tests.support.servers import free_port

COMMANDS = (
    "verify --database", "history --database", "job 1 --database", "export --database", "cluster status",
    "undelete 1 --database", "web --listen 127.0.0.1:0 --database",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_dead_database_is_told_in_one_plain_line(command, capsys):
    url = f"postgresql://user@127.0.0.1:{free_port()}/queue"
    assert main([*command.split(), url]) == 1
    out, err = capsys.readouterr()
    what = "used" if command.split()[0] == "export" else "read"
    assert (out, err) == ("", f"beanlite: {url} can't be {what}: Connection refused\n")


def test_errors_of_a_name_with_several_addresses_are_told_once():
    ours, other = "[Errno 111] Connect call failed ('::1', 1, 0, 0)", "[Errno 113] Connect call failed ('10.0.0.1', 1)"
    assert (
        text_of(OSError(f"Multiple exceptions: {ours}, {other}, {ours}")) == "Connection refused and No route to host"
    )
    assert text_of(ConnectionError("it lacks commits")) == "it lacks commits"
