"""What becomes of YDB's readers when they lose their rights, or are slower than what is thrown away: in a node of the
test's own process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch_kit.memory.budget import Kind
from bridges.auth import Principal
from bridges.catalog.progress import Committed
from bridges.catalog.topics.topic import Change, ChangeKind
from bridges.log.partition.partition_log import PartitionLog
from bridges.net.grpc_server import Code, GrpcCall, GrpcRefusal
from bridges.node.assembly import Node
from tests.kit.waiting import until
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.reading import write
from tests.ydb_topic_front.service.test_read_lineage import PATIENCE, make, node, of_client
from ydb_topic_front.front import YdbFront
from ydb_topic_front.service.core import YdbService
from ydb_topic_front.service.read.stream import ReadStream
from ydb_topic_front.wire.messages import StreamReadFromClient, StreamReadFromServer

__all__ = ["node"]


class Stream:
    """What a session has of a gRPC stream: messages to read, and a client that takes answers when it is told to."""

    host = peer = "test"
    address = ("test", 1)
    listener = "ydb"
    certificate_name = ""

    def __init__(self, node: Node) -> None:
        self.account = node.budget.account(lambda: None)
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.taking = asyncio.Event()
        self.taking.set()

    def header(self, name: str) -> str:
        return ""

    def when_draining(self, callback: object) -> None:
        pass

    async def read(self) -> bytes | None:
        raw = await self.messages.get()
        if raw is not None:
            self.account.take(Kind.REQUESTS, len(raw))
        return raw

    async def write(self, raw: bytes) -> None:
        await self.taking.wait()
        self.answers.put_nowait(StreamReadFromServer.FromString(raw))

    def send(self, **fields: Any) -> None:
        self.messages.put_nowait(StreamReadFromClient(**fields).SerializeToString())

    async def receive(self, kind: str) -> Any:
        message = await self.answers.get()
        assert message.WhichOneof("server_message") == kind, message
        return getattr(message, kind)

    async def offsets(self) -> list[int]:
        """Those of the next data."""
        response = await self.receive("read_response")
        return [one.offset for data in response.partition_data for batch in data.batches for one in batch.message_data]


class Lab:
    """A session that reads topic ``t``."""

    def __init__(self, node: Node, service: YdbService) -> None:
        self.stream: Any = Stream(node)
        self.service = service
        self.readers = service.readers
        self.session = ReadStream(service, self.readers, self.stream)
        self.serving = asyncio.create_task(self.session.serve())

    async def start(self) -> None:
        topics = [{"path": "t", "partition_ids": [0]}]
        self.stream.send(init_request={"topics_read_settings": topics, "consumer": "c"})
        await self.stream.receive("init_response")
        request = await self.stream.receive("start_partition_session_request")
        number = request.partition_session.partition_session_id
        self.stream.send(start_partition_session_response={"partition_session_id": number})

    def log(self) -> PartitionLog:
        log = self.service.logs.get("t", 0)
        assert log is not None
        return log

    async def close(self) -> None:
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
        self.stream.account.close()
        await self.service.topics.close()


async def lab_of(node: Node) -> Lab:
    await of_client(make, node)
    service = YdbService(node.services(YdbFront))
    await service.load()
    return Lab(node, service)


def more(raw: RawClient) -> None:
    write(raw, "t", b"3", b"4")


async def test_who_may_read_no_more_gets_nothing_more(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = await lab_of(node)
    async with asyncio.timeout(PATIENCE):
        await lab.start()
        lab.stream.send(read_request={"bytes_size": 1 << 20})
        assert await lab.stream.offsets() == [0, 1, 2]

        def expired(call: GrpcCall) -> None:
            raise GrpcRefusal(Code.UNAUTHENTICATED, "the token has expired")

        monkeypatch.setattr(lab.service, "principal", expired)
        lab.session.identity.looked_at -= 61
        await of_client(more, node)
        with pytest.raises(GrpcRefusal):
            await lab.serving
    assert lab.stream.answers.empty()
    await lab.close()


async def test_a_reader_that_is_slower_than_retention_goes_on_behind_what_is_gone(node: Node) -> None:
    lab = await lab_of(node)
    async with asyncio.timeout(PATIENCE):
        await lab.start()
        lab.stream.send(read_request={"bytes_size": 1})
        assert await lab.stream.offsets() == [0]
        await of_client(more, node)
        await lab.log().trim(3)
        lab.stream.send(read_request={"bytes_size": 1 << 20})
        found: list[int] = []
        while len(found) < 2:
            found += await lab.stream.offsets()
        assert found == [3, 4]
        # It can confirm nothing of what is gone, and what it confirms behind that is answered.
        behind = [{"partition_session_id": 1, "offsets": [{"start": 3, "end": 5}]}]
        lab.stream.send(commit_offset_request={"commit_offsets": behind})
        (stored,) = (await lab.stream.receive("commit_offset_response")).partitions_committed_offsets
        assert stored.committed_offset == 5
    await lab.close()


async def test_answers_that_are_not_taken_are_counted(node: Node) -> None:
    lab = await lab_of(node)
    before = node.budget.by_kind[Kind.RESPONSES]
    async with asyncio.timeout(PATIENCE):
        await lab.start()
        lab.stream.taking.clear()
        for _ in range(3000):
            lab.stream.send(partition_session_status_request={"partition_session_id": 1})
        await until(lambda: len(lab.session.answers) > 1000)
        for _ in range(100):
            await asyncio.sleep(0)
        assert lab.stream.messages.qsize() >= 1900
        assert node.budget.by_kind[Kind.RESPONSES] - before == lab.session.answers.size > 10_000
        await lab.close()
    assert node.budget.by_kind[Kind.RESPONSES] == before


@pytest.mark.parametrize(("wanted", "position"), [(True, 3), (False, 1)])
async def test_a_position_that_is_set_is_not_undone_by_who_reads_no_more(
    node: Node, wanted: bool, position: int
) -> None:
    lab = await lab_of(node)
    readers, progress = lab.readers, lab.service.node.progress
    async with asyncio.timeout(PATIENCE):
        setting = asyncio.create_task(progress.commit("c", [("t", 0, Committed(1, commit_ms=1))]))
        await asyncio.sleep(0)  # it is with the database, and not known yet
        assert progress.committed("c", "t", 0) is None
        await readers.store("c", {("t", 0): 3}, lambda: wanted)
        await setting
    found = progress.committed("c", "t", 0)
    assert found is not None
    assert found.offset == position
    await lab.close()


async def test_nobody_is_told_of_a_position_that_is_not_stored(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = await lab_of(node)
    store, may_store = lab.readers.store, asyncio.Event()

    async def late(*arguments: Any) -> Any:
        await may_store.wait()
        return await store(*arguments)

    monkeypatch.setattr(lab.readers, "store", late)
    async with asyncio.timeout(PATIENCE):
        await lab.start()
        offsets = [{"start": 0, "end": 2}]
        lab.stream.send(commit_offset_request={"commit_offsets": [{"partition_session_id": 1, "offsets": offsets}]})
        lab.stream.send(partition_session_status_request={"partition_session_id": 1})
        assert (await lab.stream.receive("partition_session_status_response")).committed_offset == 0
        lab.session.let_go("t", 0)
        assert (await lab.stream.receive("stop_partition_session_request")).committed_offset == 0
        may_store.set()
        answer = await lab.stream.receive("commit_offset_response")
        assert [one.committed_offset for one in answer.partitions_committed_offsets] == [2]
        lab.stream.send(partition_session_status_request={"partition_session_id": 1})
        assert (await lab.stream.receive("partition_session_status_response")).committed_offset == 2
    await lab.close()


@pytest.mark.usefixtures("slow_turns")
async def test_many_readers_of_a_topic_hear_of_its_end_in_turns(node: Node) -> None:
    lab = await lab_of(node)
    topic = lab.service.catalog.topics["t"]
    told: list[int] = []

    class Reader:
        consumer = "c"
        is_direct = False

        def __init__(self, number: int) -> None:
            self.session_id = f"r{number}"

        def topic_changed(self, topic: object, change: ChangeKind) -> None:
            told.append(turn)

    readers: list[Any] = [Reader(number) for number in range(1000)]
    for reader in readers:
        lab.readers.enter(reader, [topic])
    turn = 0
    lab.readers._changed(Change(ChangeKind.DELETED, topic))
    lab.readers.leave(readers[-1])
    async with asyncio.timeout(PATIENCE):
        while len(told) < 999:
            turn += 1
            await asyncio.sleep(0)
    assert max(told.count(one) for one in set(told)) <= 50
    for reader in readers:
        lab.readers.leave(reader)
    assert lab.readers.view("c") is None
    await lab.close()


async def test_who_has_proved_who_it_is_is_shown_with_its_name(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = await lab_of(node)
    async with asyncio.timeout(PATIENCE):
        monkeypatch.setattr(lab.service, "principal", lambda call: Principal("User", "ann"))
        await lab.start()
        view = lab.readers.view("c")
    assert view is not None
    (member,) = view.members
    assert (member.user, member.client_host, member.partitions) == ("ann", "test", (("t", 0),))
    await lab.close()
