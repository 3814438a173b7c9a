"""sbp-v0.1 on a socket: what the specification document says of frames rather than of messages."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from sbp_back.errors import ErrorCode
from sbp_back.transport import connection
from sbp_back.transport.tcp_carrier import TcpCarrier
from sbp_back.wire import model
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.frame import encode_frame
from sbp_back.wire.model import Opcode, Status, SystemErrorResponse
from sbp_back.wire.v02 import DialectV02
from sbp_document.wire import messages as m
from sbp_document.wire.v01 import APRIL, V01
from tests.kit.waiting import until
from tests.sbp_document.document_lab import Wire, appended, batch, carrier, created, fetched, running
from tests.sbp_document.test_document_tables import Oracle

DOC = V01
V02 = DialectV02()


async def test_document_pong_has_both_flags(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        wire.send(1, 5, b"head", b"payload")
        frame = await wire.frame()
        assert (frame.opcode, frame.flags, frame.stream_id) == (1, 3, 5)
        assert (frame.header, bytes(frame.payload)) == (b"head", b"payload")


async def test_document_unknown_opcodes_are_discarded(tmp_path: Path) -> None:
    """ "Implementations MUST ignore and discard": nothing is answered, the id is free, the connection goes on."""
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        for opcode in (0, 0x1003, 0x2006, 0x5001, 0xFFFF):
            wire.send(opcode, 9, b"whatever", b"and more")
        wire.send(1, 9)
        frame = await wire.frame()
        assert (frame.opcode, frame.flags, frame.stream_id) == (1, 3, 9)


async def test_document_foreign_magic_is_discarded(tmp_path: Path) -> None:
    """ "Implementations MUST discard any frame that does not contain the correct magic number"."""
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        for size in (0, 50, 200_000):
            foreign = bytearray(b"".join(encode_frame(1, 0, 3, b"x", [bytes(size)])))
            foreign[4] = 24
            wire.writer.write(bytes(foreign))
            wire.send(1, size, b"mine")
            frame = await wire.frame()
            assert (frame.stream_id, frame.header) == (size, b"mine")


async def test_document_unused_flags_are_ignored(tmp_path: Path) -> None:
    """ "The rest of the flags are currently unused and ignored"."""
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        opcode, header, _ = DOC.encode_request(m.CreateStreamsRequest(streams=[m.DocumentStream(-1, 1, 0)]))
        for stream_id, flag in enumerate((0x08, 0x10, 0x20, 0x40, 0x80, 0xF8), start=1):
            wire.send(opcode, stream_id, header, flags=flag)
            frame = await wire.frame()
            assert (frame.flags, frame.stream_id) == (3, stream_id)
            answer: Any = Oracle("doc").read("CREATE_STREAM", frame.header)
            assert answer["create_responses"][0]["status"]["code"] == 0


async def test_document_negative_stream_ids_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        wire.send(1, 0xFFFFFFFF)
        frame = await wire.frame()
        assert (frame.flags, frame.stream_id) == (7, 0xFFFFFFFF)
        answer = DOC.decode_response(1, frame.flags, frame.header, b"")
        assert answer == SystemErrorResponse(Status(ErrorCode.BAD_REQUEST, "stream id -1 is negative"))
        wire.send(1, 0)
        assert (await wire.frame()).stream_id == 0


async def test_document_statuses_have_the_documents_codes(tmp_path: Path) -> None:
    """Read by the flatbuffers package, which knows nothing of our translation."""
    oracle = Oracle("doc")
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        wire.request(DOC, 1, m.CreateStreamsRequest(streams=[m.DocumentStream(-1, 1, 0), m.DocumentStream(-1, 0, 0)]))
        answer = oracle.read("CREATE_STREAM", (await wire.frame()).header)
        assert answer["status"]["code"] == 0
        assert [one["status"]["code"] for one in answer["create_responses"]] == [0, 2]
        wire.request(DOC, 2, m.DescribeStreamsRequest(stream_ids=[0, 4711]))
        answer = oracle.read("DESCRIBE_STREAM", (await wire.frame()).header)
        assert [one["status"]["code"] for one in answer["describe_responses"]] == [0, 1]
        assert answer["describe_responses"][1]["status"]["message"] == "1404 NOT_FOUND: there is no stream 4711"
        wire.request(DOC, 3, m.FetchBatchRequest(0, 0, [m.FetchItem(0, 4, 0, 100)]))
        frame = await wire.frame()
        (result,) = oracle.read("FETCH", frame.header)["fetch_responses"]
        assert (result["status"]["code"], result["batch_length"], bytes(frame.payload)) == (0, 0, b"")


async def test_april_statuses_have_the_codes_of_their_time(tmp_path: Path) -> None:
    oracle = Oracle("april")
    april = APRIL
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1-april"]) as wire:
        wire.request(april, 1, m.CreateStreamsRequest(streams=[m.DocumentStream(-1, 1, 0), m.DocumentStream(-1, 0, 0)]))
        answer = oracle.read("CREATE_STREAM", (await wire.frame()).header)
        assert [one["status"]["code"] for one in answer["create_responses"]] == [1200, 1400]
        items = [m.AppendItem(0, 5, batch(b"a", b"b")), m.AppendItem(0, 6, batch(b"c"))]
        wire.request(april, 2, m.AppendBatchRequest(0, items))
        answer = oracle.read("APPEND", (await wire.frame()).header)
        assert [(one["request_index"], one["base_offset"]) for one in answer["append_responses"]] == [(5, 0), (6, 2)]
        wire.request(april, 3, m.FetchBatchRequest(0, 0, [m.FetchItem(0, 4, 0, 0)]))
        (result,) = oracle.read("FETCH", (await wire.frame()).header)["fetch_responses"]
        assert (result["status"]["code"], result["batch_count"]) == (1200, 2)


async def test_document_0x2004_is_answered_as_it_was_asked(tmp_path: Path) -> None:
    """The document gives DESCRIBE_RANGES two opcodes; the second is CREATE_RANGE's (docs/protocols/sbp.md,
    "Contradictions of the document", 1)."""
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        wire.request(DOC, 1, m.CreateStreamsRequest(streams=[m.DocumentStream(-1, 1, 0)]))
        await wire.frame()
        _, header, _ = DOC.encode_request(m.DescribeRangesRequest(ranges=[m.RangeId(0, 0)]))
        for stream_id, opcode in ((2, 0x2004), (3, 0x2005)):
            wire.send(opcode, stream_id, header)
            frame = await wire.frame()
            assert (frame.opcode, frame.flags) == (opcode, 3)
            answer: Any = Oracle("doc").read("DESCRIBE_RANGE", frame.header)
            (result,) = answer["describe_responses"]
            assert (result["range"]["stream_id"], result["range"]["end_offset"]) == (0, -1)
        wire.request(DOC, 4, m.NextRangeRequest(range=m.DocumentRange(0)))
        answer = Oracle("doc").read("CREATE_RANGE", (await wire.frame()).header)
        assert answer["status"]["message"].startswith("1470 CREATE_RANGE_BEFORE_SEAL: ")


async def test_document_answer_in_several_frames(tmp_path: Path) -> None:
    """All have the request's stream id; END is set in the last alone."""
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        inside = carrier(embedded, "in-process")
        streams = [await created(inside) for _ in range(3)]
        await appended(inside, streams[0], b"there")
        items = [m.FetchItem(stream_id, k, 0, 0) for k, stream_id in enumerate(streams)]
        wire.request(DOC, 77, m.FetchBatchRequest(60_000, 0, items))
        seen = []
        for k in range(3):
            if k:
                await appended(inside, streams[k], b"later")
            frame = await wire.frame()
            answer = DOC.decode_response(Opcode.FETCH, frame.flags, frame.header, frame.payload)
            assert isinstance(answer, m.FetchBatchResponse)
            seen.append((frame.opcode, frame.stream_id, frame.flags, [one.request_index for one in answer.results]))
            # Others are served meanwhile.
            wire.send(1, 100 + k)
            assert (await wire.frame()).stream_id == 100 + k
        assert seen == [(0x1002, 77, 1, [0]), (0x1002, 77, 1, [1]), (0x1002, 77, 3, [2])]


async def test_document_append_is_answered_in_several_frames(tmp_path: Path) -> None:
    """A refusal is told at once; it does not wait for what has to become durable."""
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        stream_id = await created(carrier(embedded, "in-process"))
        items = [m.AppendItem(stream_id, 1, batch(b"a")), m.AppendItem(stream_id, 2, b"no batch")]
        wire.request(DOC, 9, m.AppendBatchRequest(0, [*items, m.AppendItem(stream_id, 3, batch(b"b", b"c"))]))
        seen = []
        for _ in range(2):
            frame = await wire.frame()
            results: Any = Oracle("doc").read("APPEND", frame.header)["append_responses"]
            told = [(one["request_index"], one["status"]["code"], one["base_offset"]) for one in results]
            seen.append((frame.opcode, frame.stream_id, frame.flags, told))
        assert seen == [(0x1001, 9, 1, [(2, 2, -1)]), (0x1001, 9, 3, [(1, 0, 0), (3, 0, 1)])]


async def test_document_stream_id_is_taken_until_the_last_frame(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        inside = carrier(embedded, "in-process")
        first, second = await created(inside), await created(inside)
        await appended(inside, first, b"there")
        request = m.FetchBatchRequest(60_000, 0, [m.FetchItem(first, 0, 0, 0), m.FetchItem(second, 1, 0, 0)])
        wire.request(DOC, 5, request)
        assert (await wire.frame()).flags == 1
        wire.send(1, 5)
        with pytest.raises(EOFError):
            await wire.frame()


async def test_document_malformed_tables_are_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        for stream_id, header in enumerate((b"", b"\xff" * 40, bytes(100)), start=1):
            wire.send(Opcode.FETCH, stream_id, header)
            frame = await wire.frame()
            assert (frame.flags, frame.stream_id) == (7, stream_id)
            status = Oracle("doc").read("SystemError", frame.header)["status"]
            assert status["code"] == 3
            assert "this listener speaks sbp-v0.1" in status["message"]


async def test_document_malformed_frames_cost_only_their_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as other:
        other_format = bytearray(b"".join(encode_frame(1, 0, 1, b"header")))
        other_format[12] = 2
        for bad in (b"\0\0\0\1" + bytes(30), b"\x7f\xff\xff\xff" + bytes(30), bytes(other_format)):
            async with Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
                wire.writer.write(bad)
                with pytest.raises(EOFError):
                    await wire.frame()
        other.send(1, 1)
        assert (await other.frame()).stream_id == 1


async def test_document_goaway_when_it_stops(tmp_path: Path) -> None:
    """Also to a client whose fetch waits for data, which is answered first."""
    async with running(tmp_path) as embedded:
        inside = carrier(embedded, "in-process")
        stream_id = await created(inside)
        async with Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
            wire.request(DOC, 8, m.FetchBatchRequest(300_000, 0, [m.FetchItem(stream_id, 0, 0, 0)]))
            await until(lambda: embedded.range_server.waiting_fetches > 0)
            closing = asyncio.ensure_future(embedded.close())
            frames = [await wire.frame(), await wire.frame()]
            assert sorted((frame.opcode, frame.flags) for frame in frames) == [(0x0002, 0), (0x1002, 3)]
        await closing


# --- wrong dialects -------------------------------------------------------------------------------------------------

RANGE = model.RangeInfo(1, 2, 3, 4, 5, [model.RangeServerInfo(6, "host:1")], 1, 1)
REQUESTS_OF_02: list[model.Request] = [
    model.AppendRequest(5, [pack_entry(1, 2, 3, 4, 5, 6, b"payload")]),
    model.FetchRequest(RANGE, 4),
    model.ListRangeRequest(5, -1, 7),
    model.SealRangeRequest(RANGE),
    model.CreateRangeRequest(RANGE),
    model.CreateStreamRequest(model.StreamInfo()),
    model.DeleteStreamRequest(7),
    model.UpdateStreamRequest(model.StreamInfo(7)),
    model.DescribeStreamRequest(7),
    model.TrimStreamRequest(7, 8),
    model.ReportMetricsRequest(model.RangeServerInfo(7, "host:1"), model.RangeServerMetrics(1, 2, 3)),
]
REQUESTS_OF_01: list[model.Request] = [
    m.AppendBatchRequest(5, [m.AppendItem(1, 2, batch(b"a"))]),
    m.FetchBatchRequest(5, 6, [m.FetchItem(1, 2, 3, 4)]),
    m.ListRangesRequest(5, [m.RangeOwner(None, 7)]),
    m.SealRangesRequest(5, [m.RangeId(7, 8)]),
    m.NextRangeRequest(range=m.DocumentRange(1, 2, 3, -1, 5), timeout_ms=6),
    m.CreateStreamsRequest(5, [m.DocumentStream(-1, 1, 0)]),
    m.DeleteStreamsRequest(5, [m.DocumentStream(7)]),
    m.UpdateStreamsRequest(5, [m.DocumentStream(7, 1, 0)]),
    m.DescribeStreamsRequest(5, [7]),
    m.TrimStreamsRequest(5, [m.TrimItem(7, 8)]),
    model.ReportMetricsRequest(model.RangeServerInfo(7, "host:1"), model.RangeServerMetrics(1, 2, 3)),
]


async def test_a_client_of_sbp_02_is_told_what_the_document_listener_speaks(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses["sbp-v0.1"]) as wire:
        for stream_id, request in enumerate(REQUESTS_OF_02, start=1):
            wire.request(V02, stream_id, request)
            frame = await wire.frame()
            assert (frame.flags, frame.stream_id) == (7, stream_id), request
            # As that client reads it.
            answer = V02.decode_response(frame.opcode, frame.flags, frame.header, frame.payload)
            assert isinstance(answer, SystemErrorResponse)
            assert (answer.status.code, "speaks sbp-v0.1" in answer.status.message) == (3, True)


@pytest.mark.parametrize("listener", ["sbp-pd", "sbp-range-server"])
async def test_a_client_of_the_document_is_told_what_a_listener_of_sbp_02_speaks(tmp_path: Path, listener: str) -> None:
    async with running(tmp_path) as embedded, Wire.connect(embedded.addresses[listener]) as wire:
        for stream_id, request in enumerate(REQUESTS_OF_01, start=1):
            wire.request(DOC, stream_id, request)
            frame = await wire.frame()
            assert (frame.flags, frame.stream_id) == (7, stream_id), request
            answer = DOC.decode_response(frame.opcode, frame.flags, frame.header, frame.payload)
            assert isinstance(answer, SystemErrorResponse)
            assert (answer.status.code, "speaks sbp-0.2" in answer.status.message) == (1400, True)


async def test_a_wrong_dialect_does_not_hang_a_client(tmp_path: Path) -> None:
    """Each client library at the other one's listener: an error, at once."""
    async with running(tmp_path) as embedded:
        wrong = TcpCarrier(*embedded.addresses["sbp-v0.1"], V02)
        answer = await wrong.call(model.CreateStreamRequest(model.StreamInfo()))
        assert answer.status.code == ErrorCode.UNSUPPORTED_VERSION
        await wrong.close()
        wrong = TcpCarrier(*embedded.addresses["sbp-pd"], DOC)
        answer = await wrong.call(m.DescribeStreamsRequest(stream_ids=[1]))
        assert "speaks sbp-0.2" in answer.status.message
        await wrong.close()


async def test_a_long_answer_is_checksummed_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long it is, a client chooses: tens of them that ask for megabytes must not hold up everybody else."""
    encoded: list[tuple[int, bool]] = []
    encode = connection.encode_frame

    def noted(opcode: int, flags: int, stream_id: int, header: Any = b"", payload: Any = (), crc: int = -1) -> Any:
        here = threading.current_thread() is threading.main_thread()
        encoded.append((sum(map(len, payload)), here))
        return encode(opcode, flags, stream_id, header, payload, crc)

    async with running(tmp_path) as embedded:
        to = carrier(embedded, "tcp")
        stream_id = await created(to)
        for _ in range(8):
            assert (await appended(to, stream_id, bytes(300_000))).status == Status()
        monkeypatch.setattr(connection, "encode_frame", noted)
        found = await fetched(to, stream_id, 0, max_bytes=4 << 20)
        assert found.size > 2_000_000
        await to.close()
    assert [here for size, here in encoded if size > 1 << 20] == [False]
