"""A tube moves only if no policy of a glob takes the jobs on their way, and if each copy is a job of its own."""

import pytest

from beanlite.console.live import Live

LEAVING, COMING = "mail(leaving)", "mail(coming)"


def set_policy(servers, server, pattern, **values):
    servers.wires[server].request("set-policy", pattern=pattern, set=values)


def put(servers, *bodies):
    wire = servers.wires["two"]
    wire.ask("use mail")
    for body in bodies:
        wire.put(body)


@pytest.mark.parametrize(
    ("server", "values", "way_out"),
    [
        ("two", {"ttl": "5m", "expired": "delete"}, f"beanlite policy set '{LEAVING}' ttl=off"),
        ("one", {"ttl": "5m"}, f"beanlite policy set '{COMING}' ttl=off"),
        ("one", {"unique": "present"}, f"beanlite policy set '{COMING}' unique=off"),
        ("one", {"max_jobs": "9", "unique": "waiting"}, f"beanlite policy set '{COMING}' max_jobs=off unique=off"),
    ],
)
def test_policy_that_would_take_jobs_on_their_way_refuses(servers, capsys, server, values, way_out):
    put(servers, b"a", b"b")
    before = servers.file.read_text()
    set_policy(servers, server, "*", **values)
    assert servers.move() == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.endswith(f": {way_out}\n")
    assert servers.file.read_text() == before
    assert len(servers.jobs("two")) == 2
    pattern, *exempt = way_out.removeprefix("beanlite policy set ").split()
    set_policy(servers, server, pattern.strip("'"), **dict(each.split("=") for each in exempt))
    assert servers.move() == 0
    assert len(servers.jobs("one")) == 2


def test_policies_on_both_servers_are_told_at_once(servers, capsys):
    put(servers, b"a")
    for server in ("one", "two"):
        set_policy(servers, server, "*", ttl="5m")
    assert servers.move() == 1
    first, second = (f"beanlite policy set '{tube}' ttl=off" for tube in (LEAVING, COMING))
    assert capsys.readouterr().err.endswith(f": {first} && {second}\n")


def test_policies_that_need_a_worker_do_not_keep_a_tube_from_moving(servers):
    put(servers, b"same", b"same")
    set_policy(servers, "two", "*", max_tries=1, retry="5s", rate="1/h", max_reserved=1, unique="present", max_jobs=1)
    set_policy(servers, "one", "*", max_tries=1, retry="5s", rate="1/h", max_reserved=1, fair=True)
    assert servers.move() == 0
    assert len(servers.jobs("one")) == 2


def test_jobs_that_a_new_policy_drops_stay_where_they_are(servers, monkeypatch, capsys):
    """The policy is set when the move has begun, and the two jobs with the same body are in different requests."""
    same = b"x" * 60_000
    put(servers, same, b"y" * 60_000, b"z" * 60_000, same)
    ask = Live.ask

    def set_before_copies(live, word, request):
        if request.get("do") == "move" and request.get("to") == LEAVING:
            set_policy(servers, "one", COMING, unique="present")
        return ask(live, word, request)

    with monkeypatch.context() as patch:
        patch.setattr(Live, "ask", set_before_copies)
        assert servers.move() == 1
    assert capsys.readouterr().err.endswith(f": beanlite policy set '{COMING}' unique=off\n")
    assert len(servers.jobs("two")) == 4
    set_policy(servers, "one", COMING, unique="off")
    assert servers.move() == 0
    assert len(servers.jobs("one")) == 4
