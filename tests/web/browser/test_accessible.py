"""Every page for everybody: by axe-core's rules, on a phone as on a screen, light and dark."""

import re
import signal
from pathlib import Path

import pytest

from tests.support.needs import need
from tests.support.wire import Wire, until
from tests.web.browser.shop import fill

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
PATHS = """
/ /?like=nothing /?span=5min /tube/mail?state=buried /tube/mail?span=week /tube/none /jobs?text=welcome /jobs?older=soon
/jobs?columns=to,template /jobs?group=template /jobs?group=state&q=none
/job/{job} /job/{job}?body=hex /job/{job}?events=2 /job/999999 /change/{change} /clients /policies /backups /journal
/changes /put /put?from={job} /nothing
""".split()
# What no path leads to.
SELECTED, DONE, KEYS, ASKED, COMPLETED = "selected jobs", "what was done", "the keys", "the question", "completions"
WIDTHS = (1440, 390)
OF_COLOURS = ["color-contrast", "link-in-text-block"]  # the only rules that can be broken in the dark alone
RUN = "rules => axe.run(rules).then(({violations}) => violations.map(v => [v.impact, v.id, v.nodes[0].html]))"


@pytest.fixture(scope="module")
def paths(server, web):
    """The paths of all pages, with a job and a change that there are."""
    with Wire(server.connect()) as wire:
        job_id = fill(wire)
        asked = web.post("/change", {"ids": wire.put(b"job"), "do": "copy", "to": "default"})
        server.signal(signal.SIGSTOP)  # or nobody would be led to the page of the change
        try:
            change = web.post("/change", asked.fields).path
        finally:
            server.signal(signal.SIGCONT)
        until(lambda: "1 job copied." in web.get(change).text)
        yield [path.format(job=job_id, change=change.rpartition("/")[2]) for path in PATHS]


def each_page(page, paths):
    """Lead the page to each, and tell which it is."""
    for path in paths:
        page.goto(path)
        yield path
    page.goto("/tube/mail?state=buried")
    page.get_by_label("Select all on this page").check()
    page.get_by_text("More", exact=True).last.click()
    yield SELECTED
    page.get_by_role("button", name="Kick", exact=True).click()
    page.get_by_role("button", name="Undo").wait_for()
    yield DONE
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("brought back").wait_for()
    page.wait_for_load_state()  # or the script that hears the key may be missing
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    yield KEYS
    page.goto("/tube/mail?text=welcome")
    page.get_by_label(re.compile("that match")).check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("heading", name="Delete").wait_for()
    yield ASKED
    page.goto("/jobs?q=s")
    page.locator(".syntax summary").click()
    page.get_by_label("Filter").press("ArrowDown")
    page.get_by_role("option").first.wait_for()
    page.get_by_label("Filter").press("ArrowDown")
    yield COMPLETED


@pytest.mark.parametrize("width", [WIDTHS[0], pytest.param(WIDTHS[1], marks=pytest.mark.nightly)])
def test_no_rule_of_axe_is_broken(web, visit, paths, width):
    need(AXE.exists(), "axe-core is not installed: npm install --prefix tests/web/browser")
    # The pages themselves let no script in that is not theirs; and a colour that is on its way to another is no colour.
    page = visit(web, "/", bypass_csp=True, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 900})
    broken = {}
    for path in each_page(page, paths):
        page.evaluate(AXE.read_text(encoding="utf-8"))
        for colours, rules in (("light", {}), ("dark", {"runOnly": OF_COLOURS})):
            page.emulate_media(color_scheme=colours)
            if found := page.evaluate(RUN, rules):
                broken[path, colours] = found
    assert broken == {}


def test_no_page_scrolls_sideways(web, visit, paths):
    page = visit(web, "/")
    seen = {}
    for path in each_page(page, paths):
        for width in (*WIDTHS, 320):
            page.set_viewport_size({"width": width, "height": 700})
            seen[path, width] = page.evaluate("document.documentElement.scrollWidth")
    assert {(path, width): found for (path, width), found in seen.items() if found != width} == {}
