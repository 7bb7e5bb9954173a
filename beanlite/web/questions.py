"""Asks the server for what pages show: in threads, over a few connections, with a short-lived cache of answers."""

import asyncio
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from beanlite.beanstalk.client import TIMEOUT_S, Unreachable
from beanlite.console.live import Live
from beanlite.console.several import Servers
from beanlite.errors import BeanliteError
from beanlite.web.threads import in_thread

Answer = TypeVar("Answer")
Server = TypeVar("Server", bound=Servers)
Server_co = TypeVar("Server_co", bound=Servers, covariant=True)
"""What is asked: one server, or several. What both can answer may be asked of either."""

# How many questions the server is asked at the same time, however many browsers there are.
CONNECTIONS: Final = 4
# How long an answer is reused for the same question, and how many answers are kept.
KEEP_S: Final = 1.0
KEEP_MAX: Final = 100
# How long a reply may take for a page that only shows something; what changes something may wait for the disk.
REPLY_S: Final = 10.0


class Questions(Generic[Server_co]):
    """Connections to one server, or to several. Questions may raise BeanliteError; Unreachable if there is no server.

    Each is asked for a person, with whose rights it is answered, or for the page itself: then ``person`` is empty.
    """

    def __init__(self, connect: Callable[[str, float], Server_co]) -> None:
        """``connect`` makes a connection that acts for a person, and on which replies have to come within a time."""
        self._connect = connect
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._idle: list[Server_co] = []
        """The one that was used last comes last."""
        self._lock = threading.Lock()
        self._answers: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def ask(self, person: str, question: Callable[[Server_co], Answer]) -> Answer:
        """Return the answer to a question that changes nothing: it is repeated if a connection turns out to be lost."""
        return await in_thread(self._free, self._ask, person, question)

    async def ask_once(self, person: str, question: Callable[[Server_co], Answer]) -> Answer:
        """Return the answer to a question that must not be repeated, because it changes something."""
        return await in_thread(self._free, self._ask_anew, person, question, TIMEOUT_S)

    async def ask_seldom(self, person: str, question_key: Hashable, question: Callable[[Server_co], Answer]) -> Answer:
        """Return the answer to a question that many requests of a person share under a key; it may be KEEP_S old.

        An answer that took long is kept for as long as it took, so that the server can rest in between.
        """
        key = person, question_key
        now_s = time.monotonic()
        until_s, task = self._answers.get(key, (0.0, None))
        if task is None or (task.done() and now_s >= until_s):
            self._answers = {
                each: entry for each, entry in self._answers.items() if entry[0] > now_s or not entry[1].done()
            }
            task = asyncio.create_task(self.ask(person, question))
            if len(self._answers) < KEEP_MAX:
                self._answers[key] = now_s + KEEP_S, task
                task.add_done_callback(lambda ended: self._settle(key, ended, now_s))
        # A request that is cancelled must not cancel the answer for the others.
        answer: Answer = await asyncio.shield(task)
        return answer

    def _settle(self, key: Hashable, task: asyncio.Task[Any], began_s: float) -> None:
        if task.cancelled() or task.exception() is not None:
            self._answers.pop(key, None)
        elif key in self._answers:
            now_s = time.monotonic()
            self._answers[key] = max(began_s + KEEP_S, now_s + (now_s - began_s)), task

    def _ask(self, person: str, question: Callable[[Server_co], Answer]) -> Answer:
        live = self._take_idle(person)
        if live is not None:
            try:
                return self._put_to(live, question)
            except Unreachable as error:
                if isinstance(error.__cause__, TimeoutError):
                    raise
                # The server was restarted, or is gone, which the next connection will show.
        return self._ask_anew(person, question, REPLY_S)

    def _ask_anew(self, person: str, question: Callable[[Server_co], Answer], within_s: float) -> Answer:
        return self._put_to(self._connect(person, within_s), question)

    def _take_idle(self, person: str) -> Server_co | None:
        """Return an idle connection that acts for this person; None if there is none of use."""
        with self._lock:
            live = next((live for live in self._idle if live.person == person), None)
            if live is not None:
                self._idle.remove(live)
        if live is None:
            return None
        assert isinstance(live, Live)  # no others are kept
        if live.client.is_idle:
            live.client.wait(REPLY_S)
            return live
        live.close()  # the person has lost a right, which the server says unasked
        return None

    def _put_to(self: "Questions[Server]", live: Server, question: Callable[[Server], Answer]) -> Answer:
        is_good = isinstance(live, Live)  # of several servers none is kept, as some may come and go
        try:
            return question(live)
        except BaseException as error:
            # If the command was refused, the connection is still good.
            is_good = is_good and isinstance(error, BeanliteError) and not isinstance(error, Unreachable)
            raise
        finally:
            if is_good:
                with self._lock:
                    self._idle.append(live)
                    spare = self._idle.pop(0) if len(self._idle) > CONNECTIONS else None
                if spare is not None:
                    spare.close()
            else:
                live.close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()
