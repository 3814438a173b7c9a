"""One timer closes idle connections: nothing it meets may be the last thing it does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bridges.net.server import Limits
from tests.bridges.net.echo import EchoServer


class Broken:
    """A connection that cannot be closed."""

    def look_after(self, now: float) -> None:
        raise RuntimeError("a bug")


async def test_a_connection_that_cannot_be_closed_does_not_end_the_sweeping() -> None:
    server = EchoServer(Limits())
    first = server.sweeper
    broken: Any = Broken()
    server.connections[broken] = None
    with pytest.raises(RuntimeError):
        server.sweep()
    assert server.sweeper is not first
    assert server.sweeper is not None
    assert server.sweeper.when() > asyncio.get_running_loop().time()
    server.connections.clear()
    await server.close()
