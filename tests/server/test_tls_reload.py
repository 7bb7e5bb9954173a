"""Certificates: what is wrong with their files is said in plain words, and SIGHUP takes new ones as a whole."""

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from beanlite.cli import main
from beanlite.errors import ConfigError
from beanlite.net.certificates import expiries, load_certificates
from beanlite.server import reload
from beanlite.settings import sources
from beanlite.settings.config import Settings
from tests.support.certificates import Authority, tls_flags, wrap
from tests.support.inside import serving, until as until_inside
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "c")


def settings_of(cert, key, *, clients=None):
    return Settings(tls="127.0.0.1:0", tls_cert=cert, tls_key=key, tls_clients=clients)


def test_certificates_end_when_openssl_says(authority):
    cert, key = authority.sign("server", days=12)
    loaded = load_certificates(settings_of(cert, key, clients=authority.file))
    days = {setting: round((ends_s - time.time()) / 86400) for setting, ends_s in loaded.ends_s.items()}
    assert days == {"tls_cert": 12, "tls_clients": 365}
    expired, others = expiries(loaded)
    assert expired == []
    assert "expires soon, on" in others[0]
    assert "(in 11 days)" in others[0]
    assert "(in 364 days)" in others[1]


def test_an_expired_certificate_is_said_to_be(authority):
    expired, _ = expiries(load_certificates(settings_of(*authority.sign("server", days=-1))))
    assert len(expired) == 1
    assert "has expired on" in expired[0]


def encrypted(_cert, key):
    subprocess.run(
        ["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", key, "-out", f"{key}.x"],
        check=True,
        capture_output=True,
    )
    shutil.move(f"{key}.x", key)
    key.chmod(0o600)


def piped(path):
    path.unlink()
    os.mkfifo(path)


WRONG = {
    "missing": (lambda cert, _key: cert.unlink(), "tls_cert: .* can't be read: No such file or directory"),
    "folder": (lambda _cert, key: (key.unlink(), key.mkdir()), "tls_key: .* is no file"),
    "open": (lambda _cert, key: key.chmod(0o640), r"tls_key: others may use .* \(mode 640\); chmod 600 it"),
    "pipe": (lambda cert, _key: piped(cert), "tls_cert: .* is no file"),
    "piped key": (lambda _cert, key: piped(key), "tls_key: .* is no file"),
    "huge": (lambda cert, _key: os.truncate(cert, 5 << 20), "tls_cert: .* has 5242880 bytes; 4194304 at most are read"),
    "encrypted": (encrypted, "tls_key: .* is encrypted; beanlite asks for no password"),
    "swapped": (shutil.copyfile, "tls_key: .* has no private key in PEM form"),
    "half": (lambda cert, _key: cert.write_text(cert.read_text()[:300]), "tls_cert: .* has no certificate in PEM form"),
    "damaged": (
        lambda cert, _key: cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        "tls_cert: .* has a damaged certificate",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_named(authority, what):
    cert, key = authority.sign("server")
    spoil, message = WRONG[what]
    spoil(cert, key)
    with pytest.raises(ConfigError, match=f"^{message}"):
        load_certificates(settings_of(cert, key))


def test_key_replaced_while_it_is_read_is_an_error_of_settings(authority, monkeypatch):
    cert, key = authority.sign("server")
    read = Path.read_text

    def read_and_remove(path, *args, **kwargs):
        text = read(path, *args, **kwargs)
        if path == key:
            key.unlink()
        return text

    monkeypatch.setattr(Path, "read_text", read_and_remove)
    with pytest.raises(ConfigError, match=r"^tls_key: .* can't be read: No such file"):
        load_certificates(settings_of(cert, key))


def test_a_key_of_another_certificate_is_named(authority):
    cert, _ = authority.sign("server")
    _, key = authority.sign("other")
    with pytest.raises(ConfigError, match=r"^tls_key: .*other\.key is not the key of .*server\.crt$"):
        load_certificates(settings_of(cert, key))


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"tls": "127.0.0.1:1", "tls_cert": "c"}, "tls needs tls_key"),
        ({"tls_clients": "c"}, "tls_clients is of no use without tls, the address to listen on"),
        (
            {"tls": "127.0.0.1:1", "tls_cert": "c", "tls_key": "k", "standby": "forward"},
            "tls and standby = forward exclude each other",
        ),
    ],
)
def test_settings_that_do_not_fit_each_other(flags, error):
    assert sources.examine(flags=flags).mistakes == [error]


def test_config_check_says_when_certificates_end(authority, capfd):
    words = ["config", "--check", *tls_flags(authority.sign("server", days=12))]
    assert main(words) == 0
    assert "expires soon" in capfd.readouterr().err
    assert main([*words[:2], *tls_flags(authority.sign("server", days=-1))]) == 2
    assert "has expired" in capfd.readouterr().err


def serial_of(client):
    return client.getpeercert()["serialNumber"]


def test_reload_takes_new_certificates_or_nothing(authority, tmp_path):
    own = authority.sign("server")
    context = authority.client(authority.sign("client"))
    with start_beanlite(tmp_path / "q", *tls_flags(own, authority.file)) as server:
        until(lambda: " tls=" in server.log_text())

        def reload(word):
            before = len(server.log_text())
            server.signal(signal.SIGHUP)
            until(lambda: word in server.log_text()[before:])
            return server.log_text()[before:]

        with wrap(server, context) as first:
            whole = own[0].read_text()
            own[0].write_text(whole[:300])
            assert reload("not reloaded").count("\n") == 1
            with wrap(server, context) as second:
                assert serial_of(second) == serial_of(first)
            own[0].write_text(whole)
            authority.sign("server", days=3)
            assert "certificate expires soon" in reload(": reloaded")
            with wrap(server, context) as third:
                assert serial_of(third) != serial_of(first)
            with Wire(first) as wire:
                assert wire.ask("list-tube-used") == "USING default"


@pytest.mark.parametrize("text", ["-----BEGIN CERTIFICATE-----\n", f"-----BEGIN CERTIFICATE-----\n{'A' * 64}\n"])
def test_beginnings_of_certificates_alone_are_soon_refused(authority, text):
    """Each of them once had the rest of the file searched for its end."""
    cert, key = authority.sign("server")
    authority.file.write_text(text * 40_000)
    with pytest.raises(ConfigError, match="has no certificate in PEM form"):
        load_certificates(settings_of(cert, key, clients=authority.file))


@pytest.mark.parametrize("what", ["load_certificates", "read_access", "read_policies", "check_page_files", "load"])
async def test_clients_are_served_while_files_are_read(authority, tmp_path, monkeypatch, what):
    """Users are looked up in a directory that may be far away."""
    cert, key = authority.sign("server")
    reading, on = threading.Event(), threading.Event()

    def slowly(do):
        def read(*args):
            reading.set()
            assert on.wait(20)
            return do(*args)

        return read

    access, policies = tmp_path / "access.toml", tmp_path / "policies.toml"
    access.write_text('[[allow]]\nwho = ["net:127.0.0.1", "uid:root"]\nrole = ["operator"]\ntubes = ["*"]\n')
    policies.write_text("# none\n")
    settings = settings_of(cert, key).model_dump(include={"tls", "tls_cert", "tls_key"})
    files = {"access": access, "policies": policies}
    async with serving(tmp_path / "queue.db", **settings, **files) as (server, _):
        if what == "load":
            server._reloads._load = slowly(server._reloads._load)
        else:
            monkeypatch.setattr(reload, what, slowly(getattr(reload, what)))
        server._reloads.want(stands_by=False)
        await until_inside(reading.is_set)
        reader, writer = await asyncio.open_connection("127.0.0.1", server._listener.sockets[0].getsockname()[1])
        writer.write(b"list-tube-used\r\n")
        assert await asyncio.wait_for(reader.readline(), 10) == b"USING default\r\n"
        writer.close()
        on.set()


async def test_reload_for_which_there_is_no_thread_changes_nothing(authority, tmp_path, monkeypatch, caplog):
    def refused(_self, *_args):
        raise RuntimeError("can't start new thread")

    cert, key = authority.sign("server")
    settings = settings_of(cert, key).model_dump(include={"tls", "tls_cert", "tls_key"})
    async with serving(tmp_path / "queue.db", **settings) as (server, task):
        monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
        server._reloads.want(stands_by=False)
        await until_inside(lambda: "not reloaded: settings unchanged" in caplog.text)
        monkeypatch.undo()
        assert not task.done()


def test_reload_without_tls_needs_a_restart_and_keeps_it_until_then(authority, tmp_path):
    own = authority.sign("server")
    config = tmp_path / "beanlite.toml"
    config.write_text(f'tls = "127.0.0.1:0"\ntls_cert = "{own[0]}"\ntls_key = "{own[1]}"\n')
    with start_beanlite(tmp_path / "q", "--config", str(config)) as server:
        until(lambda: " tls=" in server.log_text())
        config.write_text("max_tubes = 2\n")
        server.signal(signal.SIGHUP)
        until(lambda: ": reloaded" in server.log_text())
        for setting in ("tls", "tls_cert", "tls_key"):
            assert f"setting needs a restart setting={setting} " in server.log_text()
        with Wire(wrap(server, authority.client())) as client:
            assert client.ask("watch a") == "WATCHING 2"
            assert client.ask("watch b") == "OUT_OF_MEMORY"


def test_reload_changes_the_lowest_version(authority, tmp_path):
    cert, key = authority.sign("server")
    old = authority.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    linked = tmp_path / "key.pem"
    linked.symlink_to(key)
    config = tmp_path / "beanlite.toml"

    def configure(version):
        config.write_text(f'tls = "127.0.0.1:0"\ntls_cert = "{cert}"\ntls_key = "{linked}"\ntls_min = "{version}"\n')

    configure("1.2")
    with start_beanlite(tmp_path / "q", "--config", str(config)) as server:
        until(lambda: " tls=" in server.log_text())
        with Wire(wrap(server, old)) as first:
            configure("1.3")
            server.signal(signal.SIGHUP)
            until(lambda: ": reloaded" in server.log_text())
            assert first.ask("list-tube-used") == "USING default"
        with pytest.raises(OSError):
            wrap(server, old)


def test_the_log_warns_at_the_start_of_a_certificate_that_ends_soon(authority, tmp_path):
    with start_beanlite(tmp_path / "q", *tls_flags(authority.sign("server", days=3))) as server:
        until(lambda: "certificate expires soon setting=tls_cert" in server.log_text())
        assert "days=2" in server.log_text()
