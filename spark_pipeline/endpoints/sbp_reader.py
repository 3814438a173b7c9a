"""Streams of a backend, read straight from its range servers by code that knows nothing of event loops.

The next fetch is under way while what the last one brought is being decoded. The loop runs only while somebody waits
for an answer, in the thread of whoever does: what arrives meanwhile waits in the socket. A connection that was given
up because of that is made anew, and what was lost with it is asked for again.
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
    from spark_pipeline.core.node_answers import SbpPlace, Ticket

T = TypeVar("T")
AskForTicket = Callable[[], "Ticket | None"]
"""Asks the node for another ticket to read with. Raises whatever it does."""

FETCH_BYTES = 4 * 1024 * 1024
"""What one fetch asks for: more brings no more per second, less does (docs/protocols/spark.md, "Sizes")."""
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 1.0


class NothingThere(Exception):
    """Servers answer, but nothing lies at an offset that should be there: ``str`` says what was asked."""


class DamagedThere(Exception):
    """The offsets ``[offset, end)`` of a stream cannot be read: ``reason`` is what its range server says."""

    def __init__(self, offset: int, end: int, reason: str) -> None:
        super().__init__(offset, end, reason)
        self.offset = offset
        self.end = end
        self.reason = reason


class Loop:
    """An event loop that runs while somebody waits for what it does; in a thread of its own only for callers that have
    an event loop of their own running."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread: ThreadPoolExecutor | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` comes to."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run_until_complete(work)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "sbp-reader")
        return self._thread.submit(self._loop.run_until_complete, work).result()

    def close(self) -> None:
        """Run no more."""
        if self._thread is not None:
            self._thread.shutdown()
        self._loop.close()


class SbpReader:
    """Reads streams of one backend; belongs to one process and one thread. All raise SbpError."""

    def __init__(self, place: SbpPlace, patience: float, tls: ssl.SSLContext | None = None) -> None:
        """``place``: the placement drivers, which must tell its identity, unless that is empty. ``patience``: seconds
        until servers that do not answer are given up."""
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
        """The batches that hold offsets in ``[start, end)``, in order. All of these must be durable.

        ``ask_for_ticket`` is called where there is no ticket, and in time for another one; what it raises is raised
        here. The batches' bytes are views on what was received. Raises SbpError (1463 when ``start`` was trimmed,
        ConnectionLost when nobody answered for as long as there is patience), NothingThere and, when all in front of it
        has been given, DamagedThere.
        """
        reads = self._loop.run(_Reads.begin(self, stream_id, start, end, fetch_bytes, ask_for_ticket))
        try:
            while reads.under_way:
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
        """Have a ticket to read a stream with, another one if it is time for that."""
        if at_once or self._tickets.is_due(stream_id):
            found = ask()
            if found is not None:
                self._tickets.give(stream_id, found.text, found.seconds)

    async def _good_from(self, stream_id: int, offset: int) -> int | None:
        """See :data:`bridges.log.damage.extent.GoodFrom`."""
        client = await self.client()
        try:
            found = stored_batches(await client.fetch_entries(stream_id, offset, 1))
        except SbpError as error:
            if is_gone(error) or error.code == ErrorCode.OFFSET_OVERFLOW:
                return offset
            if error.code == ErrorCode.RS_DATA_CORRUPTED:
                return None
            raise
        return found[0].base_offset if found else offset

    def close(self) -> None:
        """Close all connections; again makes no difference."""
        client, self._client = self._client, None
        if self._pid == os.getpid():
            if client is not None:
                self._loop.run(client.close())
            self._loop.close()

    @property
    def wants_tickets(self) -> bool:
        """Whether its servers do."""
        return self._place.tickets

    async def client(self) -> Streams:
        """The client, made when it is first needed."""
        if self._client is None:
            self._client = self._make()
        return self._client

    def _make(self) -> Streams:
        from anabranch_kit.run.barrier import Barrier
        from bridges.backends import Connecting, Servers, connect
        from sbp_back.client.client import ClientOptions
        from sbp_back.transport.tcp_carrier import TcpOptions

        place = self._place
        servers = Servers(",".join(place.pd), place.dialect, place.flavor)
        tcp = TcpOptions(backoff_limit=0.5, client_id="anabranch-pipeline", tls=self._tls, tickets=self._tickets)
        meet = self._meet if place.identity else None
        return connect(servers, Connecting(tcp, meet, lambda: place.identity, ClientOptions(), Barrier())).client

    async def _meet(self, call: Any) -> str | None:
        """Why the placement driver that ``call`` asks is not to be used."""
        from sbp_back.wire.identity import ask_identity

        found = await ask_identity(call)
        if found == self._place.identity:
            return None
        return f"this is placement driver {found or 'without a name'}, not {self._place.identity}"


class _Reads:
    """The fetches of one range, one after the other, one always ahead."""

    __slots__ = ("_ahead", "_ask", "_at", "_end", "_reader", "_size", "_stream_id")

    def __init__(
        self, reader: SbpReader, stream_id: int, start: int, end: int, size: int, ask: AskForTicket | None
    ) -> None:
        self._ask = ask
        self._reader = reader
        self._stream_id = stream_id
        self._at = start
        self._end = end
        self._size = size
        self._ahead: asyncio.Task[list[StoredBatch]] | None = None

    @classmethod
    async def begin(
        cls, reader: SbpReader, stream_id: int, start: int, end: int, size: int, ask: AskForTicket | None
    ) -> _Reads:
        reads = cls(reader, stream_id, start, end, size, ask)
        await reads._go_on()
        return reads

    @property
    def at(self) -> int:
        """The offset of the fetch under way, or of the one that failed."""
        return self._at

    @property
    def under_way(self) -> bool:
        return self._ahead is not None

    async def next(self) -> list[StoredBatch]:
        """What the fetch under way brings; the one after it is sent before this returns."""
        assert self._ahead is not None
        found = await self._ahead
        self._ahead = None
        self._at = found[-1].end_offset
        await self._go_on()
        return found

    async def stop(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
            self._ahead = None

    async def _go_on(self) -> None:
        if self._at < self._end:
            self._ahead = asyncio.create_task(self._fetch(self._at))
            # One turn for it to begin, one for its request to be written: nothing runs until the next call otherwise.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def _fetch(self, at: int) -> list[StoredBatch]:
        """At least one batch, the first of which has ``at``; repeated while servers are away."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + self._reader.patience
        wait = _FIRST_WAIT_S
        while True:
            if self._ask is not None:
                self._reader.renew(self._stream_id, self._ask)
            client = await self._reader.client()
            try:
                entries = await client.fetch_entries(self._stream_id, at, self._size, limit=self._end)
                found = stored_batches(entries)
                if found:
                    return found
                # Of a stream that is gone a fetch does not say so: this raises then.
                await client.describe_stream(self._stream_id)
                failure: Exception = NothingThere(f"offset {at} of stream {self._stream_id}")
            except SbpError as error:
                if error.code == ErrorCode.UNAUTHORIZED and self._ask is not None:
                    # Its clock is ahead, or the keys have changed, which it knows in a second at the latest.
                    self._reader.renew(self._stream_id, self._ask, at_once=True)
                elif not isinstance(error, ConnectionLost) and error.code not in TRANSIENT_CODES:
                    raise
                failure = error
            if clock() + wait > give_up:
                raise failure
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)


def is_gone(error: SbpError) -> bool:
    """Whether what was asked for has been trimmed away."""
    return error.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS
