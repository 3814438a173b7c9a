"""Client for servers of elastic-stream: the one place for everything that is different because of them.

Their faults: docs/protocols/sbp.md, "Faults of elastic-stream"; docs/sbp.md has a test for each row. In short: a range
server reads its byte budget from max_wait_ms, never waits, does not know an absent limit, finds nothing from inside its
last batch, gives no answer at all instead of one longer than a frame, answers 1400 for data that it has reclaimed, and
forgets with its process what is committed; a placement driver neither trims nor deletes ranges.

Either kind of server may also be one of ours: a placement driver says so, and a range server of ours answers the same
requests correctly.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right, insort
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from msgspec import Struct

from anabranch_kit.run.barrier import Barrier
from sbp_back.client.client import Client, ClientOptions
from sbp_back.client.control import ask_repeatedly, list_ranges, repeatedly
from sbp_back.client.fetch import POLL_SECONDS, Fetch
from sbp_back.errors import ConnectionLost, ErrorCode, Reclaimed, SbpError
from sbp_back.transport.carrier import Answer, Carrier
from sbp_back.wire import model as m
from sbp_back.wire.identity import ask_who

logger = logging.getLogger(__name__)

_NO_LIMIT = (1 << 63) - 1
_LARGEST_COUNT = (1 << 31) - 1
"""Most records of a batch."""
_FETCH_BYTES = 8 * 1024 * 1024
"""Most bytes per fetch. An answer ends with the whole batch that reaches the budget, so half a frame leaves room for a
batch of half a frame.
"""
_SAFE_BYTES = 32 * 1024
"""A budget with which no answer is too long: the longest batch this client writes leaves 64 KiB of a frame."""
_LONG_BATCH = _FETCH_BYTES - 64 * 1024
"""Only a batch of at least so many bytes makes an answer to a fetch of ``_FETCH_BYTES`` too long."""
_LONG_BATCHES_KNOWN = 64
_DOUBT_SECONDS = 60.0
_POLLS_PER_REFRESH = 10

_END_CODES = frozenset(
    {int(ErrorCode.NO_NEW_RECORD), int(ErrorCode.OFFSET_OVERFLOW), int(ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS)}
)
"""There is nothing at the offset: 1204 of elastic-stream's range server, 1461 and 1463 of ours."""
_GONE = int(ErrorCode.BAD_REQUEST)


class _Doubt(Struct):
    """A fetch at ``offset`` without an answer, perhaps because a long batch lies in the ``left`` bytes from there
    on.
    """

    offset: int
    left: int
    until: float


class _Forgotten(SbpError):
    """The placement driver has deleted a stream and kept its ranges."""

    def __init__(self, stream: m.StreamInfo) -> None:
        message = f"stream {stream.stream_id} was deleted, but has ranges; UPDATE_STREAM makes it known again"
        super().__init__(ErrorCode.NOT_FOUND, message)
        self.stream = stream


class _ForeignFetch(Fetch):
    """A fetch that searches for the batch of its offset.

    ``_asked`` is the offset of the request. Nothing is found from ``_absent`` on, everything below ``_passed`` lies
    before the batch, and ``_gone`` is the highest offset known to be reclaimed: between them the batch begins.
    """

    __slots__ = ("_absent", "_asked", "_budget", "_foreign", "_gone", "_passed", "_polls", "_smallest", "_step")

    def __init__(self, client: ForeignClient, *asked: Any) -> None:
        super().__init__(client, *asked)
        self._foreign = client
        self._budget = 0
        self._smallest = False  # whether to ask for one batch at a time, after a missing answer
        self._polls = 0
        self._begin()

    def _begin(self) -> None:
        self._asked = -1
        self._step = 0
        self._gone = self._passed = self._absent = -1

    def _ask(self, carrier: Carrier, wanted: m.RangeInfo, limit: int) -> None:
        if self._asked < 0:
            self._asked = self._offset
        limit = limit if limit >= 0 else _NO_LIMIT
        budget, limit = self._foreign.bounds(self._stream_id, self._asked, max(1, self._left), limit)
        self._budget = budget = 1 if self._smallest else budget
        request = m.FetchRequest(wanted, self._asked, limit, budget, self._min_bytes, budget)
        carrier.submit(request, self._answered, self._client.fetch_timeout)

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, ConnectionLost):
            budget, self._budget = self._budget, 0
            if budget > 1:
                # Perhaps the answer was too long for a frame: a foreign server then sends none.
                self._foreign.unanswered(self._stream_id, self._asked, budget)
                self._smallest = True
                if self._fresh:
                    self.route()
                    return
            super()._take(answer)
        elif isinstance(answer, m.FetchResponse) and answer.status.ok:
            self._note(answer.entries)
        elif answer.status.code == ErrorCode.NO_NEW_RECORD:
            self._found_nothing()
        elif answer.status.code == _GONE:
            self._found_gone()
        else:
            super()._take(answer)

    def _note(self, entries: list[m.Entry]) -> None:
        if entries:
            self._foreign.answered(self._stream_id, entries)
        limit = self._limit if self._limit >= 0 else _NO_LIMIT
        wanted = [e for e in entries if e.end_offset > self._offset and e.base_offset < limit]
        reached = entries[-1].end_offset if entries else self._passed
        if wanted or not self._passed < reached <= self._offset:
            self._begin()
            self._received(wanted)
            return
        # All of it lies before the offset, so the batch begins where this ends or later.
        self._passed = reached
        self._look_at(reached)

    def _found_nothing(self) -> None:
        wanted = self._range
        assert wanted is not None
        end = wanted.end if wanted.end >= 0 else self._limit
        known = self._foreign.last_batch(self._stream_id)
        if known is not None and known[0] <= self._offset < known[1]:
            end = max(end, known[1])
        self._absent = self._asked
        if self._offset >= end:
            self._wait()
            return
        # A batch contains the offset. It begins before it, at an unknown distance.
        floor = max(wanted.start, self._passed, self._gone + 1)
        if self._absent <= floor:
            if self._gone >= 0:
                self._reclaimed()
            else:
                self._wait()
        elif self._gone >= 0:
            self._search()
        else:
            if not self._step and known is not None and floor <= known[0] < self._offset:
                self._step = self._offset - known[0]
            else:
                self._step = max(1, 2 * self._step)
            self._look_at(max(floor, min(self._offset - self._step, self._absent - 1)))

    def _found_gone(self) -> None:
        self._gone = max(self._gone, self._asked)
        if self._gone >= self._offset or (self._absent >= 0 and self._absent <= self._gone + 1):
            self._reclaimed()
        else:
            self._search()

    def _search(self) -> None:
        nothing = self._absent if self._absent >= 0 else self._offset + 1
        self._look_at((max(self._gone + 1, self._passed) + nothing) // 2)

    def _look_at(self, offset: int) -> None:
        # Not from within the last answer's callback: there may be many steps, and they would nest.
        self._asked = offset
        asyncio.get_running_loop().call_soon(self.route)

    def _reclaimed(self) -> None:
        self._begin()
        message = f"offset {self._offset} of stream {self._stream_id} was reclaimed by its range server"
        self._end(Reclaimed(self._offset, message))

    def _wait(self) -> None:
        self._begin()
        wait = self._wait_ms()
        if wait <= 0 or self._entries is not None:
            self._finish([])
            return
        self._polls += 1
        # The range may have been sealed meanwhile, and the stream may go on in another one.
        again = self.route if self._polls % _POLLS_PER_REFRESH else self._refresh
        asyncio.get_running_loop().call_later(min(wait / 1000, POLL_SECONDS), again)


class ForeignClient(Client):
    """A :class:`Client` for elastic-stream's servers, or a mixture of those and ours."""

    def __init__(
        self,
        pd: Carrier,
        connect: Callable[[m.RangeServerInfo], Carrier],
        options: ClientOptions | None = None,
        barrier: Barrier | None = None,
    ) -> None:
        super().__init__(pd, connect, options, barrier)
        self.fetch_kind = _ForeignFetch
        self._last_batches: dict[int, tuple[int, int]] = {}
        self._long_batches: dict[int, list[int]] = {}
        self._doubts: dict[int, _Doubt] = {}

    @property
    def tells(self) -> bool:
        """Return False: elastic-stream's range servers do not use confirmed offsets; their readers send a limit of
        their own.
        """
        return False

    # --- placement driver -------------------------------------------------------------------------------------------

    async def delete_stream(self, stream_id: int) -> None:
        """Delete the stream if that is possible.

        Elastic-stream's placement driver would forget the stream and keep its ranges, and its range servers panic when
        they then start. So there a stream that has ranges is kept with its data; this client can append to it no more.
        Raises ``SbpError`` 1498 then, 1404 when there is no such stream.
        """
        if await self._is_ours():
            await super().delete_stream(stream_id)
            return
        writer = self._writers.pop(stream_id, None)
        for learned in (self._last_batches, self._long_batches, self._doubts):
            learned.pop(stream_id, None)
        if writer is not None:
            writer.fail(SbpError(ErrorCode.NOT_FOUND, f"stream {stream_id} is deleted"))
        try:
            stream = await self.describe_stream(stream_id)
        except _Forgotten as error:
            stream = error.stream
            await self.restore_stream(stream)
        await self._refuse_ranges(stream_id)
        request = m.DeleteStreamRequest(stream_id)
        await ask_repeatedly(self._pd, request, m.StreamResponse, self._options.control)
        try:
            await self._refuse_ranges(stream_id)
        except SbpError:
            # A range was or may have been made at the last moment: with its stream restored it does no harm.
            await self.restore_stream(stream)
            raise
        self._ranges.pop(stream_id, None)

    async def describe_stream(self, stream_id: int) -> m.StreamInfo:
        """Describe a stream as :meth:`Client.describe_stream` does. The 1404 of an unknown stream that still has ranges
        is a :class:`_Forgotten`.
        """
        try:
            return await super().describe_stream(stream_id)
        except SbpError as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise
            ranges = await list_ranges(self._pd, stream_id, self._options.control)
            if not ranges:
                raise
            raise _Forgotten(_stream_of(ranges[-1])) from error

    async def _refuse_ranges(self, stream_id: int) -> None:
        ranges = await list_ranges(self._pd, stream_id, self._options.control)
        if ranges:
            message = f"stream {stream_id} has ranges ({len(ranges)}), which this placement driver cannot delete"
            raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, message)

    async def restore_stream(self, stream: m.StreamInfo) -> None:
        """Make a stream known again that the placement driver has forgotten. Raises ``SbpError``."""
        await ask_repeatedly(self._pd, m.UpdateStreamRequest(stream), m.StreamResponse, self._options.control)

    async def forgotten_streams(self, servers: int) -> list[m.StreamInfo]:
        """Return the streams that have ranges on range servers below number ``servers`` but are unknown to the
        placement driver, for :meth:`restore_stream`. None at a placement driver of ours. Raises ``SbpError``.
        """
        if await self._is_ours():
            return []
        found: set[int] = set()
        for server_id in range(servers):
            request = m.ListRangeRequest(server_id=server_id)
            listed = await ask_repeatedly(self._pd, request, m.ListRangeResponse, self._options.control)
            found.update(known.stream_id for known in listed.ranges)
        forgotten: list[m.StreamInfo] = []
        for stream_id in sorted(found):
            try:
                await self.describe_stream(stream_id)
            except _Forgotten as error:
                forgotten.append(error.stream)
            except SbpError as error:
                if error.code != ErrorCode.NOT_FOUND:
                    raise  # otherwise its last range was deleted a moment ago
        return forgotten

    async def trim(self, stream_id: int, min_offset: int) -> int:
        """Trim as :meth:`Client.trim` does. Raises ``SbpError`` 1498 when the placement driver is elastic-stream's,
        which does not trim: the caller has to remember the stream's start itself.
        """
        if await self._is_ours():
            return await super().trim(stream_id, min_offset)
        raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, "this placement driver does not trim")

    async def _is_ours(self) -> bool:
        """Return whether the placement driver is Anabranch's. Asks each time: another server may answer at the address
        later.
        """

        async def call(request: m.Request) -> m.Response:
            return await self._pd.call(request, self._options.control.timeout)

        return (await repeatedly(lambda: ask_who(call), self._options.control)).ours

    # --- sealing ----------------------------------------------------------------------------------------------------

    async def _seal_server(self, last: m.RangeInfo, epoch: int) -> int:
        """Seal the range on its server; return where its data really ends. A restarted range server forgets what is
        committed and answers the range's start, though it has the data (docs/protocols/sbp.md, "Faults of
        elastic-stream", 2). Believing it would give up acknowledged data.
        """
        end = await super()._seal_server(last, epoch)
        carrier = self.channel(last.servers[0]).carrier
        return await self._stored_end(carrier, last, end)

    async def _stored_end(self, carrier: Carrier, last: m.RangeInfo, end: int) -> int:
        """Return where the data of a range ends whose server answers ``end``. Raises ``SbpError``.

        It reads one batch at a time, first at growing distances, then by bisection between the last batch that exists
        and the first offset without one, so that neither a long batch nor a long range is in the way. If everything is
        reclaimed, the last batch's length cannot be known: it is taken to be the longest possible, since no offset may
        be given twice.
        """
        timeout = self._options.control.timeout

        async def fetch_at(offset: int) -> m.Response:
            return await carrier.call(m.FetchRequest(last, offset, _NO_LIMIT, 1, -1, 1), timeout)

        reached = end  # the data goes at least so far
        gone = -1  # the highest offset that was reclaimed
        nothing = -1  # the lowest offset where nothing is found
        at, step = end, 1
        while True:
            response = await repeatedly(partial(fetch_at, at), self._options.control)
            code = response.status.code
            if isinstance(response, m.FetchResponse) and response.status.ok:
                found = max((entry.end_offset for entry in response.entries), default=at)
                reached = max(reached, found)
                if found <= at:
                    nothing = at
            elif code in _END_CODES:
                nothing = at
            elif code == _GONE:
                gone = max(gone, at)
            else:
                raise SbpError(code, response.status.message)
            floor = max(reached, gone + 1)
            if 0 <= nothing <= floor:
                break
            if nothing < 0:
                at = floor + step
                step *= 2
            else:
                at = (floor + nothing) // 2
        if gone < reached:
            return reached
        end = gone + _LARGEST_COUNT
        what = f"what range {last.index} of stream {last.stream_id} held is reclaimed, its end unknown"
        logger.warning("%s: its next offset is %d, above all that were given", what, end)
        return end

    # --- reading ----------------------------------------------------------------------------------------------------

    def bounds(self, stream_id: int, offset: int, max_bytes: int, limit: int) -> tuple[int, int]:
        """Return byte budget and limit of a fetch at ``offset``, such that its answer is likely to fit a frame."""
        budget = min(max_bytes, _FETCH_BYTES)
        long = self._long_batches.get(stream_id)
        if long:
            following = bisect_right(long, offset)
            if following < len(long):
                limit = min(limit, long[following])
        doubt = self._doubts.get(stream_id)
        if doubt is not None:
            if monotonic() > doubt.until:
                del self._doubts[stream_id]
            elif offset < doubt.offset:
                limit = min(limit, doubt.offset)
            else:
                budget = min(budget, _SAFE_BYTES)
        return budget, limit

    def unanswered(self, stream_id: int, offset: int, budget: int) -> None:
        """Note that a fetch of ``budget`` bytes got no answer."""
        if budget > _SAFE_BYTES:
            self._doubts[stream_id] = _Doubt(offset, budget, monotonic() + _DOUBT_SECONDS)

    def answered(self, stream_id: int, entries: list[m.Entry]) -> None:
        """Remember facts about the entries that later fetches need."""
        last = entries[-1]
        known = self._last_batches.get(stream_id)
        if known is None or known[0] < last.base_offset:
            self._last_batches[stream_id] = (last.base_offset, last.end_offset)
        doubt = self._doubts.get(stream_id)
        # Only the last entry can be long: an answer ends with the entry that reaches the budget.
        for entry in entries if doubt is not None else entries[-1:]:
            if doubt is not None and entry.base_offset <= doubt.offset < entry.end_offset:
                doubt.left -= entry.size
                doubt.offset = entry.end_offset
            if entry.size >= _LONG_BATCH:
                self._remember_long(stream_id, entry.base_offset)
                self._doubts.pop(stream_id, None)
                doubt = None
        if doubt is not None and doubt.left <= 0:
            self._doubts.pop(stream_id, None)

    def _remember_long(self, stream_id: int, base_offset: int) -> None:
        long = self._long_batches.setdefault(stream_id, [])
        if base_offset not in long:
            insort(long, base_offset)
            if len(long) > _LONG_BATCHES_KNOWN:
                del long[0]

    def last_batch(self, stream_id: int) -> tuple[int, int] | None:
        """Return base and end of the last batch of a stream that was read, if any."""
        return self._last_batches.get(stream_id)


def _stream_of(known: m.RangeInfo) -> m.StreamInfo:
    """Return the stream of a range, with the facts that the range has."""
    return m.StreamInfo(known.stream_id, max(1, known.replica_count), max(1, known.ack_count))
