"""Puts that repeat a job, and jobs that become too old, in tubes with rules."""

from zlib import crc32

import pytest

from beanlite.core.job import SECOND_NS, SLICE
from beanlite.core.kept import TWINS_MAX
from beanlite.core.policies import Policies
from beanlite.core.rulings import EXPIRING_MAX
from tests.support.core import offered, put, stored_job
from tests.support.fetching import FetchingCore
from tests.support.ruled_core import change, policy, reserve, state

# -- the same again


@pytest.mark.parametrize("kind", ["waiting", "present"])
def test_put_of_a_body_that_is_there_is_answered_with_its_job(core, kind):
    policy(core, unique=kind)
    client = core.client()
    assert put(core, client, b"a") == 1
    assert put(core, client, b"a", pri=9, delay_s=9) == 1
    assert put(core, client, b"b") == 2
    assert core.engine.tubes[b"default"].tally.duplicates == 1
    assert core.engine.counts.total_jobs == 2


def test_repeated_put_waits_until_the_first_is_stored(core):
    policy(core, unique="waiting")
    client, other = core.client(), core.client()
    put(core, client)
    core.receive(other, b"put 0 0 9 1\r\nx\r\n")
    assert other.waits
    core.store()
    core.receive(other, b"put 0 0 9 1\r\nx\r\n")
    other.take_replies()
    core.receive(other, b"put 0 0 9 1\r\nx\r\n")
    assert not other.waits


def test_twin_is_stored_as_it_is_when_the_put_is_answered(core):
    policy(core, unique="waiting")
    client, other = core.client(), core.client()
    put(core, client)
    assert reserve(core, client) == 1
    core.send(client, b"bury 1 0\r\n")
    core.store()
    core.receive(client, b"kick 1\r\n")
    core.receive(other, b"put 0 0 9 1\r\nx\r\n")
    assert other.waits


def test_twin_that_has_just_been_moved_is_stored_there(core):
    policy(core, b"a", ttl="10s", expired="move:b")
    policy(core, b"b", unique="waiting")
    client = core.client()
    core.send(client, b"use a\r\n")
    put(core, client)
    core.store()
    core.send(client, b"use b\r\n")
    core.wait(10)
    assert core.engine.jobs[1].tube.name == b"b"
    core.receive(client, b"put 0 0 9 1\r\nx\r\n")
    assert client.waits
    assert core.engine.ledger.is_changed


def test_job_that_is_reserved_or_buried_no_longer_waits(core):
    policy(core, unique="waiting")
    client = core.client()
    put(core, client)
    assert reserve(core, client) == 1
    assert put(core, client) == 2
    core.send(client, b"bury 1 0\r\ndelete 2\r\n")
    assert put(core, client) == 3
    core.send(client, b"delete 3\r\nkick 1\r\n")
    assert put(core, client) == 1  # it waits again


def test_job_that_comes_back_beside_its_like_stays(core):
    policy(core, unique="waiting")
    client = core.client()
    put(core, client)
    assert reserve(core, client) == 1
    assert put(core, client) == 2
    core.send(client, b"release 1 0 0\r\n")
    assert put(core, client) == 1  # it is the last one that waits
    core.send(client, b"delete 1\r\n")
    assert put(core, client) == 2


def test_job_that_is_present_in_any_state_is_not_put_again(core):
    policy(core, unique="present")
    client = core.client()
    put(core, client)
    assert reserve(core, client) == 1
    assert put(core, client) == 1
    core.send(client, b"bury 1 0\r\n")
    assert put(core, client) == 1
    core.send(client, b"delete 1\r\n")
    assert put(core, client) == 2
    assert core.engine.counts.twins == 1


def test_jobs_that_were_there_before_are_known_after_some_ticks(core):
    client = core.client()
    for number in range(3 * SLICE):
        put(core, client, b"%d" % number)
    policy(core, unique="waiting")
    core.wait(0)
    assert put(core, client, b"%d" % (2 * SLICE)) == 2 * SLICE + 1
    policy(core, unset=["unique"])
    assert put(core, client, b"1") == 3 * SLICE + 1
    assert core.engine.counts.twins == 0


def test_restored_jobs_are_known_even_without_their_bodies(core):
    policy(core, unique="waiting")
    core.engine.restore([stored_job(1, core.now_ns, body=1, crc32=crc32(b"x"))], core.now_ns)
    core.engine.recovered(1, 1)
    client = core.client()
    assert core.send(client, b"put 0 0 9 1\r\nx\r\n") == b""
    assert client.gathering.jobs == [core.engine.jobs[1]]
    client.bring(core.engine.jobs[1], b"x")
    client.answer_with_bodies(core.now_ns)
    assert client.take_replies() == b"INSERTED 1\r\n"


@pytest.mark.parametrize("changed", [{"ttl": "10d"}, {"unique": "present"}], ids=["ttl", "unique"])
def test_bodies_on_the_disk_stay_known_while_any_are(core, changed):
    policy(core, unique="waiting", ttl="9d")
    core.engine.restore([stored_job(1, core.now_ns, body=1, crc32=crc32(b"x"))], core.now_ns)
    core.engine.recovered(1, 1)
    policy(core, **changed)
    core.wait(0)
    client = core.client()
    core.send(client, b"put 0 0 9 1\r\nx\r\n")
    assert client.gathering.jobs == [core.engine.jobs[1]]


def test_job_that_is_reserved_counts_once_all_that_are_present_do(core):
    client = core.client()
    policy(core, unique="waiting")
    job_id = put(core, client)
    assert reserve(core, client) == job_id
    policy(core, unique="present")
    core.wait(0)
    assert put(core, client) == job_id
    policy(core, unique="waiting")
    core.wait(0)
    assert put(core, client) != job_id


def test_one_body_is_fetched_where_very_many_may_be_the_same(core):
    policy(core, unique="waiting")
    rows = [stored_job(job_id, core.now_ns, body=1, crc32=crc32(b"x")) for job_id in range(1, 1000)]
    core.engine.restore(rows, core.now_ns)
    core.engine.recovered(999, 1)
    client = core.client()
    assert core.send(client, b"put 0 0 9 1\r\nx\r\n") == b""
    assert client.gathering.jobs == [core.engine.jobs[999]]
    client.bring(core.engine.jobs[999], b"y")
    client.answer_with_bodies(core.now_ns)
    assert client.gathering.jobs == [core.engine.jobs[998]]


def test_put_is_compared_with_few_bodies_of_its_size_and_checksum(core):
    policy(core, unique="waiting")
    client = core.client()
    texts = [b"%08d" % number for number in range(TWINS_MAX + 1)]
    bodies = [text + crc32(text).to_bytes(4, "little") for text in texts]
    assert len({crc32(body) for body in bodies}) == 1
    for body in bodies:
        put(core, client, body)
    assert put(core, client, bodies[1]) == 2
    assert put(core, client, bodies[-1]) == len(bodies)
    assert put(core, client, bodies[0]) == len(bodies) + 1


def test_where_jobs_go_that_are_too_old_is_found_out_once_a_put(core, monkeypatch):
    asked = []
    rules_of = Policies.rules_of

    def noted(policies, name):
        asked.append(name)
        return rules_of(policies, name)

    client = core.client()
    for _ in range(TWINS_MAX):
        put(core, client, ttr_s=100)
        reserve(core, client)
    policy(core, unique="present", ttl="10s", expired="move:old")
    core.wait(11)
    monkeypatch.setattr(Policies, "rules_of", noted)
    releases = b"".join(b"release %d 0 0\r\n" % job_id for job_id in range(1, TWINS_MAX + 1))
    core.receive(client, releases + b"put 0 0 9 1\r\nx\r\n")  # before the next tick ends them
    assert core.engine.last_id == TWINS_MAX + 1
    assert asked == [b"old"]


def test_put_is_repeated_behind_very_many_about_to_be_deleted(core):
    client = core.client()
    for _ in range(3 * EXPIRING_MAX):
        put(core, client)
    policy(core, unique="waiting")
    core.wait(0)
    core.now_ns += 10 * SECOND_NS
    policy(core, ttl="10s", expired="delete")
    new = put(core, client)
    assert new == 3 * EXPIRING_MAX + 1
    core.wait(0)
    assert core.engine.jobs.find(new - 1) is not None
    assert put(core, client) == new


@pytest.mark.parametrize("unique", ["waiting", "present"])
def test_put_is_not_one_of_a_job_that_will_be_deleted_however_old(core, unique):
    """Time is counted from 2000, and the clock of a machine may once have been behind that."""
    core.engine.restore([stored_job(1, core.now_ns, created_ns=-SECOND_NS, crc32=crc32(b"x"))], core.now_ns)
    core.engine.recovered(1, 1)
    policy(core, unique=unique)
    core.wait(0)
    policy(core, ttl="1h", expired="delete")
    core.receive(client := core.client(), b"put 0 0 9 1\r\nx\r\n")
    core.store()
    assert client.take_replies() == b"INSERTED 2\r\n"


def test_job_moves_to_a_tube_without_a_policy_however_old(core):
    core.engine.restore([stored_job(1, core.now_ns, created_ns=-SECOND_NS)], core.now_ns)
    core.engine.recovered(1, 1)
    policy(core, ttl="1h", expired="move:old")
    core.wait(1)
    assert (core.engine.jobs[1].tube.name, state(core)[0]) == (b"old", "ready")


def test_moved_job_is_known_where_it_is(core):
    policy(core, unique="waiting")
    client, operator = core.client(), core.client(operator=True)
    core.send(client, b"use t\r\n")
    put(core, client)
    change(core, operator, b'{"do": "move", "to": "default","ids":  [1]}')
    assert put(core, operator) == 1


@pytest.mark.parametrize("kind", ["waiting", "present"])
def test_copy_of_a_body_that_is_there_is_skipped(core, kind):
    policy(core, unique=kind)
    client, operator = core.client(), core.client(operator=True)
    core.send(client, b"use t\r\n")
    for body in (b"a", b"b", b"a"):
        put(core, client, body)
    reply = change(core, operator, b'{"do":"copy","to":"default","tube":"t"}')
    assert (reply["done"], reply["skipped"], reply["left"]) == (2, 1, [3])
    reply = change(core, operator, b'{"do":"copy","to":"default","tube":"default"}')
    assert (reply["done"], reply["left"]) == (0, [4, 5])
    assert core.engine.tubes[b"default"].tally.duplicates == 3
    assert core.engine.counts.total_jobs == 5


def test_copies_are_compared_with_bodies_on_the_disk():
    core = FetchingCore()
    policy(core, unique="present")
    rows = [stored_job(job_id, core.now_ns, body=1, crc32=crc32(b"x")) for job_id in (1, 2)]
    core.engine.restore(rows, core.now_ns)
    core.engine.recovered(2, 1)
    core.shelf = {1: b"y", 2: b"x"}
    operator = core.client(operator=True)
    core.send(operator, b"use t\r\n")
    assert put(core, operator) == 3
    copy = b'{"do":"copy","to":"default","tube":"t"}'
    assert change(core, operator, copy)["left"] == [3]
    core.send(operator, b"delete 2\r\n")
    assert change(core, operator, copy)["done"] == 1


# -- too late


def test_job_that_is_too_old_is_buried(core):
    policy(core, ttl="10s")
    client = core.client()
    put(core, client)
    put(core, client, delay_s=60)
    core.wait(9.9)
    assert state(core) == ("ready", None)
    core.wait(0.1)
    assert [state(core, 1), state(core, 2)] == [("buried", "expired")] * 2
    assert core.engine.tubes[b"default"].tally.expired == 2


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("expired", ["delete", "move:old"])
def test_job_that_is_too_old_is_deleted_or_moves(core, expired, is_paused):
    policy(core, b"t", ttl="10s", expired=expired)
    client = core.client()
    core.send(client, b"use t\r\n")
    put(core, client)
    core.send(client, b"use default\r\npause-tube t %d\r\n" % (is_paused * 60))
    core.store()
    core.wait(10)
    assert b"t" not in core.engine.tubes
    assert len(core.engine.jobs) == (expired != "delete")
    assert (b"old" in core.engine.tubes) == (expired != "delete")
    assert core.engine.counts.expiries == 0
    assert core.store().jobs


def test_job_that_is_too_old_for_two_tubes_moves_between_them_no_more(core):
    policy(core, ttl="10s", expired="move:b")
    policy(core, b"b", ttl="9s", expired="move:default")
    put(core, core.client())
    core.now_ns += 10 * SECOND_NS
    for _ in range(3):
        core.engine.tick(core.now_ns)
    assert core.engine.timers.next_ns > core.now_ns
    assert state(core) == ("buried", "expired")


def test_reserved_job_expires_when_it_comes_back(core):
    policy(core, ttl="10s")
    client = core.client()
    put(core, client, ttr_s=60)
    assert reserve(core, client) == 1
    core.wait(20)
    assert state(core) == ("reserved", None)
    assert core.send(client, b"release 1 0 0\r\nreserve-with-timeout 0\r\n") == b"RELEASED\r\nTIMED_OUT\r\n"
    core.wait(0)
    assert state(core) == ("buried", "expired")


def test_job_that_an_operator_takes_away_expires(core):
    policy(core, ttl="10s")
    client, operator = core.client(), core.client(operator=True)
    put(core, client, ttr_s=60)
    assert reserve(core, client) == 1
    core.wait(20)
    change(core, operator, b'{"do": "release","ids":  [1]}')
    core.wait(2)
    assert state(core) == ("buried", "expired")


def test_job_that_an_operator_delays_while_it_is_offered_expires(core):
    policy(core, ttl="10s")
    client, operator = core.client(), core.client(operator=True)
    put(core, client, ttr_s=60)
    core.wait(9)
    assert offered(core, client) == 1
    core.wait(1)  # the offer holds for two seconds
    change(core, operator, b'{"do": "delay","delay_s": 60,"ids":  [1]}')
    core.wait(2)
    assert state(core) == ("buried", "expired")


def test_kicked_job_does_not_expire_again(core):
    policy(core, ttl="10s")
    client = core.client()
    put(core, client)
    core.wait(10)
    core.send(client, b"kick 1\r\n")
    core.wait(100)
    assert state(core) == ("ready", None)


def test_jobs_expire_in_slices(core):
    policy(core, ttl="10s")
    client = core.client()
    for _ in range(3 * SLICE):
        put(core, client)
    core.now_ns += 10 * SECOND_NS
    core.engine.tick(core.now_ns)
    assert 0 < core.engine.counts.buried <= SLICE + 1
    core.wait(0)
    assert core.engine.counts.buried == 3 * SLICE


def test_expiry_waits_while_the_batch_is_large(core):
    policy(core, ttl="10s", expired="delete")
    client = core.client()
    for _ in range(2 * EXPIRING_MAX):
        put(core, client)
    core.store()
    core.wait(11)
    assert EXPIRING_MAX <= len(core.engine.jobs) < 2 * EXPIRING_MAX - SLICE
    assert core.engine.timers.next_ns > core.now_ns  # the server does not turn in vain
    core.store()
    core.wait(1)
    core.store()
    core.wait(1)
    assert not core.engine.jobs


def test_deleted_jobs_leave_nothing_behind(core):
    policy(core, ttl="1h", unique="waiting")
    client = core.client()
    for number in range(200):
        core.send(client, b"delete %d\r\n" % put(core, client, b"%d" % number))
    kept = core.engine.tubes[b"default"].kept
    assert (core.engine.counts.expiries, core.engine.counts.twins, len(kept._twins)) == (0, 0, 0)
    assert len(kept.expiries) == 0
