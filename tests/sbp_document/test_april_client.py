"""What a foreign client of the variant of April really sends, and that it gets what it can read.

``FRAMES`` were recorded between the Java client of April 2023 (elastic-stream f6cc9d84, sdks/java, compiled as it is
but for its key-value part) and a node of ours; docs/sbp.md tells what was run. For trimming, deleting, updating and
syncing, ids, metrics and the cluster that client has tables but no operation: those frames were written with its tables
and sent through its connection.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from sbp_back.wire import model
from sbp_back.wire.frame import Frame
from sbp_back.wire.model import RangeServerInfo
from sbp_document.wire import messages as m
from sbp_document.wire.record_batch import parse_batch
from sbp_document.wire.v01 import APRIL
from tests.kit.sbp_frames import Frames
from tests.sbp_document.document_lab import Wire, running
from tests.sbp_document.test_document_tables import Oracle

APRIL = APRIL

FRAMES = {
    "PING": ("0000001017000100000000000100000000000000"),
    "HEARTBEAT": (
        "000000401700030000000000010000300c00000008000c000800070008000000000000030400000013000000766d403838363040"
        "30403238306d6f357079370000000000"
    ),
    "ALLOCATE_ID": (
        "000000301700040000000009010000200c00000008000c0004000800080000008813000004000000010000006800000000000000"
    ),
    "CREATE_STREAMS": (
        "000000a0173001000000000201000090100000000000000008000c00040008000800000088130000040000000400000060000000"
        "3c0000001800000004000000baffffff0000000100badb0000000000eaffffff0000000180cba400000000000000000000000a00"
        "16000000070008000a0000000000000100dd6d00000000000000000000000a0010000000070008000a0000000000000180ee3600"
        "0000000000000000"
    ),
    "DESCRIBE_STREAMS": (
        "00000048173004000000000101000038100000000000000008000c00040008000800000088130000040000000300000001000000"
        "000000000400000000000000671200000000000000000000"
    ),
    "LIST_RANGES": (
        "0000007817200100000000020100006804000000d8ffffff881300000400000002000000480000000c0000000000060008000400"
        "060000000c00000008000c00040008000800000000000000040000000f0000003132372e302e302e313a33343932370008000c00"
        "0000040008000000010000000000000000000000"
    ),
    "APPEND": (
        "000001d71710010000000004010000a8080000000000000088ffffff8813000004000000010000001000000000000a000c000400"
        "000008000a000000180000001f010000100020000c00040000001400000008001000000000000000180000000100000000000000"
        "ffffffffffffffff00000000010000000c00000008000c000800070008000000000000010c00000008000c000400080008000000"
        "00000000040000000f0000003132372e302e302e313a333439323700220000000000000064000000681800000000000000100020"
        "00080000001000000018000400100000001c000000010000000000000064000000000000000068e5cf8b010000010000000c0000"
        "0008000c000400080008000000140000000400000005000000617072696c0000000300000077686f000000009c00000006100000"
        "000c000c0000000000040008000c00000034000000040000000100000004000000acffffff1400000004000000040000006f6e65"
        "30000000000400000070726f7000000000020000003400000004000000dcffffff1400000004000000070000006f6e65302d6b30"
        "00040000004b6579730000000008000c0004000800080000001000000004000000010000007400000003000000546167006f6e65"
        "302d306f71bec3"
    ),
    "FETCH": (
        "000000c8171002000000000a010000b8140000000000000000000a001000040008000c000a000000881300000100000004000000"
        "01000000100000000c000c0004000000000008000c0000001800000000001000100020000c000400000014000000080010000000"
        "00000000180000000100000000000000ffffffffffffffff00000000010000000c00000008000c00080007000800000000000001"
        "0c00000008000c00040008000800000000000000040000000f0000003132372e302e302e313a33343932370000000000"
    ),
    "FETCH_AT_THE_END": (
        "000000d0171002000000013c010000c01000000000000a001000040008000c000a000000bc020000010000000400000001000000"
        "100000000c001800040000000c0008000c00000024000000000010000f0000000000000000000000100020000c00040000001400"
        "000008001000000000000000180000000100000000000000ffffffffffffffff00000000010000000c00000008000c0008000700"
        "08000000000000010c00000008000c00040008000800000000000000040000000f0000003132372e302e302e313a333439323700"
        "00000000"
    ),
    "DESCRIBE_RANGES": (
        "000000481720040000000009010000380c00000008000c0004000800080000008813000004000000010000000c00000008001000"
        "080004000800000000000000010000000000000000000000"
    ),
    "SEAL_RANGES": (
        "000000481720020000000003010000380c00000008000c0004000800080000008813000004000000010000000c00000008001000"
        "080004000800000000000000010000000000000000000000"
    ),
    "TRIM_STREAMS": (
        "00000050173005000000000501000040100000000000000008000c0004000800080000008813000004000000010000000c000000"
        "0800140004000c00080000000100000000000000070000000000000000000000"
    ),
    "UPDATE_STREAMS": (
        "000000501730030000000006010000400c00000008000800000004000800000004000000010000001000000000000a0018000800"
        "070010000a0000000000000103000000000000004d0000000000000000000000"
    ),
    "DELETE_STREAMS": (
        "000000501730020000000007010000400c00000008000800000004000800000004000000010000001000000000000a0018000800"
        "070010000a0000000000000103000000000000004d0000000000000000000000"
    ),
    "SYNC_RANGES": (
        "000000c8172003000000000c010000b8100000000000000008000800000004000800000004000000010000000c00000008001400"
        "0800040008000000100000000200000000000000000000000100000014000000100020000c000400000014000000080010000000"
        "00000000180000000200000000000000ffffffffffffffff00000000010000000c00000008000c00080007000800000000000001"
        "0c00000008000c00040008000800000000000000040000000f0000003132372e302e302e313a33343932370000000000"
    ),
    "REPORT_METRICS": (
        "00000080174001000000000b010000702c00000028001c000800000000000c000000140000000000000000000000000000000000"
        "000000000000060028000000000003001c0000000000000000010000050000000000000008000c00040008000800000000000000"
        "040000000f0000003132372e302e302e313a33343932370000000000"
    ),
    "DESCRIBE_PD_CLUSTER": (
        "0000004c174002000000000a0100003c0c0000000000060008000400060000000c00000008000c00040008000800000000000000"
        "040000000f0000003132372e302e302e313a33343932370000000000"
    ),
}

SERVER = RangeServerInfo(0, "127.0.0.1:34927")
"""As the recorded node was called."""

CLIENT_ID = "vm@8860@0@280mo5py7"


def first_range(stream_id: int) -> m.DocumentRange:
    """A range as CREATE_STREAMS had answered it: the client keeps it and sends it along with APPEND and FETCH."""
    return m.DocumentRange(stream_id, 0, 0, -1, 0, [m.Replica(SERVER, True)])


def frame_of(name: str) -> Frame:
    (frame,) = Frames().feed(bytes.fromhex(FRAMES[name]))
    return frame


BATCH = bytes(frame_of("APPEND").payload)
"""One record, of stream 1. Written with offset 100, which means nothing to a server."""

REQUESTS: dict[str, model.Request] = {
    "PING": model.PingRequest(b"", b""),
    "HEARTBEAT": model.HeartbeatRequest(CLIENT_ID, model.ClientRole.FRONTEND, None),
    "CREATE_STREAMS": m.CreateStreamsRequest(5000, [m.DocumentStream(-1, 1, 3_600_000 * k) for k in (1, 2, 3, 4)]),
    "DESCRIBE_STREAMS": m.DescribeStreamsRequest(5000, [1, 4, 4711]),
    "LIST_RANGES": m.ListRangesRequest(5000, [m.RangeOwner(None, 1), m.RangeOwner(SERVER, -1)]),
    "APPEND": m.AppendBatchRequest(5000, [m.AppendItem(1, 0, BATCH)]),
    "FETCH": m.FetchBatchRequest(5000, 1, [m.FetchItem(1, 0, 0, 1 << 20)]),
    "FETCH_AT_THE_END": m.FetchBatchRequest(700, 1, [m.FetchItem(1, 0, 15, 1 << 20)]),
    "DESCRIBE_RANGES": m.DescribeRangesRequest(5000, [m.RangeId(1, 0)]),
    "SEAL_RANGES": m.SealRangesRequest(5000, [m.RangeId(1, 0)]),
    "TRIM_STREAMS": m.TrimStreamsRequest(5000, [m.TrimItem(1, 7)]),
    "UPDATE_STREAMS": m.UpdateStreamsRequest(0, [m.DocumentStream(3, 1, 77)]),
    "DELETE_STREAMS": m.DeleteStreamsRequest(0, [m.DocumentStream(3, 1, 77)]),
    "ALLOCATE_ID": model.AllocateIdRequest(5000, "h"),
    "SYNC_RANGES": m.SyncRangesRequest(0, [m.StreamRanges(2, [first_range(2)])]),
    "DESCRIBE_PD_CLUSTER": model.DescribePdRequest(SERVER),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_the_client_of_april_sends_is_understood(name: str) -> None:
    frame = frame_of(name)
    data = bytes.fromhex(FRAMES[name])
    assert (frame.flags, len(data)) == (0, 20 + len(frame.header) + len(frame.payload))
    assert int.from_bytes(data[-4:], "big") == zlib.crc32(frame.payload)
    assert APRIL.decode_request(frame.opcode, frame.header, frame.payload) == REQUESTS[name]


def test_what_the_client_of_april_would_report_is_understood() -> None:
    frame = frame_of("REPORT_METRICS")
    report = APRIL.decode_request(frame.opcode, frame.header, frame.payload)
    assert isinstance(report, model.ReportMetricsRequest)
    assert report.range_server == SERVER
    figures = report.metrics
    assert (figures.disk_free_space, figures.memory_used, figures.range_active_cnt) == (1 << 40, 5, 3)


def test_every_frame_of_the_client_of_april_is_under_test() -> None:
    assert set(FRAMES) == {*REQUESTS, "REPORT_METRICS"}


def test_ranges_the_client_of_april_sends_along() -> None:
    """The whole range stands where the document has the stream's id; read by the ``flatbuffers`` package."""
    oracle = Oracle("april")
    for name, message, items in (("APPEND", "APPEND?", "append_requests"), ("FETCH", "FETCH?", "fetch_requests")):
        (item,) = oracle.read(message, frame_of(name).header)[items]
        server = {"server_id": 0, "advertise_addr": SERVER.advertise_addr}
        assert item["range"] == {
            "stream_id": 1,
            "range_index": 0,
            "start_offset": 0,
            "end_offset": -1,
            "next_offset": 0,
            "servers": [{"server": server, "is_primary": True}],
        }


def test_a_batch_of_the_client_of_april() -> None:
    """It counts its last offset from 0, and gives its records offsets of its own, which the server replaces."""
    got = parse_batch(BATCH)
    assert (got.base_offset, got.end_offset, got.meta.last_offset_delta, got.meta.stream_id) == (100, 101, 0, 1)
    assert [(one.key, one.value) for one in got.meta.properties] == [("who", "april")]
    (record,) = got.records
    assert (bytes(record.body), record.timestamp, record.offset) == (b"one0-0", 1_700_000_000_000, 100)
    assert record.headers == [("Tag", "t"), ("Keys", "one0-k0")]
    assert record.properties == [("prop", "one0")]


class Session:
    """The client's side of a connection: its frames, answers read by the ``flatbuffers`` package."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._oracle = Oracle("april")

    async def ask(self, name: str, message: str, change: tuple[bytes, bytes] = (b"", b"")) -> tuple[Any, bytes]:
        """The answer to a recorded frame, and its payload. ``change``: bytes of the frame, and others for them."""
        asked = frame_of(name)
        data = bytes.fromhex(FRAMES[name])
        old, new = change
        assert not old or data.count(old) == 1
        self._wire.writer.write(data.replace(old, new) if old else data)
        frame = await self._wire.frame()
        # This client takes the first frame for the whole answer and knows its request by the id alone.
        assert (frame.opcode, frame.flags, frame.stream_id) == (asked.opcode, 3, asked.stream_id)
        tree = self._oracle.read(message, frame.header)
        assert tree["status"]["code"] == 1200  # "required" in its tables, in every answer and in every element
        return tree, bytes(frame.payload)


async def test_the_client_of_april_gets_what_it_reads(tmp_path: Path) -> None:
    """Its recorded frames one after the other: the codes and fields its operations look at."""
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1-april"]) as wire:
        session = Session(wire)
        wire.writer.write(bytes.fromhex(FRAMES["PING"]))
        pong = await wire.frame()
        assert (pong.opcode, pong.flags, pong.stream_id, pong.header, bytes(pong.payload)) == (1, 3, 0, b"", b"")
        tree, _ = await session.ask("HEARTBEAT", "HEARTBEAT")
        assert (tree["client_id"], tree["client_role"]) == (CLIENT_ID, 3)

        tree, _ = await session.ask("CREATE_STREAMS", "CREATE_STREAM")
        made = tree["create_responses"]
        assert [(one["status"]["code"], one["stream"]["stream_id"]) for one in made] == [(1200, k) for k in range(4)]
        assert [one["stream"]["retention_period_ms"] for one in made] == [3_600_000 * k for k in (1, 2, 3, 4)]
        host, port = embedded.addresses["sbp-v0.1-april"]
        server = {"server_id": 0, "advertise_addr": f"{host}:{port}"}
        opened = {
            "start_offset": 0,
            "end_offset": -1,
            "next_offset": 0,
            "servers": [{"server": server, "is_primary": 1}],
        }
        assert [one["range"] for one in made] == [{"stream_id": k, "range_index": 0, **opened} for k in range(4)]

        tree, _ = await session.ask("DESCRIBE_STREAMS", "DESCRIBE_STREAM")
        assert [one["status"]["code"] for one in tree["describe_responses"]] == [1200, 1404, 1404]
        tree, _ = await session.ask("LIST_RANGES", "LIST_RANGE")
        of_stream, of_server = tree["list_responses"]
        assert (of_stream["status"]["code"], of_stream["owner"]["stream_id"], len(of_stream["ranges"])) == (1200, 1, 1)
        assert (of_server["status"]["code"], of_server["owner"]["range_server"]["server_id"]) == (1200, 0)
        assert len(of_server["ranges"]) == 4

        for offset in range(8):
            tree, _ = await session.ask("APPEND", "APPEND")
            (one,) = tree["append_responses"]
            assert (one["status"]["code"], one["stream_id"], one["request_index"]) == (1200, 1, 0)
            assert one["base_offset"] == offset
            assert one["stream_append_time_ms"] > 0
        tree, _ = await session.ask("DESCRIBE_RANGES", "DESCRIBE_RANGE")
        (one,) = tree["describe_responses"]
        assert (one["status"]["code"], one["range"]["end_offset"], one["range"]["next_offset"]) == (1200, -1, 8)

        tree, payload = await session.ask("FETCH", "FETCH")
        (one,) = tree["fetch_responses"]
        assert (one["status"]["code"], one["request_index"], one["batch_count"]) == (1200, 0, 8)
        assert payload == b"".join(b"\x22" + offset.to_bytes(8, "big") + BATCH[9:] for offset in range(8))
        # It asks for the payload of any answer that is good: there being nothing must be a code.
        end, behind = (bytes([8, *bytes(7)]), bytes([15, *bytes(7)]))
        tree, payload = await session.ask("FETCH_AT_THE_END", "FETCH", (behind, end))
        assert (tree["fetch_responses"][0]["status"]["code"], payload) == (1204, b"")
        tree, payload = await session.ask("FETCH_AT_THE_END", "FETCH")
        assert (tree["fetch_responses"][0]["status"]["code"], payload) == (1461, b"")

        tree, _ = await session.ask("SEAL_RANGES", "SEAL_RANGE")
        (one,) = tree["seal_responses"]
        next_range = {"stream_id": 1, "range_index": 1, **opened, "start_offset": 8, "next_offset": 8}
        assert (one["status"]["code"], one["range"]) == (1200, next_range)
        tree, _ = await session.ask("APPEND", "APPEND")  # with the range it remembers, which is sealed
        assert tree["append_responses"][0]["base_offset"] == 8

        tree, _ = await session.ask("TRIM_STREAMS", "TRIM_STREAM")
        (one,) = tree["trim_responses"]
        assert (one["status"]["code"], one["stream"]["stream_id"], one["range"]["start_offset"]) == (1200, 1, 7)
        tree, _ = await session.ask("FETCH", "FETCH")
        assert tree["fetch_responses"][0]["status"]["code"] == 1463
        tree, _ = await session.ask("UPDATE_STREAMS", "UPDATE_STREAM")
        (one,) = tree["update_responses"]
        assert (one["status"]["code"], one["stream"]["retention_period_ms"]) == (1200, 77)
        tree, _ = await session.ask("DELETE_STREAMS", "DELETE_STREAM")
        (one,) = tree["delete_responses"]
        assert (one["status"]["code"], one["stream"]["stream_id"]) == (1200, 3)
        await session.ask("ALLOCATE_ID", "ALLOCATE_ID")
        tree, _ = await session.ask("DESCRIBE_PD_CLUSTER", "DESCRIBE_PD")
        (node,) = tree["cluster"]["nodes"]
        assert (node["advertise_addr"], node["is_leader"]) == (f"{host}:{port}", 1)
        tree, _ = await session.ask("SYNC_RANGES", "SYNC_RANGE")
        (one,) = tree["sync_responses"]
        assert (one["status"]["code"], one["stream_id"], len(one["ranges"])) == (1200, 2, 1)
