"""The application: its routes, its access checks, and its error pages."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beanlite.beanstalk.client import Unauthorized, Unreachable
from beanlite.console.live import Live
from beanlite.console.several import Servers
from beanlite.core.access import NOTHING
from beanlite.errors import BeanliteError, ConfigError
from beanlite.web import by_hand, changing, finding, seeing
from beanlite.web.guesses import EVERY_S, TooMany
from beanlite.web.pages import form, render
from beanlite.web.redirects import back_of
from beanlite.web.safety import HEADERS, User, is_own_host, is_own_origin
from beanlite.web.site import Site, site_of

# The most bytes of a form.
FORM_BYTES_MAX: Final = 1 << 20


class Id(IntegerConvertor):
    """A number in a path, of so few digits that Python converts it."""

    regex = "[0-9]{1,100}"


register_url_convertor("id", Id())


class Stop:
    """Answers the requests that a stop cancels, because what they wait for has taken too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, in one way or the other."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if begun or scope["type"] != "http":
                raise
            await PlainTextResponse("The page is being stopped.\n", 503)(scope, receive, send)


class Gate(BaseHTTPMiddleware):
    """Refuses requests that are not permitted, and adds the security headers to every response."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Answer a request."""
        is_page = not request.url.path.startswith("/static/")
        is_known = "user" in request.scope.get("state", {})  # by the application that this one is a part of
        response = None if is_known else await _refusal(request)
        if response is None:
            user: User = request.state.user
            request.state.rights = await site_of(request).rights(user) if is_page else NOTHING
            response = await call_next(request)
        response.headers.update(HEADERS)
        if is_page:
            response.headers["cache-control"] = "no-store"
        return response


async def _refusal(request: Request) -> Response | None:
    """Return the response that refuses a request; None if the request is permitted."""
    visitors = site_of(request).visitors
    if visitors.hosts and not is_own_host(request.headers.get("host", ""), visitors.hosts):
        return PlainTextResponse("This page is not served under this name; see beanlite web --host.\n", 421)
    try:
        user = await visitors.user(request)
    except TooMany as error:
        wait = {"retry-after": str(math.ceil(EVERY_S))}
        return PlainTextResponse(f"{error}\n", 429, wait)
    if user is None and visitors.passwords is not None:
        ask = {"www-authenticate": 'Basic realm="beanlite", charset="UTF-8"'}
        return PlainTextResponse("Say who you are.\n", 401, ask)
    if user is None:
        return PlainTextResponse("The proxy has not said who you are.\n", 401)
    request.state.user = user
    return None if request.method in {"GET", "HEAD"} else _refusal_of_change(request, user)


def _refusal_of_change(request: Request, user: User) -> Response | None:
    if not is_own_origin(request.headers):
        return PlainTextResponse("Only a page of this site may ask for this.\n", 403)
    if not user.may_change:
        return PlainTextResponse("You may look, but not change anything.\n", 403)
    # Beside chunks of any length, the length that is said counts nothing.
    length = "" if "transfer-encoding" in request.headers else request.headers.get("content-length", "")
    if not length.isdecimal() or len(length) > 20 or int(length) > FORM_BYTES_MAX:
        return PlainTextResponse("A form has 1 MiB at most.\n", 413)
    return None


async def _on_error(request: Request, error: Exception) -> Response:
    """Return a page that shows an error."""
    context = {"title": "That can't be done", "why": str(error), "retry": False, "back": ""}
    status = 400 if isinstance(error, ConfigError) else 409
    if isinstance(error, Unreachable):
        context["title"], status = "The server can't be reached", 503
        # A form is not sent again, and what became of it is told here alone.
        context["retry"] = request.method in {"GET", "HEAD"}
        if not context["retry"]:
            context["back"] = back_of(request, await form(request))
    elif isinstance(error, HTTPException):
        context["title"], context["why"], status = error.detail, "", error.status_code
    elif isinstance(error, Unauthorized):
        context["title"], status = "Not allowed", 403
    return render(request, "error.html", context, status)


def make_app(site: Site[Live]) -> Starlette:
    """Make the application for one server."""
    return make_application(
        site,
        [
            Route("/", seeing.overview),
            Route("/jobs", finding.jobs),
            Route("/tube/{name:path}", seeing.tube),
            Route("/job/{id:id}", seeing.job),
            Route("/complete", finding.complete),
            Route("/clients", seeing.clients),
            Route("/journal", seeing.journal),
            Route("/changes", seeing.changes),
            Route("/policies", seeing.policies),
            Route("/backups", seeing.backups),
            Route("/backups", changing.back_up, methods=["POST"]),
            Route("/put", by_hand.put, methods=["GET", "POST"]),
            Route("/pause", changing.pause, methods=["POST"]),
            Route("/policy", changing.policy, methods=["POST"]),
            Route("/schedule", changing.schedule, methods=["POST"]),
            Route("/change", changing.change, methods=["POST"]),
            Route("/undo", changing.undo, methods=["POST"]),
            Route("/change/{number:id}", changing.follow),
        ],
    )


def make_application(site: Site[Servers], routes: list[BaseRoute]) -> Starlette:
    """Make an application with these routes, and the gate and the files that each one has."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await site.close()

    app = Starlette(
        routes=[*routes, Mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))],
        middleware=[Middleware(Stop), Middleware(Gate)],
        exception_handlers={BeanliteError: _on_error, HTTPException: _on_error},
        lifespan=lifespan,
    )
    app.state.site = site
    return app
