"""Messages that only sbp-v0.1 has: the document batches requests that sbp-0.2 sends one by one.

Names of elements follow the document (docs/protocols/sbp.md, "Tables"). Every element of an answer has a status of its
own besides that of the whole frame; codes are those of :mod:`sbp_back.errors`, translated where they meet the wire.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct, field

from anabranch_kit.memory.buffers import Buffer
from sbp_back.wire.model import DocumentRequest, DocumentResponse, RangeServerInfo, Status, StreamInfo

A = TypeVar("A", bound=DocumentResponse)

_DEFAULT_FETCH_BYTES = 1024 * 1024
_MAX_FETCH_BYTES = 8 * 1024 * 1024


def fetch_bytes(asked: int) -> int:
    """Return the most bytes that one fetch of a batch gets, unless its first record batch alone is longer."""
    return min(asked, _MAX_FETCH_BYTES) if asked > 0 else _DEFAULT_FETCH_BYTES


class Replica(Struct):
    """A server that hosts a range."""

    server: RangeServerInfo | None = None
    is_primary: bool = False


class DocumentRange(Struct):
    """A range; ``end`` is -1 while it is open, ``next`` the offset its next record gets."""

    stream_id: int = -1
    index: int = -1
    start: int = 0
    end: int = -1
    next: int = 0
    servers: list[Replica] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.end < 0


class RangeId(Struct):
    stream_id: int = -1
    index: int = -1


class DocumentStream(Struct):
    """A stream. The document has no count of acknowledgements: every replica has to have a record."""

    stream_id: int = -1
    replica_nums: int = 0
    retention_period_ms: int = 0

    @classmethod
    def from_info(cls, info: StreamInfo) -> DocumentStream:
        return cls(info.stream_id, info.replica, info.retention_ms)

    def as_info(self) -> StreamInfo:
        """Return the stream as the rest of the backend has it: all replicas acknowledge (docs/protocols/sbp.md,
        "Placement driver").
        """
        return StreamInfo(self.stream_id, self.replica_nums, self.replica_nums, self.retention_period_ms)


class AppendItem(Struct):
    """One record batch for one stream; see :mod:`sbp_document.wire.record_batch`."""

    stream_id: int = -1
    request_index: int = 0
    batch: Buffer = b""


class AppendItemResult(Struct):
    stream_id: int = -1
    request_index: int = 0
    base_offset: int = 0
    append_time_ms: int = 0
    status: Status = field(default_factory=Status)


class FetchItem(Struct):
    stream_id: int = -1
    request_index: int = 0
    offset: int = 0
    max_bytes: int = 0


class FetchItemResult(Struct):
    """Result of one fetch. ``parts`` are the bytes of ``batch_count`` whole record batches, the first of which contains
    the requested offset. A decoded result of the document's own shape has no count (0): the bytes have to be parsed.
    """

    stream_id: int = -1
    request_index: int = 0
    status: Status = field(default_factory=Status)
    parts: list[Buffer] = field(default_factory=list)
    batch_count: int = 0

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.parts)


class RangeOwner(Struct):
    """Owner of the ranges to be listed: a range server, or a stream."""

    range_server: RangeServerInfo | None = None
    stream_id: int = -1


class ListItemResult(Struct):
    owner: RangeOwner | None = None
    ranges: list[DocumentRange] = field(default_factory=list)
    status: Status = field(default_factory=Status)


class RangeItemResult(Struct):
    """Element of an answer to SEAL_RANGES and DESCRIBE_RANGES."""

    stream_id: int = -1
    range: DocumentRange | None = None
    status: Status = field(default_factory=Status)


class StreamRanges(Struct):
    stream_id: int = -1
    ranges: list[DocumentRange] = field(default_factory=list)


class SyncItemResult(Struct):
    stream_id: int = -1
    ranges: list[DocumentRange] = field(default_factory=list)
    status: Status = field(default_factory=Status)


class StreamItemResult(Struct):
    """Element of an answer to CREATE, DELETE, UPDATE, DESCRIBE and TRIM_STREAMS. ``range``: the first range of a stream
    that was created, the smallest one that is left of a trimmed one.
    """

    stream: DocumentStream | None = None
    status: Status = field(default_factory=Status)
    range: DocumentRange | None = None


class TrimItem(Struct):
    stream_id: int = -1
    offset: int = 0


# --- responses ------------------------------------------------------------------------------------------------------


class AppendBatchResponse(DocumentResponse):
    results: list[AppendItemResult] = field(default_factory=list)


class FetchBatchResponse(DocumentResponse):
    results: list[FetchItemResult] = field(default_factory=list)

    @property
    def payload_bytes(self) -> int:
        return sum(result.size for result in self.results)


class ControlResponse(DocumentResponse):
    """Base of the answers to requests about streams and ranges."""

    @property
    def elements(self) -> int:
        return sum(1 + len(getattr(result, "ranges", ())) for result in getattr(self, "results", ()))


class ListRangesResponse(ControlResponse):
    results: list[ListItemResult] = field(default_factory=list)


class SealRangesResponse(ControlResponse):
    results: list[RangeItemResult] = field(default_factory=list)


class SyncRangesResponse(ControlResponse):
    results: list[SyncItemResult] = field(default_factory=list)


class DescribeRangesResponse(ControlResponse):
    results: list[RangeItemResult] = field(default_factory=list)


class NextRangeResponse(ControlResponse):
    range: DocumentRange | None = None


class CreateStreamsResponse(ControlResponse):
    results: list[StreamItemResult] = field(default_factory=list)


class DeleteStreamsResponse(ControlResponse):
    results: list[StreamItemResult] = field(default_factory=list)


class UpdateStreamsResponse(ControlResponse):
    results: list[StreamItemResult] = field(default_factory=list)


class DescribeStreamsResponse(ControlResponse):
    results: list[StreamItemResult] = field(default_factory=list)


class TrimStreamsResponse(ControlResponse):
    results: list[StreamItemResult] = field(default_factory=list)


# --- requests -------------------------------------------------------------------------------------------------------


class AppendBatchRequest(DocumentRequest):
    timeout_ms: int = 0
    items: list[AppendItem] = field(default_factory=list)

    @property
    def working_bytes(self) -> int:
        # The server copies each batch to write its offset into it.
        return sum(len(item.batch) for item in self.items)


class FetchBatchRequest(DocumentRequest):
    """FETCH of many streams. ``min_bytes`` holds for each item by itself: its answer waits until there are so many, or
    the time is up.
    """

    max_wait_ms: int = 0
    min_bytes: int = 0
    items: list[FetchItem] = field(default_factory=list)


class ControlRequest(DocumentRequest, Generic[A]):
    """Base of the requests about streams and ranges; ``answer`` is the class of its answer."""

    answer: ClassVar[type[DocumentResponse]]
    timeout_ms: int = 0


class ListRangesRequest(ControlRequest[ListRangesResponse]):
    answer = ListRangesResponse
    owners: list[RangeOwner] = field(default_factory=list)


class SealRangesRequest(ControlRequest[SealRangesResponse]):
    answer = SealRangesResponse
    ranges: list[RangeId] = field(default_factory=list)


class SyncRangesRequest(ControlRequest[SyncRangesResponse]):
    answer = SyncRangesResponse
    items: list[StreamRanges] = field(default_factory=list)


class DescribeRangesRequest(ControlRequest[DescribeRangesResponse]):
    answer = DescribeRangesResponse
    ranges: list[RangeId] = field(default_factory=list)


class NextRangeRequest(ControlRequest[NextRangeResponse], kw_only=True):
    """CREATE_RANGE; ``range`` must name the stream, and any other field must fit the new range."""

    answer = NextRangeResponse
    range: DocumentRange


class CreateStreamsRequest(ControlRequest[CreateStreamsResponse]):
    answer = CreateStreamsResponse
    streams: list[DocumentStream] = field(default_factory=list)


class DeleteStreamsRequest(ControlRequest[DeleteStreamsResponse]):
    """DELETE_STREAMS; only the ids of the streams are used."""

    answer = DeleteStreamsResponse
    streams: list[DocumentStream] = field(default_factory=list)


class UpdateStreamsRequest(ControlRequest[UpdateStreamsResponse]):
    answer = UpdateStreamsResponse
    streams: list[DocumentStream] = field(default_factory=list)


class DescribeStreamsRequest(ControlRequest[DescribeStreamsResponse]):
    answer = DescribeStreamsResponse
    stream_ids: list[int] = field(default_factory=list)


class TrimStreamsRequest(ControlRequest[TrimStreamsResponse]):
    answer = TrimStreamsResponse
    items: list[TrimItem] = field(default_factory=list)


def refusal(request: ControlRequest[Any], status: Status) -> DocumentResponse:
    """Return the answer that refuses ``request`` as a whole: only a status."""
    return request.answer(status)
