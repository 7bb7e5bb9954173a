"""The file of access: its mistakes, each told in a line, and what `beanlite config --check` says of it."""

import os
import pwd

import pytest

from beanlite.cli import main
from beanlite.errors import ConfigError
from beanlite.server.access_file import PAGE_LIMITED, mistakes_in, read_access
from beanlite.web.safety import password_line
from tests.support.access import DIGEST, TOKEN, allow
from tests.support.needs import need
from tests.support.servers import ServerDied, start_beanlite


@pytest.fixture
def file(tmp_path):
    return tmp_path / "access.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("=", "the file of access is not TOML: Invalid statement (at line 1, column 1)"),
        ("# not written yet\n", "the file of access is empty; `allow = []` is a file without rules"),
        ("[allow]\n", "allow: each rule is a table [[allow]], with two brackets"),
        ("[other]\n", "other: the file has only [[allow]] and [tokens]"),
        (allow("uid:0", ["a"]) + "x = 1\n", "[[allow]] number 1: x: a rule has who, role and tubes"),
        (allow([], ["a"]), "[[allow]] number 1: who: it is a list of texts, such as"),
        (allow("uid:0", ["a"]).replace('["uid:0"]', '"uid:0"'), "[[allow]] number 1: who: it is a list of texts"),
        (allow("uid:0", [1]), "[[allow]] number 1: tubes: it is a list of texts"),
        ("[[allow]]\nwho = ['uid:0']\nrole = ['reader']\n", "[[allow]] number 1: tubes: it is missing"),
        (allow("uid:0", ["a b"]), "[[allow]] number 1: tubes: 'a b' is neither the name of a tube nor a glob"),
        (allow("uid:0", ["a"], "boss"), "[[allow]] number 1: role: 'boss' is not one of producer, worker, reader"),
        (allow("user:0", ["a"]), "[[allow]] number 1: who: 'user:0' is no identity such as cert:NAME, uid:NAME"),
        (allow("cert:a b", ["a"]), "[[allow]] number 1: who: 'cert:a b' is no identity"),
        (
            allow("uid:no such user", ["a"]),
            "[[allow]] number 1: who: uid:no such user: this machine has no such",
        ),
        (allow("gid:no such group", ["a"]), "[[allow]] number 1: who: gid:no such group: this machine has no such"),
        (allow("token:ci", ["a"]), "[[allow]] number 1: who: token:ci: there is no such name in [tokens]"),
        (allow("net:10.0.0.1/8", ["a"]), "[[allow]] number 1: who: 10.0.0.1/8 has host bits set"),
        (allow("uid:0", ["a"]) + allow("x", ["a"]), "[[allow]] number 2: who: 'x' is no identity"),
        (f'[tokens]\n"a b" = "{DIGEST}"\n', "[tokens] a b: a name has 1 to 64 letters"),
        (f'[tokens]\na = "{DIGEST}"\nb = "{DIGEST}"\n', "[tokens] b: another name has the same token"),
    ],
)
def test_mistake_is_one_line_that_names_file_and_place(file, text, said):
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_access(file)
    assert str(caught.value).startswith(f"{file}: {said}")
    assert mistakes_in(file) == [str(caught.value)]


@pytest.mark.parametrize("value", [TOKEN[:-1], TOKEN.upper()[:63] + "G", "secret", "1"])
def test_what_is_not_the_digest_of_a_token_is_not_repeated(file, value):
    file.write_text(f'[tokens]\nci = "{value}"\n')
    assert mistakes_in(file) == [f"{file}: [tokens] ci: this is no line that `beanlite token new ci` has printed"]


@pytest.mark.parametrize(
    "text",
    [
        allow(f"token:{TOKEN}", ["a"]),
        allow(TOKEN, ["a"]),
        allow(f"token {TOKEN.upper()}", ["a"]),
        f'[tokens]\n{TOKEN} = "ci"\n',
        f"{TOKEN} = 1\n",
    ],
)
def test_token_in_a_wrong_place_is_not_repeated(file, text):
    file.write_text(text)
    (mistake,) = mistakes_in(file)
    assert "…" in mistake
    assert TOKEN[:32] not in mistake.lower()


def test_file_that_is_not_there_is_a_mistake(file):
    assert mistakes_in(file) == [f"{file}: the file of access can't be read: No such file or directory"]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_that_others_can_change_is_refused(file, mode):
    file.write_text(allow("uid:0", ["a"]))
    file.chmod(mode)
    said = f"{file}: others may change the file of access (mode {mode:o}); chmod go-w it"
    assert mistakes_in(file) == [said]
    with pytest.raises(ConfigError, match="others may change the file"):
        read_access(file)
    file.chmod(0o644)
    assert not mistakes_in(file)


def test_server_refuses_a_file_that_belongs_to_another_user(file):
    need(os.geteuid() == 0, "only root can give files to others")
    file.write_text(allow("uid:0", ["a"]))
    os.chown(file, 54321, -1)
    with pytest.raises(ConfigError, match="belongs to user 54321, not to root or the"):
        read_access(file)
    assert read_access(file, serves=False).rules


def test_check_tells_of_the_owner_as_far_as_the_user_is_known(file, capfd):
    need(os.geteuid() == 0, "only root can give files to others")
    file.write_text(allow("uid:0", ["a"]))

    def check(*flags):
        return main(["config", "--access", str(file), *flags, "--check"]), capfd.readouterr().err

    for flags in ([], ["--user", "daemon"]):
        assert check(*flags) == (0, "")
    assert check("--user", "nobody-of-this-name") == (2, "beanlite: there is no user nobody-of-this-name\n")
    os.chown(file, pwd.getpwnam("daemon").pw_uid, -1)
    assert check("--user", "daemon") == (0, "")
    os.chown(file, 54321, -1)
    why = "the file of access belongs to user 54321"
    assert check("--user", "daemon") == (
        2,
        f"beanlite: {file}: {why}, not to root or the server's user; chown it\n",
    )
    assert check() == (0, f"beanlite: {file}: {why}; a server that runs as another user than that refuses it\n")


def test_pipe_is_no_file_of_access(file):
    os.mkfifo(file)
    assert mistakes_in(file) == [f"{file}: the file of access is no regular file"]


def test_file_of_access_that_is_nested_deeply_is_not_read(file):
    file.write_text("allow = " + "[" * 5000)
    assert mistakes_in(file) == [f"{file}: the file of access is not TOML: it is nested too deeply"]


def test_config_check_reports_each_mistake_in_the_file(file, capfd, tmp_path):
    file.write_text(allow("x", ["a"], "boss"))
    settings = tmp_path / "beanlite.toml"
    settings.write_text(f'access = "{file}"\n')
    assert main(["config", "--config", str(settings), "--check"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 2
    file.write_text(allow("uid:0", ["a"]))
    assert main(["config", "--config", str(settings), "--check"]) == 0


@pytest.mark.parametrize("who", ["page", "person:ann"])
def test_config_check_warns_of_a_page_that_no_rule_names(file, capfd, who):
    file.write_text(allow(who, ["a"]))
    assert main(["config", "--access", str(file), "--web", "127.0.0.1:0", "--check"]) == 0
    said = f"beanlite: {file}: the page may do nothing: no rule names page\n" if who != "page" else ""
    assert capfd.readouterr().err == said
    assert main(["config", "--access", str(file), "--check"]) == 0
    assert not capfd.readouterr().err


def test_config_check_tells_what_keeps_people_from_logging_in(file, capfd, tmp_path):
    users = tmp_path / "users"
    file.write_text(allow("page", ["*"], "reader"))
    check = ["config", "--access", str(file), "--web", "0.0.0.0:0", "--web-password-file", str(users), "--check"]
    assert main(check) == 2
    said = f"beanlite: {file}: {PAGE_LIMITED}\n"
    assert (
        capfd.readouterr().err
        == f"{said}beanlite: web_password_file: {users} can't be read: No such file or directory\n"
    )
    users.write_text(password_line("ann", "reader", "horse") + "\n")
    assert main(check) == 0
    assert capfd.readouterr().err == said
    file.write_text(allow("page", ["*"], "operator"))
    assert main(check) == 0
    assert not capfd.readouterr().err


def test_start_with_a_mistake_in_the_file_fails(file, tmp_path):
    file.write_text(allow("x", ["a"]))
    with pytest.raises(ServerDied, match=r"ended with 2: .*\[\[allow\]\] number 1: who: 'x' is no identity"):
        start_beanlite(tmp_path, "--no-journal", "--access", str(file))


def test_access_and_forward_exclude_each_other(file, capfd):
    file.write_text("allow = []\n")
    assert main(["config", "--access", str(file), "--standby", "forward", "--check"]) == 2
    assert "access and standby = forward exclude each other" in capfd.readouterr().err
