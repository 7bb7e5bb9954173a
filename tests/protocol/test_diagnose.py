"""The command that tells what is wrong."""

import pytest

from beanlite.core import diagnosis, like
from beanlite.core.access import READER
from beanlite.protocol.operators import diagnosing
from tests.support.diagnosed import Diagnosed
from tests.support.operators import ask, told


@pytest.fixture
def core():
    return Diagnosed()


def test_all_that_is_told_of_a_finding(core, operator):
    assert operator.ask("diagnose") == {"findings": [], "tubes": 1, "jobs": 0}
    core.fill(b"mail", 3)
    core.fill(b"news", 1)
    core.live(20)
    assert operator.ask("diagnose") == {
        "findings": [
            {
                "kind": "nobody consumes", "severity": "warning", "tubes": 2, "jobs": 4, "seconds": 20,
                "worst": [
                    {"tube": "mail", "severity": "warning", "jobs": 3, "seconds": 20, "job": None},
                    {"tube": "news", "severity": "warning", "jobs": 1, "seconds": 20, "job": None},
                ],
                "text": "nobody consumes mail and news: 4 jobs ready, the next one for 20 s",
                "do": "start workers that watch them",
                "command": "beanlite clients",
            }
        ],
        "tubes": 3,
        "jobs": 4,
    }  # fmt: skip


def test_all_that_is_told_of_a_tube(core, operator, monkeypatch):
    monkeypatch.setattr(diagnosing, "CLIENT_FACTS_MAX", 2)
    core.fill(b"mail", 10, ttr_s=600)
    core.fill(b"other", 1, ttr_s=600)
    for _ in range(5):
        worker = core.worker()
        core.send(worker, b"reserve\r\n")
        core.close(worker)
    workers = [core.worker() for _ in range(3)]
    core.send(workers[0], b"reserve\r\n")
    core.live(60)
    core.send(workers[1], b"reserve\r\nreserve\r\n")
    core.send(workers[2], b"reserve-job 11\r\n")
    core.live(62)
    reply = operator.ask("diagnose", tube="mail")
    assert [finding["kind"] for finding in reply["findings"]] == ["hung", "crash loop"]
    assert (reply["tubes"], reply["jobs"]) == (1, 10)
    facts = {key: reply["tube"][key] for key in ("name", "ready", "reserved", "watching", "holders", "moved_s")}
    assert facts == {"name": "mail", "ready": 7, "reserved": 3, "watching": 3, "holders": 2, "moved_s": 61}
    assert [reply["tube"][key] for key in ("coming_per_s", "deleted_per_s", "empty_in_s")] == [None, None, None]
    holder = {"address": workers[0].client.peer.address, "number": workers[0].client.peer.number, "name": None}
    assert reply["tube"]["oldest_hold"] == {"id": 1, "seconds": 122, "holder": holder}
    (crash,) = reply["tube"]["crashes"]
    assert (crash["id"], crash["losses"], crash["last_s"]) == (1, 5, 122)


def test_tube_in_which_nothing_happens_is_told_of_too(core, operator):
    core.send(core.client(), b"use mail\r\n")
    tube = operator.ask("diagnose", tube="mail")["tube"]
    facts = ("coming_per_s", "deleted_per_s", "empty_in_s", "hold_s", "moved_s", "oldest_hold")
    assert {tube[key] for key in facts} == {None}
    assert (tube["holders"], tube["crashes"]) == (0, [])
    assert operator.ask("diagnose", tube="nowhere") == {"findings": [], "tubes": 0, "jobs": 0, "tube": None}


def test_tubes_are_examined_in_slices_so_that_others_are_served(core, operator, monkeypatch):
    monkeypatch.setattr(diagnosis, "SLICE", 100)
    for number in range(100):
        core.fill(b"t%d" % number, 1)
    core.live(20)
    operator.session.receive(b"diagnose 2\r\n{}\r\n", core.now_ns)
    slices = 0
    while operator.session.blocked:
        operator.session.resume(core.now_ns)
        slices += 1
    reply = told(operator.session.take_replies())
    assert slices == 9
    assert (reply["tubes"], reply["findings"][0]["tubes"]) == (101, 100)


def test_few_tubes_are_tried_with_a_long_pattern_at_once(core, operator, monkeypatch):
    monkeypatch.setattr(like, "COST_MAX", 5 * 50 * 50)
    for number in range(40):
        core.fill(b"%02d" % number + b"a" * 48, 1)
    core.live(20)

    def slices(pattern):
        request = b'{"like": "%b"}' % pattern
        operator.session.receive(b"diagnose %d\r\n%b\r\n" % (len(request), request), core.now_ns)
        turns = 0
        while operator.session.blocked:
            operator.session.resume(core.now_ns)
            turns += 1
        assert told(operator.session.take_replies())["tubes"] == 4
        return turns

    assert (slices(b"*7aa*"), slices(b"*7" + b"a" * 47 + b"*")) == (1, 8)


def test_pattern_narrows_the_tubes_down(core, operator):
    for tube in (b"mail.a", b"mail.b", b"news"):
        core.fill(tube, 1)
    core.live(20)
    reply = operator.ask("diagnose", like="mail.?")
    assert (reply["tubes"], reply["findings"][0]["tubes"]) == (2, 2)


def test_client_with_limited_rights_hears_of_its_tubes_only(core):
    for tube in (b"mail", b"news"):
        core.fill(tube, 1)
        for _ in range(5):
            worker = core.worker(tube)
            core.send(worker, b"reserve\r\n")
            core.close(worker)
    core.live(20)
    core.engine.admission.draining = True
    session = core.limited((READER, b"mail"))
    reply = told(ask(core, session, "diagnose"))
    assert [(finding["kind"], finding["tubes"]) for finding in reply["findings"]] == [
        ("crash loop", 1), ("nobody consumes", 1), ("draining", 0),
    ]  # fmt: skip
    assert "news" not in str(reply)
    assert (reply["tubes"], reply["jobs"]) == (1, 1)
    assert told(ask(core, session, "diagnose", tube="mail"))["tube"]["name"] == "mail"
    assert ask(core, session, "diagnose", tube="news") == b"UNAUTHORIZED\r\n"


def test_backup_that_failed_after_the_last_one_is_told(core, operator, monkeypatch):
    facts = core.service.facts()
    for succeeded_at, failed_at, kinds in ((5, 0, []), (5, 4, []), (5, 6, ["backup"]), (0, 6, ["backup"])):
        latest = facts._replace(backup_succeeded_at=succeeded_at, backup_failed_at=failed_at)
        monkeypatch.setattr(core.service, "facts", lambda latest=latest: latest)
        assert [finding["kind"] for finding in operator.ask("diagnose")["findings"]] == kinds
