"""What HTTP requests make the node hold is counted in the budget of all connections, and bounded by it."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch_kit.memory.budget import Kind
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from spark_pipeline.node.front import PipelineFront
from tests.kit.waiting import until

MIB = 1024 * 1024
BUDGET = 16 * MIB
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    flags = {
        "data_dir": str(tmp_path),
        "listen.console": "127.0.0.1:0",
        "listen.pipeline": "127.0.0.1:0",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
        "limits.connections_memory_bytes": str(BUDGET),
        "log.tail_cache_bytes": "0",
        "limits.http_request_ms": getattr(request, "param", "60s"),
        "topic_defaults.max.message.bytes": str(8 * MIB),
    }
    fronts = (PipelineFront,)
    made = Node(load(flags, environ={}, directory=tmp_path, fronts=fronts).settings, fronts=fronts)
    await made.start()
    await made.catalog.create_topic("words", 400)
    yield made
    await made.stop()


async def connect(node: Node, listener: str = "console") -> Link:
    address = node.addresses[listener]
    return await asyncio.open_connection(address.host, address.port)


def head(path: str, method: str = "POST", *more: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *more, "", ""]).encode()


RECORDS = "/api/topics/words/records"


async def told(link: Link) -> tuple[int, dict[str, object]]:
    """Status and JSON of the one answer of a connection."""
    answer, _, body = (await link[0].read()).partition(b"\r\n\r\n")
    link[1].close()
    return int(answer.split(b" ", 2)[1]), json.loads(body)


async def all_given_back(node: Node) -> None:
    await until(lambda: not node.budget.held)


async def until_counted_or_too_much(node: Node, base: int, too_much: int) -> int:
    """Bytes of memory taken since ``base``, when somebody waits for memory, or they are too many."""
    while True:
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - base
        if node.budget.waiting or taken > too_much:
            return taken
        await asyncio.sleep(0.05)


async def test_half_lines_hold_no_more_than_the_budget_and_all_of_them_are_stored_in_the_end(node: Node) -> None:
    line = b'{"value":"' + b"x" * (MIB - 100) + b'"}'
    links = [await connect(node) for _ in range(80)]
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        for _, writer in links:
            writer.write(head(RECORDS, "POST", f"Content-Length: {len(line) + 1}", "Connection: close"))
        go = asyncio.Event()
        sending = [asyncio.create_task(whole_line(link, line, go)) for link in links]
        taken = await until_counted_or_too_much(node, base, 4 * BUDGET)
        assert taken < 2 * BUDGET
        assert node.budget.held <= BUDGET
    finally:
        tracemalloc.stop()
    go.set()
    await asyncio.gather(*sending)
    for link in links:
        status, answer = await told(link)
        assert (status, answer["records"]) == (200, 1)
    await all_given_back(node)


async def whole_line(link: Link, line: bytes, go: asyncio.Event) -> None:
    await trickled(link, line)
    await go.wait()
    link[1].write(b"\n")


async def trickled(link: Link, data: bytes) -> None:
    for at in range(0, len(data), 64 * 1024):
        link[1].write(data[at : at + 64 * 1024])
        await link[1].drain()


async def test_one_request_to_many_partitions_does_not_hold_a_batch_of_each(node: Node) -> None:
    value = "x" * 30_000
    lines = [json.dumps({"partition": number, "value": value}).encode() + b"\n" for number in range(400)]
    body = b"".join(lines) * 2
    for log in [node.logs.get("words", number) for number in range(400)]:
        assert log is not None
        await log.ready()
    link = await connect(node)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        link[1].write(head(RECORDS, "POST", f"Content-Length: {len(body)}", "Connection: close"))
        await trickled(link, body)
        status, answer = await told(link)
        peak = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    assert (status, answer["records"]) == (200, 800)
    assert peak < 14 * MIB, peak  # of 24 MiB that are sent
    await all_given_back(node)


async def test_what_readers_are_sent_is_counted_until_they_take_it(node: Node) -> None:
    body = b"".join(json.dumps({"partition": 0, "value": "x" * 100_000}).encode() + b"\n" for _ in range(100))
    link = await connect(node)
    link[1].write(head(RECORDS, "POST", f"Content-Length: {len(body)}", "Connection: close") + body)
    assert (await told(link))[0] == 200
    links = [await connect(node) for _ in range(60)]
    for _, writer in links:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(head(RECORDS + "?partition=0", "GET"))
    await until(lambda: node.budget.by_kind[Kind.READS] >= 60 * 16 * 1024 or node.budget.waiting)
    assert node.budget.held <= BUDGET
    for _, writer in links:
        writer.transport.abort()
    await all_given_back(node)


async def test_what_a_large_record_decompresses_to_is_counted_while_a_reader_takes_it(node: Node) -> None:
    log = node.logs.get("words", 0)
    assert log is not None
    stored: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    size = 12 * MIB
    batch = encode([Record(None, bytes(size), timestamp=1)], codec=1)
    assert len(batch) < 64 * 1024
    log.append(Batch(batch, 1, int(FormatId.KAFKA), 1), lambda at, error: stored.set_result(error))
    assert await stored is None
    _, writer = await connect(node)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(head(RECORDS + "?partition=0", "GET"))
    await until(lambda: node.budget.by_kind[Kind.READS] >= size)
    writer.transport.abort()
    await all_given_back(node)


@pytest.mark.parametrize("codec", [1, 4], ids=["gzip", "zstd"])
async def test_large_records_wait_for_room_as_they_are_decompressed(node: Node, codec: int) -> None:
    log = node.logs.get("words", 0)
    assert log is not None
    stored: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    size = 8 * MIB
    batch = encode([Record(None, b"x" * size, timestamp=1)], codec=codec)
    log.append(Batch(batch, 1, int(FormatId.KAFKA), 1), lambda at, error: stored.set_result(error))
    assert await stored is None
    links = [await connect(node) for _ in range(6)]
    for _, writer in links:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(head(RECORDS + "?partition=0", "GET", "Connection: close"))
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        taken = await until_counted_or_too_much(node, base, 6 * size)
        assert taken < 2 * BUDGET, "those that wait hold nothing much"
    finally:
        tracemalloc.stop()
    assert node.budget.held <= BUDGET

    async def read(link: Link) -> int:
        link[1].transport.resume_reading()  # type: ignore[attr-defined]
        found = 0
        while piece := await link[0].read(MIB):
            found += piece.count(b"x")
            assert node.budget.held <= BUDGET
        link[1].close()
        return found

    assert min(await asyncio.gather(*map(read, links))) >= size
    await all_given_back(node)


@pytest.mark.parametrize("node", ["500ms"], indirect=True)
async def test_half_sent_bodies_of_json_wait_for_memory_and_are_given_up(node: Node) -> None:
    for listener, path in (("console", "/api/topics"), ("pipeline", "/v1/positions")):
        links = [await connect(node, listener) for _ in range(40)]
        for _, writer in links:
            writer.write(head(path, "POST", f"Content-Length: {MIB}") + b"{" * 1000)
        await until(lambda: node.budget.waiting)
        assert node.budget.held <= BUDGET
        if listener == "console":
            for link in links:
                assert (await link[0].readuntil(b"\r\n")).split()[1] in (b"408", b"503")
        for _, writer in links:
            writer.transport.abort()
        await all_given_back(node)


@pytest.mark.parametrize("node", ["500ms"], indirect=True)
async def test_a_stalled_body_of_records_is_told_how_many_of_it_are_stored(node: Node) -> None:
    link = await connect(node)
    body = b'{"value": "a"}\n{"value": "b"}\n{"val'
    link[1].write(head(RECORDS, "POST", "Content-Length: 1000") + body)
    status, answer = await told(link)
    assert (status, answer["stored"]) == (408, 2)
    await all_given_back(node)


@pytest.mark.parametrize(
    ("more", "body"),
    [
        ((), b"[" * 100_000),
        ((), b'{"name":' * 100_000),
        (("Content-Encoding: gzip",), b"no gzip at all"),
        ((), b"{x}"),
        ((), b"\xff\xfe"),
        ((), b"[]"),
    ],
)
async def test_a_body_that_is_no_json_for_us_is_told_so(node: Node, more: tuple[str, ...], body: bytes) -> None:
    link = await connect(node)
    link[1].write(head("/api/topics", "POST", f"Content-Length: {len(body)}", "Connection: close", *more) + body)
    assert (await told(link))[0] == 400
    link = await connect(node)
    link[1].write(head("/api/topics", "POST", "Transfer-Encoding: chunked", "Connection: close", *more))
    link[1].write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert (await told(link))[0] == 400
    await all_given_back(node)
