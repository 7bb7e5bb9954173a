"""How an operator deletes jobs by keys, puts them again, and finds both in the list of changes."""

import pytest
from playwright.sync_api import expect

from tests.support.servers import start_beanlite
from tests.support.web import Web
from tests.support.wire import Wire


@pytest.fixture
def server(tmp_path):
    with start_beanlite(tmp_path, "--history", "1d", "--history-bodies") as server:
        yield server


@pytest.fixture
def web(server):
    with Web(f"127.0.0.1:{server.port}", "--db", server.directory / "queue.db") as web:
        yield web


def expect_status(page, text):
    expect(page.get_by_role("status")).to_have_text(text)


def test_deleted_jobs_are_put_again_by_keys(web, server, visit):
    with Wire(server.connect()) as wire:
        wire.ask("use mail")
        ids = [wire.put(b"job %d" % number) for number in range(3)]
        page = visit(web, "/tube/mail")
        for key in "jxjxd":
            page.keyboard.press(key)
        expect_status(page, "2 jobs deleted.")
        assert wire.stats("stats-tube mail")["current-jobs-ready"] == "1"
        expect(page.get_by_role("button", name="Put them again")).to_be_visible()
        page.wait_for_load_state()
        page.keyboard.press("u")
        expect_status(page, "2 jobs put again, as new jobs with new ids.")
        assert wire.stats("stats-tube mail")["current-jobs-ready"] == "3"
        page.goto(f"/job/{ids[2]}")
        page.keyboard.press("d")
        page.get_by_role("button", name="Delete").click()
        expect_status(page, "1 job deleted.")
        page.goto("/")
        page.keyboard.press("g")
        page.keyboard.press("h")
        expect(page.get_by_role("heading", name="Changes")).to_be_visible()
        expect(page.locator("#entries tbody tr")).to_have_count(3)
        page.wait_for_load_state()
        page.keyboard.press("u")
        expect_status(page, "1 job put again, as a new job with a new id.")
        page.goto("/changes")
        expect(page.locator("#entries tbody tr")).to_have_count(4)
        expect(page.get_by_role("button", name="Put them again")).to_have_count(0)
        page.goto(f"/job/{ids[0]}")
        page.get_by_role("link", name="Put again").click()
        expect(page.get_by_role("heading", name=f"Put job {ids[0]} again")).to_be_visible()
        expect(page.get_by_label("Body")).to_have_value("job 0")


def test_deletion_made_elsewhere_is_found_and_put_again_by_keys(web, server, visit):
    with Wire(server.connect()) as wire, Web(f"127.0.0.1:{server.port}") as elsewhere:
        wire.ask("use mail")
        ids = [wire.put(b"job %d" % number) for number in range(3)]
        wire.ask("use other")
        other = wire.put(b"other")
        for each in (",".join(map(str, ids)), other):
            asked = elsewhere.post("/change", {"ids": each, "do": "delete"})
            elsewhere.post("/change", dict(asked.fields))
        page = visit(web, "/")
        page.keyboard.press("g")
        page.keyboard.press("h")
        deeds = page.locator("#deeds tbody tr")
        expect(deeds).to_have_count(2)
        page.keyboard.press("/")
        page.keyboard.press("Tab")
        page.keyboard.type("mail")
        page.keyboard.press("Enter")
        expect(deeds).to_have_count(1)
        expect(deeds).to_contain_text("delete")
        page.get_by_role("link", name=f"job {ids[0]}").focus()
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Put again").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_label("Body")).to_have_value("job 0")
