"""What -V adds to the log."""

import pytest

from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until

PUT = b"put 0 0 60 "


@pytest.mark.parametrize("verbose", [True, False])
def test_verbose_log_has_connections_and_refused_commands(tmp_path, verbose):
    flags = ["-V"] if verbose else []
    with start_beanlite(tmp_path, "--no-journal", "-z", "5", *flags) as server, Wire(server.connect()) as wire:
        address = "{}:{}".format(*wire.socket.getsockname())
        said = [
            (b"nonsense\r\n", "UNKNOWN_COMMAND", "nonsense"),
            (b"peek \xff\r\nuse a\r\n", "BAD_FORMAT", '"peek \\\\xff"'),
            (PUT + b"6\r\nput\r\n6\r\n", "JOB_TOO_BIG", '"put 0 0 60 6"'),
            (PUT + b"1\r\nb\n\n", "EXPECTED_CRLF", '"put 0 0 60 1"'),
        ]
        for data, reply, _ in said:
            wire.send(data[:4])
            wire.send(data[4:])
            while wire.reply() != reply:
                pass
        wire.send(PUT + b"3\r\nabc\r\nlist-tube-used\r\n")
        until(lambda: wire.reply().startswith("USING"))
        wire.close()
        until(lambda: not verbose or f"connection closed address={address}\n" in server.log_text())
        lines = [f"DEBUG beanlite: connection opened address={address}"]
        lines += [
            f"DEBUG beanlite: command refused address={address} reply={reply} line={line}" for _, reply, line in said
        ]
        lines += [f"DEBUG beanlite: connection closed address={address}"]
        found = [line.partition(" ")[2] for line in server.log_text().splitlines() if address in line]
        assert found == (lines if verbose else [])
        assert "abc" not in server.log_text()


def test_a_flood_of_refused_commands_does_not_flood_the_log(tmp_path):
    lines = 20_000
    with start_beanlite(tmp_path, "--no-journal", "-V") as server, Wire(server.connect()) as wire:
        assert wire.ask("list-tube-used") == "USING default"  # lest it be taken for another protocol
        wire.send(b"\r\n" * lines)
        assert {wire.reply() for _ in range(lines)} == {"UNKNOWN_COMMAND"}
        assert 0 < server.log_text().count("command refused") < lines / 10
