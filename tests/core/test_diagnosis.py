"""What is found to be wrong, from what has happened within the last minutes."""

import pytest

from beanlite.core.diagnosis import Rates, rates
from beanlite.core.findings import KINDS, SEVERITIES, order
from beanlite.core.job import SECOND_NS
from beanlite.core.memory import PULSE_BYTES
from beanlite.core.tube import PAUSED
from tests.support.core import put
from tests.support.diagnosed import Diagnosed
from tests.support.ruled_core import policy


@pytest.fixture
def core():
    return Diagnosed()


def test_nothing_is_wrong_while_jobs_are_worked_off(core):
    worker = core.worker()
    core.live(400, each=lambda: (core.fill(b"mail", 3), core.work(worker, 3)))
    assert core.findings() == {}


# -- workers that hang


def test_tube_hangs_if_nothing_moves_while_jobs_are_reserved(core):
    worker = core.worker()
    core.fill(b"mail", 12, ttr_s=3600)
    core.work(worker, 2)
    core.send(worker, b"reserve\r\n")
    core.live(60)
    assert "hung" not in core.findings()
    core.live(2)
    hung = core.findings()["hung"]
    assert (hung.severity, hung.tubes, hung.jobs, hung.seconds) == ("urgent", 1, 9, 61)
    assert hung.text == (
        "mail stands still: 9 jobs ready, 1 reserved,"
        " and for 1 min 1 s none was reserved, touched, deleted, released or buried"
    )
    assert hung.command == "beanlite jobs --tube mail --state reserved"
    core.send(worker, b"delete 3\r\n")
    assert "hung" not in core.findings()
    core.live(1)
    assert "hung" not in core.findings()


def test_tube_hangs_also_after_its_jobs_have_timed_out(core):
    worker = core.worker()
    core.fill(b"mail", 3, ttr_s=30)
    core.send(worker, b"reserve\r\n")
    core.live(50, each=lambda: core.fill(b"mail", 1))
    core.live(50)
    hung = core.findings()["hung"]
    assert (hung.jobs, hung.seconds) == (53, 99)
    moved = "for 1 min 39 s none was reserved, touched, deleted, released or buried"
    assert hung.text == f"mail stands still: 53 jobs ready, and {moved}, though 1 client watches it"


@pytest.mark.parametrize("reason", ["waits", "paused", "gone", "empty", "restarted"])
def test_tube_does_not_hang_without_a_reason(core, reason):
    worker = core.worker()
    core.fill(b"mail", 1 if reason == "empty" else 3, ttr_s=3600)
    core.send(worker, b"reserve\r\n")
    core.live(61)
    if reason == "waits":
        core.engine.tubes[b"mail"].shut = PAUSED  # so that it can have both, as for a moment when a pause ends
        core.send(core.worker(), b"reserve\r\n")
        core.engine.tubes[b"mail"].shut = 0
    elif reason == "paused":
        core.send(worker, b"pause-tube mail 60\r\n")
    elif reason == "gone":
        core.close(worker)
    elif reason == "restarted":
        core.close(worker)
        core.send(core.worker(), b"reserve\r\n")
    assert "hung" not in core.findings()


def test_worker_that_hangs_before_its_first_reserve_is_found(core):
    core.fill(b"mail", 3)
    core.live(400)
    core.worker()
    assert core.findings()["hung"].text.endswith(", though 1 client watches it")


# -- jobs that kill their workers


def crash(core, times, tube=b"mail"):
    for _ in range(times):
        worker = core.worker(tube)
        core.send(worker, b"reserve\r\n")
        core.live(1)
        core.close(worker)


def test_job_that_five_clients_left_is_a_crash_loop(core):
    core.fill(b"mail", 1)
    crash(core, 4)
    assert "crash loop" not in core.findings()
    crash(core, 1)
    loop = core.findings()["crash loop"]
    assert (loop.severity, loop.tubes, loop.jobs, loop.worst[0].job) == ("urgent", 1, 1, 1)
    said = "job 1 of mail was lost by 5 clients that left while they had it, the last 0 s ago, 10.0.0.1:"
    assert loop.text.startswith(said)
    assert loop.command == "beanlite job 1"


@pytest.mark.parametrize("end", ["delete 1", "reserve-job 1\r\nbury 1 0", "time"])
def test_crash_loop_ends_with_its_job(core, end):
    core.fill(b"mail", 1)
    crash(core, 6)
    if end == "time":
        core.live(601)
    else:
        core.send(core.client(), end.encode() + b"\r\n")
    assert "crash loop" not in core.findings()


def test_releases_timeouts_and_the_stop_are_no_crash_loop(core):
    core.fill(b"mail", 1, ttr_s=1)
    worker = core.worker()
    for _ in range(4):
        core.work(worker, 1, b"release %d 0 0")
        core.send(worker, b"reserve\r\n")
        core.live(2)
    for each in (worker, core.worker(), core.worker(), core.worker()):
        core.send(each, b"reserve\r\n")
        core.close(each)
    core.send(worker := core.worker(), b"reserve\r\n")
    core.engine.begin_stop()
    core.close(worker)
    assert "crash loop" not in core.findings()
    assert core.engine.tubes[b"mail"].tally.client_gone == 5


def test_crash_loops_of_several_tubes_are_one_finding(core):
    for tube in (b"a", b"b"):
        core.fill(tube, 1)
        crash(core, 5, tube)
    crash(core, 2, b"b")
    loop = core.findings()["crash loop"]
    assert (loop.tubes, loop.jobs, [place.job for place in loop.worst]) == (2, 2, [1, 2])


# -- nobody, pauses, policies


def test_tubes_that_nobody_watches_are_one_finding(core):
    for number in range(15):
        core.fill(b"t%d" % number, number + 1)
    core.live(9)
    assert core.findings() == {}
    core.live(60)
    finding = core.findings()["nobody consumes"]
    assert (finding.severity, finding.tubes, finding.jobs, finding.seconds) == ("warning", 15, 120, 69)
    assert [place.tube for place in finding.worst] == ["t14", "t13", "t12", "t11", "t10"]
    said = "nobody consumes t14, t13, t12 and 12 other tubes: 120 jobs ready, the next one for 1 min 9 s"
    assert finding.text == said
    core.live(600)
    core.fill(b"new", 99)
    core.live(15)
    finding = core.findings()["nobody consumes"]
    assert finding.severity == "urgent"
    assert [(place.tube, place.severity) for place in finding.worst[:2]] == [("new", "warning"), ("t14", "urgent")]


def test_default_tube_is_not_consumed_by_clients_that_only_connect(core):
    producer = core.client()
    put(core, producer)
    core.live(61)
    said = "nobody reserves from default: 1 job ready, the next one for 1 min 1 s"
    assert core.findings()["nobody consumes"].text == said
    core.send(core.client(), b"reserve\r\n")
    assert core.findings() == {}


def test_paused_tube_with_jobs_is_noted_and_grave_after_an_hour(core):
    core.fill(b"mail", 2)
    core.send(core.client(), b"pause-tube mail 7200\r\n")
    core.live(60)
    paused = core.findings()["paused"]
    assert (paused.severity, paused.seconds) == ("note", 60)
    assert paused.text == "mail is paused, for another 1 h 59 min: 2 jobs ready"
    assert paused.command == "beanlite pause mail 0"
    core.live(3600)
    assert core.findings()["paused"].severity == "warning"


def test_policy_that_holds_jobs_back_is_found(core):
    policy(core, b"mail", max_reserved=1)
    core.fill(b"mail", 3, ttr_s=3600)
    core.send(core.worker(), b"reserve\r\n")
    core.live(61)
    shut = core.findings()["shut"]
    assert shut.severity == "note"
    assert shut.text == "2 jobs of mail are held back by max_reserved, the next one for 1 min 1 s"
    core.live(600)
    assert core.findings()["shut"].severity == "warning"
    assert "hung" not in core.findings()


def test_puts_that_max_jobs_refuses_are_found_for_some_minutes(core):
    policy(core, b"mail", max_jobs=2)
    core.fill(b"mail", 2)
    producer = core.producer()
    core.live(3, each=lambda: core.send(producer, b"put 0 0 60 1\r\nx\r\n"))
    refused = core.findings()["refused"]
    assert refused.text == "3 puts into mail were refused in the last minutes, because of max_jobs"
    core.live(310)
    assert "refused" not in core.findings()


# -- what comes and goes


def test_tube_grows_for_good_if_more_jobs_come_than_are_deleted(core):
    worker = core.worker()
    core.live(40, each=lambda: (core.fill(b"mail", 12), core.work(worker, 2)))
    growing = core.findings()["growing"]
    assert (growing.severity, growing.tubes, growing.jobs) == ("warning", 1, 400)
    rates = "720 a minute come and 120 are deleted"
    assert growing.text == f"mail grows: 400 jobs ready, {rates}; never empty at the rate of the last minutes"
    core.live(400, each=lambda: (core.fill(b"mail", 3), core.work(worker, 3)))
    assert "growing" not in core.findings()


def test_tube_that_is_worked_off_tells_when_it_is_empty(core):
    worker = core.worker()
    core.live(40, each=lambda: (core.fill(b"mail", 20), core.work(worker, 2)))
    core.live(180, each=lambda: core.work(worker, 2))
    growing = core.findings()["growing"]
    assert growing.severity == "note"
    rates = "0 a minute come and 120 are deleted"
    assert growing.text == f"mail has grown: 360 jobs ready, {rates}; empty in 3 min at the rate of the last minutes"


def test_backlog_whose_next_job_waits_for_an_hour_is_late(core):
    worker = core.worker()
    core.fill(b"mail", 10, ttr_s=3600)
    core.fill(b"mail", 1, pri=5)
    core.live(3601, each=lambda: (core.fill(b"mail", 1), core.work(worker, 1)))
    core.work(worker, 10)
    late = core.findings()["late"]
    assert late.text.startswith("mail is late: 1 job ready, the next one for 1 h")


def test_jobs_buried_beyond_the_past_are_found_until_they_are_kicked(core):
    worker = core.worker()
    core.live(310, each=lambda: (core.fill(b"mail", 2), core.work(worker, 2)))
    core.live(3, each=lambda: (core.fill(b"mail", 6), core.work(worker, 3), core.work(worker, 3, b"bury %d 0")))
    assert "buried" not in core.findings()
    core.live(4, each=lambda: (core.fill(b"mail", 6), core.work(worker, 3), core.work(worker, 3, b"bury %d 0")))
    buried = core.findings()["buried"]
    assert (buried.severity, buried.jobs) == ("warning", 21)
    core.live(7200)
    buried = core.findings()["buried"]
    assert buried.text == "21 jobs of mail were buried within the last 2 h 2 min, more than its past explains"
    assert "left buried" not in core.findings()
    core.send(core.producer(), b"kick 100\r\n")
    assert "buried" not in core.findings()


def test_past_with_as_many_burials_explains_them(core):
    worker = core.worker()
    core.live(400, each=lambda: (core.fill(b"mail", 4), core.work(worker, 3), core.work(worker, 1, b"bury %d 0")))
    core.send(core.producer(), b"kick 1000\r\n")
    core.work(worker, 1000)
    core.live(400, each=lambda: (core.fill(b"mail", 4), core.work(worker, 3), core.work(worker, 1, b"bury %d 0")))
    assert "buried" not in core.findings()
    left = core.findings()["left buried"]
    assert (left.severity, left.jobs, left.seconds) == ("note", 400, 400)


def test_storm_of_delayed_jobs_is_seen_before_it_comes(core):
    core.fill(b"mail", 1500, delay_s=600)
    core.live(1)
    assert core.findings() == {}
    core.live(400)
    storm = core.findings()["storm due"]
    assert (storm.severity, storm.jobs) == ("warning", 1500)
    assert storm.text == "about 1,500 delayed jobs of mail become ready within 5 min, the first in 3 min 19 s"


def test_delayed_jobs_that_are_worked_off_as_they_come_are_no_storm(core):
    worker = core.worker()
    for _ in range(240):
        core.fill(b"mail", 10, delay_s=101)
        core.work(worker, 10)
        core.live(1)
    assert core.engine.counts.delayed == 1000
    assert core.findings() == {}


# -- the server


def test_what_concerns_the_server_is_told_once(core):
    engine = core.engine
    engine.admission.disk_full = True
    engine.admission.draining = True
    engine.memory.max_bytes = engine.memory.used_bytes + 50
    findings = core.findings(backup_failed=True)
    assert [(kind, finding.tubes) for kind, finding in findings.items()] == [
        ("disk", 0), ("memory", 0), ("backup", 0), ("draining", 0),
    ]  # fmt: skip
    assert findings["disk"].severity == "urgent"


def test_findings_come_worst_first(core):
    core.fill(b"mail", 1)
    crash(core, 5)
    core.fill(b"alone", 3)
    core.fill(b"asleep", 3)
    core.send(core.client(), b"pause-tube asleep 1000\r\n")
    core.live(20)
    core.engine.admission.disk_full = True
    findings = list(core.findings().values())
    assert [finding.kind for finding in findings] == ["disk", "crash loop", "nobody consumes", "paused"]
    assert findings == sorted(findings, key=order)
    assert {finding.severity for finding in findings} == set(SEVERITIES)
    assert {finding.kind for finding in findings} < set(KINDS)


def test_name_is_quoted_for_the_shell(core):
    core.fill(b"a;$(reboot)", 3)
    core.send(core.client(), b"pause-tube a;$(reboot) 1000\r\n")
    assert core.findings()["paused"].command == "beanlite pause 'a;$(reboot)' 0"


# -- what it costs


def test_tube_in_which_nothing_happens_takes_no_more_memory(core):
    pulses, memory = core.engine.ledger.pulses, core.engine.memory
    for number in range(500):
        core.fill(b"t%d" % number, 1)
    for number in range(500):
        core.send(core.client(), b"use gone%d\r\nput 0 0 9 0\r\n\r\ndelete %d\r\n" % (number, 501 + number))
    before = memory.tube_bytes
    core.live(5)
    assert len(pulses) == 500
    assert memory.tube_bytes == before + 500 * PULSE_BYTES
    core.live(310)
    for _ in range(100):
        core.live(1, each=lambda: core.fill(b"busy", 1))
    assert len(pulses) == 1


def test_rates_are_known_of_a_tube_that_is_worked_off_at_once(core):
    worker = core.worker()
    core.live(70, each=lambda: (core.fill(b"mail", 3), core.work(worker, 3)))
    tube = core.engine.tubes[b"mail"]
    pulse = core.engine.ledger.pulses.find(tube)
    assert pulse is not None
    assert rates(tube, pulse, core.now_ns) == Rates(3, 3, 3)


def test_tube_that_is_gone_and_made_again_has_no_past(core):
    worker = core.worker()
    core.fill(b"mail", 3)
    core.send(worker, b"reserve\r\n")
    core.live(70)
    assert "hung" in core.findings()
    core.close(worker)
    for job_id in (1, 2, 3):
        core.send(core.client(), b"delete %d\r\n" % job_id)
    core.fill(b"mail", 3)
    core.send(core.worker(), b"reserve\r\n")
    core.live(2)
    assert "hung" not in core.findings()


def test_time_of_the_tally_counts_and_not_that_of_the_look(core):
    core.fill(b"mail", 3)
    core.send(core.worker(), b"reserve\r\n")
    core.live(1)
    core.now_ns += 61 * SECOND_NS
    assert core.findings()["hung"].seconds == 61


@pytest.mark.parametrize("expired", ["delete", "bury"])
def test_jobs_that_become_too_old_are_no_sign_of_a_worker(core, expired):
    policy(core, b"mail", ttl="10m", expired=expired)
    core.live(900, each=lambda: core.fill(b"mail", 2))
    assert "nobody consumes" in core.findings()
