"""Puts a job again, edited: what its form begins with, and what becomes of the old one."""

from typing import Final
from urllib.parse import quote_plus

from beanlite.client.calls import TTR_S
from beanlite.console.filters import Record
from beanlite.console.live import Live
from beanlite.errors import BeanliteError

# The most bytes of a body as a form sends it: the form has 1 MiB in all.
_SENT_MAX: Final = (1 << 20) - 4096
# Why nothing was put, by the policy unique.
ONCE: Final = "and {} takes each body once"
_TOO_LONG: Final = "it is too long for a form"


def unfit(body: bytes) -> str:
    """Return why a body can't be edited in a form; empty if it can."""
    if len(body) > _SENT_MAX:  # to find that in what is sent would take seconds
        return _TOO_LONG
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "it is not text (UTF-8)"
    if "\r" in text or "\0" in text:
        return "it has characters that a browser does not send back as they are"
    if len(quote_plus(text.replace("\n", "\r\n"))) > _SENT_MAX:  # as browsers send line breaks
        return _TOO_LONG
    return ""


def fields_of(job: Record) -> dict[str, str]:
    """Return what the form begins with for a job. BeanliteError: its body can't be edited."""
    why = unfit(job["body"])
    if why:
        raise BeanliteError(f"the body of job {job['id']} can't be edited here: {why}")
    return {
        "tube": job["tube"],
        "pri": str(job["pri"]),
        "delay": f"{job['delay_s']}s",
        "ttr": f"{job['ttr_s']}s",
        "body": job["body"].decode(),
        "old": str(job["id"]),
        "old_state": job["state"],
    }


def fields_of_deleted(job_id: int, job: Record) -> dict[str, str]:
    """Return what the form begins with for a job of which the history has the body. BeanliteError: it can't be edited.

    The history has no ttr.
    """
    return {
        **fields_of({"delay_s": 0, "ttr_s": TTR_S, "state": "", **job, "id": job_id}),
        "old": "",
        "gone": str(job_id),
    }


def delete_old(live: Live, job_id: int, state: str, person: Record) -> str:
    """Delete the old job if it is still in its state, and return what was done."""
    what = {"do": "delete", "ids": [job_id], "state": state, **person}
    try:
        done = live.ask("change-jobs", what)["done"]
    except BeanliteError as error:
        return f"The job was put; job {job_id} may still be there: {error}"
    if done:
        return f"The job was put, and job {job_id} was deleted"
    return f"The job was put; job {job_id} was not deleted: it is not {state} any more"
