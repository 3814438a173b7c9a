"""Dialect sbp-v0.1: the specification document to the letter (docs/protocols/sbp.md, "Dialects").

The configuration sets the dialect of a listener, because the bytes do not always identify it. Detectable requests of
other dialects are refused: a request whose table cannot be one of the document's raises ``DecodeError``, and the
listener answers it with a system error that names its dialect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from struct import Struct

from anabranch_kit.memory.buffers import Buffer
from sbp_back.errors import DecodeError, ErrorCode, SbpError
from sbp_back.wire import model as w
from sbp_back.wire.base import Manners
from sbp_back.wire.frame import FLAG_END, FLAG_RESPONSE, FLAG_SYSTEM_ERROR, RESPONSE_FLAGS, SYSTEM_ERROR_FLAGS
from sbp_document.wire import messages as m
from sbp_document.wire.record_batch import split_batches
from sbp_document.wire.v01_tables import AppendHeader, AppendInfo, FetchHeader, FetchInfo, Shapes, flat_report

MAX_REQUEST_HEADER = 1024 * 1024
"""Longest request header that is decoded, in bytes: room for more than 20 000 elements of a batch."""

# Requests whose root table has nothing but four-byte fields in the document: a table with anything else in it is not
# the document's. (CREATE_RANGE and REPORT_METRICS are told apart otherwise, the rest is the same in all dialects.)
_BATCHES = frozenset(
    {
        w.Opcode.APPEND,
        w.Opcode.FETCH,
        w.Opcode.LIST_RANGE,
        w.Opcode.SEAL_RANGE,
        w.Opcode.SYNC_RANGE,
        w.Opcode.DESCRIBE_RANGE,
        w.Opcode.CREATE_STREAM,
        w.Opcode.DELETE_STREAM,
        w.Opcode.UPDATE_STREAM,
        w.Opcode.DESCRIBE_STREAM,
        w.Opcode.TRIM_STREAM,
    }
)

_U32 = Struct("<I")
_I32 = Struct("<i")
_VTABLE = Struct("<HH")


class DialectV01:
    """The codec; satisfies :class:`sbp_back.wire.base.Dialect`, which documents the functions.

    ``april``: the variant of April 2023, which a Java client of that time speaks (docs/protocols/sbp.md, "Dialects").
    """

    def __init__(self, name: str, *, april: bool = False) -> None:
        self.name = name
        self.shapes = Shapes(april=april)
        self._april = april
        # The document's section has DESCRIBE_RANGES under CREATE_RANGE's number (docs/protocols/sbp.md, "Contradictions
        # of the document", 1).
        describe = frozenset() if april else frozenset({(int(w.Opcode.DESCRIBE_RANGE), int(w.Opcode.CREATE_RANGE))})
        self.manners = Manners(
            several_frames=True,
            ignores_unknown=True,
            skips_foreign_magic=True,
            signed_stream_ids=True,
            malformed=ErrorCode.UNSUPPORTED_VERSION,
            opcodes=frozenset({int(w.Opcode.PING), int(w.Opcode.GOAWAY), *self.shapes.requests}),
            answers_as=describe,
        )

    # --- requests ---------------------------------------------------------------------------------------------------

    def encode_request(self, request: w.Request) -> tuple[int, bytes, Sequence[Buffer]]:
        if isinstance(request, w.PingRequest):
            return w.Opcode.PING, request.header, (request.payload,) if request.payload else ()
        if isinstance(request, w.GoAway):
            return w.Opcode.GOAWAY, b"", ()
        opcode = self.shapes.opcodes.get(type(request))
        if opcode is None:
            raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, f"{type(request).__name__} is unknown to {self.name}")
        if isinstance(request, m.AppendBatchRequest):
            infos = [AppendInfo(item.stream_id, item.request_index, len(item.batch)) for item in request.items]
            header = self.shapes.requests[w.Opcode.APPEND].write(AppendHeader(request.timeout_ms, infos))
            return opcode, header, [item.batch for item in request.items]
        if isinstance(request, w.ReportMetricsRequest):
            return opcode, self.shapes.requests[w.Opcode.REPORT_METRICS].write(flat_report(request)), ()
        return opcode, self.shapes.requests[opcode].write(request), ()

    def decode_request(self, opcode: int, header: Buffer, payload: Buffer, crc: int = -1) -> w.Request:
        if opcode == w.Opcode.PING:
            return w.PingRequest(bytes(header), bytes(payload))
        if opcode == w.Opcode.GOAWAY:
            return w.GoAway()
        if opcode not in self.shapes.requests:
            raise SbpError(ErrorCode.UNKNOWN_OPERATION, f"opcode {opcode:#06x} is unknown to {self.name}")
        if len(header) > MAX_REQUEST_HEADER:
            raise DecodeError(f"request header of {len(header)} bytes exceeds {MAX_REQUEST_HEADER}")
        data = bytes(header)
        if opcode == w.Opcode.CREATE_RANGE and not self._april and _is_batch(data):
            opcode = w.Opcode.DESCRIBE_RANGE  # the section of the document against its table
        if opcode in _BATCHES or (self._april and opcode == w.Opcode.CREATE_RANGE):
            _check_batch(data)
        elif opcode == w.Opcode.CREATE_RANGE:
            _check_disjoint(data, _slot(data, _root(data), 1), (8, 4, 8, 8, 8, 4))
        message = self.shapes.requests[opcode].read(data)
        if isinstance(message, AppendHeader):
            return _append_request(message, payload)
        request: w.Request = message
        return request

    # --- responses --------------------------------------------------------------------------------------------------

    def encode_response(self, opcode: int, response: w.Response) -> tuple[int, bytes, Sequence[Buffer]]:
        if isinstance(response, w.SystemErrorResponse):
            return SYSTEM_ERROR_FLAGS, self.shapes.system_error.write(response), ()
        if isinstance(response, w.PingResponse):
            return RESPONSE_FLAGS, response.header, (response.payload,) if response.payload else ()
        flags = RESPONSE_FLAGS
        if isinstance(response, w.DocumentResponse) and not response.last:
            flags = FLAG_RESPONSE
        if isinstance(response, m.FetchBatchResponse):
            infos = [
                FetchInfo(
                    result.stream_id,
                    result.request_index,
                    result.batch_count if self._april else result.size,
                    result.status,
                )
                for result in response.results
            ]
            header = self.shapes.responses[w.Opcode.FETCH].write(
                FetchHeader(response.status, response.throttle_ms, infos)
            )
            return flags, header, [part for result in response.results for part in result.parts]
        return flags, self.shapes.writes[type(response)].write(response), ()

    def decode_response(self, opcode: int, flags: int, header: Buffer, payload: Buffer, crc: int = -1) -> w.Response:
        data = bytes(header)
        if flags & FLAG_SYSTEM_ERROR:
            failure: w.SystemErrorResponse = self.shapes.system_error.read(data)
            return failure
        if opcode == w.Opcode.PING:
            return w.PingResponse(data, bytes(payload))
        if opcode == w.Opcode.CREATE_RANGE and not self._april and _is_batch(data):
            opcode = w.Opcode.DESCRIBE_RANGE
        table = self.shapes.responses.get(opcode)
        if table is None:
            raise DecodeError(f"response of unknown opcode {opcode:#06x}")
        message = table.read(data)
        if isinstance(message, FetchHeader):
            message = self._fetch_response(message, payload)
        response: w.Response = message
        if isinstance(response, w.DocumentResponse):
            response.last = bool(flags & FLAG_END)
        return response

    def _fetch_response(self, header: FetchHeader, payload: Buffer) -> m.FetchBatchResponse:
        view = memoryview(payload)
        batches = split_batches(view) if self._april else []
        results = []
        at = taken = 0
        for info in header.results:
            length, count = info.size, 0
            if self._april:
                count = info.size
                if not 0 <= count <= len(batches) - taken:
                    raise DecodeError(f"{count} record batches of {len(batches) - taken}")
                length = sum(len(batch) for batch in batches[taken : taken + count])
                taken += count
            if not 0 <= length <= len(view) - at:
                raise DecodeError(f"{length} bytes of record batches of {len(view) - at}")
            parts: list[Buffer] = [view[at : at + length]] if length else []
            results.append(m.FetchItemResult(info.stream_id, info.request_index, info.status, parts, count))
            at += length
        if at != len(view):
            raise DecodeError(f"{len(view) - at} bytes of record batches are nobody's")
        return m.FetchBatchResponse(header.status, header.throttle_ms, results=results)

    def payload_crc(self, message: w.Request | w.Response) -> int:
        return -1


V01 = DialectV01("sbp-v0.1")
APRIL = DialectV01("sbp-v0.1-april", april=True)
DIALECTS: Mapping[str, DialectV01] = {dialect.name: dialect for dialect in (V01, APRIL)}


def _append_request(header: AppendHeader, payload: Buffer) -> m.AppendBatchRequest:
    view = memoryview(payload)
    items = []
    at = 0
    for info in header.items:
        if not 0 <= info.batch_length <= len(view) - at:
            raise DecodeError(f"batch of {info.batch_length} bytes, {len(view) - at} are left")
        items.append(m.AppendItem(info.stream_id, info.request_index, view[at : at + info.batch_length]))
        at += info.batch_length
    if at != len(view):
        raise DecodeError(f"{len(view) - at} bytes of the payload are no batch")
    return m.AppendBatchRequest(header.timeout_ms, items)


# --- telling dialects apart -----------------------------------------------------------------------------------------
#
# FlatBuffers carry no types. But where sbp-0.2 has a table, a byte or an int64, the document has a vector. That shows
# in the size of the table around it, or in the target of the offset.


def _root(data: bytes) -> int:
    return 0 if len(data) < 8 else _target(data, 0)


def _target(data: bytes, at: int) -> int:
    """Return where the offset at ``at`` leads, 0 when it cannot be an offset."""
    target = at + int(_U32.unpack_from(data, at)[0])
    return target if at + 4 <= target <= len(data) - 4 else 0


def _layout(data: bytes, table: int) -> list[int]:
    """Return the size of a table and the positions of its slots; empty when there is no table at ``table``."""
    size = len(data)
    if table < 4 or table > size - 4:
        return []
    vtable = table - int(_I32.unpack_from(data, table)[0])
    if not 0 <= vtable <= size - 4:
        return []
    vtable_size, table_size = _VTABLE.unpack_from(data, vtable)
    if vtable_size < 4 or vtable_size & 1 or vtable + vtable_size > size or table_size < 4 or table + table_size > size:
        return []
    return [table_size, *Struct(f"<{vtable_size // 2 - 2}H").unpack_from(data, vtable + 4)]


def _slot(data: bytes, table: int, number: int) -> int:
    """Return where the offset in slot ``number`` leads, 0 when there is none."""
    layout = _layout(data, table)
    position = layout[1 + number] if len(layout) > 1 + number else 0
    return _target(data, table + position) if 4 <= position <= (layout[0] if layout else 0) - 4 else 0


def _is_batch(data: bytes) -> bool:
    """Return whether slot 1 of the root leads to a vector of tables rather than to one table."""
    start = _slot(data, _root(data), 1)
    if not start:
        return False
    count = int(_U32.unpack_from(data, start)[0])
    if count > (len(data) - start - 4) // 4:
        return False
    return all(_layout(data, _target(data, start + 4 + 4 * k)) for k in range(count))


def _check_batch(data: bytes) -> None:
    """Check that the root of a batch has four-byte fields without gaps; else it is another dialect's."""
    layout = _layout(data, _root(data))
    if layout and layout[0] != 4 + 4 * sum(1 for position in layout[1:] if position):
        raise DecodeError("the table is none of the document's batches")


def _check_disjoint(data: bytes, table: int, widths: Sequence[int]) -> None:
    """Check that the fields of a table, with the document's widths, do not overlap."""
    layout = _layout(data, table)
    spans = sorted((position, width) for position, width in zip(layout[1:], widths, strict=False) if position)
    for (position, width), (following, _) in pairwise(spans):
        if position + width > following:
            raise DecodeError("the table is none of the document's ranges")
