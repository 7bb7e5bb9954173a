"""What people see and may do through the page where the server has rules: what these give to each, and no more."""

import re
import signal
import time

import pytest

from beanlite.web import questions
from beanlite.web.safety import password_line
from tests.support.access import allow
from tests.support.servers import start_beanlite
from tests.support.web import Web, sign_in
from tests.support.wire import Wire, until

ADDRESS = "net:127.0.0.1"
EVERYTHING = allow(ADDRESS, ["*"], "operator")
RULES = (
    EVERYTHING
    + allow("person:ann", ["mail"], "operator")
    + allow("person:bob", ["sms"], "operator")
    + allow("person:root", ["*"], "operator")
)


class Queue:
    """A server with rules, and jobs in two tubes."""

    def __init__(self, server, rules):
        self.server = server
        self._rules = rules
        self.connect = f"127.0.0.1:{server.port}"
        self.db = server.directory / "queue.db"

    def reload(self, text):
        self._rules.write_text(text)
        before = self.server.log_text().count("reloaded")
        self.server.signal(signal.SIGHUP)
        until(lambda: self.server.log_text().count("reloaded") > before)

    def jobs(self):
        """Return the tube of each job."""
        with Wire(self.server.connect()) as wire:
            return {job["id"]: job["tube"] for job in wire.request("list-jobs")["jobs"]}


@pytest.fixture
def queue(tmp_path):
    rules = tmp_path / "access.toml"
    rules.write_text(RULES)
    with start_beanlite(tmp_path, "--history", "1d", "--access", str(rules)) as server:
        with Wire(server.connect()) as wire:
            for tube in ("mail", "sms"):
                wire.ask(f"use {tube}")
                assert wire.put(f"text of {tube}".encode())
        yield Queue(server, rules)


@pytest.fixture
def web(queue):
    """A page to which a proxy tells who asks."""
    with Web(queue.connect, "--user-header", "X-User", "--db", queue.db) as web:
        yield web


def of(web, person):
    """Return the page as it is for a person."""
    web.headers = {"x-user": person}
    return web


ALL_PAGES = ("/", "/jobs", "/clients", "/policies", "/tube/mail", "/tube/sms", "/job/1", "/job/2")


def test_person_sees_its_own_tubes_alone(web):
    for _ in range(2):  # from the server, and what is remembered
        for person, own, other in (("ann", "mail", "sms"), ("bob", "sms", "mail")):
            pages = {path: of(web, person).get(path) for path in ALL_PAGES}
            assert own in pages["/"].text
            assert f"text of {own}" in pages["/jobs"].text
            for path, page in pages.items():
                assert other not in page.text.replace(path, ""), (person, path)
            number = {"mail": 1, "sms": 2}
            assert pages[f"/job/{number[own]}"].status == 200
            assert pages[f"/job/{number[other]}"].status == 404
            assert pages[f"/tube/{other}"].status == 403


def test_person_without_a_rule_is_told_so(web):
    page = of(web, "eve").get("/")
    assert page.status == 403
    assert "Not allowed" in page.text
    assert f"No rule of the server at 127.0.0.1:{page.text.partition('127.0.0.1:')[2].split()[0]} allows" in page.text
    assert "to person:eve" in page.text
    assert of(web, "eve").get("/journal").status == 200  # what everybody may ask


def test_person_changes_its_own_jobs_alone(web, queue):
    asked = of(web, "ann").post("/change", {"scope": "ticked", "id": [1, 2], "do": "delete"})
    assert "Delete 1 job?" in asked.text
    assert "1 job deleted" in of(web, "ann").post("/change", asked.fields).text
    assert queue.jobs() == {2: "sms"}
    page = of(web, "ann").post("/put", {"tube": "sms", "body": "x"})
    assert "allows put-jobs to person:ann" in page.text
    policy = {"pattern": "sms", "key": "ttl", "value": "1d"}
    for path, fields, status in (("/pause", {"tube": "sms", "for": "9s"}, 409), ("/policy", policy, 403)):
        assert of(web, "ann").post(path, fields).status == status
        assert of(web, "bob").post(path, fields).status == 200
    assert queue.jobs() == {2: "sms"}


def forms_of(page):
    """Where the forms of a page that change something lead."""
    return set(re.findall('<form method="post" action="([^"]*)"', page.html))


@pytest.fixture
def seen(queue):
    """A page for ann, who may look at sms as well, and for others; each tube has a policy and a schedule."""
    more = allow("person:ann", ["sms"], "reader") + allow("person:carl", ["*"], "reader")
    queue.reload(RULES + more + allow("person:dora", ["mail"], "producer") + allow("person:dora", ["mail"], "reader"))
    with Wire(queue.server.connect()) as wire:
        for tube in ("mail", "sms"):
            wire.request("set-policy", pattern=tube, set={"ttl": "9d"})
            wire.request("set-schedule", name=f"for-{tube}", when="0 3 * * *", tube=tube, body="x")
    with Web(queue.connect, "--user-header", "X-User", "--db", queue.db) as web:
        yield web


def test_page_offers_what_a_person_may_change_and_nothing_else(seen):
    ann = of(seen, "ann")
    assert forms_of(ann.get("/tube/mail")) == {"/pause", "/policy", "/change"}
    page = ann.get("/tube/sms")
    assert forms_of(page) == set()
    assert "no rule of the server gives you the role operator here" in page.text
    assert "/put" not in page.html.partition("<main")[2]
    assert forms_of(ann.get("/job/1")) == {"/change"}
    assert forms_of(ann.get("/job/2")) == set()
    assert "no rule of the server gives you the role operator on sms" in ann.get("/job/2").text
    page = ann.get("/jobs")
    assert re.findall('name="id" value="(.)"', page.html) == ["1"]
    assert "You may not change jobs of sms" in page.html
    page = ann.get("/policies")
    assert page.html.count('value="run"') == page.html.count(">Unset<") == 1
    assert page.text.count("not yours") == 2


def test_reader_and_producer_see_no_button_that_is_not_theirs(seen):
    for path in ALL_PAGES:
        assert forms_of(of(seen, "carl").get(path)) == forms_of(of(seen, "dora").get(path)) == set(), path
    page = of(seen, "carl").get("/tube/mail")
    assert "read only" in page.text
    assert 'href="/put' not in page.html
    page = of(seen, "dora").get("/tube/mail")
    assert "read only" not in page.text
    assert page.html.count('href="/put') == 2
    assert forms_of(of(seen, "root").get("/tube/sms")) == {"/pause", "/policy", "/change"}


def test_progress_of_a_change_is_for_its_person(queue):
    first = int(time.time()) + 1  # the number of a page's first change
    with Web(queue.connect, "--user-header", "X-User") as web:
        last = int(time.time()) + 1
        asked = of(web, "ann").post("/change", {"scope": "ticked", "id": [1], "do": "bury"})
        web.post("/change", asked.fields)
        (path,) = [path for path in map("/change/{}".format, range(first, last + 1)) if web.get(path).status == 200]
        assert "job 1" in web.get(path).text
        assert of(web, "bob").get(path).status == 409


def test_history_of_a_job_leaves_out_other_tubes(web, queue):
    with Wire(queue.server.connect()) as wire:
        wire.request("change-jobs", do="move", ids=[1], to="sms")
        wire.request("change-jobs", do="delete", ids=[1])
    until(lambda: "delete" in of(web, "root").get("/job/1").text)
    assert "mail" in of(web, "root").get("/job/1").text
    page = of(web, "bob").get("/job/1")
    assert "delete" in page.text
    assert "mail" not in page.text
    assert of(web, "ann").get("/job/1").text.count("sms") == 0


def test_change_of_the_rules_counts_at_once(web, queue):
    assert of(web, "ann").get("/job/1").status == 200
    queue.reload(EVERYTHING + allow("person:ann", ["sms"], "operator"))
    assert of(web, "ann").get("/job/1").status == 404
    assert of(web, "ann").get("/job/2").status == 200
    queue.reload(allow(ADDRESS, ["*"], "reader"))
    page = of(web, "ann").get("/job/2")
    assert page.status == 403
    assert "this page may not act for others; give it the role operator on all tubes" in page.text


def test_what_is_done_for_a_person_has_its_name(web, queue):
    of(web, "ann").post("/put", {"tube": "mail", "body": "x"})
    until(lambda: "for ann" in of(web, "ann").get("/job/3").text)
    of(web, "ann").post("/policy", {"pattern": "mail", "key": "ttl", "value": "1d"})
    with Wire(queue.server.connect()) as wire:
        assert wire.request("list-policies")["policies"][0]["changed_by"] == "ann"
        assert any(client["address"].endswith(" ann") for client in wire.request("list-clients")["clients"])


def test_role_in_the_file_of_passwords_is_an_upper_bound(queue, tmp_path):
    users = tmp_path / "users"
    users.write_text(f"{password_line('ann', 'reader', 'a')}\n{password_line('bob', 'operator', 'b')}\n")
    with Web(queue.connect, "--password-file", users, user="ann:a") as web:
        assert "text of mail" in web.get("/jobs").text
        assert web.post("/put", {"tube": "mail", "body": "x"}).status == 403
        web.headers = sign_in("bob:b")
        assert "text of mail" not in web.get("/jobs").text
        assert "The job was put" in web.post("/put", {"tube": "sms", "body": "x"}).text


def test_backup_is_for_those_that_may_everything(queue, tmp_path):
    folder, settings = tmp_path / "backups", tmp_path / "beanlite.toml"
    folder.mkdir()
    settings.write_text(f'db = "{queue.db}"\nbackup_dir = "{folder}"\nbackup_every = "1d"\n')
    with Web(queue.connect, "--user-header", "X-User", "--config", settings) as web:
        assert "Back up now" not in of(web, "ann").get("/backups").text
        assert "Back up now" in of(web, "root").get("/backups").text
        page = of(web, "ann").post("/backups", {})
        assert page.status == 403
        assert "A backup takes the role operator on all tubes" in page.text
        assert not list(folder.iterdir())
        of(web, "root").post("/backups", {})
        until(lambda: list(folder.glob("*.db")))


def test_changes_of_others_are_not_shown_while_rights_are_not_known(web, queue):
    of(web, "root").post("/change", {"ids": "2", "do": "bury"})
    assert "buried: job 2" in web.get("/changes").text
    assert "read only" in of(web, "carl").get("/changes").text
    queue.server.kill()
    until(lambda: "read only" not in web.get("/changes").text)
    assert "buried: job 2" not in web.get("/changes").text


def test_connections_are_few_however_many_people_there_are(web, queue):
    for number in range(12):
        of(web, f"person{number}").get("/jobs")
    with Wire(queue.server.connect()) as wire:
        until(lambda: int(wire.stats()["current-connections"]) <= 1 + questions.CONNECTIONS)
