"""What a page says once."""

from beanlite.web.notices import NOTICES_MAX, Notice, Notices


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
