"""What a tube with rules remembers for them; there is none of this where nothing is set."""

from collections.abc import Iterator
from typing import Final

from beanlite.core.heap import KeyHeap
from beanlite.core.wide import PART, WideDict

# What this takes in bytes, with most rules, apart from jobs; and each job of which the body is known, or of which it is
# known when it expires.
KEPT_BYTES: Final = 1000
TWIN_BYTES: Final = 350
EXPIRY_BYTES: Final = 220
# With the bodies of how many jobs one that is put is compared. So many have the same size and checksum only if somebody
# makes them so, had them put before only one was allowed, or has them reserved meanwhile; a put must not pass them all.
TWINS_MAX: Final = 64
_CRC32_BITS: Final = 32
_CRC32_MASK: Final = (1 << _CRC32_BITS) - 1
# Shared by all tubes that know no jobs; never added to.
_NO_KEYS: Final[WideDict[int]] = WideDict()
_NO_EXPIRIES: Final = KeyHeap()


class Kept:
    """How far a tube's rules have come."""

    __slots__ = ("_beside", "_expiry_keys", "_twin_keys", "_twins", "expiries", "free_ns", "turn")

    def __init__(self) -> None:
        self.free_ns = 0
        """When as many jobs could be reserved at once as ever; 0: not known, as after a restart."""
        self.turn = 0
        """The number of the last reservation from the tube, of all; 0: there was none."""
        self._twins = _NO_KEYS
        """The id of the job that may be the same as one that is put, by size and checksum of the body: of several the
        one that is known last. Where only those that wait count, others are hidden: a put does not pass them.
        """
        self._beside = _NO_KEYS
        """For the id of a job, that of the one with the same key that was known before it; for the negative id, that of
        the one that is known after it. There may be very many with the same key, and any of them may leave.
        """
        self._twin_keys = _NO_KEYS
        self.expiries = _NO_EXPIRIES
        """When each job expires, as a key that ends with the id; without those that were looked at already."""
        self._expiry_keys = _NO_KEYS

    def take_out(self, *, twins: bool, expiries: bool) -> "Kept":
        """Forget all bodies, or when jobs expire, or both, and return what was known of them."""
        taken = Kept()
        if twins:
            taken._twins, taken._beside, taken._twin_keys = self._twins, self._beside, self._twin_keys
            self._twins = self._beside = self._twin_keys = _NO_KEYS
        if expiries:
            taken.expiries, taken._expiry_keys = self.expiries, self._expiry_keys
            self.expiries, self._expiry_keys = _NO_EXPIRIES, _NO_KEYS
        return taken

    def free_part(self) -> bool:
        """Free a part of what is known of jobs, if it is not used any more; returns False if there is nothing left."""
        for each in (self._twin_keys, self._twins, self._beside, self._expiry_keys):
            if each.free_part():
                return True
        keys = self.expiries.keys
        for _ in range(min(PART, len(keys))):
            keys.pop()
        return bool(keys)

    # -- bodies

    @staticmethod
    def twin_key(size: int, crc32: int) -> int:
        """Return the key of a body for ``twins``. Different bodies may have the same."""
        return size << _CRC32_BITS | crc32

    def has_twin(self, job_id: int) -> bool:
        """Whether the job's body is known."""
        return job_id in self._twin_keys

    def add_twin(self, job_id: int, key: int) -> None:
        """Note a job's body."""
        if self._twin_keys is _NO_KEYS:
            self._twin_keys, self._twins = WideDict(), WideDict()
        self._twin_keys.set(job_id, key)
        self.show_twin(job_id)

    def hide_twin(self, job_id: int) -> None:
        """Leave a job out of ``twins``, if its body is known, until ``show_twin``."""
        key = self._twin_keys.get(job_id)
        if key is None:
            return
        beside = self._beside
        if self._twins.get(key) == job_id:
            before = beside.pop(job_id)
            if before is None:
                self._twins.pop(key)
            else:
                self._twins.set(key, before)
                beside.pop(-before)
            return
        after = beside.pop(-job_id)
        if after is None:  # it is hidden already
            return
        before = beside.pop(job_id)
        if before is None:
            beside.pop(after)
        else:
            beside.set(after, before)
            beside.set(-before, after)

    def show_twin(self, job_id: int) -> None:
        """Undo ``hide_twin``."""
        key = self._twin_keys.get(job_id)
        if key is None:
            return
        last = self._twins.get(key)
        if last is not None:
            if last == job_id or -job_id in self._beside:  # it is not hidden
                return
            if self._beside is _NO_KEYS:
                self._beside = WideDict()
            self._beside.set(job_id, last)
            self._beside.set(-last, job_id)
        self._twins.set(key, job_id)

    def remove_twin(self, job_id: int) -> bool:
        """Forget a job's body; returns whether it was known."""
        self.hide_twin(job_id)
        return self._twin_keys.pop(job_id) is not None

    def twins(self, key: int) -> Iterator[int]:
        """Return the ids of the jobs with this key, the one that is known last first, and no more than TWINS_MAX.

        It is the last to become too old. Nothing may be changed meanwhile.
        """
        job_id = self._twins.get(key)
        for _ in range(TWINS_MAX):
            if job_id is None:
                return
            yield job_id
            job_id = self._beside.get(job_id)

    @property
    def twin_count(self) -> int:
        """Of how many jobs the body is known."""
        return len(self._twin_keys)

    def crc32_of(self, job_id: int) -> int | None:
        """Return the checksum of a job's body, if it is known."""
        key = self._twin_keys.get(job_id)
        return None if key is None else key & _CRC32_MASK

    # -- ages

    def add_expiry(self, job_id: int, key: int) -> bool:
        """Note when a job expires; returns False if that was noted already."""
        if job_id in self._expiry_keys:
            return False
        if self._expiry_keys is _NO_KEYS:
            self._expiry_keys, self.expiries = WideDict(), KeyHeap()
        self._expiry_keys.set(job_id, key)
        self.expiries.push(key)
        return True

    def remove_expiry(self, job_id: int) -> bool:
        """Forget when a job expires; returns whether that was noted."""
        key = self._expiry_keys.pop(job_id)
        if key is None:
            return False
        self.expiries.remove(key)
        return True

    @property
    def expiry_count(self) -> int:
        """Of how many jobs it is noted when they expire."""
        return len(self._expiry_keys)
