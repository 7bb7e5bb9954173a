"""Several servers as one: what commands merge, where changes go, and what is told of a server that is away."""

import asyncio
import json
import signal

import pytest

from beanlite.cli import main
from beanlite.console.several import AWAY_S, Place, Places, Several
from beanlite.console.top.app import Top
from tests.operators.conftest import NAMES
from tests.operators.test_top import SMALL, shown
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until


def test_lists_name_the_server_of_each_row(fleet):
    for name in NAMES:
        fleet.put(name, "mail", b"a", b"b")
    assert {(row["server"], row["ready"]) for row in fleet.rows("tubes", "mail")} == {(name, 2) for name in NAMES}
    (title, *lines), _ = fleet.run("jobs")
    assert title.split()[:2] == ["id", "tube"]
    assert [line.split()[0] for line in lines] == ["one:1", "two:1", "three:1", "one:2", "two:2", "three:2"]
    with Wire(fleet.servers["two"].connect()) as client:
        client.ask("watch mail")
        assert [(row["server"], row["uses"]) for row in fleet.rows("clients")] == [("two", "default")]
    assert [row["server"] for row in fleet.rows("stats")] == list(NAMES)
    total = next(line.split() for line in fleet.run("stats")[0] if line.startswith("current-jobs-ready "))
    assert total == ["current-jobs-ready", "6", "2", "2", "2"]


def test_limit_and_order_hold_over_all_servers(fleet):
    fleet.put("one", "mail", b"1", b"2", b"3", pri=7)
    fleet.put("two", "mail", b"1", pri=3)
    fleet.put("three", "mail", b"1", b"2", pri=9)
    by_pri = fleet.rows("jobs", "--sort", "pri", "-n", "3")
    assert [(row["server"], row["pri"]) for row in by_pri] == [("two", 3), ("one", 7), ("one", 7)]
    queue = fleet.rows("jobs", "--sort", "queue", "--tube", "mail", "--state", "ready", "-n", "5")
    assert [(row["server"], row["id"]) for row in queue] == [
        ("two", 1), ("one", 1), ("one", 2), ("one", 3), ("three", 1),
    ]  # fmt: skip
    assert [row["server"] for row in fleet.rows("tubes", "--sort", "ready", "-n", "2")] == ["one", "three"]


@pytest.mark.parametrize("order", [[], ["--sort", "queue", "--tube", "mail", "--state", "ready"]])
def test_list_goes_on_where_it_ended_in_each_server(fleet, order):
    for name, count in (("one", 1), ("two", 8), ("three", 3)):
        fleet.put(name, "mail", *[b"x"] * count)
    whole = [(row["server"], row["id"]) for row in fleet.rows("jobs", *order)]
    assert len(whole) == 12
    parts, after = [], []
    while True:
        out, err = fleet.run("jobs", *order, "-n", "5", "--json", *after)
        parts += [(row["server"], row["id"]) for row in map(json.loads, out)]
        if not err:
            break
        after = ["--after", err[0].rpartition(" ")[2]]
    assert parts == whole


def test_groups_are_added_up(fleet):
    for name in NAMES:
        fleet.put(name, "mail", b'{"customer": 1}')
    fleet.put("one", "mail", b'{"customer": 2}')
    assert fleet.rows("jobs", "--group-by", "customer") == [{"value": "1", "jobs": 3}, {"value": "2", "jobs": 1}]


def test_job_is_found_with_its_server_and_without(fleet):
    fleet.put("one", "a", b"of one")
    fleet.put("two", "mail", b"of two", b"alone")
    assert [(row["server"], row["body"]) for row in fleet.rows("job", "1")] == [("one", "of one"), ("two", "of two")]
    assert [row["body"] for row in fleet.rows("job", "two:1")] == ["of two"]
    assert fleet.run("job", "two:2", "--body", "raw")[0] == ["alone"]
    assert fleet.run("job", "three:1", code=1)[1][0].startswith("beanlite: there is no job three:1")
    assert fleet.run("job", "four:1", code=2)[1] == ["beanlite: there is no server four, only one, two, three"]


def test_what_is_wrong_is_told_with_the_server_and_its_address(fast_fleet):
    fast_fleet.put("three", "sms", b"x")
    warning = "warning: three: nobody consumes sms"
    until(lambda: any(line.startswith(warning) for line in fast_fleet.run("why", "sms")[0]))
    out, _ = fast_fleet.run("why", "sms")
    command = f"beanlite clients --connect 127.0.0.1:{fast_fleet.servers['three'].port}"
    assert any(line.endswith(command) for line in out)
    assert "server   three" in out
    assert [row["server"] for row in fast_fleet.rows("why")] == list(NAMES)


def test_tube_that_was_meant_on_another_server_is_no_place_to_move_to(fast_fleet):
    fast_fleet.put("one", "smms", b"x")
    with Wire(fast_fleet.servers["three"].connect()) as worker:
        worker.ask("watch sms")
        until(lambda: any("nobody consumes smms" in line for line in fast_fleet.run("why")[0]))
        told = "\n".join(fast_fleet.run("why")[0])
        assert "or is smms misspelt, and sms of three was meant?\n" in told + "\n"
        assert "beanlite move" not in told


def test_stopped_server_is_left_out_and_named(fleet):
    for name in NAMES:
        fleet.put(name, "mail", b"x")
    fleet.servers["three"].stop()
    port = fleet.servers["three"].port
    why = f"beanlite: three is left out: no server can be reached at 127.0.0.1:{port}: Connection refused"
    for command in (["tubes"], ["jobs"], ["job", "1"], ["clients"], ["why"], ["stats"]):
        out, err = fleet.run(*command, code=1)
        assert err[-1] == why
        assert out or command == ["clients"]
    assert {row["server"] for row in fleet.rows("jobs", code=1)} == {"one", "two"}
    assert fleet.run("job", "three:1", code=1)[1][0].startswith("beanlite: three is away: no server can be reached")
    assert "away     three: no server can be reached" in "\n".join(fleet.run("top", "--once", code=1)[0])
    for name in "one", "two":
        fleet.servers[name].stop()
    assert fleet.run("tubes", code=1)[1][0].startswith("beanlite: one: no server can be reached")


def test_nothing_is_right_while_a_server_is_away(fleet):
    assert fleet.run("why")[0][0].startswith("nothing is wrong: ")
    fleet.servers["three"].stop()
    reason = f"no server can be reached at 127.0.0.1:{fleet.servers['three'].port}: Connection refused"
    for words in (["why"], ["why", "default"]):
        out, _ = fleet.run(*words, code=1)
        assert out[:2] == [f"urgent:  three: {reason}", "         nothing is known of its tubes until it answers"]
        assert not any(line.startswith("nothing is wrong") for line in out)
    told = {row["server"]: [finding["text"] for finding in row["findings"]] for row in fleet.rows("why", code=1)}
    assert (told.pop("three"), sorted(told)) == ([reason], ["one", "two"])
    fleet.servers["two"].stop()
    lines = [line for line in fleet.run("why", code=1)[0] if line.startswith("urgent:  t")]
    assert [line.split()[1] for line in lines] == ["two:", "three:"]
    assert (
        fleet.run("why", "none*", code=1)[1][-1] == "beanlite: no tube of a server that answers has a name like none*"
    )


def test_halted_server_is_left_out_in_time(fleet):
    fleet.put("one", "mail", b"x")
    fleet.servers["two"].signal(signal.SIGSTOP)
    out, err = fleet.run("jobs", code=1)
    assert out[1].split()[0] == "one:1"
    assert len(err) == 1
    assert err[0].startswith("beanlite: two is left out: ")


def test_server_that_goes_away_amid_questions_is_left_out(fleet):
    places = Places(tuple(Place(name, at, (("127.0.0.1", fleet.servers[name].port),)) for at, name in enumerate(NAMES)))
    for name in NAMES:
        fleet.put(name, "mail", *[b"x"] * 3)
    with Several(places) as several:
        request = {"order": "id", "limit": 4}
        first = several.list_jobs(request)
        fleet.servers["two"].kill()
        rest = several.list_jobs({**request, "after": first["next"]})
    assert [job["server"] for job in first["jobs"]] == ["one", "two", "three", "one"]
    assert [(job["server"], job["id"]) for job in rest["jobs"]] == [("three", 2), ("one", 3), ("three", 3)]
    assert rest["next"] is None
    assert list(several.away) == ["two"]


def test_put_goes_to_the_server_of_the_tube(fleet, tmp_path):
    assert fleet.run("put", "--tube", "mail", "a", "b")[0] == ["two:1", "two:2"]
    assert fleet.rows("put", "--tube", "orders", "a") == [{"server": "three", "id": 1}]
    lines = tmp_path / "jobs"
    lines.write_text(
        "".join(json.dumps({"tube": tube, "body": ""}) + "\n" for tube in ("sms", "mail", "mail.eu", "sms"))
    )
    assert fleet.run("put", "--jobs", str(lines))[0] == ["three:2", "two:3", "two:4", "three:3"]
    fleet.servers["two"].stop()
    assert fleet.run("put", "--tube", "sms", "a") == (["three:4"], [])  # the other one is not needed
    assert fleet.run("put", "--tube", "mail", "a", code=1)[1][0].startswith("beanlite: two is away: ")
    addresses = [word for name in ("one", "three") for word in ("--connect", f"127.0.0.1:{fleet.servers[name].port}")]
    assert main(["put", "x", *addresses]) == 2
    assert "nothing says which server has tube default: name one by --connect" in fleet.capsys.readouterr().err


def test_change_by_id_goes_to_the_server_of_the_job(fleet):
    fleet.put("one", "a", b"x", b"x")
    fleet.put("two", "mail", b"x", b"x", b"x")
    assert fleet.run("bury", "two:1", "one:2", "3")[0] == ["two: 2 jobs buried", "one: 1 job buried"]
    assert fleet.states("two:1", "one:2", "two:3", "one:1", "two:2") == ["buried"] * 3 + ["ready"] * 2
    refused = fleet.run("bury", "two:2", "1", code=1)[1]
    assert refused == ["beanlite: one and two have a job 1 each; say one:1 or two:1"]
    assert fleet.run("bury", "two:2", "99", code=1)[1] == ["beanlite: there is no job 99"]
    assert fleet.states("two:2") == ["ready"]
    fleet.servers["one"].stop()
    assert fleet.run("kick", "two:1") == (["two: 1 job kicked"], [])
    assert fleet.run("kick", "--tube", "mail") == (["two: 1 job kicked"], [])
    assert fleet.run("bury", "2", code=1)[1][-1] == "beanlite: job 2 may be in one; say where it is, as in one:2"


def test_change_by_tube_goes_where_the_tube_belongs(fleet):
    for name in NAMES:
        fleet.put(name, "orders", b"x")
    assert sorted(fleet.run("bury", "--tube", "orders")[0]) == ["three: 1 job buried", "two: 1 job buried"]
    assert sorted(fleet.run("pause", "orders", "1min")[0]) == [
        f"{name}: orders is paused for 1 min" for name in ("three", "two")
    ]
    assert fleet.states("one:1") == ["ready"]
    fleet.put("one", "mail", b"x")
    assert fleet.run("bury", "--tube", "mail", code=1)[1] == [
        "beanlite: tube mail belongs to two, and only one has it: name that server by --connect"
    ]


def test_selection_is_changed_in_each_server_that_is_there(fleet):
    for name in NAMES:
        fleet.put(name, "t", b"spam", b"ham")
    fleet.servers["one"].stop()
    changes = fleet.rows("delete", "--text", "spam", "--yes", code=1)
    assert [(each["server"], each["done"]) for each in changes] == [("two", 1), ("three", 1)]
    assert [row["preview"] for row in fleet.rows("jobs", code=1)] == ["ham", "ham"]


def test_jobs_are_not_moved_to_a_tube_of_another_server(fleet):
    fleet.put("two", "mail", b"x")
    fleet.put("three", "orders", b"x")
    refused = "beanlite: tube sms belongs to three, and 1 job would have to leave two; none was moved"
    assert fleet.run("move", "--state", "ready", "--to", "sms", code=1)[1] == [refused]
    assert fleet.run("move", "three:1", "--to", "sms")[0] == ["three: 1 job moved"]
    assert fleet.run("move", "two:1", "--to", "mail.old")[0] == ["two: 1 job moved"]


def test_policies_are_set_in_all_servers_and_schedules_in_one(fleet):
    assert len(fleet.run("policy", "set", "mail.*", "max_jobs=5")[0]) == 3
    assert [row["server"] for row in fleet.rows("policy", "list")] == list(NAMES)
    assert fleet.run("schedule", "set", "poll", "--every", "5min", "--tube", "mail", "--body", "x")[0][0].startswith(
        "two: "
    )
    assert [row["server"] for row in fleet.rows("schedule", "list")] == ["two"]
    assert fleet.run("schedule", "run", "poll")[0] == ["two:1"]
    assert fleet.run("schedule", "unset", "poll")[0] == ["two: poll is unset"]
    assert fleet.run("schedule", "unset", "poll", code=1)[1] == ["beanlite: no server has a schedule poll"]


def test_where_is_answered_from_the_file_and_from_those_that_are_up(fleet):
    fleet.put("one", "mail", b"x")
    fleet.servers["three"].stop()
    out, err = fleet.run("where", "mail")
    assert "one has 1 job of it, where it does not belong" in out
    assert err[0].startswith("beanlite: three is left out: ")
    for name in "one", "two":
        fleet.servers[name].stop()
    (facts,) = fleet.rows("where", "orders")
    found = {key: facts[key] for key in ("server", "connect", "moved_from", "version", "jobs")}
    address = f"127.0.0.1:{fleet.servers['three'].port}"
    assert found == {"server": "three", "connect": [address], "moved_from": "two", "version": 7, "jobs": {}}


def test_history_of_several_files_is_merged_by_time(fleet, tmp_path, capsys):
    fleet.put("two", "mail", b"x")
    fleet.put("one", "a", b"x")
    for job in ("two:1", "one:1"):
        fleet.run("bury", job)
    fleet.run("kick", "two:1")
    for server in fleet.servers.values():
        server.stop()
    files = [word for name in ("one", "two") for word in ("--db", f"{name}={tmp_path / name / 'queue.db'}")]
    assert main(["history", "--json", *files]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["server"], each["what"]) for each in events] == [("two", "bury"), ("one", "bury"), ("two", "kick")]
    assert main(["history", "--id", "two:1", "-n", "1", *files]) == 0
    assert "two:1  mail  kick" in capsys.readouterr().out
    assert main(["history", *files, "--database", "postgresql://db/queue"]) == 2
    assert "--db and --database exclude each other" in capsys.readouterr().err


def test_deleted_jobs_are_put_again_where_their_tube_belongs(fleet, tmp_path):
    with start_beanlite(tmp_path / "old", "--history", "1d", "--history-bodies") as old:
        with Wire(old.connect()) as client:
            for tube in ("mail", "sms"):
                client.ask(f"use {tube}")
                client.ask(f"delete {client.put(b'x')}")
        db = ["--db", str(tmp_path / "old" / "queue.db")]
        assert fleet.run("undelete", "1", *db) == (["job 1 is job two:1 now"], [])
        fleet.servers["two"].stop()
        assert fleet.rows("undelete", "2", *db) == [{"server": "three", "id": 1, "was": 2}]
        assert fleet.run("undelete", "1", *db, code=1)[1][0].startswith("beanlite: two is away: ")


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP])
async def test_screen_says_in_time_that_a_server_is_away_and_goes_on(fleet, tmp_path, ends):
    fleet.servers["four"] = start_beanlite(tmp_path / "four")
    for name in fleet.servers:
        fleet.put(name, "mail", b"x")
    servers = enumerate(fleet.servers.items())
    app = Top(Places(tuple(Place(name, at, (("127.0.0.1", server.port),)) for at, (name, server) in servers)))
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, lambda text: all(f"{name}:mail" in text for name in fleet.servers) and "4 ready" in text)
        fleet.servers["three"].signal(ends)
        async with asyncio.timeout(8 * AWAY_S):  # 5 s on a machine that has nothing else to do
            await shown(pilot, lambda text: "away     three: " in text and "three:mail" not in text)
        fleet.put("one", "mail", b"x")
        rest = ("one", "two", "four")
        await shown(pilot, lambda text: "4 ready" in text and all(f"{name}:mail" in text for name in rest))
        await pilot.press("enter")
        await shown(pilot, lambda text: "tube mail of " in text)
        fleet.servers["three"].signal(signal.SIGCONT)
