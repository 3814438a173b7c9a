"""The client of a backend: streams, the one writer of a stream, and reading (reference/sbp.md, section 2.5)."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TypeVarTuple

from sbp_back.barrier import guarded
from sbp_back.client.control import ControlOptions, ask, ask_repeatedly, list_ranges
from sbp_back.client.replica import Channel
from sbp_back.client.writer import StreamWriter, WriterOptions
from sbp_back.errors import ConnectionLost, ErrorCode, FencedError, Reclaimed, SbpError
from sbp_back.transport.carrier import Answer, Carrier
from sbp_back.wire.model import (
    OK,
    CreateStreamRequest,
    DeleteStreamRequest,
    DescribeStreamRequest,
    Entry,
    FetchRequest,
    FetchResponse,
    ListRangeRequest,
    ListRangeResponse,
    RangeInfo,
    RangeResponse,
    RangeServerInfo,
    Request,
    SealKind,
    SealRangeRequest,
    StreamInfo,
    StreamResponse,
    TrimStreamRequest,
)
from sbp_back.wire.room import Room

__all__ = ["Client", "ClientOptions", "FetchDone", "StreamWriter"]

FetchDone = Callable[[list[Entry] | SbpError], None]

Ts = TypeVarTuple("Ts")

_START = attrgetter("start")

Locator = Callable[[int, int, int, int, int], tuple[int, int, int, int] | None]
"""(start, end, bytes, batches) of what is stored at (stream, range, offset), below a limit, up to a number of bytes."""


@dataclass(slots=True)
class ClientOptions:
    """``fetch_timeout``: seconds a fetch may take beyond the time it asked to wait for data; ``open_timeout``: seconds
    until the opening of a stream is given up. ``poll_seconds``: longest wait for data before the ranges are looked at
    again; ``look_again_seconds``: at least, between two such looks at one stream."""

    control: ControlOptions = field(default_factory=ControlOptions)
    writer: WriterOptions = field(default_factory=WriterOptions)
    fetch_timeout: float = 20.0
    open_timeout: float = 60.0
    poll_seconds: float = 10.0
    look_again_seconds: float = 1.0


class Client:
    """``pd`` leads to the placement driver, ``connect`` to a range server it names. The client closes both.

    Errors are ``SbpError`` with the code of the server that refused; ``ConnectionLost`` when it did not answer. For
    servers of elastic-stream there is :class:`sbp_back.client.foreign.ForeignClient`.
    """

    def __init__(
        self, pd: Carrier, connect: Callable[[RangeServerInfo], Carrier], options: ClientOptions | None = None
    ) -> None:
        self._pd = pd
        self._connect = connect
        self._options = options if options is not None else ClientOptions()
        self._channels: dict[tuple[int, str], Channel] = {}
        self._ranges: dict[int, list[RangeInfo]] = {}
        self._listing: dict[int, list[Callable[[SbpError | None], None]]] = {}
        self._looked: dict[int, float] = {}  # when the ranges of a stream were last asked for because nothing came
        self._writers: dict[int, StreamWriter] = {}
        self.locator: Locator | None = None
        """Looks into the index of a range server in this process; see :meth:`locate`."""

    @property
    def pd(self) -> Carrier:
        """The way to the placement driver."""
        return self._pd

    # --- streams ----------------------------------------------------------------------------------------------------

    async def create_stream(self, replica: int = 1, ack_count: int = 1, retention_ms: int = 0) -> StreamInfo:
        """A new stream. After ``ConnectionLost`` there may be one that nobody knows of; it holds nothing."""
        wanted = StreamInfo(-1, replica, ack_count, retention_ms)
        return _stream(await ask(self._pd, CreateStreamRequest(wanted), StreamResponse, self._options.control))

    async def describe_stream(self, stream_id: int) -> StreamInfo:
        """Raises ``SbpError`` 1404 when there is no such stream."""
        request = DescribeStreamRequest(stream_id)
        return _stream(await ask_repeatedly(self._pd, request, StreamResponse, self._options.control))

    async def list_ranges(self, stream_id: int) -> list[RangeInfo]:
        """The ranges of a stream in order, asked for anew; none for a stream that does not exist."""
        ranges = await list_ranges(self._pd, stream_id, self._options.control)
        self._learn(stream_id, ranges)
        return ranges

    async def delete_stream(self, stream_id: int) -> None:
        """Deletes the stream, then its data. Raises ``SbpError`` 1404 when there is no such stream.

        A range server that cannot be reached is told by the placement driver, later.
        """
        ranges = await list_ranges(self._pd, stream_id, self._options.control)
        request = DeleteStreamRequest(stream_id)
        await ask_repeatedly(self._pd, request, StreamResponse, self._options.control)
        self._ranges.pop(stream_id, None)
        self._looked.pop(stream_id, None)
        writer = self._writers.pop(stream_id, None)
        if writer is not None:
            writer.fail(SbpError(ErrorCode.NOT_FOUND, f"stream {stream_id} was deleted"))
        await self._tell(ranges, request)

    async def trim(self, stream_id: int, min_offset: int) -> int:
        """Gives up everything below ``min_offset``; returns the stream's start offset, which is at least that unless
        the stream ends before. Never lowers it. Batches are kept whole."""
        before = await list_ranges(self._pd, stream_id, self._options.control)
        request = TrimStreamRequest(stream_id, min_offset)
        await ask_repeatedly(self._pd, request, StreamResponse, self._options.control)
        ranges = await self.list_ranges(stream_id)
        start = ranges[0].start if ranges else 0
        await self._tell(before, TrimStreamRequest(stream_id, start))
        return start

    async def _tell(self, ranges: list[RangeInfo], request: Request) -> None:
        """Has the servers of ``ranges`` do what the placement driver has decided. One that does not answer is told by
        the placement driver, until it has confirmed it, so its failure is nobody's here."""
        servers = {(server.server_id, server.advertise_addr): server for known in ranges for server in known.servers}

        async def tell(server: RangeServerInfo) -> None:
            await ask(self.channel(server).carrier, request, StreamResponse, self._options.control)

        results = await asyncio.gather(*(tell(server) for server in servers.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, SbpError):
                raise result

    # --- writing ----------------------------------------------------------------------------------------------------

    async def open(self, stream_id: int, epoch: int) -> StreamWriter:
        """The writer of the stream in ``epoch``, which the caller has made sure nobody else uses.

        Writers of earlier epochs can append no more once this returns, with one exception that costs nothing: an
        earlier writer that never had a range may still create the next one; this writer's first append then fails with
        ``FencedError`` before anything is lost, and the stream has to be opened again with a later epoch.

        Raises ``FencedError`` when a later writer was there, ``SbpError`` 1404 for an unknown stream, 1498 for one
        with more than one replica, ``ConnectionLost`` when it takes longer than it may.
        """
        try:
            async with asyncio.timeout(self._options.open_timeout):
                return await self._open(stream_id, epoch)
        except TimeoutError:
            message = f"stream {stream_id} could not be opened in {self._options.open_timeout:g} s"
            raise ConnectionLost(message) from None

    async def _open(self, stream_id: int, epoch: int) -> StreamWriter:
        stream = await self.describe_stream(stream_id)
        if stream.replica > 1:
            message = f"stream {stream_id} has {stream.replica} replicas, this client writes one"
            raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, message)
        self._refuse_older(stream_id, epoch)
        ranges = await self._fence(stream_id, epoch)
        self._refuse_older(stream_id, epoch)
        older = self._writers.get(stream_id)
        if older is not None:
            older.fail(FencedError(ErrorCode.EXPIRED_RANGE_EPOCH, f"epoch {epoch} has taken stream {stream_id}"))
        writer = StreamWriter(self, stream_id, epoch, ranges, self._options.writer)
        self._writers[stream_id] = writer
        self._ranges[stream_id] = ranges
        return writer

    async def seal(self, stream_id: int, epoch: int) -> int:
        """Ends the stream's last range for good and opens nothing; returns where the next writer begins.

        Writers of ``epoch`` and earlier ones can append no more once this returns, with the exception that
        :meth:`open` names. Durable, and repeatable. Raises what :meth:`open` raises.
        """
        await self.describe_stream(stream_id)
        self._refuse_older(stream_id, epoch)
        ranges = await self._fence(stream_id, epoch)
        writer = self._writers.get(stream_id)
        if writer is not None and writer.epoch <= epoch and writer.failed is None:
            writer.fail(FencedError(ErrorCode.RANGE_ALREADY_SEALED, f"stream {stream_id} was sealed"))
        self._ranges[stream_id] = ranges
        return ranges[-1].end if ranges else 0

    def _refuse_older(self, stream_id: int, epoch: int) -> None:
        current = self._writers.get(stream_id)
        if current is not None and current.epoch > epoch:
            raise FencedError(ErrorCode.EXPIRED_RANGE_EPOCH, f"epoch {current.epoch} is open, {epoch} is older")

    async def _fence(self, stream_id: int, epoch: int) -> list[RangeInfo]:
        """Seals the stream's last range, whoever wrote it; returns all ranges."""
        for _ in range(self._options.control.tries):
            ranges = await list_ranges(self._pd, stream_id, self._options.control)
            if not ranges:
                return ranges
            last = ranges[-1]
            if last.epoch > epoch:
                message = f"epoch {last.epoch} has written to stream {stream_id}, {epoch} is older"
                raise FencedError(ErrorCode.EXPIRED_RANGE_EPOCH, message)
            if last.end >= 0:
                return ranges
            end = await self._seal_server(last, epoch)
            sealed = RangeInfo(stream_id, epoch, last.index, last.start, end, last.servers)
            request = SealRangeRequest(sealed, SealKind.PLACEMENT_DRIVER)
            try:
                response = await ask_repeatedly(self._pd, request, RangeResponse, self._options.control)
            except SbpError as error:
                # Sealed meanwhile, or trimmed away: look again, at what the placement driver holds to be true.
                if error.code not in (ErrorCode.RANGE_ALREADY_SEALED, ErrorCode.RANGE_NOT_FOUND):
                    raise
                continue
            if response.range is not None and response.range.end >= 0:
                # The placement driver tells the server, too, and does not forget it; this is sooner.
                self.channel(last.servers[0]).carrier.submit(request, _ignore, self._options.control.timeout)
                return [*ranges[:-1], response.range]
        raise SbpError(ErrorCode.PRECONDITION_FAILED, f"the ranges of stream {stream_id} keep changing")

    async def _seal_server(self, last: RangeInfo, epoch: int) -> int:
        """Where the range ends on its server, which takes no more appends for it from now on."""
        if not last.servers:
            raise SbpError(ErrorCode.PD_NO_AVAILABLE_RS, f"range {last.index} of {last.stream_id} has no server")
        # Without an end: the server says what is durable there. It creates the range if it never heard of it.
        asked = RangeInfo(last.stream_id, epoch, last.index, last.start)
        carrier = self.channel(last.servers[0]).carrier
        request = SealRangeRequest(asked, SealKind.RANGE_SERVER)
        response = await ask_repeatedly(carrier, request, RangeResponse, self._options.control)
        if response.range is None or response.range.end < 0:
            raise SbpError(ErrorCode.DECODE, f"a sealed range {last.index} of {last.stream_id} has no end")
        return response.range.end

    # --- reading ----------------------------------------------------------------------------------------------------

    def fetch(
        self,
        stream_id: int,
        offset: int,
        max_bytes: int,
        done: FetchDone,
        *,
        limit: int = -1,
        min_bytes: int = 0,
        max_wait_ms: int = 0,
        room: Room | None = None,
    ) -> None:
        """Whole batches from the one that contains ``offset``, about ``max_bytes`` bytes but at least one batch.

        Only batches below ``limit`` (-1: below what is confirmed) are returned. When there are less than ``min_bytes``
        (at least one) it may take up to ``max_wait_ms`` for more to come; then the list may be short or empty. ``done``
        may be called before this returns. Errors: ``Reclaimed`` (1463) below the stream's start, or where its range
        server has given its data up; 1461 beyond its end. With ``room`` a range server of this process reads no more
        than there is room for; waiting for that takes as long as it takes.
        """
        fetch = self._new_fetch(stream_id, offset, max_bytes, done, limit, min_bytes, max_wait_ms)
        fetch.room = room
        fetch.route()

    def _new_fetch(
        self,
        stream_id: int,
        offset: int,
        max_bytes: int,
        done: FetchDone,
        limit: int,
        min_bytes: int,
        max_wait_ms: int,
    ) -> Fetch:
        return Fetch(self, stream_id, offset, max_bytes, done, limit, min_bytes, max_wait_ms)

    def locate(self, stream_id: int, offset: int, max_bytes: int, limit: int) -> tuple[int, int, int, int] | None:
        """(start, end, bytes of payload, batches) of what :meth:`fetch` would find in the range of ``offset``.

        None where only a range server elsewhere knows, and for batches that are not of this implementation's making:
        who reads them may find other sizes.
        """
        ranges = self.known_ranges(stream_id)
        if self.locator is None or not ranges:
            return None
        position = bisect_right(ranges, offset, key=_START) - 1
        if position < 0:
            return None
        wanted = ranges[position]
        end = limit if wanted.end < 0 else min(limit, wanted.end)
        return None if offset >= end else self.locator(stream_id, wanted.index, offset, end, max_bytes)

    async def fetch_entries(
        self,
        stream_id: int,
        offset: int,
        max_bytes: int,
        *,
        limit: int = -1,
        min_bytes: int = 0,
        max_wait_ms: int = 0,
    ) -> list[Entry]:
        """The same, awaited. Raises ``SbpError``."""
        future: asyncio.Future[list[Entry] | SbpError] = asyncio.get_running_loop().create_future()

        def fetched(answer: list[Entry] | SbpError) -> None:
            if not future.done():
                future.set_result(answer)

        self.fetch(stream_id, offset, max_bytes, fetched, limit=limit, min_bytes=min_bytes, max_wait_ms=max_wait_ms)
        answer = await future
        if isinstance(answer, SbpError):
            raise answer
        return answer

    async def watch(
        self, stream_id: int, offset: int, *, max_bytes: int = 1024 * 1024, wait_ms: int = 10_000
    ) -> AsyncGenerator[Entry, None]:
        """Every batch from the one that contains ``offset`` on, each as soon as it is durable; goes on for ever.

        ``max_bytes``: of one fetch; ``wait_ms``: how long one waits for data. Raises ``SbpError``: 1404 when there is
        no such stream or it is deleted meanwhile, 1463 when a trim overtook it; ``ConnectionLost`` when a server does
        not answer, after which one may go on from the end of the last batch.
        """
        await self.describe_stream(stream_id)
        while True:
            try:
                entries = await self.fetch_entries(stream_id, offset, max_bytes, min_bytes=1, max_wait_ms=wait_ms)
            except ConnectionLost:
                raise
            except SbpError:
                await self.describe_stream(stream_id)  # of a stream that is gone a fetch does not say so
                raise
            for entry in entries:
                yield entry
                offset = entry.end_offset
            if not entries:
                await self.describe_stream(stream_id)

    # --- for writers and fetches ------------------------------------------------------------------------------------

    def channel(self, server: RangeServerInfo) -> Channel:
        """The way to a range server. Raises ``ConnectionLost`` when its address is of no use."""
        key = (server.server_id, server.advertise_addr)
        channel = self._channels.get(key)
        if channel is None:
            try:
                carrier = self._connect(server)
            except ValueError as error:
                raise ConnectionLost(f"range server {server.server_id}: {error}") from error
            timeout = self._options.writer.retry.append_timeout
            tell = replace(self._options.writer.tell, tells=self.tells)
            channel = self._channels[key] = Channel(carrier, asyncio.get_running_loop(), timeout, tell)
        return channel

    @property
    def tells(self) -> bool:
        """Whether range servers are told what is confirmed."""
        return self._options.writer.tell.tells

    def ranges_changed(self, writer: StreamWriter) -> None:
        if self._writers.get(writer.stream_id) is writer:
            self._ranges[writer.stream_id] = writer.ranges

    def known_ranges(self, stream_id: int) -> list[RangeInfo] | None:
        """The ranges as far as this client has learned of them; None when it has not asked yet."""
        return self._ranges.get(stream_id)

    def refresh(self, stream_id: int, then: Callable[[SbpError | None], None]) -> None:
        """Asks for the ranges anew; all who want those of one stream at a time share one request."""
        waiting = self._listing.get(stream_id)
        if waiting is not None:
            waiting.append(then)
            return
        self._listing[stream_id] = [then]

        def answered(answer: Answer) -> None:
            error: SbpError | None = None
            if isinstance(answer, ConnectionLost):
                error = answer
            elif isinstance(answer, ListRangeResponse) and answer.status.ok:
                self._learn(stream_id, sorted(answer.ranges, key=lambda known: known.index))
            else:
                error = SbpError(answer.status.code, answer.status.message)
            for waiter in self._listing.pop(stream_id):
                guarded("a listing of ranges", waiter, error)

        self._pd.submit(ListRangeRequest(stream_id=stream_id), answered, self._options.control.timeout)

    def look_again(self, stream_id: int) -> None:
        """Nothing new was found at the end of a stream: perhaps it goes on elsewhere by now. Asks for the ranges in the
        background, not too often."""
        writer = self._writers.get(stream_id)
        if writer is not None and writer.failed is None:
            return  # nobody knows better
        now = asyncio.get_running_loop().time()
        if now >= self._looked.get(stream_id, 0.0) + self._options.look_again_seconds:
            self._looked[stream_id] = now
            self.refresh(stream_id, _ignore)

    def tell(self, stream_id: int) -> None:
        """Before something is read from the open range of a stream: what its writer here knows to be confirmed."""
        writer = self._writers.get(stream_id)
        if writer is not None and writer.failed is None:
            writer.tell()

    @property
    def poll_seconds(self) -> float:
        return self._options.poll_seconds

    def _learn(self, stream_id: int, ranges: list[RangeInfo]) -> None:
        writer = self._writers.get(stream_id)
        if writer is not None and writer.failed is None and writer.ranges:
            # The answer may have been on its way while the writer went on to its next range.
            last = ranges[-1].index if ranges else -1
            ranges = ranges + [known for known in writer.ranges if known.index > last]
            writer.ranges = ranges
            writer.start_offset = max(writer.start_offset, ranges[0].start)
        self._ranges[stream_id] = ranges

    @property
    def fetch_timeout(self) -> float:
        return self._options.fetch_timeout

    async def close(self) -> None:
        """Ends all writers without waiting for their batches, and closes the ways to all servers."""
        writers, self._writers = list(self._writers.values()), {}
        # Nobody else can say of the last batches that they may be shown.
        await asyncio.gather(*(channel.told() for channel in self._channels.values()), return_exceptions=True)
        for writer in writers:
            if writer.failed is None:
                writer.fail(ConnectionLost("the client was closed"))
            await writer.close()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.carrier.close()
        await self._pd.close()


def _ignore(answer: object) -> None:
    pass


def _stream(response: StreamResponse) -> StreamInfo:
    if response.stream is None:
        raise SbpError(ErrorCode.DECODE, "the answer names no stream")
    return response.stream


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
    """One fetch on its way: to the range of its offset, on to the next range, or to a fresh list of ranges."""

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
        self._entries: list[Entry] | None = None
        self._fresh = False
        self._range: RangeInfo | None = None
        self._ranges_read = 0
        self._server = 0
        self._deadline = 0.0
        self._polled = 0.0  # until when the server was asked to wait; 0: it was not
        self.room: Room | None = None

    def route(self) -> None:
        """Asks a server of the range that contains the offset. Never raises: ``done`` is called in any case."""
        self._guard(self._route)

    def _guard(self, step: Callable[[*Ts], object], *args: *Ts) -> None:
        if not guarded("a fetch", step, *args):
            self._fail(ErrorCode.RS_INTERNAL_SERVER_ERROR, "unexpected error, see the log")

    def _tell(self, answer: list[Entry] | SbpError) -> None:
        done, self._done = self._done, None
        if done is not None:
            guarded("a fetch's callback", done, answer)

    def _route(self) -> None:
        if self.room is not None and self.room.gone:
            self._finish([])
            return
        ranges = self._client.known_ranges(self._stream_id)
        if ranges is None:
            self._refresh()
            return
        offset = self._offset
        # Of an empty range and the one after it, which start at the same offset, the later is the one to read.
        position = bisect_right(ranges, offset, key=_START) - 1
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

    def _ask(self, carrier: Carrier, wanted: RangeInfo, limit: int) -> None:
        wait = self._wait_ms()
        if limit < 0:
            self._client.tell(self._stream_id)
            wait = min(wait, int(self._client.poll_seconds * 1000))
        self._polled = 0.0 if not wait else asyncio.get_running_loop().time() + wait / 1000
        request = FetchRequest(wanted, self._offset, limit, wait, self._min_bytes, self._left, self.room)
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
        if code == OK and isinstance(answer, FetchResponse):
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

    def _received(self, entries: list[Entry]) -> None:
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
        """Nothing came to a range that was open when we last heard of it: it may be a dead one."""
        wanted = self._range
        if wanted is None or wanted.end >= 0 or self._limit >= 0:
            self._finish([])
            return
        # A server that answers before its time means it: it may be about to stop.
        late = self._polled and asyncio.get_running_loop().time() >= self._polled - 0.02
        if late and self._entries is None and self._wait_ms() > 20:
            self._refresh()
            return
        self._client.look_again(self._stream_id)
        self._finish([])

    def _look_at_server(self, message: str) -> None:
        """The offset is outside, though not by the placement driver's list. Below, because the server keeps less; or at
        the end of a range that was sealed on its server and is about to be sealed at the placement driver."""
        wanted = self._range
        assert wanted is not None

        def answered(answer: Answer) -> None:
            if isinstance(answer, ListRangeResponse):
                for known in answer.ranges:
                    if known.index == wanted.index and 0 <= known.end == self._offset:
                        self._nothing()
                        return
                    if known.index == wanted.index and self._offset < known.start:
                        self._end(Reclaimed(self._offset, f"{message}: the range server gave it up"))
                        return
            self._fail(ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, message)

        carrier = self._client.channel(wanted.servers[self._server]).carrier
        request = ListRangeRequest(stream_id=self._stream_id)
        carrier.submit(request, lambda answer: self._guard(answered, answer), self._client.fetch_timeout)

    def _other_server(self, error: SbpError) -> None:
        self._server += 1
        if self._range is not None and self._server < len(self._range.servers):
            self.route()
        elif self._fresh:
            self._end(error)
        else:
            self._refresh()

    def _not_there_yet(self) -> bool:
        """Whether the range is one its writer has made at the placement driver and is about to make on the server."""
        return self._range is not None and self._range.end < 0 and self._offset == self._range.start

    def _outside(self, code: int, message: str) -> None:
        """By our list of ranges, or by a server's word, the offset is not there; final if the list is fresh."""
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
        """The offset is the end of a stream without an open range: nobody can tell us when that changes."""
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

    def _finish(self, entries: list[Entry]) -> None:
        self._tell(entries if self._entries is None else self._entries + entries)
