"""Reading of records for the HTTP interface: partition after partition, or all of them in order of time."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.sliced import Sliced, SlicedWorks, advance
from bridges.console.records.rendering import LARGE, STEP, Search, Wanted, rendered
from bridges.errors import LogUnavailable, OffsetOutOfRange

if TYPE_CHECKING:
    from anabranch_kit.memory.request_memory import RequestMemory
    from bridges.clients import Client
    from bridges.console.schemas.decoding import Decoder
    from bridges.log.remote.readable import ReadableLog
    from bridges.metrics import TopicTraffic

_READ_BYTES = 256 * 1024
_READ_LEAST = 16 * 1024
_ROOM_S = 30.0
"""Seconds that a record being decompressed waits for memory."""
_SENDING = 64 * 1024
"""Memory of an answer being sent, in the process and in its socket."""
_READERS_AT_ONCE = 8
"""Readers whose batches are rendered at a time; each may hold one decompressed record, and some decoded ones."""
STALLED_S = 60.0
"""Seconds that a reader may keep the others waiting without reading."""
_WIDEST = 4096
"""Most offsets of a window with records."""
_PROGRESS_S = 0.5


class Sink(Protocol):
    """A place for pieces of lines: the response itself, or what makes a file of them."""

    async def write(self, data: bytes) -> None: ...


class Answer(Struct):
    """An answer being sent. ``left``: records that it may still have; negative: no limit."""

    response: Sink
    memory: RequestMemory
    traffic: TopicTraffic
    client: Client
    search: Search | None
    left: int = -1
    decoder: Decoder | None = None

    @property
    def is_over(self) -> bool:
        """Return whether it has all records that it may have, or the search has examined all that it may."""
        return not self.left or (self.search is not None and self.search.left <= 0)

    async def write(self, line: object) -> None:
        """Send a line of JSON."""
        await self.response.write(json.dumps(line).encode() + b"\n")


class Span(Struct):
    """The offsets ``[low, high)`` of a partition that are still to be read in order of time.

    ``width``: offsets of the next window.
    """

    log: ReadableLog
    low: int
    high: int
    width: int = 1

    def window(self, newest: bool) -> tuple[int, int]:
        """Return the offsets of the next window."""
        if newest:
            return max(self.low, self.high - self.width), self.high
        return self.low, min(self.high, self.low + self.width)


class Order(Struct):
    """A reading of several partitions in order of time: the ``newest`` records first, or the oldest."""

    newest: bool
    limit: int
    times: list[int] = field(default_factory=list)
    """Of the records sent; negative with ``newest``, so that smaller always comes first."""
    looked: int = 0
    told: float = 0.0


class Reader:
    """Sends records. It belongs to the console alone, so that its slow readers delay nothing else."""

    def __init__(self, inflated_bytes: int) -> None:
        self._inflated_bytes = inflated_bytes
        self._works = SlicedWorks(_READERS_AT_ONCE)
        self._growing = asyncio.Lock()
        self._decoding = asyncio.Semaphore(_READERS_AT_ONCE)

    def close(self) -> None:
        """Stop rendering. To be called when no request is in progress."""
        self._works.close()

    async def stream(
        self, answer: Answer, positions: dict[ReadableLog, int], ends: Mapping[ReadableLog, int], follow: bool
    ) -> None:
        """Send the records from ``positions`` to ``ends``, partition after partition, and move the positions.

        With ``follow`` there is no end.
        """
        moved = _Moved(positions)
        answer.memory.take(Kind.RESPONSES, _SENDING)
        try:
            while not answer.is_over:
                moved.clear()
                progress = False
                for log in positions:
                    end = log.last_stable_offset if follow else ends[log]
                    while not answer.is_over and positions[log] < end:
                        wanted = await self._send_read(answer, log, positions[log], end)
                        if wanted is None:
                            break  # the rest was declared lost by an operator
                        progress = True
                        positions[log] = wanted.at
                if not follow:
                    return
                if not progress and answer.left:
                    await moved.wait()
        finally:
            moved.close()

    async def in_order(self, answer: Answer, spans: list[Span], order: Order) -> None:
        """Send at least ``order.limit`` records in order of time, if there are so many, and shorten the spans.

        A window of a partition is sent whole, oldest first. The next window is one of the partition whose read part
        ends nearest: no record that was not sent comes before it. Widths double, so that what few records match is
        found in few reads. The client sorts, and leaves out what is too much.
        """
        for span in spans:
            span.width = order.limit if answer.search is not None else max(1, math.ceil(order.limit / len(spans)))
        heap = [(-math.inf, place) for place, span in enumerate(spans) if span.low < span.high]
        heapify(heap)
        while heap and not answer.is_over:
            edge, place = heap[0]
            if sum(moment <= edge for moment in order.times) >= order.limit:
                return
            edge = await self._window(answer, spans[place], order, edge)
            if spans[place].low < spans[place].high:
                heapreplace(heap, (edge, place))
            else:
                heappop(heap)
            if time.monotonic() - order.told > _PROGRESS_S:
                order.told = time.monotonic()
                await answer.write({"looked": order.looked})

    async def _window(self, answer: Answer, span: Span, order: Order, edge: float) -> float:
        """Send the next window of a span, and return the edge of what was read of it."""
        if answer.search is not None:
            span.width = min(span.width, answer.search.left)  # its end must not come within a window
        low, high = span.window(order.newest)
        if span.width > _WIDEST and await self._has_batches(answer, span.log, low, high):
            span.width = max(_WIDEST, span.width // 8)
            if span.width == _WIDEST:
                low, high = span.window(order.newest)
            else:
                return edge
        at, examined = low, 0
        while at < high:
            wanted = await self._send_read(answer, span.log, at, high)
            if wanted is None:
                break
            at = wanted.at
            if wanted.examined:
                examined += wanted.examined
                order.times += [-moment for moment in wanted.times] if order.newest else wanted.times
                edge = max(edge, -wanted.oldest if order.newest else wanted.latest)
        order.looked += examined
        if order.newest:
            span.high = low
        else:
            span.low = max(at, high)  # behind a gap, where one follows
        span.width = min(2 * span.width, _WIDEST) if examined else 2 * span.width
        return edge

    async def _has_batches(self, answer: Answer, log: ReadableLog, low: int, high: int) -> bool:
        """Return whether there are records in ``[low, high)``: compaction leaves wide gaps."""
        held = await answer.memory.granted(Kind.READS, _READ_LEAST, _READ_LEAST)
        try:
            batches = await log.read_committed(max(low, log.log_start_offset), held)
            return bool(batches) and batches[0].base_offset < high
        finally:
            answer.memory.give(Kind.READS, held)

    async def _send_read(self, answer: Answer, log: ReadableLog, start: int, end: int) -> Wanted | None:
        """Send the records of ``[start, end)`` that one read returns; None if there are none up to the log's end."""
        memory = answer.memory
        decodes = answer.decoder is not None
        wanted = Wanted(log.partition, start, end, answer.left, search=answer.search, decodes=decodes)
        held = await memory.granted(Kind.READS, _READ_BYTES, _READ_LEAST)
        try:
            batches = await log.read_committed(start, held)
            size = sum(len(batch.payload) for batch in batches)
            # A batch is read whole. A reader that waits for memory to decompress it holds no more than that batch.
            memory.give(Kind.READS, held)
            memory.take(Kind.READS, size)
            held = size
            if not batches:
                return None
            lines = rendered(batches, wanted, self._inflated_bytes)
            await self._send(answer, lines, wanted, batches[-1].end_offset - batches[0].base_offset)
            # A search that has ended continues behind the last record that it examined.
            behind = batches[0].base_offset if batches[0].base_offset >= end else min(end, batches[-1].end_offset)
            reached = wanted.at if wanted.is_over and answer.search is not None else behind
            wanted.at = max(start, reached)
            answer.left -= wanted.records if answer.left > 0 else 0
            answer.traffic.fetched(len(batches), wanted.records, size)
            answer.client.read(log.topic, log.partition, wanted.records, size)
        except OffsetOutOfRange:
            if start >= log.log_start_offset:
                raise
            wanted.at = log.log_start_offset  # the log was trimmed
        finally:
            memory.give(Kind.READS, held)
        return wanted

    async def _send(self, answer: Answer, lines: Sliced[None], wanted: Wanted, records: int) -> None:
        """Write ``lines`` as they are rendered: the first on the event loop, the rest in a thread.

        A large record is decompressed in steps. Before each step it waits for memory in the budget, and it counts until
        it is written. Only one record grows at a time: several that each hold a part and wait for more would block each
        other.
        """
        ended, piece = advance(lines)
        if piece:
            await answer.response.write(piece)
        while not ended:
            if not wanted.waits or answer.decoder is None:
                ended = await self._send_steps(answer, lines, wanted, records)
                continue
            await answer.decoder.ask(frame for _, _, frame in wanted.frames)
            async with self._decoding:
                held = await _decode(answer.decoder, wanted)
                answer.memory.take(Kind.READS, held)
                try:
                    ended = await self._send_steps(answer, lines, wanted, records)
                finally:
                    answer.memory.give(Kind.READS, held)

    async def _send_steps(self, answer: Answer, lines: Sliced[None], wanted: Wanted, records: int) -> bool:
        """Write lines up to their end, and return True, or until they wait: that needs no turn."""
        response, memory = answer.response, answer.memory
        counted, growing = 0, False
        async with self._works.turn(records):
            try:
                while True:
                    if wanted.grows and wanted.held + STEP > max(counted, LARGE):
                        if not growing:
                            await self._growing.acquire()
                            growing = True
                        try:
                            async with asyncio.timeout(_ROOM_S):
                                await memory.grow(Kind.READS, wanted.held + LARGE - counted)
                        except TimeoutError:
                            raise LogUnavailable("the node is short of memory for a record of this length") from None
                        counted = wanted.held + LARGE
                    ended, piece = await self._works.step(lines)
                    if not wanted.grows:
                        if growing:
                            self._growing.release()
                            growing = False
                        if wanted.held != counted:
                            memory.give(Kind.READS, counted)
                            memory.take(Kind.READS, wanted.held)
                            counted = wanted.held
                    if piece:
                        # A client that does not read must not keep its turn from the others.
                        try:
                            async with asyncio.timeout(STALLED_S):
                                await response.write(piece)
                        except TimeoutError:
                            raise ConnectionAbortedError("the client takes nothing of its records") from None
                    if ended or wanted.waits:
                        return ended
            finally:
                if growing:
                    self._growing.release()
                memory.give(Kind.READS, counted)


async def _decode(decoder: Decoder, wanted: Wanted) -> int:
    """Decode what a rendering waits for, and maybe more; return the size of what there is now."""
    told = await decoder.decode([frame for _, _, frame in wanted.frames])
    for (offset, name, _), one in zip(wanted.frames, told, strict=False):
        wanted.decoded.setdefault(offset, {})[name] = one
    del wanted.frames[: len(told)]
    wanted.waits = False
    return sum(len(one.text) for some in wanted.decoded.values() for one in some.values())


class _Moved:
    """A waiter that wakes a reader when one of its logs moves."""

    def __init__(self, logs: dict[ReadableLog, int]) -> None:
        self._event = asyncio.Event()
        self._logs = list(logs)
        for log in self._logs:
            log.add_waiter(self)

    def log_moved(self, log: ReadableLog) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self) -> None:
        await self._event.wait()
        for log in self._logs:
            await log.ready()  # a failed log is opened again; a deleted log ends the stream

    def close(self) -> None:
        for log in self._logs:
            log.remove_waiter(self)
