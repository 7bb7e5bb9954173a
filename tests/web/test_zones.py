"""The times of day in a filter are those of the reader's zone, as the times are that a page shows."""

import re
import time

import pytest

from beanlite.console import units
from beanlite.web.notices import Mistake
from beanlite.web.operating import Asked
from beanlite.web.pages import filter_of

TOKYO_S = 9 * 3600


def test_times_in_a_filter_are_those_of_the_zone_that_it_names(web, wire):
    job_id = wire.put(b"job")
    a_minute_ago = time.gmtime(time.time() - 60 + TOKYO_S)
    line = time.strftime("since:%Y-%m-%dT%H:%M:%S", a_minute_ago)
    assert f'/job/{job_id}"' not in web.get(f"/jobs?q={line}").html
    page = web.get(f"/jobs?q={line}&zone=Asia/Tokyo")
    assert f'/job/{job_id}"' in page.html
    assert "Its moments are times in Asia/Tokyo." in page.text
    assert page.fields["zone"] == "Asia/Tokyo"  # of the form that changes them
    assert re.search(r'href="/jobs\?q=[^"]*&amp;zone=Asia%2FTokyo', page.html)
    assert "1 job buried" in web.post("/change", {**page.fields, "scope": "all", "do": "bury"}).text
    assert "Its moments" not in web.get("/jobs?q=state:ready&zone=Asia/Tokyo").text


@pytest.mark.parametrize("zone", ["Europe", "Atlantis", "../etc/passwd", "/etc/localtime", "x" * 10_000, "\0"])
def test_no_time_is_taken_for_one_in_another_zone(zone):
    assert units.zone_of(zone) is None
    for moment in ("02:00", "2026-11-27", "2026-11-27 14:30"):
        with pytest.raises(Mistake, match="is not known on the machine of this page; write the time in UTC") as caught:
            filter_of({"q": f'until:"{moment}"', "zone": zone})
        assert caught.value.name == "q"
        with pytest.raises(Mistake, match="is not known") as caught:
            Asked.of({"since": moment, "zone": zone}).conditions(0, hides=False)
        assert caught.value.name == "since"
    for moment in ("02:00Z", "2026-11-27Z", "2026-11-27T14:30+05:30"):
        at = filter_of({"q": f"since:{moment}"}).since_at
        assert filter_of({"q": f"since:{moment}", "zone": zone}).since_at == at
    assert filter_of({"q": "since:24h", "zone": zone}).since_at


def test_zone_of_a_browser_without_scripts_is_that_of_the_page():
    assert filter_of({"q": "since:2026-11-27", "zone": ""}) == filter_of({"q": "since:2026-11-27"})


def test_nothing_is_changed_at_times_in_a_zone_that_is_not_known(web, wire):
    wire.put(b"job")
    page = web.get("/jobs?q=since:2026-11-27&zone=Atlantis")
    assert "the zone Atlantis is not known on the machine of this page" in page.text
    asked = web.post("/change", {"scope": "all", "q": "since:2026-11-27", "zone": "Atlantis", "do": "bury"})
    assert "the zone Atlantis is not known" in asked.text
    assert wire.stats("stats")["current-jobs-ready"] == "1"


def test_changes_are_asked_for_in_the_zone_of_the_reader():
    asked = Asked.of({"since": "2026-11-27", "zone": "Asia/Tokyo"})
    utc = Asked.of({"since": "2026-11-27Z"}).conditions(0, hides=False)["since_at"]
    assert asked.conditions(0, hides=False)["since_at"] == utc - TOKYO_S
    assert asked.query["zone"] == "Asia/Tokyo"
    assert Asked.of({"by": "ann", "zone": "Asia/Tokyo"}).query["zone"] == ""
