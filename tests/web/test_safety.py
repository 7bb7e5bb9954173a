"""Who is let in, and what a page elsewhere can't have a browser do."""

import contextlib
import http.client
import os
import re
import resource
import socket
import ssl
import subprocess
import sys

import pytest
from argon2 import PasswordHasher

from beanlite.cli import main
from beanlite.console.file import File
from beanlite.console.live import identity_for
from beanlite.web import safety
from beanlite.web.safety import Passwords, User
from tests.support.authority import Authority
from tests.support.servers import start_beanlite
from tests.support.streams import from_late, from_unreadable
from tests.support.web import Web, ask_over_tls, sign_in
from tests.support.wire import Wire, until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("web"), "--history", "7d") as server, Wire(server.connect()) as wire:
        wire.put(b"secret")
        yield server


@pytest.fixture
def people(server):
    """For whom what has happened to a job was done, as soon as so much of it is in the file."""

    def people(job_id, count):
        with File(server.directory / "queue.db") as file:

            def history():
                return (file.show_job(job_id) or {}).get("history", ())

            until(lambda: len(history()) == count)
            return [event["by"]["person"] for event in history()]

    return people


@pytest.fixture
def connect(server):
    return f"127.0.0.1:{server.port}"


PUT: dict[str, object] = {"tube": "default", "body": "job"}


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://example.org"},
        {"origin": "null"},
        {"origin": "http://[bad"},
        {},
    ],
)
def test_a_form_of_another_page_is_refused(connect, headers):
    with Web(connect) as web:
        page = web._ask("POST", "/put", "tube=default&body=job", headers)
        assert (page.status, page.html) == (403, "Only a page of this site may ask for this.\n")
        assert web._ask("POST", "/put", "tube=default&body=job", {"origin": f"http://{web.where}"}).status == 303


def test_a_name_that_was_rebound_is_refused(connect):
    with Web(connect, "--host", "queue.example.org") as web:
        assert web.get("/", host="rebound.example.com").status == 421
        assert web.get("/", host="localhost:1234").status == 200
        assert web.get("/", host="queue.example.org").status == 200


def test_a_page_answers_at_the_address_on_which_it_listens(connect):
    with Web(connect, "--listen", "127.0.0.2:0") as web:
        assert web.where.startswith("127.0.0.2:")
        assert web.get("/").status == 200
        assert web.get("/", host="localhost").status == 200
        assert web.get("/", host="127.0.0.3").status == 421


def test_a_name_of_this_page_may_be_written_in_any_way(connect):
    with Web(connect, "--host", "Queue.Example.ORG", "--host", "[2001:DB8::0:1]", "--host", "2001:db8::2") as web:
        for host in ("queue.example.org", "QUEUE.example.org:11380", "[2001:db8::1]:11380", "[2001:db8::2]"):
            assert web.get("/", host=host).status == 200
        assert web.get("/", host="[2001:db8::3]").status == 421


def test_a_large_form_is_refused(connect):
    with Web(connect) as web:
        assert web.post("/put", {"tube": "default", "body": "x" * (1 << 20)}).status == 413
        chunks = {"content-length": "5", "transfer-encoding": "chunked"}  # of which only the second counts
        assert web.post("/put", {}, **chunks).status == 413


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """A file with an operator and a reader."""
    path = tmp_path_factory.mktemp("users") / "users"
    lines = ["# who may come in\n"]
    for user, password in (("ann:operator", "correct horse"), ("bob:reader", "battery")):
        command = [sys.executable, "-m", "beanlite", "web", "--add-user", user]
        lines.append(subprocess.run(command, input=f"{password}\n", capture_output=True, text=True, check=True).stdout)
    path.write_text("".join(lines))
    assert "horse" not in path.read_text()
    return path


def test_passwords(connect, users):
    with Web(connect, "--password-file", users) as web:
        refused = web.get("/")
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
        for wrong in ("ann:wrong", "nobody:correct horse", "ann:", "bob:correct horse"):
            web.headers = sign_in(wrong)
            assert web.get("/").status == 401
        web.headers = {"authorization": "Basic !!"}
        assert web.get("/").status == 401
        web.headers = sign_in("ann:correct horse")
        assert "ann" in web.get("/").text
        assert "The job was put" in web.post("/put", PUT).text
        assert web.get("/static/page.css").status == 200
    assert re.findall(r"wrong password address=127.0.0.1 user=(.*)", web.warnings) == ["ann", "nobody", "bob"]


def add_user(user, given):
    """Run --add-user with this on stdin; return the exit code and what was printed and said."""
    command = [sys.executable, "-m", "beanlite", "web", "--add-user", user]
    ran = subprocess.run(command, input=given, capture_output=True, check=False, timeout=30)
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


@pytest.mark.parametrize(
    ("user", "given", "why"),
    [
        ("ann:operator", b"", "a user needs a password, and this one is empty"),
        ("ann:operator", b"\r\n", "a user needs a password, and this one is empty"),
        ("ann:operator", b"caf\xe9\n", "the password is not UTF-8"),
        ("#ann:operator", b"battery\n", "a user is given as NAME:operator or NAME:reader"),
    ],
)
def test_a_user_who_could_not_be_told_from_others_is_not_added(user, given, why):
    exit_code, printed, said = add_user(user, given)
    assert (exit_code, printed) == (2, "")
    assert said.startswith(f"beanlite: {why}")
    assert said.count("\n") == 1


def test_a_password_that_can_not_be_read_is_one_line():
    said = "beanlite: stdin can't be read: Bad file descriptor\n"
    assert from_unreadable("web", "--add-user", "ann:reader") == (1, said)


def test_a_password_is_waited_for():
    assert from_late(b"battery\n", "web", "--add-user", "ann:reader") == (0, "")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_end_of_a_line_is_no_part_of_a_password(tmp_path, end):
    path = tmp_path / "users"
    path.write_text(add_user("ann:reader", f"grüße{end}".encode())[1])
    assert Passwords(path).check(header("ann:grüße")) == User("ann", may_change=False)


def test_empty_password_opens_nothing_even_if_its_hash_is_in_the_file(tmp_path):
    path = tmp_path / "users"
    path.write_text(f"ann:operator:{PasswordHasher().hash('')}\n")
    assert Passwords(path).check(header("ann:")) is None


def header(login):
    return sign_in(login)["authorization"]


def test_a_name_that_does_not_exist_takes_as_long_as_a_wrong_password(users, monkeypatch):
    checked = []
    verify = PasswordHasher.verify

    def seen(hasher, hashed, password):
        checked.append(hashed.rpartition("$")[0].rpartition("$")[0])  # the method and its costs
        return verify(hasher, hashed, password)

    monkeypatch.setattr(PasswordHasher, "verify", seen)
    passwords = Passwords(users)
    assert passwords.check(header("ann:wrong")) is None
    assert passwords.check(header("nobody:wrong")) is None
    assert len(checked) == 2
    assert checked[0] == checked[1]


def test_only_so_many_correct_passwords_are_remembered(users, monkeypatch):
    monkeypatch.setattr(safety, "_REMEMBERED_MAX", 1)
    passwords = Passwords(users)
    for login, may_change in (("ann:correct horse", True), ("bob:battery", False), ("ann:correct horse", True)):
        assert passwords.check(header(login)) == User(login.partition(":")[0], may_change)
        assert len(passwords._digests) == 1


def test_readers_change_nothing(connect, users):
    with Web(connect, "--password-file", users, user="bob:battery") as web:
        page = web.get("/job/1")
        assert "read only" in page.text
        assert '<button name="do"' not in page.html
        refused = web.post("/put", PUT)
        assert (refused.status, refused.html) == (403, "You may look, but not change anything.\n")


def test_nobody_changes_anything(connect):
    with Web(connect, "--read-only") as web:
        assert "Put a job" not in web.get("/").text
        assert web.post("/change", {"ids": 1, "do": "delete", "sure": 1}).status == 403


def test_a_proxy_says_who_asks(connect):
    with Web(connect, "--user-header", "X-Forwarded-User") as web:
        assert web.get("/").status == 401
        assert "carol" in web.get("/", **{"X-Forwarded-User": "carol"}).text


def test_name_of_the_proxy_is_one_in_utf8(connect):
    with Web(connect, "--user-header", "X-User") as web:
        assert web.get("/", **{"X-User": "J\xf6rg"}).status == 401  # sent as Latin-1
        for names in (("ann", "bob"), ("ann", "ann"), ("", "bob")):
            assert status_with(web, *names) == 401


def status_with(web, *names):
    """Return the status of a request in which the header of the user stands several times."""
    connection = http.client.HTTPConnection(web.where, timeout=30)
    with contextlib.closing(connection):
        connection.putrequest("GET", "/")
        for name in names:
            connection.putheader("X-User", name)
        connection.endheaders()
        return connection.getresponse().status


def put_and_bury(web, **headers):
    """Put a job and bury it as this user; its id."""
    page = web.post("/put", PUT, **headers)
    job_id = int(page.path.partition("?")[0].removeprefix("/job/"))
    assert "1 job buried" in web.post("/change", {"ids": job_id, "do": "bury", "sure": 1}, **headers).text
    return job_id


def test_the_history_has_the_user_behind_each_change(connect, server, users, people):
    with Web(connect, "--password-file", users, "--db", server.directory / "queue.db", user="ann:correct horse") as web:
        job_id = put_and_bury(web)
        assert people(job_id, 2) == ["ann", "ann"]
        assert re.search(r"bury default 1024 operator 127\.0\.0\.1:\d+ #\d+ for ann", web.get(f"/job/{job_id}").text)


def test_the_history_has_the_user_behind_a_pause(connect, server, users):
    with Web(connect, "--password-file", users, user="ann:correct horse") as web:
        assert "default is paused for 5 min" in web.post("/pause", {"tube": "default", "for": "5min"}).text
        web.post("/pause", {"tube": "default", "for": "0"})
    with File(server.directory / "queue.db") as file:
        told = [(event["what"], event["by"]["person"]) for event in file.look.history({"tube": "default"}, 2)]
    assert told == [("pause", "ann"), ("pause", "ann")]


def test_the_history_has_the_user_that_the_proxy_names(connect, people):
    name = "jürgen🥕" + "x" * 200
    with Web(connect, "--user-header", "X-Forwarded-User") as web:
        web.headers = {"X-Forwarded-User": name.encode().decode("latin-1")}
        job_id = put_and_bury(web)
    assert people(job_id, 2) == [identity_for(name)] * 2


def test_without_users_the_history_has_none(connect, people):
    with Web(connect) as web:
        assert people(put_and_bury(web), 2) == [None, None]


def test_hidden_bodies_are_neither_shown_nor_searched(connect):
    with Web(connect, "--hide-bodies") as web:
        for path in ("/jobs", "/tube/default", "/job/1", "/job/1?body=hex"):
            page = web.get(path)
            assert page.status == 200
            assert "secret" not in page.html
            assert "73 65 63" not in page.html
        assert web.get("/job/1?body=raw").status == 404
        for key, value in (("text", "secret"), ("where", "a=secret")):
            assert web.get(f"/jobs?{key}={value}").status == 400
            assert web.post("/change", {"tube": "default", key: value, "do": "kick"}).status == 400


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--listen", "0.0.0.0:0"], "--listen 0.0.0.0:0 needs --password-file or --user-header"),
        (["--listen", "nowhere"], "--listen takes HOST:PORT or unix:PATH, not 'nowhere'"),
        (["--password-file", "/nowhere"], "/nowhere can't be read: No such file or directory\n"),
        (["--password-file", "/dev/null"], "/dev/null is no regular file"),
        (["--password-file", "/dev/null", "--user-header", "X"], "exclude each other"),
        (["--password-file", sys.executable], "is not UTF-8, and so not a file of users"),
        (["--add-user", "ann:queen"], "NAME:operator or NAME:reader"),
        *(
            (["--user-header", name], f"--user-header takes the name of a header, not {name!r}")
            for name in ("", "X Y:", "X-User:", "X-Gebrüder")
        ),
        *(
            (["--host", name], f"--host takes a host name without a port, not {name!r}")
            for name in ("", "queue.example.org:11380", "[::1]:80", "http://queue", "two names", "q/x", "grüße")
        ),
    ],
)
def test_what_would_not_be_safe_is_refused(flags, why):
    command = [sys.executable, "-m", "beanlite", "web", *flags]
    ran = subprocess.run(command, input="x\n", capture_output=True, text=True, check=False, timeout=30)
    assert ran.returncode == 2
    assert why in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_port_that_is_taken(connect):
    command = [sys.executable, "-m", "beanlite", "web", "--listen", connect]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, f"beanlite: can't listen on {connect}: Address already in use\n")


@contextlib.contextmanager
def encrypting(connect, both):
    """``beanlite web`` with a certificate, and where it is."""
    words = ["web", "--connect", connect, "--listen", "127.0.0.1:0", "--web-tls-cert", both, "--web-tls-key", both]
    command = [sys.executable, "-m", "beanlite", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process, re.sub("^beanlite: https://(.*)/ shows .*\n", r"\1", process.stderr.readline())
        finally:
            process.terminate()
            said = process.stderr.read()
    assert (process.returncode, said) == (0, "")


def test_page_encrypts_with_its_certificate(connect, tmp_path):
    authority = Authority(tmp_path)
    with encrypting(connect, authority.issue("page")) as (_, where):
        status, headers, _ = ask_over_tls(where, authority.file)
        assert (status, headers["set-cookie"]) == (200, None)
        context = ssl.create_default_context(cafile=authority.file)
        with contextlib.closing(http.client.HTTPSConnection(where, timeout=30, context=context)) as connection:
            connection.request("GET", "/jobs/")
            assert connection.getresponse().headers["location"] == f"https://{where}/jobs"


def test_silent_connections_do_not_shut_the_encrypted_page_off(connect, tmp_path):
    authority = Authority(tmp_path)
    with contextlib.ExitStack() as silent, encrypting(connect, authority.issue("page")) as (process, where):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (300, 300))
        host, port = where.split(":")
        for number in range(1, 501):
            silent.enter_context(socket.create_connection((host, int(port)), 10))
            if number % 100 == 0:
                assert ask_over_tls(where, authority.file)[0] == 200


@pytest.mark.parametrize("spoilt", ["cert", "key"])
def test_pipe_instead_of_certificate_of_page_is_refused(capsys, tmp_path, spoilt):
    files = {"cert": Authority(tmp_path).issue("page"), "key": tmp_path / "page.pem"} | {spoilt: tmp_path / "pipe"}
    os.mkfifo(files[spoilt])
    assert main(["web", "--web-tls-cert", str(files["cert"]), "--web-tls-key", str(files["key"])]) == 2
    assert capsys.readouterr().err == f"beanlite: --web-tls-{spoilt}: {files[spoilt]} is no file\n"


def test_key_of_page_that_others_can_read_is_refused(capsys, tmp_path):
    both = Authority(tmp_path).issue("page")
    both.chmod(0o640)
    assert main(["web", "--web-tls-cert", str(both), "--web-tls-key", str(both)]) == 2
    assert capsys.readouterr().err == f"beanlite: --web-tls-key: others may use {both} (mode 640); chmod 600 it\n"


def test_certificate_of_page_without_its_key_is_refused(capsys, tmp_path):
    both = str(Authority(tmp_path).issue("page"))
    assert main(["web", "--web-tls-cert", both]) == 2
    assert capsys.readouterr().err == "beanlite: --web-tls-cert and --web-tls-key need each other\n"
