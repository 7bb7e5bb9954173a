"""What docs/network.md has clients and operators do: its certificates, clients and sidecars, with a real server."""

import re
import shutil
import socket
import subprocess
import sys
import tomllib
from contextlib import contextmanager, suppress
from pathlib import Path

import greenstalk
import pytest

from beanlite.cli import main
from tests.clients.test_sessions import PROGRAMS, works
from tests.support.needs import need
from tests.support.servers import free_port, start_beanlite
from tests.support.wire import until

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "network.md").read_text(encoding="utf-8")


def code(language, word):
    """The block of code in this language that has this word in it."""
    blocks = re.findall(rf"^```{language}\n(.+?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if word in block]
    return block


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the documented lines make, for a server on this machine."""
    need(shutil.which("openssl"), "openssl is not installed")
    folder = tmp_path_factory.mktemp("network")
    lines = code("sh", "openssl req").replace("queue.example.org", "localhost").replace("10.1.2.3", "127.0.0.1")
    subprocess.run(["bash", "-eu", "-c", lines], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def server(folder, tmp_path):
    """A server with the documented settings, and its port for TLS."""
    settings = tomllib.loads(code("toml", "tls_clients").replace("/etc/beanlite", str(folder)))
    port = free_port()
    settings["tls"] = f"localhost:{port}"
    flags = [word for key, value in settings.items() for word in ("--" + key.replace("_", "-"), value)]
    with start_beanlite(tmp_path / "q", *flags) as server:
        yield server, port
    assert "Traceback" not in server.log_text()


def for_here(text, folder, port):
    """The text of the page, with the names of this test's server."""
    text = text.replace("/etc/beanlite", str(folder)).replace("queue.example.org", "localhost")
    for name in ("ca.pem", "mailer.pem", "mailer.key"):
        text = re.sub(rf"(?<=[\"' ]){name}", f"{folder}/{name}", text)
    return text.replace("11301", str(port))


def test_certificates_fit_what_is_strict(folder):
    """As Python 3.13 checks them."""
    words = "openssl verify -x509_strict -CAfile ca.pem".split()
    for use, name in (("sslserver", "server"), ("sslclient", "mailer")):
        subprocess.run([*words, "-purpose", use, f"{name}.pem"], cwd=folder, check=True, capture_output=True)
    done = subprocess.run([*words, "-purpose", "sslserver", "mailer.pem"], cwd=folder, check=False, capture_output=True)
    assert done.returncode != 0


def test_documented_command_reaches_the_server(server, folder, capsys):
    (line,) = re.findall(r"^\$ beanlite (tubes --connect tls.+)$", PAGE, re.MULTILINE)
    assert main(for_here(line, folder, server[1]).split()) == 0
    assert "default" in capsys.readouterr().out


def test_greenstalk_runs_a_session_over_tls(server, folder):
    page: dict = {}
    exec(for_here(code("python", "greenstalk"), folder, server[1]), page)  # noqa: S102 - our page's
    with page["queue"] as queue:
        first, large = queue.put("welcome ann"), queue.put("x" * 60_000, delay=1)
        job = queue.reserve()
        assert (job.id, job.body) == (first, "welcome ann")
        queue.bury(job)
        assert queue.kick(10) == 1
        queue.delete(queue.reserve())
        job = queue.reserve(timeout=10)
        assert (job.id, len(job.body)) == (large, 60_000)
        queue.delete(job)
        with pytest.raises(greenstalk.TimedOutError):
            queue.reserve(timeout=0)
        assert queue.stats_tube("mail")["total-jobs"] == 2


def expect_session(command, lacks=()):
    done = subprocess.run(command, cwd=HERE, capture_output=True, encoding="utf-8", timeout=30, check=False)
    session = (HERE / "session.txt").read_text(encoding="utf-8").splitlines()
    assert done.stdout.splitlines() == [line for line in session if line.partition(":")[0] not in lacks], done.stderr
    assert done.returncode == 0, done.stderr


def test_pheanstalk_runs_the_session_over_tls(server, folder, tmp_path):
    program = PROGRAMS["pheanstalk"]
    need(works(program.probe), f"pheanstalk is not installed: {program.install}")
    head, _, rest = (HERE / "with_pheanstalk.php").read_text(encoding="utf-8").partition("use Pheanstalk\\Exception")
    factory = for_here(code("php", "createWithFactory"), folder, server[1])
    session, replaced = re.subn(r"\$client = .+;\n", "", f"use Pheanstalk\\Exception{rest}")
    assert replaced == 1
    session = session.replace("use Pheanstalk\\Pheanstalk;\n", "")
    (tmp_path / "session.php").write_text(f"{head}{factory}\n{session}", encoding="utf-8")
    expect_session(["php", str(tmp_path / "session.php")])


@contextmanager
def sidecar(command, port):
    """Run one until it accepts connections, and for the time of the block."""

    def accepts():
        assert process.poll() is None, process.communicate()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            until(accepts)
            yield
        finally:
            process.terminate()


@pytest.mark.parametrize(("sidecar_name", "client"), [("stunnel", "beaneater"), ("haproxy", "pystalk")])
def test_sidecar_carries_a_client_over_tls(sidecar_name, client, server, folder, tmp_path):
    need(shutil.which(sidecar_name), f"{sidecar_name} is not installed: Debian's stunnel4 and haproxy")
    program, local = PROGRAMS[client], free_port()
    need(works(program.probe), f"{client} is not installed: {program.install}")
    both = folder / "mailer.both.pem"
    both.write_text((folder / "mailer.pem").read_text() + (folder / "mailer.key").read_text())
    settings = code({"stunnel": "ini", "haproxy": "haproxy"}[sidecar_name], "11300")
    settings = for_here(settings, folder, server[1]).replace("127.0.0.1:11300", f"127.0.0.1:{local}")
    if sidecar_name == "stunnel":
        settings = f"foreground = yes\npid =\n{settings}"
    file = tmp_path / "sidecar.conf"
    file.write_text(settings)
    words = {"stunnel": ["stunnel", str(file)], "haproxy": ["haproxy", "-db", "-f", str(file)]}[sidecar_name]
    with sidecar(words, local):
        expect_session([*program.command.split(), str(local)], program.lacks)


def test_sidecar_takes_no_other_server(folder, tmp_path):
    """One whose certificate is for another name, although the authority vouches for it."""
    need(shutil.which("stunnel"), "stunnel is not installed: Debian's stunnel4")
    local, port = free_port(), free_port()
    flags = ["--tls", f"127.0.0.1:{port}", "--tls-cert", str(folder / "server.pem")]
    with start_beanlite(tmp_path, "--no-journal", *flags, "--tls-key", str(folder / "server.key")):
        settings = for_here(code("ini", "11300"), folder, port).replace("checkHost = localhost", "checkHost = other")
        file = tmp_path / "stunnel.conf"
        file.write_text("foreground = yes\npid =\n" + settings.replace("127.0.0.1:11300", f"127.0.0.1:{local}"))
        with sidecar(["stunnel", str(file)], local), socket.create_connection(("127.0.0.1", local), 10) as client:
            client.sendall(b"stats\r\n")
            with suppress(ConnectionResetError):
                assert client.recv(100) == b""


def test_documented_settings_for_a_shared_machine_are_valid():
    for word in ("socket =", "operators ="):
        values = tomllib.loads(code("toml", word))
        flags = [text for key, value in values.items() for text in (f"--{key}", value)]
        command = [sys.executable, "-m", "beanlite", "config", "--no-journal", *flags]
        subprocess.run(command, check=True, capture_output=True)
