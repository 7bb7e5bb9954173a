"""Moves of a tube from several machines, each with a copy of the file of servers, and what is left of a killed one."""

from beanlite.cli import main
from beanlite.cli.shard import _alone_with
from beanlite.console.live import Live
from tests.support.wire import Wire, until


def test_two_moves_at_once_neither_lose_nor_double_a_job(servers, monkeypatch, capsys, tmp_path):
    text = servers.file.read_text()
    other_file = tmp_path / "one" / "servers.toml"
    ask = Live.ask
    asked, codes = 0, []

    def interfere(live, word, request):
        nonlocal asked
        asked += 1
        if asked == at:
            with monkeypatch.context() as patch:
                patch.setattr(Live, "ask", ask)
                codes.append(main(["shard", "move", "mail", "--to", "one", "--servers", str(other_file)]))
        return ask(live, word, request)

    for at in range(1, 100, 6):
        servers.file.write_text(text)
        other_file.write_text(text)
        jobs = servers.fill(1)
        asked = 0
        with monkeypatch.context() as patch:
            patch.setattr(Live, "ask", interfere)
            assert servers.move() == 0
        assert sorted(servers.jobs("one")) == sorted(jobs), at
        assert servers.jobs("two") == []
        if asked < at:
            break
        servers.wires["one"].request("change-jobs", do="delete", tube="mail")
    assert set(codes) == {0, 1}
    assert "another move of mail is under way: a client uses mail(leaving) on 127.0.0.1:" in capsys.readouterr().err


def test_move_of_a_paused_tube_keeps_others_away_to_its_end(servers, monkeypatch):
    servers.fill(1)
    servers.wires["two"].ask("pause-tube mail 500")
    ask = Live.ask
    claims = []

    def look(live, word, request):
        if request.get("do") in {"note", "delete"}:
            for server, tube in (("two", "mail(leaving)"), ("one", "mail(coming)")):
                reply = servers.wires[server].request("list-tube-stats", names=[tube])
                claims.append([each["using"] for each in reply["tubes"]])
        return ask(live, word, request)

    monkeypatch.setattr(Live, "ask", look)
    assert servers.move() == 0
    assert len(claims) == 8
    assert all(claim == [1] for claim in claims)


def test_job_whose_copy_is_gone_stays_on_the_old_server(servers, monkeypatch, capsys):
    jobs = servers.fill(1)
    ask = Live.ask

    def delete_copies(live, word, request):
        if request.get("do") == "note":
            servers.wires["one"].request("change-jobs", do="delete", tube="mail(coming)")
        return ask(live, word, request)

    with monkeypatch.context() as patch:
        patch.setattr(Live, "ask", delete_copies)
        assert servers.move() == 1
    assert "is gone meanwhile" in capsys.readouterr().err
    assert servers.move() == 0
    assert sorted(servers.jobs("one")) == sorted(jobs)


def test_move_by_a_link_to_the_file_is_not_beside_another(servers, capsys, tmp_path):
    link = tmp_path / "one" / "linked.toml"
    link.symlink_to(servers.file)
    with _alone_with(servers.file):
        assert main(["shard", "move", "mail", "--to", "one", "--servers", str(link)]) == 1
    assert f"another move is under way with {link}" in capsys.readouterr().err


def test_late_command_of_a_killed_move_loses_no_job(servers, monkeypatch):
    """The originals of copies vanish while the next move is under way, as if clients had deleted the jobs."""
    jobs = servers.fill(1)
    ask = Live.ask
    killed = Wire(servers.processes["two"].connect())
    killed.ask("use mail(leaving)")

    def late(live, word, request):
        if request.get("do") == "delete":
            killed.request("change-jobs", do="delete", tube="mail(leaving)")
        return ask(live, word, request)

    monkeypatch.setattr(Live, "ask", late)
    before = servers.file.read_text()
    assert servers.move() == 1
    assert servers.file.read_text() == before
    killed.close()
    monkeypatch.setattr(Live, "ask", ask)
    until(lambda: servers.move() == 0)
    assert sorted(servers.jobs("one")) == sorted(jobs)


def test_pause_goes_along_and_schedules_that_stay_are_told(servers, capsys):
    wire = servers.wires["two"]
    wire.ask("use mail")
    wire.put(b"paused")
    wire.ask("pause-tube mail 500")
    wire.request("set-schedule", name="nightly", when="every 1h", tube="mail", body="x")
    assert servers.move() == 0
    told = "schedules that put into mail stay on two: nightly; unset them, and set them again"
    assert told in capsys.readouterr().out.splitlines()
    assert 490 < int(servers.wires["one"].stats("stats-tube mail")["pause-time-left"]) <= 500


def test_longer_pause_of_the_new_server_stays(servers):
    for name, pause_s in (("one", 900), ("two", 500)):
        servers.wires[name].ask("use mail")
        servers.wires[name].put(b"paused")
        servers.wires[name].ask(f"pause-tube mail {pause_s}")
    assert servers.move() == 0
    assert servers.wires["one"].stats("stats-tube mail")["pause"] == "900"


def test_tube_that_was_given_to_a_server_by_hand_moves_there(servers, capsys):
    wire = servers.wires["two"]
    wire.ask("use mail")
    wire.put(b"where it does not belong")
    servers.file.write_text(
        servers.file.read_text().replace('["*"]', "[]").replace("number = 1", 'number = 1\ntubes = "mail"')
    )
    assert servers.move() == 0
    assert [job[1] for job in servers.jobs("one")] == ["where it does not belong"]
    assert '"mail" = { from = "two", to = "one" }' in servers.file.read_text()
    servers.file.write_text(servers.file.read_text().split("[moved]")[0])
    assert servers.move() == 2
    assert "mail belongs to one already, and no other server has jobs of it" in capsys.readouterr().err
