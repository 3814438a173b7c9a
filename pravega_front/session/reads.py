"""Reads of one connection: one at a time, each after the client has taken the answers before; and parked reads, which
wait at the ends of segments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anabranch_kit.memory.budget import Kind
from bridges.errors import LogError
from bridges.net.quotas import turn
from pravega_front.service.appends import Protest
from pravega_front.service.reads import Found, Parked, ParkedMark, Seen, missing, read, stopping
from pravega_front.session.useful_waits import UsefulWaits
from pravega_front.wire import commands as wire

if TYPE_CHECKING:
    from pravega_front.session.connection import Connection

_PARKED_BYTES = 1024
"""Memory counted for a parked read."""
_SHORT_READ = 64 * 1024
"""Memory granted to a read while memory is short."""


class Reads:
    """Reads of one connection. Call :meth:`go_on` when its client has taken answers, :meth:`end` at the end."""

    __slots__ = ("_account", "_connection", "_parked", "_taken", "_turn", "_waits", "_wanted")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parked: set[Parked | ParkedMark] = set()
        self._turn = asyncio.Lock()
        self._taken: asyncio.Future[None] | None = None
        # Counts bytes read until they are answers. Separate from the account of requests, so that each waits by itself.
        self._account = connection.server.budget.account(self._room_came)
        # The read that waits for memory, with the most and the least bytes it needs.
        self._wanted: tuple[asyncio.Future[int], int, int] | None = None
        self._waits = UsefulWaits(connection.server.turn)

    async def read(self, request: wire.ReadSegment, parked: bool = False) -> wire.Command | Found | None:
        """Return the answer to a read; None if it is parked, or the client takes no answers any more. ``parked``: the
        read was parked before. Raises Protest, BeyondEnd, LogError."""
        connection = self._connection
        server = connection.server
        segment = await server.segments.here(request.segment)
        if segment is None:
            return self._read_mark(request) if server.segments.is_mark(request.segment) else missing(request)
        if not segment.loose:
            connection.client.read(segment.topic, segment.partition)
        if not segment.is_counted:
            with suppress(LogError):  # the read below reports it
                await self._waits.on(segment.length())
        quota = server.quotas.fetch
        if quota.in_force:
            await self._waits.on(turn(quota.bucket(connection.principal.name, None)))
        most = min(server.settings.read_max_bytes, max(request.suggested_length, 8))
        async with self.room(most, min(most, _SHORT_READ)) as room:
            if not room:
                return None
            found = await read(segment, request, room, parked=parked)
        if isinstance(found, Seen):
            if connection.draining:
                return stopping(request)
            if not segment.log.is_open:
                return await self.read(request, parked)  # the segment was deleted meanwhile, or its log failed
            # Drop the token, which was checked before: the client chooses its length.
            self._park(Parked(segment, replace(request, token=""), found, self._again))
            return None
        if found.data and not segment.loose:
            size = sum(map(len, found.data))
            server.metrics.topic(segment.topic).fetched(1, 0, size)
            connection.client.read(segment.topic, segment.partition, 0, size)
            if quota.in_force and (bucket := quota.bucket(connection.principal.name, None)) is not None:
                bucket.take(size)
        return found

    @asynccontextmanager
    async def room(self, most: int, least: int) -> AsyncIterator[int]:
        """Wait for this command's turn to read, until the client has taken earlier answers, and for memory. Yields the
        bytes that may be read, from ``least`` to ``most``, which count in the budget inside; 0 if the client takes no
        answers any more."""
        connection, account = self._connection, self._account
        async with self._turn:
            await self._all_taken()
            granted = 0
            if not connection.unheard:
                granted = account.grant(Kind.READS, most, least) or await self._granted(most, least)
            try:
                yield granted
            finally:
                account.give(Kind.READS, granted)

    async def _granted(self, most: int, least: int) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._wanted = (answer, most, least)
        self._account.wait(least)
        try:
            return await answer
        except asyncio.CancelledError:
            self._wanted = None
            self._account.stop_waiting()
            if answer.done() and not answer.cancelled():
                self._account.give(Kind.READS, answer.result())
            raise

    def _room_came(self) -> None:
        """Give the waiting read its memory, or 0 if the client takes no answers any more."""
        if self._wanted is None:
            return
        answer, most, least = self._wanted
        if answer.done():
            return  # the waiting read was cancelled
        granted = 0 if self._connection.unheard else self._account.grant(Kind.READS, most, least)
        if granted or self._connection.unheard:
            self._wanted = None
            answer.set_result(granted)
        else:
            self._account.wait(least)

    def go_on(self) -> None:
        """Continue: the client has taken answers, or the connection has ended."""
        taken, self._taken = self._taken, None
        if taken is not None and not taken.done():
            taken.set_result(None)

    def stop(self) -> None:
        """Answer all parked reads: the node stops."""
        for one in self._unpark():
            self._connection.emit_found(stopping(one.request))

    def forget(self) -> None:
        """Drop all parked reads: the connection has ended."""
        self._unpark()

    def unheard(self) -> None:
        """End the waits for turns and memory without a read. Called when the client takes no answers any more."""
        self._waits.end()
        self._room_came()
        self.go_on()

    def end(self) -> None:
        """Read nothing more. Called when the connection counts as closed."""
        self._account.close()
        self.unheard()

    async def _all_taken(self) -> None:
        connection = self._connection
        connection.flush_much()
        while connection.write_paused and not connection.unheard:
            self._taken = asyncio.get_running_loop().create_future()
            await self._taken

    # --- those that wait -------------------------------------------------------------------------------------------

    def _read_mark(self, request: wire.ReadSegment) -> wire.Command | Found | None:
        """Park a read of a stream that has no watermarks yet, or refuse it."""
        if request.offset < 0:
            return wire.SegmentIsTruncated(request.request_id, request.segment, 0, "", request.offset)
        if self._connection.draining:
            return stopping(request)
        self._park(ParkedMark(self._connection.server.segments, replace(request, token=""), self._again))
        return None

    def _park(self, parked: Parked | ParkedMark) -> None:
        connection = self._connection
        if connection.closed:
            parked.leave()
            return
        if len(self._parked) >= connection.server.settings.parked_reads_per_connection:
            parked.leave()
            raise Protest("too many reads wait at the ends of segments")
        self._parked.add(parked)
        connection.account.take(Kind.REQUESTS, _PARKED_BYTES)
        parked.recheck()

    def _unpark(self) -> list[Parked | ParkedMark]:
        parked, self._parked = list(self._parked), set()
        for one in parked:
            one.leave()
        self._connection.account.give(Kind.REQUESTS, _PARKED_BYTES * len(parked))
        return parked

    def _again(self, parked: Parked | ParkedMark) -> None:
        connection = self._connection
        self._parked.discard(parked)
        connection.account.give(Kind.REQUESTS, _PARKED_BYTES)
        if not connection.closed:
            slot = connection.slot(0, monotonic())
            connection.carry_out(slot, parked.request, self.read(parked.request, parked=True))
