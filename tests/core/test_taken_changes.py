"""Changes that have been taken stay as they are, whatever happens until they are stored."""

from tests.support.core import put


def test_what_happens_later_is_not_in_the_changes_taken_before(core):
    core.engine.ledger.start_recording()
    client = core.client()
    taken = core.engine.take_changes(deferred=True)  # nothing has happened yet
    put(core, client)
    assert not taken.has_content
    taken = core.engine.take_changes(deferred=True)
    core.send(client, b"delete 1\r\n")
    assert [event.what for event in taken.events] == ["put"]
    assert [event.what for event in core.engine.take_changes(deferred=True).events] == ["delete"]
