"""What YDB's readers see of partitions that were split, and of transactions: in a node of the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from bridges import front_kit
from bridges.catalog.topics.config import SPLIT
from bridges.catalog.topics.lineage import KeyRange
from bridges.catalog.views.groups import CONSUMERS
from bridges.formats import FormatId
from bridges.formats.kafka import TRANSACTIONAL, encode
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record
from bridges.front_kit import KitNode
from bridges.log.interfaces import Appended, Batch
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from tests.kit.waiting import until
from tests.node_process import FRONTS, SELDOM
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.reading import Session, number_of, write
from ydb_topic_front.front import YdbFront

T = TypeVar("T")
HALVES = [KeyRange.of_doubles(0.0, 0.5), KeyRange.of_doubles(0.5, 1.0)]
PATIENCE = 90


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    flags = {
        "data_dir": str(tmp_path / "data"),
        "listen.ydb": "127.0.0.1:0",
        **{f"listen.{name}": "off" for name in (*FRONTS, *SELDOM) if name != "ydb"},
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
    }
    node = Node(load(flags, environ={}, directory=tmp_path).settings)
    await node.start()
    yield node
    await node.stop()


async def of_client(work: Callable[[RawClient], T], node: Node) -> T:
    """What a client does in a thread of its own."""

    def run() -> T:
        with RawClient(str(node.addresses["ydb"])) as raw:
            return work(raw)

    async with asyncio.timeout(2 * PATIENCE):
        return await asyncio.to_thread(run)


async def move(kits: Sequence[KitNode], to: KitNode) -> None:
    """Partition 0 of ``t`` gets another owner."""
    cluster = to.node.floors.place.cluster
    await cluster.move([cluster.slot_of("t", 0)], cluster.node_id)
    await until(lambda: [one for one in kits if one.node.logs.owns("t", 0)] == [to])


async def split(node: Node) -> None:
    """Topic ``t`` with the consumer ``c``: partition 0 gives way to 1 and 2."""
    told = asyncio.Event()
    node.catalog.on_change.append(lambda change: told.set())
    await node.catalog.change_partitions("t", [0], HALVES)
    async with asyncio.timeout(PATIENCE):
        while node.catalog.pending_seals:
            told.clear()
            await told.wait()


def make(raw: RawClient) -> None:
    raw.result("CreateTopic", path="t", consumers=[{"name": "c"}])
    write(raw, "t", b"0", b"1", b"2")


async def allow_splits(node: Node) -> None:
    await node.catalog.set_config("t", {SPLIT: "true"})


async def test_who_knows_of_ends_is_told_and_gets_the_children(node: Node) -> None:
    await of_client(make, node)
    await allow_splits(node)
    loop = asyncio.get_running_loop()

    def read(raw: RawClient) -> None:
        session = Session(raw, "t", auto_partitioning_support=True)
        number = number_of(session.started())
        assert [one.data for one in session.read(3)] == [b"0", b"1", b"2"]
        # While it reads.
        asyncio.run_coroutine_threadsafe(split(node), loop).result(PATIENCE)
        end = session.receive("end_partition_session")
        assert (end.partition_session_id, list(end.adjacent_partition_ids)) == (number, [])
        assert list(end.child_partition_ids) == [1, 2]
        # It has all of the parent, so it may go on before that is committed.
        children = [session.started(), session.started()]
        assert [one.partition_session.partition_id for one in children] == [1, 2]
        session.commit(number, (0, 3))
        assert session.committed() == {number: 3}
        write(raw, "t", b"of a child", partition=2)
        assert [one.data for one in session.read(1)] == [b"of a child"]
        session.end()
        # What has ended and is committed is not read again.
        again = Session(raw, "t", auto_partitioning_support=True)
        assert {again.started().partition_session.partition_id for _ in range(2)} == {1, 2}
        assert [one.data for one in again.read(1)] == [b"of a child"]
        assert again.end() == []

    await of_client(read, node)


async def test_others_get_the_children_when_the_parent_is_committed(node: Node) -> None:
    await of_client(make, node)
    await allow_splits(node)
    await split(node)

    def read(raw: RawClient) -> None:
        write(raw, "t", b"of a child", partition=1)
        one, idle = Session(raw, "t"), Session(raw, "t")
        number = number_of(one.started())
        assert len(one.read(3)) == 3
        one.commit(number, (0, 2))
        assert one.committed() == {number: 2}
        # Nothing else is given out: what is answered next is a question asked meanwhile.
        idle.stream.send(update_token_request={"token": ""})
        idle.receive("update_token_response")
        assert idle.nothing_but()
        one.commit(number, (2, 3))
        assert one.committed() == {number: 3}
        found = {one.started().partition_session.partition_id, idle.started().partition_session.partition_id}
        assert found == {1, 2}
        one.end()
        idle.end()

    await of_client(read, node)


async def append(node: Node, value: bytes, producer: int) -> int:
    """Append a record of a producer's transaction to partition 0; its offset."""
    log = node.logs.get("t", 0)
    assert log is not None
    await log.ready()
    payload = encode(
        [Record(None, value)], attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0, base_sequence=0
    )
    done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    batch = Batch(payload, 1, int(FormatId.KAFKA), transaction=InTransaction(producer, 0))
    log.append(batch, lambda end, error: done.set_result(end))
    return (await done).base


async def end(node: Node, producer: int, commit: bool) -> None:
    """End the producer's transaction."""
    log = node.logs.get("t", 0)
    assert log is not None
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    log.append_marker(producer, 0, commit, lambda _, error: done.set_result(error))
    assert await done is None


@pytest.mark.parametrize("told", ["committed", "aborted", "behind"])
async def test_what_nobody_is_sent_at_the_end_of_a_parent_needs_no_commit(node: Node, told: str) -> None:
    await of_client(make, node)
    await allow_splits(node)
    if told != "committed":
        await append(node, b"aborted", 1)
        await end(node, 1, commit=False)
    if told != "aborted":
        await append(node, b"committed", 2)
        await end(node, 2, commit=True)
    await split(node)
    values = [b"0", b"1", b"2", *([b"committed"] if told != "aborted" else ())]
    last = 3 if told == "aborted" else 4 if told == "committed" else 6

    def read(raw: RawClient) -> None:
        write(raw, "t", b"of a child", partition=1)
        session = Session(raw, "t")
        number = number_of(session.started())
        assert [one.data for one in session.read(len(values))] == values
        session.commit(number, (0, last - 1))
        assert session.committed() == {number: last - 1}
        session.stream.send(update_token_request={"token": ""})
        session.receive("update_token_response")
        assert session.nothing_but(), "what it was sent is not all confirmed"
        session.commit(number, (last - 1, last))
        session.started()
        session.started()
        assert [one.data for one in session.read(1)] == [b"of a child"]
        session.end()

    await of_client(read, node)


async def test_a_reader_that_comes_when_all_is_confirmed_passes_the_rest(node: Node) -> None:
    await of_client(make, node)
    await allow_splits(node)
    await append(node, b"aborted", 1)
    await end(node, 1, commit=False)
    await split(node)

    def read(raw: RawClient) -> None:
        raw.result("CommitOffset", path="t", partition_id=0, consumer="c", offset=3)
        write(raw, "t", b"of a child", partition=2)
        session = Session(raw, "t")
        for _ in range(3):
            session.started()
        assert [one.data for one in session.read(1)] == [b"of a child"]
        session.end()

    await of_client(read, node)


async def test_a_parent_that_moves_when_all_of_it_was_sent_gives_way_to_its_children(tmp_path: Path) -> None:
    """Its next owner was not asked yet when the client confirms the last message, before a transaction's marker."""
    async with front_kit.cluster(tmp_path, YdbFront) as kits:
        names = [f"c{number}" for number in range(20)]
        consumers = [{"name": name} for name in names]
        await of_client(lambda raw: raw.result("CreateTopic", path="t", consumers=consumers), kits[0].node)
        owner, other = kits if await kits[0].owned("t") else kits[::-1]
        cluster = owner.node.floors.place.cluster
        coordinated = next(name for name in names if cluster.is_mine(cluster.slot_of_key(CONSUMERS, name)))
        await until(lambda: "t" in owner.node.catalog.topics)
        await allow_splits(owner.node)
        assert await append(owner.node, b"committed", 2) == 0
        await end(owner.node, 2, commit=True)
        await split(owner.node)
        loop = asyncio.get_running_loop()

        def read(raw: RawClient) -> None:
            session = Session(raw, "t", consumer=coordinated)
            number = number_of(session.started())
            assert [one.data for one in session.read(1)] == [b"committed"]
            read_offset = 0
            while read_offset < 2:
                session.stream.send(partition_session_status_request={"partition_session_id": number})
                read_offset = session.receive("partition_session_status_response").read_offset
            asyncio.run_coroutine_threadsafe(move(kits, other), loop).result(PATIENCE)
            session.commit(number, (0, 1))
            assert {session.started().partition_session.partition_id for _ in range(2)} == {1, 2}
            session.end()

        await of_client(read, owner.node)


async def test_what_was_aborted_is_not_shown_and_what_is_open_is_waited_for(node: Node) -> None:
    await of_client(lambda raw: raw.result("CreateTopic", path="t", consumers=[{"name": "c"}]), node)
    assert await append(node, b"aborted", 1) == 0
    await end(node, 1, commit=False)
    assert await append(node, b"committed", 2) == 2
    loop = asyncio.get_running_loop()

    def read(raw: RawClient) -> None:
        session = Session(raw, "t")
        request = session.started()
        assert (request.partition_offsets.start, request.partition_offsets.end) == (0, 2), "the other is open"
        asyncio.run_coroutine_threadsafe(end(node, 2, commit=True), loop).result(PATIENCE)
        assert [(one.offset, one.data) for one in session.read(1)] == [(2, b"committed")]
        assert session.end() == []

    await of_client(read, node)
