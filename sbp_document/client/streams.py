"""Streams of a backend that speaks only the document: created, written, read and trimmed.

The counterpart of :class:`sbp_back.client.client.Client` with the document's abilities: there are no epochs, so opening
a stream does not keep other clients from appending to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.shared import SharedWorks
from anabranch_kit.run.task_set import TaskSet
from sbp_back.client.control import ControlOptions, opening, repeatedly
from sbp_back.client.gathering import Gathering, place_of
from sbp_back.client.leader import PdCarrier, pd_carrier
from sbp_back.client.replacing import Substitute
from sbp_back.errors import ConnectionLost, ErrorCode, Reclaimed, SbpError
from sbp_back.transport.carrier import Carrier
from sbp_back.transport.tcp_carrier import TcpCarrier, parse_address
from sbp_back.wire.model import Entry, RangeInfo, RangeServerInfo, StreamInfo
from sbp_document.client.opening import opened, unwrapped
from sbp_document.wire.v01 import V01

if TYPE_CHECKING:
    from bridges.backends import Connecting
    from bridges.log.logs import Logs
from sbp_document.client.channel import AppendDone, DocumentChannel, FetchDone
from sbp_document.client.client import DocumentClient
from sbp_document.client.document_writer import DocumentWriter
from sbp_document.client.follower import Follower, FollowOptions
from sbp_document.errors import RECLAIMED_DETAIL, DocumentError
from sbp_document.wire.messages import DocumentRange

__all__ = ["DocumentStreams", "StreamsOptions"]

T = TypeVar("T")

_CATCH_UP_BYTES = 4 * 1024 * 1024


class StreamsOptions(Struct):
    """Times in seconds: ``append_timeout`` and ``fetch_timeout`` of one request, ``open_timeout`` until the opening of
    a stream is given up, ``patience`` until a batch is given up whose server does not answer.
    """

    control: ControlOptions = field(default_factory=ControlOptions)
    append_timeout: float = 15.0
    fetch_timeout: float = 20.0
    open_timeout: float = 60.0
    patience: float = 30.0
    follow: FollowOptions = field(default_factory=FollowOptions)


def _ignored(stream_id: int, entries: list[Entry]) -> None:
    return None


def connect_streams(addresses: str, connecting: Connecting) -> tuple[DocumentStreams, PdCarrier]:
    """Return streams behind the placement drivers at ``addresses``, and the carrier there. Only the times of the
    options are used. Raises ``ValueError`` for invalid addresses.
    """
    tcp, barrier, options = connecting.tcp, connecting.barrier, connecting.options
    pd = pd_carrier(addresses, V01, tcp, connecting.introduce, barrier)

    def connect(server: RangeServerInfo) -> Carrier:
        # The server is placement driver and range server in one, so its identity is not checked.
        return TcpCarrier(*parse_address(server.advertise_addr), V01, tcp, barrier=barrier)

    times = StreamsOptions(
        options.control,
        append_timeout=options.writer.retry.append_timeout,
        fetch_timeout=options.fetch_timeout,
        open_timeout=options.open_timeout,
        patience=options.writer.patience,
    )
    return DocumentStreams(pd, connect, times, barrier), pd


class DocumentStreams:
    """Client of the streams. ``pd`` leads to the document's placement driver, ``connect`` to a range server it names;
    both are closed with it.

    ``overtaken`` is called with entries that another writer has appended to a stream that is written here: before the
    next batch of ours is acknowledged, and within some seconds when there is none (:mod:`.follower`). Errors are
    ``SbpError``; ``ConnectionLost`` when a server did not answer.
    """

    def __init__(
        self,
        pd: Carrier,
        connect: Callable[[RangeServerInfo], Carrier],
        options: StreamsOptions | None = None,
        barrier: Barrier | None = None,
    ) -> None:
        self.barrier = barrier or Barrier()
        self.overtaken: Callable[[int, list[Entry]], None] = _ignored
        self._options = options if options is not None else StreamsOptions()
        self._pd = DocumentClient(pd, self._options.control.timeout)
        self._connect = connect
        self._channels: dict[str, DocumentChannel] = {}
        self._ranges: dict[int, list[DocumentRange]] = {}
        self._listing: SharedWorks[int, list[DocumentRange]] = SharedWorks()
        self._writers: dict[int, DocumentWriter] = {}
        self._tasks = TaskSet()
        self._follower = Follower(
            lambda: list(self._writers.values()), self._channel_of, self._options.follow, self.barrier
        )

    def attach(self, logs: Logs) -> None:
        """Have the partition logs of a node hear of other writers' appends to their streams."""
        self.overtaken = lambda stream_id, entries: logs.overtaken(stream_id, unwrapped(entries))

    @property
    def pd(self) -> DocumentClient:
        return self._pd

    async def close(self) -> None:
        """Close everything; requests in flight are answered with ``ConnectionLost``. Idempotent."""
        for writer in list(self._writers.values()):
            writer.fail(ConnectionLost("the client is closed"))
        await self._follower.close()
        for channel in list(self._channels.values()):
            await channel.close()
        await self._pd.close()
        await self._tasks.drain()

    # --- streams ----------------------------------------------------------------------------------------------------

    async def create_stream(self, replica: int = 1, ack_count: int = 1, retention_ms: int = 0) -> StreamInfo:
        """Create a stream; every replica acknowledges, the document knows no other count. After ``ConnectionLost`` a
        stream may exist whose id nobody knows.
        """
        created = await self._pd.create_stream(replica, retention_ms)
        self._ranges[created.stream.stream_id] = [created.range]
        return created.stream.as_info()

    async def describe_stream(self, stream_id: int) -> StreamInfo:
        """Return the stream's description. Raises ``SbpError`` 1404 when there is no such stream."""
        return (await self._repeatedly(lambda: self._pd.describe_stream(stream_id))).as_info()

    async def list_ranges(self, stream_id: int) -> list[RangeInfo]:
        """Ask for the ranges of a stream and return them in order; none for a stream that does not exist."""
        try:
            ranges = await self._list(stream_id)
        except SbpError as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise
            return []
        return [_range_info(known) for known in ranges]

    async def delete_stream(self, stream_id: int) -> None:
        """Delete the stream and its data. Raises ``SbpError`` 1404 when there is no such stream."""
        await self._repeatedly(lambda: self._pd.delete_stream(stream_id))
        self._ranges.pop(stream_id, None)
        writer = self._writers.pop(stream_id, None)
        if writer is not None:
            writer.fail(SbpError(ErrorCode.NOT_FOUND, f"stream {stream_id} was deleted"))

    async def trim(self, stream_id: int, min_offset: int) -> int:
        """Give up everything below ``min_offset``; return the stream's start offset. Batches are kept whole."""
        await self._repeatedly(lambda: self._pd.trim_stream(stream_id, min_offset))
        ranges = await self._list(stream_id)
        return ranges[0].start if ranges else 0

    async def _repeatedly(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call ``ask`` until it succeeds or fails for good; it must be harmless to repeat."""
        return await repeatedly(ask, self._options.control)

    async def _list(self, stream_id: int) -> list[DocumentRange]:
        ranges = await self._repeatedly(lambda: self._pd.list_ranges(stream_id))
        ranges.sort(key=lambda known: known.index)
        self._ranges[stream_id] = ranges
        return ranges

    # --- writing ----------------------------------------------------------------------------------------------------

    async def open(self, stream_id: int, epoch: int) -> DocumentWriter:
        """Return a writer of the stream. ``epoch`` is kept with it and unknown to the server: a writer elsewhere may go
        on appending. An earlier writer of this client is fenced.

        Opening decides the appends that were in flight: it seals the range, so a batch that was being stored is either
        below the end or refused. Raises ``SbpError`` 1404 for an unknown stream, ``ConnectionLost`` after
        ``open_timeout``.
        """
        async with opening(stream_id, self._options.open_timeout):
            return await self._open(stream_id, epoch)

    async def _open(self, stream_id: int, epoch: int) -> DocumentWriter:
        older = self._writers.pop(stream_id, None)
        if older is not None:
            older.fail(SbpError(ErrorCode.PRECONDITION_FAILED, f"stream {stream_id} was opened again"))
        ranges = await self._list(stream_id)
        last = ranges[-1] if ranges else None
        if older is None and last is not None and last.is_open and last.next == last.start:
            next_offset = last.next  # a new stream, or no writes since it was last opened
        else:
            next_offset = await self._continue(stream_id, last)
        start_offset = ranges[0].start if ranges else next_offset
        writer = DocumentWriter(self, stream_id, epoch, start_offset, next_offset, self._options.patience)
        self._writers[stream_id] = writer
        self._follower.start()
        return writer

    async def seal(self, stream_id: int, epoch: int) -> int:
        """Decide the appends in flight, fence this client's writer, and return where the stream ends now.

        The document knows no end of a stream: other clients can append behind it (docs/sbp.md).
        """
        writer = self._writers.pop(stream_id, None)
        if writer is not None:
            writer.fail(SbpError(ErrorCode.RANGE_ALREADY_SEALED, f"stream {stream_id} was sealed"))
        return await self.take(stream_id)

    async def take(self, stream_id: int) -> int:
        """End the stream's last range and have it continue in one that takes appends; return the next offset."""
        ranges = await self._list(stream_id)
        return await self._continue(stream_id, ranges[-1] if ranges else None)

    async def _continue(self, stream_id: int, last: DocumentRange | None) -> int:
        if last is None:
            opened = await self._pd.create_range(stream_id)
        else:
            index = last.index
            opened = await self._repeatedly(lambda: self._pd.seal_range(stream_id, index))
        await self._list(stream_id)
        return opened.next

    async def between(self, stream_id: int, start: int, end: int) -> list[Entry]:
        """Return the entries that fill [start, end). Raises ``SbpError``."""
        found: list[Entry] = []
        while start < end:
            ask = partial(self.fetch_stored, stream_id, start, _CATCH_UP_BYTES, limit=end)
            entries = await awaited(ask)
            if not entries:
                raise SbpError(ErrorCode.RS_DATA_CORRUPTED, f"stream {stream_id} has nothing at offset {start}")
            found += entries
            start = entries[-1].end_offset
        return found

    def append(self, stream_id: int, batch: Buffer, done: AppendDone) -> None:
        """Have the stream's range server store a batch. For writers."""
        channel = self._channel_of(stream_id)
        if channel is None:
            error = ConnectionLost(f"there is no way to the range server of stream {stream_id}")
            asyncio.get_running_loop().call_soon(done, error)
        else:
            channel.append(stream_id, batch, done)

    # --- reading ----------------------------------------------------------------------------------------------------

    def locate(self, stream_id: int, offset: int, max_bytes: int, limit: int) -> tuple[int, int, int, int] | None:
        """Return None: only the servers know."""
        return None

    def gathering(self) -> Gathering | None:
        """Return None: the servers are elsewhere."""
        return None

    @property
    def cannot_replace(self) -> str:
        return "the document's dialect (sbp.dialect = v0.1) knows no replacement of what is stored"

    async def replace(self, epoch: int, old: Sequence[Entry], new: Sequence[Substitute | Entry]) -> None:
        raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, self.cannot_replace)

    def bytes_between(self, stream_id: int, offsets: Sequence[int]) -> list[int] | None:
        """Return None: the servers are elsewhere."""
        return None

    def fetch(self, stream_id: int, offset: int, max_bytes: int, done: FetchDone, *, limit: int = -1) -> None:
        """Fetch batches from the one that contains ``offset`` as their writers made them, about ``max_bytes`` bytes but
        at least one; none at the stream's end. Errors are those of :meth:`fetch_stored`.
        """

        def fetched(answer: list[Entry] | SbpError) -> None:
            if not isinstance(answer, SbpError):
                try:
                    answer = opened(answer, offset, max_bytes, limit)
                except Exception as error:  # noqa: BLE001 - logged, counted and answered
                    self.barrier.caught("opening of batches", error)
                    answer = SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
            done(answer)

        self.fetch_stored(stream_id, offset, max_bytes, fetched, limit=limit)

    def fetch_stored(self, stream_id: int, offset: int, max_bytes: int, done: FetchDone, *, limit: int = -1) -> None:
        """Fetch the document's batches from the one that contains ``offset``, as entries.

        Only those that begin below ``limit`` (-1: all) are returned. ``done`` is called once, possibly before this
        returns. Errors: 1463 below the stream's start (``Reclaimed`` where a server of ours says so), 1461 beyond its
        end.
        """
        ranges = self._ranges.get(stream_id)
        if ranges is None:
            self._tasks.spawn(self._fetch_anew(stream_id, offset, max_bytes, done, limit))
            return

        def fetched(answer: list[Entry] | SbpError) -> None:
            if isinstance(answer, SbpError):
                # Perhaps the range is on another server by now.
                self._tasks.spawn(self._fetch_anew(stream_id, offset, max_bytes, done, limit))
            else:
                done(_below(answer, limit))

        self._fetch_from(ranges, stream_id, offset, max_bytes, fetched)

    async def fetch_entries(self, stream_id: int, offset: int, max_bytes: int, *, limit: int = -1) -> list[Entry]:
        """Fetch as :meth:`fetch` does, and return the entries. Raises ``SbpError``."""
        return await awaited(lambda settle: self.fetch(stream_id, offset, max_bytes, settle, limit=limit))

    async def _fetch_anew(self, stream_id: int, offset: int, max_bytes: int, done: FetchDone, limit: int) -> None:
        try:
            ranges = await self._listing.wait(stream_id, partial(self._list, stream_id))
        except SbpError as error:
            done(error)
            return
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self.barrier.caught("listing of ranges", error)
            done(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, f"unexpected {type(error).__name__}: {error}"))
            return

        def fetched(answer: list[Entry] | SbpError) -> None:
            if isinstance(answer, DocumentError) and answer.detail == RECLAIMED_DETAIL:
                done(Reclaimed(offset, answer.message))
            else:
                done(answer if isinstance(answer, SbpError) else _below(answer, limit))

        self._fetch_from(ranges, stream_id, offset, max_bytes, fetched)

    def _fetch_from(
        self, ranges: list[DocumentRange], stream_id: int, offset: int, max_bytes: int, done: FetchDone
    ) -> None:
        if not ranges:
            done(SbpError(ErrorCode.NOT_FOUND, f"stream {stream_id} has no ranges"))
            return
        # Below the first range, let its server report the error.
        position = max(0, place_of(ranges, offset))
        try:
            channel = self._channel(ranges[position])
        except ConnectionLost as error:
            done(error)
            return
        channel.fetch(stream_id, offset, max_bytes, done)

    # --- own --------------------------------------------------------------------------------------------------------

    def _channel_of(self, stream_id: int) -> DocumentChannel | None:
        """Return the channel to the server of a stream's last range, if one is known."""
        ranges = self._ranges.get(stream_id)
        try:
            return self._channel(ranges[-1]) if ranges else None
        except ConnectionLost:
            return None

    def _channel(self, known: DocumentRange) -> DocumentChannel:
        """Return the channel to the primary server of a range. Raises ``ConnectionLost`` when its address is
        invalid.
        """
        servers = [replica.server for replica in known.servers if replica.server is not None and replica.is_primary]
        servers = servers or [replica.server for replica in known.servers if replica.server is not None]
        if not servers:
            raise ConnectionLost(f"range {known.index} of stream {known.stream_id} has no server")
        address = servers[0].advertise_addr
        channel = self._channels.get(address)
        if channel is None:
            try:
                carrier = self._connect(servers[0])
            except ValueError as error:
                raise ConnectionLost(f"range server {servers[0].server_id}: {error}") from error
            options = self._options
            channel = DocumentChannel(carrier, options.append_timeout, options.fetch_timeout, self.barrier)
            self._channels[address] = channel
        return channel


def _below(entries: list[Entry], limit: int) -> list[Entry]:
    return entries if limit < 0 else [entry for entry in entries if entry.base_offset < limit]


def _range_info(known: DocumentRange) -> RangeInfo:
    servers = [replica.server for replica in known.servers if replica.server is not None]
    return RangeInfo(known.stream_id, -1, known.index, known.start, known.end, servers)
