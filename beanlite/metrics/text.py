"""The page with all metrics, made in slices so that no client waits for it, and at most once a second."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from beanlite.metrics.families import Measured, families
from beanlite.metrics.tubes import tube_lines

PAGE_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
# For this long after the page was made, requests get the same page.
_FRESH_S: Final = 1.0


class MetricsPage:
    """The page of a server."""

    def __init__(self, source: Measured) -> None:
        self._source = source
        self._page = b""
        self._made_s: float | None = None
        """When the page was made, by the loop's clock; None if it has not been made yet."""
        self._lock = asyncio.Lock()

    async def get(self) -> bytes:
        """Return the page; make it first, unless it was made within the last second."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._made_s is None or loop.time() >= self._made_s + _FRESH_S:
                parts = []
                for part in self._parts():
                    parts.append(part)
                    await asyncio.sleep(0)
                self._page = b"".join(parts)
                self._made_s = loop.time()
            return self._page

    def _parts(self) -> Iterator[bytes]:
        source = self._source
        for family in families(source):
            yield generate_latest(cast(Any, SimpleNamespace(collect=[family].copy)))  # the library formats collectors
        for lines in tube_lines(source.engine, source.most_tubes, source.clock):
            yield lines.encode()
