"""The console's listener under clients that hold connections for nothing, or speak no HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from anabranch_kit.net.address import Address
from bridges.http.errors import errors_as_json
from bridges.http.own_names import OwnNames
from bridges.http.site import HttpSite
from bridges.metrics import FrontMetrics
from tests.kit.waiting import until

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Serving:
    """A site whose page waits for ``go`` under /slow, and the address to connect to."""

    def __init__(self, site: HttpSite, metrics: FrontMetrics) -> None:
        self.site = site
        self.metrics = metrics
        self.go = asyncio.Event()
        self.started = asyncio.Event()
        self.address = Address("127.0.0.1", 0)
        self.asked = asyncio.Event()
        self.made = asyncio.Event()
        self.mistakes: list[Exception] = []

    async def begin(self) -> None:
        self.site.serve(self._application)
        self.address = await self.site.listen("site", Address("127.0.0.1", 0), OwnNames())

    async def _application(self) -> web.Application:
        self.asked.set()
        await self.made.wait()
        if self.mistakes:
            raise self.mistakes.pop()
        app = web.Application(client_max_size=1 << 24, middlewares=[errors_as_json])
        app.router.add_get("/", self._page)
        app.router.add_get("/slow", self._slow)
        app.router.add_post("/size", self._size)
        app.router.add_post("/unread", self._slow)
        app.router.add_get("/long", self._long)
        app.router.add_get("/healthz", self._page)
        return app

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(text="page")

    async def _size(self, request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async def _long(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.started.set()
        while True:
            await response.write(bytes(1 << 16))

    async def _slow(self, request: web.Request) -> web.Response:
        self.started.set()
        await self.go.wait()
        return web.Response(text="slow")

    async def connect(self) -> Link:
        return await asyncio.open_connection(self.address.host, self.address.port)


@asynccontextmanager
async def serving(
    most: int = 10, seconds: float = 30.0, *, made: bool = True, kept: frozenset[str] = frozenset()
) -> AsyncIterator[Serving]:
    metrics = FrontMetrics("http")
    found = Serving(HttpSite(most_connections=most, request_seconds=seconds, observer=metrics, kept=kept), metrics)
    await found.begin()
    if made:
        found.made.set()
        await found.site.open()
    try:
        yield found
    finally:
        await found.site.stop()


async def ask(link: Link, request: bytes = GET) -> bytes:
    link[1].write(request)
    return await link[0].readuntil(b"\r\n")


async def ended(link: Link) -> bytes:
    """What was still sent before the server closed the connection."""
    try:
        return await link[0].read()
    except ConnectionError:
        return b""


async def test_when_all_places_are_taken_the_one_without_a_request_for_longest_goes() -> None:
    async with serving(most=3) as found:
        links = [await found.connect() for _ in range(3)]
        for link in links:
            assert await ask(link) == b"HTTP/1.1 200 OK\r\n"
        links[0][1].write(GET)  # now the second has gone without a request for longest
        assert (await links[0][0].readuntil(b"page")).endswith(b"page")
        assert (await links[0][0].readuntil(b"page")).endswith(b"page")
        assert await ask(await found.connect()) == b"HTTP/1.1 200 OK\r\n"
        assert (await ended(links[1])).endswith(b"page")
        assert (found.metrics.connections_refused, found.site.connections) == (1, 3)
        assert (await links[2][0].readuntil(b"page")).endswith(b"page")
        for link in (links[0], links[2]):
            assert await ask(link) == b"HTTP/1.1 200 OK\r\n"


async def test_a_further_connection_is_closed_when_every_other_has_a_request_in_progress() -> None:
    async with serving(most=2) as found:
        links = [await found.connect() for _ in range(2)]
        for link in links:
            found.started.clear()
            link[1].write(GET.replace(b"/ ", b"/slow "))
            await found.started.wait()
        assert await ended(await found.connect()) == b""
        assert (found.metrics.connections_refused, found.site.connections) == (1, 2)
        found.go.set()
        for link in links:
            assert await link[0].readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"


async def test_who_asks_nothing_is_closed() -> None:
    async with serving(seconds=0.05) as found:
        assert await ended(await found.connect()) == b""


async def test_a_header_that_never_ends_is_closed_however_often_a_byte_comes() -> None:
    async with serving(seconds=0.1) as found:
        reader, writer = link = await found.connect()
        end = asyncio.ensure_future(ended(link))
        while not end.done():
            writer.write(b"G" if not writer.is_closing() else b"")
            await asyncio.wait([end], timeout=0.01)
        assert b"200" not in end.result()
        assert reader.at_eof() or writer.is_closing()


async def test_who_asked_once_is_closed_when_nothing_follows() -> None:
    async with serving(seconds=0.1) as found:
        answer = b""
        while not answer:  # closed before it could ask, when nothing went on for so long
            link = await found.connect()
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                answer = await ask(link)
        assert answer == b"HTTP/1.1 200 OK\r\n"
        assert (await ended(link)).endswith(b"page")


async def test_a_request_in_progress_may_take_its_time() -> None:
    async with serving(seconds=0.05) as found:
        while not found.started.is_set():  # one is closed before it could ask when nothing goes on for so long
            link = await found.connect()
            link[1].write(GET.replace(b"/ ", b"/slow "))
            began, closed = asyncio.create_task(found.started.wait()), asyncio.create_task(ended(link))
            await asyncio.wait([began, closed], return_when=asyncio.FIRST_COMPLETED)
            began.cancel()
            closed.cancel()
        for _ in range(3):
            await ended(await found.connect())  # each of these lived longer than a connection without a request may
        found.go.set()
        assert await link[0].readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"


HALF = b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"


async def test_a_body_of_which_nothing_more_comes_is_given_up_and_that_is_told() -> None:
    async with serving(seconds=0.1) as found:
        answer = b""
        while not answer:  # closed before it could ask, when nothing went on for so long
            link = await found.connect()
            link[1].write(HALF)
            answer = await ended(link)
        # The handler is told, who may answer with what it likes.
        assert answer.startswith(b"HTTP/1.1 408 ")
        await until(lambda: not found.site.connections)


async def test_a_body_that_nobody_reads_is_given_up_too_when_nothing_more_comes() -> None:
    async with serving(seconds=0.1) as found:
        while not found.started.is_set():
            link = await found.connect()
            link[1].write(HALF.replace(b"/size", b"/unread"))
            assert await ended(link) == b""


async def test_a_body_that_we_do_not_take_is_not_its_clients_fault() -> None:
    async with serving(seconds=0.1) as found:
        body = bytes(1 << 24)
        link = None
        while not any(one.body and not one.transport.is_reading() for one in found.site.waited_for if one.transport):
            if link is None or link[0].at_eof() or link[1].is_closing():  # closed when nothing went on for so long
                link = await found.connect()
                head = b"POST /unread HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
                link[1].write(head + body)
            await asyncio.sleep(0.001)
        assert link is not None
        for _ in range(4):
            await ended(await found.connect())
        found.go.set()
        assert await link[0].readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"


async def test_half_sent_bodies_make_room_however_often_a_byte_of_them_comes() -> None:
    async with serving(most=2) as found:
        halves = [await found.connect() for _ in range(2)]
        for link in halves:
            link[1].write(HALF)
            link[1].write(b"{")
        await until(
            lambda: len(found.site.waited_for) == len(halves) and all(one.body for one in found.site.waited_for)
        )
        for _ in range(2):
            halves[0][1].write(b"{")  # the other has done nothing for longest, and then this one
            assert await ask(await found.connect()) == b"HTTP/1.1 200 OK\r\n"
        assert found.metrics.connections_refused == 2
        assert b"200" not in await ended(halves[1])


async def test_who_takes_nothing_of_an_answer_is_given_up() -> None:
    async with serving(seconds=0.1) as found:
        while not found.started.is_set():
            link = await found.connect()
            link[1].write(GET.replace(b"/ ", b"/long "))
            began = asyncio.create_task(found.started.wait())
            await asyncio.wait([began], timeout=1)
            began.cancel()
        link[1].transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: not found.site.connections)


async def test_health_is_told_while_all_places_are_taken() -> None:
    async with serving(most=2, kept=frozenset({"/healthz"})) as found:
        busy = [await found.connect() for _ in range(2)]
        for link in busy:
            found.started.clear()
            link[1].write(GET.replace(b"/ ", b"/slow "))
            await found.started.wait()
        for _ in range(40):  # who asks nothing makes room for who comes later
            await found.connect()
        other = await found.connect()
        other[1].write(GET)
        assert (await ended(other)).startswith(b"HTTP/1.1 503 ")
        assert await ask(await found.connect(), GET.replace(b"/ ", b"/healthz ")) == b"HTTP/1.1 200 OK\r\n"
        found.go.set()
        for link in busy:
            assert await link[0].readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"


async def test_what_is_no_http_is_answered_and_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as found:
        for garbage in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a" * 20_000):
            link = await found.connect()
            link[1].write(garbage + b"\r\n\r\n")
            assert b" 400 " in await ended(link)
        assert await ask(await found.connect()) == b"HTTP/1.1 200 OK\r\n"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_the_application_is_made_for_the_first_client_and_what_was_asked_meanwhile_is_answered() -> None:
    async with serving(made=False) as found:
        assert not found.asked.is_set()
        links = [await found.connect() for _ in range(3)]
        body = bytes(3_000_000)
        links[0][1].write(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        links[1][1].write(GET)
        await found.asked.wait()
        assert not found.site.is_running
        found.made.set()
        assert (await links[0][0].readuntil(b"3000000")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert (await links[1][0].readuntil(b"page")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await ask(links[2]) == b"HTTP/1.1 200 OK\r\n"


async def test_who_comes_while_the_application_cannot_be_made_is_sent_away_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(made=False) as found:
        found.mistakes = [LookupError("no"), LookupError("not now")]
        found.made.set()
        for _ in range(2):
            assert await ended(await found.connect()) == b""
        assert await ask(await found.connect()) == b"HTTP/1.1 200 OK\r\n"


async def test_who_waits_for_the_application_has_a_place_like_others_and_may_go() -> None:
    async with serving(most=2, made=False) as found:
        gone, first, second = await found.connect(), await found.connect(), await found.connect()
        assert await ended(gone) == b""
        first[1].close()
        await first[1].wait_closed()
        await found.asked.wait()
        await until(lambda: found.site.connections <= 1)
        found.made.set()
        assert await ask(second) == b"HTTP/1.1 200 OK\r\n"
        assert found.metrics.connections_refused == 1


async def test_a_site_that_nobody_has_asked_ends_without_an_application() -> None:
    async with serving(made=False) as found:
        pass
    assert not found.asked.is_set()
    async with serving(made=False) as found:
        link = await found.connect()
        await found.asked.wait()
        stopping = asyncio.create_task(found.site.stop())
        found.made.set()
        await stopping
        assert await ended(link) == b""


async def test_connections_are_counted_from_their_beginning_to_their_end() -> None:
    async with serving() as found:
        metrics = found.metrics
        links = [await found.connect() for _ in range(2)]
        for link in links:
            assert await ask(link) == b"HTTP/1.1 200 OK\r\n"
        assert (metrics.connections, metrics.connections_total) == (2, 2)
        links[0][1].close()
        await until(lambda: metrics.connections <= 1)
    assert (metrics.connections, metrics.connections_total, metrics.connections_refused) == (0, 2, 0)
