"""How often clients were refused something: counted, and logged now and then."""

import logging

from beanlite.net.refusals import Refusals


def test_refusals_by_a_policy_are_counted_and_seldom_logged(caplog):
    refusals = Refusals()
    refusals.limits = {"tubes": 7}
    with caplog.at_level(logging.WARNING):
        refusals.note("tubes")
        for _ in range(5):
            refusals.note("max-jobs")
    assert (refusals.counts["max-jobs"], refusals.counts["tubes"]) == (5, 1)
    lines = [(record.getMessage(), record.fields) for record in caplog.records]
    assert lines == [
        ("tube refused", {"limit": 7, "refused": 1}),
        *(("put refused: a policy limits the jobs of the tube", {"refused": times}) for times in (1, 2, 4)),
    ]
