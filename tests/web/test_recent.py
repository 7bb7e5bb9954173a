"""The list of what was changed on the page: by whom, how many, and with a button that undoes it."""

import re

import pytest

from tests.support.access import allow
from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire
from tests.web.test_people import EVERYTHING, of


@pytest.fixture
def server(tmp_path):
    rules = tmp_path / "access.toml"
    rules.write_text(
        EVERYTHING
        + allow("person:ann", ["mail"], "operator")
        + allow("person:root", ["*"], "operator")
        + allow("person:carl", ["*"], "reader")
    )
    with start_beanlite(tmp_path, "--access", str(rules)) as server:
        yield server


@pytest.fixture
def wire(server):
    with Wire(server.connect()) as wire:
        wire.ask("use mail")
        yield wire


@pytest.fixture
def web(server):
    with Web(f"127.0.0.1:{server.port}", "--user-header", "X-User") as web:
        yield web


def rows(web):
    """The text of each change in the list, and the tokens by which some can be undone."""
    page = web.get("/changes")
    assert page.status == 200
    body = page.html.partition("<tbody>")[2].partition("</tbody>")[0]
    found = [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in body.split("<tr ")[1:]]
    return [row.partition(" UTC ")[2] for row in found], re.findall('name="undo" value="([^"]*)"', body)


def test_changes_are_listed_and_undone_later(web, wire):
    ids = [wire.put(b"job"), wire.put(b"job"), wire.put(b"job", delay_s=1000)]
    of(web, "root").post("/change", {"ids": f"{ids[0]},{ids[1]}", "do": "bury", "back": "/tube/mail"})
    web.post("/pause", {"tube": "mail", "for": "5min", "back": "/tube/mail"})
    web.post("/policy", {"pattern": "mail", "key": "ttl", "value": "9d", "back": "/policies"})
    web.post("/put", {"tube": "mail", "body": "x"})
    texts, tokens = rows(web)
    assert [text.partition("127.0.0.1 ")[2] for text in texts] == [
        "put into mail: job 4 /job/4",
        "mail: ttl=9d /policies",
        "mail is paused for 5 min /tube/mail Undo",
        "buried: 2 jobs one by one 2 /tube/mail Undo",
    ]
    assert all(text.startswith("root ") for text in texts)
    assert "2 jobs brought back" in web.post("/undo", {"undo": tokens[1], "back": "/changes"}).text
    assert wire.stats("stats-tube mail")["current-jobs-buried"] == "0"
    texts, more = rows(web)
    assert len(texts) == 5
    assert texts[-1].endswith("undone")
    assert more == tokens[:1]


def test_person_sees_its_own_changes_and_undoes_no_other(web, wire):
    ids = [wire.put(b"job"), wire.put(b"job")]
    of(web, "ann").post("/change", {"ids": ids[0], "do": "bury"})
    of(web, "root").post("/change", {"ids": ids[1], "do": "bury"})
    assert [text.partition(" ")[0] for text in rows(of(web, "ann"))[0]] == ["ann"]
    texts, tokens = rows(of(web, "root"))
    assert [text.partition(" ")[0] for text in texts] == ["root", "ann"]
    assert len(tokens) == 1
    page = of(web, "carl").get("/changes")
    assert "Nothing has been changed here" in page.text
    assert 'href="/changes"' not in page.html
    assert 'href="/changes"' in of(web, "ann").get("/changes").html
