"""How much memory the server takes by its own count, and how much it may take.

Jobs, their bodies, tubes, clients and clients' buffers are counted. The count is exact in number and approximate in
bytes. It follows each change at once, unlike the size that the system reports for the process.
"""

from collections.abc import Callable
from typing import Final

from beanlite.core.counts import Counts
from beanlite.core.flows import FLOWS_BYTES, PART as FLOWS_PART
from beanlite.core.kept import EXPIRY_BYTES, KEPT_BYTES, TWIN_BYTES
from beanlite.core.queues import Queues

# What each of these takes at most in a compiled server, in bytes: a job without its body, its past once it has been
# reserved, kicked or buried, a body in addition to its content, a tube, a client, what TLS takes of a client more, a
# tube that a client watches and waits at.
JOB_BYTES: Final = 300
PAST_BYTES: Final = 200
BODY_BYTES: Final = 48
TUBE_BYTES: Final = 700
CLIENT_BYTES: Final = 8000
TLS_BYTES: Final = 82_000
WATCHED_BYTES: Final = 150
# A note, in addition to its text: by its id in dicts of notes, and of those to be stored.
NOTE_BYTES: Final = 200
# Bodies of many sizes fragment the heap: for every four bytes of bodies one more is taken.
GAPS: Final = 4
# What is known of a tube in which something has happened recently.
PULSE_BYTES: Final = 650
# Clients' buffers may take a quarter of the memory, replies that are held another one. So may notes, and so may tubes,
# which may also take more as long as there is room.
PART: Final = 4
# The part of the bound that is left to bodies, however many jobs there are: a sixteenth. A body that has been put must
# be in memory until it is stored, and one that has been fetched until it is sent.
BODIES_LEAST: Final = 16
# More bytes than any machine has, and small enough for arithmetic without objects in compiled code.
NO_BOUND: Final = 1 << 60


class Memory:
    """The count, and the bounds."""

    __slots__ = (
        "_counts",
        "_queues",
        "_tell_refused",
        "body_bytes",
        "body_max_bytes",
        "buffer_bytes",
        "crowded",
        "fetched",
        "fetches",
        "gathered_bytes",
        "held_bytes",
        "held_max_bytes",
        "max_bytes",
        "note_bytes",
        "refused",
        "schedule_bytes",
        "tls_clients",
        "unloaded",
        "unloaded_bytes",
    )

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._counts: Counts = queues.counts
        self.max_bytes = NO_BOUND
        """Puts that would take the server beyond this are refused."""
        self.body_max_bytes = NO_BOUND
        """Bodies beyond this are not kept in memory, if they can be fetched."""
        self.fetches = False
        """Whether the journal can fetch bodies, so that memory need not hold them."""
        self.body_bytes = 0
        """Taken by bodies in memory, as of the last batch: negative if more that was put since is deleted already."""
        self.crowded = False
        """Bodies have been unloaded for lack of room; reset by ``Crossings`` when all are in memory again."""
        self.unloaded = 0
        """Jobs whose body is in the journal only."""
        self.unloaded_bytes = 0
        """The size of these bodies."""
        self.fetched = 0
        """Bodies fetched since the start."""
        self.buffer_bytes = 0
        """Held for clients: incomplete commands that they have sent, and replies that they have not read yet."""
        self.gathered_bytes = 0
        """Held for clients: replies that wait for the batch being gathered."""
        self.held_bytes = 0
        """Likewise those that wait for a batch under way, or for others that are held."""
        self.held_max_bytes = NO_BOUND
        """With more than this, no client is served."""
        self.schedule_bytes = 0
        """Taken by schedules."""
        self.note_bytes = 0
        """Taken by the notes of jobs."""
        self.tls_clients = 0
        """Clients whose connection is encrypted, from their handshake on."""
        self.refused = 0
        """Puts refused for lack of memory since the start."""
        self._tell_refused: Callable[[], None] | None = None

    def attach(self, tell_refused: Callable[[], None]) -> None:
        """Have ``tell_refused`` called whenever a put has been refused."""
        self._tell_refused = tell_refused

    def refuse(self) -> None:
        """Note that a put has been refused for lack of memory."""
        self.refused += 1
        if self._tell_refused is not None:
            self._tell_refused()

    def bound(self, max_bytes: int, body_max_bytes: int, *, fetches: bool) -> None:
        """Set the bounds; ``fetches``: the journal can fetch bodies, so that memory need not hold them."""
        self.max_bytes = max_bytes
        self.held_max_bytes = max_bytes // PART
        self.body_max_bytes = body_max_bytes
        self.fetches = fetches
        self._queues.ledger.flows.max_bytes = min(FLOWS_BYTES, max_bytes // FLOWS_PART)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self._counts.clients

    @property
    def job_bytes(self) -> int:
        """Bytes taken by jobs, without their bodies."""
        counts = self._counts
        kept_bytes = counts.twins * TWIN_BYTES + counts.expiries * EXPIRY_BYTES
        return len(self._queues.jobs) * JOB_BYTES + counts.with_past * PAST_BYTES + kept_bytes

    @property
    def shown_body_bytes(self) -> int:
        """``body_bytes`` for statistics."""
        return max(0, self.body_bytes)

    @property
    def other_bytes(self) -> int:
        """Bytes taken by tubes, flows, clients, buffers, replies, schedules and notes."""
        clients_bytes = self._counts.clients * CLIENT_BYTES + self.tls_clients * TLS_BYTES
        kept_bytes = self.schedule_bytes + self.note_bytes + self._queues.ledger.flows.used_bytes
        return self.tube_bytes + clients_bytes + self.client_buffer_bytes + kept_bytes

    @property
    def client_buffer_bytes(self) -> int:
        """Bytes held for clients in all."""
        return self.buffer_bytes + self.gathered_bytes + self.held_bytes

    @property
    def tube_bytes(self) -> int:
        """Bytes taken by tubes, and by what clients watch."""
        counts = self._counts
        ruled_bytes = counts.ruled_tubes * KEPT_BYTES
        pulse_bytes = len(self._queues.ledger.pulses) * PULSE_BYTES
        return len(self._queues.tubes) * TUBE_BYTES + pulse_bytes + ruled_bytes + counts.watched * WATCHED_BYTES

    def takes_tubes(self, tubes: int, ruled: int = 0) -> bool:
        """Whether clients may make or watch so many tubes more, of which ``ruled`` have rules.

        A part of the memory is theirs in any case.
        """
        more_bytes = tubes * TUBE_BYTES + ruled * KEPT_BYTES
        return self.tube_bytes + more_bytes < self.max_bytes // PART or self.used_bytes + more_bytes < self.max_bytes

    def takes_notes(self, more_bytes: int) -> bool:
        """Whether notes may take so many bytes more: the rest of the memory is for jobs."""
        return self.note_bytes + more_bytes < self.max_bytes // PART

    @property
    def used_bytes(self) -> int:
        """Bytes taken in all."""
        return self.job_bytes + _with_gaps(self.body_bytes) + self.other_bytes + self._queues.ledger.event_bytes

    @property
    def room_bytes(self) -> int:
        """How many bytes of bodies can be put; negative if there is no room even for an empty one."""
        return _without_gaps(self.free_bytes - JOB_BYTES) - BODY_BYTES

    @property
    def free_bytes(self) -> int:
        """How many bytes can be taken beside what bodies need; negative if too many are."""
        bodies = self.max_bytes // BODIES_LEAST if self.fetches else _with_gaps(self.body_bytes)
        return self.max_bytes - self.job_bytes - self.other_bytes - bodies

    @property
    def body_room_bytes(self) -> int:
        """How many bytes bodies may take in memory, where the rest can be fetched."""
        return self.body_room_beside(self.job_bytes)

    def body_room_beside(self, job_bytes: int) -> int:
        """Return ``body_room_bytes`` as it is when jobs without their bodies take ``job_bytes``."""
        rest = _without_gaps(self.max_bytes - job_bytes - self.other_bytes)
        return min(self.body_max_bytes, max(rest, _without_gaps(self.max_bytes // BODIES_LEAST)))


def _with_gaps(body_bytes: int) -> int:
    return body_bytes + body_bytes // GAPS


def _without_gaps(room_bytes: int) -> int:
    return room_bytes - room_bytes // (GAPS + 1)
