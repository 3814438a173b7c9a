"""Clients of sbp-v0.1 that ask for much and take nothing do not keep others waiting."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.tcp_carrier import TcpCarrier
from sbp_back.wire.frame import encode_frame
from sbp_back.wire.model import Status
from sbp_document.wire import messages as m
from sbp_document.wire.v01 import V01
from tests.sbp_document.document_lab import appended, created, running

MIB = 1 << 20
CLIENTS = 60
REQUESTS = 8
LONGEST_S = 0.15
"""Of the loop's own CPU: on a busy machine nobody can tell how long a turn takes otherwise. It has been 0.02 s."""


class Turns:
    """The CPU that the longest turn of the event loop has taken."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._loop = asyncio.get_running_loop()
        self._last = time.thread_time()
        self._handle = self._loop.call_soon(self._turned)

    def _turned(self) -> None:
        now = time.thread_time()
        self.longest, self._last = max(self.longest, now - self._last), now
        self._handle = self._loop.call_soon(self._turned)

    def end(self) -> None:
        self._handle.cancel()


async def test_the_first_append_beside_many_that_take_nothing_waits_for_short_turns(tmp_path: Path) -> None:
    store = StoreOptions(segment_bytes=64 * MIB, zero_ahead_bytes=0, low_water_bytes=0)
    dialect = V01
    loop = asyncio.get_running_loop()
    async with running(tmp_path, store=store) as embedded:
        address = embedded.addresses["sbp-v0.1"]
        to = TcpCarrier(*address, dialect)
        asked = await created(to)
        for _ in range(20):
            assert (await appended(to, asked, bytes(MIB))).status == Status()
        other = await created(to)
        request = dialect.encode_request(m.FetchBatchRequest(0, 0, [m.FetchItem(asked, 1, 0, 16 * MIB)]))
        opcode, header, payload = request[:3]
        frames = [b"".join(encode_frame(opcode, 0, 1 + number, header, payload)) for number in range(REQUESTS)]
        silent = []
        turns = Turns()
        for _ in range(CLIENTS):
            one = socket.socket()
            silent.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(one, tuple(address))
            await loop.sock_sendall(one, b"".join(frames))
        for _ in range(5):
            assert (await appended(to, other, b"x" * 100)).status == Status()
        turns.end()
        for one in silent:
            one.close()
        assert turns.longest < LONGEST_S
