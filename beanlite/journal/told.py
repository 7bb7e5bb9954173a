"""Rows about jobs and events in the form in which a server tells of them (docs/protocol.md), whatever the database."""

from typing import Any, Final

from beanlite.core.notes import first_line
from beanlite.core.tube import claim_in, without_claim

Record = dict[str, Any]

# How the history marks actions of operators, and on whose behalf they acted.
OPERATOR: Final = "operator "
FOR: Final = " for "
# How it marks what a schedule did, before its name, which has no blank.
BY_SCHEDULE: Final = "schedule "
# How it marks what a policy did.
_BY_POLICY: Final = "policy "


def first_line_of(note: str) -> str:
    """Return the first line of a note, cut to what a list shows."""
    return first_line(note.encode(errors="surrogateescape"))


def job_of(row: Record) -> Record:
    """Return a row in the form in which a server describes a job."""
    address, number = row.pop("holder"), row.pop("holder_conn")
    row["holder"] = None if address is None else _peer(address, number)
    if row["state"] not in {"delayed", "reserved"}:
        row["left_s"] = None
    if "preview" in row:
        row["preview"] = (row["preview"] or b"").decode(errors="replace")  # SQLite's substr of b"" is NULL
    return row


def _peer(address: str, number: int | None) -> Record:
    return {"address": without_claim(address), "number": number, "name": claim_in(address)}


def event_of(row: Record) -> Record:
    """Return a row of the history in the form in which a server describes an event."""
    by, number, _ = row.pop("by"), row.pop("conn"), row.pop("n")
    if row["change"] is None:
        del row["change"]
    if by is None:
        row["by"] = None
    elif by.startswith(_BY_POLICY):
        row |= {"by": None, "policy": by.removeprefix(_BY_POLICY)}
    else:
        mark = BY_SCHEDULE if by.startswith(BY_SCHEDULE) else ""  # a schedule may be named for
        address, _, person = by.removeprefix(OPERATOR).removeprefix(mark).partition(FOR)
        address = mark + address
        is_operator = by.startswith(OPERATOR)
        row["by"] = _peer(address, number) | {"operator": is_operator, "person": person or None}
    if row["note"] is None:
        del row["note"]
    return row
