"""Connections with TLS that have ended, also before they began, go at once and not when the collector finds them."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from anabranch_kit.net.tls import ListenerTls, TlsFiles
from bridges.net.server import Limits
from tests.bridges.net.echo import NOW, EchoServer, frame
from tests.certificates import Authority
from tests.kit.waiting import until
from tests.left_behind import Link, left_behind, on_link

T = TypeVar("T")

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
SENT = frame(NOW, b"x" * 100)


class TlsLink:
    """A connection with TLS by hand."""

    def __init__(self, link: Link, context: ssl.SSLContext) -> None:
        self._link = link
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    async def shake_hands(self) -> None:
        await self._step(self._tls.do_handshake)

    async def send(self, data: bytes) -> None:
        await self._step(lambda: self._tls.write(data))

    async def some(self) -> bytes:
        return await self._step(self._tls.read)

    async def _step(self, work: Callable[[], T]) -> T:
        while True:
            try:
                result = work()
            except ssl.SSLWantReadError:
                await self._link.send(self._out.read())
                self._in.write(await self._link.some())
                continue
            await self._link.send(self._out.read())
            return result


async def test_nothing_is_left_of_a_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    server = EchoServer(Limits())
    tls = ListenerTls(TlsFiles(*authority.issue("node")))
    address = await server.listen("echo", "127.0.0.1", 0, tls=tls)
    ours = ssl.create_default_context(cafile=str(authority.cert))
    others = ssl.create_default_context()
    opened = 0

    async def no_tls(link: Link) -> None:
        await link.send(b"hello\r\n\r\n")
        await link.closed()

    async def half_a_hello(link: Link) -> None:
        await link.send(HELLO)
        link.finish()
        await link.closed()

    async def nothing(link: Link) -> None:
        link.finish()
        await link.closed()

    async def distrusts_us(link: Link) -> None:
        try:
            await TlsLink(link, others).shake_hands()
        except ssl.SSLError:
            link.finish()
        await link.closed()

    async def is_answered(link: Link) -> None:
        nonlocal opened
        opened += 1
        way = TlsLink(link, ours)
        await way.shake_hands()
        await way.send(SENT)
        assert await way.some() == SENT
        link.reset()

    async def within_a_frame(link: Link) -> None:
        nonlocal opened
        opened += 1
        way = TlsLink(link, ours)
        await way.shake_hands()
        await way.send(SENT + SENT[:20])
        assert await way.some() == SENT
        link.reset()

    async def over() -> None:
        await until(lambda: server.counts.opened == opened and not server.connections)

    ends = (no_tls, half_a_hello, nothing, distrusts_us, is_answered, within_a_frame)
    try:
        assert await left_behind({end.__name__: on_link(address, end) for end in ends}, over) == {}
        assert server.budget.accounts == 0
    finally:
        await server.close(0.5)
