"""The command line: what becomes of its flags, and how it ends."""

import errno
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from beanlite import __version__, cli
from beanlite.cli import epilogs, main
from beanlite.errors import BeanliteError, JournalFailed, JournalRefused, ListenError
from beanlite.host import log
from beanlite.settings import config

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def server(monkeypatch):
    """In the server's place: keeps the settings that it was to run with, and returns or raises what it is told."""
    module: Any = types.ModuleType("beanlite.server.start")
    module.settings, module.ends = None, 0

    def run(settings, load):
        assert load() == settings
        module.settings = settings
        if isinstance(module.ends, Exception):
            raise module.ends
        return module.ends

    module.run = run
    monkeypatch.setitem(sys.modules, "beanlite.server.start", module)
    return module


def changed(settings):
    """The settings that differ from the defaults."""
    return {
        key: value for key, value in settings.model_dump().items() if value != type(settings).model_fields[key].default
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("serve", {}),
        ("serve --port 0 --host ::1", {"port": 0, "host": "::1"}),
        ("--port=5", {"port": 5}),
        ("--socket /run/x.sock", {"socket": Path("/run/x.sock")}),
        ("--db q.db --fsync 50ms", {"db": Path("q.db"), "fsync": "50ms"}),
        ("--no-journal", {"journal": False}),
        ("--max-job-size 1 --max-connections 2", {"max_job_size": 1, "max_connections": 2}),
        (
            "--max-connections-per-address 3 --max-watched 4 --max-tubes 5",
            {"max_connections_per_address": 3, "max_watched": 4, "max_tubes": 5},
        ),
        ("--user nobody", {"user": "nobody"}),
        ("--log-level error --log-format json", {"log_level": "error", "log_format": "json"}),
        # beanstalkd's own
        ("-l 0.0.0.0 -b sub -f 50", {"host": "0.0.0.0", "db": Path("sub/beanlite.db"), "fsync": "50ms"}),
        ("-l0.0.0.0 -p11301 -bq.db -f0", {"host": "0.0.0.0", "port": 11301, "db": Path("q.db")}),
        ("-l unix:/run/x.sock -p 1", {"socket": Path("/run/x.sock"), "port": 1}),
        ("-F -z 100 -u nobody -s 10485760", {"fsync": "never", "max_job_size": 100, "user": "nobody"}),
        ("-V", {"log_level": "debug"}),
        ("-VVV -n -c", {"log_level": "debug"}),
        ("-VFp1", {"log_level": "debug", "fsync": "never", "port": 1}),
        ("serve -p 1 -p 2", {"port": 2}),
    ],
)  # fmt: skip
def test_flags_become_settings(line, expected, server):
    Path("sub").mkdir()
    assert main(line.split()) == 0
    assert changed(server.settings) == expected


@pytest.mark.parametrize(
    ("line", "expected", "said"),
    [
        ("-z 1073741824", {"max_job_size": 999999000}, "-z 1073741824 is not possible; it is 999999000"),
        ("-z 655350000000", {"max_job_size": 999999000}, "-z 655350000000 is not possible; it is 999999000"),
        ("-z " + "9" * 5000, {"max_job_size": 999999000}, "9 is not possible; it is 999999000"),
        ("-z -1", {"max_job_size": 999999000}, "-z -1 is not possible; it is 999999000"),
        ("-z 0", {"max_job_size": 1}, "-z 0 is not possible; it is 1"),
        ("-f -1", {}, "-f -1 is not possible; it is 0"),
        ("-f 4294967296", {"fsync": "999999999ms"}, "-f 4294967296 is not possible; it is 999999999"),
        ("-F -f 50", {"fsync": "50ms"}, "-F is without effect beside -f"),
        ("-f 50 -F", {"fsync": "50ms"}, "-F is without effect beside -f"),
        ("-p http-alt", {"port": 8080}, ""),
        ("-s 0 -s -5 -s x", {}, ""),
    ],
)  # fmt: skip
def test_flag_of_beanstalkd_starts_the_server_with_a_warning(line, expected, said, server, capsys):
    assert main(line.split()) == 0
    assert changed(server.settings) == expected
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == bool(said)
    assert main(["config", "--check", *line.split()]) == 0
    assert said in capsys.readouterr().err


def test_flags_win_over_the_environment_and_the_file(server, monkeypatch):
    Path("b.toml").write_text('port = 1\nmax_job_size = 1\nsocket = "x"\nuser = "u"\n')
    monkeypatch.setenv("BEANLITE_MAX_JOB_SIZE", "2")
    assert main("--config b.toml --host h".split()) == 0
    assert changed(server.settings) == {"host": "h", "port": 1, "max_job_size": 2, "user": "u"}


@pytest.mark.parametrize("flags", ["--port 2", "-p 2", "-l 127.0.0.1 -p 2"])
def test_a_flag_for_the_port_takes_the_place_of_a_socket(flags, server, monkeypatch):
    Path("b.toml").write_text('socket = "x"\n')
    assert main(f"--config b.toml {flags}".split()) == 0
    assert changed(server.settings) == {"port": 2}
    monkeypatch.setenv("BEANLITE_SOCKET", "y")
    assert main(flags.split()) == 0
    assert changed(server.settings) == {"port": 2}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--port x", f"--port: port = 'x' is not allowed; port: {config.Settings.model_fields['port'].description}"),
        ("-p 65536", "--port: port = '65536' is not allowed"),
        ("-f x", "--fsync: fsync = 'xms' is not allowed"),
        ("-f 10.5", "--fsync: fsync = '10.5ms' is not allowed"),
        ("-z 10k", "--max-job-size: max_job_size = '10k' is not allowed"),
        ("-F --fsync 50ms", "--fsync and -f or -F exclude each other"),
        ("-f 50 --fsync 50ms", "--fsync and -f or -F exclude each other"),
        ("--host x --socket y", "--host and --socket exclude each other"),
        ("--socket x --port 1", "--port and --socket exclude each other"),
        ("--db x --database postgresql://y/z", "--db and --database exclude each other"),
        ("--db x --no-journal", "--db and --no-journal exclude each other"),
        ("--no-journal --history 7d", "history is of no use without a database, as with --no-journal"),
        ("--prot 1", "No such option: --prot"),
        ("-p", "Option '-p' requires an argument"),
        ("-d", "No such option: -d"),
        ("serve extra", "Got unexpected extra argument(s) (extra)"),
        ("bakcup", "No such command 'bakcup'. Did you mean 'backup'? beanlite --help tells how"),
        ("job abc", "Invalid value for 'ID': 'abc' is not a whole number; beanlite job --help tells how"),
        ("job 0", "Invalid value for 'ID': 0 is less than 1"),
        ("kick 1 1e3", "Invalid value for 'ID': '1e3' is not a whole number"),
        ("job 99999999999999999999", "Invalid value for 'ID': 99999999999999999999 is more than 9223372036854775807"),
        ("job " + "9" * 5000, "Invalid value for 'ID': 9999999999"),
        ("jobs --pri-max -1", "Invalid value for '--pri-max': -1 is less than 0"),
        ("backup x --keep many", "Invalid value for '--keep': 'many' is not a whole number"),
        ("backup", "Missing argument 'DEST'"),
        ("--config none.toml", "none.toml: the configuration file can't be read: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(line, said, server, capsys):
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"beanlite: {said}")
    assert err.count("\n") == 1
    assert server.settings is None


@pytest.mark.parametrize("error", [JournalRefused("not ours"), ListenError("in use"), BeanliteError("x")])
def test_an_error_of_the_server_is_one_line_and_its_exit_code(error, server, capsys):
    server.ends = error
    assert main([]) == error.exit_code
    assert capsys.readouterr().err == f"beanlite: {error}\n"


def test_the_log_is_set_up_before_the_server_runs(server, capsys):
    server.run = lambda *_: log.info("shown", port=1) or log.debug("hidden") or 0
    assert main(["--log-format", "json"]) == 0
    assert json.loads(capsys.readouterr().err)["event"] == "shown"


def test_the_exit_code_is_the_servers(server):
    server.ends = 4
    assert main([]) == 4


@pytest.fixture
def fallen(monkeypatch):
    """Let the abrupt end of the process be one that a test survives."""
    monkeypatch.setattr(os, "_exit", sys.exit)


@pytest.mark.usefixtures("fallen")
def test_a_failed_disk_ends_the_process_at_once(server, capsys):
    server.ends = JournalFailed("no sync")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 4
    assert capsys.readouterr().err == "beanlite: no sync\n"


@pytest.mark.parametrize("bug", [ZeroDivisionError("bug"), OSError(errno.ENOSPC, "a file that is written", "of ours")])
@pytest.mark.usefixtures("fallen")
def test_a_bug_is_shown_whole(bug, server, capsys):
    server.ends = bug
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert f"Error: {bug}\n" in shown


@pytest.mark.usefixtures("fallen")
def test_memory_that_ends_is_told_in_one_line(server, capsys):
    server.ends = MemoryError()
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 1
    assert re.fullmatch(r"beanlite: out of memory; .*\n", capsys.readouterr().err)


@pytest.mark.usefixtures("fallen")
def test_memory_that_ends_in_a_start_ends_the_process_at_once(server, capsys):
    server.ends = JournalRefused("there is not enough memory")
    server.ends.__context__ = MemoryError()  # and no __cause__: compiled code has none
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 3
    assert capsys.readouterr().err == "beanlite: there is not enough memory\n"


def test_a_database_that_cannot_even_be_looked_at(capsys):
    assert main(["--db", "x" * 300, "-p", "0"]) == 3
    assert re.fullmatch(r"beanlite: .* can't be opened: File name too long; .*\n", capsys.readouterr().err)


@pytest.mark.parametrize("line", ["-v", "--version", "serve -v", "-p 1 -v"])
def test_version(line, server, capsys):
    assert main(line.split()) == 0
    assert capsys.readouterr().out == f"beanlite {__version__}\n"
    assert server.settings is None


@pytest.mark.parametrize("line", ["-h", "--help"])
def test_help_lists_the_commands(line, capsys):
    assert main([line]) == 0
    out = capsys.readouterr().out
    assert [command for command in cli.COMMANDS if f"\n  {command} " not in out] == []
    assert "..." not in out.partition("Commands")[2]
    titles = re.findall(r"^(Commands .*):$", out, re.MULTILINE)
    assert titles == list(epilogs.SECTIONS)
    changes = out.partition("to change jobs:\n")[2].partition("\n\n")[0]
    others = {"put", "work", "undelete", "pause", *[name for name, file in cli.COMMANDS.items() if file == "change"]}
    assert {line.split()[0] for line in changes.splitlines()} == others


def words(text):
    """Text as it was before it was folded into columns."""
    return " ".join(text.split())


def test_help_of_serve_has_settings_with_defaults_and_exit_codes(capsys):
    assert main(["-p", "1", "-h"]) == 0
    shown = words(capsys.readouterr().out)
    for key, field in config.Settings.model_fields.items():
        assert config.flag(key) in shown
        if key != "journal":
            assert field.description
            assert field.description[1:] in shown
        if field.default is not None and key != "journal":
            assert f"Default: {field.default}." in shown
    errors: list[type[BeanliteError]] = [BeanliteError, *BeanliteError.__subclasses__()]
    for error in errors:
        assert f" {error.exit_code} " in shown.partition("Exit codes:")[2]


def test_the_module_is_the_program():
    done = subprocess.run(
        [sys.executable, "-m", "beanlite", "--port", "x"],
        capture_output=True,
        check=False,
        cwd=Path(cli.__file__).parent.parent.parent,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("beanlite: --port: port = 'x'")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_had_enough_ends_a_command_quietly(tmp_path):
    """As `head` does."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "beanlite", "serve", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, cwd=tmp_path, env=environment)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("stdout", "mode", "why"),
    [("/dev/full", "wb", "No space left on device"), (os.devnull, "rb", "Bad file descriptor")],
)
def test_what_can_not_be_printed_is_one_line(stdout, mode, why, tmp_path):
    command = [sys.executable, "-m", "beanlite", "serve", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with Path(stdout).open(mode) as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.PIPE, check=False, cwd=tmp_path, env=environment, text=True
        )
    assert (done.returncode, done.stderr) == (1, f"beanlite: output can't be written: {why}\n")


@pytest.mark.usefixtures("clean_environment")
def test_the_completion_of_a_shell_is_printed(monkeypatch, capsys):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    with pytest.raises(SystemExit) as ended:
        main(["--show-completion", "bash"])
    assert ended.value.code == 0
    assert "_BEANLITE_COMPLETE=complete_bash" in capsys.readouterr().out
