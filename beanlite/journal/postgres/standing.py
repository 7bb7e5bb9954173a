"""Whether a database is as the active server left it, by the row of its lease."""

from functools import partial
from typing import Final, NamedTuple

import asyncpg

from beanlite.core.job import SECOND_NS
from beanlite.errors import JournalFailed, LeaseLost
from beanlite.host import log
from beanlite.journal.postgres.address import public_url
from beanlite.journal.postgres.ahead import Reign
from beanlite.journal.postgres.beats import BEAT
from beanlite.journal.postgres.lease import Applicant
from beanlite.journal.postgres.link import LOOK_AFTER_S, TROUBLE, Behind, Host, Link, Timeline, connect, text_of
from beanlite.journal.postgres.schema import check

# Half the time of the lease, so that the server still ends before another one takes over.
_PATIENT: Final = 0.5
_WHOSE: Final = "SELECT epoch, started_at, batch, node, address FROM lease_now"


class Standing(NamedTuple):
    """The database as the active server left it."""

    reign: Reign
    ended: Reign
    """The reign before ours."""
    batch: int
    history: Timeline | None
    host: Host | None = None
    """That to which batches are sent; None: it is not known."""

    @property
    def epoch(self) -> int:
        """The epoch of our reign."""
        return self.reign.epoch

    def is_of_another(self, reign: Reign) -> bool:
        """Whether another server has taken the lease where this reign is the last: after ours, or in place of ours.

        The epoch only counts how often the lease was taken there. On a host that lacks the last times, what another
        server has taken since may count as much as ours, or less. Of the reigns before ``ended`` nothing is known:
        they pass for our own past, as an old copy of this database has it.
        """
        return reign.epoch >= self.ended.epoch and reign not in {self.reign, self.ended}


class LostToAnother(JournalFailed):
    """Commits are lost, and another server has taken over what is left: no other host is waited for or used."""


def _expect(row: asyncpg.Record | None, standing: Standing, name: str) -> None:
    """Raise LeaseLost, LostToAnother or JournalFailed if the row of the lease has another reign, or an earlier batch.

    What another server has stored since may hide that batches of ours were lost, but only if it is as much, in a later
    epoch: in any other, our lease itself is missing.
    """
    reign = None if row is None else Reign(row["epoch"], row["started_at"])
    lacks_batches = row is None or row["batch"] < standing.batch
    successor = ""
    failure = JournalFailed
    if row is not None and reign is not None and standing.is_of_another(reign):
        successor = f"another server has taken over: {row['node']} at {row['address']}"
        if reign.epoch > standing.epoch and not lacks_batches:
            raise LeaseLost(f"{successor}; this one stores nothing more")
        successor = f", and {successor}"
        failure = LostToAnother
    if reign != standing.reign or lacks_batches:
        what = "this server's lease is missing"
        if lacks_batches:
            contents = "nothing" if row is None else f"batch {row['batch']}"
            what = f"it has {contents}, and had batch {standing.batch}"
        raise failure(f"{name} has lost commits that it acknowledged: {what}{successor}; see what was promoted there")


async def mistake(link: Link, standing: Standing, name: str) -> JournalFailed:
    """Return the error for a statement of ours that has not found rows as this server left them."""
    try:
        _expect(await link.row(_WHOSE), standing, name)
    except JournalFailed as error:
        return error
    return change_error(name)


async def expect_all(applicant: Applicant, standing: Standing, link: Link) -> None:
    """Raise Behind if a host lacks commits that were acknowledged.

    LeaseLost, LostToAnother: another server has taken over, and no other host may be used beside it. ConnectionError:
    it is an old primary. It may have all commits, if nothing was stored since the promotion; but other servers don't
    use it. To be called before anything is written there: an old primary may wait for its standby for ever. Raises as
    ``check`` does, too.
    """
    link.expect_successor(standing.history)
    name = public_url(link.url)
    await check(link, name, require_sync=applicant.require_sync)
    try:
        _expect(await link.glance(_WHOSE), standing, name)
    except (LeaseLost, LostToAnother):
        raise
    except JournalFailed as error:
        raise Behind(str(error)) from error


async def has_successor(applicant: Applicant, standing: Standing, link: Link) -> bool:
    """Whether another host was promoted after that of the connection, and has all commits. Raises as ``connect`` does.

    Also True if another server has taken over, even what lacks commits.
    """
    try:
        newest = await connect(applicant.url, "beanlite", partial(expect_all, applicant, standing))
    except (LeaseLost, LostToAnother):
        return True
    newest.drop()
    return link.is_older(newest.history)


class Patience:
    """Waits a while for the host that has all commits, if only others are found: it may be starting."""

    def __init__(self, applicant: Applicant) -> None:
        self._clock_ns = applicant.clock_ns
        self._longest_ns = round(applicant.lease_s * SECOND_NS * _PATIENT)
        self._since_ns: int | None = None

    def use(self, error: Exception) -> None:
        """Raise JournalFailed if the error is Behind, and has been for too long."""
        if not isinstance(error, Behind):
            self._since_ns = None
            return
        now_ns = self._clock_ns()
        if self._since_ns is None:
            self._since_ns = now_ns
            log.warning("only a host that lacks commits accepts writes; waiting for another", error=error)
        if now_ns - self._since_ns >= self._longest_ns:
            raise JournalFailed(str(error)) from error


async def beat_beside(other: Link, epoch: int) -> bool:
    """Raise the beat, unless the row is locked: then no other server can take the lease either."""
    try:
        return await other.row(BEAT, epoch, within_s=LOOK_AFTER_S) is not None
    except (*TROUBLE, asyncpg.PostgresError):
        return False


def change_error(name: str, error: Exception | None = None) -> JournalFailed:
    """Return the error for rows that are not as this server left them."""
    how = "" if error is None or isinstance(error, asyncpg.DivisionByZeroError) else f" ({text_of(error)})"
    return JournalFailed(f"another program has changed rows of {name}{how}; it no longer is what was served")
