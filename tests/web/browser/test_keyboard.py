"""Each thing that an operator can do on the page is done with the keyboard alone."""

import re

import pytest
from playwright.sync_api import expect

# What has the focus, as a reader is told.
FOCUSED = """() => {
  const it = document.activeElement;
  return it.ariaLabel || it.labels?.[0]?.textContent.trim() || it.textContent.trim();
}"""
TABS_MAX = 80


def tab_to(page, name):
    """Press Tab until the button, field or link of this name has the focus."""
    passed = []
    while not passed or passed[-1] != name:
        page.keyboard.press("Tab")
        passed.append(page.evaluate(FOCUSED))
        assert len(passed) < TABS_MAX, passed


def press(page, name):
    """Go to it, and press Enter there."""
    tab_to(page, name)
    page.keyboard.press("Enter")


def confirm(page, name):
    """Press the button of this name on the page that asks whether one is sure."""
    expect(page.get_by_role("button", name=name, exact=True)).to_be_visible()
    press(page, name)


def fill(page, **fields):
    """Go to each field, and type a text in the place of what is there."""
    for name, text in fields.items():
        tab_to(page, name.replace("_", " "))
        page.keyboard.press("Control+a")
        page.keyboard.type(text)


def tells(page, words):
    expect(page.get_by_role("status")).to_have_text(re.compile(words))


def job_in(wire, tube, state="ready"):
    """The id of a job in this state."""
    for command in (f"use {tube}", f"watch {tube}"):
        wire.ask(command)
    job_id = wire.put(b"body")
    if state != "ready":
        assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
    if state == "buried":
        assert wire.ask(f"bury {job_id} 0") == "BURIED"
    if state == "delayed":
        assert wire.ask(f"release {job_id} 0 1000") == "RELEASED"
    return job_id


@pytest.mark.parametrize(
    ("state", "button", "words", "left"),
    [
        ("buried", "Kick", "1 job kicked.", "ready"),
        ("delayed", "Kick", "1 job kicked.", "ready"),
        ("ready", "Bury", "1 job buried.", "buried"),
    ],
)
def test_job_changes_its_state_and_returns_to_it_by_keys(web, wire, visit, state, button, words, left):
    job_id = job_in(wire, "keys-states", state)
    page = visit(web, f"/job/{job_id}")
    press(page, button)
    tells(page, words)
    assert wire.stats(f"stats-job {job_id}")["state"] == left
    page.wait_for_load_state()  # or the script that hears the key may be missing
    page.keyboard.press("u")
    tells(page, "1 job brought back.")
    assert wire.stats(f"stats-job {job_id}")["state"] == state


def test_job_is_deleted_by_keys(web, wire, visit):
    job_id = job_in(wire, "keys-delete")
    page = visit(web, f"/job/{job_id}")
    press(page, "Delete")
    confirm(page, "Delete 1 job")
    tells(page, "1 job deleted.")
    assert wire.ask(f"stats-job {job_id}") == "NOT_FOUND"


def test_reserved_job_is_released_by_keys(web, wire, visit):
    job_id = job_in(wire, "keys-release", "reserved")
    wire.ask("ignore keys-release")
    page = visit(web, f"/job/{job_id}")
    press(page, "Release")
    confirm(page, "Release 1 job")
    tells(page, "1 job released.")
    assert wire.stats(f"stats-job {job_id}")["state"] == "ready"
    wire.ask("watch keys-release")


@pytest.mark.parametrize(
    ("field", "text", "button", "words", "fact", "value"),
    [
        ("to_tube", "keys-moved", "Move", "1 job moved.", "tube", '"keys-moved"'),
        ("pri", "7", "Reprioritise", "1 job", "pri", "7"),
        ("for", "5min", "Delay", "1 job delayed.", "state", "delayed"),
    ],
)
def test_job_is_changed_by_a_field_and_keys(web, wire, visit, field, text, button, words, fact, value):
    job_id = job_in(wire, "keys-fields")
    page = visit(web, f"/job/{job_id}")
    press(page, "More")
    fill(page, **{field: text})
    press(page, button)
    tells(page, words)
    assert wire.stats(f"stats-job {job_id}")[fact] == value


def test_job_is_copied_and_gets_a_note_by_keys(web, wire, visit):
    job_id = job_in(wire, "keys-notes")
    page = visit(web, f"/job/{job_id}")
    press(page, "More")
    fill(page, to_tube="keys-copies")
    press(page, "Copy")
    confirm(page, "Copy 1 job")
    tells(page, "1 job copied.")
    assert wire.stats("stats-tube keys-copies")["current-jobs-ready"] == "1"
    page.goto(f"/job/{job_id}")
    press(page, "Leave a note")
    fill(page, The_note="printer on fire")
    press(page, "Leave note")
    confirm(page, "Leave a note on 1 job")
    expect(page.get_by_role("region", name="Text of the note")).to_have_text("printer on fire")


def test_job_is_put_by_keys(web, wire, visit):
    page = visit(web, "/put")
    fill(page, Tube="keys-put", pri="9", Delay="0", ttr="2min", Body="hello")
    press(page, "Put")
    tells(page, "The job was put.")
    assert wire.stats("stats-tube keys-put")["current-jobs-ready"] == "1"


def test_tube_is_paused_and_opened_by_keys(web, wire, visit):
    job_in(wire, "keys-pause")
    page = visit(web, "/tube/keys-pause")
    fill(page, Pause_for="5min")
    press(page, "Pause")
    tells(page, "paused")
    assert wire.stats("stats-tube keys-pause")["pause"] == "300"
    press(page, "End the pause")
    expect(page.get_by_role("button", name="End the pause")).to_have_count(0)
    assert wire.stats("stats-tube keys-pause")["pause"] == "0"


def test_policy_is_set_and_unset_by_keys(web, wire, visit):
    page = visit(web, "/policies")
    fill(page, For_tubes="keys-policy")
    page.keyboard.press("Tab")
    page.keyboard.type("max_jobs")
    fill(page, to="17")
    page.keyboard.press("Enter")
    tells(page, "keys-policy: max_jobs=17")
    rows = wire.request("list-policies")["policies"]
    assert [(row["key"], row["value"]) for row in rows if row["pattern"] == "keys-policy"] == [("max_jobs", "17")]
    press(page, "Unset for keys-policy: max_jobs")
    tells(page, "keys-policy: unset max_jobs")
    assert not [row for row in wire.request("list-policies")["policies"] if row["pattern"] == "keys-policy"]


def test_schedule_is_run_and_removed_by_keys(web, wire, visit):
    wire.request("set-schedule", name="keys", tube="keys-nightly", when="0 3 * * *", body="x")
    page = visit(web, "/policies")
    press(page, "Run keys")
    tells(page, "was put by keys")
    assert wire.stats("stats-tube keys-nightly")["current-jobs-ready"] == "1"
    press(page, "Remove keys")
    tells(page, "The schedule keys was removed")
    assert not [each for each in wire.request("list-schedules")["schedules"] if each["name"] == "keys"]
