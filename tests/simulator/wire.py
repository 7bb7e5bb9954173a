"""The transport of a connection in the same process, and the network between it and its client."""

import asyncio
from typing import TYPE_CHECKING

from tests.simulator.ledger import BrokenPromiseError
from tests.simulator.world import World

if TYPE_CHECKING:
    from tests.simulator.clients import Client

HIGH_BYTES = 20_000


class Wire(asyncio.Transport):
    """The transport of a connection, and the network between it and its client."""

    def __init__(self, world: World, client: "Client", protocol) -> None:
        super().__init__({"peername": ""})
        self._world = world
        self._client = client
        self.protocol = protocol
        self._inbox = bytearray()
        self._reads = True
        self._due = False
        self._unread = 0
        self._ended = False
        self.stalled = False
        self.closed = False
        protocol.connection_made(self)

    # called by the client

    def send(self, data: bytes) -> None:
        self._world.note(f"{self._client.name} >", data)
        self._inbox += data
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._due and self._reads and (self._inbox or self._ended):
            self._due = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        if self.closed or not self._reads:
            return
        chance = self._client.chance
        if self._inbox:
            size = len(self._inbox) if chance.random() < 0.8 else chance.randint(1, len(self._inbox))
            data = bytes(self._inbox[:size])
            del self._inbox[:size]
            self.protocol.data_received(data)
            self._deliver_soon()
        elif self._ended:
            self._ended = False
            if not self.protocol.eof_received():
                self.close()

    def end(self) -> None:
        """Half-close: the client will send no more."""
        self._ended = True
        self._deliver_soon()

    def vanish(self) -> None:
        if not self.closed:
            self.closed = True
            self._client.lost()
            self.protocol.connection_lost(ConnectionResetError())

    def read_on(self) -> None:
        self.stalled = False
        if self._unread > HIGH_BYTES and not self.closed:
            self._unread = 0
            self.protocol.resume_writing()
        self._unread = 0

    # called by the server

    def write(self, data):
        if self.closed or self._world.gone:
            return
        try:
            self._client.hear(bytes(data))
        except BrokenPromiseError as broken:
            self._world.broken = self._world.broken or broken
            self._world.crash()
        if self.stalled:
            before, self._unread = self._unread, self._unread + len(data)
            if before <= HIGH_BYTES < self._unread:
                self.protocol.pause_writing()

    def close(self):
        if not self.closed:
            self.closed = True
            self._client.loses_its_jobs()  # others may be given them before it hears of the end
            asyncio.get_running_loop().call_soon(self._lost)

    def _lost(self):
        self._client.lost()
        self.protocol.connection_lost(None)

    def abort(self):
        self.close()

    def write_eof(self):
        self._client.loses_its_jobs()  # the server is done with it, though its client may have more to read
        if self._client.chance.random() < 0.9:
            self.close()

    def set_protocol(self, protocol):
        self.protocol = protocol

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return self._unread

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def pause_reading(self):
        self._reads = False

    def resume_reading(self):
        self._reads = True
        self._deliver_soon()
