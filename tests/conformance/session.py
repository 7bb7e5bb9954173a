"""Plays a transcript against a running server."""

import re
import signal
import socket
import time
from collections.abc import Callable

from tests.conformance.transcript import Hole, Step, Transcript, parse_text
from tests.support.servers import RunningServer

REPLY_WITHIN_S = 10.0
AT_ONCE_S = 0.5
# Between two packets of one connection, so that they arrive as two.
PACKET_PAUSE_S = 0.002
SIGNAL_PAUSE_S = 0.1
SHOWN_BYTES = 300
HEAD = re.compile(rb"OK (\d+)\r\n")


class Mismatch(Exception):
    """The server did something else than the transcript says."""


class Client:
    """One connection of a session."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.held = b""
        self.received = b""
        self.ended = False

    def send(self, data: bytes) -> None:
        """Send what was held back and this, at once."""
        try:
            self.connection.sendall(self.held + data)
        except ConnectionError as error:
            raise Mismatch(f"the server closed the connection: {error}") from None
        self.held = b""
        time.sleep(PACKET_PAUSE_S)

    def receive(self, enough: Callable[[bytes], int], within_s: float) -> bytes:
        """Take from what comes: as many bytes as ``enough`` says (0: not yet); all that came when the time is over."""
        end = time.monotonic() + within_s
        while not (taken := enough(self.received)):
            left_s = end - time.monotonic()
            if left_s <= 0 or not self._read(left_s):
                taken = len(self.received)
                break
        data, self.received = self.received[:taken], self.received[taken:]
        return data

    def nothing_comes(self, for_s: float) -> None:
        """Check that no byte and no end comes. Raises Mismatch."""
        if not self.received and not self.ended:
            self._read(for_s)
        if self.received or self.ended:
            raise Mismatch(f"nothing was to come, but: {shown(self.received)}{', the end' if self.ended else ''}")

    def end_comes(self) -> None:
        """Check that the server closes the connection. Raises Mismatch."""
        end = time.monotonic() + REPLY_WITHIN_S
        while not self.received and not self.ended and (left_s := end - time.monotonic()) > 0:
            self._read(left_s)
        if self.received or not self.ended:
            raise Mismatch(f"the end was to come, but: {shown(self.received) if self.received else 'nothing'}")

    def _read(self, within_s: float) -> bool:
        """False when nothing came in time, or never will."""
        if self.ended:
            return False
        self.connection.settimeout(within_s)
        try:
            data = self.connection.recv(1 << 18)
        except TimeoutError:
            return False
        except ConnectionResetError:
            data = b""
        finally:
            self.connection.settimeout(REPLY_WITHIN_S)
        self.received += data
        self.ended = not data
        return bool(data)


class Session:
    """The clients of a transcript and the numbers that they have seen."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.clients: dict[str, Client] = {}
        self.numbers: dict[str, int] = {}

    def play(self, transcript: Transcript) -> None:
        """Play it to its end. Raises Mismatch at the first step that differs, with its line."""
        try:
            for step in transcript.steps:
                try:
                    self._do(step)
                except Mismatch as mismatch:
                    ended = step.client in self.clients and self.clients[step.client].ended
                    raise Mismatch(
                        f"{transcript.name}.txt:{step.line}: {step.source}\n{mismatch}"
                        + ("\n  the server has closed the connection" if ended else "")
                    ) from None
            for name, client in self.clients.items():
                if client.received:
                    raise Mismatch(f"{transcript.name}.txt: {name} got at the end: {shown(client.received)}")
        finally:
            for client in self.clients.values():
                client.connection.close()

    def _do(self, step: Step) -> None:
        match step.verb:
            case "wait":
                time.sleep(step.seconds)
            case "drain":
                self.server.signal(signal.SIGUSR1)
                time.sleep(SIGNAL_PAUSE_S)
            case "less":
                first, second = (self.numbers[name] for name in step.names)
                if not first < second:
                    raise Mismatch(f"{first} is not less than {second}")
            case _:
                if step.client not in self.clients:
                    self.clients[step.client] = Client(self.server.connect(REPLY_WITHIN_S))
                self._do_with(self.clients[step.client], step)

    def _do_with(self, client: Client, step: Step) -> None:
        match step.verb:
            case ">" | "+" | ">>" | ".>":
                self._send(client, step)
            case "<":
                self._expect(client, step.text, REPLY_WITHIN_S)
            case "<!":
                self._expect(client, step.text, AT_ONCE_S)
            case ":":
                self._check_yaml(client, step)
            case "silent":
                client.nothing_comes(step.seconds)
            case "closed":
                client.end_comes()
            case "close":
                client.connection.close()
            case "half-close":
                client.connection.shutdown(socket.SHUT_WR)

    def _send(self, client: Client, step: Step) -> None:
        text = self._bytes(step.text)
        match step.verb:
            case ">":
                client.send(text + b"\r\n")
            case "+":
                client.held += text + b"\r\n"
            case ">>":
                client.send(text)
            case ".>":
                for byte in text + b"\r\n":
                    client.send(bytes([byte]))

    def _bytes(self, text: tuple[bytes | Hole, ...]) -> bytes:
        return b"".join(str(self.numbers[part.name]).encode() if isinstance(part, Hole) else part for part in text)

    def _expect(self, client: Client, text: tuple[bytes | Hole, ...], within_s: float) -> None:
        wanted = (*text, b"\r\n")
        line_ends = b"".join(b"{}" if isinstance(part, Hole) else part for part in wanted).count(b"\r\n")
        got = client.receive(lambda data: _after_line_end(data, line_ends), within_s)
        self._compare(wanted, got)

    def _compare(self, wanted: tuple[bytes | Hole, ...], got: bytes) -> None:
        """Compare and bind the holes. Raises Mismatch."""
        pattern = b""
        holes: list[Hole] = []
        for part in wanted:
            if isinstance(part, bytes):
                pattern += re.escape(part)
            else:
                pattern += rb"([^\r\n]*)" if part.name == "*" else rb"(\d+)"
                holes.append(part)
        found = re.fullmatch(pattern, got, re.DOTALL)
        if found and all(self._fits(hole, value) for hole, value in zip(holes, found.groups(), strict=True)):
            return
        expected = "".join(shown(part)[2:-1] if isinstance(part, bytes) else self._named(part) for part in wanted)
        raise Mismatch(f"  expected: {expected}\n  received: {shown(got)[2:-1]}")

    def _fits(self, hole: Hole, value: bytes) -> bool:
        if hole.name == "*":
            return True
        number = int(value)
        if ".." in hole.name:
            least, most = hole.name.split("..")
            return int(least) <= number <= int(most)
        return self.numbers.setdefault(hole.name, number) == number

    def _named(self, hole: Hole) -> str:
        bound = self.numbers.get(hole.name)
        return "{" + hole.name + ("" if bound is None else f"={bound}") + "}"

    def _check_yaml(self, client: Client, step: Step) -> None:
        body = _take_ok_body(client)
        order = [line.partition(": ")[0] for line in body]
        values = {key: value for key, colon, value in (line.partition(": ") for line in body) if colon}
        items = [line for line in body if line.startswith("- ")]
        wanted_items = [check for _, check in step.checks if check.startswith("- ")]
        if wanted_items and sorted(wanted_items) != sorted(items):
            raise Mismatch(f"  expected: {sorted(wanted_items)}\n  received: {sorted(items)}")
        for line, check in step.checks:
            if check.startswith("keys "):
                keys = check.split()[1:]
                if order[: len(keys)] != keys:
                    raise Mismatch(f"  line {line}, expected: {keys}\n  received: {order}")
                order = order[len(keys) :]
            elif not check.startswith("- "):
                key, _, pattern = check.partition(": ")
                if key not in values:
                    raise Mismatch(f"  line {line}, expected: {key}\n  received: {sorted(values)}")
                try:
                    self._compare(tuple(parse_text(pattern)), values[key].encode())
                except Mismatch as mismatch:
                    raise Mismatch(f"  line {line}, {key}\n{mismatch}") from None


def shown(data: bytes) -> str:
    """Bytes as they are printed in a report; long ones shortened."""
    if len(data) <= SHOWN_BYTES:
        return repr(data)
    return f"b'{repr(data[:SHOWN_BYTES])[2:-1]}…({len(data)} bytes)'"


def _after_line_end(data: bytes, number: int) -> int:
    """The position after the CR LF of that number, 0 when there are fewer."""
    position = 0
    for _ in range(number):
        position = data.find(b"\r\n", position) + 2
        if position == 1:
            return 0
    return position


def _take_ok_body(client: Client) -> list[str]:
    """The lines of an ``OK <bytes>`` reply, whose frame is checked to the byte. Raises Mismatch."""

    def whole(data: bytes) -> int:
        head = HEAD.match(data)
        if head is None:
            # Something else: its line is shown in the report.
            return 0 if b"OK ".startswith(data[:3]) else _after_line_end(data, 1)
        size = head.end() + int(head[1]) + 2
        return size if len(data) >= size else 0

    data = client.receive(whole, REPLY_WITHIN_S)
    head = HEAD.match(data)
    if head is None or len(data) != head.end() + int(head[1]) + 2:
        raise Mismatch(f"  expected: OK <bytes> and a body\n  received: {shown(data)}")
    body = data[head.end() :]
    if not body.startswith(b"---\n") or not body.endswith(b"\n\r\n"):
        raise Mismatch(f"  expected: a body from '---' to an end of line, then CR LF\n  received: {shown(body)}")
    return body[4:-3].decode().split("\n")
