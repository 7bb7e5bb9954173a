"""A router whose servers are all away refuses even the statistics, which it says as any server does."""

import pytest

from beanlite.cli import main
from tests.router.routers import start_router
from tests.support.servers import start_beanlite
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    """A router that waits for its server no longer."""
    folder = tmp_path_factory.mktemp("router")
    server = start_beanlite(folder / "server", "--no-journal")
    server.kill()
    with start_router(folder, [server]) as router:
        with Wire(router.connect(60)) as wire:
            assert wire.ask("stats") == "INTERNAL_ERROR"
        yield f"127.0.0.1:{router.port}"


@pytest.mark.parametrize("command", ["stats", "stats --json", "top --once", "put -t a", "pause a 1min"])
def test_command_is_refused_in_one_line(command, router, capsys):
    assert main([*command.split(), "--connect", router]) == 1
    printed = capsys.readouterr()
    why = "INTERNAL_ERROR (a bug of the server's or, behind a router, a server that is away)"
    word = "pause-tube" if command.startswith("pause") else "stats"
    assert (printed.out, printed.err) == ("", f"beanlite: {router} refused {word}: {why}\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [("stats", "beanlite: one is"), ("stats --json", "beanlite: one is"), ("top --once", "away one: {}")],
)
def test_router_is_left_out_of_several_servers(command, words, router, tmp_path, capsys):
    with start_beanlite(tmp_path, "--no-journal") as server:
        places = ["--connect", f"one={router}", "--connect", f"two=127.0.0.1:{server.port}"]
        main([*command.split(), *places])
        printed = capsys.readouterr()
    assert "two" in printed.out
    told = (printed.out if command.startswith("top") else printed.err).splitlines()
    assert [line.split()[:3] for line in told if router in line] == [words.format(router).split()]
