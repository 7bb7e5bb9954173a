"""The notes on jobs, by the replies that clients got to them."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulator.ledger import FOREVER, Ledger, must

TEXTS = (b"", b"x", b"why\nit failed", b"n" * 300, b"m" * 4096)


@dataclass(eq=False)
class Note:
    """A note that a client has left: when it was sent, and when that was acknowledged."""

    text: bytes
    sent: int
    told: int = FOREVER


class Notes:
    """What the note of each job may be."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._left: dict[int, list[Note]] = {}

    def asks(self, job_id: int, text: bytes) -> Callable[[bytes, bytes], None]:
        """Enter a note that a client leaves; returns what is to be called with the word and the body of the reply."""
        note = Note(text, self._ledger.tick())
        left = self._left.setdefault(job_id, [Note(b"", 0, 0)])
        left.append(note)

        def heard(word: bytes, body: bytes) -> None:
            if word == b"NOTED" or (word == b"OK" and json.loads(body)["done"]):
                note.told = self._ledger.tick()
            else:
                left.remove(note)

        return heard

    def compare(self, found: dict[int, bytes], *, strict: bool) -> None:
        """Check what a restart has found, and take it as the truth from now on."""
        for job_id, text in found.items():
            left = self._left.get(job_id, [Note(b"", 0, 0)])
            last = max(note.sent for note in left if note.told < FOREVER)
            possible = {note.text for note in left if note.told > last or note.sent == last}
            must(not strict or text in possible, f"the note of job {job_id} is {text!r}: it may be {possible}")
        self._left = {job_id: [Note(text, self._ledger.tick(), self._ledger.tick())] for job_id, text in found.items()}
