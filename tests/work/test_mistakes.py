"""What is wrong with the function that a worker is to call is one line, and exit code 2."""

import sys
from pathlib import Path

import pytest

from beanlite.cli import main

pytestmark = pytest.mark.usefixtures("clean_environment")

MODULE = """
import asyncio
number = 5
def nothing(): pass
def two(job, other): pass
def some(job, other=None): pass
def several(job): yield
async def several_async(job): yield
class Several:
    def __call__(self, job): yield
several_called = Several()
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong", "a function is named as module:function, such as app.mail:send, not 'wrong'"),
        ("wrong:", "a function is named as module:function, such as app.mail:send, not 'wrong:'"),
        ("wrong.py:x", "wrong.py:x: there is no module wrong.py in {folder}, or installed"),
        ("./wrong:x", "a function is named as module:function, such as app.mail:send, not './wrong:x'"),
        ("nowhere:x", "nowhere:x: there is no module nowhere in {folder}, or installed"),
        ("nowhere.at.all:x", "nowhere.at.all:x: there is no module nowhere in {folder}, or installed"),
        ("wrong:send", "wrong:send: {folder}/wrong.py has no send"),
        ("wrong:number", "wrong:number is no function, but int"),
        ("wrong:asyncio", "wrong:asyncio is no function, but module"),
        ("wrong:nothing", "wrong:nothing can't be called with a job alone: too many positional arguments"),
        ("wrong:two", "wrong:two can't be called with a job alone: missing a required argument: 'other'"),
        ("wrong:several", "wrong:several is a generator, which does nothing when it is called"),
        ("wrong:several_async", "wrong:several_async is a generator, which does nothing when it is called"),
        ("wrong:several_called", "wrong:several_called is a generator, which does nothing when it is called"),
        ("sys:send", "sys:send: sys has no send"),
        ("exits:x", "exits:x: exits can't be imported: SystemExit: 0 ({folder}/exits.py:1)"),
        ("imports:x", "imports:x: imports can't be imported: ModuleNotFoundError: No module named 'none'"),
        ("raises:x", "raises:x: raises can't be imported: ZeroDivisionError: division by zero ({folder}/raises.py:1)"),
        ("syntax:x", "syntax:x: syntax can't be imported: SyntaxError: invalid syntax (syntax.py, line 1)"),
    ],
)
def test_function_that_can_not_be_called_is_one_line(name, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = {"imports": "import none", "raises": "1 / 0", "syntax": "1 +", "exits": "raise SystemExit(0)"}
    for module, text in ({"wrong": MODULE} | modules).items():
        monkeypatch.delitem(sys.modules, module, raising=False)
        Path(f"{module}.py").write_text(text)
    assert main(["work", name]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"beanlite: {said.format(folder=tmp_path)}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x:y --tube -", "no tube can have the name '-'"),
        ("x:y --concurrency 0", "Invalid value for '--concurrency': 0 is less than 1"),
        ("x:y --tries 0", "Invalid value for '--tries': 0 is less than 1"),
        ("x:y --timeout soon", "Invalid value for '--timeout': 'soon' is not a length of time"),
        ("x:y --timeout 0s", "--timeout has to be longer than 0s"),
        ("x:y --health 5", "--health takes HOST:PORT, not '5'"),
        ("x:y --connect 5", "--connect takes HOST:PORT, tls://HOST:PORT or unix:PATH, not '5'"),
        ("x:y --connect a:1,b", "--connect takes HOST:PORT, tls://HOST:PORT or unix:PATH, not 'b'"),
        ("x:y --connect tls://a:1,b", "--connect takes tls://HOST:PORT, not 'tls://b'"),
        ("x:y --connect a:1 --connect b:2", "--connect names several servers; a worker takes one, or a router"),
        ("x:y --connect a:1,b:2 --tls-ca x", "--tls-ca is for --connect tls://HOST:PORT"),
        ("", "Missing argument 'MODULE:FUNCTION'"),
    ],
)
def test_wrong_flag_of_work_is_one_line(line, said, capsys):
    assert main(["work", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"beanlite: {said}")


def test_worker_of_several_servers_says_where_they_are_named(tmp_path, monkeypatch, capsys):
    file = tmp_path / "servers.toml"
    servers = [f'[servers.{name}]\nnumber = {n}\nconnect = "{name}:1"\n' for n, name in enumerate("ab", 1)]
    file.write_text("version = 1\n" + "".join(servers))
    monkeypatch.setenv("BEANLITE_SERVERS", str(file))
    for words, where in (([], "BEANLITE_SERVERS"), (["--servers", str(file)], "--servers")):
        assert main(["work", "x:y", *words]) == 2
        assert capsys.readouterr().err.startswith(f"beanlite: {where} names several servers; a worker takes one")


def test_token_that_is_none_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("BEANLITE_TOKEN", "a b")
    assert main(["work", "x:y", "--connect", "unix:nowhere"]) == 2
    assert capsys.readouterr().err.startswith("beanlite: BEANLITE_TOKEN is no token: ")
