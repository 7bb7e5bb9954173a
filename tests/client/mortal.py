"""A server that is killed and started again."""

import asyncio

from tests.support.cutting import Cutting
from tests.support.servers import start_beanlite
from tests.support.wire import Wire


class Mortal:
    """A server behind a proxy, at whose port it is found again after it was killed."""

    def __init__(self, folder):
        self._folder = folder

    async def __aenter__(self):
        self.server = await asyncio.to_thread(start_beanlite, self._folder)
        self.proxy = Cutting(self.server.port)
        await self.proxy.__aenter__()
        self.url = f"beanlite://127.0.0.1:{self.proxy.port}"
        return self

    async def __aexit__(self, *_error):
        await self.proxy.__aexit__()
        self.server.kill()

    async def kill(self):
        self.proxy.refuses = True
        await asyncio.to_thread(self.server.kill)
        self.proxy.cut()

    async def revive(self):
        self.server = await asyncio.to_thread(start_beanlite, self._folder)
        self.proxy.to_port = self.server.port
        self.proxy.refuses = False

    def clients(self):
        with Wire(self.server.connect()) as wire:
            return [client for client in wire.request("list-clients")["clients"] if not client["asks"]]
