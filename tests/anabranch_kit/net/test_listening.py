"""Clients that come together are taken a few in each turn of the loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

from anabranch_kit.net.listening import TAKEN_AT_ONCE, WAITING, listen

CLIENTS = 200


async def test_clients_that_come_together_are_taken_in_turns_and_none_is_lost() -> None:
    taken = 0

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal taken
            taken += 1

    server = await listen(Taken, "127.0.0.1", 0)
    async with server:
        with ExitStack() as stack:
            for _ in range(CLIENTS):  # the kernel keeps them while the loop does something else
                link = stack.enter_context(socket.socket())
                link.settimeout(5)
                link.connect(server.sockets[0].getsockname())
            most = before = 0
            async with asyncio.timeout(30):
                while taken < CLIENTS:
                    await asyncio.sleep(0)
                    most, before = max(most, taken - before), taken
    assert CLIENTS < WAITING
    assert 0 < most <= TAKEN_AT_ONCE
