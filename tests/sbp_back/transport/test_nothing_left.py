"""Connections to the backend's listeners that have ended, however they did, go at once and not when the collector finds
them."""

from __future__ import annotations

import struct
from pathlib import Path

from sbp_back.wire import model as m
from sbp_back.wire.frame import FLAG_RESPONSE, encode_frame
from sbp_document.wire import messages as doc
from tests.kit.waiting import until
from tests.left_behind import End, Link, left_behind, on_link
from tests.sbp_document.document_lab import DIALECTS, LISTENERS, appended, batch, carrier, created, running

LENGTH = struct.Struct(">I")
NOWHERE = m.RangeInfo(12345, 0, 0, 0)
EVER_MS = 60_000
OWN = ("sbp-pd", "sbp-range-server")
"""Listeners that speak sbp-0.2; the others speak the dialect that they are called like."""


def frame(dialect: str, request: m.Request, stream_id: int = 3) -> bytes:
    opcode, header, payload = DIALECTS[dialect].encode_request(request)
    return b"".join(encode_frame(opcode, 0, stream_id, header, payload))


def bare(opcode: int, flags: int = 0, header: bytes = b"") -> bytes:
    return b"".join(encode_frame(opcode, flags, 3, header, []))


def sends(dialect: str, data: bytes, answers: int = 0) -> End:
    """Has a ping answered, sends ``data`` and goes when so many answers to it have come."""
    ping = frame(dialect, m.PingRequest(b"", b""), 1)

    async def end(link: Link) -> None:
        await link.send(ping + data)
        for _ in range(1 + answers):
            await link.frame(LENGTH)
        link.reset()

    return end


def is_cut(dialect: str, data: bytes) -> End:
    """Sends what the server does not put up with."""

    async def end(link: Link) -> None:
        await link.send(frame(dialect, m.PingRequest(b"", b""), 1) + data)
        await link.closed()

    return end


def ends(dialect: str, waiting: m.Request, *requests: m.Request) -> dict[str, End]:
    """``requests`` are answered, ``waiting`` is not so soon."""
    large = frame(dialect, m.PingRequest(b"", bytes(1 << 20)))
    return {
        "an answer has come": sends(dialect, b""),
        "within a small frame": sends(dialect, large[:20]),
        "within a large frame": sends(dialect, large[:100_000]),
        "an answer of a client's": is_cut(dialect, bare(m.Opcode.PING, FLAG_RESPONSE)),
        "while a request waits": sends(dialect, frame(dialect, waiting)),
        **{
            f"{type(one).__name__} {number}": sends(dialect, frame(dialect, one), 1)
            for number, one in enumerate(requests)
        },
    }


async def test_nothing_is_left_of_a_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as embedded:
        to_server = carrier(embedded, "in-process")
        stream = await created(to_server)
        await appended(to_server, stream, b"x")
        fetch = doc.FetchItem(stream, 0, 0, 1000)
        of_document = (
            doc.FetchBatchRequest(EVER_MS, 1 << 20, [fetch]),
            doc.FetchBatchRequest(0, 0, [fetch]),
            doc.FetchBatchRequest(0, 0, [doc.FetchItem(12345, 0, 0, 1000)]),
            doc.AppendBatchRequest(0, [doc.AppendItem(stream, 0, batch(b"x"))]),
            doc.AppendBatchRequest(0, [doc.AppendItem(12345, 0, batch(b"x"))]),
            doc.AppendBatchRequest(0, [doc.AppendItem(stream, 0, b"no batch")]),
            doc.DescribeStreamsRequest(stream_ids=[12345]),
        )
        own = (
            m.FetchRequest(m.RangeInfo(stream, 0, 0, 0), 1, max_wait_ms=EVER_MS, max_bytes=1000),
            m.FetchRequest(NOWHERE, 0, max_bytes=1000),
            m.SealRangeRequest(NOWHERE),
            m.CreateRangeRequest(NOWHERE),
            m.DescribeStreamRequest(12345),
            m.DeleteStreamRequest(12345),
            m.ListRangeRequest(),
        )
        listeners = embedded.listeners
        found: dict[str, dict[str, dict[str, int]]] = {}

        async def over() -> None:
            await until(lambda: not any(len(listener.connections) for listener in listeners.values()))

        for name in LISTENERS:
            dialect = "sbp-0.2" if name in OWN else name.removesuffix("-range-server")
            kinds = ends(dialect, *(own if name in OWN else of_document))
            address = embedded.addresses[name]
            left = await left_behind({kind: on_link(address, end) for kind, end in kinds.items()}, over)
            if left:
                found[name] = left
        assert found == {}
