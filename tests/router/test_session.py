"""A session of the router with several servers, without sockets."""

import pytest

from beanlite.core.access import PRODUCER, WORKER
from beanlite.protocol.framing import READ_AHEAD_MAX
from beanlite.router.state import ORDER_MAX
from tests.router.cores import job_at, put, stats_of_job
from tests.support.core import FACTS

# -- ids, and the order of replies


def test_ids_have_the_number_of_their_server_in_their_low_bits(client):
    assert client.send(put(b"x") + b"use b\r\n" + put(b"y")) == b"INSERTED 65\r\nUSING b\r\nINSERTED 66\r\n"
    assert client.send(b"peek 65\r\npeek 66\r\npeek 67\r\n") == b"FOUND 65 1\r\nx\r\nFOUND 66 1\r\ny\r\nNOT_FOUND\r\n"


def test_commands_go_to_the_server_of_the_job(client):
    client.send(b"use b\r\n" + put(b"x", ttr_s=5))
    assert client.send(b"reserve-job 66\r\n") == b"RESERVED 66 1\r\nx\r\n"
    assert client.send(b"touch 66\r\nbury 66 3\r\n") == b"TOUCHED\r\nBURIED\r\n"
    assert client.send(b"kick-job 66\r\nreserve-job 66\r\n") == b"KICKED\r\nRESERVED 66 1\r\nx\r\n"
    assert client.send(b"release 66 7 0\r\n") == b"RELEASED\r\n"
    said = client.send(b"stats-job 66\r\n")
    assert b"\nid: 66\n" in said
    assert b"\npri: 7\n" in said
    assert int(said.split(b"\r\n")[0].split()[1]) == len(said.split(b"\r\n", 1)[1]) - 2
    assert client.send(b"delete 66\r\ndelete 66\r\n") == b"DELETED\r\nNOT_FOUND\r\n"


@pytest.mark.parametrize("line", [b"delete %d", b"touch %d", b"bury %d 0", b"release %d 0 0", b"peek %d"])
def test_id_of_no_server_is_not_found(client, line):
    assert client.send(line % 63 + b"\r\n") == b"NOT_FOUND\r\n"
    assert client.send(line % (1 << 64) + b"\r\n") == b"BAD_FORMAT\r\n"


def test_replies_are_in_the_order_of_commands(net, client):
    client.send(b"use b\r\n" + put(b"y") + b"use a\r\n" + put(b"x"))
    net.halted.add(2)
    assert client.send(b"peek 66\r\npeek 65\r\nlist-tube-used\r\n") == b""
    net.halted.clear()
    net.run()
    assert client.take() == b"FOUND 66 1\r\ny\r\nFOUND 65 1\r\nx\r\nUSING a\r\n"


def test_commands_in_flight_leave_in_one_write(net, client):
    client.send(b"list-tubes\r\n")
    net.writes.clear()
    ids = client.send(put(b"x") * 300).split()[1::2]
    assert len(net.writes[1]) == 1
    client.send(b"".join(b"delete %b\r\n" % each for each in ids))
    assert len(net.writes[1]) == 2


def test_client_with_too_many_commands_in_flight_has_to_wait(net, client):
    client.send(b"peek-ready\r\n")
    net.halted.add(1)
    client.send(b"peek 1\r\n" * (ORDER_MAX + 500))
    assert len(client.session.order) == ORDER_MAX
    client.send(b"peek 1\r\n" * 40_000)
    assert not client.session.wants_more
    net.halted.clear()
    net.run()
    assert client.take() == b"NOT_FOUND\r\n" * (ORDER_MAX + 40_500)
    assert client.session.wants_more


def test_client_may_send_as_far_ahead_as_to_a_server(net, worker):
    """Whoever sends more and goes is noticed late."""
    core = net.cores[1]
    direct = core.client()
    core.send(direct, b"reserve\r\n")
    worker.send(b"reserve\r\n")
    half = b"list-tube-used\r\n" * (READ_AHEAD_MAX // 32)
    for _ in range(2):
        core.send(direct, half)
        worker.send(half)
        assert direct.wants_more
        assert worker.session.wants_more
    core.send(direct, b"x")
    worker.send(b"x")
    assert not direct.wants_more
    assert not worker.session.wants_more


def test_replies_of_the_router_are_not_gathered_without_limit(net, client):
    client.send(b"".join(b"watch %b%d\r\n" % (b"t" * 190, number) for number in range(100)))
    client.session.receive(b"list-tubes-watched\r\n" * 500, net.now_s)
    assert len(client.session.take()) < 100_000
    net.run()
    assert client.take().count(b"OK ") == 500 - 4


def test_small_parts_of_what_is_sent_ahead_are_joined(client):
    client.send(b"reserve\r\nuse b\r\n")
    for _ in range(10_000):
        client.session.receive(b"xy", 0.0)
    assert len(client.session._parts) < 10


# -- tubes


def test_put_goes_to_the_server_of_the_tube(net, client):
    client.send(b"use b.x\r\n" + put(b"x") + b"use c\r\n" + put(b"x"))
    assert b"b.x" in net.cores[2].engine.tubes
    assert b"c" in net.cores[1].engine.tubes
    assert b"b.x" not in net.cores[1].engine.tubes


def test_tube_that_is_used_no_more_is_gone(client):
    client.send(b"use a\r\n")
    assert client.send(b"use b\r\nlist-tubes\r\n") == b"USING b\r\nOK 18\r\n---\n- default\n- b\n\r\n"


def test_refused_use_leaves_the_client_with_its_tube(net, client):
    client.send(b"use a\r\n")
    net.cores[2].engine.clients.max_tubes = 1
    said = client.send(b"use b\r\n" + put(b"x") + b"list-tube-used\r\n")
    assert said == b"OUT_OF_MEMORY\r\nINSERTED 65\r\nUSING a\r\n"
    assert stats_of_job(net, 1, 1)["tube"] == '"a"'


def test_refused_uses_leave_the_client_with_its_tube(net, client):
    client.send(b"use a\r\n")
    net.cores[1].engine.clients.max_tubes = 2
    assert client.send(b"use x\r\nuse y\r\n") == b"OUT_OF_MEMORY\r\n" * 2
    assert client.send(b"list-tube-used\r\n") == b"USING a\r\n"
    net.lose(1)
    assert client.send(put(b"x")) == b"INSERTED 65\r\n"
    assert stats_of_job(net, 1, 1)["tube"] == '"a"'


def test_use_that_is_refused_does_not_undo_the_one_behind_it(net, client):
    client.send(b"use a\r\n")
    client.session.receive(b"use x\r\nuse c\r\nuse x\r\n", net.now_s)
    client.session.came(client.session.lanes[1], b"UNAUTHORIZED\r\nUSING c\r\nUNAUTHORIZED\r\n", net.now_s)
    assert client.session.used == client.session.lanes[1].used == b"c"


def test_client_watches_tubes_of_several_servers(client):
    assert client.send(b"watch a\r\nwatch b\r\nwatch b\r\n") == b"WATCHING 2\r\nWATCHING 3\r\nWATCHING 3\r\n"
    assert client.send(b"list-tubes-watched\r\n") == b"OK 22\r\n---\n- default\n- a\n- b\n\r\n"
    assert client.send(b"ignore default\r\nignore a\r\nignore b\r\n") == b"WATCHING 2\r\nWATCHING 1\r\nNOT_IGNORED\r\n"


def test_server_of_no_watched_tube_gives_no_job(net, client):
    client.send(b"watch a\r\nwatch b\r\nignore a\r\nignore default\r\n")
    job_at(net, 1, b"default")
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    job_at(net, 2, b"default")  # somebody has put it there who does not use the router
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"


def test_refused_watch_is_undone(net, client):
    net.cores[2].engine.clients.max_tubes = 1
    assert client.send(b"watch b\r\n") == b"OUT_OF_MEMORY\r\n"
    assert client.send(b"list-tubes-watched\r\n") == b"OK 14\r\n---\n- default\n\r\n"


def limit(core, *tubes):
    """Give clients rights to these tubes alone at a server."""
    made = core.client

    def limited(**_options):
        client = made()
        core.limit(client, *((role, tube) for tube in tubes for role in (PRODUCER, WORKER)))
        return client

    core.client = limited


def test_last_tube_is_ignored_without_a_right_to_default(net, client):
    limit(net.cores[2], b"b*")
    client.send(b"watch b\r\n")
    assert client.send(b"ignore b\r\n") == b"WATCHING 1\r\n"
    job_at(net, 2, b"b")
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    assert client.send(b"watch b.x\r\nreserve-with-timeout 0\r\n") == b"WATCHING 2\r\nTIMED_OUT\r\n"
    assert client.send(b"ignore b.x\r\nwatch b\r\n") == b"WATCHING 1\r\nWATCHING 2\r\n"
    assert client.send(b"reserve\r\n") == b"RESERVED 66 1\r\nx\r\n"


def test_last_tube_without_a_right_to_default_may_be_replaced_at_once(net, client):
    limit(net.cores[2], b"b*")
    client.send(b"watch b\r\n")
    assert client.send(b"ignore b\r\nwatch b.x\r\n") == b"WATCHING 1\r\nWATCHING 2\r\n"
    job_at(net, 2, b"b")
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"


def test_refused_watch_leaves_what_was_watched_in_its_place(net, client):
    limit(net.cores[2], b"b")
    client.send(b"watch b\r\nignore b\r\n")
    assert client.send(b"watch b.x\r\n") == b"UNAUTHORIZED\r\n"
    assert client.session.lanes[2].watched == {b"b"}
    assert client.send(b"watch b\r\n") == b"WATCHING 2\r\n"


def test_moved_tube_is_ignored_without_a_right_to_default(net, client):
    limit(net.cores[2], b"b*")
    client.send(b"watch b\r\n")
    net.change(["a", "b"], ["b.x"])
    assert client.session.lanes[2].watched == {b"b"}
    job_at(net, 2, b"b")
    net.change(["a", "b"], ["b.x", "c"])
    assert client.send(b"watch b.x\r\nreserve-with-timeout 0\r\n") == b"WATCHING 3\r\nTIMED_OUT\r\n"


def accept_tokens(core):
    """Have a server accept any token."""
    made = core.client

    def client(**options):
        client = made(**options)
        client.authenticate = lambda _token: True
        return client

    core.client = client


def test_token_is_shown_to_no_server_at_which_it_can_be_overheard(net):
    """Such a server has its own rules for it, and closes after a while if there are none: that costs no other."""
    net.plain.add(2)
    for core in net.cores.values():
        accept_tokens(core)
    client = net.client(tokens_pass=True)
    assert client.send(b"auth secret\r\nreserve-job 65\r\n") == b"AUTHENTICATED\r\nNOT_FOUND\r\n"
    assert client.send(b"use b\r\n" + put(b"x") + b"reserve-job 66\r\n").endswith(b"RESERVED 66 1\r\nx\r\n")
    net.lose(1)
    assert client.send(b"peek 65\r\n") == b"NOT_FOUND\r\n"
    assert [b"secret" in b"".join(net.writes[number]) for number in (1, 2)] == [True, False]
    assert not client.session.came(client.session.lanes[2], b"UNAUTHORIZED\r\n", net.now_s)
    client.lose(2)
    assert client.send(b"reserve-job 66\r\npeek 65\r\n") == b"RESERVED 66 1\r\nx\r\nNOT_FOUND\r\n"
    assert net.writes[1].count(b"auth secret\r\n") == 2


def test_token_that_its_first_server_can_not_be_shown_is_refused(net):
    net.plain.add(1)
    accept_tokens(net.cores[1])
    client = net.client(tokens_pass=True)
    assert client.send(b"auth secret\r\n" + put(b"x")) == b"UNAUTHORIZED\r\n"
    assert client.session.is_done
    assert not net.writes[1]


# -- statistics, lists, and what is no command


def test_statistics_are_merged(net, client):
    for number, core in net.cores.items():
        core.service.facts = lambda most=1000 * number: FACTS._replace(history_bodies_max=most)
    client.send(put(b"x") + b"use b\r\n" + put(b"y"))
    said = client.send(b"stats\r\n").decode()
    stats = dict(line.split(": ") for line in said.split("\n") if ": " in line)
    assert stats["current-jobs-ready"] == "2"
    assert stats["current-tubes"] == "2"
    assert stats["cmd-put"] == "2"
    assert stats["max-job-size"] == "65535"
    assert stats["history-bodies-max"] == "1000"
    assert stats["pid"] == "1"
    assert stats["rusage-utime"] == "0.000000"
    assert (stats["router-servers"], stats["router-servers-away"], stats["router-map-version"]) == ("2", "0", "1")
    net.leave(2)
    said = client.send(b"stats\r\n").decode()
    assert "\ncurrent-jobs-ready: 1\n" in said
    assert "\nrouter-servers-away: 1\n" in said


def test_lists_are_merged(client):
    client.send(b"use b\r\n" + put(b"y") + b"use a\r\n" + put(b"y"))
    assert client.send(b"list-tubes\r\n") == b"OK 22\r\n---\n- default\n- a\n- b\n\r\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"put 0 0 1\r\n", b"BAD_FORMAT\r\n"),
        (b"put 0 0 1 1 x\r\nquitx\r\n", b"BAD_FORMAT\r\n"),
        (b"put 0 0 1 70000 x\r\n%b\r\n" % bytes(70_000), b"JOB_TOO_BIG\r\n"),
        (b"put 0 0 1 70000\r\n%b\r\n" % bytes(70_000), b"JOB_TOO_BIG\r\n"),
        (b"put 0 0 1 1\r\nxyz", b"EXPECTED_CRLF\r\n"),
        (b"delete\r\n", b"UNKNOWN_COMMAND\r\n"),
        (b"statsx\r\n", b"BAD_FORMAT\r\n"),
        (b"list-jobs 2\r\n", b"UNKNOWN_COMMAND\r\n"),
        (b"offer 0\r\n", b"UNKNOWN_COMMAND\r\n"),
        (b"use -a\r\n", b"BAD_FORMAT\r\n"),
        (b"reserve\0\r\n", b"BAD_FORMAT\r\n"),
        (b"%b\r\n" % (b"x" * 300), b"BAD_FORMAT\r\n"),
        (b"pause-tubea 1\r\n", b"NOT_FOUND\r\n"),
    ],
)
def test_odd_line_is_answered_as_by_a_server(client, data, said):
    client.send(b"list-tube-used\r\n")
    assert client.send(data) == said
    assert client.send(b"list-tube-used\r\n") == (b"" if b"quit" in data else b"USING default\r\n")


def test_line_may_come_byte_by_byte(client):
    said = b"".join(client.send(bytes([byte])) for byte in put(b"abc") + b"%b\r\npeek 65\r\n" % (b"x" * 300))
    assert said == b"INSERTED 65\r\nBAD_FORMAT\r\nFOUND 65 3\r\nabc\r\n"


def test_large_body_is_passed_on_as_it_comes(client):
    client.send(b"put 0 0 1 60000\r\n")
    for _ in range(6):
        client.send(b"x" * 10_000)
        assert client.session.pending == 0
    assert client.send(b"\r\n") == b"INSERTED 65\r\n"


def test_other_protocol_closes_the_connection(client):
    assert client.send(b"GET / HTTP/1.1\r\nput 0 0 1 1\r\nx\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert client.session.is_done


def test_quit_closes_the_connection_after_the_replies(net, client):
    client.send(b"peek 1\r\n")
    net.halted.add(1)
    client.send(b"peek 1\r\nquit\r\nlist-tube-used\r\n")
    assert not client.session.is_done
    net.halted.clear()
    net.run()
    assert client.take() == b"NOT_FOUND\r\n"
    assert client.session.is_done


def test_client_that_goes_after_its_quit_is_noticed(client):
    client.send(b"reserve\r\nquit\r\n")
    assert not client.session.is_done
    assert client.session.wants_more
    assert client.half_close() == b"TIMED_OUT\r\n"
    assert client.session.is_done


def test_body_of_an_odd_put_is_never_taken_for_commands(net, client):
    assert client.send(b"put 0 0 1 1 x\r\n") == b"BAD_FORMAT\r\n"  # the router knows the limit now
    net.cores[1].service.max_job_size = 1_000_000
    body = b"list-clients 2\r\n{}\r\n".ljust(70_000)
    assert client.send(b"put 0 0 1 70000 x\r\n%b\r\npeek 1\r\n" % body) == b"JOB_TOO_BIG\r\nNOT_FOUND\r\n"


def test_server_may_answer_a_put_amid_its_body_and_go(client):
    client.send(b"put 0 0 1 100\r\nabc")
    client.session.came(client.session.lanes[1], b"UNAUTHORIZED\r\n", 0.0)
    client.lose(1)
    assert client.send(b"x" * 97 + b"\r\npeek 65\r\n") == b"UNAUTHORIZED\r\nNOT_FOUND\r\n"


def test_drained_server_refuses_puts(net, client):
    net.cores[2].engine.admission.draining = True
    assert client.send(put(b"x") + b"use b\r\n" + put(b"x")) == b"INSERTED 65\r\nUSING b\r\nDRAINING\r\n"


def test_note_is_left_on_a_job_of_the_client_alone(client):
    client.send(b"use b\r\n" + put(b"x") + put(b"y"))
    assert client.send(b"note 66 1\r\nx\r\n") == b"NOT_FOUND\r\n"
    assert client.send(b"reserve-job 66\r\nnote 66 1\r\nx\r\n") == b"RESERVED 66 1\r\nx\r\nNOTED\r\n"
    assert client.send(b"note 130 1\r\nx\r\n") == b"NOT_FOUND\r\n"


def test_name_is_told_to_all_servers(net, client):
    assert client.send(b"name web1/mail/17\r\n") == b"NAMED\r\n"
    client.send(put(b"x") + b"use b\r\n")
    for core in net.cores.values():
        assert [each.peer.address.endswith(' "web1/mail/17"') for each in core.sessions] == [True]


def test_name_is_told_to_a_server_that_is_away_once_it_is_back(net, client):
    net.leave(1)
    assert client.send(b"name web1\r\nwatch b\r\n") == b"NAMED\r\nWATCHING 2\r\n"
    net.come_back(1)
    assert client.send(put(b"x")) == b"INSERTED 65\r\n"
    for core in net.cores.values():
        assert [each.peer.address.endswith(' "web1"') for each in core.sessions] == [True]


def test_name_is_told_on_connections_that_are_being_made(net, client):
    said = client.send(b"watch a\r\nwatch b\r\nname web1\r\n")
    assert said == b"WATCHING 2\r\nWATCHING 3\r\nNAMED\r\n"
    for core in net.cores.values():
        assert [each.peer.address.endswith(' "web1"') for each in core.sessions] == [True]
