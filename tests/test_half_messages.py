"""The client of half messages keeps to HTTP/2: a server that closes it for less would seem to have cut it for more."""

from __future__ import annotations

import asyncio
from struct import pack

from tests.half_messages import DATA, PING, SETTINGS, WINDOW, HalfMessage, frame


async def test_it_sends_no_more_than_the_last_settings_allow() -> None:
    """RFC 9113, 6.9.2: a new initial window changes the window by how much it differs from the one before."""
    sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        for window in 100_000, 200_000:
            writer.write(frame(SETTINGS, 0, 0, pack(">HI", 4, window)))
        writer.write(frame(WINDOW, 0, 0, pack(">I", 10_000_000)))
        total, asked = 0, False
        while True:
            head = await reader.readexactly(9)
            kind, length = head[3], int.from_bytes(head[:3], "big")
            await reader.readexactly(length)
            total += length if kind == DATA else 0
            if kind == PING:
                break
            if total >= 200_000 and not asked:
                asked = True
                writer.write(frame(PING, 0, 0, bytes(8)))
        sent.set_result(total)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, HalfMessage("127.0.0.1", server.sockets[0].getsockname()[1], "/a.B/Read") as half:
        sending = asyncio.create_task(half.send(1_000_000, 900_000))
        assert await asyncio.wait_for(sent, 60) == 200_000
        await asyncio.wait_for(half.ended.wait(), 60)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
