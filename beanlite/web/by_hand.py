"""The page on which a job is put by hand, or one that is there again, edited."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from beanlite.client.calls import PRI, TTR_S
from beanlite.console.putting import put_new
from beanlite.core.job import U32_MAX
from beanlite.errors import BeanliteError
from beanlite.protocol.arguments import U64_MAX
from beanlite.web.again import ONCE, delete_old, fields_of, fields_of_deleted
from beanlite.web.notices import Mistake, WrongForm
from beanlite.web.pages import form, number, render, text_in, tube_name, whole_seconds
from beanlite.web.redirects import note, on_behalf, once, redirect
from beanlite.web.seeing import check_id, deleted_job
from beanlite.web.site import person_of, root_of, site_of


@once
async def put(request: Request) -> Response:
    """Put a job by hand, or one that is there again, edited."""
    questions, person = site_of(request).questions, person_of(request)
    if request.method != "POST":
        return render(request, "put.html", {"fields": await _fields_to_put(request), "wrong": WrongForm()})
    fields = await form(request)
    try:
        pri, ttr_s = number(fields, "pri", U32_MAX), whole_seconds(fields, "ttr")
        old = number(fields, "old", U64_MAX)
        job = {
            "tube": tube_name(fields, "tube") or "default",
            "pri": PRI if pri is None else pri,
            "delay_s": whole_seconds(fields, "delay") or 0,
            "ttr_s": TTR_S if ttr_s is None else ttr_s,
            "body": text_in(fields, "body"),
        }
        job_id, is_new = await questions.ask_once(person, partial(put_new, job=job, person=on_behalf(request)))
    except BeanliteError as error:
        name, why = (error.name, error.why) if isinstance(error, Mistake) else ("", str(error))
        context = {"fields": fields, "wrong": WrongForm("/put", name, why, fields)}
        return render(request, "put.html", context, 422)
    page, message = f"{root_of(request)}/job/{job_id}", "The job was put"
    if not is_new:  # and the old one may be the only one that waits, so it is not to be deleted
        return redirect(
            request, page, f"Nothing was put: job {job_id} has this body already, {ONCE.format(job['tube'])}"
        )
    note(request, f"put into {job['tube']}: job {job_id}", page)
    if old is not None and fields.get("delete"):
        state, by = fields.get("old_state", ""), on_behalf(request)
        message = await questions.ask_once(person, partial(delete_old, job_id=old, state=state, person=by))
    return redirect(request, page, message)


async def _fields_to_put(request: Request) -> dict[str, str]:
    """Return what the form to put a job begins with. BeanliteError: the job that is to be put again can't be edited."""
    site, job_id = site_of(request), number(request.query_params, "from", U64_MAX)
    if job_id is None:
        return {"tube": request.query_params.get("tube", "default")}
    check_id(job_id)
    if site.hide_bodies:
        raise BeanliteError("bodies are hidden here")
    job = await site.questions.ask(person_of(request), lambda live: live.show_job(job_id))
    if job is not None:
        return fields_of(job)
    deleted = await deleted_job(request, job_id)
    if deleted is None:
        raise BeanliteError(f"job {job_id} has gone")
    return fields_of_deleted(job_id, deleted)
