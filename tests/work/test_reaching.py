"""How a worker reaches its server, and what it needs to be allowed; and the function of docs/workers.md."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.authority import Authority
from tests.support.servers import start_beanlite
from tests.support.tls_front import TlsFront
from tests.support.wire import Wire, until
from tests.work.conftest import ROOT

PAGE = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")


@pytest.fixture
def begin(tmp_path):
    """Return a function that starts the worker of the page, in the folder of its function."""
    workers = []
    (tmp_path / "app.py").write_text(function_of_the_page())

    def begin(*flags):
        command = [sys.executable, "-P", "-m", "beanlite", *words_of_the_page(), *flags]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with (tmp_path / "out").open("ab") as out, (tmp_path / "errors").open("ab") as errors:
            workers.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=errors))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()
        worker.wait()


def function_of_the_page():
    (block,) = re.findall(r"^```python\n(# app\.py\n.+?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return block


def words_of_the_page():
    (line,) = re.findall(r"^beanlite (work .+)$", PAGE, re.MULTILINE)
    return line.split()


def put(server):
    with Wire(server.connect()) as wire:
        put_through(wire)


def put_through(wire):
    wire.ask("use mail")
    wire.put(b"ann")


def test_function_of_the_page_is_called_over_tls(tmp_path, begin):
    authority = Authority(tmp_path)
    with (
        start_beanlite(tmp_path, "--no-journal") as server,
        TlsFront(server.port, authority.issue("server")) as front,
    ):
        worker = begin("--connect", front.where, "--tls-ca", str(authority.file))
        put(server)
        until(lambda: '"done"' in (tmp_path / "out").read_text())
        assert "to ann\n" in (tmp_path / "errors").read_text()
        worker.terminate()
        assert worker.wait(60) == 0


def test_worker_that_connects_again_reads_renewed_files(scene, tmp_path, begin):
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.file.read_bytes())
    with TlsFront(scene.port, old.issue("server")) as front:
        worker = begin("--connect", front.where, "--tls-ca", str(trusted))
        with scene.connect() as wire:
            put_through(wire)
        until(lambda: (tmp_path / "out").read_text().count('"done"') == 1)
        trusted.write_bytes(new.file.read_bytes())
        front.context.load_cert_chain(new.issue("renewed"))
        scene.kill()
        scene.start()
        with scene.connect() as wire:
            put_through(wire)
        until(lambda: (tmp_path / "out").read_text().count('"done"') == 2)
        worker.terminate()
        assert worker.wait(60) == 0


@pytest.mark.parametrize("scheme", ["", "tls://"])
def test_worker_finds_the_one_of_several_servers_that_serves(scheme, tmp_path, begin):
    authority = Authority(tmp_path)
    with (
        start_beanlite(tmp_path, "--no-journal") as server,
        TlsFront(server.port, authority.issue("server")) as front,
    ):
        port = front.port if scheme else server.port
        flags = ["--tls-ca", str(authority.file)] if scheme else []
        worker = begin("--connect", f"{scheme}127.0.0.1:1,127.0.0.1:{port}", *flags)
        put(server)
        until(lambda: '"done"' in (tmp_path / "out").read_text())
        worker.terminate()
        assert worker.wait(60) == 0


def test_function_of_the_page_is_typed(tmp_path):
    (tmp_path / "app.py").write_text(function_of_the_page())
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [*command, "app.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_worker_that_lacks_a_role_says_which(tmp_path, begin):
    rules = tmp_path / "access.toml"
    rules.write_text('[[allow]]\nwho = ["net:127.0.0.1"]\nrole = ["producer", "reader"]\ntubes = ["mail"]\n')
    rules.chmod(0o600)
    with start_beanlite(tmp_path, "--no-journal", "--access", str(rules)) as server:
        worker = begin("--connect", f"127.0.0.1:{server.port}")
        put(server)
        assert worker.wait(30) == 1
    errors = (tmp_path / "errors").read_text()
    assert errors.splitlines()[-1].startswith("beanlite: the server refuses: UNAUTHORIZED")
    assert errors.endswith("a worker needs the role worker in its tubes\n")
