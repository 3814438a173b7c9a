"""What becomes of YDB's writers when partitions are split, and when nobody takes their answers: in a node of the test's
own process."""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch_kit.memory.budget import Kind
from bridges.node.assembly import Node
from tests.kit.waiting import until
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.service.test_read_lineage import PATIENCE, allow_splits, node, of_client, split
from tests.ydb_topic_front.service.test_write import Session, refused
from ydb_topic_front.front import YdbFront
from ydb_topic_front.service.core import YdbService
from ydb_topic_front.service.write.stream import WriteStream
from ydb_topic_front.service.write.writing import Writing
from ydb_topic_front.wire.messages import StreamWriteFromClient, StreamWriteFromServer
from ydb_topic_front.wire.statuses import Issue, Status

__all__ = ["node"]

PRODUCERS = [f"p{number}" for number in range(12)]
MEBIBYTE = 1024**2


async def test_producers_of_a_partition_that_is_split_go_on_in_its_children(node: Node) -> None:
    loop = asyncio.get_running_loop()

    def before(raw: RawClient) -> None:
        for producer in PRODUCERS:
            session = Session(raw, "t", producer_id=producer)
            session.write(1, 5)
            session.end()
        session = Session(raw, "t", producer_id="staying")
        session.write(1)
        asyncio.run_coroutine_threadsafe(split(node), loop).result(PATIENCE)
        session.send(1, 2)
        end = session.stream.rest()
        assert end[-1].status == Status.OVERLOADED
        assert end[-1].issues[0].issue_code == Issue.PARTITION_INACTIVE
        got, _ = refused(raw, {"init_request": {"path": "t", "partition_id": 0}})
        assert got == Status.OVERLOADED

    places: dict[str, int] = {}

    def after(raw: RawClient) -> None:
        for producer in PRODUCERS:
            session = Session(raw, "t", producer_id=producer)
            places[producer] = session.init.partition_id
            assert session.init.last_seq_no == 5
            # What the parent has is known in the child.
            (first, second), other = session.write(4, 5), session.write(5, 6)
            assert (first, second, other[0]) == ((4, None), (5, None), (5, None))
            assert other[1][1] is not None
            session.end()
        assert set(places.values()) == {1, 2}

    def again(raw: RawClient) -> None:
        for producer in PRODUCERS:
            session = Session(raw, "t", producer_id=producer)
            assert (session.init.partition_id, session.init.last_seq_no) == (places[producer], 6)
            session.end()
            elsewhere = {"path": "t", "producer_id": producer, "partition_id": 3 - places[producer]}
            assert refused(raw, {"init_request": elsewhere})[0] == Status.BAD_REQUEST

    await of_client(lambda raw: raw.result("CreateTopic", path="t"), node)
    await allow_splits(node)
    await of_client(before, node)
    await of_client(after, node)
    await of_client(again, node)


class Stream:
    """What a session has of a gRPC stream: messages to read, and a client that takes answers when it is told to."""

    host = peer = "test"
    address = ("test", 1)
    listener = "ydb"
    certificate_name = ""

    def __init__(self, node: Node) -> None:
        self.account = node.budget.account(lambda: None)
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.answers: list[Any] = []
        self.taking = asyncio.Event()
        self.reading = False
        self.reads = 0

    def header(self, name: str) -> str:
        return ""

    def replace_header(self, name: str, value: str) -> None:
        pass

    def when_draining(self, callback: object) -> None:
        pass

    async def read(self) -> bytes | None:
        self.reading = True
        self.reads += 1
        raw = await self.messages.get()
        self.reading = False
        if raw is not None:
            self.account.take(Kind.REQUESTS, len(raw))
        return raw

    async def write(self, raw: bytes) -> None:
        await self.taking.wait()
        self.answers.append(StreamWriteFromServer.FromString(raw))

    def send(self, **fields: Any) -> None:
        self.messages.put_nowait(StreamWriteFromClient(**fields).SerializeToString())


async def test_a_client_that_takes_no_answers_is_read_no_further(node: Node) -> None:
    """Until it takes them; and nothing stays counted."""
    await of_client(lambda raw: raw.result("CreateTopic", path="t"), node)
    service = YdbService(node.services(YdbFront))
    await service.load()
    stream: Any = Stream(node)
    before = node.budget.held
    session = WriteStream(Writing(service), stream)
    serving = asyncio.create_task(session.serve())
    stream.send(init_request={"path": "t", "producer_id": "p"})
    number = 40
    for seq_no in range(1, number + 1):
        message = {"seq_no": seq_no, "data": bytes(MEBIBYTE)}
        stream.send(write_request={"messages": [message], "codec": 1})
    log = service.logs.get("t", 0)
    assert log is not None
    most = service.settings.unacknowledged_bytes_per_stream // MEBIBYTE + 1
    async with asyncio.timeout(PATIENCE):
        await until(
            lambda: not stream.reading and log.high_watermark >= most - 1 and log.next_offset == log.high_watermark
        )
        assert stream.messages.qsize() >= number - most
        stream.taking.set()
        stream.messages.put_nowait(None)
        await serving
    opened, *answers = stream.answers
    assert opened.HasField("init_response")
    assert [one.write_response.acks[0].seq_no for one in answers] == list(range(1, number + 1))
    stream.account.close()
    assert node.budget.held == before
    await service.topics.close()


async def test_a_client_that_goes_away_leaves_nothing_behind(node: Node) -> None:
    await of_client(lambda raw: raw.result("CreateTopic", path="t"), node)
    service = YdbService(node.services(YdbFront))
    await service.load()
    writing = Writing(service)
    before = node.budget.held
    for producer in ("p", "p", "q"):
        stream: Any = Stream(node)
        session = WriteStream(writing, stream)
        serving = asyncio.create_task(session.serve())
        stream.send(init_request={"path": "t", "producer_id": producer})
        for seq_no in range(1, 6):
            stream.send(write_request={"messages": [{"seq_no": seq_no, "data": b"x" * 1000}], "codec": 1})
        async with asyncio.timeout(PATIENCE):
            while stream.reads < 7:  # it asks for more than the six there are
                await asyncio.sleep(0)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await session.await_decided()
        stream.account.close()
    log = service.logs.get("t", 0)
    assert log is not None
    assert log.next_offset == log.high_watermark == 10, "what was handed over is stored once"
    assert node.budget.held == before
    assert not writing.writers.open
    await service.topics.close()


async def test_a_client_that_asks_and_takes_no_answers_is_read_no_further(node: Node) -> None:
    """Tokens may be told anew as often as one likes, and each is answered."""
    await of_client(lambda raw: raw.result("CreateTopic", path="t"), node)
    service = YdbService(node.services(YdbFront))
    await service.load()
    stream: Any = Stream(node)
    before = node.budget.held
    session = WriteStream(Writing(service), stream)
    serving = asyncio.create_task(session.serve())
    stream.send(init_request={"path": "t", "producer_id": "p"})
    most = service.settings.unacknowledged_bytes_per_stream // 1024 + 1
    for _ in range(2 * most):
        stream.send(update_token_request={"token": ""})
    async with asyncio.timeout(PATIENCE):
        # All but the first answer, which is being sent.
        await until(lambda: node.budget.held - before >= service.settings.unacknowledged_bytes_per_stream - 2048)
        for _ in range(100):
            await asyncio.sleep(0)
        assert stream.messages.qsize() >= most
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    stream.account.close()
    assert node.budget.held == before
    await service.topics.close()


async def test_a_producer_that_writes_is_not_forgotten(node: Node) -> None:
    await of_client(lambda raw: raw.result("CreateTopic", path="t"), node)
    service = YdbService(node.services(YdbFront))
    await service.load()
    stream: Any = Stream(node)
    stream.taking.set()
    session = WriteStream(Writing(service), stream)
    serving = asyncio.create_task(session.serve())

    async def bound() -> int:
        query = "SELECT count(*) FROM front_ydb_producers"
        return int((await service.node.db.run(lambda connection: connection.execute(query).fetchone()))[0])

    stream.send(init_request={"path": "t", "producer_id": "p"})
    async with asyncio.timeout(PATIENCE):
        await until(lambda: stream.answers)
        assert await bound() == 1
        await service.node.db.run(lambda connection: connection.execute("DELETE FROM front_ydb_producers"))
        session.bound_at -= 3601
        stream.send(write_request={"messages": [{"seq_no": 1, "data": b"x"}], "codec": 1})
        stream.messages.put_nowait(None)
        await serving
    assert stream.answers[-1].write_response.acks[0].written.offset == 0
    assert await bound() == 1
    stream.account.close()
    await service.topics.close()
