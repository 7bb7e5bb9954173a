"""What a page says once."""

import pytest
from starlette.requests import Request

from beanlite.console.query import LENGTH_MAX
from beanlite.web.notices import NOTICES_MAX, Notice, Notices
from beanlite.web.pages import link
from beanlite.web.redirects import back_of


def test_a_notice_is_shown_once():
    notices = Notices()
    token = notices.leave(Notice("The job was put"))
    assert notices.take("The job was put") == Notice()
    assert [notices.take(token).text for _ in range(2)] == ["The job was put", ""]


def test_notices_that_nobody_sees_are_forgotten():
    notices = Notices()
    tokens = [notices.leave(Notice(str(number))) for number in range(NOTICES_MAX + 5)]
    texts = [notices.take(token).text for token in tokens]
    assert texts == [""] * 5 + [str(number) for number in range(5, NOTICES_MAX + 5)]


@pytest.mark.parametrize(
    ("back", "leads_back"),
    [
        ("/", True),
        ("/tube/mail?state=buried", True),
        (link("/jobs", q=f"id:{'12345,' * 4000}"[:LENGTH_MAX]), True),
        ("//elsewhere.example.org", False),
        ("/\\elsewhere.example.org", False),
        ("https://elsewhere.example.org", False),
        ("/jobs?q=" + 70_000 * "x", False),
    ],
)
def test_form_leads_back_to_its_page_and_to_no_other_site(back, leads_back):
    assert back_of(Request({"type": "http"}), {"back": back}) == (back if leads_back else "/")
