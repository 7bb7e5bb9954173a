"""Jobs grouped by what is in their bodies or by a fact, and the filter by names of tubes, tries and notes."""

from collections import Counter

from beanlite.core import operator_find
from beanlite.protocol.operators import lists as operator_lists
from tests.support.core import put
from tests.support.fetching import unloaded_core


def in_tube(core, session, tube, *bodies):
    core.send(session, b"use %b\r\n" % tube)
    return [put(core, session, body) for body in bodies]


def groups(operator, **what):
    """The numbers of jobs by value, over all slices."""
    counts = Counter()
    for value, jobs in operator.all("group-jobs", "groups", **what):
        counts[value] += jobs
    return dict(counts)


def test_jobs_are_counted_by_the_value_at_a_path(core, operator):
    in_tube(core, core.client(), b"a", *[b'{"error": {"type": "%b"}}' % kind for kind in (b"Timeout", b"Refused") * 3])
    in_tube(core, core.client(), b"b", b'{"error": {"type": "Timeout"}}', b'{"error": {}}', b"no JSON")
    assert groups(operator, path="error.type") == {"Timeout": 4, "Refused": 3, None: 2}
    assert groups(operator, path="error.type", tube="b") == {"Timeout": 1, None: 2}
    assert groups(operator, path="error.type", where="error.type=Timeout") == {"Timeout": 4}
    assert groups(operator, path="error") == {'{"type":"Timeout"}': 4, '{"type":"Refused"}': 3, "{}": 1, None: 1}


def test_jobs_are_counted_by_a_fact(core, operator):
    session = core.client()
    in_tube(core, session, b"a", b"1", b"2", b"3")
    in_tube(core, session, b"b", b"4")
    operator.change("bury", ids=[1, 2])
    operator.change("note", ids=[2, 3], note="timed out\nat line 7")
    assert groups(operator, fact="tube") == {"a": 3, "b": 1}
    assert groups(operator, fact="state") == {"buried": 2, "ready": 2}
    assert groups(operator, fact="why") == {"operator": 2, None: 2}
    assert groups(operator, fact="note", tube="a") == {"timed out": 2, None: 1}


def test_slice_groups_few_jobs_and_all_slices_group_each_once(core, operator, monkeypatch):
    in_tube(core, core.client(), b"a", *[b'{"n": %d}' % (number % 3) for number in range(100)])
    monkeypatch.setattr(operator_lists, "GROUPED_MAX", 7)
    monkeypatch.setattr(operator_lists, "LOOKS_MAX", 7)
    for what in ({"path": "n"}, {"fact": "tube"}):
        reply = operator.ask("group-jobs", **what)
        assert (reply["next"], reply["looked"], sum(jobs for _, jobs in reply["groups"])) == ("7-100", 7, 7)
    assert groups(operator, path="n") == {"0": 34, "1": 33, "2": 33}
    assert groups(operator, fact="tube") == {"a": 100}
    monkeypatch.setattr(operator_find, "BYTES_MAX", 3 * operator_find.PARSED_EACH)
    assert operator.ask("group-jobs", path="n")["looked"] == 3


def test_bodies_that_are_not_in_memory_are_grouped_and_shown():
    core, operator = unloaded_core([b'{"n": 1}', b'{"n": 2}', b'{"n": 1}'])
    assert all(core.engine.jobs.find(job_id).body is None for job_id in (1, 2, 3))
    assert groups(operator, path="n") == {"1": 2, "2": 1}
    assert groups(operator, path="n", where="n=1") == {"1": 2}
    assert [job["values"] for job in operator.ask("list-jobs", paths=["n"])["jobs"]] == [["1"], ["2"], ["1"]]


def test_list_has_the_values_at_paths(core, operator):
    in_tube(core, core.client(), b"a", b'{"customer": 4711, "error": {"type": "Timeout"}}', b"{}")
    jobs = operator.ask("list-jobs", paths=["error.type", "customer"])["jobs"]
    assert [job["values"] for job in jobs] == [["Timeout", "4711"], [None, None]]
    assert "values" not in operator.ask("list-jobs")["jobs"][0]


def test_jobs_are_those_of_tubes_whose_names_match(core, operator, monkeypatch):
    for tube in (b"web", b"web.de", b"mail"):
        in_tube(core, core.client(), tube, b"1", b"2")
    operator.change("bury", ids=[3])
    core.send(operator.session, b"reserve-job 4\r\n")
    for _ in range(2):
        assert operator.ids(tube_like="web*") == [1, 2, 3, 4]
        assert operator.ids(tube_like="web?de", state="buried") == [3]
        assert operator.ids(tube_like="web*", state="reserved") == [4]
        assert operator.ids(tube_like="x*") == []
        monkeypatch.setattr(operator_find, "FEW_TUBES_MAX", 2)
    assert operator.change("kick", tube_like="web*") == (1, 3)


def test_of_few_tubes_only_their_jobs_are_looked_at(core, operator):
    in_tube(core, core.client(), b"web", b"1", b"2")
    in_tube(core, core.client(), b"mail", *[b"3"] * 50)
    assert operator.ask("list-jobs", tube_like="w*")["looked"] == 2
    assert operator.ask("list-jobs", tube_like="x*")["looked"] == 0


def test_jobs_are_chosen_by_tries_timeouts_releases_why_and_note(core, operator):
    worker = core.client()
    in_tube(core, worker, b"default", b"1", b"2", b"3")
    for _ in range(2):
        core.send(worker, b"reserve-job 1\r\nrelease 1 0 0\r\n")
    core.send(worker, b"reserve-job 2\r\n")
    core.wait(61)
    core.send(worker, b"reserve-job 3\r\nbury 3 0\r\n")
    operator.change("note", ids=[2], note="see INC-4711")
    assert operator.ids(tries_min=2) == operator.ids(releases_min=2) == [1]
    assert operator.ids(timeouts_min=1) == [2]
    assert operator.ids(why="client") == [3]
    assert operator.ids(why="operator") == []
    assert operator.ids(note_text="INC-4711") == [2]
    assert operator.ids(tries_min=1) == [1, 2, 3]
    operator.change("kick", ids=[3])
    assert operator.ids(tries_min=1) == [1, 2]
    assert operator.ids(where=["a=1", "b=2"]) == []


def test_slice_ends_when_so_many_bytes_of_notes_were_searched(core, operator, monkeypatch):
    for _ in range(10):
        operator.change("note", ids=[put(core, operator.session)], note="n" * 400)
    monkeypatch.setattr(operator_find, "BYTES_MAX", 1000)
    assert operator.ask("list-jobs", note_text="other")["looked"] == 3
    assert operator.ask("list-jobs", note_text="n")["looked"] == 3
    assert operator.ask("group-jobs", note_text="other", fact="state")["looked"] == 3
    assert len(operator.all("list-jobs", "jobs", note_text="n")) == 10


def test_slice_ends_sooner_with_more_conditions(core, operator, monkeypatch):
    for _ in range(20):
        put(core, operator.session, b'{"a": 1, "b": "%b"}' % (b"x" * 5000))
    monkeypatch.setattr(operator_find, "BYTES_MAX", 30_000)
    looked = [operator.ask("list-jobs", where=where)["looked"] for where in (["c=2"], ["a=1"] * 7 + ["c=2"])]
    assert looked == [5, 1]


def test_first_lines_of_fewer_notes_are_told_in_a_slice(core, operator, monkeypatch):
    monkeypatch.setattr(operator_lists, "GROUPED_MAX", 3)
    for _ in range(5):
        put(core, operator.session)
    assert operator.ask("group-jobs", fact="note")["looked"] == 3
    assert operator.ask("group-jobs", fact="state")["looked"] == 5
