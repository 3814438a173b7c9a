"""Every table and field of dialect 0.2 against the ``flatbuffers`` package, which knows nothing of our declarations.

``SCHEMA`` restates the wire format on its own (slot, type, default); both directions go through it.
"""

from __future__ import annotations

import tracemalloc
from struct import Struct
from typing import Any

import flatbuffers
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbp_back.errors import DecodeError, ErrorCode, SbpError
from sbp_back.wire import model as m
from sbp_back.wire.entry import META, PREFIX_BYTES, TELLING_PREFIX_BYTES, entry_crc, pack_entry, parse_entries
from sbp_back.wire.flat import Table
from sbp_back.wire.frame import SYSTEM_ERROR_FLAGS, crc32
from sbp_back.wire.model import Entry, Opcode, Status
from sbp_back.wire.v02 import (
    MAX_REQUEST_HEADER,
    REQUESTS,
    RESPONSES,
    SYSTEM_ERROR,
    UNSERVED,
    DialectV02,
    pack_append_request,
    pack_append_response,
    pack_fetch_request,
    unpack_append_response,
    unpack_fetch_request,
)
from tests.depth import examples
from tests.sbp_back.wire.tables_oracle import Slot, TablesOracle, Tree, slots

DIALECT = DialectV02()

# --- the wire format, restated --------------------------------------------------------------------------------------

SCHEMA: dict[str, list[Slot]] = {
    name: slots(text)
    for name, text in {
        "Status": "code:i16 message:str detail:bytes",
        "Server": "server_id:i32=-1 advertise_addr:str!",
        "Stream": "stream_id:i64=-1 replica:i8 ack_count:i8 retention_ms:i64",
        "Range": "stream_id:i64=-1 epoch:i64=-1 index:i32=-1 start:i64=-1 end:i64=-1 servers:[Server] "
        "replica_count:i8=-1 ack_count:i8=-1",
        "Node": "name:str! advertise_addr:str! is_leader:bool",
        "Cluster": "nodes:[Node]!",
        "Criteria": "server_id:i32=-1 stream_id:i64=-1",
        "Metrics": "disk_in_rate:i64 disk_out_rate:i64 disk_free_space:i64 disk_unindexed_data_size:i64 "
        "memory_used:i64 "
        "uring_task_rate:i16 uring_inflight_task_cnt:i16 uring_pending_task_cnt:i32 uring_task_avg_latency:i16 "
        "network_append_rate:i16 network_fetch_rate:i16 network_failed_append_rate:i16 "
        "network_failed_fetch_rate:i16 network_append_avg_latency:i16 network_fetch_avg_latency:i16 "
        "range_missing_replica_cnt:i16 range_active_cnt:i16",
        "Result": "status:Status! timestamp_ms:i64",
        "SystemError": "status:Status!",
        "Meta": "stream_id:i64 range_index:i32 flags:i16 base_offset:i64=-1 count:i32 timestamp:i64 properties:[Pair] "
        "confirmed:i64=-1",
        "Pair": "key:str! value:str!",
        "HEARTBEAT?": "client_id:str role:i8 range_server:Server",
        "HEARTBEAT": "client_id:str role:i8 range_server:Server status:Status!",
        "ALLOCATE_ID?": "timeout_ms:i32 host:str!",
        "ALLOCATE_ID": "status:Status! id:i32",
        "APPEND?": "timeout_ms:i32 confirmed:bytes",
        "APPEND": "status:Status! results:[Result] throttle_ms:i32",
        "FETCH?": "max_wait_ms:i32 range:Range! offset:i64 limit:i64 min_bytes:i32=-1 max_bytes:i32=-1",
        "FETCH": "status:Status! throttle_ms:i32 objects:[Metadata]",
        "LIST_RANGE?": "timeout_ms:i32 criteria:Criteria!",
        "LIST_RANGE": "status:Status! throttle_ms:i32 ranges:[Range]!",
        "SEAL_RANGE?": "timeout_ms:i32 kind:i8 range:Range!",
        "SEAL_RANGE": "status:Status! range:Range throttle_ms:i32",
        "CREATE_RANGE?": "timeout_ms:i32 range:Range!",
        "CREATE_RANGE": "status:Status! range:Range throttle_ms:i32",
        "CREATE_STREAM?": "timeout_ms:i32 stream:Stream!",
        "CREATE_STREAM": "status:Status! stream:Stream throttle_ms:i32",
        "DELETE_STREAM?": "timeout_ms:i32 stream_id:i64=-1",
        "DELETE_STREAM": "status:Status! stream:Stream throttle_ms:i32",
        "UPDATE_STREAM?": "timeout_ms:i32 stream:Stream!",
        "UPDATE_STREAM": "status:Status! throttle_ms:i32 stream:Stream",
        "DESCRIBE_STREAM?": "timeout_ms:i32 stream_id:i64",
        "DESCRIBE_STREAM": "status:Status! throttle_ms:i32 stream:Stream",
        "TRIM_STREAM?": "timeout_ms:i32 stream_id:i64=-1 min_offset:i64",
        "TRIM_STREAM": "status:Status! throttle_ms:i32 stream:Stream range:Range",
        "ADOPT_SERVER?": "timeout_ms:i32 server_id:i32=-1 by:i32=-1 ends:bytes last:bool",
        "ADOPT_SERVER": "status:Status! server_id:i32=-1",
        "SHOW_TICKET?": "timeout_ms:i32 ticket:str!",
        "SHOW_TICKET": "status:Status!",
        "Object": "stream_id:i64=-1 index:i32=-1 epoch:i64=-1 start:i64=-1 count:i32=-1 size:i32=-1 sparse:bytes",
        "Metadata": "key:str! start:i64=-1 count:i32=-1 size:i32=-1 sparse:bytes",
        "COMMIT_OBJECT?": "timeout_ms:i32 object:Object!",
        "COMMIT_OBJECT": "status:Status! throttle_ms:i32",
        "REPORT_METRICS?": "range_server:Server metrics:Metrics",
        "REPORT_METRICS": "range_server:Server status:Status!",
        "DESCRIBE_PD?": "range_server:Server! timeout_ms:i32",
        "DESCRIBE_PD": "status:Status! cluster:Cluster!",
    }.items()
}

CLASSES: dict[str, Any] = {
    "Status": m.Status,
    "Server": m.RangeServerInfo,
    "Stream": m.StreamInfo,
    "Range": m.RangeInfo,
    "Node": m.PdNode,
    "Metrics": m.RangeServerMetrics,
    "Result": m.AppendResult,
    "SystemError": m.SystemErrorResponse,
    "HEARTBEAT?": m.HeartbeatRequest,
    "HEARTBEAT": m.HeartbeatResponse,
    "ALLOCATE_ID?": m.AllocateIdRequest,
    "ALLOCATE_ID": m.AllocateIdResponse,
    "APPEND?": m.AppendRequest,
    "APPEND": m.AppendResponse,
    "FETCH?": m.FetchRequest,
    "FETCH": m.FetchResponse,
    "LIST_RANGE?": m.ListRangeRequest,
    "LIST_RANGE": m.ListRangeResponse,
    "SEAL_RANGE?": m.SealRangeRequest,
    "SEAL_RANGE": m.RangeResponse,
    "CREATE_RANGE?": m.CreateRangeRequest,
    "CREATE_RANGE": m.RangeResponse,
    "CREATE_STREAM?": m.CreateStreamRequest,
    "CREATE_STREAM": m.StreamResponse,
    "DELETE_STREAM?": m.DeleteStreamRequest,
    "DELETE_STREAM": m.StreamResponse,
    "UPDATE_STREAM?": m.UpdateStreamRequest,
    "UPDATE_STREAM": m.StreamResponse,
    "DESCRIBE_STREAM?": m.DescribeStreamRequest,
    "DESCRIBE_STREAM": m.StreamResponse,
    "TRIM_STREAM?": m.TrimStreamRequest,
    "TRIM_STREAM": m.StreamResponse,
    "ADOPT_SERVER?": m.AdoptServerRequest,
    "ADOPT_SERVER": m.AdoptServerResponse,
    "SHOW_TICKET?": m.ShowTicketRequest,
    "SHOW_TICKET": m.ShowTicketResponse,
    "Object": m.ObjectInfo,
    "Metadata": m.ObjectMetadata,
    "COMMIT_OBJECT?": m.CommitObjectRequest,
    "COMMIT_OBJECT": m.CommitObjectResponse,
    "REPORT_METRICS?": m.ReportMetricsRequest,
    "REPORT_METRICS": m.ReportMetricsResponse,
    "DESCRIBE_PD?": m.DescribePdRequest,
    "DESCRIBE_PD": m.DescribePdResponse,
}

PLACE = Struct("<qiq")
PLACES = ("confirmed", "ends")

# Tables whose fields our messages carry flat.
FLATTENED = {"Criteria", "Cluster"}

OURS: dict[str, Table] = {
    **{f"{Opcode(op).name}?": table for op, table in REQUESTS.items()},
    **{Opcode(op).name: table for op, table in RESPONSES.items()},
    "SystemError": SYSTEM_ERROR,
}


class Oracle(TablesOracle):
    """Of dialect 0.2."""

    def values(self, name: str, slot: Slot, full: bool) -> st.SearchStrategy[Any]:
        if slot.name in PLACES:
            return st.lists(st.binary(min_size=20, max_size=20), max_size=3).map(b"".join)
        return super().values(name, slot, full)


ORACLE = Oracle(SCHEMA)
trees, filled, oracle_write, oracle_read = ORACLE.trees, ORACLE.filled, ORACLE.write, ORACLE.read


def message(name: str, tree: Tree) -> Any:
    """The message a filled tree stands for."""
    values: Tree = {}
    for slot in SCHEMA[name]:
        value = tree[slot.name]
        if slot.kind in FLATTENED:
            for inner in SCHEMA[slot.kind]:
                values[inner.name] = message_value(inner, value[inner.name])
        else:
            values[slot.name] = message_value(slot, value)
    if name == "REPORT_METRICS?":  # our message has no absent sub-tables
        values = {
            "range_server": values["range_server"] or m.RangeServerInfo(),
            "metrics": values["metrics"] or m.RangeServerMetrics(),
        }
    return CLASSES[name](**values)


def message_value(slot: Slot, value: Any) -> Any:
    if slot.kind.startswith("["):
        return [message(slot.kind.strip("[]"), item) for item in value]
    if slot.kind in SCHEMA and value is not None:
        return message(slot.kind, value)
    return tuple(PLACE.iter_unpack(value)) if slot.name in PLACES else value


def encode(name: str, value: Any) -> bytes:
    """Through the dialect, so that the fixed layouts are under test too."""
    if name == "SystemError":
        flags, header, _ = DIALECT.encode_response(Opcode.PING, value)
        assert flags == SYSTEM_ERROR_FLAGS
        return header
    if name.endswith("?"):
        opcode, header, _ = DIALECT.encode_request(value)
        assert opcode == Opcode[name.rstrip("?")]
        return header
    return DIALECT.encode_response(Opcode[name], value)[1]


def decode(name: str, header: bytes) -> Any:
    if name == "SystemError":
        return DIALECT.decode_response(Opcode.PING, SYSTEM_ERROR_FLAGS, header, b"")
    if name.endswith("?"):
        return DIALECT.decode_request(Opcode[name.rstrip("?")], header, b"")
    return DIALECT.decode_response(Opcode[name], 3, header, b"")


def test_every_table_is_under_test() -> None:
    assert set(OURS) <= set(SCHEMA)
    assert {n for n in SCHEMA if n.isupper() or n.endswith("?")} == set(OURS) - {"SystemError"}


def check(name: str, tree: Tree, force_defaults: bool) -> None:
    expected = message(name, filled(name, tree) or {})
    foreign = oracle_write(name, tree, force_defaults=force_defaults)
    assert OURS[name].read(foreign) == expected
    assert decode(name, foreign) == expected
    seen = filled(name, tree)
    assert seen is not None
    if name == "REPORT_METRICS?":
        seen = {
            "range_server": seen["range_server"] or filled("Server", {}),
            "metrics": seen["metrics"] or filled("Metrics", {}),
        }
    assert oracle_read(name, OURS[name].write(expected)) == seen
    if name == "FETCH?":
        seen["range"]["servers"] = []  # left out on purpose
    assert oracle_read(name, encode(name, expected)) == seen


@pytest.mark.parametrize("name", sorted(OURS))
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_against_flatbuffers(name: str, data: st.DataObject) -> None:
    check(name, data.draw(trees(name)), data.draw(st.booleans()))


@pytest.mark.parametrize("name", sorted(OURS))
@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_all_fields_against_flatbuffers(name: str, data: st.DataObject) -> None:
    check(name, data.draw(trees(name, full=True)), True)


REQUIRED = [(name, slot.name) for name in sorted(OURS) for slot in SCHEMA[name] if slot.required]
# What real servers are known to leave out; see the comments at the declarations.
TOLERATED = {("HEARTBEAT", "status"), ("LIST_RANGE", "ranges"), ("DESCRIBE_PD", "cluster")}


@pytest.mark.parametrize(("name", "field"), REQUIRED)
def test_a_table_without_a_required_field_is_refused(name: str, field: str) -> None:
    tree = {slot.name: filled(slot.kind, {}) for slot in SCHEMA[name] if slot.required and slot.kind in SCHEMA}
    tree.update({slot.name: "" for slot in SCHEMA[name] if slot.kind == "str"})
    tree.update({slot.name: [] for slot in SCHEMA[name] if slot.kind.startswith("[")})
    decode(name, oracle_write(name, tree))
    del tree[field]
    if (name, field) in TOLERATED:
        decode(name, oracle_write(name, tree))
    else:
        with pytest.raises(DecodeError):
            decode(name, oracle_write(name, tree))


def test_fields_of_later_schemas_are_skipped() -> None:
    builder = flatbuffers.Builder(64)
    key = builder.CreateString("owner")
    builder.StartObject(12)
    builder.PrependInt64Slot(0, 5, -1)
    builder.PrependUOffsetTRelativeSlot(8, key, 0)
    builder.PrependInt64Slot(11, 5, -1)
    builder.Finish(builder.EndObject())
    from sbp_back.wire.v02 import RANGE

    assert RANGE.read(bytes(builder.Output())) == m.RangeInfo(stream_id=5)


# --- known answers --------------------------------------------------------------------------------------------------


def test_append_request_header_known_answer() -> None:
    assert pack_append_request(m.AppendRequest(5000)) == bytes.fromhex("0c000000 0000 0600 0800 0400 06000000 88130000")


def test_entry_prefix_known_answer() -> None:
    entry = pack_entry(1, 2, 3, 4, 5, 6, b"abcdef")
    assert len(entry.prefix) == PREFIX_BYTES == 73
    assert bytes(entry.prefix) == bytes.fromhex(
        "22 00000040"
        "18000000 00000000 1000 2800 1000 0800 0600 1800 0c00 2000 10000000 0000"
        "0300 02000000 05000000 0100000000000000 0400000000000000 0600000000000000"
        "00000006"
    )


def test_known_answer_of_an_entry_that_tells_what_is_confirmed() -> None:
    entry = pack_entry(1, 2, 3, 4, 5, 6, b"abcdef", 7)
    assert len(entry.prefix) == TELLING_PREFIX_BYTES == 89
    assert bytes(entry.prefix) == bytes.fromhex(
        "22 00000050"
        "20000000 00000000 00000000 1400 3000 1000 0800 0600 1800 0c00 2000 0000 2800 14000000 0000"
        "0300 02000000 05000000 0100000000000000 0400000000000000 0600000000000000 0700000000000000"
        "00000006"
    )
    assert pack_entry(1, 2, 3, 4, 5, 6, b"abcdef", -1).prefix == pack_entry(1, 2, 3, 4, 5, 6, b"abcdef").prefix


def test_what_is_confirmed_travels_in_the_header_of_an_append() -> None:
    request = m.AppendRequest(5, [], ((1, 2, 3), (1 << 40, 1 << 20, 1 << 50)))
    opcode, header, parts = DIALECT.encode_request(request)
    assert not parts
    assert DIALECT.decode_request(opcode, header, b"") == request
    with pytest.raises(DecodeError):
        DIALECT.decode_request(opcode, oracle_write("APPEND?", {"timeout_ms": 5, "confirmed": bytes(19)}), b"")


def test_entry_meta_equals_the_builder() -> None:
    """Byte for byte, when the fields are added widest first as flatc's encoders do."""
    builder = flatbuffers.Builder(64)
    builder.StartObject(7)
    builder.PrependInt64Slot(5, 66, 0)
    builder.PrependInt64Slot(3, 44, -1)
    builder.PrependInt64Slot(0, 11, 0)
    builder.PrependInt32Slot(4, 55, 0)
    builder.PrependInt32Slot(1, 22, 0)
    builder.PrependInt16Slot(2, 33, 0)
    builder.Finish(builder.EndObject())
    assert bytes(pack_entry(11, 22, 33, 44, 55, 66, b"").prefix)[5:69] == bytes(builder.Output())


# --- entries --------------------------------------------------------------------------------------------------------

metas = st.fixed_dictionaries(
    {
        "stream_id": st.integers(-(2**63), 2**63 - 1),
        "range_index": st.integers(-(2**31), 2**31 - 1),
        "flags": st.integers(-(2**15), 2**15 - 1),
        "base_offset": st.integers(-(2**63), 2**63 - 1),
        "count": st.integers(1, 2**31 - 1),
        "timestamp": st.integers(-(2**63), 2**63 - 1),
        "confirmed": st.one_of(st.just(-1), st.integers(0, 2**63 - 1)),
    }
)


def fields(entry: Entry) -> Tree:
    return {
        name: getattr(entry, name)
        for name in ("stream_id", "range_index", "flags", "base_offset", "count", "timestamp", "confirmed")
    }


def foreign_entry(tree: Tree, payload: bytes) -> bytes:
    meta = oracle_write("Meta", tree)
    return b"\x22" + len(meta).to_bytes(4) + meta + len(payload).to_bytes(4) + payload


@settings(deadline=None)
@given(
    st.lists(st.tuples(metas, st.binary(max_size=40), st.sampled_from(["ours", "foreign", "properties"])), max_size=6)
)
def test_entries_of_any_layout(items: list[tuple[Tree, bytes, str]]) -> None:
    encoded = []
    for tree, payload, how in items:
        if how == "ours":
            entry = pack_entry(**tree, payload=payload)
            assert oracle_read("Meta", bytes(entry.prefix)[5:-4]) == filled("Meta", tree)
            encoded.append(bytes(entry.prefix) + payload)
        else:
            pairs = {"properties": [{"key": "k", "value": "v"}]} if how == "properties" else {}
            encoded.append(foreign_entry({**tree, **pairs}, payload))
    wire = b"".join(encoded)
    entries = parse_entries(wire)
    assert [fields(entry) for entry in entries] == [tree for tree, _, _ in items]
    assert [bytes(entry.payload) for entry in entries] == [payload for _, payload, _ in items]
    assert [bytes(entry.prefix) + bytes(entry.payload) for entry in entries] == encoded
    assert [entry_crc(entry) for entry in entries] == [crc32(part) for part in encoded]
    assert [entry.size for entry in entries] == [len(part) for part in encoded]


def test_entry_payloads_are_slices() -> None:
    wire = bytes(pack_entry(1, 2, 3, 4, 5, 6, b"abcdef").prefix) + b"abcdef"
    (entry,) = parse_entries(wire)
    assert isinstance(entry.payload, memoryview)
    assert entry.payload.obj is wire


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_entry_without_records_is_refused(count: int) -> None:
    tree = {"stream_id": 1, "range_index": 1, "flags": 0, "base_offset": 0, "count": count, "timestamp": 0}
    ours = [bytes(pack_entry(1, 1, 0, 0, count, 0, b"", confirmed).prefix) for confirmed in (-1, 0)]
    for wire in (*ours, foreign_entry(tree, b"")):
        with pytest.raises(DecodeError):
            parse_entries(wire)


def test_one_entry_frames_share_their_crc() -> None:
    entry = pack_entry(1, 2, 3, 4, 5, 6, b"abcdef")
    request = m.AppendRequest(0, [entry])
    crc = DIALECT.payload_crc(request)
    assert crc == crc32(bytes(entry.prefix) + b"abcdef") == entry.crc
    opcode, header, parts = DIALECT.encode_request(request)
    decoded = DIALECT.decode_request(opcode, header, b"".join(parts), crc)
    assert isinstance(decoded, m.AppendRequest)
    assert decoded.entries[0].crc == crc
    two = DIALECT.decode_request(opcode, header, b"".join(parts) * 2, 12345)
    assert isinstance(two, m.AppendRequest)
    assert [e.crc for e in two.entries] == [-1, -1]
    assert DIALECT.payload_crc(two) == -1
    flags, header, parts = DIALECT.encode_response(Opcode.FETCH, m.FetchResponse(entries=[entry]))
    fetched = DIALECT.decode_response(Opcode.FETCH, flags, header, b"".join(parts), crc)
    assert isinstance(fetched, m.FetchResponse)
    assert fields(fetched.entries[0]) == fields(entry)
    assert fetched.entries[0].crc == crc


# --- fixed layouts --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40))
def test_append_response_of_successes(times: list[int]) -> None:
    response = m.AppendResponse(results=[m.AppendResult(Status(), time) for time in times])
    header = pack_append_response(response)
    status = {"code": 1200, "message": "", "detail": b""}
    assert oracle_read("APPEND", header) == {
        "status": status,
        "results": [{"status": status, "timestamp_ms": time} for time in times],
        "throttle_ms": 0,
    }
    assert unpack_append_response(header) == response
    assert len(header) < len(OURS["APPEND"].write(response)) or len(times) == 1


def test_append_response_mixed_with_failures() -> None:
    response = m.AppendResponse(
        results=[m.AppendResult(Status(), 1), m.AppendResult(Status(1460, "sealed"), 0), m.AppendResult(Status(), 2)]
    )
    assert unpack_append_response(pack_append_response(response)) == response


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 5), st.data())
def test_damaged_append_response_is_never_taken_for_a_good_one(count: int, data: st.DataObject) -> None:
    """The fixed layout and the declared table must agree on any damage."""
    good = pack_append_response(m.AppendResponse(results=[m.AppendResult(Status(), k) for k in range(count)]))
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    assert outcome(lambda: unpack_append_response(bytes(bad))) == outcome(lambda: OURS["APPEND"].read(bytes(bad)))


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_damaged_fetch_request_is_read_as_its_table(data: st.DataObject) -> None:
    bad = bytearray(pack_fetch_request(m.FetchRequest(m.RangeInfo(1, 2, 3, 4, 5, [], 6, 7), 8, 9, 10, 11, 12)))
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    assert outcome(lambda: unpack_fetch_request(bytes(bad))) == outcome(lambda: OURS["FETCH?"].read(bytes(bad)))


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), st.sampled_from([-1, 7]))
def test_damaged_entry_meta_is_read_as_its_table(data: st.DataObject, confirmed: int) -> None:
    bad = bytearray(pack_entry(1, 2, 3, 4, 5, 6, b"", confirmed).prefix)
    bad[data.draw(st.integers(5, len(bad) - 5))] ^= data.draw(st.integers(1, 255))

    def by_table() -> Tree:
        meta = META.read(bytes(bad[5:-4]))
        if meta.count < 1:
            raise DecodeError("no records")
        return {name: getattr(meta, name) for name in meta.__slots__}

    def by_layout() -> Tree:
        entry = fields(parse_entries(bytes(bad))[0])
        return {name: entry[name] for name in sorted(entry)}

    assert outcome(by_layout) == outcome(by_table)


def outcome(run: Any) -> Any:
    try:
        return run()
    except DecodeError:
        return DecodeError


# --- opcodes --------------------------------------------------------------------------------------------------------


def test_unserved_and_unknown_opcodes() -> None:
    assert set(Opcode) == set(REQUESTS) | UNSERVED | {Opcode.PING, Opcode.GOAWAY, Opcode.DESCRIBE_RANGE}
    for opcode in UNSERVED:
        with pytest.raises(SbpError) as caught:
            DIALECT.decode_request(opcode, b"anything", b"")
        assert caught.value.code == ErrorCode.UNSUPPORTED_OPERATION
    for opcode in (0, 0x2005, 0x7777, 0xFFFF):
        with pytest.raises(SbpError) as caught:
            DIALECT.decode_request(opcode, b"", b"")
        assert caught.value.code == ErrorCode.UNKNOWN_OPERATION
        with pytest.raises(DecodeError):
            DIALECT.decode_response(opcode, 3, b"", b"")


def test_ping_and_goaway() -> None:
    assert DIALECT.encode_request(m.PingRequest(b"head", b"body")) == (Opcode.PING, b"head", (b"body",))
    assert DIALECT.decode_request(Opcode.PING, b"head", memoryview(b"body")) == m.PingRequest(b"head", b"body")
    assert DIALECT.encode_response(Opcode.PING, m.PingResponse(b"head", b"body")) == (3, b"head", (b"body",))
    assert DIALECT.decode_response(Opcode.PING, 3, b"head", b"body") == m.PingResponse(b"head", b"body")
    assert DIALECT.encode_request(m.GoAway()) == (Opcode.GOAWAY, b"", ())
    assert DIALECT.decode_request(Opcode.GOAWAY, b"", b"") == m.GoAway()


# --- hostile bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(OURS))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_mutations_only_raise_decode_errors(name: str, data: st.DataObject) -> None:
    good = oracle_write(name, data.draw(trees(name)))
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bad) - 1))
        bad[at] = data.draw(st.sampled_from([0, 1, 2, 4, 8, 0x7F, 0x80, 0xFF, bad[at] ^ 1, bad[at] ^ 0x80]))
    bad = bad[: data.draw(st.integers(0, len(bad)))] if data.draw(st.booleans()) else bad
    outcome(lambda: decode(name, bytes(bad)))


@pytest.mark.parametrize("name", sorted(OURS))
@settings(max_examples=examples(20), deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_only_raises_decode_errors(name: str, noise: bytes) -> None:
    outcome(lambda: decode(name, noise))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(metas, min_size=1, max_size=3), st.data())
def test_mutated_entries_only_raise_decode_errors(trees_: list[Tree], data: st.DataObject) -> None:
    bad = bytearray(b"".join(foreign_entry(tree, b"payload") for tree in trees_))
    bad += bytes(pack_entry(**trees_[0], payload=b"").prefix)
    at = data.draw(st.integers(0, len(bad) - 1))
    bad[at] = data.draw(st.integers(0, 255))
    bad = bad[: data.draw(st.integers(0, len(bad)))]
    entries = outcome(lambda: parse_entries(bytes(bad)))
    if entries is not DecodeError:
        assert b"".join(bytes(e.prefix) + bytes(e.payload) for e in entries) == bytes(bad)


def test_long_request_headers_are_refused() -> None:
    good = OURS["HEARTBEAT?"].write(m.HeartbeatRequest("x" * (MAX_REQUEST_HEADER + 1)))
    with pytest.raises(DecodeError):
        DIALECT.decode_request(Opcode.HEARTBEAT, good, b"")


def shared_vector_bomb(copies: int) -> bytes:
    """A LIST_RANGE answer whose ranges are all one table, and the servers of that one are all one table."""
    builder = flatbuffers.Builder(64)
    address = builder.CreateString("a" * 1000)
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, address, 0)
    server = builder.EndObject()
    builder.StartVector(4, copies, 4)
    for _ in range(copies):
        builder.PrependUOffsetTRelative(server)
    servers = builder.EndVector()
    builder.StartObject(8)
    builder.PrependUOffsetTRelativeSlot(5, servers, 0)
    shared = builder.EndObject()
    builder.StartVector(4, copies, 4)
    for _ in range(copies):
        builder.PrependUOffsetTRelative(shared)
    ranges = builder.EndVector()
    status = ORACLE.build(builder, "Status", {"code": 1200})
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, status, 0)
    builder.PrependUOffsetTRelativeSlot(2, ranges, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def test_shared_tables_cannot_multiply_memory() -> None:
    bomb = shared_vector_bomb(5000)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode("LIST_RANGE", bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * len(bomb)


def test_claimed_lengths_allocate_nothing() -> None:
    prefix = bytearray(pack_entry(1, 1, 0, 0, 1, 0, b"").prefix)
    prefix[69:73] = b"\xff\xff\xff\xff"
    long_meta = b"\x22\xff\xff\xff\xf0" + bytes(100)
    vector = bytearray(OURS["LIST_RANGE"].write(m.ListRangeResponse(ranges=[m.RangeInfo(1)])))
    tracemalloc.start()
    try:
        for bad in (bytes(prefix), long_meta):
            with pytest.raises(DecodeError):
                parse_entries(bad)
        for at in range(0, len(vector) - 4, 4):
            damaged = bytearray(vector)
            damaged[at : at + 4] = b"\xff\xff\xff\x7f"
            outcome(lambda bytes_=bytes(damaged): decode("LIST_RANGE", bytes_))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
