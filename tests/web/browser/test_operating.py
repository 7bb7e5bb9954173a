"""What an operator does in the browser, with a mouse, with the keyboard, and without scripts."""

import datetime as dt
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from tests.support.web import Web
from tests.web.browser.shop import trade

# What has the focus, and how that is seen.
FOCUS = """() => {
  const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
  return [document.activeElement.textContent, outlineStyle, outlineWidth];
}"""

# How the page tells a time.
TIME = """at => {
  const part = document.createElement("p");
  const time = document.createElement("time");
  time.dateTime = at;
  part.append(time);
  showTimes(part);
  return time.textContent;
}"""


def buried(wire, tube, bodies):
    """The ids of such jobs, all buried."""
    for command in (f"use {tube}", f"watch {tube}"):
        wire.ask(command)
    ids = [wire.put(body) for body in bodies]
    for job_id in ids:
        assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
        assert wire.ask(f"bury {job_id} 0") == "BURIED"
    return ids


def number_of(wire, tube, state):
    return int(wire.stats(f"stats-tube {tube}")[f"current-jobs-{state}"])


def test_numbers_move_without_a_reload(server, web, visit):
    with trade(server):
        page = visit(web, "/")
        page.evaluate("window.isTheSame = true")
        puts = page.locator(".rate", has_text="puts / s").locator("dd")
        expect(puts).to_have_text(re.compile("[1-9]"))
        seen = [puts.inner_text(), page.locator(".numbers .ready dd").inner_text()]
        expect(puts).not_to_have_text(seen[0])
        expect(page.locator(".numbers .ready dd")).not_to_have_text(seen[1])
        expect(page.get_by_role("link", name="billing", exact=True).first).to_be_visible()
        assert page.evaluate("window.isTheSame")


def test_a_buried_job_is_found_by_a_word_looked_at_and_kicked(web, wire, visit):
    bodies = [b'{"to": "user%d", "said": "%s"}' % (n, b"mailbox full" * (n == 7)) for n in range(20)]
    ids = buried(wire, "letters", bodies)
    page = visit(web, "/")
    page.get_by_role("link", name="letters", exact=True).first.click()
    page.get_by_role("link", name="Buried", exact=True).click()
    page.get_by_label("Filter").fill("state:buried mailbox full")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#list tbody tr")).to_have_count(1)
    page.locator(f'a[href="/job/{ids[7]}"]').click()
    expect(page.locator("pre")).to_contain_text('"said": "mailbox full"')
    page.get_by_role("button", name="Kick", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("1 job kicked.")
    page.goto("/tube/letters?state=buried&text=mailbox+full")
    expect(page.locator(".empty")).to_contain_text("No job fits")
    assert (number_of(wire, "letters", "buried"), number_of(wire, "letters", "ready")) == (19, 1)


def test_a_thousand_jobs_that_fit_are_moved(web, wire, visit):
    wire.ask("use many")
    wire.send(b"".join(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body) for body in [b"odd", b"even"] * 1000))
    for _ in range(2000):
        assert wire.reply().startswith("INSERTED")
    page = visit(web, "/tube/many?text=odd")
    page.get_by_label(re.compile("that match")).check()
    page.get_by_text("More", exact=True).last.click()
    page.get_by_label("to tube").fill("moved")
    page.get_by_role("button", name="Move").click()
    # Back where it was asked for; or, if that took long, on the page that has followed it.
    expect(page.get_by_role("status")).to_have_text(re.compile(r"1,000 jobs( moved)?\.$"))
    page.goto("/tube/moved")
    expect(page.locator("dl.numbers .ready dd")).to_have_text("1,000")
    assert number_of(wire, "many", "ready") == 1000


def test_the_keyboard_is_enough(web, wire, visit):
    (job_id,) = buried(wire, "keys", [b"job"])
    page = visit(web, "/")
    page.keyboard.press("/")
    page.keyboard.type("keys")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?like=keys")
    for key, path in (("j", "/jobs"), ("c", "/clients"), ("l", "/policies"), ("s", "/journal"), ("o", "/")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"http://{web.where}{path}")
    page.goto(f"/job/{job_id}")
    passed = []
    while "Kick" not in passed:
        page.keyboard.press("Tab")
        text, style, width = page.evaluate(FOCUS)
        passed.append(text)
        assert (style, width, len(passed) < 30) == ("solid", "2px", True), passed
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("1 job kicked.")
    assert number_of(wire, "keys", "ready") == 1


def test_it_does_without_scripts(web, wire, visit):
    (job_id,) = buried(wire, "plain", [b"job"])
    page = visit(web, "/tube/plain?state=buried", java_script_enabled=False)
    page.get_by_label(f"Job {job_id}").check()
    page.get_by_role("button", name="Kick").click()
    expect(page.get_by_role("status")).to_have_text("1 job kicked.")
    assert number_of(wire, "plain", "ready") == 1
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("status")).to_have_text("1 job brought back.")
    page.get_by_label(f"Job {job_id}").check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete 1 job").click()
    expect(page.get_by_role("status")).to_have_text("1 job deleted.")
    assert number_of(wire, "plain", "ready") == 0


def test_times_are_those_of_the_reader(web, wire, visit):
    wire.ask("use zones")
    page = visit(web, f"/job/{wire.put(b'x')}", timezone_id="Asia/Kolkata", locale="en-US")
    shown = page.locator(".facts time").first
    kolkata = dt.timezone(dt.timedelta(hours=5, minutes=30))
    moment = dt.datetime.fromisoformat(shown.get_attribute("datetime")).astimezone(kolkata)
    assert re.fullmatch(rf"({moment:%b} {moment.day}, )?{moment:%H:%M}", shown.inner_text())
    assert f"{moment.year}" in shown.get_attribute("title")
    assert page.evaluate(TIME, dt.datetime.now(kolkata).isoformat()) == f"{dt.datetime.now(kolkata):%H:%M}"
    assert page.evaluate(TIME, "2001-02-03T04:05:06Z") == "Feb 3, 2001, 09:35"
    this_year = f"{moment.year}-{1 if moment.month > 6 else 12:02}-02T04:05:06Z"
    assert re.fullmatch(r"(Jan|Dec) 2, 09:35", page.evaluate(TIME, this_year))


def test_a_reader_is_shown_no_forms_and_refused(server, wire, visit, tmp_path):
    made = [sys.executable, "-m", "beanlite", "web", "--add-user", "bob:reader"]
    line = subprocess.run(made, input="battery\n", capture_output=True, text=True, check=True).stdout
    (tmp_path / "users").write_text(line)
    job_id = wire.put(b"kept")
    with Web(f"127.0.0.1:{server.port}", "--password-file", tmp_path / "users") as web:
        page = visit(web, f"/job/{job_id}", http_credentials={"username": "bob", "password": "battery"})
        expect(page.locator("pre")).to_have_text("kept")
        expect(page.locator("form[method=post]")).to_have_count(0)
        own_page = {"sec-fetch-site": "same-origin"}
        wanted = {"ids": str(job_id), "do": "delete", "sure": "1"}
        refused = page.request.post("/change", form=wanted, headers=own_page)
        assert (refused.status, "You may look" in refused.text()) == (403, True)
    assert wire.ask(f"peek {job_id}").startswith("FOUND")


@pytest.fixture
def elsewhere(tmp_path):
    """Another site, on another port: its folder, and where it is."""
    handler = partial(SilentHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield tmp_path, f"http://127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join()


class SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_said):
        pass


def test_a_form_elsewhere_changes_nothing(web, wire, chromium, elsewhere):
    job_id = wire.put(b"kept")
    wanted = {"ids": job_id, "do": "delete", "sure": 1}
    fields = "".join(f'<input name="{name}" value="{value}">' for name, value in wanted.items())
    folder, site = elsewhere
    form = f'<form method="post" action="http://{web.where}/change">{fields}<button>Win</button></form>'
    (folder / "index.html").write_text(form)
    page = chromium.new_page()
    page.goto(f"{site}/index.html")
    page.get_by_role("button", name="Win").click()
    expect(page.locator("body")).to_have_text("Only a page of this site may ask for this.")
    page.close()
    assert wire.ask(f"peek {job_id}").startswith("FOUND")
