"""Client of the document's dialect, sbp-v0.1: batches of requests out, answers as they come in.

Unlike :class:`sbp_back.client.client.Client` it keeps no state of streams: the server assigns offsets and finds ranges,
and any number of clients may append to one stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.run.clock import now_ms
from sbp_back.errors import ConnectionLost, DecodeError, ErrorCode
from sbp_back.transport.carrier import Answer, Carrier
from sbp_back.transport.tcp_carrier import TcpCarrier, TcpOptions
from sbp_back.wire import model as w
from sbp_document.errors import DocumentError
from sbp_document.timeouts import milliseconds
from sbp_document.wire import messages as m
from sbp_document.wire.record_batch import DocumentRecord, RecordBatch, encode_batch, parse_batches
from sbp_document.wire.v01 import DIALECTS

# Time for the answer's way, beyond the time that the server is given: a part of that time, seconds, seconds.
_GRACE = 0.1
_LEAST_GRACE = 0.1
_MOST_GRACE = 1.0

T = TypeVar("T", bound=w.Response)
D = TypeVar("D", bound=w.DocumentResponse)


class _Result(Protocol):
    status: w.Status


R = TypeVar("R", bound=_Result)


class _Results(Protocol[R]):
    results: list[R]


class Created(Struct):
    """A new stream and the range that takes its first record."""

    stream: m.DocumentStream
    range: m.DocumentRange


class Appended(Struct):
    """Result of an append: offset of the batch's first record; ``append_time_ms``: when the server stored it, ms since
    the epoch.
    """

    stream_id: int
    base_offset: int
    append_time_ms: int


class Wanted(Struct):
    """A fetch of one stream: records of ``stream_id`` from ``offset`` on, about ``max_bytes`` bytes; 0 leaves that to
    the server.
    """

    stream_id: int
    offset: int
    max_bytes: int = 0


class Fetched(Struct):
    """Whole batches, the first of which contains the requested offset; none when nothing new came in time."""

    wanted: Wanted
    batches: list[RecordBatch]

    @property
    def records(self) -> list[DocumentRecord]:
        """Return the records from the requested offset on."""
        return [one for batch in self.batches for one in batch.records if one.offset >= self.wanted.offset]

    @property
    def next_offset(self) -> int:
        """Return the offset from which the next fetch goes on."""
        return self.batches[-1].end_offset if self.batches else self.wanted.offset


class Trimmed(Struct):
    """Result of a trim. ``first``: the smallest range that is left, starting where the stream now starts."""

    stream: m.DocumentStream
    first: m.DocumentRange | None


class DocumentClient:
    """Client that speaks through ``carrier``, which it closes. Requests may overlap; ``timeout`` is in seconds, for
    each.

    Errors: :class:`~sbp_document.errors.DocumentError` for a request that the server refused or, with
    ``outcome_unknown``, did not finish; ``ConnectionLost`` when it did not answer and the outcome is unknown. Nothing
    is repeated: the document has no way to recognise a repetition.

    The server learns ``timeout``, and gets a moment more to answer that the time is up: for a request with many
    elements the answer then says which were done.
    """

    def __init__(self, carrier: Carrier, timeout: float = 30.0) -> None:
        self._carrier = carrier
        self._timeout_ms = milliseconds(timeout)
        self._timeout = timeout + max(_LEAST_GRACE, min(timeout * _GRACE, _MOST_GRACE))

    @classmethod
    def connect(
        cls, host: str, port: int, options: TcpOptions | None = None, *, dialect: str = "sbp-v0.1"
    ) -> DocumentClient:
        """Return a client of the server at ``host``:``port``; the first request makes the connection."""
        return cls(TcpCarrier(host, port, DIALECTS[dialect], options))

    async def close(self) -> None:
        await self._carrier.close()

    # --- streams ----------------------------------------------------------------------------------------------------

    async def create_stream(self, replica_nums: int = 1, retention_period_ms: int = 0) -> Created:
        """Create a stream. After ``ConnectionLost`` a stream may exist whose id nobody knows."""
        wanted = m.DocumentStream(-1, replica_nums, retention_period_ms)
        result = _only(await self._batch(m.CreateStreamsRequest(streams=[wanted])))
        if result.stream is None or result.range is None:
            raise _nonsense("the answer names no stream with a range")
        return Created(result.stream, result.range)

    async def create_streams(self, streams: Sequence[m.DocumentStream]) -> list[m.StreamItemResult]:
        """Create many streams at once; each result has a status of its own."""
        return (await self._batch(m.CreateStreamsRequest(streams=list(streams)))).results

    async def describe_stream(self, stream_id: int) -> m.DocumentStream:
        answer = await self._batch(m.DescribeStreamsRequest(stream_ids=[stream_id]))
        return _stream(_only(answer))

    async def describe_streams(self, stream_ids: Sequence[int]) -> list[m.StreamItemResult]:
        request = m.DescribeStreamsRequest(stream_ids=list(stream_ids))
        return (await self._batch(request)).results

    async def update_stream(self, stream: m.DocumentStream) -> m.DocumentStream:
        """Change the properties of a stream; return them as they are now."""
        return _stream(_only(await self._batch(m.UpdateStreamsRequest(streams=[stream]))))

    async def delete_stream(self, stream_id: int) -> m.DocumentStream:
        """Delete a stream and its records; return its last description."""
        request = m.DeleteStreamsRequest(streams=[m.DocumentStream(stream_id)])
        return _stream(_only(await self._batch(request)))

    async def trim_stream(self, stream_id: int, offset: int) -> Trimmed:
        """Give up everything below ``offset``."""
        request = m.TrimStreamsRequest(items=[m.TrimItem(stream_id, offset)])
        result = _only(await self._batch(request))
        return Trimmed(_stream(result), result.range)

    # --- ranges -----------------------------------------------------------------------------------------------------

    async def list_ranges(self, stream_id: int) -> list[m.DocumentRange]:
        """Return the ranges of a stream, in order."""
        return await self._list(m.RangeOwner(None, stream_id))

    async def list_server_ranges(self, server_id: int) -> list[m.DocumentRange]:
        """Return the ranges of all streams on a range server."""
        return await self._list(m.RangeOwner(w.RangeServerInfo(server_id), -1))

    async def _list(self, owner: m.RangeOwner) -> list[m.DocumentRange]:
        return _only(await self._batch(m.ListRangesRequest(owners=[owner]))).ranges

    async def describe_range(self, stream_id: int, index: int) -> m.DocumentRange:
        """Return a range; ``next`` is the offset at which its confirmed records end."""
        request = m.DescribeRangesRequest(ranges=[m.RangeId(stream_id, index)])
        return _range(_only(await self._batch(request)))

    async def seal_range(self, stream_id: int, index: int) -> m.DocumentRange:
        """End a range, take it from its writer, and return the range that is open instead. Repeatable. (A range server
        of its own returns the sealed range.)
        """
        request = m.SealRangesRequest(ranges=[m.RangeId(stream_id, index)])
        return _range(_only(await self._batch(request)))

    async def create_range(self, stream_id: int) -> m.DocumentRange:
        """Open the next range of a stream whose last one is sealed."""
        answer = await self._batch(m.NextRangeRequest(range=m.DocumentRange(stream_id)))
        if answer.range is None:
            raise _nonsense("the answer names no range")
        return answer.range

    async def sync_ranges(self, stream_id: int, ranges: Sequence[m.DocumentRange]) -> list[m.DocumentRange]:
        """Make ranges known to the range server early; return them as they are."""
        request = m.SyncRangesRequest(items=[m.StreamRanges(stream_id, list(ranges))])
        return _only(await self._batch(request)).ranges

    # --- records ----------------------------------------------------------------------------------------------------

    async def append(self, stream_id: int, records: Sequence[DocumentRecord | bytes] | Buffer) -> Appended:
        """Append records, or the bytes of a record batch, and return once they are durable. Records without a time get
        the current one. Raises ``ValueError`` for records that make no batch: none, or more than 24 days apart.
        """
        (outcome,) = await self.append_many([(stream_id, records)])
        if isinstance(outcome, DocumentError):
            raise outcome
        return outcome

    async def append_many(
        self, batches: Sequence[tuple[int, Sequence[DocumentRecord | bytes] | Buffer]]
    ) -> list[Appended | DocumentError]:
        """Append to any number of streams in one frame; return the outcomes in the order of ``batches``."""
        items = [
            m.AppendItem(stream_id, index, _batch_of(stream_id, records))
            for index, (stream_id, records) in enumerate(batches)
        ]
        outcomes: dict[int, Appended | DocumentError] = {}
        async for part in self._parts(m.AppendBatchRequest(self._timeout_ms, items), self._timeout):
            if not isinstance(part, m.AppendBatchResponse):
                raise _nonsense(f"{type(part).__name__} is no answer to an append")
            _check(part.status)
            for result in part.results:
                outcomes[result.request_index] = (
                    Appended(result.stream_id, result.base_offset, result.append_time_ms)
                    if result.status.ok
                    else DocumentError(result.status)
                )
        missing = _nonsense("the answer says nothing of this batch")
        return [outcomes.get(index, missing) for index in range(len(items))]

    async def fetch(
        self, stream_id: int, offset: int, max_bytes: int = 0, *, max_wait_ms: int = 0, min_bytes: int = 0
    ) -> Fetched:
        """Fetch records from ``offset`` on; wait up to ``max_wait_ms`` for ``min_bytes`` bytes (at least one) of
        them.
        """
        wanted = Wanted(stream_id, offset, max_bytes)
        found: Fetched | None = None
        async for _, outcome in self.fetch_many([wanted], max_wait_ms=max_wait_ms, min_bytes=min_bytes):
            if isinstance(outcome, DocumentError):
                raise outcome
            found = outcome
        if found is None:
            raise _nonsense("the answer says nothing of the fetch")
        return found

    async def fetch_many(
        self, wanted: Sequence[Wanted], *, max_wait_ms: int = 0, min_bytes: int = 0
    ) -> AsyncIterator[tuple[Wanted, Fetched | DocumentError]]:
        """Fetch several streams in one frame; yield each outcome as it arrives, those with data first."""
        items = [m.FetchItem(one.stream_id, index, one.offset, one.max_bytes) for index, one in enumerate(wanted)]
        request = m.FetchBatchRequest(max_wait_ms, min_bytes, items)
        async for part in self._parts(request, self._timeout + max_wait_ms / 1000):
            if not isinstance(part, m.FetchBatchResponse):
                raise _nonsense(f"{type(part).__name__} is no answer to a fetch")
            _check(part.status)
            for result in part.results:
                if not 0 <= result.request_index < len(wanted):
                    raise _nonsense(f"nobody asked with request index {result.request_index}")
                one = wanted[result.request_index]
                yield one, _fetched(one, result)

    async def watch(
        self, stream_id: int, offset: int, *, max_bytes: int = 0, max_wait_ms: int = 10_000
    ) -> AsyncGenerator[RecordBatch, None]:
        """Yield every batch from the one that contains ``offset`` on, as soon as it is durable; never ends by itself.

        ``max_bytes``: of one fetch (0 leaves that to the server); ``max_wait_ms``: how long a fetch waits for data.
        Raises ``DocumentError``: 1404 when there is no such stream or it is deleted meanwhile (after ``max_wait_ms`` at
        the latest), 1463 when a trim overtook it; ``ConnectionLost`` when the server does not answer: the caller may go
        on from the end of the last batch.
        """
        await self.describe_stream(stream_id)
        while True:
            try:
                found = await self.fetch(stream_id, offset, max_bytes, max_wait_ms=max_wait_ms)
            except DocumentError:
                await self.describe_stream(stream_id)  # a fetch does not always report that its stream is gone
                raise
            if not found.batches:
                await self.describe_stream(stream_id)
            elif found.next_offset <= offset:
                raise _nonsense(f"what was sent from offset {offset} on ends at {found.next_offset}")
            for batch in found.batches:
                yield batch
                offset = batch.end_offset

    # --- the server itself ------------------------------------------------------------------------------------------

    async def ping(self, payload: bytes = b"") -> None:
        """Return when the server has sent the same bytes back."""
        answer = await self._ask(w.PingRequest(b"", payload), w.PingResponse)
        if bytes(answer.payload) != payload:
            raise _nonsense("another payload came back")

    async def heartbeat(self, client_id: str) -> None:
        await self._ask(w.HeartbeatRequest(client_id, w.ClientRole.FRONTEND), w.HeartbeatResponse)

    async def allocate_id(self, host: str) -> int:
        """Return a number that the placement driver gives to nobody else."""
        return (await self._ask(w.AllocateIdRequest(self._timeout_ms, host), w.AllocateIdResponse)).id

    async def describe_cluster(self) -> list[w.PdNode]:
        """Return the placement driver's nodes."""
        return (await self._ask(w.DescribePdRequest(), w.DescribePdResponse)).nodes

    # --- exchange ---------------------------------------------------------------------------------------------------

    async def _ask(self, request: w.Request, kind: type[T]) -> T:
        answer = await self._carrier.call(request, self._timeout)
        _check(answer.status)
        if not isinstance(answer, kind):
            raise _nonsense(f"{type(answer).__name__} is no answer to {type(request).__name__}")
        return answer

    async def _batch(self, request: m.ControlRequest[D]) -> D:
        """Return one answer, joined from its parts."""
        whole: D | None = None
        request.timeout_ms = self._timeout_ms
        async for part in self._parts(request, self._timeout):
            _check(part.status)
            if not isinstance(part, request.answer):
                raise _nonsense(f"{type(part).__name__} is no answer to {type(request).__name__}")
            if whole is None:
                whole = cast("D", part)
            elif hasattr(whole, "results"):
                whole.results.extend(part.results)  # type: ignore[attr-defined]
        if whole is None:
            raise _nonsense("an answer without parts")
        return whole

    async def _parts(self, request: w.DocumentRequest, timeout: float) -> AsyncIterator[w.Response]:
        parts: asyncio.Queue[Answer] = asyncio.Queue()
        self._carrier.submit(request, parts.put_nowait, timeout)
        while True:
            part = await parts.get()
            if isinstance(part, ConnectionLost):
                raise part
            yield part
            if not isinstance(part, w.DocumentResponse) or part.last:
                return


def _batch_of(stream_id: int, records: Sequence[DocumentRecord | bytes] | Buffer) -> Buffer:
    if isinstance(records, bytes | bytearray | memoryview):
        return records
    now = now_ms()
    named = [DocumentRecord(one, timestamp=now) if isinstance(one, bytes) else one for one in records]
    named = [one if one.timestamp else replace(one, timestamp=now) for one in named]
    return encode_batch(named, stream_id=stream_id)


def _fetched(wanted: Wanted, result: m.FetchItemResult) -> Fetched | DocumentError:
    if not result.status.ok and result.status.code != ErrorCode.NO_NEW_RECORD:
        return DocumentError(result.status)
    data = result.parts[0] if len(result.parts) == 1 else b"".join(result.parts)
    with suppress(DecodeError):
        return Fetched(wanted, parse_batches(data))
    return DocumentError(w.Status(ErrorCode.RS_DATA_CORRUPTED, f"stream {wanted.stream_id} holds malformed batches"))


def _check(status: w.Status) -> None:
    if not status.ok:
        raise DocumentError(status)


def _nonsense(message: str) -> DocumentError:
    return DocumentError(w.Status(ErrorCode.DECODE, message))


def _only(answer: _Results[R]) -> R:
    if len(answer.results) != 1:
        raise _nonsense(f"{len(answer.results)} results for one request")
    (result,) = answer.results
    _check(result.status)
    return result


def _stream(result: m.StreamItemResult) -> m.DocumentStream:
    if result.stream is None:
        raise _nonsense("the answer names no stream")
    return result.stream


def _range(result: m.RangeItemResult) -> m.DocumentRange:
    if result.range is None:
        raise _nonsense("the answer names no range")
    return result.range
