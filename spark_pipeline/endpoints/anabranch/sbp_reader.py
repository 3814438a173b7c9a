"""Reads a backend's streams directly from its range servers, for callers that are not asynchronous.

The next fetch is in flight while the caller decodes the last answer. The event loop runs only while the caller waits
for an answer, in the caller's thread; answers that arrive meanwhile wait in the socket. If a server closes the
connection because of that, the reader opens another and repeats the lost requests.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from bridges.formats.records import StoredBatch
from bridges.log.damage.extent import end_of_damage
from bridges.log.streams import stored_batches
from sbp_back.client.control import TRANSIENT_CODES
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.transport.tickets import GivenTickets

if TYPE_CHECKING:
    from bridges.log.streams import Streams
    from spark_pipeline.core.client.node_answers import SbpPlace, Ticket

T = TypeVar("T")
AskForTicket = Callable[[], "Ticket | None"]
"""Asks the node for another ticket to read with; may raise the caller's errors."""

FETCH_BYTES = 4 * 1024 * 1024
"""Bytes that one fetch asks for: more is no faster, less is slower (docs/protocols/spark.md, "Sizes")."""
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 1.0


class NothingThere(Exception):
    """Servers answer, but there is nothing at an offset that should exist: the text says what was requested."""


class DamagedThere(Exception):
    """The offsets ``[offset, end)`` of a stream cannot be read: ``reason`` is the range server's message."""

    def __init__(self, offset: int, end: int, reason: str) -> None:
        super().__init__(offset, end, reason)
        self.offset = offset
        self.end = end
        self.reason = reason


class Loop:
    """An event loop that runs only while a caller waits for a result.

    It runs in the caller's thread; if the caller has a running event loop itself, in a thread of its own.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread: ThreadPoolExecutor | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run_until_complete(work)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "sbp-reader")
        return self._thread.submit(self._loop.run_until_complete, work).result()

    def close(self) -> None:
        """Close the loop for good."""
        if self._thread is not None:
            self._thread.shutdown()
        self._loop.close()


class SbpReader:
    """A reader of one backend's streams; it belongs to one process and one thread. All methods raise SbpError."""

    def __init__(self, place: SbpPlace, patience: float, tls: ssl.SSLContext | None = None) -> None:
        """``place``: the placement drivers, which must have its identity, unless that is empty. ``patience``: seconds
        until the reader gives up on servers that do not answer.
        """
        self._place = place
        self.patience = patience
        self._tls = tls
        self._loop = Loop()
        self._pid = os.getpid()
        self._client: Streams | None = None
        self._tickets = GivenTickets()

    def batches(
        self,
        stream_id: int,
        start: int,
        end: int,
        fetch_bytes: int = FETCH_BYTES,
        ask_for_ticket: AskForTicket | None = None,
    ) -> Iterator[StoredBatch]:
        """Yield the batches that hold offsets in ``[start, end)``, in order. All of these must be durable.

        ``ask_for_ticket`` is called if there is no ticket, and before one expires; its errors are raised here. The
        batches' bytes are views on the received bytes. Raises SbpError (1463 when ``start`` was trimmed, ConnectionLost
        when nobody answered until patience ended), NothingThere and, after all batches in front of the damage,
        DamagedThere.
        """
        reads = _Reads(self, stream_id, start, end, fetch_bytes, ask_for_ticket)
        self._loop.run(reads.go_on())
        try:
            while reads.ahead is not None:
                yield from self._loop.run(reads.next())
        except SbpError as error:
            if error.code != ErrorCode.RS_DATA_CORRUPTED:
                raise
            behind = self._loop.run(end_of_damage(reads.at, partial(self._good_from, stream_id)))
            raise DamagedThere(reads.at, behind, error.message) from error
        finally:
            if self._pid == os.getpid():
                self._loop.run(reads.stop())

    def renew(self, stream_id: int, ask: AskForTicket, *, at_once: bool = False) -> None:
        """Get a ticket to read a stream, if there is none or it is time for another one."""
        if at_once or self._tickets.is_due(stream_id):
            found = ask()
            if found is not None:
                self._tickets.give(stream_id, found.text, found.seconds)

    async def _good_from(self, stream_id: int, offset: int) -> int | None:
        """See :data:`bridges.log.damage.extent.GoodFrom`."""
        client = self.client()
        try:
            found = stored_batches(await client.fetch_entries(stream_id, offset, 1))
        except SbpError as error:
            if error.code in (ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, ErrorCode.OFFSET_OVERFLOW):
                return offset
            if error.code == ErrorCode.RS_DATA_CORRUPTED:
                return None
            raise
        return found[0].base_offset if found else offset

    def close(self) -> None:
        """Close all connections; a second call has no effect."""
        client, self._client = self._client, None
        if self._pid == os.getpid():
            if client is not None:
                self._loop.run(client.close())
            self._loop.close()

    @property
    def wants_tickets(self) -> bool:
        """Return whether the range servers demand tickets."""
        return self._place.tickets

    def client(self) -> Streams:
        """Return the client; it is made on first use, in the event loop."""
        if self._client is not None:
            return self._client
        from anabranch_kit.run.barrier import Barrier
        from bridges.backends import Connecting, Servers, connect
        from sbp_back.client.client import ClientOptions
        from sbp_back.transport.tcp_carrier import TcpOptions

        place = self._place
        servers = Servers(",".join(place.pd), place.dialect, place.flavor)
        tcp = TcpOptions(backoff_limit=0.5, client_id="anabranch-pipeline", tls=self._tls, tickets=self._tickets)
        meet = self._meet if place.identity else None
        connecting = Connecting(tcp, meet, lambda: place.identity, ClientOptions(), Barrier())
        self._client = connect(servers, connecting).client
        return self._client

    async def _meet(self, call: Any) -> str | None:
        """Return why the placement driver of ``call`` must not be used; None if it may."""
        from sbp_back.wire.identity import ask_identity

        found = await ask_identity(call)
        if found == self._place.identity:
            return None
        return f"this is placement driver {found or 'without a name'}, not {self._place.identity}"


class _Reads:
    """The fetches of one range, one after the other, with one always in flight."""

    __slots__ = ("_ask", "_end", "_reader", "_size", "_stream_id", "ahead", "at")

    def __init__(
        self, reader: SbpReader, stream_id: int, start: int, end: int, size: int, ask: AskForTicket | None
    ) -> None:
        self._ask = ask
        self._reader = reader
        self._stream_id = stream_id
        self.at = start
        """The offset of the fetch in flight, or of the one that failed."""
        self._end = end
        self._size = size
        self.ahead: asyncio.Task[list[StoredBatch]] | None = None
        """The fetch in flight."""

    async def next(self) -> list[StoredBatch]:
        """Return the batches of the fetch in flight; the next fetch is sent before this returns."""
        assert self.ahead is not None
        found = await self.ahead
        self.ahead = None
        self.at = found[-1].end_offset
        await self.go_on()
        return found

    async def stop(self) -> None:
        if self.ahead is not None:
            self.ahead.cancel()
            await asyncio.gather(self.ahead, return_exceptions=True)
            self.ahead = None

    async def go_on(self) -> None:
        """Send the next fetch, if there is one."""
        if self.at < self._end:
            self.ahead = asyncio.create_task(self._fetch(self.at))
            # One turn to start the task, one to write its request: the loop does not run again until the next call.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def _fetch(self, at: int) -> list[StoredBatch]:
        """Fetch at least one batch, the first of which contains ``at``; retry while servers do not answer."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + self._reader.patience
        wait = _FIRST_WAIT_S
        while True:
            if self._ask is not None:
                self._reader.renew(self._stream_id, self._ask)
            client = self._reader.client()
            try:
                entries = await client.fetch_entries(self._stream_id, at, self._size, limit=self._end)
                found = stored_batches(entries)
                if found:
                    return found
                # A fetch does not report that its stream was deleted; this call raises if it was.
                await client.describe_stream(self._stream_id)
                failure: Exception = NothingThere(f"offset {at} of stream {self._stream_id}")
            except SbpError as error:
                if error.code == ErrorCode.UNAUTHORIZED and self._ask is not None:
                    # The server's clock is ahead, or the keys have changed, which it learns within a second.
                    self._reader.renew(self._stream_id, self._ask, at_once=True)
                elif not isinstance(error, ConnectionLost) and error.code not in TRANSIENT_CODES:
                    raise
                failure = error
            if clock() + wait > give_up:
                raise failure
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)
