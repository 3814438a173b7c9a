"""Every table of sbp-v0.1 and of its variant of April against the ``flatbuffers`` package.

``SCHEMA`` restates the specification document on its own: slot, type, default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbp_back.errors import DecodeError, ErrorCode, SbpError
from sbp_back.wire import model
from sbp_back.wire.model import Opcode, Status
from sbp_back.wire.v02 import DialectV02
from sbp_document.wire import messages as m
from sbp_document.wire.codes import DocumentCode, document_code, from_wire, to_wire
from sbp_document.wire.v01 import MAX_REQUEST_HEADER, DialectV01
from tests.depth import examples
from tests.sbp_back.wire.tables_oracle import Slot, TablesOracle, Tree, slots

DOC = DialectV01("sbp-v0.1")
APRIL = DialectV01("sbp-v0.1-april", april=True)
DIALECT_OF = {"doc": DOC, "april": APRIL}

FIGURES = (
    "disk_in_rate:i64 disk_out_rate:i64 disk_free_space:i64 disk_unindexed_data_size:i64 memory_used:i64 "
    "uring_task_rate:i16 uring_inflight_task_cnt:i16 uring_pending_task_cnt:i32 uring_task_avg_latency:i16 "
    "network_append_rate:i16 network_fetch_rate:i16 network_failed_append_rate:i16 network_failed_fetch_rate:i16 "
    "network_append_avg_latency:i16 network_fetch_avg_latency:i16 range_missing_replica_cnt:i16 range_active_cnt:i16"
)

COMMON = {
    "Status": "code:i16 message:str detail:bytes",
    "Server": "server_id:i32=-1 advertise_addr:str",
    "Replica": "server:Server is_primary:bool",
    "Range": "stream_id:i64=-1 range_index:i32=-1 start_offset:i64 end_offset:i64 next_offset:i64 servers:[Replica]",
    "RangeId": "stream_id:i64=-1 range_index:i32=-1",
    "Stream": "stream_id:i64=-1 replica_nums:i8 retention_period_ms:i64",
    "Owner": "range_server:Server stream_id:i64=-1",
    "StreamRanges": "stream_id:i64=-1 ranges:[Range]",
    "Trim": "stream_id:i64=-1 trim_offset:i64",
    "Node": "name:str advertise_addr:str is_leader:bool",
    "Cluster": "nodes:[Node]",
    "AppendResult": "stream_id:i64=-1 request_index:i32 base_offset:i64 stream_append_time_ms:i64 status:Status",
    "ListResult": "owner:Owner ranges:[Range] status:Status",
    "Described": "stream_id:i64=-1 range:Range status:Status",
    "Synced": "stream_id:i64=-1 ranges:[Range] status:Status",
    "Plain": "stream:Stream status:Status",
    "WithRange": "stream:Stream range:Range status:Status",
    "SystemError": "status:Status",
    "HEARTBEAT?": "client_id:str client_role:i8 range_server:Server",
    "HEARTBEAT": "client_id:str client_role:i8 range_server:Server status:Status",
    "ALLOCATE_ID?": "timeout_ms:i32 host:str",
    "ALLOCATE_ID": "id:i32 status:Status",
    "APPEND?": "timeout_ms:i32 append_requests:[AppendInfo]",
    "APPEND": "throttle_time_ms:i32 append_responses:[AppendResult] status:Status",
    "FETCH?": "max_wait_ms:i32 min_bytes:i32 fetch_requests:[FetchInfo]",
    "FETCH": "throttle_time_ms:i32 fetch_responses:[FetchResult] status:Status",
    "LIST_RANGE?": "timeout_ms:i32 range_owners:[Owner]",
    "LIST_RANGE": "throttle_time_ms:i32 list_responses:[ListResult] status:Status",
    "SEAL_RANGE?": "timeout_ms:i32 ranges:[RangeId]",
    "SEAL_RANGE": "throttle_time_ms:i32 seal_responses:[Sealed] status:Status",
    "SYNC_RANGE?": "timeout_ms:i32 stream_ranges:[StreamRanges]",
    "SYNC_RANGE": "throttle_time_ms:i32 sync_responses:[Synced] status:Status",
    "CREATE_RANGE?": "timeout_ms:i32 range:Range",
    "CREATE_RANGE": "status:Status range:Range throttle_time_ms:i32",
    "DESCRIBE_RANGE?": "timeout_ms:i32 ranges:[RangeId]",
    "DESCRIBE_RANGE": "throttle_time_ms:i32 describe_responses:[Described] status:Status",
    "CREATE_STREAM?": "timeout_ms:i32 streams:[Stream]",
    "CREATE_STREAM": "throttle_time_ms:i32 create_responses:[WithRange] status:Status",
    "DELETE_STREAM?": "timeout_ms:i32 streams:[Stream]",
    "DELETE_STREAM": "throttle_time_ms:i32 delete_responses:[Plain] status:Status",
    "UPDATE_STREAM?": "timeout_ms:i32 streams:[Stream]",
    "UPDATE_STREAM": "throttle_time_ms:i32 update_responses:[Plain] status:Status",
    "DESCRIBE_STREAM?": "timeout_ms:i32 stream_ids:[i64]",
    "DESCRIBE_STREAM": "throttle_time_ms:i32 describe_responses:[Plain] status:Status",
    "TRIM_STREAM?": "timeout_ms:i32 trimmed_streams:[Trim]",
    "TRIM_STREAM": "throttle_time_ms:i32 trim_responses:[WithRange] status:Status",
    "REPORT_METRICS?": "range_server:Server " + FIGURES,
    "REPORT_METRICS": "range_server:Server status:Status",
    "DESCRIBE_PD?": "range_server:Server timeout_ms:i32",
    "DESCRIBE_PD": "status:Status cluster:Cluster",
}
SWITCHED = {
    "doc": {
        "AppendInfo": "stream_id:i64=-1 request_index:i32 batch_length:i32",
        "FetchInfo": "stream_id:i64=-1 request_index:i32 fetch_offset:i64 batch_max_bytes:i32",
        "FetchResult": "stream_id:i64=-1 request_index:i32 batch_length:i32 status:Status",
        "Sealed": "stream_id:i64=-1 range:Range status:Status",
    },
    "april": {
        "AppendInfo": "range:Range request_index:i32 batch_length:i32",
        "FetchInfo": "range:Range request_index:i32 fetch_offset:i64 batch_max_bytes:i32",
        "FetchResult": "stream_id:i64=-1 request_index:i32 batch_count:i32 status:Status",
        "Sealed": "range:Range status:Status",
    },
}
SCHEMAS = {
    variant: {name: slots(text) for name, text in {**COMMON, **switched}.items()}
    for variant, switched in SWITCHED.items()
}

OPCODES: dict[str, int] = {"SYSTEM": 0} | {opcode.name: int(opcode) for opcode in Opcode}
MESSAGES = sorted(name for name in COMMON if name.rstrip("?").isupper())
REQUESTS = [name for name in MESSAGES if name.endswith("?")]
RESPONSES = [name for name in MESSAGES if not name.endswith("?")]


class Oracle(TablesOracle):
    """Of one variant."""

    def __init__(self, variant: str) -> None:
        super().__init__(SCHEMAS[variant])
        self.variant = variant
        self.dialect = DIALECT_OF[variant]

    def needed(self, name: str, slot: Slot) -> bool:
        # The batch itself is needed, as is the range of CREATE_RANGE: without it there is no request.
        return name.endswith("?") and (slot.kind.startswith("[") or slot.kind == "Range")

    def values(self, name: str, slot: Slot, full: bool) -> st.SearchStrategy[Any]:
        value = super().values(name, slot, full)
        # NO_NEW_RECORD leaves as NONE
        return value.filter(lambda code: code != ErrorCode.NO_NEW_RECORD) if slot.name == "code" else value

    # --- our side ---------------------------------------------------------------------------------------------------

    def payload_of(self, name: str, tree: Tree) -> bytes:
        """What a message's header says must be in its payload; makes the header's lengths true."""
        parts = []
        for item in tree.get("append_requests", []) if name == "APPEND?" else []:
            length = item.get("batch_length", 0) % 50
            item["batch_length"] = length
            parts.append(bytes(length))
        for item in tree.get("fetch_responses", []) if name == "FETCH" else []:
            key = "batch_length" if self.variant == "doc" else "batch_count"
            count = item.get(key, 0) % 4
            item[key] = count
            # In April it counts batches, here in bytes: the smallest batch has 13.
            parts.append(SMALL_BATCH * count if self.variant == "april" else bytes(count))
        return b"".join(parts)

    def ours(self, name: str, tree: Tree) -> Any:
        """The message a filled tree stands for, through nothing but its constructor."""
        return MESSAGE_OF[name](self, tree)

    def status(self, tree: Tree | None) -> Status:
        if tree is None:
            return Status()
        status = Status(tree["code"], tree["message"], tree["detail"])
        return from_wire(status) if self.variant == "doc" else status

    def encode(self, name: str, value: Any) -> tuple[bytes, bytes]:
        if name == "SystemError":
            flags, header, payload = self.dialect.encode_response(Opcode.PING, value)
            assert flags == 7
        elif name.endswith("?"):
            opcode, header, payload = self.dialect.encode_request(value)
            assert opcode == opcode_of(self.variant, name)
        else:
            flags, header, payload = self.dialect.encode_response(opcode_of(self.variant, name), value)
            assert flags == 3
        return header, b"".join(bytes(part) for part in payload)

    def decode(self, name: str, header: bytes, payload: bytes = b"") -> Any:
        if name == "SystemError":
            return self.dialect.decode_response(Opcode.PING, 7, header, b"")
        if name.endswith("?"):
            return self.dialect.decode_request(opcode_of(self.variant, name), header, payload)
        return self.dialect.decode_response(opcode_of(self.variant, name), 3, header, payload)


SMALL_BATCH = b"\x22" + bytes(12)


def opcode_of(variant: str, name: str) -> int:
    if variant == "april" and name.startswith("DESCRIBE_RANGE"):
        return 0x2004
    return int(Opcode[name.rstrip("?")])


def server(tree: Tree | None) -> Any:
    return None if tree is None else model.RangeServerInfo(tree["server_id"], tree["advertise_addr"])


def range_(tree: Tree | None) -> Any:
    if tree is None:
        return None
    servers = [m.Replica(server(one["server"]), one["is_primary"]) for one in tree["servers"]]
    return m.DocumentRange(
        tree["stream_id"], tree["range_index"], tree["start_offset"], tree["end_offset"], tree["next_offset"], servers
    )


def stream(tree: Tree | None) -> Any:
    return None if tree is None else m.DocumentStream(*tree.values())


def place(tree: Tree) -> int:
    """Stream of an append or fetch: named itself, or by its range."""
    if "stream_id" in tree:
        return int(tree["stream_id"])
    return -1 if tree["range"] is None else int(tree["range"]["stream_id"])


def owner(tree: Tree | None) -> Any:
    return None if tree is None else m.RangeOwner(server(tree["range_server"]), tree["stream_id"])


def many(make: Callable[..., Any], name: str, one: Callable[[Oracle, Tree], Any]) -> Callable[[Oracle, Tree], Any]:
    def build(oracle: Oracle, tree: Tree) -> Any:
        return make(oracle.status(tree["status"]), tree["throttle_time_ms"], True, [one(oracle, t) for t in tree[name]])

    return build


def with_range(o: Oracle, t: Tree) -> Any:
    return m.StreamItemResult(stream(t["stream"]), o.status(t["status"]), range_(t["range"]))


def plain(o: Oracle, t: Tree) -> Any:
    return m.StreamItemResult(stream(t["stream"]), o.status(t["status"]))


def ranged(o: Oracle, t: Tree) -> Any:
    return m.RangeItemResult(t.get("stream_id", -1), range_(t["range"]), o.status(t["status"]))


def fetch_result(o: Oracle, t: Tree) -> Any:
    size = t["batch_length"] if "batch_length" in t else t["batch_count"] * len(SMALL_BATCH)
    parts = [(bytes(size) if "batch_length" in t else SMALL_BATCH * t["batch_count"])] if size else []
    return m.FetchItemResult(
        t["stream_id"], t["request_index"], o.status(t["status"]), list(parts), t.get("batch_count", 0)
    )


MESSAGE_OF: dict[str, Callable[[Oracle, Tree], Any]] = {
    "SystemError": lambda o, t: model.SystemErrorResponse(o.status(t["status"])),
    "HEARTBEAT?": lambda o, t: model.HeartbeatRequest(t["client_id"], t["client_role"], server(t["range_server"])),
    "HEARTBEAT": lambda o, t: model.HeartbeatResponse(
        t["client_id"], t["client_role"], server(t["range_server"]), o.status(t["status"])
    ),
    "ALLOCATE_ID?": lambda o, t: model.AllocateIdRequest(t["timeout_ms"], t["host"]),
    "ALLOCATE_ID": lambda o, t: model.AllocateIdResponse(o.status(t["status"]), t["id"]),
    "APPEND?": lambda o, t: m.AppendBatchRequest(
        t["timeout_ms"],
        [m.AppendItem(place(one), one["request_index"], bytes(one["batch_length"])) for one in t["append_requests"]],
    ),
    "APPEND": many(
        m.AppendBatchResponse,
        "append_responses",
        lambda o, t: m.AppendItemResult(
            t["stream_id"], t["request_index"], t["base_offset"], t["stream_append_time_ms"], o.status(t["status"])
        ),
    ),
    "FETCH?": lambda o, t: m.FetchBatchRequest(
        t["max_wait_ms"],
        t["min_bytes"],
        [
            m.FetchItem(place(one), one["request_index"], one["fetch_offset"], one["batch_max_bytes"])
            for one in t["fetch_requests"]
        ],
    ),
    "FETCH": many(m.FetchBatchResponse, "fetch_responses", fetch_result),
    "LIST_RANGE?": lambda o, t: m.ListRangesRequest(t["timeout_ms"], [owner(one) for one in t["range_owners"]]),
    "LIST_RANGE": many(
        m.ListRangesResponse,
        "list_responses",
        lambda o, t: m.ListItemResult(owner(t["owner"]), [range_(r) for r in t["ranges"]], o.status(t["status"])),
    ),
    "SEAL_RANGE?": lambda o, t: m.SealRangesRequest(t["timeout_ms"], [m.RangeId(*one.values()) for one in t["ranges"]]),
    "SEAL_RANGE": many(m.SealRangesResponse, "seal_responses", ranged),
    "SYNC_RANGE?": lambda o, t: m.SyncRangesRequest(
        t["timeout_ms"],
        [m.StreamRanges(one["stream_id"], [range_(r) for r in one["ranges"]]) for one in t["stream_ranges"]],
    ),
    "SYNC_RANGE": many(
        m.SyncRangesResponse,
        "sync_responses",
        lambda o, t: m.SyncItemResult(t["stream_id"], [range_(r) for r in t["ranges"]], o.status(t["status"])),
    ),
    "CREATE_RANGE?": lambda o, t: m.NextRangeRequest(range=range_(t["range"]), timeout_ms=t["timeout_ms"]),
    "CREATE_RANGE": lambda o, t: m.NextRangeResponse(
        o.status(t["status"]), t["throttle_time_ms"], True, range_(t["range"])
    ),
    "DESCRIBE_RANGE?": lambda o, t: m.DescribeRangesRequest(
        t["timeout_ms"], [m.RangeId(*one.values()) for one in t["ranges"]]
    ),
    "DESCRIBE_RANGE": many(m.DescribeRangesResponse, "describe_responses", ranged),
    "CREATE_STREAM?": lambda o, t: m.CreateStreamsRequest(t["timeout_ms"], [stream(one) for one in t["streams"]]),
    "CREATE_STREAM": many(m.CreateStreamsResponse, "create_responses", with_range),
    "DELETE_STREAM?": lambda o, t: m.DeleteStreamsRequest(t["timeout_ms"], [stream(one) for one in t["streams"]]),
    "DELETE_STREAM": many(m.DeleteStreamsResponse, "delete_responses", plain),
    "UPDATE_STREAM?": lambda o, t: m.UpdateStreamsRequest(t["timeout_ms"], [stream(one) for one in t["streams"]]),
    "UPDATE_STREAM": many(m.UpdateStreamsResponse, "update_responses", plain),
    "DESCRIBE_STREAM?": lambda o, t: m.DescribeStreamsRequest(t["timeout_ms"], t["stream_ids"]),
    "DESCRIBE_STREAM": many(m.DescribeStreamsResponse, "describe_responses", plain),
    "TRIM_STREAM?": lambda o, t: m.TrimStreamsRequest(
        t["timeout_ms"], [m.TrimItem(*one.values()) for one in t["trimmed_streams"]]
    ),
    "TRIM_STREAM": many(m.TrimStreamsResponse, "trim_responses", with_range),
    "REPORT_METRICS?": lambda o, t: model.ReportMetricsRequest(
        server(t["range_server"]) or model.RangeServerInfo(),
        model.RangeServerMetrics(**{name: value for name, value in t.items() if name != "range_server"}),
    ),
    "REPORT_METRICS": lambda o, t: model.ReportMetricsResponse(server(t["range_server"]), o.status(t["status"])),
    "DESCRIBE_PD?": lambda o, t: model.DescribePdRequest(
        server(t["range_server"]) or model.RangeServerInfo(), t["timeout_ms"]
    ),
    "DESCRIBE_PD": lambda o, t: model.DescribePdResponse(
        o.status(t["status"]), [model.PdNode(*one.values()) for one in (t["cluster"] or {"nodes": []})["nodes"]]
    ),
}

EVERY = [
    (variant, name)
    for variant in SCHEMAS
    for name in [*MESSAGES, "SystemError"]
    if (variant, name.rstrip("?")) != ("april", "CREATE_RANGE")  # there was none then
]
FAST = settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow], deadline=None)


def test_every_frame_of_the_document_is_under_test() -> None:
    """The document's table of opcodes has 18; PING and GOAWAY have no tables."""
    assert set(DOC.shapes.requests) == set(DOC.shapes.responses)
    assert len(DOC.shapes.requests) == 16
    assert {OPCODES[name.rstrip("?")] for name in MESSAGES} == {int(opcode) for opcode in DOC.shapes.requests}
    assert set(MESSAGE_OF) == {*MESSAGES, "SystemError"}
    assert len(MESSAGES) == 32


def normal(oracle: Oracle, name: str, tree: Any) -> Any:
    """A tree read back, with every status as we understand it and what we always write filled in."""
    if isinstance(tree, list):
        return [normal(oracle, name, one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    result = {key: normal(oracle, key, value) for key, value in tree.items()}
    if "status" in tree:
        result["status"] = oracle.status(tree["status"])
    if "cluster" in tree:
        result["cluster"] = result["cluster"] or {"nodes": []}
    return result


def check(variant: str, name: str, tree: Tree, force_defaults: bool) -> None:
    oracle = Oracle(variant)
    payload = oracle.payload_of(name, tree)
    full = oracle.filled(name, tree)
    assert full is not None
    expected = oracle.ours(name, full)
    foreign = oracle.write(name, tree, force_defaults=force_defaults)
    assert oracle.decode(name, foreign, payload) == expected
    header, sent = oracle.encode(name, expected)
    assert sent == payload
    seen = normal(oracle, name, oracle.read(name, header))
    wanted = normal(oracle, name, full)
    if name in ("REPORT_METRICS?", "DESCRIBE_PD?") and wanted["range_server"] is None:
        wanted["range_server"] = oracle.filled("Server", {})
    if variant == "april":
        for key in ("append_requests", "fetch_requests"):
            for one in wanted.get(key, []):  # of the range only the stream is kept
                one["range"] = {"stream_id": place(one)}
            for one in seen.get(key, []):
                one["range"] = {"stream_id": place(one)}
    assert seen == wanted
    assert oracle.decode(name, header, payload) == expected


@pytest.mark.parametrize(("variant", "name"), EVERY)
@FAST
@given(data=st.data())
def test_document_tables_against_flatbuffers(variant: str, name: str, data: st.DataObject) -> None:
    check(variant, name, data.draw(Oracle(variant).trees(name)), data.draw(st.booleans()))


@pytest.mark.parametrize(("variant", "name"), EVERY)
@settings(FAST, max_examples=examples(8))
@given(data=st.data())
def test_all_document_fields_against_flatbuffers(variant: str, name: str, data: st.DataObject) -> None:
    check(variant, name, data.draw(Oracle(variant).trees(name, full=True)), True)


# --- known answers --------------------------------------------------------------------------------------------------


def test_append_request_known_answer() -> None:
    """Bytes that the builder makes of two appends, patched: what a client does that fills in a template."""
    oracle = Oracle("doc")
    for count in (1, 2, 16, 64):
        tree = {
            "timeout_ms": 1000,
            "append_requests": [
                {"stream_id": 0x1111111111111111, "request_index": 0x2222222, "batch_length": 0x3333}
                for _ in range(count)
            ],
        }
        template = bytearray(oracle.write("APPEND?", tree))
        marks = [(8, 0x1111111111111111), (4, 0x2222222), (4, 0x3333)]
        places = [
            [at for at in range(len(template) - size + 1) if template[at : at + size] == mark.to_bytes(size, "little")]
            for size, mark in marks
        ]
        assert [len(found) for found in places] == [count] * 3
        lengths = [13 + k for k in range(count)]
        for k in range(count):
            for (size, _), found, value in zip(marks, places, (k + 5, count - k, lengths[-1 - k]), strict=True):
                template[found[k] : found[k] + size] = value.to_bytes(size, "little")
        payload = bytes(sum(lengths))
        request = DOC.decode_request(Opcode.APPEND, bytes(template), payload)
        assert isinstance(request, m.AppendBatchRequest)
        assert request.timeout_ms == 1000
        assert {(one.stream_id, one.request_index, len(one.batch)) for one in request.items} == {
            (k + 5, count - k, lengths[-1 - k]) for k in range(count)
        }


def test_heartbeat_golden_bytes() -> None:
    opcode, header, _ = DOC.encode_request(model.HeartbeatRequest("c", 3))
    assert (opcode, header) == (
        3,
        bytes.fromhex("0c000000 0800 0900 0400 0800 08000000 08000000 03 000000 01000000 6300".replace(" ", "")),
    )


def test_a_good_status_is_an_empty_table() -> None:
    """NONE is 0, the default of its slot (docs/protocols/sbp.md, "Contradictions of the document", 7)."""
    _, header, _ = DOC.encode_response(Opcode.ALLOCATE_ID, model.AllocateIdResponse(Status(), 7))
    assert Oracle("doc").read("ALLOCATE_ID", header)["status"] == {"code": 0, "message": "", "detail": b""}
    _, header, _ = APRIL.encode_response(Opcode.ALLOCATE_ID, model.AllocateIdResponse(Status(), 7))
    assert Oracle("april").read("ALLOCATE_ID", header)["status"]["code"] == 1200


def test_the_end_of_an_open_range_is_written() -> None:
    _, header, _ = DOC.encode_response(Opcode.CREATE_RANGE, m.NextRangeResponse(range=m.DocumentRange(1, 2, 3, -1, 5)))
    assert Oracle("doc").read("CREATE_RANGE", header)["range"]["end_offset"] == -1


# --- codes ----------------------------------------------------------------------------------------------------------


@given(st.sampled_from(list(ErrorCode)), st.text(max_size=20), st.binary(max_size=4))
def test_codes_survive_the_document(code: ErrorCode, message: str, detail: bytes) -> None:
    if code in (ErrorCode.OK, ErrorCode.NO_NEW_RECORD):
        return
    told = to_wire(Status(code, message, detail))
    assert told.code in set(DocumentCode)
    assert from_wire(told) == Status(code, message, detail)


def test_codes_of_the_document() -> None:
    assert to_wire(Status()).code == 0
    assert to_wire(Status(ErrorCode.NO_NEW_RECORD)) == Status(0)
    assert to_wire(Status(ErrorCode.BAD_REQUEST, "no")) == Status(2, "no")
    assert to_wire(Status(ErrorCode.PD_NOT_LEADER, "no", b"cluster")) == Status(5, "no", b"cluster")
    assert to_wire(Status(ErrorCode.UNSUPPORTED_VERSION, "no")) == Status(3, "no")
    assert to_wire(Status(ErrorCode.RANGE_ALREADY_SEALED, "no")) == Status(1, "1460 RANGE_ALREADY_SEALED: no")
    assert document_code(12345) == DocumentCode.UNKNOWN
    assert from_wire(Status(1, "something else")) == Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "something else")
    assert from_wire(Status(1, "1400 BAD_REQUEST: a code that is not said so")).code == 2500
    assert from_wire(Status(1400, "of another dialect")) == Status(1400, "of another dialect")


# --- frames ---------------------------------------------------------------------------------------------------------


def test_ping_and_goaway_of_the_document() -> None:
    assert DOC.encode_request(model.PingRequest(b"head", b"body")) == (1, b"head", (b"body",))
    assert DOC.decode_request(1, b"head", memoryview(b"body")) == model.PingRequest(b"head", b"body")
    assert DOC.encode_response(1, model.PingResponse(b"head", b"body")) == (3, b"head", (b"body",))
    assert DOC.decode_response(1, 3, b"head", b"body") == model.PingResponse(b"head", b"body")
    assert DOC.encode_request(model.GoAway()) == (2, b"", ())
    assert DOC.decode_request(2, b"", b"") == model.GoAway()


def test_only_the_last_frame_of_an_answer_has_the_flag() -> None:
    results = [m.AppendItemResult(1, 2, 3, 4)]
    for last, flags in ((False, 1), (True, 3)):
        told, header, _ = DOC.encode_response(Opcode.APPEND, m.AppendBatchResponse(last=last, results=results))
        assert told == flags
        assert DOC.decode_response(Opcode.APPEND, told, header, b"") == m.AppendBatchResponse(
            last=last, results=results
        )


def test_0x2004_is_what_its_second_slot_says() -> None:
    describe = m.DescribeRangesRequest(5, [m.RangeId(1, 2), m.RangeId(3, 4)])
    create = m.NextRangeRequest(
        range=m.DocumentRange(1, 2, 3, 4, 5, [m.Replica(model.RangeServerInfo(1, "a:1"))]), timeout_ms=5
    )
    opcode, header, _ = DOC.encode_request(describe)
    assert opcode == 0x2005
    assert DOC.decode_request(0x2005, header, b"") == describe
    assert DOC.decode_request(0x2004, header, b"") == describe
    opcode, header, _ = DOC.encode_request(create)
    assert opcode == 0x2004
    assert DOC.decode_request(0x2004, header, b"") == create
    for response in (
        m.DescribeRangesResponse(results=[m.RangeItemResult(1, m.DocumentRange(1, 2))]),
        m.DescribeRangesResponse(Status(1462, "no")),
        m.NextRangeResponse(range=m.DocumentRange(1, 2)),
        m.NextRangeResponse(Status(1470, "no")),
    ):
        flags, header, _ = DOC.encode_response(0x2004, response)
        assert DOC.decode_response(0x2004, flags, header, b"") == response


def test_unknown_opcodes_of_the_document() -> None:
    for opcode in (0, 5, 0x1003, 0x2006, 0x3006, 0x5001, 0x6001, 0xFFFF):
        with pytest.raises(SbpError) as caught:
            DOC.decode_request(opcode, b"", b"")
        assert caught.value.code == ErrorCode.UNKNOWN_OPERATION
        with pytest.raises(DecodeError):
            DOC.decode_response(opcode, 3, b"", b"")
    with pytest.raises(SbpError) as caught:
        DOC.encode_request(model.CreateStreamRequest(model.StreamInfo()))
    assert caught.value.code == ErrorCode.UNSUPPORTED_OPERATION
    with pytest.raises(SbpError):
        DialectV02().encode_request(describe_request())


def describe_request() -> m.DescribeStreamsRequest:
    return m.DescribeStreamsRequest(stream_ids=[1])


@pytest.mark.parametrize("lengths", [[5], [3], [4, 1], [-1, 5], [2**31 - 1], []])
def test_append_lengths_must_cut_the_payload(lengths: list[int]) -> None:
    tree = {"append_requests": [{"batch_length": length} for length in lengths]}
    with pytest.raises(DecodeError):
        DOC.decode_request(Opcode.APPEND, Oracle("doc").write("APPEND?", tree), b"four")


@pytest.mark.parametrize("variant", ["doc", "april"])
@pytest.mark.parametrize("sizes", [[27], [-1], [1, -1], [2**31 - 1], [0], []])
def test_fetch_sizes_must_cut_the_payload(variant: str, sizes: list[int]) -> None:
    name = "batch_length" if variant == "doc" else "batch_count"
    header = Oracle(variant).write("FETCH", {"fetch_responses": [{name: size} for size in sizes]})
    with pytest.raises(DecodeError):
        DIALECT_OF[variant].decode_response(Opcode.FETCH, 3, header, SMALL_BATCH * 2)


# --- other dialects -------------------------------------------------------------------------------------------------

OFFSETS = st.integers(0, 2**40)
SMALL = st.integers(-1, 2**31 - 1)
TEXT = st.text(max_size=20)
V02_RANGES = st.builds(
    model.RangeInfo,
    OFFSETS,
    OFFSETS,
    st.integers(0, 1000),
    OFFSETS,
    st.one_of(st.just(-1), OFFSETS),
    st.lists(st.builds(model.RangeServerInfo, SMALL, TEXT), max_size=3),
    st.integers(-1, 3),
    st.integers(-1, 3),
)
V02_STREAMS = st.builds(model.StreamInfo, st.integers(-1, 100), st.integers(1, 5), st.integers(1, 5), OFFSETS)
V02_REQUESTS: dict[str, st.SearchStrategy[model.Request]] = {
    "FETCH": st.builds(model.FetchRequest, V02_RANGES, OFFSETS, SMALL, SMALL, SMALL, SMALL),
    "LIST_RANGE": st.builds(model.ListRangeRequest, SMALL, SMALL, st.integers(-1, 2**40)),
    "SEAL_RANGE": st.builds(model.SealRangeRequest, V02_RANGES, st.integers(0, 2), SMALL),
    "CREATE_RANGE": st.builds(model.CreateRangeRequest, V02_RANGES, SMALL),
    "CREATE_STREAM": st.builds(model.CreateStreamRequest, V02_STREAMS, SMALL),
    "DELETE_STREAM": st.builds(model.DeleteStreamRequest, OFFSETS, SMALL),
    "UPDATE_STREAM": st.builds(model.UpdateStreamRequest, V02_STREAMS, SMALL),
    "DESCRIBE_STREAM": st.builds(model.DescribeStreamRequest, OFFSETS, SMALL),
    "TRIM_STREAM": st.builds(model.TrimStreamRequest, OFFSETS, OFFSETS, SMALL),
    "REPORT_METRICS": st.builds(
        model.ReportMetricsRequest,
        st.builds(model.RangeServerInfo, st.integers(0, 9), TEXT),
        st.builds(model.RangeServerMetrics, OFFSETS, OFFSETS, OFFSETS),
    ),
}


@pytest.mark.parametrize("name", sorted(V02_REQUESTS))
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_requests_of_sbp_02_are_told_apart(name: str, data: st.DataObject) -> None:
    opcode, header, payload = DialectV02().encode_request(data.draw(V02_REQUESTS[name]))
    with pytest.raises(DecodeError):
        DOC.decode_request(opcode, header, b"".join(bytes(part) for part in payload))


def test_appends_of_sbp_02_are_told_apart() -> None:
    from sbp_back.wire.entry import pack_entry

    request = model.AppendRequest(5, [pack_entry(1, 2, 3, 4, 5, 6, b"payload")])
    opcode, header, payload = DialectV02().encode_request(request)
    with pytest.raises(DecodeError):
        DOC.decode_request(opcode, header, b"".join(bytes(part) for part in payload))


IDS = st.lists(st.builds(m.RangeId, OFFSETS, st.integers(0, 50)), min_size=1, max_size=3)
STREAMS = st.lists(st.builds(m.DocumentStream, st.integers(-1, 50), st.integers(0, 5), OFFSETS), min_size=1, max_size=3)
V01_REQUESTS: dict[str, st.SearchStrategy[model.Request]] = {
    "FETCH": st.builds(
        m.FetchBatchRequest,
        SMALL,
        SMALL,
        st.lists(st.builds(m.FetchItem, OFFSETS, SMALL, OFFSETS, SMALL), min_size=1, max_size=3),
    ),
    "APPEND": st.builds(
        m.AppendBatchRequest,
        SMALL,
        st.lists(st.builds(m.AppendItem, OFFSETS, SMALL, st.just(SMALL_BATCH + bytes(20))), min_size=1, max_size=3),
    ),
    "LIST_RANGE": st.builds(
        m.ListRangesRequest,
        SMALL,
        st.lists(
            st.one_of(
                st.builds(m.RangeOwner, st.none(), OFFSETS),
                st.builds(m.RangeOwner, st.builds(model.RangeServerInfo, st.integers(0, 9), TEXT)),
            ),
            min_size=1,
            max_size=3,
        ),
    ),
    "SEAL_RANGE": st.builds(m.SealRangesRequest, SMALL, IDS),
    "CREATE_STREAM": st.builds(m.CreateStreamsRequest, SMALL, STREAMS),
    "DELETE_STREAM": st.builds(m.DeleteStreamsRequest, SMALL, STREAMS),
    "UPDATE_STREAM": st.builds(m.UpdateStreamsRequest, SMALL, STREAMS),
    "DESCRIBE_STREAM": st.builds(m.DescribeStreamsRequest, SMALL, st.lists(OFFSETS, min_size=1, max_size=4)),
    "TRIM_STREAM": st.builds(
        m.TrimStreamsRequest, SMALL, st.lists(st.builds(m.TrimItem, OFFSETS, OFFSETS), min_size=1, max_size=3)
    ),
    "REPORT_METRICS": st.builds(
        model.ReportMetricsRequest,
        st.builds(model.RangeServerInfo, st.integers(0, 9), TEXT),
        st.builds(model.RangeServerMetrics, OFFSETS, OFFSETS, OFFSETS.filter(bool)),
    ),
    "CREATE_RANGE": st.builds(
        m.NextRangeRequest,
        range=st.builds(
            m.DocumentRange,
            OFFSETS,
            st.integers(0, 9),
            OFFSETS.filter(bool),
            st.just(-1),
            OFFSETS.filter(bool),
            st.just([]),
        ),
    ),
}


@pytest.mark.parametrize("name", sorted(V01_REQUESTS))
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_requests_of_the_document_are_told_apart_by_sbp_02(name: str, data: st.DataObject) -> None:
    opcode, header, payload = DOC.encode_request(data.draw(V01_REQUESTS[name]))
    with pytest.raises(DecodeError):
        DialectV02().decode_request(opcode, header, b"".join(bytes(part) for part in payload))


# --- hostile bytes --------------------------------------------------------------------------------------------------


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except DecodeError:
        return DecodeError


@pytest.mark.parametrize(("variant", "name"), EVERY)
@settings(FAST, max_examples=examples(12))
@given(data=st.data())
def test_damaged_document_tables_only_raise_decode_errors(variant: str, name: str, data: st.DataObject) -> None:
    oracle = Oracle(variant)
    tree = data.draw(oracle.trees(name))
    payload = oracle.payload_of(name, tree)
    bad = bytearray(oracle.write(name, tree))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bad) - 1))
        bad[at] = data.draw(st.sampled_from([0, 1, 2, 4, 8, 0x7F, 0x80, 0xFF, bad[at] ^ 1, bad[at] ^ 0x80]))
    cut = data.draw(st.integers(0, len(bad))) if data.draw(st.booleans()) else len(bad)
    outcome(lambda: oracle.decode(name, bytes(bad[:cut]), payload))


@pytest.mark.parametrize(("variant", "name"), EVERY)
@settings(FAST, max_examples=examples(12))
@given(noise=st.binary(max_size=200), payload=st.binary(max_size=40))
def test_noise_for_document_tables_only_raises_decode_errors(
    variant: str, name: str, noise: bytes, payload: bytes
) -> None:
    outcome(lambda: Oracle(variant).decode(name, noise, payload))


def test_long_document_headers_are_refused() -> None:
    header = bytes(MAX_REQUEST_HEADER + 1)
    with pytest.raises(DecodeError):
        DOC.decode_request(Opcode.HEARTBEAT, header, b"")
