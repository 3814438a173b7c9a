"""The client of a backend: streams, the one writer of a stream, and reading (docs/protocols/sbp.md, "Writers")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.barrier import Barrier
from sbp_back.client.control import ControlOptions, ask, ask_repeatedly, list_ranges, opening, tell_end
from sbp_back.client.fetch import Fetch, FetchDone
from sbp_back.client.gathering import Gathering, LocalStore, place_of
from sbp_back.client.replacing import Substitute, replaced
from sbp_back.client.replica import Channel, LocalChannel, LocalServer, Way
from sbp_back.client.stream_writer import StreamWriter, WriterOptions
from sbp_back.errors import ConnectionLost, ErrorCode, FencedError, SbpError
from sbp_back.transport.carrier import Answer, Carrier
from sbp_back.wire import model as m
from sbp_back.wire.room import Room

__all__ = ["Client", "ClientOptions", "FetchDone", "StreamWriter"]


class ClientOptions(Struct):
    """Times of a client, in seconds. ``fetch_timeout``: what a fetch may take beyond the time it asked to wait for
    data; ``open_timeout``: after which opening a stream is given up. ``poll_seconds``: longest wait for data before the
    client lists the ranges again; ``look_again_seconds``: shortest time between two such listings of one stream.
    """

    control: ControlOptions = field(default_factory=ControlOptions)
    writer: WriterOptions = field(default_factory=WriterOptions)
    fetch_timeout: float = 20.0
    open_timeout: float = 60.0
    poll_seconds: float = 10.0
    look_again_seconds: float = 1.0


class Client:
    """Client of one backend. ``pd`` leads to the placement driver, ``connect`` to a range server that it names. The
    client closes both.

    Errors are ``SbpError`` with the code of the server that refused; ``ConnectionLost`` when it did not answer.
    """

    def __init__(
        self,
        pd: Carrier,
        connect: Callable[[m.RangeServerInfo], Carrier],
        options: ClientOptions | None = None,
        barrier: Barrier | None = None,
    ) -> None:
        self.fetch_kind: type[Fetch] = Fetch
        self._pd = pd
        self._connect = connect
        self.barrier = barrier or Barrier()
        self._options = options if options is not None else ClientOptions()
        self._channels: dict[tuple[int, str], Way] = {}
        self._ranges: dict[int, list[m.RangeInfo]] = {}
        self._listing: dict[int, list[Callable[[SbpError | None], None]]] = {}
        self._looked: dict[int, float] = {}  # when the ranges of a stream were last asked for because nothing came
        self._writers: dict[int, StreamWriter] = {}
        self.local: Callable[[m.RangeServerInfo], LocalServer | None] = _nobody
        """Returns a range server if it is in this process, else None; to be set before anything is written."""
        self.store: LocalStore | None = None
        """The store of that range server, where all ranges are in it."""

    @property
    def pd(self) -> Carrier:
        return self._pd

    # --- streams ----------------------------------------------------------------------------------------------------

    async def create_stream(self, replica: int = 1, ack_count: int = 1, retention_ms: int = 0) -> m.StreamInfo:
        """Create a stream. After ``ConnectionLost`` an empty stream may exist whose id nobody knows."""
        wanted = m.StreamInfo(-1, replica, ack_count, retention_ms, inside=True)
        return _stream(await ask(self._pd, m.CreateStreamRequest(wanted), m.StreamResponse, self._options.control))

    async def describe_stream(self, stream_id: int) -> m.StreamInfo:
        """Return the stream's description. Raises ``SbpError`` 1404 when there is no such stream."""
        request = m.DescribeStreamRequest(stream_id)
        return _stream(await ask_repeatedly(self._pd, request, m.StreamResponse, self._options.control))

    async def list_ranges(self, stream_id: int) -> list[m.RangeInfo]:
        """Ask for the ranges of a stream and return them in order; none for a stream that does not exist."""
        ranges = await list_ranges(self._pd, stream_id, self._options.control)
        self._learn(stream_id, ranges)
        return ranges

    async def delete_stream(self, stream_id: int) -> None:
        """Delete the stream, then its data. Raises ``SbpError`` 1404 when there is no such stream.

        The placement driver later tells the range servers that the client cannot reach.
        """
        ranges = await list_ranges(self._pd, stream_id, self._options.control)
        request = m.DeleteStreamRequest(stream_id)
        await ask_repeatedly(self._pd, request, m.StreamResponse, self._options.control)
        self._ranges.pop(stream_id, None)
        self._looked.pop(stream_id, None)
        writer = self._writers.pop(stream_id, None)
        if writer is not None:
            writer.fail(SbpError(ErrorCode.NOT_FOUND, f"stream {stream_id} was deleted"))
        await self._tell(ranges, request)

    async def trim(self, stream_id: int, min_offset: int) -> int:
        """Give up everything below ``min_offset``; return the stream's start offset, which is at least ``min_offset``
        unless the stream ends before. Never lowers the start. Batches are kept whole.
        """
        before = await list_ranges(self._pd, stream_id, self._options.control)
        request = m.TrimStreamRequest(stream_id, min_offset)
        await ask_repeatedly(self._pd, request, m.StreamResponse, self._options.control)
        ranges = await self.list_ranges(stream_id)
        start = ranges[0].start if ranges else 0
        await self._tell(before, m.TrimStreamRequest(stream_id, start))
        return start

    async def _tell(self, ranges: list[m.RangeInfo], request: m.Request) -> None:
        """Have the servers of ``ranges`` do what the placement driver has decided. Failures are ignored here: the
        placement driver tells a silent server until it has confirmed.
        """
        servers = {(server.server_id, server.advertise_addr): server for known in ranges for server in known.servers}

        async def tell(server: m.RangeServerInfo) -> None:
            await ask(self.channel(server).carrier, request, m.StreamResponse, self._options.control)

        results = await asyncio.gather(*(tell(server) for server in servers.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, SbpError):
                raise result

    # --- writing ----------------------------------------------------------------------------------------------------

    async def open(self, stream_id: int, epoch: int) -> StreamWriter:
        """Return the writer of the stream in ``epoch``; the caller ensures that nobody else uses this epoch.

        Writers of earlier epochs can append no more once this returns, with one exception that loses nothing: an
        earlier writer that never had a range may still create the next one. This writer's first append then fails with
        ``FencedError``, and the stream has to be opened again with a later epoch.

        Raises ``FencedError`` when a later writer was there, ``SbpError`` 1404 for an unknown stream, 1498 for one with
        more than one replica, ``ConnectionLost`` after ``open_timeout``.
        """
        async with opening(stream_id, self._options.open_timeout):
            return await self._open(stream_id, epoch)

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
        """End the stream's last range for good and open no other; return the offset at which the next writer begins.

        Writers of ``epoch`` and earlier ones can append no more once this returns, with the exception that :meth:`open`
        names. Durable, and repeatable. Raises what :meth:`open` raises.
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

    async def _fence(self, stream_id: int, epoch: int) -> list[m.RangeInfo]:
        """Seal the stream's last range, whoever wrote it; return all ranges."""
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
            sealed = m.RangeInfo(stream_id, epoch, last.index, last.start, end, last.servers)
            request = m.SealRangeRequest.decided(sealed)
            try:
                response = await ask_repeatedly(self._pd, request, m.RangeResponse, self._options.control)
            except SbpError as error:
                # Sealed meanwhile, or trimmed away: look again, at what the placement driver holds to be true.
                if error.code not in (ErrorCode.RANGE_ALREADY_SEALED, ErrorCode.RANGE_NOT_FOUND):
                    raise
                continue
            if response.range is not None and response.range.end >= 0:
                tell_end(self.channel(last.servers[0]).carrier, response.range, self._options.control)
                return [*ranges[:-1], response.range]
        raise SbpError(ErrorCode.PRECONDITION_FAILED, f"the ranges of stream {stream_id} keep changing")

    async def _seal_server(self, last: m.RangeInfo, epoch: int) -> int:
        """Seal the range on its server, which then takes no more appends for it; return the end that the server
        reports.
        """
        if not last.servers:
            raise SbpError(ErrorCode.PD_NO_AVAILABLE_RS, f"range {last.index} of {last.stream_id} has no server")
        # Without an end: the server says what is durable there. It creates the range if it never heard of it.
        asked = m.RangeInfo(last.stream_id, epoch, last.index, last.start)
        carrier = self.channel(last.servers[0]).carrier
        request = m.SealRangeRequest(asked, m.SealKind.RANGE_SERVER)
        response = await ask_repeatedly(carrier, request, m.RangeResponse, self._options.control)
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
        """Read whole batches from the one that contains ``offset``, about ``max_bytes`` bytes but at least one batch.

        Only batches below ``limit`` (-1: below what is confirmed) are returned. When there are fewer than ``min_bytes``
        (at least 1) it waits up to ``max_wait_ms`` for more; then the list may be short or empty. ``done`` may be
        called before this returns. Errors: ``Reclaimed`` (1463) below the stream's start, or where its range server has
        given up the data; 1461 beyond its end. With ``room`` a range server of this process reads no more than there is
        room for; waiting for room has no time limit.
        """
        fetch = self.fetch_kind(self, stream_id, offset, max_bytes, done, limit, min_bytes, max_wait_ms)
        fetch.room = room
        fetch.route()

    def locate(self, stream_id: int, offset: int, max_bytes: int, limit: int) -> tuple[int, int, int, int] | None:
        """Return (start, end, bytes of payload, batches) of what :meth:`fetch` would find in the range of ``offset``.

        None where only a range server elsewhere knows, and for batches that this implementation did not write: their
        readers may see other sizes.
        """
        ranges = self.known_ranges(stream_id)
        if self.store is None or not ranges:
            return None
        position = place_of(ranges, offset)
        if position < 0:
            return None
        wanted = ranges[position]
        end = limit if wanted.end < 0 else min(limit, wanted.end)
        return None if offset >= end else self.store.locate(stream_id, wanted.index, offset, end, max_bytes)

    def gathering(self) -> Gathering | None:
        """Return an object that reads for several fetches at once; None where the range server is elsewhere."""
        return None if self.store is None else Gathering(self._ranges, self.store)

    async def fetch_entries(
        self,
        stream_id: int,
        offset: int,
        max_bytes: int,
        *,
        limit: int = -1,
        min_bytes: int = 0,
        max_wait_ms: int = 0,
    ) -> list[m.Entry]:
        """Fetch as :meth:`fetch` does, and return the batches. Raises ``SbpError``."""
        return await awaited(
            lambda settle: self.fetch(
                stream_id, offset, max_bytes, settle, limit=limit, min_bytes=min_bytes, max_wait_ms=max_wait_ms
            )
        )

    async def watch(
        self, stream_id: int, offset: int, *, max_bytes: int = 1024 * 1024, wait_ms: int = 10_000
    ) -> AsyncGenerator[m.Entry, None]:
        """Yield every batch from the one that contains ``offset`` on, as soon as it is durable; never ends by itself.

        ``max_bytes``: of one fetch; ``wait_ms``: how long a fetch waits for data. Raises ``SbpError``: 1404 when there
        is no such stream or it is deleted meanwhile, 1463 when a trim overtook it; ``ConnectionLost`` when a server
        does not answer: the caller may go on from the end of the last batch.
        """
        await self.describe_stream(stream_id)
        while True:
            try:
                entries = await self.fetch_entries(stream_id, offset, max_bytes, min_bytes=1, max_wait_ms=wait_ms)
            except ConnectionLost:
                raise
            except SbpError:
                await self.describe_stream(stream_id)  # a fetch does not report that its stream is gone
                raise
            for entry in entries:
                yield entry
                offset = entry.end_offset
            if not entries:
                await self.describe_stream(stream_id)

    # --- replacing --------------------------------------------------------------------------------------------------

    @property
    def cannot_replace(self) -> str:
        """Return why :meth:`replace` is of no use, in a sentence; empty if it works."""
        return "the range servers are in other processes" if self.store is None else self.store.cannot_replace

    async def replace(self, epoch: int, old: Sequence[m.Entry], new: Sequence[Substitute | m.Entry]) -> None:
        """Have ``new`` take the place of ``old``, fetched entries of one range that follow one another; see
        :meth:`sbp_back.range_server.store.store.Store.replace`. Cancelling the caller does not stop it.

        Raises ``SbpError``: 1498 where that cannot be done, ``NoSpace`` on a full disk.
        """
        if self.store is None or self.cannot_replace:
            raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, self.cannot_replace)
        await replaced(self.store, epoch, old, new)

    def bytes_between(self, stream_id: int, offsets: Sequence[int]) -> list[int] | None:
        """Return the bytes of payload between each of ``offsets``, ascending, and the next one; None where only range
        servers elsewhere know.
        """
        return None if self.store is None else self.store.bytes_between(stream_id, offsets)

    # --- for writers and fetches ------------------------------------------------------------------------------------

    def channel(self, server: m.RangeServerInfo) -> Way:
        """Return the way to a range server. Raises ``ConnectionLost`` when its address is invalid."""
        key = (server.server_id, server.advertise_addr)
        channel = self._channels.get(key)
        if channel is None:
            try:
                carrier = self._connect(server)
            except ValueError as error:
                raise ConnectionLost(f"range server {server.server_id}: {error}") from error
            timeout = self._options.writer.retry.append_timeout
            local, loop = self.local(server), asyncio.get_running_loop()
            if local is not None:
                channel = LocalChannel(local, carrier, loop, timeout, self.barrier)
            else:
                tell = replace(self._options.writer.tell, tells=self.tells)
                channel = Channel(carrier, loop, timeout, self.barrier, tell)
            self._channels[key] = channel
        return channel

    @property
    def tells(self) -> bool:
        """Return whether this client tells range servers what is confirmed."""
        return self._options.writer.tell.tells

    def ranges_changed(self, writer: StreamWriter) -> None:
        if self._writers.get(writer.stream_id) is writer:
            self._ranges[writer.stream_id] = writer.ranges

    def known_ranges(self, stream_id: int) -> list[m.RangeInfo] | None:
        """Return the ranges that this client knows of; None when it has not asked yet."""
        return self._ranges.get(stream_id)

    def refresh(self, stream_id: int, then: Callable[[SbpError | None], None]) -> None:
        """Ask for the ranges anew; concurrent calls for one stream share one request."""
        waiting = self._listing.get(stream_id)
        if waiting is not None:
            waiting.append(then)
            return
        self._listing[stream_id] = [then]

        def answered(answer: Answer) -> None:
            error: SbpError | None = None
            if isinstance(answer, ConnectionLost):
                error = answer
            elif isinstance(answer, m.ListRangeResponse) and answer.status.ok:
                self._learn(stream_id, sorted(answer.ranges, key=lambda known: known.index))
            else:
                error = SbpError(answer.status.code, answer.status.message)
            for waiter in self._listing.pop(stream_id):
                self.barrier.call("listing of ranges", waiter, error)

        self._pd.submit(m.ListRangeRequest(stream_id=stream_id), answered, self._options.control.timeout)

    def look_again(self, stream_id: int) -> None:
        """Ask for the ranges in the background, not too often: a fetch found nothing new at the end of a stream, which
        may go on in another range by now.
        """
        writer = self._writers.get(stream_id)
        if writer is not None and writer.failed is None:
            return  # only range servers elsewhere know
        now = asyncio.get_running_loop().time()
        if now >= self._looked.get(stream_id, 0.0) + self._options.look_again_seconds:
            self._looked[stream_id] = now
            self.refresh(stream_id, lambda _error: None)

    def tell(self, stream_id: int) -> None:
        """Tell the range server what the stream's writer here knows to be confirmed, before a read of the open
        range.
        """
        writer = self._writers.get(stream_id)
        if writer is not None and writer.failed is None:
            writer.tell()

    @property
    def poll_seconds(self) -> float:
        return self._options.poll_seconds

    def _learn(self, stream_id: int, ranges: list[m.RangeInfo]) -> None:
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
        """End all writers without waiting for their batches, and close the ways to all servers."""
        writers, self._writers = list(self._writers.values()), {}
        # Only this client can tell the servers that the last batches are confirmed and may be shown.
        await asyncio.gather(*(channel.tell_confirmed() for channel in self._channels.values()), return_exceptions=True)
        for writer in writers:
            if writer.failed is None:
                writer.fail(ConnectionLost("the client was closed"))
            await writer.close()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.carrier.close()
        await self._pd.close()


def _nobody(server: m.RangeServerInfo) -> LocalServer | None:
    return None


def _stream(response: m.StreamResponse) -> m.StreamInfo:
    if response.stream is None:
        raise SbpError(ErrorCode.DECODE, "the answer names no stream")
    return response.stream
