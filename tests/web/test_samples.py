"""The last hour of each tube, as far as it was seen."""

import pytest

from beanlite.web.curves import HEIGHT, curve
from beanlite.web.samples import EVERY_S, KEEP_S, POINT_S, TUBES_MAX, Samples

NOON = 1_700_000_010 // POINT_S * POINT_S


def tube(name="mail", ready=0, put=0, deleted=0):
    return {"name": name, "ready": ready, "total_jobs": put, "deletes": deleted}


def test_rates_are_those_between_the_last_two_samples():
    samples = Samples()
    assert samples.rates("mail", NOON) is None
    samples.note([tube(put=100)], NOON)
    assert samples.rates("mail", NOON) is None
    samples.note([tube(put=150, deleted=20)], NOON + EVERY_S)
    assert samples.rates("mail", NOON + EVERY_S) == (5.0, 2.0)
    samples.note([tube(put=1)], NOON + 2 * EVERY_S)  # a tube that has gone and come again
    assert samples.rates("mail", NOON + 2 * EVERY_S) is None
    assert samples.rates("mail", NOON + 2 * KEEP_S) is None


def test_points_have_the_last_counts_and_the_rates_since_the_previous():
    samples = Samples()
    for number in range(6):
        samples.note([tube(ready=number, put=60 * number, deleted=30 * number)], NOON + number * EVERY_S)
    first, second = samples.points("mail")
    assert first == {"at": NOON, "ready": 2}
    assert second == {"at": NOON + POINT_S, "ready": 5, "put": 6.0, "deleted": 3.0}


def test_there_is_a_gap_where_nothing_was_seen():
    samples = Samples()
    for at_s in (NOON, NOON + POINT_S, NOON + 5 * POINT_S):
        samples.note([tube(ready=1)], at_s)
    points = samples.points("mail")
    assert [point["at"] for point in points] == [NOON, NOON + POINT_S, NOON + 5 * POINT_S]
    assert ["put" in point for point in points] == [False, True, False]


def test_a_tube_that_has_gone_and_come_again_in_between_has_no_rates():
    samples = Samples()
    samples.note([tube(put=100, deleted=90)], NOON)
    samples.note([tube(put=1)], NOON + POINT_S)
    assert samples.points("mail")[1] == {"at": NOON + POINT_S, "ready": 0}


def test_only_an_hour_is_kept():
    samples = Samples()
    for number in range(1000):
        samples.note([tube()], NOON + number * EVERY_S)
    assert len(samples.points("mail")) == pytest.approx(KEEP_S / POINT_S, rel=0.2)


def test_tubes_that_have_gone_are_forgotten():
    samples = Samples()
    samples.note((tube(f"old-{number}") for number in range(TUBES_MAX)), NOON)
    samples.note([tube("new")], NOON + 2 * KEEP_S)
    assert not samples.points("old-0")
    assert samples.points("new")


def test_tubes_looked_at_longest_ago_are_forgotten():
    samples = Samples()
    for number in range(TUBES_MAX + 1):
        samples.look_at(f"tube-{number}", NOON + number)
    samples.look_at("tube-2", NOON + TUBES_MAX)
    assert samples.looked_at(NOON + TUBES_MAX)[0] == "tube-1"
    assert samples.looked_at(NOON + TUBES_MAX)[-1] == "tube-2"
    assert samples.looked_at(NOON + KEEP_S + TUBES_MAX) == [f"tube-{TUBES_MAX}", "tube-2"]


def test_a_curve_with_gaps_is_in_pieces(monkeypatch):
    monkeypatch.setattr("time.time", lambda: NOON + 5 * POINT_S)
    rows = [{"at": NOON + number * POINT_S, "ready": 7} for number in (0, 1, 3)]
    drawn = curve(rows, "ready", POINT_S, 6, gaps=True)
    assert drawn.line.count("M") == drawn.area.count("Z") == 2
    assert (drawn.most, drawn.total) == (7, 21)
    whole = curve(rows, "ready", POINT_S, 6)
    assert whole.line.count("M") == 1
    assert f",{HEIGHT}.0" in whole.line
    assert curve([], "ready", POINT_S, 6, gaps=True).line == ""
