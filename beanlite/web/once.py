"""Forms that put jobs: what is sent twice, as by a second press before the first one is answered, is done once."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

from starlette.responses import Response

# How many forms are remembered; the oldest are forgotten.
FORMS_MAX: Final = 300

Answer = Callable[[], Coroutine[Any, Any, Response]]


class Forms:
    """The forms that were sent, by person and content, each with where it has led, or what makes that."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, bytes], asyncio.Task[Response]] = {}

    async def answer(self, person: str, fields: dict[str, str], answer: Answer) -> Response:
        """Return the answer to a form: that of the first one with the same token and the same values."""
        key = person, hashlib.sha256(repr(sorted(fields.items())).encode()).digest()
        task = self._all.get(key)
        if task is None:
            task = self._all[key] = asyncio.create_task(answer())
            task.add_done_callback(lambda ended: self._settle(key, ended))
            while len(self._all) > FORMS_MAX:
                del self._all[next(iter(self._all))]
        return await asyncio.shield(task)

    def _settle(self, key: tuple[str, bytes], task: asyncio.Task[Response]) -> None:
        """Forget a form that has led nowhere: it may be sent again."""
        if task.cancelled() or task.exception() is not None or task.result().status_code != 303:
            self._all.pop(key, None)
