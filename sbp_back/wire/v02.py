"""Dialect sbp-0.2: spoken by elastic-stream v0.2.2 to HEAD and by our own client (docs/protocols/sbp.md, "Tables").

The tables are declared below. The messages of the append and fetch paths have, besides their declaration, a fixed
layout of their own that one ``struct`` call packs, and that is recognised by its constant bytes; any other layout goes
through the declared table.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError, ErrorCode, SbpError
from sbp_back.wire import model as m
from sbp_back.wire.base import Manners
from sbp_back.wire.entry import entry_crc, parse_entries
from sbp_back.wire.flat import Blob, Inner, Places, Sub, Table, Tables, Text, Unused, flag, i8, i16, i32, i64
from sbp_back.wire.frame import FLAG_SYSTEM_ERROR, RESPONSE_FLAGS, SYSTEM_ERROR_FLAGS

MAX_REQUEST_HEADER = 64 * 1024
"""Longest request header that is decoded, in bytes. Headers of this dialect have at most one range, except an APPEND
with confirmed offsets of many ranges (``replica.py`` keeps it shorter), and an ADOPT_SERVER with their ends
(``adoption.py`` does).
"""

MAX_APPEND_ENTRIES = 4096
"""Entries an APPEND may carry. A frame has room for two hundred thousand empty ones, and the work is one for each."""

# --- tables ---------------------------------------------------------------------------------------------------------

STATUS = Table(m.Status, i16("code"), Text("message"), Blob("detail"))
RANGE_SERVER = Table(m.RangeServerInfo, i32("server_id", -1), Text("advertise_addr", required=True))
STREAM = Table(m.StreamInfo, i64("stream_id", -1), i8("replica"), i8("ack_count"), i64("retention_ms"))
RANGE = Table(
    m.RangeInfo,
    i64("stream_id", -1),
    i64("epoch", -1),
    i32("index", -1),
    i64("start", -1),
    i64("end", -1),
    Tables("servers", RANGE_SERVER),
    i8("replica_count", -1),
    i8("ack_count", -1),
    Unused("offload_owner"),
)
PD_NODE = Table(m.PdNode, Text("name", required=True), Text("advertise_addr", required=True), flag("is_leader"))
FIGURES = [
    (i32 if name == "uring_pending_task_cnt" else i64 if position < 5 else i16)(name)
    for position, name in enumerate(m.RangeServerMetrics.__struct_fields__)
]
"""Figures of a range server's load; the same in all dialects."""
METRICS = Table(m.RangeServerMetrics, *FIGURES)
OBJECT = Table(
    m.ObjectInfo,
    i64("stream_id", -1),
    i32("index", -1),
    i64("epoch", -1),
    i64("start", -1),
    i32("count", -1),
    i32("size", -1),
    Blob("sparse"),
)
OBJECT_METADATA = Table(
    m.ObjectMetadata, Text("key", required=True), i64("start", -1), i32("count", -1), i32("size", -1), Blob("sparse")
)
APPEND_RESULT = Table(m.AppendResult, Sub("status", STATUS, required=True), i64("timestamp_ms"))

_TIMEOUT = i32("timeout_ms")
_THROTTLE = i32("throttle_ms")
_STATUS = Sub("status", STATUS, required=True)

REQUESTS: dict[int, Table] = {
    m.Opcode.HEARTBEAT: Table(m.HeartbeatRequest, Text("client_id"), i8("role"), Sub("range_server", RANGE_SERVER)),
    m.Opcode.ALLOCATE_ID: Table(m.AllocateIdRequest, _TIMEOUT, Text("host", required=True)),
    m.Opcode.APPEND: Table(m.AppendRequest, _TIMEOUT, Places("confirmed")),
    m.Opcode.FETCH: Table(
        m.FetchRequest,
        i32("max_wait_ms"),
        Sub("range", RANGE, required=True),
        i64("offset"),
        i64("limit"),
        i32("min_bytes", -1),
        i32("max_bytes", -1),
    ),
    m.Opcode.LIST_RANGE: Table(
        m.ListRangeRequest, _TIMEOUT, Inner("criteria", i32("server_id", -1), i64("stream_id", -1), required=True)
    ),
    m.Opcode.SEAL_RANGE: Table(m.SealRangeRequest, _TIMEOUT, i8("kind"), Sub("range", RANGE, required=True)),
    m.Opcode.CREATE_RANGE: Table(m.CreateRangeRequest, _TIMEOUT, Sub("range", RANGE, required=True)),
    m.Opcode.CREATE_STREAM: Table(m.CreateStreamRequest, _TIMEOUT, Sub("stream", STREAM, required=True)),
    m.Opcode.DELETE_STREAM: Table(m.DeleteStreamRequest, _TIMEOUT, i64("stream_id", -1)),
    # The schema does not require the stream of an update, but an update without one asks for nothing.
    m.Opcode.UPDATE_STREAM: Table(m.UpdateStreamRequest, _TIMEOUT, Sub("stream", STREAM, required=True)),
    m.Opcode.DESCRIBE_STREAM: Table(m.DescribeStreamRequest, _TIMEOUT, i64("stream_id")),
    m.Opcode.TRIM_STREAM: Table(m.TrimStreamRequest, _TIMEOUT, i64("stream_id", -1), i64("min_offset")),
    m.Opcode.ADOPT_SERVER: Table(
        m.AdoptServerRequest, _TIMEOUT, i32("server_id", -1), i32("by", -1), Places("ends"), flag("last")
    ),
    m.Opcode.SHOW_TICKET: Table(m.ShowTicketRequest, _TIMEOUT, Text("ticket", required=True)),
    # The schema does not require the object, but without one nothing is committed.
    m.Opcode.COMMIT_OBJECT: Table(m.CommitObjectRequest, _TIMEOUT, Sub("object", OBJECT, required=True)),
    m.Opcode.REPORT_METRICS: Table(
        m.ReportMetricsRequest,
        Sub("range_server", RANGE_SERVER, always=True, default=m.RangeServerInfo),
        Sub("metrics", METRICS, always=True, default=m.RangeServerMetrics),
        closed=True,  # in sbp-v0.1 the figures are slots of this table itself
    ),
    m.Opcode.DESCRIBE_PD: Table(m.DescribePdRequest, Sub("range_server", RANGE_SERVER, required=True), _TIMEOUT),
}

_STREAM_THEN_THROTTLE = Table(m.StreamResponse, _STATUS, Sub("stream", STREAM), _THROTTLE)
_THROTTLE_THEN_STREAM = Table(m.StreamResponse, _STATUS, _THROTTLE, Sub("stream", STREAM))
_RANGE_RESPONSE = Table(m.RangeResponse, _STATUS, Sub("range", RANGE), _THROTTLE)

RESPONSES: dict[int, Table] = {
    # A placement driver that is not the leader answers a heartbeat without the required status (docs/protocols/sbp.md,
    # "Faults of elastic-stream", 10).
    m.Opcode.HEARTBEAT: Table(
        m.HeartbeatResponse,
        Text("client_id"),
        i8("role"),
        Sub("range_server", RANGE_SERVER),
        Sub("status", STATUS, always=True, default=m.Status),
    ),
    m.Opcode.ALLOCATE_ID: Table(m.AllocateIdResponse, _STATUS, i32("id")),
    m.Opcode.APPEND: Table(m.AppendResponse, _STATUS, Tables("results", APPEND_RESULT, always=True), _THROTTLE),
    m.Opcode.FETCH: Table(m.FetchResponse, _STATUS, _THROTTLE, Tables("objects", OBJECT_METADATA, always=True)),
    # Required by the schema, but an error answer of a Go server has neither ranges nor cluster: absent means empty.
    m.Opcode.LIST_RANGE: Table(m.ListRangeResponse, _STATUS, _THROTTLE, Tables("ranges", RANGE, always=True)),
    m.Opcode.SEAL_RANGE: _RANGE_RESPONSE,
    m.Opcode.CREATE_RANGE: _RANGE_RESPONSE,
    m.Opcode.CREATE_STREAM: _STREAM_THEN_THROTTLE,
    m.Opcode.DELETE_STREAM: _STREAM_THEN_THROTTLE,
    m.Opcode.UPDATE_STREAM: _THROTTLE_THEN_STREAM,
    m.Opcode.DESCRIBE_STREAM: _THROTTLE_THEN_STREAM,
    m.Opcode.TRIM_STREAM: Table(m.StreamResponse, _STATUS, _THROTTLE, Sub("stream", STREAM), Sub("range", RANGE)),
    m.Opcode.REPORT_METRICS: Table(m.ReportMetricsResponse, Sub("range_server", RANGE_SERVER), _STATUS),
    m.Opcode.COMMIT_OBJECT: Table(m.CommitObjectResponse, _STATUS, _THROTTLE),
    m.Opcode.ADOPT_SERVER: Table(m.AdoptServerResponse, _STATUS, i32("server_id", -1)),
    m.Opcode.SHOW_TICKET: Table(m.ShowTicketResponse, _STATUS),
    m.Opcode.DESCRIBE_PD: Table(
        m.DescribePdResponse, _STATUS, Inner("cluster", Tables("nodes", PD_NODE, required=True), always=True)
    ),
}

SYSTEM_ERROR = Table(m.SystemErrorResponse, _STATUS)

UNSERVED = frozenset({m.Opcode.SYNC_RANGE, m.Opcode.LIST_RESOURCE, m.Opcode.WATCH_RESOURCE})
"""Opcodes of the dialect that are always answered with 1498."""

OPCODES: dict[Any, int] = {m.PingRequest: m.Opcode.PING, m.GoAway: m.Opcode.GOAWAY}
OPCODES.update((table.make, opcode) for opcode, table in REQUESTS.items())


class DialectV02:
    """The codec; satisfies :class:`sbp_back.wire.base.Dialect`, which documents the functions."""

    name = "sbp-0.2"
    manners = Manners()

    def encode_request(self, request: m.Request) -> tuple[int, bytes, Sequence[Buffer]]:
        if type(request) is m.AppendRequest:
            return m.Opcode.APPEND, pack_append_request(request), _entry_parts(request.entries)
        if type(request) is m.FetchRequest:
            return m.Opcode.FETCH, pack_fetch_request(request), ()
        opcode = OPCODES.get(type(request))
        if opcode is None:
            raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, f"{type(request).__name__} is unknown to {self.name}")
        if isinstance(request, m.PingRequest):
            return opcode, request.header, (request.payload,) if request.payload else ()
        if opcode == m.Opcode.GOAWAY:
            return opcode, b"", ()
        return opcode, REQUESTS[opcode].write(request), ()

    def decode_request(self, opcode: int, header: Buffer, payload: Buffer, crc: int = -1) -> m.Request:
        if opcode == m.Opcode.APPEND:
            entries = _entries(payload, crc, MAX_APPEND_ENTRIES)
            append = unpack_append_request(header)
            append.entries = entries
            return append
        if opcode == m.Opcode.FETCH:
            return unpack_fetch_request(header)
        if opcode == m.Opcode.PING:
            return m.PingRequest(bytes(header), bytes(payload))
        if opcode == m.Opcode.GOAWAY:
            return m.GoAway()
        table = REQUESTS.get(opcode)
        if table is None:
            if opcode in UNSERVED:
                raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, f"{m.Opcode(opcode).name} is not served")
            raise SbpError(ErrorCode.UNKNOWN_OPERATION, f"opcode {opcode:#06x} is unknown to {self.name}")
        request: m.Request = table.read(_request_header(header))
        return request

    def encode_response(self, opcode: int, response: m.Response) -> tuple[int, bytes, Sequence[Buffer]]:
        if isinstance(response, m.AppendResponse):
            return RESPONSE_FLAGS, pack_append_response(response), ()
        if isinstance(response, m.FetchResponse):
            return RESPONSE_FLAGS, pack_fetch_response(response), _entry_parts(response.entries)
        if isinstance(response, m.SystemErrorResponse):
            return SYSTEM_ERROR_FLAGS, SYSTEM_ERROR.write(response), ()
        if isinstance(response, m.PingResponse):
            return RESPONSE_FLAGS, response.header, (response.payload,) if response.payload else ()
        return RESPONSE_FLAGS, RESPONSES[opcode].write(response), ()

    def decode_response(self, opcode: int, flags: int, header: Buffer, payload: Buffer, crc: int = -1) -> m.Response:
        if flags & FLAG_SYSTEM_ERROR:
            failure: m.SystemErrorResponse = SYSTEM_ERROR.read(bytes(header))
            return failure
        if opcode == m.Opcode.APPEND:
            return unpack_append_response(header)
        if opcode == m.Opcode.FETCH:
            fetched = unpack_fetch_response(header)
            if len(payload):
                fetched.entries = _entries(payload, crc)
            return fetched
        if opcode == m.Opcode.PING:
            return m.PingResponse(bytes(header), bytes(payload))
        table = RESPONSES.get(opcode)
        if table is None:
            raise DecodeError(f"response of unknown opcode {opcode:#06x}")
        response: m.Response = table.read(bytes(header))
        return response

    def payload_crc(self, message: m.Request | m.Response) -> int:
        """Return the CRC of a single entry: the payload is the entry itself, so its CRC serves for frame, store and the
        way back.
        """
        if isinstance(message, m.AppendRequest | m.FetchResponse) and len(message.entries) == 1:
            return entry_crc(message.entries[0])
        return -1


def _request_header(header: Buffer) -> bytes:
    if len(header) > MAX_REQUEST_HEADER:
        raise DecodeError(f"request header of {len(header)} bytes exceeds {MAX_REQUEST_HEADER}")
    return bytes(header)


def _entry_parts(entries: list[m.Entry]) -> list[Buffer]:
    parts: list[Buffer] = []
    for entry in entries:
        parts.append(entry.prefix)
        parts.append(entry.payload)
    return parts


def _entries(payload: Buffer, crc: int, most: int = -1) -> list[m.Entry]:
    entries = parse_entries(payload, most)
    if crc >= 0 and len(entries) == 1:
        entries[0].crc = crc
    return entries


# --- fixed layouts --------------------------------------------------------------------------------------------------
#
# Each constant below is what precedes the values: root offset, vtable and the table's own offset to it.

_APPEND_REQUEST_FIXED = Struct("<IHHHHi").pack(12, 0, 6, 8, 4, 6)
_APPEND_REQUEST = Struct("<16si")

_FETCH_FIXED = Struct("<I8Hi").pack(20, 16, 36, 20, 24, 4, 12, 28, 32, 16)
_FETCH_RANGE_OFFSET = 32
_FETCH_RANGE_FIXED = Struct("<10Hi").pack(20, 44, 4, 12, 36, 20, 28, 0, 40, 41, 20)
_FETCH_REQUEST = Struct("<24sqqiIii24sqqqqibb2x")


def pack_append_request(request: m.AppendRequest) -> bytes:
    """Encode the header of an APPEND request; its entries are the payload."""
    if request.confirmed:
        return REQUESTS[m.Opcode.APPEND].write(request)
    return _APPEND_REQUEST.pack(_APPEND_REQUEST_FIXED, request.timeout_ms)


def unpack_append_request(header: Buffer) -> m.AppendRequest:
    """Decode an APPEND request without its entries. Raises ``DecodeError``."""
    if len(header) == _APPEND_REQUEST.size:
        fixed, timeout_ms = _APPEND_REQUEST.unpack(header)
        if fixed == _APPEND_REQUEST_FIXED:
            return m.AppendRequest(timeout_ms)
    request: m.AppendRequest = REQUESTS[m.Opcode.APPEND].read(_request_header(header))
    return request


def pack_fetch_request(request: m.FetchRequest) -> bytes:
    """Encode the header of a FETCH request; without the range's servers, which the receiver does not use."""
    wanted = request.range
    return _FETCH_REQUEST.pack(
        _FETCH_FIXED,
        request.offset,
        request.limit,
        request.max_wait_ms,
        _FETCH_RANGE_OFFSET,
        request.min_bytes,
        request.max_bytes,
        _FETCH_RANGE_FIXED,
        wanted.stream_id,
        wanted.epoch,
        wanted.start,
        wanted.end,
        wanted.index,
        wanted.replica_count,
        wanted.ack_count,
    )


def unpack_fetch_request(header: Buffer) -> m.FetchRequest:
    """Undo :func:`pack_fetch_request`, for any layout. Raises ``DecodeError``."""
    if len(header) == _FETCH_REQUEST.size:
        (
            fixed,
            offset,
            limit,
            max_wait_ms,
            range_offset,
            min_bytes,
            max_bytes,
            range_fixed,
            stream_id,
            epoch,
            start,
            end,
            index,
            replica_count,
            ack_count,
        ) = _FETCH_REQUEST.unpack(header)
        if fixed == _FETCH_FIXED and range_offset == _FETCH_RANGE_OFFSET and range_fixed == _FETCH_RANGE_FIXED:
            wanted = m.RangeInfo(stream_id, epoch, index, start, end, [], replica_count, ack_count)
            return m.FetchRequest(wanted, offset, limit, max_wait_ms, min_bytes, max_bytes)
    request: m.FetchRequest = REQUESTS[m.Opcode.FETCH].read(_request_header(header))
    return request


def _pack_fetch_status(code: int) -> bytes:
    return RESPONSES[m.Opcode.FETCH].write(m.FetchResponse(m.Status(code)))


_FETCH_OK = _pack_fetch_status(m.OK)
_FETCH_NOTHING_NEW = _pack_fetch_status(ErrorCode.NO_NEW_RECORD)


def pack_fetch_response(response: m.FetchResponse) -> bytes:
    """Encode the header of a FETCH response; its entries are the payload."""
    status = response.status
    if not response.throttle_ms and not status.message and not status.detail and not response.objects:
        if status.code == m.OK:
            return _FETCH_OK
        if status.code == ErrorCode.NO_NEW_RECORD:
            return _FETCH_NOTHING_NEW
    return RESPONSES[m.Opcode.FETCH].write(response)


def unpack_fetch_response(header: Buffer) -> m.FetchResponse:
    """Decode a FETCH response without its entries. Raises ``DecodeError``."""
    if header == _FETCH_OK:
        return m.FetchResponse()
    response: m.FetchResponse = RESPONSES[m.Opcode.FETCH].read(bytes(header))
    return response


# An APPEND response whose results are all OK: head | vector of n offsets | n results of 16 bytes | the status they
# share. Offsets point forward only, so the status comes last. Only the timestamps differ between two answers of the
# same length, so an answer is a template with every second 64-bit word of the results replaced.
_RESULT_BYTES = 16
_MAX_TEMPLATE = 4096 if sys.byteorder == "little" else 0  # words are exchanged in native order
_COUNT_AT = 32
_COUNT = Struct("<I")


@lru_cache(maxsize=128)
def _append_template(count: int) -> tuple[bytes, int, int]:
    """Return the header for ``count`` successes with timestamps 0, and where its results start and end.

    A pure function of ``count``; cached because building it costs more than everything else in an answer.
    """
    first = _COUNT_AT + 4 + 4 * count
    first += -first % 8
    end = first + _RESULT_BYTES * count
    status = end + 8
    out = bytearray(status + 8)
    # Root offset; vtable of the response at 4; the response at 12: offset to its vtable, status, results; its end: 24.
    Struct("<I4HiII").pack_into(out, 0, 12, 8, 12, 4, 8, 8, status - 16, _COUNT_AT - 20)
    Struct("<4HI").pack_into(out, 24, 8, 16, 4, 8, count)  # vtable of the results, length of their vector
    for k in range(count):
        slot = _COUNT_AT + 4 + 4 * k
        at = first + _RESULT_BYTES * k
        _COUNT.pack_into(out, slot, at - slot)
        Struct("<iI").pack_into(out, at, at - 24, status - at - 4)
    Struct("<3HxxiHxx").pack_into(out, end, 6, 8, 4, 8, m.OK)  # vtable of the status, the status
    return bytes(out), first, end


def pack_append_response(response: m.AppendResponse) -> bytes:
    """Encode the header of an APPEND response."""
    results = response.results
    count = len(results)
    if not 0 < count <= _MAX_TEMPLATE or response.throttle_ms or not _plain(response.status):
        return RESPONSES[m.Opcode.APPEND].write(response)
    times = array("q")
    for result in results:
        if not _plain(result.status):
            return RESPONSES[m.Opcode.APPEND].write(response)
        times.append(result.timestamp_ms)
    template, first, end = _append_template(count)
    out = bytearray(template)
    memoryview(out)[first:end].cast("q")[1::2] = times
    return bytes(out)


def unpack_append_response(header: Buffer) -> m.AppendResponse:
    """Undo :func:`pack_append_response`, for any layout. Raises ``DecodeError``."""
    if len(header) > _COUNT_AT + 4:
        (count,) = _COUNT.unpack_from(header, _COUNT_AT)
        if 0 < count <= _MAX_TEMPLATE and 0 <= len(header) - (_RESULT_BYTES + 4) * count - _COUNT_AT - 4 <= 20:
            template, first, end = _append_template(count)
            copy = bytearray(header)
            if len(copy) == len(template):
                words = memoryview(copy)[first:end].cast("q")[1::2]
                times: list[int] = words.tolist()
                words[:] = array("q", bytes(8 * count))
                if copy == template:
                    status = m.Status()
                    return m.AppendResponse(status, [m.AppendResult(status, time) for time in times])
    response: m.AppendResponse = RESPONSES[m.Opcode.APPEND].read(bytes(header))
    return response


def _plain(status: m.Status) -> bool:
    return status.code == m.OK and not status.message and not status.detail
