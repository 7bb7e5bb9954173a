"""Where a form leads: back to its page, with a word on what was done, or on what is wrong."""

import re
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from beanlite.console.filters import Record
from beanlite.console.live import on_behalf_of
from beanlite.web.notices import Notice, WrongForm
from beanlite.web.pages import form, link
from beanlite.web.recent import PageChange
from beanlite.web.running import Running
from beanlite.web.site import person_of, root_of, site_of

# A page of this site; browsers take \ for /, and leave out blanks and control characters. The longest filters fit in,
# and no more than the head of a request has room for.
_BACK: Final = re.compile(r"/(?:[!-.0-\[\]-~][!-\[\]-~]{0,60000})?")
# What answers a request.
Page = Callable[[Request], Coroutine[Any, Any, Response]]


def once(page: Page) -> Page:
    """Have what a form asks for done once, however often it is sent, if it has a token."""

    @wraps(page)
    async def answer(request: Request) -> Response:
        fields = await form(request)
        if "token" not in fields:
            return await page(request)
        return await site_of(request).forms.answer(person_of(request), fields, partial(page, request))

    return answer


def on_behalf(request: Request) -> Record:
    """Return the user as a part of a request to the server."""
    return on_behalf_of(person_of(request))


def back_of(request: Request, fields: dict[str, str]) -> str:
    """Return the page that the form was on, if it is on this site; otherwise the first page."""
    back = fields.get("back", "")
    return back if _BACK.fullmatch(back) else f"{root_of(request)}/"


def note(request: Request, what: str, back: str, undo: str = "", running: Running | None = None) -> None:
    """Remember a change, for the list of recent ones."""
    address = "unix" if request.client is None else request.client.host
    site_of(request).recent.note(PageChange(person_of(request), address, what, back, undo, running))


def tell(request: Request, path: str, wrong: WrongForm) -> Response:
    """Redirect to a page, which then shows what is wrong in its form."""
    return _redirect_with(request, path, Notice(wrong=wrong))


def redirect(request: Request, path: str, message: str, undo: str = "") -> Response:
    """Redirect to a page, which then shows what was done."""
    return _redirect_with(request, path, Notice(message, undo))


def _redirect_with(request: Request, path: str, notice: Notice) -> Response:
    token = site_of(request).notices.leave(notice)
    return RedirectResponse(f"{path}{'&' if '?' in path else '?'}{link('', done=token)[1:]}", 303)
