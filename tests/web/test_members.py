"""The page of several servers, as a process of its own: real servers, and its responses."""

import html
import json
import re
import signal
import time
from contextlib import ExitStack

import pytest

from beanlite.cli import main
from beanlite.web.safety import password_line
from tests.support.servers import free_port, start_beanlite
from tests.support.web import Web, sign_in
from tests.support.wire import Wire, until

NAMES = ("one", "two", "three")
# How soon the screen has to say that a server is away.
AWAY_S = 20.0  # 5 s on a machine that has nothing else to do


def written(file, places):
    """Write a file of servers, of names with addresses; return it."""
    tables = [
        f"[servers.{name}]\nnumber = {number}\nconnect = {json.dumps(connect)}\n"
        f'metrics = "127.0.0.1:{12000 + number}"\n'
        for number, (name, connect) in enumerate(places.items(), 1)
    ]
    file.write_text("".join(tables))
    return file


def place_of(server):
    return f"{server.host}:{server.port}"


@pytest.fixture
def servers(tmp_path):
    """Three servers. Each has a tube of its own, and in mail as many jobs as its number, the first buried."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(start_beanlite(tmp_path / name)) for name in NAMES}
        for number, (name, server) in enumerate(servers.items(), 1):
            with Wire(server.connect()) as wire:
                wire.ask("use mail")
                for at in range(number):
                    wire.put(b'{"of": "%b", "at": %d}' % (name.encode(), at))
                wire.ask("watch mail")
                wire.ask("reserve-with-timeout 0")
                wire.ask("bury 1 0")
                wire.ask(f"use only-{name}")
                wire.put(b"")
        yield servers


@pytest.fixture
def file(tmp_path, servers):
    return written(tmp_path / "servers.toml", {name: place_of(server) for name, server in servers.items()})


@pytest.fixture
def page(file):
    with Web(None, "--servers", file) as web:
        yield web


@pytest.fixture
def four(tmp_path):
    """Another server, that is in no file yet."""
    with start_beanlite(tmp_path / "four") as server:
        yield server


def rows(page, label):
    """The rows of a table, as text."""
    (table,) = re.findall(rf'aria-label="Table of {label}">(.*?)</table>', page.html, re.DOTALL)
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)[1:]
    return [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in found]


def links(page):
    return [html.unescape(link) for link in re.findall(r'(?:href|action|data-complete)="(/[^"]*)"', page.html)]


def refreshed(web):
    """The first page, as it asks for itself."""
    return web.get("/", **{"beanlite-live": "1"})


def test_one_screen_shows_all_servers(page):
    shown = page.get("/")
    assert [row.split()[:6] for row in rows(shown, "servers")] == [
        ["one", "serves", "1", "0", "0", "1"],
        ["two", "serves", "2", "0", "0", "1"],
        ["three", "serves", "3", "0", "0", "1"],
    ]
    assert [" ".join(row.split()[:3]) for row in rows(shown, "tubes")] == [
        *("default one 0", "default three 0", "default two 0"),
        *("mail one 0", "mail three 2", "mail two 1"),
        *("only-one one 1", "only-three three 1", "only-two two 1"),
    ]
    sums = dict(re.findall(r"<dt>(\w+)</dt><dd>(?:<a[^>]*>)?([^<]*)", shown.html))
    assert (sums["ready"], sums["buried"]) == ("6", "3")


def test_tubes_are_sorted_and_chosen_across_servers(page):
    by_ready = rows(page.get("/?sort=ready&like=mail"), "tubes")
    assert [row.split()[1:3] for row in by_ready] == [["three", "2"], ["two", "1"], ["one", "0"]]
    of_two = rows(page.get("/?server=two"), "tubes")
    assert [row.split()[:2] for row in of_two] == [["default", "two"], ["mail", "two"], ["only-two", "two"]]
    assert "there is no server four" in page.get("/?server=four").text


def test_findings_of_all_servers_come_worst_first(page, servers):
    """A server that drains is worse than jobs that were left buried."""
    servers["two"].signal(signal.SIGUSR1)
    until(lambda: "two: the server is draining" in re.sub(" +", " ", refreshed(page).text).replace(" :", ":"))
    found = re.findall(r'<li class="(\w+)"[^>]*><a href="/on/(\w+)/">(\w+)</a>: ([^<]*)', refreshed(page).html)
    assert found[0][:3] == ("warning", "two", "two")
    assert {(severity, server) for severity, server, _, text in found[1:]} == {("note", name) for name in NAMES}
    assert rows(refreshed(page), "servers")[1].startswith("two draining 2")


def test_jobs_are_named_and_led_to_with_their_server(page):
    shown = page.get("/jobs?state=buried")
    assert [row.split()[0] for row in rows(shown, "jobs")] == ["one:1", "two:1", "three:1"]
    assert '"of": "two"' in page.get("/on/two/job/1").text
    assert page.get("/job/two:1").headers["location"] == "/on/two/job/1"
    assert page.get("/job/17").status == 404
    found = page.get("/jobs?q=of:three")
    assert [row.split()[0] for row in rows(found, "jobs")] == ["three:1", "three:2", "three:3"]


def test_jobs_are_grouped_across_servers(page):
    shown = page.get("/jobs?q=tube:mail&group=of")
    assert [row.split()[:2] for row in rows(shown, "groups")] == [["three", "3"], ["two", "2"], ["one", "1"]]


def test_tube_leads_to_the_server_that_it_belongs_to(page, file):
    file.write_text(file.read_text().replace("number = 3\n", 'number = 3\ntubes = "mail"\n'))
    until(lambda: page.get("/tube/mail").headers["location"] == "/on/three/tube/mail")


@pytest.mark.parametrize("how", ["halted", "killed"])
def test_screen_says_soon_that_a_server_is_away(page, servers, file, four, how):
    file.write_text(f'{file.read_text()}[servers.four]\nnumber = 4\nconnect = "{place_of(four)}"\n')
    until(lambda: len(rows(refreshed(page), "servers")) == 4)
    began_s = time.monotonic()
    servers["two"].signal(signal.SIGSTOP if how == "halted" else signal.SIGKILL)
    try:
        shown = refreshed(page)
        while "away for" not in shown.text:
            assert time.monotonic() < began_s + AWAY_S
            shown = refreshed(page)
        one, two, three, four = (row.split()[:3] for row in rows(shown, "servers"))
        assert two == ["two", "away", "for"]
        assert (one, three, four) == (["one", "serves", "1"], ["three", "serves", "3"], ["four", "serves", "0"])
        assert "Without two: " in shown.text
        assert {row.split()[1] for row in rows(shown, "tubes")} == {"one", "three", "four"}
        # From then on it is not waited for, nor on the list of jobs.
        began_s = time.monotonic()
        assert "Without two: " in refreshed(page).text
        buried = page.get("/jobs?state=buried")
        assert [row.split()[0] for row in rows(buried, "jobs")] == ["one:1", "three:1"]
        assert "Without two: " in buried.text
        assert time.monotonic() < began_s + AWAY_S
    finally:
        servers["two"].signal(signal.SIGCONT)
    if how == "halted":
        until(lambda: rows(refreshed(page), "servers")[1].startswith("two serves 2"))


def test_change_goes_to_the_server_whose_page_it_is_on(page):
    fields: dict[str, object] = {"do": "kick", "ids": "1", "back": "/on/two/job/1"}
    kicked = page.post("/on/two/change", fields)
    assert (kicked.status, kicked.path.startswith("/on/two/job/1?")) == (200, True)
    states = [page.get(f"/on/{name}/job/1").text for name in NAMES]
    assert ["buried" in re.split("History|Body", text)[0] for text in states].count(True) >= 2
    assert [row.split()[0] for row in rows(page.get("/jobs?state=buried"), "jobs")] == ["one:1", "three:1"]
    assert kicked.fields["undo"]
    assert '<form method="post" action="/on/two/undo"' in kicked.html
    page.post("/on/two/undo", {"undo": kicked.fields["undo"], "back": "/on/two/job/1"})
    assert [row.split()[0] for row in rows(page.get("/jobs?state=buried"), "jobs")] == ["one:1", "two:1", "three:1"]
    put = page.post("/on/three/put", {"tube": "late", "body": "", "pri": "1"})
    assert put.path.startswith("/on/three/job/")
    assert page.post("/change", fields).status in {404, 405}


def test_pages_of_a_server_lead_to_its_own_pages(page):
    """Each link and each form of them, but for those to the first page, the other servers and the style."""
    todo, seen = ["/on/two/", "/on/two/tube/mail?state=ready", "/on/two/job/1", "/on/two/put", "/on/two/job/99"], set()
    forms = set()
    while todo:
        path = todo.pop()
        if path.partition("?")[0] in seen:
            continue
        seen.add(path.partition("?")[0])
        shown = page.get(path)
        assert shown.status in {200, 404}, path
        for link in links(shown):
            if link.startswith("/static/") or link in {"/", "/on/one/", "/on/three/"}:
                continue
            assert link.startswith("/on/two/"), (path, link)
            if f'action="{html.escape(link)}"' in shown.html:
                forms.add(link)
            else:
                todo.append(link)
        backs = re.findall(r'name="back" value="([^"]*)"', shown.html)
        assert all(back.startswith("/on/two/") for back in backs), (path, backs)
    assert {"/on/two/jobs", "/on/two/clients", "/on/two/policies", "/on/two/journal", "/on/two/changes"} <= seen
    assert {f"/on/two/{form}" for form in ("change", "pause", "policy", "schedule", "put")} <= forms


def test_advice_on_pages_of_a_server_is_what_works_for_it(page, servers):
    """The page of several servers takes no ``--db`` and no ``--config``, and a command asks the right one."""
    paths = ("/on/two/job/1", "/on/two/job/99", "/on/two/changes", "/on/two/backups", "/on/two/journal", "/on/two/")
    texts = {path: page.get(path).text for path in paths}
    assert [path for path, text in texts.items() if "beanlite web" in text or "--config" in text] == []
    assert "in the database of two: beanlite job 1 --db PATH shows it" in texts["/on/two/job/1"]
    assert "The database of two may have its history: beanlite job 99 --db PATH" in texts["/on/two/job/99"]
    assert "The database of two tells: beanlite history --operators --db PATH" in texts["/on/two/changes"]
    command = f"beanlite jobs --tube mail --state buried --connect {place_of(servers['two'])}"
    until(lambda: command in page.get("/on/two/").text and command in page.get("/").text)
    assert " --connect" not in re.sub(re.escape(f"--connect {place_of(servers['two'])}"), "", texts["/on/two/"])
    servers["two"].stop()
    until(lambda: "is its address right?" in page.get("/on/two/").text)


def test_help_of_keys_has_those_that_do_something_on_the_page(page):
    def keys(path):
        shown = page.get(path).html
        told = re.findall(r"<dt>((?:<kbd>.*?</kbd> )+)</dt>", shown)
        return {" ".join(re.findall("<kbd>(.*?)</kbd>", key)) for key in told}, set(
            re.findall('data-key="(.|g .)"', shown)
        )

    for path in ("/", "/jobs", "/on/two/", "/on/two/jobs"):
        told, there = keys(path)
        assert there - {"u"} <= told, path
        assert {key for key in told if key[:2] in {"g ", "p"}} <= there, path
    assert keys("/")[0] < keys("/on/two/")[0]


def test_file_of_servers_is_read_again_when_it_has_changed(page, servers, file):
    text = file.read_text()
    written(file, {name: place_of(servers[name]) for name in ("three", "one")})
    until(lambda: [row.split()[0] for row in rows(page.get("/"), "servers")] == ["three", "one"])
    assert page.get("/on/two/").status == 404
    file.write_text(text.replace("number = 2", "number = 1"))
    until(lambda: "number 1 is that of one" in page.get("/").text)
    assert len(rows(page.get("/"), "servers")) == 2
    file.write_text(text)
    until(lambda: page.get("/on/two/").status == 200)
    assert "number 1 is" not in page.get("/").text


def test_targets_for_prometheus_are_those_of_the_file(page):
    targets = json.loads(page.get("/targets").html)
    assert targets[1] == {"targets": ["127.0.0.1:12002"], "labels": {"server": "two"}}


def test_server_is_reached_at_the_address_that_answers(tmp_path, servers):
    places = {"one": place_of(servers["one"]), "two": [f"127.0.0.1:{free_port()}", place_of(servers["two"])]}
    with Web(None, "--servers", written(tmp_path / "two.toml", places)) as web:
        assert [row.split()[:2] for row in rows(web.get("/"), "servers")] == [["one", "serves"], ["two", "serves"]]
        assert [row.split()[0] for row in rows(web.get("/jobs?state=buried"), "jobs")] == ["one:1", "two:1"]


def test_servers_are_named_on_the_command_line(servers):
    one, two = (place_of(servers[name]) for name in ("one", "two"))
    with Web(None, "--connect", f"one={one}", "--connect", two) as web:
        assert [row.split()[:2] for row in rows(web.get("/"), "servers")] == [["one", "serves"], [two, "serves"]]
        assert web.get(f"/on/{two}/").status == 200
        assert web.get("/tube/mail").headers["location"] == "/?like=mail"
        assert json.loads(web.get("/targets").html) == []


def test_socket_needs_a_name_and_file_is_of_one_server(tmp_path, capsys):
    sockets = ["--connect", "unix:/run/one", "--connect", "unix:/run/two"]
    assert main(["web", "--listen", "127.0.0.1:0", *sockets]) == 2
    assert "--connect unix:/run/one needs a name here: NAME=unix:/run/one" in capsys.readouterr().err
    assert main(["web", "--connect", "localhost:1", "--connect", "localhost:2", "--db", str(tmp_path)]) == 2
    assert "--db is for the page of one server" in capsys.readouterr().err


def test_single_server_of_a_file_may_have_its_database(tmp_path, servers):
    file = written(tmp_path / "one.toml", {"one": place_of(servers["one"])})
    with Web(None, "--servers", file, "--db", servers["one"].directory / "queue.db") as web:
        assert "All servers" not in web.get("/").text
        assert "operators have done is in the history" in web.get("/changes").text


def test_users_of_all_servers_log_in_once(tmp_path, file):
    users = tmp_path / "users"
    lines = [password_line("ann", "operator", "horse"), password_line("bob", "reader", "cow")]
    users.write_text("\n".join(lines) + "\n")
    with Web(None, "--servers", file, "--password-file", users) as web:
        for path in ("/", "/jobs", "/on/two/", "/targets"):
            assert web.get(path).status == 401, path
            assert web.get(path, **sign_in("ann:horse")).status == 200, path
        assert web.get("/on/two/", host="evil.example").status == 421
        fields: dict[str, object] = {"do": "kick", "ids": "1"}
        assert web.post("/on/two/change", fields, **sign_in("bob:cow")).status == 403
        kicked = web.post("/on/two/change", fields, **sign_in("ann:horse"))
        assert kicked.status in {200, 401}  # what it leads to is asked for without a login


def test_bodies_are_hidden_on_all_pages(file):
    with Web(None, "--servers", file, "--hide-bodies", "--read-only") as web:
        assert '"of"' not in web.get("/jobs").text + web.get("/on/two/job/1").text
        assert web.post("/on/two/change", {"do": "kick", "ids": "1"}).status == 403


def test_jobs_of_a_server_that_refuses_are_missed_and_told(tmp_path, servers):
    """A server whose setting operators has nobody shows its statistics alone."""
    with start_beanlite(tmp_path / "four", "--operators", "none") as four:
        places = {"one": place_of(servers["one"]), "four": place_of(four)}
        with Web(None, "--servers", written(tmp_path / "four.toml", places)) as web:
            one, refuses = rows(web.get("/"), "servers")
            assert (one.split()[1], refuses.split()[:4]) == ("serves", ["four", "answers", "in", "part"])
            shown = web.get("/jobs")
            assert "Without four: " in shown.text
            assert {row.split(":")[0] for row in rows(shown, "jobs")} == {"one"}
