"""Clients of the pipeline's listener that mean ill, or die: what they cost is bounded, and others do not notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from spark_pipeline.core.client.node_client import NodeUnavailable
from spark_pipeline.core.client.sink_client import SinkBatch, SinkDriver, SinkTask
from tests.kit.waiting import until
from tests.spark_pipeline.node.pipeline_lab import Lab, batch_of, client_of, committed, open_lab

MEMORY = 8 * 1024 * 1024


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    limits = {"limits.connections_memory_bytes": str(MEMORY), "pipeline.transactions": "20"}
    made = await open_lab(tmp_path, **limits, **{"pipeline.request_ms": "1500"})
    await made.node.catalog.create_topic("t", 1)
    yield made
    await made.close()


Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(lab: Lab) -> Link:
    address = lab.node.addresses["pipeline"]
    return await asyncio.open_connection(address.host, address.port)


def head(path: str, length: int | str, method: str = "POST") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


async def answer(link: Link) -> bytes:
    """The first line that the node says; nothing if it just closes the connection."""
    with suppress(ConnectionError):
        return await link[0].readline()
    return b""


async def write_one(lab: Lab, number: int) -> None:
    """What a sink that means well does, all of it."""
    batch = SinkBatch("good", number)
    task = SinkTask(lab.client, batch, 0, timeout_ms=60_000, request_bytes=1 << 20)
    assert await lab.ask(task.begin)
    task.add("t", 0, batch_of(b"%d" % number))
    assert await lab.ask(SinkDriver(lab.client).commit, batch, [await lab.ask(task.finish)]) is False


async def nothing_held(lab: Lab) -> None:
    """Returns once no request holds memory."""
    await until(lambda: not lab.node.budget.held)


async def test_requests_that_never_end_are_given_up_and_hold_no_more_than_there_is(lab: Lab) -> None:
    links = [await connect(lab) for _ in range(30)]
    for number, (_, writer) in enumerate(links):
        path = ("/v1/positions", "/v1/sink/append", "/v1/jobs")[number % 3]
        writer.write(head(path, 1_000_000) + b"\0\0\0\x40{")
    answers = asyncio.gather(*(answer(link) for link in links))
    await write_one(lab, 0)
    assert lab.node.budget.held <= MEMORY
    told = await answers
    assert all(b" 408 " in one or not one for one in told)
    for _, writer in links:
        writer.close()
    assert any(told)
    await nothing_held(lab)
    await write_one(lab, 1)
    assert await committed(lab, "t") == [b"0", b"1"]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (head("/v1/sink/append", 17 * 1024 * 1024), b"413"),
        (head("/v1/positions", 2**62), b"413"),
        (head("/v1/positions", "-5"), b"400"),
        (head("/v1/positions", "many"), b"400"),
        (b"POST /v1/positions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"411"),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", b"415"),
        (
            b"POST /v1/positions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\nContent-Length: 2\r\n\r\n{}",
            b"403",
        ),
        (head("/v1/nowhere", 0), b"404"),
        (head("/v1/sink/commit", 0, "GET"), b"405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", b"400"),
    ],
)
async def test_requests_that_are_refused_at_once(lab: Lab, request_bytes: bytes, status: bytes) -> None:
    reader, writer = await connect(lab)
    writer.write(request_bytes)
    line = await reader.readline()
    assert line.split(b" ")[1] == status
    writer.close()
    assert lab.node.budget.held == 0


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing(lab: Lab) -> None:
    task = SinkTask(lab.client, SinkBatch("gone", 0), 0, timeout_ms=500, request_bytes=1 << 20)
    await lab.ask(task.begin)
    assert task.attempt is not None
    producer, epoch = task.attempt
    batch = batch_of(*[b"x" * 1000] * 100)
    told = json.dumps({"producer": producer, "epoch": epoch, "batches": [["t", 0, batch.size]]}).encode()
    body = len(told).to_bytes(4) + told + batch.header(producer, epoch, 0) + bytes(batch.body)
    for cut in (10, len(body) // 2, len(body)):
        _, writer = await connect(lab)
        writer.write(head("/v1/sink/append", len(body)) + body[:cut])
        await writer.drain()
        writer.transport.abort()
    await nothing_held(lab)
    # Whatever of it was written is ended, and holds nobody back for longer than it said.
    log = lab.log("t")
    await write_one(lab, 0)
    await log.until(lambda: log.last_stable_offset == log.high_watermark)
    assert await committed(lab, "t") == [b"0"]


async def test_a_client_that_does_not_take_its_answer_is_cut(lab: Lab) -> None:
    for number in range(60):
        await lab.node.catalog.create_topic(f"{number:0>200}", 1)
    _, writer = await connect(lab)
    writer.write(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await write_one(lab, 0)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    writer.close()
    await nothing_held(lab)


async def test_attempts_that_nobody_ends_are_bounded_and_expire(lab: Lab) -> None:
    flood = client_of(lab.node)

    def begin(number: int, timeout_ms: int) -> None:
        asked = {"query": f"q{number}", "batch": 0, "task": 0, "nonce": f"{number}", "timeout_ms": timeout_ms}
        flood.post("/v1/sink/begin", asked, patience=0)

    for number in range(20):
        await lab.ask(begin, number, 1500)
    with pytest.raises(NodeUnavailable, match="20 attempts with open transactions"):
        await lab.ask(begin, 21, 1500)
    # Who means well waits, and gets its turn when the others have been silent for as long as they said.
    await write_one(lab, 0)
    for attempt in lab.writes.attempts.all():
        await attempt.ended.wait()
    assert lab.writes.expired == 20
    flood.close()
