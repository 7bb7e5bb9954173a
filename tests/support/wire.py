"""A blocking client for the tests, which sends bytes and reads replies one by one."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any, Self

WITHIN_S = 120.0  # backups and pages of the web have a low priority, and other tests keep the cores busy
HAVE_BODY = (b"RESERVED ", b"OFFERED ", b"FOUND ", b"OK ", b"REFUSED ", b"EVENT ")


class Wire:
    """A connection. Its end raises ConnectionError, a reply that does not come in time TimeoutError."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.body = b""  # of the last reply that had one
        self._received = bytearray()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> str:
        """Return the line of the next reply, without its CR LF."""
        while (end := self._received.find(b"\r\n")) < 0:
            self._receive()
        line = bytes(self._received[:end])
        del self._received[: end + 2]
        if line.startswith(HAVE_BODY):
            size = int(line.split()[-1]) + 2
            while len(self._received) < size:
                self._receive()
            self.body = bytes(self._received[: size - 2])
            del self._received[:size]
        return line.decode()

    def ask(self, line: str, body: bytes | None = None) -> str:
        """Send a command, and return the line of its reply."""
        self.send(line.encode() + b"\r\n" + (b"" if body is None else body + b"\r\n"))
        return self.reply()

    def put(self, body: bytes, pri: int = 0, delay_s: int = 0, ttr_s: int = 60) -> int:
        """Put a job, and return its id."""
        word, job_id = self.ask(f"put {pri} {delay_s} {ttr_s} {len(body)}", body).split()
        assert word == "INSERTED"
        return int(job_id)

    def request(self, word: str, **what: object) -> Any:
        """Send an operator's command, and return the object in the reply."""
        body = json.dumps(what).encode()
        line = self.ask(f"{word} {len(body)}", body)
        assert line.startswith("OK "), (line, self.body)
        return json.loads(self.body)

    def stats(self, what: str = "stats") -> dict[str, str]:
        """Send a stats command, and return the statistics."""
        line = self.ask(what)
        assert line.startswith("OK "), line
        return dict(item.split(": ", 1) for item in self.body.decode().splitlines()[1:])

    def is_closed(self) -> bool:
        """Read until the connection ends; return False if it does not end."""
        try:
            while True:
                self._receive()
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _receive(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionAbortedError("the server has closed the connection")
        self._received += data


def put_bytes(body: bytes, pri: int = 0, delay_s: int = 0, ttr_s: int = 60) -> bytes:
    """Return a put as it is sent."""
    return b"put %d %d %d %d\r\n%b\r\n" % (pri, delay_s, ttr_s, len(body), body)


def until(condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait until a condition holds. AssertionError: it does not in time."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.002)
