"""``beanlite config``: what holds, where it comes from, and every mistake."""

import json
import os

import pytest

from beanlite import cli

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "beanlite.toml"


def test_each_setting_and_where_it_comes_from(file, monkeypatch, capsys):
    file.write_text('port = 1\nmax_tubes = 1\nfsync = "never"\nmax_memory = "64MiB"\n')
    monkeypatch.setenv("BEANLITE_MAX_TUBES", "2")
    monkeypatch.setenv("BEANLITE_FSYNC", "1ms")
    assert cli.main(["config", "--config", str(file), "-f", "50", "-V", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {key: tuple(told[key].values()) for key in ("port", "max_tubes", "fsync", "log_level", "host")} == {
        "port": (1, str(file)),
        "max_tubes": (2, "BEANLITE_MAX_TUBES"),
        "fsync": ("50ms", "--fsync"),
        "log_level": ("debug", "--log-level"),
        "host": ("127.0.0.1", "default"),
    }
    assert told["max_memory"]["value"] == 64 << 20


def test_a_table_for_people(capsys):
    assert cli.main(["config", "--no-journal"]) == 0
    told = capsys.readouterr()
    assert told.err.endswith("one that runs may have others.\n")
    lines = [line.split() for line in told.out.splitlines()]
    assert ["journal", "false", "--no-journal"] in lines
    assert ["socket", "-", "default"] in lines
    assert ["port", "11300", "default"] in lines


@pytest.mark.parametrize(
    ("flags", "source"),
    [("-l ::1", "--host"), ("-p 1", "--port"), ("-l ::1 -p 1", "--host"), ("-l unix:x", "--socket")],
)
def test_the_flag_that_has_replaced_a_socket_is_named(file, flags, source, capsys):
    file.write_text('socket = "y"\n')
    assert cli.main(["config", "--config", str(file), "--json", *flags.split()]) == 0
    assert json.loads(capsys.readouterr().out)["socket"]["source"] == source


def test_pipe_of_settings_is_read_once(capfd):
    def piped(text):
        read, write = os.pipe()
        os.write(write, text)
        os.close(write)
        return read, f"/dev/fd/{read}"

    end, name = piped(b"max_tubes = 2\n")
    assert cli.main(["config", "--config", name, "--json"]) == 0
    os.close(end)
    assert json.loads(capfd.readouterr().out)["max_tubes"] == {"value": 2, "source": name}
    end, name = piped(b"policies = '/nonexistent'\n")
    assert cli.main(["config", "--config", name, "--check"]) == 2
    os.close(end)
    assert "/nonexistent: the file of policies can't be read" in capfd.readouterr().err


def test_every_mistake_has_a_line(file, monkeypatch, capfd):
    file.write_text('prot = 1\nport = "x"\nmax_tubes = 0\n')
    monkeypatch.setenv("BEANLITE_FOO", "1")
    assert cli.main(["config", "--config", str(file), "--max-watched", "0", "--check"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 5
    assert all(line.startswith("beanlite: ") for line in lines)
    for mistake in ("key prot; did you mean port?", "BEANLITE_FOO", "port = 'x'", "max_tubes = 0", "--max-watched: "):
        assert sum(mistake in line for line in lines) == 1


@pytest.mark.parametrize(("text", "code"), [("port = 1\n", 0), ("backup_every = '1h'\n", 2), ("=", 2)])
def test_check_says_nothing_of_what_is_right(file, capfd, text, code):
    file.write_text(text)
    assert cli.main(["config", "--config", str(file), "--check"]) == code
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1 if code else 0)


def test_check_tells_of_a_user_that_does_not_exist(capfd):
    assert cli.main(["config", "--user", "no-such-user", "--check"]) == 2
    assert capfd.readouterr() == ("", "beanlite: there is no user no-such-user\n")


def test_check_tells_of_a_folder_for_backups_that_does_not_exist(tmp_path, capfd):
    check = ["config", "--backup-every", "1h", "--check", "--backup-dir"]
    assert cli.main([*check, str(tmp_path / "b")]) == 2
    assert capfd.readouterr() == ("", f"beanlite: backup_dir: there is no folder {tmp_path / 'b'}\n")
    assert cli.main([*check, str(tmp_path)]) == 0
    assert cli.main([*check, "b"]) == 0  # the server may be started in another folder
    assert capfd.readouterr() == ("", "")
