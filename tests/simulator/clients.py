"""Clients in the same process: they put, work and change jobs at random, pipeline, stall and vanish."""

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable

from beanlite.core.job import ID_MASK
from tests.simulator.ledger import ABSENT, BURIED, DELAYED, READY, Ledger, must
from tests.simulator.notes import Notes
from tests.simulator.rules import AGAIN, ALL_TUBES, TUBES
from tests.simulator.wire import Wire
from tests.simulator.world import World

PRIS = (0, 1, 5, 1024, 5000)
DELAYS_S = (0, 0, 0, 0, 1, 3, 60)
TTRS_S = (1, 3, 60, 1000)
SIZES = (1, 1, 1, 1, 5, 40, 500, 1500, 6000)
LARGE_SIZES = (500, 1500)


class Asked:
    """A command whose reply is awaited."""

    def __init__(self, word, sent, sent_s, **more) -> None:
        self.word = word
        self.sent = sent
        self.sent_s = sent_s
        self.more = more


BODIED = {b"RESERVED": 2, b"OFFERED": 2, b"FOUND": 2, b"OK": 1, b"REFUSED": 1, b"EVENT": 1}
# The replies that a command may have; their bodies are checked elsewhere.
MAY = {
    "put": (b"INSERTED", b"OUT_OF_MEMORY", b"DRAINING"),
    "put-jobs": (b"OK", b"OUT_OF_MEMORY", b"DRAINING"),
    "reserve": (b"RESERVED", b"TIMED_OUT", b"DEADLINE_SOON"),
    "reserve-batch": (b"RESERVED_BATCH", b"TIMED_OUT", b"DEADLINE_SOON"),
    "reserve-job": (b"RESERVED", b"NOT_FOUND"),
    "offer": (b"OFFERED", b"TIMED_OUT", b"DEADLINE_SOON"),
    "take": (b"TAKEN", b"NOT_FOUND"),
    "decline": (b"DECLINED", b"NOT_FOUND"),
    "delete": (b"DELETED", b"NOT_FOUND"),
    "release": (b"RELEASED", b"NOT_FOUND"),
    "bury": (b"BURIED", b"NOT_FOUND"),
    "touch": (b"TOUCHED", b"NOT_FOUND"),
    "note": (b"NOTED", b"NOT_FOUND", b"OUT_OF_MEMORY"),
    "kick": (b"KICKED",),
    "kick-job": (b"KICKED", b"NOT_FOUND"),
    "peek": (b"FOUND", b"NOT_FOUND"),
    "stats-job": (b"OK", b"NOT_FOUND"),
    "stats-tube": (b"OK", b"NOT_FOUND"),
    "use": (b"USING", b"OUT_OF_MEMORY"),  # as many tubes as policies leave memory for
    "watch": (b"WATCHING", b"OUT_OF_MEMORY"),
    "ignore": (b"WATCHING", b"NOT_IGNORED"),
    "pause-tube": (b"PAUSED", b"NOT_FOUND"),
    "name": (b"NAMED",),
    "change-jobs": (b"OK", b"REFUSED"),
    "watch-events": (b"OK",),
    "set-policy": (b"OK", b"REFUSED"),  # there may be too little memory for what has to be known of jobs
    "list-policies": (b"OK",),
    "set-schedule": (b"OK", b"OUT_OF_MEMORY"),
    "unset-schedule": (b"OK", b"REFUSED"),
    "run-schedule": (b"OK", b"REFUSED", b"OUT_OF_MEMORY", b"DRAINING"),
}


class Client:
    """One client: sends commands, and enters them and their replies in the ledger."""

    def __init__(self, world: World, ledger: Ledger, notes: Notes, name: str) -> None:
        self.chance = random.Random(f"{world.chance.random()} {name}")
        self.name = name
        self._world = world
        self._ledger = ledger
        self._notes = notes
        self._heard = bytearray()
        self._asked: deque[Asked] = deque()
        self._answered = asyncio.Event()
        self._number = 0
        self.use = b"default"
        ruled = world.referee is not None
        self.tubes = ALL_TUBES if ruled else TUBES
        self.again = 0.0 if not ruled else 0.8 if world.referee.twins else 0.2
        """How many of the bodies that it puts are put by other clients as well."""
        self.sizes: tuple[int, ...] = SIZES
        self.latest = 30
        """How many of the jobs that are known may be acted on."""
        self.held: dict[int, int] = {}
        """The ttr_s of each job that it has reserved, by id."""
        self.offered: dict[int, bytes] = {}
        """The bodies of the jobs that it has been offered and has not answered, by id."""
        self.wire: Wire | None = None
        self.replies = 0
        self.taken: list[int] = []
        """The jobs that it was given, in order."""
        self._watches = False
        """Whether it has been told that it is sent events."""
        self._seen_deleted: set[int] = set()
        """The jobs of whose deletion an event has told it."""

    def connect(self, protocol) -> None:
        self._heard.clear()
        self._asked.clear()
        self.held.clear()
        self.offered.clear()
        self._watches = False
        self._seen_deleted.clear()
        self.use = b"default"
        self.wire = Wire(self._world, self, protocol)

    def loses_its_jobs(self) -> None:
        self._ledger.leaves(self)

    def lost(self) -> None:
        self.loses_its_jobs()
        self.held.clear()
        self._asked.clear()
        self._answered.set()

    def known(self) -> list[int]:
        """Return the latest jobs that any client knows of."""
        return list(self._ledger.jobs)[-self.latest :]

    @property
    def waits(self) -> bool:
        return bool(self._asked)

    def send(self, *commands: bytes) -> None:
        assert self.wire is not None
        self.wire.send(b"".join(commands))

    async def all_answered(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while self._asked:
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            pass

    def check_held(self) -> None:
        """Check that each job that the server has reserved for this client was given to it."""
        if self._asked or self.wire is None or self.wire.closed or self._world.gone:
            return
        keys = self.wire.protocol.session.client.deadlines
        untold = {key & ID_MASK for key in set(keys.keys) - keys._gone} - self.held.keys()
        must(not untold, f"jobs {untold} are reserved for {self.name}, which was not told")

    def _ask(self, word: str, **more) -> None:
        self._asked.append(Asked(word, self._ledger.tick(), self._world.now_ns / 1e9, **more))

    # -- commands: each is entered in the ledger, and returned as the bytes to send

    def _new_body(self, ttr_s: int, size: int) -> bytes:
        """Return a unique body that contains the ttr_s."""
        self._number += 1
        return f"{self.name}.{self._number}.{ttr_s}.".encode().ljust(size, b"x")

    def put(self, pri: int, delay_s: int, ttr_s: int, size: int) -> bytes:
        return self._put(pri, delay_s, ttr_s, self._new_body(ttr_s, size))

    def put_again(self, pri: int, delay_s: int) -> bytes:
        """Put a body that may have been put before."""
        ttr_s, body = self._body_again()
        return self._put(pri, delay_s, ttr_s, body)

    def _body_again(self) -> tuple[int, bytes]:
        """Return a body that other clients put at about the same time, and its ttr_s."""
        number = self._ledger.moment // 8 - self.chance.choice((0, 0, 0, 1, 5))
        ttr_s = TTRS_S[number % 4]
        return ttr_s, b"%b%d.%d." % (AGAIN, number, ttr_s)

    def _put(self, pri: int, delay_s: int, ttr_s: int, body: bytes) -> bytes:
        change = self._ledger.puts(body, self.use, delay_s)
        self._ask("put", puts=[(body, change)], floor=self._ledger.last_id)
        return b"put %d %d %d %d\r\n%b\r\n" % (pri, delay_s, ttr_s, len(body), body)

    def put_several(self, jobs: list[tuple[int, int, int, int]]) -> bytes:
        """Put several jobs with the operators' put-jobs, which puts all of them or none."""
        puts, request = [], []
        for pri, delay_s, ttr_s, size in jobs:
            body = self._new_body(ttr_s, size)
            if self.again and self.chance.random() < self.again:
                ttr_s, body = self._body_again()  # noqa: PLW2901 - the body has its own
            puts.append((body, self._ledger.puts(body, self.use, delay_s)))
            request.append({"body": body.decode(), "pri": pri, "delay_s": delay_s, "ttr_s": ttr_s})
        self._ask("put-jobs", puts=puts, floor=self._ledger.last_id)
        text = json.dumps({"jobs": request}).encode()
        return b"put-jobs %d\r\n%b\r\n" % (len(text), text)

    def on_job(self, word: str, job_id: int, line: bytes, *outcome: str, weak: bool = False) -> bytes:
        self._ask(word, job=job_id, change=self._ledger.asks(job_id, word, *outcome, weak=weak))
        return line

    def delete(self, job_id: int) -> bytes:
        if job_id in self.held:
            self._let_go(job_id)
        return self.on_job("delete", job_id, b"delete %d\r\n" % job_id, ABSENT)

    def release(self, job_id: int, pri: int, delay_s: int) -> bytes:
        self._let_go(job_id)
        line = b"release %d %d %d\r\n" % (job_id, pri, delay_s)
        return self.on_job("release", job_id, line, *((DELAYED, READY) if delay_s else (READY,)))

    def bury(self, job_id: int, pri: int) -> bytes:
        self._let_go(job_id)
        return self.on_job("bury", job_id, b"bury %d %d\r\n" % (job_id, pri), BURIED)

    def _let_go(self, job_id: int) -> None:
        self.held.pop(job_id, None)
        self._ledger.lets_go(job_id)

    def note(self, job_id: int, text: bytes) -> bytes:
        self._ask("note", then=self._notes.asks(job_id, text))
        return b"note %d %d\r\n%b\r\n" % (job_id, len(text), text)

    def kick_job(self, job_id: int) -> bytes:
        return self.on_job("kick-job", job_id, b"kick-job %d\r\n" % job_id, READY)

    def kick(self, bound: int) -> bytes:
        self._ask("kick", kick=self._ledger.kicks())
        return b"kick %d\r\n" % bound

    def reserve(self, timeout_s: int) -> bytes:
        self._ask("reserve")
        return b"reserve-with-timeout %d\r\n" % timeout_s

    def offer(self, timeout_s: int) -> bytes:
        self._ask("offer")
        return b"offer %d\r\n" % timeout_s

    def answer_offer(self, word: str, job_id: int) -> bytes:
        return self.plain(word, b"%d" % job_id, job=job_id, body=self.offered.pop(job_id))

    def reserve_job(self, job_id: int) -> bytes:
        """Reserve one job. Even without a reply it may have been done, and have made a buried or delayed job ready."""
        return self.on_job("reserve-job", job_id, b"reserve-job %d\r\n" % job_id, READY, weak=True)

    def reserve_several(self, most: int, timeout_s: int) -> bytes:
        self._ask("reserve-batch", most=most)
        return b"reserve-batch %d %d\r\n" % (most, timeout_s)

    def plain(self, word: str, rest: bytes, **more) -> bytes:
        self._ask(word, **more)
        return word.encode() + b" " + rest + b"\r\n"

    def use_tube(self, tube: bytes) -> bytes:
        before, self.use = self.use, tube
        return self.plain("use", tube, before=before)

    def change(self, job_id: int, do: str, **more) -> bytes:
        """Change one job as an operator does."""
        outcome = {
            "kick": (READY,), "bury": (BURIED,), "delete": (ABSENT,), "delay": (DELAYED, READY), "release": (READY,),
        }.get(do)  # fmt: skip
        self._ledger.lets_go(job_id)
        change = None
        if outcome is not None:
            change = self._ledger.asks(job_id, do, *outcome)
        request = json.dumps({"ids": [job_id], "do": do, **more}).encode()
        note = {"then": self._notes.asks(job_id, more["note"].encode())} if do == "note" else {}
        self._ask("change-jobs", job=job_id, change=change, **note)
        return b"change-jobs %d\r\n%b\r\n" % (len(request), request)

    def operate(self, word: str, request: dict, rules: Callable[[dict], None]) -> bytes:
        """Give an operator's command about policies or schedules; ``rules`` is called with the reply."""
        self._ask(word, then=lambda word, body: rules(json.loads(body) if word == b"OK" else {}))
        text = json.dumps(request).encode()
        return b"%b %d\r\n%b\r\n" % (word.encode(), len(text), text)

    def watch_events(self, tube: bytes | None) -> bytes:
        request = json.dumps({} if tube is None else {"tube": tube.decode()}).encode()
        self._ask("watch-events")
        return b"watch-events %d\r\n%b\r\n" % (len(request), request)

    # -- replies

    def hear(self, data: bytes) -> None:
        self._world.note(f"{self.name} <", b"OK" if data.startswith(b"OK") else data)  # statistics contain pids
        self._heard += data
        while parts := self._take_reply():
            words, body = parts[0]
            if words[0] == b"EVENT":
                self._note_event(json.loads(body))
                continue
            must(self._asked, f"a reply that nobody has asked for: {words!r}")
            asked = self._asked.popleft()
            must(words[0] in MAY[asked.word], f"{asked.word} was answered {b' '.join(words)!r}")
            self.replies += 1
            self._note(asked, words, body)
            if len(parts) > 1:
                self._note_batch(asked, parts[1:])
            if not self._asked:
                self._answered.set()

    def _take_reply(self) -> list[tuple[list[bytes], bytes]]:
        """Take the next reply as its parts (only a batch has more than one); none if it is not complete yet."""
        parts: list[tuple[list[bytes], bytes]] = []
        at, due = 0, 1
        while len(parts) < due:
            end = self._heard.find(b"\r\n", at)
            if end < 0:
                return []
            words = bytes(self._heard[at:end]).split(b" ")
            at, body = end + 2, b""
            if words[0] in BODIED:
                stop = at + int(words[BODIED[words[0]]])
                if len(self._heard) < stop + 2:
                    return []
                body = bytes(self._heard[at:stop])
                must(self._heard[stop : stop + 2] == b"\r\n", "a reply's body does not end")
                at = stop + 2
            parts.append((words, body))
            if words[0] == b"RESERVED_BATCH":
                due += int(words[1])
        del self._heard[:at]
        return parts

    def _note(self, asked: Asked, words: list[bytes], body: bytes) -> None:
        ledger, more, word = self._ledger, asked.more, words[0]
        if asked.word in {"put", "put-jobs"}:
            self._note_put(asked, words, body)
        elif word == b"RESERVED":
            if "change" in more:
                ledger.refused(more["job"], more["change"])  # the reservation that is known takes its place
            self._note_reserved(asked, int(words[1]), body)
        elif word in {b"OFFERED", b"TAKEN", b"TOUCHED"}:
            self._note_kept(asked, words, body)
        elif word == b"OUT_OF_MEMORY" and "before" in more:
            self._goes_on_using(more["before"])
        elif asked.word == "kick":
            ledger.kicked(more["kick"])
        elif asked.word == "watch-events":
            self._watches = True
        elif "then" in more:
            more["then"](word, body)
        elif more.get("change") is not None:
            did_nothing = word == b"NOT_FOUND" or (asked.word == "change-jobs" and json.loads(body).get("done") != 1)
            (ledger.refused if did_nothing else ledger.done)(more["job"], more["change"])

    def _goes_on_using(self, tube: bytes) -> None:
        """Correct the tube of what was put after a ``use`` that is refused."""
        for asked in self._asked:
            if asked.word == "use":
                asked.more["before"] = tube
                return
            for body, _ in asked.more.get("puts", ()):
                self._ledger.tube_of[body] = tube
        self.use = tube

    def _note_put(self, asked: Asked, words: list[bytes], body: bytes) -> None:
        puts, word = asked.more["puts"], words[0]
        if word in {b"INSERTED", b"OK"}:
            ids = [int(words[1])] if word == b"INSERTED" else json.loads(body)["ids"]
            for (put, change), job_id in zip(puts, ids, strict=True):
                self._must_be_stored(job_id)
                self._ledger.put(put, change, job_id, asked.more["floor"])
        else:
            for put, change in puts:
                self._ledger.put_refused(put, change)

    def _note_reserved(self, asked: Asked, job_id: int, body: bytes) -> None:
        self._must_be_stored(job_id)
        ttr_s, now_s = int(body.split(b".")[2]), self._world.now_ns / 1e9
        self._ledger.reserved(job_id, body, self, asked.sent, asked.sent_s, now_s, ttr_s)
        self.held[job_id] = ttr_s
        self.taken.append(job_id)

    def _must_be_stored(self, job_id: int) -> None:
        assert self.wire is not None
        stored_id = self.wire.protocol.session.engine.ledger.stored_id
        must(job_id <= stored_id, f"a client was told of job {job_id}, and a crash could still undo its put")

    def _note_event(self, event: dict) -> None:
        must(self._watches, "an event came before the reply to the command that asks for it")
        job_id = event.get("id")
        if not job_id:  # events were lost, or it is of a tube
            return
        what = event["what"]
        must(job_id not in self._seen_deleted, f"{what} of job {job_id} was told after its deletion")
        if what == "delete":
            self._seen_deleted.add(job_id)
        self._ledger.event(job_id, what)

    def _note_batch(self, asked: Asked, parts: list[tuple[list[bytes], bytes]]) -> None:
        must(len(parts) <= asked.more.get("most", 0), f"{len(parts)} jobs came in a batch")
        must(len({words[1] for words, _ in parts}) == len(parts), "a job came twice in a batch")
        for words, body in parts:
            must(words[0] == b"RESERVED", f"{words!r} came in a batch")
            self._note_reserved(asked, int(words[1]), body)

    def _note_kept(self, asked: Asked, words: list[bytes], body: bytes) -> None:
        if words[0] == b"OFFERED":
            self._must_be_stored(int(words[1]))
            self.offered[int(words[1])] = body
        elif words[0] == b"TAKEN":
            self._note_reserved(asked, asked.more["job"], asked.more["body"])
        else:
            self._note_touched(asked)

    def _note_touched(self, asked: Asked) -> None:
        job_id = asked.more["job"]
        job = self._ledger.jobs[job_id]
        if job.holder is self:
            job.held_until_s = max(job.held_until_s, asked.sent_s + self.held.get(job_id, 0))
