"""The incidents of a queue, played with a real server and real clients, and told everywhere alike.

A minute of the server's time is a second or two.
"""

import signal
from contextlib import ExitStack

import pytest

from beanlite.cli import main
from tests.support.fast_time import start_fast
from tests.support.servers import free_port
from tests.support.surfaces import Surfaces
from tests.support.wire import Wire, put_bytes, until


class Scene(Surfaces):
    """A server for which time runs fast, and its clients."""

    def __init__(self, folder, capsys, stack):
        health = f"127.0.0.1:{free_port()}"
        super().__init__(stack.enter_context(start_fast(folder, "--health", health)), health, capsys, stack)

    def client(self, tube=None):
        """Connect a client; with a tube, one that uses and watches it alone."""
        wire = self.stack.enter_context(Wire(self.server.connect()))
        if tube is not None:
            wire.send(f"use {tube}\r\nwatch {tube}\r\nignore default\r\n".encode())
            assert [wire.reply() for _ in range(3)] == [f"USING {tube}", "WATCHING 2", "WATCHING 1"]
        return wire

    def fill(self, tube, jobs, **how):
        with Wire(self.server.connect()) as wire:
            wire.ask(f"use {tube}")
            for _ in range(jobs):
                wire.put(b"x", **how)


@pytest.fixture
def scene(tmp_path, capsys):
    with ExitStack() as stack:
        yield Scene(tmp_path, capsys, stack)


def test_nothing_is_wrong_and_what_was_looked_at_is_told(scene, capsys):
    assert scene.why() == (0, {})
    assert main(["why", "--connect", scene.connect]) == 0
    told = capsys.readouterr().out
    assert told.startswith("nothing is wrong: 1 tube with 0 jobs; looked for workers that hang, ")
    assert told.endswith(", disk and memory; no scheduled backup was ever made\n")


def test_worker_that_hangs(scene, capsys):
    scene.fill("mail", 6, ttr_s=3600)
    worker = scene.client("mail")
    assert worker.ask("reserve") == "RESERVED 1 1"
    assert worker.ask("delete 1") == "DELETED"  # so that it is known how long jobs take
    assert worker.ask("reserve") == "RESERVED 2 1"
    hung = scene.told("hung")
    assert (hung["jobs"], hung["worst"][0]["tube"]) == (4, "mail")
    assert main(["why", "mail", "--connect", scene.connect]) == 1
    told = capsys.readouterr().out
    assert "urgent:  mail stands still: 4 jobs ready, 1 reserved, and for " in told
    assert f"beanlite jobs --tube mail --state reserved --connect {scene.connect}" in told
    assert (
        "clients  1 client watches it: 1 has a job of it, none waits for one, none does neither; 1 client uses it"
        in told
    )
    assert "reserved 1 job by 1 client, for longest job 2 for " in told
    assert worker.ask("delete 2") == "DELETED"
    assert "hung" not in scene.why()[1]


def test_worker_that_dies_again_and_again(scene, capsys):
    scene.fill("mail", 2, ttr_s=3600)
    for _ in range(5):
        with Wire(scene.server.connect()) as worker:
            worker.ask("watch mail")
            assert worker.ask("reserve") == "RESERVED 1 1"
    loop = scene.told("crash loop")
    assert (loop["jobs"], loop["worst"][0]["job"], loop["severity"]) == (1, 1, "urgent")
    assert main(["why", "mail", "--connect", scene.connect]) == 1
    assert "crashes  job 1: 5 clients left that had it, the last " in capsys.readouterr().out
    assert scene.client().request("list-tube-stats", names=["mail"])["tubes"][0]["client_gone"] == 5
    scene.client().ask("delete 1")
    assert "crash loop" not in scene.why()[1]


def test_tubes_that_nobody_consumes(scene):
    for number in range(15):
        scene.fill(f"t{number}", 2)
    until(lambda: scene.why()[1].get("nobody consumes", {}).get("tubes") == 15)
    scene.told("nobody consumes")
    assert scene.why("t1?")[1]["nobody consumes"]["tubes"] == 5


def test_tube_that_is_paused_with_jobs_ready(scene, capsys):
    scene.fill("mail", 2)
    scene.client().ask("pause-tube mail 3600")
    assert scene.told("paused")["command"] == "beanlite pause mail 0"
    assert main(["pause", "mail", "0", "--connect", scene.connect]) == 0
    capsys.readouterr()
    until(lambda: "paused" not in scene.why()[1])


def test_tube_that_grows(scene):
    worker, producer = scene.client("mail"), scene.client("mail")

    def live():
        producer.send(put_bytes(b"x") * 20)
        assert all(producer.reply().startswith("INSERTED") for _ in range(20))
        job_id = worker.ask("reserve").split()[1]
        assert worker.ask(f"delete {job_id}") == "DELETED"
        return "growing" in scene.why()[1]

    until(live)
    growing = scene.why()[1]["growing"]
    assert growing["text"].startswith("mail grows: ")
    assert growing["text"].endswith("; never empty at the rate of the last minutes")


def test_storm_that_is_due(scene):
    for wave in range(5):  # one would be over before a slow machine has looked everywhere
        scene.fill("mail", 1200, delay_s=290 * (wave + 1))
    storm = scene.told("storm due")
    assert 1000 <= storm["jobs"] <= 2400
    assert storm["worst"][0]["tube"] == "mail"


def test_jobs_that_are_buried(scene):
    scene.fill("mail", 12)
    worker = scene.client("mail")
    for _ in range(12):
        job_id = worker.ask("reserve").split()[1]
        worker.ask(f"bury {job_id} 0")
    assert scene.told("buried")["jobs"] == 12


def test_policy_that_refuses_and_holds_back(scene):
    operator = scene.client()
    operator.request("set-policy", pattern="mail", set={"max_jobs": "3", "max_reserved": "1"})
    scene.fill("mail", 3, ttr_s=3600)
    worker = scene.client("mail")
    worker.ask("reserve")
    assert worker.ask("put 0 0 60 1", b"x") == "OUT_OF_MEMORY"
    assert scene.told("refused")["jobs"] == 1
    assert scene.told("shut")["text"].startswith("2 jobs of mail are held back by max_reserved")


def test_server_that_drains(scene):
    scene.server.signal(signal.SIGUSR1)
    assert scene.told("draining")["tubes"] == 0


def test_tube_that_does_not_exist(scene, capsys):
    scene.fill("mail", 1)
    assert main(["why", "mial", "--connect", scene.connect]) == 1
    assert "there is no tube mial" in (said := capsys.readouterr().err)
    assert "did you mean mail?" in said
