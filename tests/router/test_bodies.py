"""Bodies of puts that are being passed on while other things happen."""

import pytest

from tests.router.cores import job_at, put, stats_of_job


def begun_put(client, rest=b""):
    """Have a client begin a put whose body would be taken for a command, and return what is left of it."""
    assert client.send(b"put 0 0 60 30\r\n" + rest) == b""
    return b"put 0 0 60 100\r\nlist-tubes\r\n\r\n\r\n"[len(rest) :]


@pytest.mark.parametrize("part", [b"", b"put 0 0 60"])
def test_changed_file_writes_nothing_into_a_body(net, client, part):
    client.send(b"watch c\r\nwatch b\r\n")
    rest = begun_put(client, part)
    net.change(["a", "b"], ["c"])
    assert client.send(rest) == b"INSERTED 65\r\n"
    assert client.session.lanes[1].watched == {b"default", b"b"}
    job_at(net, 1, b"b")
    assert client.send(b"delete 65\r\nreserve-with-timeout 0\r\n") == b"DELETED\r\nRESERVED 129 1\r\nx\r\n"


def test_changed_file_writes_nothing_into_a_body_that_is_not_sent(net, client):
    client.send(b"watch b\r\n")
    net.lose(1)
    net.halted.add(1)
    rest = begun_put(client)
    net.change(["a", "b"], ["c"])
    net.halted.clear()
    net.run()
    assert client.send(rest + b"peek 65\r\n").startswith(b"INSERTED 65\r\nFOUND 65 30\r\nput 0 0 60 100\r\n")


def test_changed_file_writes_nothing_into_a_body_that_is_skipped(net, client):
    client.send(b"watch b\r\nput 0 0 60 70000\r\n")
    net.change(["a", "b"], ["c"])
    assert client.send(b"x" * 70_000) == b""
    assert client.send(b"\r\npeek 65\r\n") == b"JOB_TOO_BIG\r\nNOT_FOUND\r\n"


@pytest.mark.parametrize("loses", [False, True])
def test_job_that_comes_late_amid_a_body_goes_back_behind_it(net, worker, loses):
    job_at(net, 1, b"a")
    worker.session.turn = 1
    net.halted.add(1)
    worker.send(b"reserve-with-timeout 3\r\n")
    net.wait(4)
    assert worker.take() == b"TIMED_OUT\r\n"
    rest = begun_put(worker)
    net.halted.clear()
    net.run()
    assert stats_of_job(net, 1, 1)["state"] == "reserved"
    if loses:
        net.lose(1)
    assert worker.send(rest) == (b"INTERNAL_ERROR\r\n" if loses else b"INSERTED 129\r\n")
    assert stats_of_job(net, 1, 1)["state"] == "ready"
    assert not worker.session.late


def test_offer_that_comes_late_amid_a_body_is_declined_behind_it(net, worker):
    assert worker.send(b"reserve\r\n") == b""
    net.halted.add(1)
    job_at(net, 2, b"b")
    job_at(net, 1, b"a")
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"
    rest = begun_put(worker)
    net.halted.clear()
    net.run()
    assert worker.send(rest) == b"INSERTED 129\r\n"
    assert stats_of_job(net, 1, 1)["state"] == "ready"


@pytest.mark.parametrize("fails", [False, True])
def test_puts_do_not_pile_up_until_a_connection_is_made(net, client, fails):
    client.send(b"use b\r\n")
    for _ in range(2):
        net.lose(2)
        net.halted.add(2)
        for _ in range(3):
            assert client.session.wants_more
            assert client.send(put(b"x" * 30_000)) == b""
        assert not client.session.wants_more
        if fails:
            net.leave(2)
            net.come_back(2)
        net.halted.clear()
        net.run()
        assert client.take().count(b"INTERNAL_ERROR" if fails else b"INSERTED") == 3


# -- bodies that never end


@pytest.mark.parametrize("later", [False, True])
def test_last_line_of_a_server_ends_a_put_for_another_one(net, client, later):
    """Such as UNAUTHORIZED, before it closes the connection."""
    client.send(b"list-tubes\r\n")
    net.halted |= {1, 2}
    client.send(b"peek 65\r\n" * later + b"put 0 0 60 30\r\nx")
    said = b"" if later else b"UNAUTHORIZED\r\n"
    assert not client.session.came(client.session.lanes[2], b"UNAUTHORIZED\r\n", net.now_s)
    assert client.take() == said
    assert client.session.is_done != later
    net.halted.clear()
    net.run()
    assert client.take() == b"NOT_FOUND\r\nUNAUTHORIZED\r\n" * later
    assert client.session.is_done


def test_put_that_a_half_close_cuts_off_costs_no_reply_before_it(net, client):
    client.send(b"list-tubes\r\nuse b\r\n")
    net.halted |= {1, 2}
    client.send(b"peek 65\r\nput 0 0 60 30\r\nx")
    client.half_close()
    client.lose(2)
    assert not client.session.is_over
    net.halted.clear()
    net.run()
    assert client.take() == b"NOT_FOUND\r\n"
    assert client.session.is_done


def test_half_closed_reserve_outlasts_its_server_with_a_begun_put(net, client):
    assert client.send(b"reserve\r\nput 0 0 60 30\r\nx") == b""
    client.session.half_close(net.now_s)
    net.lose(1)
    assert client.take() == b"TIMED_OUT\r\n"
    assert client.session.is_done
