"""One fetch of a client in flight: to the range of its offset, on to the next range, or to a fresh list of ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVarTuple

from sbp_back.client.gathering import place_of
from sbp_back.errors import ConnectionLost, ErrorCode, Lost, Reclaimed, SbpError
from sbp_back.transport.carrier import Answer, Carrier
from sbp_back.wire import model as m
from sbp_back.wire.room import Room

if TYPE_CHECKING:
    from sbp_back.client.client import Client

FetchDone = Callable[[list[m.Entry] | SbpError], None]

Ts = TypeVarTuple("Ts")

_STALE_CODES = frozenset(
    {
        int(ErrorCode.OFFSET_OVERFLOW),
        int(ErrorCode.RANGE_NOT_FOUND),
        int(ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS),
    }
)
"""Answers of a range server that may only mean that our list of ranges is old."""

_MAX_RANGES_PER_FETCH = 16
POLL_SECONDS = 0.1


class Fetch:
    """One call of ``Client.fetch``, which documents the arguments."""

    __slots__ = (
        "_client",
        "_deadline",
        "_done",
        "_entries",
        "_fresh",
        "_left",
        "_limit",
        "_max_wait_ms",
        "_min_bytes",
        "_offset",
        "_polled",
        "_range",
        "_ranges_read",
        "_server",
        "_stream_id",
        "room",
    )

    def __init__(
        self,
        client: Client,
        stream_id: int,
        offset: int,
        max_bytes: int,
        done: FetchDone,
        limit: int,
        min_bytes: int,
        max_wait_ms: int,
    ) -> None:
        self._client = client
        self._stream_id = stream_id
        self._offset = offset
        self._left = max_bytes
        self._done: FetchDone | None = done
        self._limit = limit
        self._min_bytes = min_bytes
        self._max_wait_ms = max_wait_ms
        self._entries: list[m.Entry] | None = None
        self._fresh = False
        self._range: m.RangeInfo | None = None
        self._ranges_read = 0
        self._server = 0
        self._deadline = 0.0
        self._polled = 0.0  # until when the server was asked to wait; 0: it was not
        self.room: Room | None = None

    def route(self) -> None:
        """Ask a server of the range that contains the offset. Never raises: ``done`` is called in any case."""
        self._guard(self._route)

    def _guard(self, step: Callable[[*Ts], object], *args: *Ts) -> None:
        try:
            step(*args)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self._client.barrier.caught("fetch", error)
            self._fail(ErrorCode.RS_INTERNAL_SERVER_ERROR, "unexpected error, see the log")

    def _tell(self, answer: list[m.Entry] | SbpError) -> None:
        done, self._done = self._done, None
        if done is not None:
            try:
                done(answer)
            except Exception as error:  # noqa: BLE001 - logged and counted there
                self._client.barrier.caught("fetch answer", error)

    def _route(self) -> None:
        if self.room is not None and self.room.gone:
            self._finish([])
            return
        ranges = self._client.known_ranges(self._stream_id)
        if ranges is None:
            self._refresh()
            return
        offset = self._offset
        position = place_of(ranges, offset)
        if position < 0:
            if not self._fresh:
                self._refresh()
            elif ranges:
                self._end(Reclaimed(offset, f"offset {offset} is below the stream's start"))
            elif offset == 0:
                self._nothing()
            else:
                self._fail(ErrorCode.OFFSET_OVERFLOW, f"offset {offset} is beyond the end of an empty stream")
            return
        wanted = ranges[position]
        limit = self._limit
        if wanted.end >= 0:
            if offset >= wanted.end:
                if offset > wanted.end or not self._fresh:
                    self._outside(ErrorCode.OFFSET_OVERFLOW, f"offset {offset} is beyond the end, {wanted.end}")
                else:
                    self._nothing()
                return
            # The end is the placement driver's; the server may have more, which is no part of the stream.
            limit = wanted.end if limit < 0 else min(limit, wanted.end)
        if 0 <= limit <= offset:
            self._finish([])
            return
        self._range = wanted
        if self._server >= len(wanted.servers):
            self._fail(ErrorCode.PD_NO_AVAILABLE_RS, f"range {wanted.index} of {self._stream_id} has no server left")
            return
        try:
            carrier = self._client.channel(wanted.servers[self._server]).carrier
        except ConnectionLost as error:
            self._answered(error)
            return
        self._ask(carrier, wanted, limit)

    def _ask(self, carrier: Carrier, wanted: m.RangeInfo, limit: int) -> None:
        wait = self._wait_ms()
        if limit < 0:
            self._client.tell(self._stream_id)
            wait = min(wait, int(self._client.poll_seconds * 1000))
        self._polled = 0.0 if not wait else asyncio.get_running_loop().time() + wait / 1000
        request = m.FetchRequest(wanted, self._offset, limit, wait, self._min_bytes, self._left, self.room)
        timeout = None if self.room is not None else self._client.fetch_timeout + wait / 1000
        carrier.submit(request, self._answered, timeout)

    def _wait_ms(self) -> int:
        if not self._max_wait_ms:
            return 0
        now = asyncio.get_running_loop().time()
        if not self._deadline:
            self._deadline = now + self._max_wait_ms / 1000
        return max(0, int((self._deadline - now) * 1000))

    def _answered(self, answer: Answer) -> None:
        self._guard(self._take, answer)

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, ConnectionLost):
            self._other_server(answer)
            return
        code = answer.status.code
        if code == m.OK and isinstance(answer, m.FetchResponse):
            self._received(answer.entries)
        elif code == ErrorCode.NO_NEW_RECORD:
            self._nothing_new()
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS and self._fresh:
            self._look_at_server(answer.status.message)
        elif code == ErrorCode.RANGE_NOT_FOUND and self._fresh and self._not_there_yet():
            self._nothing()
        elif code in _STALE_CODES:
            self._outside(code, answer.status.message)
        else:
            self._other_server(SbpError(code, answer.status.message))

    def _received(self, entries: list[m.Entry]) -> None:
        wanted = self._range
        assert wanted is not None
        if not entries:
            self._nothing_new()
            return
        if not entries[0].base_offset <= self._offset < entries[0].end_offset:
            self._fail(ErrorCode.RS_DATA_CORRUPTED, f"{entries[0]} is not what contains offset {self._offset}")
            return
        end = entries[-1].end_offset
        if end == wanted.end and self._ranges_read < _MAX_RANGES_PER_FETCH and not 0 <= self._limit <= end:
            for entry in entries:
                self._left -= entry.size
            ranges = self._client.known_ranges(self._stream_id)
            if self._left > 0 and ranges and ranges[-1].index > wanted.index:
                self._entries = entries if self._entries is None else self._entries + entries
                self._ranges_read += 1
                self._offset = end
                self._min_bytes = self._max_wait_ms = self._server = 0
                self.route()
                return
        self._finish(entries)

    def _nothing_new(self) -> None:
        """Go on after a wait without new data in a range that was open when we last heard of it: it may be dead."""
        wanted = self._range
        if wanted is not None and wanted.end >= 0 and self._entries is None:
            # The placement driver says that the range goes further: the data exists, or the server has lost it.
            self._look_at_server(f"the range server has nothing at offset {self._offset}")
            return
        if wanted is None or wanted.end >= 0 or self._limit >= 0:
            self._finish([])
            return
        # A server that answers before the wait is over has a reason: it may be about to stop.
        late = self._polled and asyncio.get_running_loop().time() >= self._polled - 0.02
        if late and self._entries is None and self._wait_ms() > 20:
            self._refresh()
            return
        self._client.look_again(self._stream_id)
        self._finish([])

    def _look_at_server(self, message: str) -> None:
        """Ask the server how far its range goes, since it refuses an offset that lies in the range by the placement
        driver's list.

        The offset is below what the server still keeps; or at the end of a range that was sealed on its server and is
        about to be sealed at the placement driver; or the server has lost data that the placement driver knows of.
        """
        wanted = self._range
        assert wanted is not None

        def answered(answer: Answer) -> None:
            if isinstance(answer, m.ListRangeResponse):
                for known in answer.ranges:
                    if known.index == wanted.index:
                        self._compare(wanted, known, message)
                        return
            self._fail(ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, message)

        carrier = self._client.channel(wanted.servers[self._server]).carrier
        request = m.ListRangeRequest(stream_id=self._stream_id)
        carrier.submit(request, lambda answer: self._guard(answered, answer), self._client.fetch_timeout)

    def _compare(self, wanted: m.RangeInfo, known: m.RangeInfo, message: str) -> None:
        """Compare ``wanted``, the range at the placement driver, with ``known``, the same range at its server."""
        offset = self._offset
        if offset < known.start:
            self._end(Reclaimed(offset, f"{message}: the range server gave it up"))
        elif 0 <= known.end <= offset < wanted.end:
            lost = f"offsets {known.end} to {wanted.end - 1} of stream {self._stream_id} are lost: range {wanted.index}"
            why = f"{lost} ends at {wanted.end}, and its server has nothing from {known.end} on"
            self._end(Lost(known.end, wanted.end, why))
        elif known.end < 0 <= wanted.end:
            self._fail(ErrorCode.RS_INTERNAL_SERVER_ERROR, f"{message}: it has not heard yet that the range has ended")
        elif known.end == offset:
            self._nothing()
        else:
            self._fail(ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, message)

    def _other_server(self, error: SbpError) -> None:
        self._server += 1
        if self._range is not None and self._server < len(self._range.servers):
            self.route()
        elif self._fresh:
            self._end(error)
        else:
            self._refresh()

    def _not_there_yet(self) -> bool:
        """Return whether the writer has made the range at the placement driver and may be about to make it on the
        server.
        """
        return self._range is not None and self._range.end < 0 and self._offset == self._range.start

    def _outside(self, code: int, message: str) -> None:
        """Handle an offset that is outside the stream by our list of ranges or a server's word; final if the list is
        fresh.
        """
        if self._fresh:
            self._fail(code, message)
        else:
            self._refresh()

    def _refresh(self) -> None:
        self._fresh = True
        self._server = 0
        self._client.refresh(self._stream_id, self._refreshed)

    def _refreshed(self, error: SbpError | None) -> None:
        if error is not None:
            self._end(error)
        else:
            self.route()

    def _nothing(self) -> None:
        """Go on at the end of a stream without an open range: no server can say when that changes."""
        wait = self._wait_ms()
        if wait <= 0 or self._entries is not None:
            self._finish([])
            return
        asyncio.get_running_loop().call_later(min(wait / 1000, POLL_SECONDS), self._refresh)

    def _fail(self, code: int, message: str) -> None:
        self._end(SbpError(code, message))

    def _end(self, error: SbpError) -> None:
        # What was read from earlier ranges is good; the next fetch meets the error again.
        self._tell(error if self._entries is None else self._entries)

    def _finish(self, entries: list[m.Entry]) -> None:
        self._tell(entries if self._entries is None else self._entries + entries)
