"""Deleted jobs, where the history keeps bodies: they can be put again, and so are deleted without a question."""

import re

import pytest

from beanlite.beanstalk.client import Unreachable
from beanlite.console.changes import Result
from beanlite.console.filters import filter_by
from beanlite.console.live import Live
from beanlite.web import undeleting
from beanlite.web.undeleting import PutAgain
from tests.support.servers import start_beanlite
from tests.support.web import Web, ended
from tests.support.wire import Wire, until

FLAGS = ("--history-bodies", "--max-job-size", "1000000")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("web"), "--history", "1d", *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def web(server):
    """A page to which a proxy tells who asks."""
    with Web(f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db", "--user-header", "X-User") as web:
        web.headers = {"x-user": "ann"}
        yield web


def delete(web, ids, **more):
    return ended(web, web.post("/change", {"ids": ",".join(map(str, ids)), "do": "delete", **more}))


def put_again(web, page):
    assert "Put them again" in page.text
    (token,) = re.findall('name="undo" value="([^"]*)"', page.html)
    return ended(web, web.post("/undo", {"undo": token, "back": "/jobs"}))


def jobs(wire):
    return wire.request("list-jobs", limit=200)["jobs"]


FACTS = ("tube", "state", "pri", "ttr_s", "size")


def test_deleted_jobs_are_put_again_as_they_were(web, wire):
    wire.ask("use mail")
    ids = [
        wire.put(b"one", pri=9, ttr_s=30),
        wire.put(b"\xff\0" * 20_000, pri=8, delay_s=1000),
        wire.put(b"three", pri=7),
    ]
    wire.ask("watch mail")
    assert wire.ask(f"reserve-job {ids[2]}").startswith("RESERVED")
    assert wire.ask(f"bury {ids[2]} 5") == "BURIED"
    before = jobs(wire)
    page = delete(web, ids)
    assert "3 jobs" in page.text
    assert not jobs(wire)
    page = put_again(web, page)
    assert re.search("3 jobs( put again, as new jobs with new ids)?[.]", page.text)
    after = jobs(wire)
    assert [[job[key] for key in FACTS] for job in after] == [[job[key] for key in FACTS] for job in before]
    assert 990 < after[1]["left_s"] <= 1000
    assert not {job["id"] for job in after} & set(ids)
    bodies = [(wire.ask(f"peek {job['id']}"), wire.body)[1] for job in after]
    assert bodies == [b"one", b"\xff\0" * 20_000, b"three"]
    until(lambda: "for ann" in web.get(f"/job/{after[0]['id']}").text)


def test_many_deleted_jobs_are_put_again_in_parts(web, wire):
    ids = [wire.put(b"%d" % number + b"x" * 2000) for number in range(700)]
    page = put_again(web, delete(web, ids))
    assert "700 jobs" in page.text
    assert wire.stats()["current-jobs-ready"] == "700"
    first = jobs(wire)[0]["id"]
    assert wire.ask(f"peek {first}").startswith("FOUND")
    assert wire.body.startswith(b"0x")


def test_jobs_that_are_deleted_and_put_again_may_be_many(web, wire):
    for number in range(1200):
        wire.put(b"%d" % number)
    asked = web.post("/change", {"scope": "all", "q": "tube:default", "do": "delete"})
    assert "Delete 1,200 jobs?" in asked.text
    assert "1,200 jobs" in put_again(web, ended(web, web.post("/change", {**asked.fields}))).text
    buried = ended(web, web.post("/change", {"scope": "all", "q": "tube:default", "do": "bury"}))
    assert "1,200 jobs" in buried.text


def test_deletion_of_reserved_jobs_is_asked_for_and_can_be_put_again(web, wire):
    ids = [wire.put(b"mine"), wire.put(b"other")]
    assert wire.ask(f"reserve-job {ids[0]}").startswith("RESERVED")
    asked = web.post("/change", {"ids": ",".join(map(str, ids)), "do": "delete"})
    assert "Delete 2 jobs?" in asked.text
    assert "1 job can't be brought back: workers have them" in asked.text
    page = put_again(web, ended(web, web.post("/change", asked.fields)))
    assert "2 jobs" in page.text
    assert [job["state"] for job in jobs(wire)] == ["ready", "ready"]


def test_deletion_of_what_the_history_may_not_keep_is_asked_for(web, wire):
    ids = [wire.put(b"x" * (undeleting.BODY_MAX + 1))]
    asked = web.post("/change", {"ids": ids[0], "do": "delete"})
    assert "Delete 1 job?" in asked.text
    assert "how many the history keeps for long is not certain" in asked.text
    for number in range(undeleting.UNASKED_MAX + 1):
        wire.put(b"%d" % number)
    asked = web.post("/change", {"scope": "all", "pri_min": "0", "do": "delete"})
    assert f"Delete {undeleting.UNASKED_MAX + 2:,} jobs?" in asked.text


def test_job_that_is_gone_is_put_again_from_its_page(web, wire):
    wire.ask("use mail")
    job_id = wire.put(b"text", pri=7)
    delete(web, [job_id])
    page = web.get(f"/job/{job_id}")
    assert "Put again as a new job" in page.text
    form = web.get(f"/put?from={job_id}")
    assert f"Put job {job_id} again" in form.text
    assert "Its ttr is not known any more" in form.text
    assert re.search(r'name="tube" value="mail".*name="pri" value="7"', form.html, re.DOTALL)
    assert ">\ntext<" in form.html
    assert web.get("/put?from=999999").status == 409


def test_deletion_is_asked_for_where_no_body_is_kept(tmp_path, wire, server):
    with start_beanlite(tmp_path, "--history", "1d") as other, Wire(other.connect()) as there:
        with Web(f"127.0.0.1:{other.port}", "--db", tmp_path / "queue.db") as web:
            asked = web.post("/change", {"ids": there.put(b"job"), "do": "delete"})
            assert "What is deleted can't be brought back" in asked.text
            page = web.post("/change", {**asked.fields})
            assert "Put them again" not in page.text
            assert "Put again" not in web.get("/job/1").text
        with Web(f"127.0.0.1:{other.port}", "--db", server.directory / "queue.db") as web:
            asked = web.post("/change", {"ids": there.put(b"job"), "do": "delete"})
            assert "What is deleted can't be brought back" in asked.text
    with Web(f"127.0.0.1:{server.port}", "--db", tmp_path / "queue.db") as web:  # another file
        asked = web.post("/change", {"ids": wire.put(b"job"), "do": "delete"})
        assert "What is deleted can't be brought back" in asked.text


class Losing(Live):
    """A connection that is lost before the reply to the second put."""

    puts = 0

    def ask(self, word, request):
        reply = super().ask(word, request)
        self.puts += word == "put-jobs"
        if word == "put-jobs" and self.puts == 2:
            raise Unreachable("lost")
        return reply


def test_job_is_not_put_twice_if_a_reply_is_lost(server, wire):
    ids = [wire.put(b"%d" % number + b"x" * 400_000) for number in range(3)]
    again = PutAgain(server.directory / "queue.db")
    with Losing((server.host, server.port)) as live:
        for _ in again.change(live, {"do": "delete"}, filter_by(ids=ids), Result()):
            pass
        with pytest.raises(Unreachable, match=f"lost; it is not known whether these were put again: {ids[1]}"):
            for _ in again.undo(live, {}, Result()):
                pass
        outcome = Result()
        for _ in again.undo(live, {}, outcome):
            pass
    assert (outcome.done, outcome.skipped) == (1, 0)
    assert wire.stats()["current-jobs-ready"] == "3"


class LosingBurial(Live):
    """A connection that is lost, once, when jobs are to be buried."""

    is_lost = False

    def ask(self, word, request):
        if word == "change-jobs" and request["do"] == "bury" and not self.is_lost:
            self.is_lost = True
            raise Unreachable("lost")
        return super().ask(word, request)


def test_another_attempt_buries_what_was_put_again(server, wire):
    ids = [wire.put(b"one"), wire.put(b"two"), wire.put(b"three")]
    wire.request("change-jobs", do="bury", ids=ids[:2])
    again = PutAgain(server.directory / "queue.db")
    with LosingBurial((server.host, server.port)) as live:
        for _ in again.change(live, {"do": "delete"}, filter_by(ids=ids), Result()):
            pass
        with pytest.raises(Unreachable) as caught:
            for _ in again.undo(live, {}, Result()):
                pass
        buried = sorted(job["id"] for job in jobs(wire) if job["state"] == "delayed")
        new = f"{buried[0]}, {buried[1]}"
        assert str(caught.value).endswith(f"; these were put again, and run in 24 h unless they are buried: {new}")
        assert again.ids == ids[:2]
        outcome = Result()
        for _ in again.undo(live, {}, outcome):
            pass
    assert (outcome.done, outcome.skipped, again.ids) == (2, 0, [])
    assert sorted(job["state"] for job in jobs(wire)) == ["buried", "buried", "ready"]


def test_what_was_buried_may_be_delayed_if_a_reply_is_lost(server, wire):
    ids = [wire.put(b"%d" % number) for number in range(2)]
    wire.request("change-jobs", do="bury", ids=ids[:1])
    again = PutAgain(server.directory / "queue.db")
    with Losing((server.host, server.port)) as live:
        live.puts = 1
        for _ in again.change(live, {"do": "delete"}, filter_by(ids=ids), Result()):
            pass
        with pytest.raises(Unreachable) as caught:
            for _ in again.undo(live, {}, Result()):
                pass
    told = f"it is not known whether these were put again: {ids[0]}, {ids[1]}"
    assert str(caught.value) == f"lost; {told}; what was buried of them would run in 24 h: bury it"
    assert (again.ids, again.label) == ([], "")  # another attempt would have nothing to put


def test_job_that_was_put_meanwhile_with_the_same_body_is_left_alone(web, wire):
    wire.request("set-policy", pattern="default", set={"unique": "waiting"})
    job_id = wire.put(b"job")
    web.post("/change", {"ids": job_id, "do": "bury"})
    page = delete(web, [job_id])
    other = wire.put(b"job", delay_s=1000)
    until(lambda: not wire.request("list-jobs", ids=[other], newer_s=0.5)["jobs"])
    said = put_again(web, page).text
    assert "0 jobs put again" in said
    assert "the same body is there already of 1, and the tube takes each body once" in said
    assert [(job["id"], job["state"]) for job in jobs(wire)] == [(other, "delayed")]
    wire.request("set-policy", pattern="default", unset="all")


def test_deletion_of_very_many_jobs_is_not_remembered(server, wire, monkeypatch):
    monkeypatch.setattr(undeleting, "JOBS_MAX", 250)
    for number in range(450):
        wire.put(b"%d" % number)
    again, outcome = PutAgain(server.directory / "queue.db"), Result()
    with Live((server.host, server.port)) as live:
        for _ in again.change(live, {"do": "delete"}, filter_by(tube="default"), outcome):
            pass
    assert (outcome.done, outcome.skipped, again.most, again.label) == (450, 0, 0, "")


def test_failure_amid_putting_again_keeps_the_rest(tmp_path):
    with (
        start_beanlite(tmp_path, *FLAGS) as server,
        Wire(server.connect()) as wire,
        Web(f"127.0.0.1:{server.port}", "--db", tmp_path / "queue.db") as web,
    ):
        page = delete(web, [wire.put(b"x" * 400_000) for _ in range(4)])
        wire.request("set-policy", pattern="default", set={"max_jobs": "2"})
        (token,) = re.findall('name="undo" value="([^"]*)"', page.html)
        page = ended(web, web.post("/undo", {"undo": token, "back": "/jobs"}))
        assert "refused put-jobs" in page.text
        wire.request("set-policy", pattern="default", unset="all")
        assert "2 jobs" in put_again(web, page).text
        assert wire.stats()["current-jobs-ready"] == "4"
