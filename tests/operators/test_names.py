"""What clients call themselves: listed, as the holder of a job, and in the history of a file."""

import json

import pytest

from beanlite.cli import main
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire, until

NAME = "web1/mail/17"


@pytest.fixture
def server(tmp_path):
    """A server whose job 1 a client of that name has reserved."""
    with start_beanlite(tmp_path, "--history", "1d") as server, Wire(server.connect()) as client:
        client.put(b"x")
        assert client.ask(f"name {NAME}") == "NAMED"
        assert client.ask("reserve").startswith("RESERVED 1 ")
        yield server


def test_clients_are_listed_with_their_names(server, capsys):
    connect = ["--connect", f"{server.host}:{server.port}"]
    assert main(["clients", *connect, "--json"]) == 0
    (client,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (client["name"], client["stuck"], client["connected_s"] >= client["silent_s"] >= 0) == (NAME, None, True)
    assert client["last"] == "reserve"
    assert main(["clients", *connect]) == 0
    title, line = capsys.readouterr().out.splitlines()
    assert "calls itself" in title
    assert NAME in line
    assert main(["job", "1", *connect]) == 0
    assert f'"{NAME}"' in capsys.readouterr().out


def test_file_and_page_have_the_name_of_the_holder(server, capsys):
    db = server.directory / "queue.db"

    def shown():
        assert main(["job", "1", "--db", str(db)]) == 0
        return capsys.readouterr().out

    until(lambda: f'"{NAME}"' in shown())  # a reservation reaches the file late
    assert shown().count(f'"{NAME}"') == 2  # as the holder, and in the history
    with Web(f"{server.host}:{server.port}", "--db", db) as web:
        assert NAME in web.get("/clients").text
        assert web.get("/job/1").text.count(f'"{NAME}"') == 2
