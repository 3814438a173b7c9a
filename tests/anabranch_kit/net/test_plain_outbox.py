"""What is sent of frames to a connection that has gone."""

from __future__ import annotations

import asyncio
import socket

import pytest

from anabranch_kit.net.plain_outbox import Outbox


async def test_to_a_connection_that_is_lost_nothing_more_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport would drop it a piece at a time, and log every one of them."""
    ours, theirs = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    theirs.close()
    written: list[int] = []
    write = transport.write
    monkeypatch.setattr(transport, "write", lambda data: (written.append(len(data)), write(data)))
    outbox = Outbox(transport)
    for _ in range(2):
        outbox.send([bytes(16 << 20)])
    assert len(written) == 1, "the first one finds it out"
    assert outbox.unsent == 0
