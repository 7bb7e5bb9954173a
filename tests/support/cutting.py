"""A proxy to a server that can delay data, and cut connections so that a request or its reply is lost."""

import asyncio
import contextlib

ENDS_WITHIN_S = 1.0


class Late:
    """A writer that delays data."""

    def __init__(self, writer, delay_s):
        self.transport = writer.transport
        self._writer = writer
        self._delay_s = delay_s

    def write(self, data):
        asyncio.get_running_loop().call_later(self._delay_s, self._writer.write, data)


class Cutting:
    """Forwards connections from a port of its own to a server, until it is told to cut them."""

    def __init__(self, port, delay_s=0.0):
        """Data from clients is delayed by ``delay_s``, which is thus the round-trip time."""
        self.to_port = port
        self._delay_s = delay_s
        self._writers = set()
        self._tasks = set()
        self.cut_at = None
        """None: forward everything. "question": lose the client's next data, and the connection. "answer": lose the
        server's next data, and the connection. "silence": lose all data from the server, and keep the connection."""
        self.refuses = False
        self.cuts = 0
        self.passed_on = 0
        """The number of connections that were forwarded."""

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error):
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDS_WITHIN_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self):
        """End all connections at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def _pass_on(self, reader, writer):
        if self.refuses:
            writer.transport.abort()
            return
        self.passed_on += 1
        self._tasks.add(asyncio.current_task())
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, to_writer}
        self._writers |= pair
        there = Late(to_writer, self._delay_s) if self._delay_s else to_writer
        with contextlib.suppress(OSError):
            await asyncio.gather(
                self._one_way(reader, there, "question", pair), self._one_way(to_reader, writer, "answer", pair)
            )
        self._writers -= pair
        for each in pair:
            each.transport.abort()

    async def _one_way(self, reader, writer, what, pair):
        while data := await reader.read(1 << 16):
            if self.cut_at == what:
                self.cut_at = None
                self.cuts += 1
                for each in pair:
                    each.transport.abort()
                return
            if self.cut_at == "silence" and what == "answer":
                self.cuts += 1
            else:
                writer.write(data)
        writer.transport.abort()
