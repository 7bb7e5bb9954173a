"""What is not found to be wrong with queues that are as they should be, or only when it is."""

import pytest

from beanlite.core.job import SECOND_NS
from tests.support.core import stored_job
from tests.support.diagnosed import Diagnosed
from tests.support.operators import Operator
from tests.support.ruled_core import policy


@pytest.fixture
def core():
    return Diagnosed()


@pytest.fixture
def operator(core):
    return Operator(core)


def test_touches_show_that_the_worker_does_not_hang(core):
    worker = core.worker()
    core.fill(b"mail", 3, ttr_s=100)
    core.send(worker, b"reserve\r\n")
    for _ in range(10):
        core.live(40)
        core.send(worker, b"touch 1\r\n")
        assert core.findings() == {}
    core.live(62)
    assert core.findings()["hung"].seconds == 62


def test_first_long_job_is_no_urgent_finding(core):
    worker = core.worker()
    core.fill(b"mail", 3, ttr_s=3600)
    core.send(worker, b"reserve\r\n")
    core.live(70)
    assert core.findings()["hung"].severity == "warning"
    core.send(worker, b"delete 1\r\n")
    core.send(worker, b"reserve\r\n")
    core.live(220)
    assert core.findings()["hung"].severity == "urgent"


def test_how_long_jobs_take_is_known_after_an_idle_hour(core):
    worker = core.worker()
    core.fill(b"mail", 1, ttr_s=3600)
    core.send(worker, b"reserve\r\n")
    core.live(100)
    core.send(worker, b"delete 1\r\n")
    core.live(3600)
    assert len(core.engine.ledger.pulses) == 0
    core.fill(b"mail", 2, ttr_s=3600)
    core.send(worker, b"reserve\r\n")
    core.live(290)
    assert core.findings() == {}
    core.live(20)
    assert core.findings()["hung"].severity == "urgent"


def test_worker_that_reconnects_for_each_job_consumes(core):
    core.fill(b"mail", 700)

    def work():
        worker = core.worker()
        core.work(worker)
        core.close(worker)

    core.live(650, each=work)
    assert core.findings() == {}
    core.live(11)
    assert core.findings()["nobody consumes"].severity == "warning"
    core.live(600)
    assert core.findings()["nobody consumes"].severity == "urgent"


def test_workers_have_time_to_return_after_a_start(core):
    core.engine.restore([stored_job(1, 0, tube=b"mail", since_ns=core.now_ns - 3600 * SECOND_NS)], core.now_ns)
    core.live(9)
    assert core.findings() == {}
    core.live(2)
    assert core.findings()["nobody consumes"].severity == "warning"


def test_long_jobs_are_given_time_by_what_jobs_took_before(core):
    worker = core.worker()
    core.fill(b"mail", 10, ttr_s=3600)
    for _ in range(3):
        core.send(worker, b"reserve\r\n")
        core.live(100)
        job_id = min(job.id for job in core.engine.jobs.newest.values() if job.holder)
        core.send(worker, b"delete %d\r\n" % job_id)
    core.send(worker, b"reserve\r\n")
    core.live(290)
    assert "hung" not in core.findings()
    core.live(20)
    assert core.findings()["hung"].seconds > 300


def test_burst_that_is_worked_off_is_no_growth(core):
    worker = core.worker()
    core.live(300, each=lambda: (core.fill(b"mail", 2), core.work(worker, 2)))
    core.fill(b"mail", 1000)
    for _ in range(100):
        core.live(1, each=lambda: core.work(worker, 10))
        for finding in core.findings().values():
            assert finding.severity == "note"
            assert finding.text.startswith("mail has grown: ")
            assert "0 a minute come and 600 are deleted; empty in " in finding.text


def test_batch_of_half_an_hour_is_no_growth(core):
    worker = core.worker()
    core.fill(b"mail", 2000)
    for _ in range(300):
        core.live(1, each=lambda: core.work(worker))
        assert all(finding.severity == "note" for finding in core.findings().values())


def test_restarts_of_the_server_are_no_crash_loop(core):
    stored = stored_job(1, 0, tube=b"mail", state="reserved", place=5, reserves=4, forgiven=3)
    core.engine.restore([stored], core.now_ns)
    worker = core.worker()
    core.send(worker, b"reserve\r\n")
    core.close(worker)
    assert core.findings() == {}


def test_worker_kept_busy_by_another_tube_does_not_hang(core):
    worker = core.worker()
    core.send(worker, b"watch low\r\n")
    core.fill(b"low", 5, pri=9)
    core.live(300, each=lambda: (core.fill(b"mail", 2), core.work(worker, 2)))
    assert core.findings() == {}
    core.fill(b"mail", 5, ttr_s=3600)
    core.send(worker, b"reserve\r\n")
    core.live(62)
    assert core.findings()["hung"].tubes == 2


# -- buried jobs


def test_burials_are_told_for_a_day_also_if_nothing_follows(core):
    worker = core.worker()
    core.live(400, each=lambda: (core.fill(b"mail", 1), core.work(worker)))
    core.live(20, each=lambda: (core.fill(b"mail", 1), core.work(worker, 1, b"bury %d 0")))
    buried = core.findings()["buried"]
    assert buried.jobs == 20
    assert 20 < buried.seconds < 420
    core.now_ns += 23 * 3600 * SECOND_NS
    core.live(10)
    assert "buried" in core.findings()
    core.now_ns += 3600 * SECOND_NS
    assert list(core.findings()) == ["left buried"]
    core.live(10)
    assert len(core.engine.ledger.pulses) == 0


# -- memory


def test_bodies_that_can_leave_memory_do_not_fill_it(core):
    most = 16 << 20
    core.engine.bound_memory(most, most, fetches=True)
    core.engine.memory.body_bytes = most * 3 // 4
    assert core.engine.memory.used_bytes > 0.93 * most
    assert core.findings() == {}
    core.engine.bound_memory(most, most, fetches=False)
    said = "93 % of the memory that may be used is needed; puts are refused when all of it is"
    assert core.findings()["memory"].text == said


# -- tubes to which policies move jobs


@pytest.mark.parametrize("way", ["then", "expired"])
def test_jobs_that_policies_set_aside_are_a_note(core, way):
    if way == "then":
        policy(core, b"mail", max_tries=1, then="move:mail-dead")
    else:
        policy(core, b"mail", ttl="1h", expired="move:mail-dead")
    core.fill(b"other", 99)
    for number in range(5):
        core.fill(b"t%d" % number, 9)
    core.fill(b"mail", 2)
    worker = core.worker()
    core.live(3600 if way == "expired" else 1)
    core.work(worker, 2, b"release %d 0 0")
    core.live(700)
    findings = core.findings()
    assert findings["nobody consumes"].tubes == 6
    note = findings["set aside"]
    assert (note.severity, note.tubes, note.jobs) == ("note", 1, 2)
    assert note.text.startswith("2 jobs set aside by policies are in mail-dead, the next one for 11 min")
    assert note.command == "beanlite jobs --tube mail-dead"
    core.worker(b"mail-dead")
    assert "set aside" not in core.findings()


# -- jobs that do not kill their workers any more


@pytest.mark.parametrize("how", ["kick", "move", "max_tries"])
def test_crash_loop_is_over_for_a_job_whose_tries_begin_anew(core, operator, how):
    if how == "max_tries":
        policy(core, b"mail", max_tries=5, then="move:other")
    core.fill(b"mail", 1)
    for _ in range(5):
        worker = core.worker()
        core.send(worker, b"reserve\r\n")
        core.close(worker)
    if how != "max_tries":
        assert core.findings()["crash loop"].worst[0].job == 1
        assert operator.ask("diagnose", tube="mail")["tube"]["crashes"][0]["losses"] == 5
    if how == "kick":
        operator.ask("change-jobs", ids=[1], do="bury")
        operator.ask("change-jobs", ids=[1], do="kick")
    elif how == "move":
        operator.ask("change-jobs", ids=[1], do="move", to="other")
    assert "crash loop" not in core.findings()
    tube = "mail" if how == "kick" else "other"
    assert (core.engine.jobs[1].state.value, core.engine.jobs[1].tube.name.decode()) == ("ready", tube)
    assert operator.ask("diagnose", tube=tube)["tube"]["crashes"] == []


def test_client_that_has_the_job_has_not_left_yet(core):
    core.fill(b"mail", 1)
    for _ in range(5):
        worker = core.worker()
        core.send(worker, b"reserve\r\n")
        core.close(worker)
    core.send(core.worker(), b"reserve\r\n")
    assert core.findings()["crash loop"].text.startswith("job 1 of mail was lost by 5 clients")


# -- since when jobs could have been reserved


@pytest.fixture
def busy(core):
    """A worker of mail and report that has the first report, which takes long, and has been at mail before."""
    worker = core.worker()
    core.send(worker, b"watch report\r\n")
    core.fill(b"mail", 1)
    core.work(worker)
    core.fill(b"report", 1, ttr_s=3600)
    core.send(worker, b"reserve\r\n")
    core.live(63)
    return worker


@pytest.mark.usefixtures("busy")
def test_time_in_which_a_tube_was_empty_is_no_stillness(core):
    core.fill(b"mail", 1)
    assert core.findings() == {}
    core.live(60)
    assert core.findings() == {}
    core.live(1)
    hung = core.findings()["hung"]
    assert (hung.severity, hung.seconds) == ("warning", 60)  # it is not known how long reports take


def test_worker_with_a_long_job_of_another_tube_does_not_hang(core, busy):
    core.send(busy, b"delete 2\r\n")
    core.fill(b"report", 1, ttr_s=3600)
    core.send(busy, b"reserve\r\n")
    core.fill(b"mail", 1)
    core.live(3 * 63 - 1)
    assert core.findings() == {}
    core.live(2)
    assert core.findings()["hung"].severity == "urgent"


def test_flushed_jobs_do_not_shorten_the_time_that_jobs_take(core, operator, busy):
    core.send(busy, b"delete 2\r\n")
    flushed = core.fill(b"report", 100, ttr_s=3600)
    core.live(2)
    operator.change("delete", ids=flushed)
    core.fill(b"report", 2, ttr_s=3600)
    core.send(busy, b"reserve\r\n")
    core.live(150)
    assert core.findings() == {}


def test_time_in_another_tube_is_no_stillness(core, operator):
    core.worker(b"right")
    core.fill(b"wrong", 9)
    core.live(200)
    operator.change("move", tube="wrong", to="right")
    assert core.findings() == {}
    core.live(60)
    assert core.findings() == {}
    core.live(2)
    assert core.findings()["hung"].seconds == 61


def test_time_before_a_policy_moved_the_jobs_is_no_stillness(core):
    policy(core, b"mail", ttl="10m", expired="move:old")
    worker = core.worker(b"old")
    core.fill(b"mail", 9)
    core.live(400)
    core.fill(b"old", 1)
    core.work(worker)
    core.live(199)
    core.wait(2)
    assert len(core.engine.tubes[b"old"].ready) == 9
    assert core.findings() == {}
    core.live(58)
    assert core.findings() == {}


@pytest.mark.parametrize("why", ["pause", "rate"])
def test_time_in_which_a_tube_was_shut_is_no_stillness(core, why):
    worker = core.worker()
    core.fill(b"mail", 9)
    if why == "pause":
        core.send(worker, b"pause-tube mail 900\r\n")
    else:
        policy(core, b"mail", rate="4/h")
        core.live(900)
        core.work(worker)
    core.live(899)
    assert "hung" not in core.findings()
    core.live(2)
    assert not core.engine.tubes[b"mail"].shut
    assert "hung" not in core.findings()
    core.live(60)
    assert core.findings()["hung"].seconds == 61


# -- tubes that nobody consumes, and whose jobs are not looked at


def test_job_left_for_longest_may_be_in_a_small_tube(core):
    names = [b"t%d" % number for number in range(6)]
    for name in names:  # the tube of that job is examined after them
        core.producer(name)
    core.fill(b"small", 1)
    core.live(590)
    for name in names:
        core.fill(name, 2)
    core.live(5)
    assert core.findings()["nobody consumes"].tubes == 1
    core.live(7)
    left = core.findings()["nobody consumes"]
    assert (left.severity, left.tubes, left.jobs, left.seconds) == ("urgent", 7, 13, 602)


def test_small_tube_whose_worker_reconnects_is_not_left(core):
    for number in range(5):
        core.fill(b"t%d" % number, 3)
    core.fill(b"small", 2)
    core.live(60)
    worker = core.worker(b"small")
    core.work(worker)
    core.close(worker)
    core.live(5)
    assert core.findings()["nobody consumes"].tubes == 5
    core.live(7)
    assert core.findings()["nobody consumes"].tubes == 6
