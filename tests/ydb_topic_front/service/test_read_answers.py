"""Readers that do not answer what they are asked about partitions: others get these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridges.node.assembly import Node
from bridges.node.settings.config import load
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.reading import Session, number_of, write
from ydb_topic_front.front import YdbFront
from ydb_topic_front.service.read.readers import Readers
from ydb_topic_front.wire.statuses import Status

HOUR_S = 3600
TOPIC = "t"


class Lab:
    """A node that waits an hour for answers, and hours that pass when it is told so; clients are in threads."""

    def __init__(self, node: Node) -> None:
        self.loop = asyncio.get_running_loop()
        readers = node.fronts[0].groups
        assert isinstance(readers, Readers)
        self.readers = readers
        self.raw = RawClient(str(node.addresses["ydb"]))

    def make(self) -> None:
        settings = {"min_active_partitions": 2}
        self.raw.result("CreateTopic", path=TOPIC, partitioning_settings=settings, consumers=[{"name": "c"}])
        for partition in range(2):
            write(self.raw, TOPIC, b"message", partition=partition)

    def an_hour_later(self) -> None:
        async def pass_by() -> None:
            asked = self.readers.asked
            asked.update({reading: (since - HOUR_S, session) for reading, (since, session) in asked.items()})
            await self.readers.take_back(0)

        asyncio.run_coroutine_threadsafe(pass_by(), self.loop).result(60)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    flags = dict.fromkeys(("listen.ydb", "listen.sbp-pd", "listen.sbp-range-server"), "127.0.0.1:0")
    flags |= {"data_dir": str(tmp_path / "data"), "listen.console": "off", "ydb.reader_answer_ms": f"{HOUR_S}s"}
    node = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[YdbFront])
    await node.start()
    lab = Lab(node)
    await asyncio.to_thread(lab.make)
    yield lab
    await asyncio.to_thread(lab.raw.__exit__, None, None, None)
    await node.stop()


def is_served(session: Session, number: int) -> bool:
    """Whether the stream goes on."""
    session.stream.send(partition_session_status_request={"partition_session_id": number})
    return bool(session.receive("partition_session_status_response").partition_session_id == number)


async def test_a_partition_that_is_not_let_go_of_is_taken(lab: Lab) -> None:
    def clients() -> None:
        first = Session(lab.raw, TOPIC)
        requests = [first.started(), first.started()]
        began = {number_of(one): one.partition_session.partition_id for one in requests}
        assert sorted(began.values()) == [0, 1]
        first.read(2)
        lab.an_hour_later()
        second = Session(lab.raw, TOPIC)
        asked = first.receive("stop_partition_session_request")
        assert asked.graceful, "who has answered is not late"
        lab.an_hour_later()
        taken = first.receive("stop_partition_session_request")
        assert not taken.graceful
        assert taken.partition_session_id == asked.partition_session_id
        request = second.started()
        assert request.partition_session.partition_id == began[taken.partition_session_id]
        assert len(second.read(1)) == 1
        (other,) = began.keys() - {taken.partition_session_id}
        first.stream.send(stop_partition_session_response={"partition_session_id": taken.partition_session_id})
        first.commit(taken.partition_session_id, (0, 1))
        assert is_served(first, other), "an answer that comes too late ends nothing"
        first.commit(other, (0, 1))
        assert first.committed() == {other: 1}

    await asyncio.to_thread(clients)


async def test_a_partition_that_is_not_begun_with_goes_to_others(lab: Lab) -> None:
    def clients() -> None:
        first = Session(lab.raw, TOPIC)
        begun = [first.receive("start_partition_session_request") for _ in range(2)]
        second = Session(lab.raw, TOPIC)
        assert first.receive("stop_partition_session_request").graceful
        lab.an_hour_later()
        stops = [first.receive("stop_partition_session_request") for _ in range(2)]
        assert not any(one.graceful for one in stops)
        assert {one.partition_session_id for one in stops} == {number_of(one) for one in begun}
        found = {second.started().partition_session.partition_id for _ in range(2)}
        assert found == {0, 1}, "half of them would be the first one's, if it answered"
        assert len(second.read(2)) == 2
        first.start(begun[0])  # late, but it is there again
        asked = second.receive("stop_partition_session_request")
        assert asked.graceful
        second.stream.send(stop_partition_session_response={"partition_session_id": asked.partition_session_id})
        assert is_served(first, number_of(first.started()))

    await asyncio.to_thread(clients)


async def test_who_reads_alone_is_asked_again(lab: Lab) -> None:
    def clients() -> None:
        alone = Session(lab.raw, TOPIC)
        for _ in range(2):
            alone.receive("start_partition_session_request")
        lab.an_hour_later()
        for _ in range(2):
            assert not alone.receive("stop_partition_session_request").graceful
        assert {alone.started().partition_session.partition_id for _ in range(2)} == {0, 1}
        assert len(alone.read(2)) == 2

    await asyncio.to_thread(clients)


async def test_nothing_is_remembered_of_who_has_left(lab: Lab) -> None:
    def clients() -> None:
        session = Session(lab.raw, TOPIC)
        session.receive("start_partition_session_request")
        session.end()

    await asyncio.to_thread(clients)
    assert not lab.readers.asked


async def test_an_answer_without_a_question_is_an_error(lab: Lab) -> None:
    def clients() -> tuple[int, str]:
        session = Session(lab.raw, TOPIC)
        number = number_of(session.started())
        session.stream.send(stop_partition_session_response={"partition_session_id": number})
        return session.refusal()

    assert (await asyncio.to_thread(clients))[0] == Status.BAD_REQUEST
