"""Three nodes, and a client that reads each partition from the node that owns it (tests/ydb_topic_front/direct.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cluster.conftest import three
from tests.cluster.test_moves import move
from tests.node_process import ANY, NodeProcess
from tests.postgres import Postgres
from tests.ydb_topic_front.direct import DataStream, DirectSession
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.reading import number_of, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PARTITIONS = 6


@pytest.fixture
def nodes(tmp_path: Path, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    with three(tmp_path, postgres, {"ydb": ANY, "console": ANY}) as found:
        yield found


class Place:
    """A partition session: where its partition lies, and the last read of it that came."""

    def __init__(self, number: int, partition: int, node_id: int, generation: int) -> None:
        self.number, self.partition, self.node_id, self.generation = number, partition, node_id, generation
        self.last = 0


class Reader:
    """A session with a stream to each node of which it reads partitions, as the SDK for C++ has them."""

    def __init__(self, clients: dict[int, RawClient], at: int, path: str) -> None:
        self.clients, self.path = clients, path
        self.session = DirectSession(clients[at], path)
        self.streams: dict[int, DataStream] = {}
        self.places: dict[int, Place] = {}
        for _ in range(PARTITIONS):
            started = self.session.started()
            location, partition = started.partition_location, started.partition_session.partition_id
            place = Place(number_of(started), partition, location.node_id, location.generation)
            self.places[partition] = place

    @property
    def coordinator(self) -> int:
        """The node that serves the session."""
        return int(self.session.session_id.rsplit("_", 2)[1])

    def begin(self, place: Place) -> DataStream:
        """Ask the node that owns a partition for what follows the last read of it."""
        if place.node_id not in self.streams:
            self.streams[place.node_id] = self.session.data(self.clients[place.node_id])
        self.streams[place.node_id].begin(place.number, place.generation, place.last)
        return self.streams[place.node_id]

    def read(self, place: Place) -> bytes:
        """The one message that the next read of a partition has."""
        place.last += 1
        (message,) = self.streams[place.node_id].read(place.last, place.number)
        found: bytes = message.data
        return found

    def moved(self) -> Place:
        """The next partition that the client is told to read elsewhere."""
        update = self.session.receive("update_partition_session")
        (place,) = [one for one in self.places.values() if one.number == update.partition_session_id]
        assert update.partition_location.generation > place.generation
        place.node_id, place.generation = update.partition_location.node_id, update.partition_location.generation
        return place


def test_each_partition_is_read_from_its_owner_also_when_that_is_another_one(nodes: list[NodeProcess]) -> None:
    with ExitStack() as stack:
        raw = stack.enter_context(RawClient(nodes[0].ydb))
        endpoints = raw.result("ListEndpoints", database="/local").endpoints
        clients = {one.node_id: stack.enter_context(RawClient(f"{one.address}:{one.port}")) for one in endpoints}
        assert len(clients) == 3
        path = f"/local/t-{uuid4().hex[:8]}"
        partitions = {"min_active_partitions": PARTITIONS}
        raw.result("CreateTopic", path=path, consumers=[{"name": "c"}], partitioning_settings=partitions)
        reader = Reader(clients, min(clients), path)
        at = reader.coordinator
        reader.session.end()
        reader = Reader(clients, at, path)  # a node that ends later shall not take the session with it
        for place in reader.places.values():
            reader.begin(place)
            write(clients[at], path, b"1", partition=place.partition)
            assert reader.read(place) == b"1"
        described = raw.result("DescribeTopic", path=path, include_location=True).partitions
        assert {one.partition_id: one.partition_location.node_id for one in described} == {
            partition: place.node_id for partition, place in reader.places.items()
        }

        # A partition is moved.
        place = next(one for one in reader.places.values() if one.node_id != at)
        to = next(one for one in clients if one not in (at, place.node_id))
        move(nodes[0], node_id=to - 1, topic=path.rpartition("/")[2], partitions=[place.partition])
        while reader.moved() is not place or place.node_id != to:
            pass
        write(clients[at], path, b"2", partition=place.partition)
        for one in reader.places.values():
            reader.begin(one)
        assert reader.read(place) == b"2"

        # The node that has it now ends before the client has got the last read.
        victims = [one for one in reader.places.values() if one.node_id == to]
        place.last -= 1
        nodes[to - 2].kill()
        del reader.streams[to]
        while any(one.node_id == to for one in victims):
            reader.moved()
        for one in victims:
            reader.begin(one)
        assert reader.read(place) == b"2"
        for one in victims:
            write(clients[at], path, b"3", partition=one.partition)
            assert reader.read(one) == b"3"
            for read_id in range(1, one.last + 1):
                reader.session.ack(one.number, read_id)
            reader.session.commit(one.number, (0, one.last))
            assert reader.session.committed() == {one.number: one.last}
