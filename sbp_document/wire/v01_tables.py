"""Tables of sbp-v0.1, as the specification document has them, and of its variant of April 2023.

Shapes and the four differences of the variant: docs/protocols/sbp.md, "Dialects". Statuses are translated between the
document's codes and ours as they are read and written; the variant has ours on the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from sbp_back.wire import model as w
from sbp_back.wire.flat import Field, Inner, Reader, Sub, Table, Tables, Text, Writer, flag, i8, i32, i64
from sbp_back.wire.model import Opcode
from sbp_back.wire.v02 import FIGURES, STATUS
from sbp_document.wire import messages as m
from sbp_document.wire.codes import from_wire, to_wire


class Longs(Field):
    """A vector of int64, as a list."""

    __slots__ = ()

    def absent(self, values: dict[str, Any]) -> None:
        values[self.name] = []

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        start, count = reader.vector(at, 8)
        reader.spend(8 * count)
        values[self.name] = list(struct.unpack_from(f"<{count}q", reader.data, start))

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        items: Sequence[int] = getattr(owner, self.name)
        writer.align(8, 4)
        writer.point(at)
        writer.out += struct.pack(f"<I{len(items)}q", len(items), *items)


RANGE_SERVER = Table(w.RangeServerInfo, i32("server_id", -1), Text("advertise_addr"))
REPLICA = Table(m.Replica, Sub("server", RANGE_SERVER), flag("is_primary"))
RANGE = Table(
    m.DocumentRange,
    i64("stream_id", -1),
    i32("index", -1),
    i64("start"),
    i64("end"),  # 0 when absent, so the -1 of an open range is always written
    i64("next"),
    Tables("servers", REPLICA),
)
RANGE_ID = Table(m.RangeId, i64("stream_id", -1), i32("index", -1))
STREAM = Table(m.DocumentStream, i64("stream_id", -1), i8("replica_nums"), i64("retention_period_ms"))
OWNER = Table(m.RangeOwner, Sub("range_server", RANGE_SERVER), i64("stream_id", -1))
STREAM_RANGES = Table(m.StreamRanges, i64("stream_id", -1), Tables("ranges", RANGE))
TRIM_ITEM = Table(m.TrimItem, i64("stream_id", -1), i64("offset"))
PD_NODE = Table(w.PdNode, Text("name"), Text("advertise_addr"), flag("is_leader"))


class AppendInfo(Struct):
    """Element of an APPEND request's header; the batch itself is in the payload."""

    stream_id: int
    request_index: int
    batch_length: int


class FetchInfo(Struct):
    """Element of a FETCH response's header: ``size`` is in bytes, in the variant of April in batches."""

    stream_id: int
    request_index: int
    size: int
    status: w.Status


class AppendHeader(Struct):
    timeout_ms: int
    items: list[AppendInfo]


class FetchHeader(Struct):
    status: w.Status
    throttle_ms: int
    results: list[FetchInfo]


class _Status(Sub):
    """The slot of a status, always written; an absent one is read as success."""

    __slots__ = ("_document",)

    def __init__(self, *, document: bool) -> None:
        super().__init__("status", STATUS, always=True, default=w.Status)
        self._document = document

    def read(self, reader: Reader, at: int, values: dict[str, Any]) -> None:
        super().read(reader, at, values)
        if self._document:
            values[self.name] = from_wire(values[self.name])

    def write(self, writer: Writer, at: int, owner: Any) -> None:
        status = getattr(owner, self.name)
        self.table.write_at(writer, at, to_wire(status) if self._document else status)


class _StreamOfRange(Inner):
    """April's first slot of an append or fetch: a range where the document has its stream."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("range", i64("stream_id", -1))


def _report(range_server: w.RangeServerInfo | None, **figures: int) -> w.ReportMetricsRequest:
    return w.ReportMetricsRequest(range_server or w.RangeServerInfo(), w.RangeServerMetrics(**figures))


def flat_report(request: w.ReportMetricsRequest) -> SimpleNamespace:
    """Return the values for the table of REPORT_METRICS: the document has the figures beside the server, not in a
    sub-table.
    """
    figures = {name: getattr(request.metrics, name) for name in w.RangeServerMetrics.__struct_fields__}
    return SimpleNamespace(range_server=request.range_server, **figures)


class Shapes:
    """The tables of one variant: ``requests`` by class and opcode, ``responses`` likewise, ``system_error``."""

    __slots__ = ("opcodes", "requests", "responses", "system_error", "writes")

    def __init__(self, *, april: bool) -> None:
        status = _Status(document=not april)
        timeout, throttle = i32("timeout_ms"), i32("throttle_ms")
        stream_id, index = i64("stream_id", -1), i32("request_index")
        stream, range_ = Sub("stream", STREAM), Sub("range", RANGE)
        place = _StreamOfRange() if april else stream_id

        def request(make: Any, name: str, element: Table) -> Table:
            return Table(make, timeout, Tables(name, element, required=True))

        def response(make: type[w.DocumentResponse], element: Table) -> Table:
            return Table(make, throttle, Tables("results", element, always=True), status)

        append_info = Table(AppendInfo, place, index, i32("batch_length"))
        append_result = Table(m.AppendItemResult, stream_id, index, i64("base_offset"), i64("append_time_ms"), status)
        fetch_item = Table(m.FetchItem, place, index, i64("offset"), i32("max_bytes"))
        fetch_info = Table(FetchInfo, stream_id, index, i32("size"), status)
        list_result = Table(m.ListItemResult, Sub("owner", OWNER), Tables("ranges", RANGE, always=True), status)
        described = Table(m.RangeItemResult, stream_id, range_, status)
        # In the variant a seal's result leaves out the stream, which its range names anyway.
        sealed = Table(m.RangeItemResult, range_, status) if april else described
        synced = Table(m.SyncItemResult, stream_id, Tables("ranges", RANGE, always=True), status)
        with_range = Table(m.StreamItemResult, stream, range_, status)
        plain = Table(m.StreamItemResult, stream, status)

        self.requests: dict[int, Table] = {
            Opcode.HEARTBEAT: Table(
                w.HeartbeatRequest, Text("client_id"), i8("role"), Sub("range_server", RANGE_SERVER)
            ),
            Opcode.ALLOCATE_ID: Table(w.AllocateIdRequest, timeout, Text("host")),
            Opcode.APPEND: request(AppendHeader, "items", append_info),
            Opcode.FETCH: Table(
                m.FetchBatchRequest,
                i32("max_wait_ms"),
                i32("min_bytes"),
                Tables("items", fetch_item, required=True),
            ),
            Opcode.LIST_RANGE: request(m.ListRangesRequest, "owners", OWNER),
            Opcode.SEAL_RANGE: request(m.SealRangesRequest, "ranges", RANGE_ID),
            Opcode.SYNC_RANGE: request(m.SyncRangesRequest, "items", STREAM_RANGES),
            Opcode.CREATE_RANGE: Table(m.NextRangeRequest, timeout, Sub("range", RANGE, required=True)),
            Opcode.DESCRIBE_RANGE: request(m.DescribeRangesRequest, "ranges", RANGE_ID),
            Opcode.CREATE_STREAM: request(m.CreateStreamsRequest, "streams", STREAM),
            Opcode.DELETE_STREAM: request(m.DeleteStreamsRequest, "streams", STREAM),
            Opcode.UPDATE_STREAM: request(m.UpdateStreamsRequest, "streams", STREAM),
            Opcode.DESCRIBE_STREAM: Table(m.DescribeStreamsRequest, timeout, Longs("stream_ids", required=True)),
            Opcode.TRIM_STREAM: request(m.TrimStreamsRequest, "items", TRIM_ITEM),
            Opcode.REPORT_METRICS: Table(_report, Sub("range_server", RANGE_SERVER), *FIGURES),
            Opcode.DESCRIBE_PD: Table(
                w.DescribePdRequest, Sub("range_server", RANGE_SERVER, always=True, default=w.RangeServerInfo), timeout
            ),
        }
        self.responses: dict[int, Table] = {
            Opcode.HEARTBEAT: Table(
                w.HeartbeatResponse, Text("client_id"), i8("role"), Sub("range_server", RANGE_SERVER), status
            ),
            Opcode.ALLOCATE_ID: Table(w.AllocateIdResponse, i32("id"), status),
            Opcode.APPEND: response(m.AppendBatchResponse, append_result),
            Opcode.FETCH: Table(FetchHeader, throttle, Tables("results", fetch_info, always=True), status),
            Opcode.LIST_RANGE: response(m.ListRangesResponse, list_result),
            Opcode.SEAL_RANGE: response(m.SealRangesResponse, sealed),
            Opcode.SYNC_RANGE: response(m.SyncRangesResponse, synced),
            Opcode.CREATE_RANGE: Table(m.NextRangeResponse, status, range_, throttle),
            Opcode.DESCRIBE_RANGE: response(m.DescribeRangesResponse, described),
            Opcode.CREATE_STREAM: response(m.CreateStreamsResponse, with_range),
            Opcode.DELETE_STREAM: response(m.DeleteStreamsResponse, plain),
            Opcode.UPDATE_STREAM: response(m.UpdateStreamsResponse, plain),
            Opcode.DESCRIBE_STREAM: response(m.DescribeStreamsResponse, plain),
            Opcode.TRIM_STREAM: response(m.TrimStreamsResponse, with_range),
            Opcode.REPORT_METRICS: Table(w.ReportMetricsResponse, Sub("range_server", RANGE_SERVER), status),
            Opcode.DESCRIBE_PD: Table(
                w.DescribePdResponse, status, Inner("cluster", Tables("nodes", PD_NODE, always=True), always=True)
            ),
        }
        if april:  # 0x2004 was DESCRIBE_RANGES then, and there was no CREATE_RANGE
            for tables in (self.requests, self.responses):
                tables[Opcode.CREATE_RANGE] = tables.pop(Opcode.DESCRIBE_RANGE)
        self.system_error = Table(w.SystemErrorResponse, status)
        self.opcodes: dict[type, int] = {
            **{table.make: opcode for opcode, table in self.requests.items() if isinstance(table.make, type)},
            w.ReportMetricsRequest: Opcode.REPORT_METRICS,
            m.AppendBatchRequest: Opcode.APPEND,
        }
        self.writes: dict[type[w.Response], Table] = {
            table.make: table for table in self.responses.values() if isinstance(table.make, type)
        }
