"""The file of policies: what is wrong in it, when it takes effect, and what the log says."""

import json
import os
import signal

import pytest

from beanlite.cli import main
from beanlite.core.policies import PolicyRow
from beanlite.errors import ConfigError
from beanlite.server.policies import PolicyLog, begin_with
from beanlite.server.policy_file import mistakes_in, read_policies
from tests.support.servers import ServerDied, start_beanlite
from tests.support.wire import Wire, until

FLAGS = ("--no-journal", "--max-connections", "500")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "policies.toml"


# -- what is in it


def test_file_has_a_table_for_each_pattern(file):
    file.write_text('["mail.*"]\nmax_tries = 5\nretry = "5s..1h"\nfair = true\n[reports]\nttl = "1d"\n["a?"]\n')
    assert read_policies(file) == {
        (b"mail.*", "max_tries"): "5",
        (b"mail.*", "retry"): "5s..1h",
        (b"mail.*", "fair"): "true",
        (b"reports", "ttl"): "1d",
    }
    file.write_text("# none\n")
    assert read_policies(file) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file of policies is empty; a comment alone is a file without policies"),
        (" \n\n", "the file of policies is empty; a comment alone is a file without policies"),
        ("=", "the file of policies is not TOML: Invalid statement (at line 1, column 1)"),
        ("[a]\n[a]", "the file of policies is not TOML: "),
        ("max_tries = 5", 'max_tries is not in a table, such as ["mail.*"]'),
        ("[a]\nmax_tries = 0", "[a] max_tries: '0' is no whole number from 1 to 1000000"),
        ("[a]\ntries = 5", "[a] tries: 'tries' is no key of a policy: max_tries, "),
        ("[a]\nfair = false", '[a] fair: a value is text such as "off", a whole number or true'),
        ("[a]\nttl = 1979-05-27", '[a] ttl: a value is text such as "off", a whole number or true'),
        ("[mail.de]\nttl = '1d'", '[mail] de: a name with a dot needs quotes, as in ["mail.de"]'),
        ("['a b']\nttl = '1d'", "[a b] ttl: 'a b' is neither the name of a tube nor a pattern"),
        (
            "".join(f"['{n}*']\nttl = '1d'\n" for n in range(101)),
            "there would be 101 patterns with * or ?; there can be",
        ),
    ],
)
def test_mistake_is_one_line_that_names_file_and_place(file, text, said):
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_policies(file)
    assert str(caught.value).startswith(f"{file}: {said}")
    assert mistakes_in(file) == [str(caught.value)]


def test_file_that_is_not_text_or_not_there_is_a_mistake(file):
    assert mistakes_in(file) == [f"{file}: the file of policies can't be read: No such file or directory"]
    file.write_bytes(b"\xff")
    assert mistakes_in(file)[0].startswith(f"{file}: the file of policies is not TOML: ")


def test_pipe_is_no_file_of_policies(file):
    os.mkfifo(file)
    assert mistakes_in(file) == [f"{file}: the file of policies is no regular file"]


def test_config_check_reports_each_mistake_in_the_file(file, capfd, tmp_path):
    file.write_text('[a]\nmax_tries = 0\ntries = 1\n[b]\nttl = "1d"\n')
    settings = tmp_path / "beanlite.toml"
    settings.write_text(f'policies = "{file}"\n')
    assert main(["config", "--config", str(settings), "--check"]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(": ")[2] for line in lines] == ["[a] max_tries", "[a] tries"]
    file.write_text('[b]\nttl = "1d"\n')
    assert main(["config", "--config", str(settings), "--check"]) == 0
    assert capfd.readouterr().err == ""


# -- when it takes effect


def listed(wire):
    """Return all policies as lines, and the rows by these."""
    reply = wire.request("list-policies")
    return {f"{row['pattern']} {row['key']}={row['value']}": row for row in reply["policies"]}


def reloaded(server):
    """Have the server read its settings again, and return what it logs."""
    before = len(server.log_text())
    server.signal(signal.SIGHUP)
    until(lambda: "reloaded" in server.log_text()[before:])
    return [line.partition("beanlite: ")[2] for line in server.log_text()[before:].splitlines()]


def test_server_has_the_policies_of_the_file_and_no_others(tmp_path, file):
    file.write_text('["*"]\nmax_tries = 5\nretry = "5s"\n')
    with start_beanlite(tmp_path, *FLAGS, "--policies", str(file)) as server, Wire(server.connect()) as wire:
        before = listed(wire)
        assert list(before) == ["* max_tries=5", "* retry=5s"]
        assert {row["changed_by"] for row in before.values()} == {str(file)}
        assert wire.request("list-policies")["file"] == str(file)
        assert f'policy changed pattern=* change="max_tries=5 retry=5s" by={file}' in server.log_text()

        file.write_text('["*"]\nmax_tries = 5\n[mail]\nttl = "1d"\n')
        assert reloaded(server) == [
            f'policy changed pattern=mail change="ttl=1d" by={file}',
            f'policy changed pattern=* change="unset retry" by={file}',
            f'policy may not be what is meant why="* has max_tries without retry: jobs come back at once" file={file}',
            "reloaded",
        ]
        after = listed(wire)
        assert list(after) == ["* max_tries=5", "mail ttl=1d"]
        assert after["* max_tries=5"] == before["* max_tries=5"]  # with the time of the first change


def test_mistake_in_the_file_leaves_policies_unchanged_at_a_reload(tmp_path, file):
    file.write_text('["*"]\nttl = "1d"\n')
    with start_beanlite(tmp_path, *FLAGS, "--policies", str(file)) as server, Wire(server.connect()) as wire:
        file.write_text('["*"]\nttl = "1d"\nfair = "x"\n')
        assert reloaded(server) == [
            f"not reloaded: settings unchanged error=\"{file}: [*] fair: 'x' is neither true nor off\""
        ]
        assert list(listed(wire)) == ["* ttl=1d"]


def test_mistake_in_the_file_ends_the_start(tmp_path, file):
    file.write_text("[a]\nmax_tries = 0\n")
    with pytest.raises(ServerDied, match=r"beanlite: .*: \[a\] max_tries: '0' is no whole number") as caught:
        start_beanlite(tmp_path, "--policies", str(file), forked=False)
    assert str(caught.value).count("\n") <= 2
    assert not (tmp_path / "queue.db").exists()


def test_policies_stay_when_the_setting_goes_and_operators_set_them(tmp_path, file):
    settings = tmp_path / "beanlite.toml"
    settings.write_text(f'policies = "{file}"\n')
    file.write_text('["*"]\nttl = "1d"\n')
    with (
        start_beanlite(tmp_path, *FLAGS, "--config", str(settings)) as server,
        Wire(server.connect()) as wire,
    ):
        request = {"pattern": "a", "set": {"fair": True}}
        body = json.dumps(request).encode()
        assert wire.ask(f"set-policy {len(body)}", body).startswith("REFUSED ")
        assert f"policies come from {file}" in json.loads(wire.body)["error"]
        settings.write_text("# none\n")
        reloaded(server)
        assert list(listed(wire)) == ["* ttl=1d"]
        wire.request("set-policy", **request)
        assert list(listed(wire)) == ["* ttl=1d", "a fair=true"]
        settings.write_text(f'policies = "{file}"\n')
        assert f'policy changed pattern=a change="unset fair" by={file}' in reloaded(server)
        assert list(listed(wire)) == ["* ttl=1d"]


def test_restart_leaves_rows_that_the_file_still_has_as_they_are(tmp_path, file):
    file.write_text('["*"]\nttl = "1d"\nrate = "5/s"\n')
    flags = ("--max-connections", "500", "--policies", str(file))
    with start_beanlite(tmp_path, *flags) as server, Wire(server.connect()) as wire:
        before = listed(wire)
    file.write_text('["*"]\nttl = "1d"\n')
    with start_beanlite(tmp_path, *flags) as server, Wire(server.connect()) as wire:
        assert listed(wire) == {"* ttl=1d": before["* ttl=1d"]}
        assert f'policy changed pattern=* change="unset rate" by={file}' in server.log_text()
        file.write_text("[")
    with pytest.raises(ServerDied, match="the file of policies is not TOML"):
        start_beanlite(tmp_path, *flags)
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert list(listed(wire)) == ["* ttl=1d"]


def test_mistake_in_the_file_does_not_keep_a_standby_from_taking_over(core, file, monkeypatch):
    lines = []
    monkeypatch.setattr("beanlite.server.policies.log.error", lambda event, **fields: lines.append((event, fields)))
    core.engine.set_policies([PolicyRow(b"*", "ttl", "1d", 0.0, "ann")], [], core.now_ns)
    file.write_text("[")
    begin_with(file, core.service, core.now_ns)
    ((event, fields),) = lines
    assert event == "file of policies not applied: policies unchanged"
    assert str(fields["error"]).startswith(f"{file}: the file of policies is not TOML: ")
    assert list(core.engine.policies.rows) == [(b"*", "ttl")]
    assert core.service.policies_file == str(file)  # operators can't set them either


def test_file_that_memory_is_too_small_for_leaves_policies_unchanged(core, file, monkeypatch):
    lines = []
    monkeypatch.setattr("beanlite.server.policies.log.error", lambda event, **fields: lines.append((event, fields)))
    core.engine.set_policies([PolicyRow(b"mail", "ttl", "1d", 0.0, "ann")], [], core.now_ns)
    core.engine.bound_memory(core.engine.memory.used_bytes, 1 << 60, fetches=False)
    file.write_text('["*"]\nmax_tries = 3\n')
    begin_with(file, core.service, core.now_ns)
    ((event, fields),) = lines
    assert event == "file of policies not applied: policies unchanged"
    assert "max_memory is too small" in str(fields["error"])
    assert list(core.engine.policies.rows) == [(b"mail", "ttl")]
    assert core.service.policies_file == str(file)


def test_reload_takes_no_policies_for_which_memory_is_too_small(tmp_path, file):
    file.write_text("# none\n")
    flags = ("--no-journal", "--max-connections", "500", "--max-memory", "16MiB", "--policies", str(file))
    with start_beanlite(tmp_path, *flags) as server, Wire(server.connect()) as wire:
        for _ in range(60):
            wire.request("put-jobs", jobs=[{"body": "", "tube": "mail"}] * 500)
        file.write_text('["*"]\nunique = "present"\n')
        said = reloaded(server)
        assert [line.partition(": ")[0] for line in said] == ["file of policies not applied", "reloaded"]
        assert f'max_memory is too small" file={file}' in said[0]
        assert not listed(wire)
        file.write_text('["*"]\nttl = "1d"\n[mail]\nttl = "off"\n')
        reloaded(server)
        assert list(listed(wire)) == ["* ttl=1d", "mail ttl=off"]


def test_path_that_is_not_text_is_recorded_as_well_as_it_can_be(tmp_path):
    file = tmp_path / "p\udcff.toml"
    file.write_text('["*"]\nttl = "1d"\n')
    with start_beanlite(tmp_path, "--policies", str(file)) as server, Wire(server.connect()) as wire:
        assert listed(wire)["* ttl=1d"]["changed_by"] == f"{tmp_path}/p\ufffd.toml"
        assert wire.request("list-policies")["file"] == f"{tmp_path}/p\ufffd.toml"


# -- the log


def test_flood_of_changes_is_logged_in_part(monkeypatch):
    lines = []
    now_s = 1000.0
    monkeypatch.setattr("beanlite.server.policies.log.info", lambda event, **fields: lines.append((event, fields)))
    monkeypatch.setattr("beanlite.server.policies.time.monotonic", lambda: now_s)
    policy_log = PolicyLog()
    policy_log.note("ann", {b"a": "ttl=1d", b"b": "unset ttl"})
    assert lines == [
        ("policy changed", {"pattern": "a", "change": "ttl=1d", "by": "ann"}),
        ("policy changed", {"pattern": "b", "change": "unset ttl", "by": "ann"}),
    ]
    for n in range(100):
        policy_log.note("ann", {b"a": f"ttl={n + 1}d"})
    assert len(lines) == 20
    now_s += 60
    policy_log.note("ann", {b"c": "ttl=1d", b"d": "ttl=1d"})
    assert [fields.get("dropped") for _, fields in lines[20:]] == [82, None]
    now_s += 60
    policy_log.note("ann", {b"t%d" % n: "ttl=1d" for n in range(30)})
    assert lines[-2:] == [
        ("policy changed", {"pattern": "t19", "change": "ttl=1d", "by": "ann"}),
        ("policies changed", {"dropped": 10, "by": "ann"}),
    ]
