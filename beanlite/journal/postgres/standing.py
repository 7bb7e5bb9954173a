"""Whether a database is as the active server left it, by the row of its lease."""

from __future__ import annotations

from typing import Final

import asyncpg

from beanlite import log
from beanlite.errors import JournalFailed, LeaseLost
from beanlite.journal.postgres.lease import BEAT, Applicant
from beanlite.journal.postgres.link import LOOK_AFTER_S, TROUBLE, Behind, Link, said, shown
from beanlite.journal.postgres.schema import check

# Half the time of the lease, so that the server still ends before another one takes over.
_PATIENT: Final = 0.5
_WHOSE: Final = "SELECT epoch, batch, beat, node, address FROM lease"


class BeatLost(Behind):
    """The host has all commits, but lacks the last beat."""


def _expect(row: asyncpg.Record | None, epoch: int, batch: int, name: str) -> None:
    """Raise LeaseLost or JournalFailed if the row of the lease has another epoch, or an earlier batch."""
    if row is not None and row["epoch"] > epoch:
        raise LeaseLost(f"another server has taken over: {row['node']} at {row['address']}; nothing was stored since")
    if row is None or row["epoch"] < epoch or row["batch"] < batch:
        stored = "nothing" if row is None else f"batch {row['batch']}"
        raise JournalFailed(
            f"{name} has lost commits that it acknowledged: it has {stored}, and had batch {batch}; see what was"
            " promoted there"
        )


async def mistake(link: Link, epoch: int, batch: int, name: str) -> JournalFailed:
    """Return the error for a statement of ours that has not found rows as this server left them."""
    try:
        _expect(await link.row(_WHOSE), epoch, batch, name)
    except JournalFailed as error:
        return error
    return changed(name)


async def expect_all(applicant: Applicant, epoch: int, batch: int, beat: int, link: Link) -> None:
    """Raise Behind if a host lacks commits that were acknowledged, and LeaseLost if another server has taken over.

    The beat tells an old primary from the new one even if nothing was stored since the promotion. To be called before
    anything is written there: an old primary may wait for its standby for ever. Raises as ``check`` does, too.
    """
    name = shown(link.url)
    await check(link, name, require_sync=applicant.require_sync)
    row = await link.glance(_WHOSE)
    try:
        _expect(row, epoch, batch, name)
    except LeaseLost:
        raise
    except JournalFailed as error:
        raise Behind(str(error)) from error
    if row is not None and row["beat"] < beat:
        raise BeatLost(f"{name} is behind what was seen before; see what was promoted there")


class Patience:
    """Waits a while for the host that has all commits, if only others are found: it may be starting."""

    def __init__(self, applicant: Applicant) -> None:
        self._clock_ns = applicant.clock_ns
        self._longest_ns = round(applicant.lease_s * 1_000_000_000 * _PATIENT)
        self._since_ns: int | None = None
        self.is_over = False
        """A host that has all commits will do now, even if it lacks a beat: no other one is left."""

    def use(self, error: Exception) -> None:
        """Raise JournalFailed if the error is Behind, and has been for too long."""
        if not isinstance(error, Behind):
            return
        now_ns = self._clock_ns()
        if self._since_ns is None:
            self._since_ns = now_ns
            log.warning("only a host that lacks commits accepts writes: another is awaited", error=error)
        self.is_over = now_ns - self._since_ns >= self._longest_ns
        if self.is_over and not isinstance(error, BeatLost):
            raise JournalFailed(str(error)) from error


async def beat_beside(other: Link, epoch: int) -> bool:
    """Raise the beat, unless the row is locked: then no other server can take the lease either."""
    try:
        return await other.row(BEAT, epoch, within_s=LOOK_AFTER_S) is not None
    except (*TROUBLE, asyncpg.PostgresError):
        return False


def changed(name: str, error: Exception | None = None) -> JournalFailed:
    """Return the error for rows that are not as this server left them."""
    how = "" if error is None or isinstance(error, asyncpg.DivisionByZeroError) else f" ({said(error)})"
    return JournalFailed(f"another program has changed rows of {name}{how}; it no longer is what was served")
