"""Messages of SBP as plain objects: what the range server, the placement driver and the client exchange.

Every carrier (TCP or in-process) delivers these same objects; only dialect codecs know how they look on the wire.
Field meanings and defaults: docs/protocols/sbp.md, "Tables". Offsets count records; times are in milliseconds
since the Unix epoch unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import ErrorCode
from sbp_back.wire.room import Room

OK: int = int(ErrorCode.OK)

DELETED_DETAIL = b"deleted"
"""``Status.detail`` of a placement driver's 1404 for a stream that existed and was deleted. A 1404 for an unknown
stream has none: a range server may destroy data only with this detail.
"""


class Opcode(IntEnum):
    """Operation codes common to the dialects (docs/protocols/sbp.md, "Dialects")."""

    PING = 0x0001
    GOAWAY = 0x0002
    HEARTBEAT = 0x0003
    ALLOCATE_ID = 0x0004
    APPEND = 0x1001
    FETCH = 0x1002
    LIST_RANGE = 0x2001
    SEAL_RANGE = 0x2002
    SYNC_RANGE = 0x2003
    CREATE_RANGE = 0x2004
    DESCRIBE_RANGE = 0x2005
    CREATE_STREAM = 0x3001
    DELETE_STREAM = 0x3002
    UPDATE_STREAM = 0x3003
    DESCRIBE_STREAM = 0x3004
    TRIM_STREAM = 0x3005
    REPORT_METRICS = 0x4001
    DESCRIBE_PD = 0x4002
    COMMIT_OBJECT = 0x5001
    LIST_RESOURCE = 0x6001
    WATCH_RESOURCE = 0x6002
    ADOPT_SERVER = 0x7001
    """Ours, as the ones below: no other program knows it."""
    SHOW_TICKET = 0x7002


class SealKind(IntEnum):
    """Kind of a seal. ``PLACEMENT_DRIVER``, put to a range server with an end: a decision of the placement driver.
    ``AT_LEAST`` is ours: a range server asks the placement driver to let a range end nowhere below its ``end``, and
    seals nothing.
    """

    UNSPECIFIED = 0
    RANGE_SERVER = 1
    PLACEMENT_DRIVER = 2
    AT_LEAST = 3


class ClientRole(IntEnum):
    UNSPECIFIED = 0
    PD = 1
    RANGE_SERVER = 2
    FRONTEND = 3


class Status(msgspec.Struct):
    code: int = OK
    message: str = ""
    detail: bytes = b""

    @property
    def ok(self) -> bool:
        return self.code == OK


class RangeServerInfo(msgspec.Struct):
    server_id: int = -1
    advertise_addr: str = ""


class PdNode(msgspec.Struct):
    name: str
    advertise_addr: str
    is_leader: bool = False


class StreamInfo(msgspec.Struct):
    """A stream; ``replica``/``ack_count`` are R and A; ``retention_ms`` 0 = keep."""

    stream_id: int = -1
    replica: int = 1
    ack_count: int = 1
    retention_ms: int = 0
    inside: bool = False
    """Whether the node made it from inside the placement driver's process; no part of the message."""


class RangeInfo(msgspec.Struct):
    """One range of a stream: offsets ``[start, end)``; ``end`` is -1 while the range is open."""

    stream_id: int = -1
    epoch: int = -1
    index: int = -1
    start: int = -1
    end: int = -1
    servers: list[RangeServerInfo] = msgspec.field(default_factory=list)
    replica_count: int = -1
    ack_count: int = -1


class Entry(msgspec.Struct, eq=False):
    """One stored batch: SBP's RecordBatchMeta plus an opaque payload (docs/protocols/sbp.md, "Entries").

    ``prefix + payload`` are exactly the bytes of the entry on the wire and on disk: magic 0x22, meta length, meta,
    payload length, payload. ``count`` is the number of records (the wire calls it last_offset_delta). ``flags`` are
    opaque to SBP (the layer above puts the payload's format there). ``crc`` is the CRC-32 of ``prefix + payload``, -1
    until it is computed. ``confirmed``: offset below which the writer knew everything to be durable when it made the
    entry; -1 when the entry does not say.
    """

    stream_id: int
    range_index: int
    flags: int
    base_offset: int
    count: int
    timestamp: int
    payload: Buffer
    prefix: Buffer
    crc: int = -1
    confirmed: int = -1

    @property
    def size(self) -> int:
        """Return the bytes of the entry on the wire."""
        return len(self.prefix) + len(self.payload)

    @property
    def end_offset(self) -> int:
        """Return the offset after the last record."""
        return self.base_offset + self.count

    def __repr__(self) -> str:
        return (
            f"Entry(stream={self.stream_id}, range={self.range_index}, base={self.base_offset}, "
            f"count={self.count}, flags={self.flags:#x}, bytes={self.size})"
        )


# --- requests -------------------------------------------------------------------------------------------------------


class PingRequest(msgspec.Struct):
    header: bytes = b""
    payload: bytes = b""


class GoAway(msgspec.Struct):
    """Notice that the peer closes the connection; not answered. ``maintenance``: because of a shutdown, not of
    idleness.
    """

    maintenance: bool = False


class HeartbeatRequest(msgspec.Struct):
    client_id: str = ""
    role: int = ClientRole.FRONTEND
    range_server: RangeServerInfo | None = None


class AllocateIdRequest(msgspec.Struct):
    timeout_ms: int = 0
    host: str = ""


class AppendRequest(msgspec.Struct):
    """An append. ``confirmed``: for ranges that the sender writes, as (stream, index, offset): it knows all below the
    offset to be durable, beyond what its entries say.
    """

    timeout_ms: int = 0
    entries: list[Entry] = msgspec.field(default_factory=list)
    confirmed: Sequence[tuple[int, int, int]] = ()
    framed: bool = True
    """Whether it comes in a frame, and its entries go out in frames, which bounds their length; no part of the
    message.
    """


class FetchRequest(msgspec.Struct):
    """A fetch. ``limit`` is the exclusive offset up to which may be read, as the reader knows it to be confirmed; -1:
    up to what the range server knows to be confirmed. With ``max_bytes`` 0 only objects are asked for.
    """

    range: RangeInfo
    offset: int
    limit: int = -1
    max_wait_ms: int = 0
    min_bytes: int = -1
    max_bytes: int = -1
    room: Room | None = None
    """Room for the answer, where that is counted; no part of the message."""


class ListRangeRequest(msgspec.Struct):
    timeout_ms: int = 0
    server_id: int = -1
    stream_id: int = -1


class SealRangeRequest(msgspec.Struct):
    range: RangeInfo
    kind: int = SealKind.RANGE_SERVER
    timeout_ms: int = 0

    @classmethod
    def decided(cls, sealed: RangeInfo) -> SealRangeRequest:
        """Make a request that tells the placement driver's decision, or asks for it: the range ends where ``sealed``
        says.
        """
        return cls(sealed, SealKind.PLACEMENT_DRIVER)


class CreateRangeRequest(msgspec.Struct):
    range: RangeInfo
    timeout_ms: int = 0


class CreateStreamRequest(msgspec.Struct):
    stream: StreamInfo
    timeout_ms: int = 0


class DeleteStreamRequest(msgspec.Struct):
    stream_id: int
    timeout_ms: int = 0


class UpdateStreamRequest(msgspec.Struct):
    stream: StreamInfo
    timeout_ms: int = 0


class DescribeStreamRequest(msgspec.Struct):
    stream_id: int
    timeout_ms: int = 0


class TrimStreamRequest(msgspec.Struct):
    """A trim: nothing below ``min_offset`` need be kept. Served by the PD (metadata) and by range servers (data)."""

    stream_id: int
    min_offset: int
    timeout_ms: int = 0


class AdoptServerRequest(msgspec.Struct):
    """An adoption. A range server is asked to take over another one's log of objects, and to serve its ranges. It asks
    the placement driver, as ``by``, to record that the ranges are its own, and where open ones have ended: ``ends`` are
    (stream, range, end). With ``last`` false more of them follow.
    """

    server_id: int
    by: int = -1
    ends: Sequence[tuple[int, int, int]] = ()
    last: bool = True
    timeout_ms: int = 0


class ShowTicketRequest(msgspec.Struct):
    """A ticket that adds to what the sender may do on this connection. Only listeners that demand tickets serve it
    (:mod:`sbp_back.transport.gate`).
    """

    ticket: str
    timeout_ms: int = 0


class ObjectInfo(msgspec.Struct):
    """Entries of one range in an object of their own: offsets ``[start, start + count)``, ``size`` bytes. ``sparse``:
    positions of some of them, as pairs of big-endian u32, offset behind ``start`` and position.
    """

    stream_id: int = -1
    index: int = -1
    epoch: int = -1
    start: int = -1
    count: int = -1
    size: int = -1
    sparse: bytes = b""


class ObjectMetadata(msgspec.Struct):
    """The same for a reader, with the name of the object."""

    key: str
    start: int = -1
    count: int = -1
    size: int = -1
    sparse: bytes = b""


class CommitObjectRequest(msgspec.Struct):
    """A range server's notice to the placement driver that an object counts. It may be repeated."""

    object: ObjectInfo
    timeout_ms: int = 0


class RangeServerMetrics(msgspec.Struct):
    """Metrics that a range server reports to the PD; rates per second, sizes in bytes (spec, REPORT_METRICS)."""

    disk_in_rate: int = 0
    disk_out_rate: int = 0
    disk_free_space: int = 0
    disk_unindexed_data_size: int = 0
    memory_used: int = 0
    uring_task_rate: int = 0
    uring_inflight_task_cnt: int = 0
    uring_pending_task_cnt: int = 0
    uring_task_avg_latency: int = 0
    network_append_rate: int = 0
    network_fetch_rate: int = 0
    network_failed_append_rate: int = 0
    network_failed_fetch_rate: int = 0
    network_append_avg_latency: int = 0
    network_fetch_avg_latency: int = 0
    range_missing_replica_cnt: int = 0
    range_active_cnt: int = 0


class ReportMetricsRequest(msgspec.Struct):
    range_server: RangeServerInfo
    metrics: RangeServerMetrics = msgspec.field(default_factory=RangeServerMetrics)


class DescribePdRequest(msgspec.Struct):
    range_server: RangeServerInfo = msgspec.field(default_factory=RangeServerInfo)
    timeout_ms: int = 0


class DocumentRequest(msgspec.Struct, kw_only=True):
    """Base of the requests that only dialect sbp-v0.1 has, mostly batches."""

    room: Room | None = None
    """Room for the answer, where that is counted; no part of the message."""

    @property
    def working_bytes(self) -> int:
        """Return the memory that serving it takes besides the request and its answer."""
        return 0


Request = (
    PingRequest
    | GoAway
    | HeartbeatRequest
    | AllocateIdRequest
    | AppendRequest
    | FetchRequest
    | ListRangeRequest
    | SealRangeRequest
    | CreateRangeRequest
    | CreateStreamRequest
    | DeleteStreamRequest
    | UpdateStreamRequest
    | DescribeStreamRequest
    | TrimStreamRequest
    | AdoptServerRequest
    | ShowTicketRequest
    | CommitObjectRequest
    | ReportMetricsRequest
    | DescribePdRequest
    | DocumentRequest
)


# --- responses ------------------------------------------------------------------------------------------------------


class SystemErrorResponse(msgspec.Struct):
    """The request as a whole could not be served (flag 0x04)."""

    status: Status

    @classmethod
    def from_code(cls, code: int, message: str) -> SystemErrorResponse:
        return cls(Status(code, message))


class PingResponse(msgspec.Struct):
    header: bytes = b""
    payload: bytes = b""
    status: Status = msgspec.field(default_factory=Status)


class HeartbeatResponse(msgspec.Struct):
    client_id: str = ""
    role: int = ClientRole.FRONTEND
    range_server: RangeServerInfo | None = None
    status: Status = msgspec.field(default_factory=Status)


class AllocateIdResponse(msgspec.Struct):
    status: Status = msgspec.field(default_factory=Status)
    id: int = 0


class AppendResult(msgspec.Struct):
    status: Status
    timestamp_ms: int = 0


class AppendResponse(msgspec.Struct):
    """Answer to APPEND. ``results`` are positional: one for each entry of the request, in its order."""

    status: Status = msgspec.field(default_factory=Status)
    results: list[AppendResult] = msgspec.field(default_factory=list)
    throttle_ms: int = 0


class FetchResponse(msgspec.Struct):
    """Answer to FETCH. ``objects``: if asked for, the objects with the offsets that were asked for; in order, and there
    may be gaps.
    """

    status: Status = msgspec.field(default_factory=Status)
    entries: list[Entry] = msgspec.field(default_factory=list)
    throttle_ms: int = 0
    objects: list[ObjectMetadata] = msgspec.field(default_factory=list)


class ListRangeResponse(msgspec.Struct):
    status: Status = msgspec.field(default_factory=Status)
    ranges: list[RangeInfo] = msgspec.field(default_factory=list)
    throttle_ms: int = 0


class RangeResponse(msgspec.Struct):
    """Answer to SEAL_RANGE and CREATE_RANGE."""

    status: Status = msgspec.field(default_factory=Status)
    range: RangeInfo | None = None
    throttle_ms: int = 0


class StreamResponse(msgspec.Struct):
    """Answer to CREATE/DELETE/UPDATE/DESCRIBE/TRIM_STREAM; ``range`` only for TRIM (the smallest one left)."""

    status: Status = msgspec.field(default_factory=Status)
    stream: StreamInfo | None = None
    range: RangeInfo | None = None
    throttle_ms: int = 0


class ReportMetricsResponse(msgspec.Struct):
    range_server: RangeServerInfo | None = None
    status: Status = msgspec.field(default_factory=Status)


class CommitObjectResponse(msgspec.Struct):
    status: Status = msgspec.field(default_factory=Status)
    throttle_ms: int = 0


class AdoptServerResponse(msgspec.Struct):
    """Answer to ADOPT_SERVER. ``server_id``: the server of the ranges; with an error, the server that has adopted them
    instead, if known.
    """

    status: Status = msgspec.field(default_factory=Status)
    server_id: int = -1


class ShowTicketResponse(msgspec.Struct):
    status: Status = msgspec.field(default_factory=Status)


class DescribePdResponse(msgspec.Struct):
    status: Status = msgspec.field(default_factory=Status)
    nodes: list[PdNode] = msgspec.field(default_factory=list)


class DocumentResponse(msgspec.Struct):
    """Base of the answers of sbp-v0.1. One request may get several; all but the final one have ``last`` False."""

    status: Status = msgspec.field(default_factory=Status)
    throttle_ms: int = 0
    last: bool = True

    @property
    def payload_bytes(self) -> int:
        """Return the bytes behind the header, which are to be checksummed; 0 where there are few."""
        return 0

    @property
    def elements(self) -> int:
        """Return the number of elements that have to be written individually."""
        return 0


Response = (
    SystemErrorResponse
    | PingResponse
    | HeartbeatResponse
    | AllocateIdResponse
    | AppendResponse
    | FetchResponse
    | ListRangeResponse
    | RangeResponse
    | StreamResponse
    | ReportMetricsResponse
    | AdoptServerResponse
    | ShowTicketResponse
    | CommitObjectResponse
    | DescribePdResponse
    | DocumentResponse
)
