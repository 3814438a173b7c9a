"""A transaction of YDB's over partitions of three nodes, called through any of them, is there whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TypeVar
from uuid import uuid4

import pytest

from tests.cluster.conftest import three
from tests.node_process import ANY, NodeProcess
from tests.postgres import Postgres
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.reading import write
from tests.ydb_topic_front.records import values_of
from tests.ydb_topic_front.service.test_transactions import MODE, Client, Writer, ask
from ydb_topic_front.wire.statuses import Status

PARTITIONS = 6
T = TypeVar("T")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    with three(tmp_path_factory.mktemp("ydb"), postgres, {"ydb": ANY, "kafka": ANY}) as found:
        yield found


@pytest.fixture
def clients(nodes: list[NodeProcess]) -> Iterator[list[RawClient]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RawClient(node.ydb)) for node in nodes]


def made(raw: RawClient) -> str:
    topic = f"t-{uuid4().hex[:8]}"
    partitions = {"min_active_partitions": PARTITIONS}
    raw.result("CreateTopic", path=f"/local/{topic}", consumers=[{"name": "c"}], partitioning_settings=partitions)
    return topic


def until_available(make: Callable[[], T]) -> T:
    """What ``make`` returns, asked for again while slots change their owners, as SDKs do: sessions end with them."""
    while True:
        try:
            return make()
        except AssertionError as error:
            if not any(status in str(error) for status in ("UNAVAILABLE", "BAD_SESSION")):
                raise


def session_of(raw: RawClient) -> Client:
    return until_available(lambda: Client(raw))


def staged(clients: list[RawClient], topic: str, tx: dict[str, str]) -> None:
    """Stage a message in each partition, through all nodes in turn."""
    for partition in range(PARTITIONS):
        raw = clients[partition % len(clients)]
        opened = partial(Writer, raw, f"/local/{topic}", partition_id=partition, producer_id=f"p{partition}")
        until_available(opened).stage(tx, 1)


@pytest.mark.slow
def test_calls_through_any_node_commit_partitions_and_positions_of_all(
    nodes: list[NodeProcess], clients: list[RawClient]
) -> None:
    first, second, third = clients
    source, target = made(first), made(first)
    write(first, f"/local/{source}", b"a", b"b")

    def commit() -> Client:
        session = session_of(second)
        tx = session.begin()
        staged(clients, target, tx)
        session.raw = third
        answer = session.read(tx, f"/local/{source}", (0, 2))
        assert answer.status == Status.SUCCESS, answer
        session.raw = first
        answer = session.commit(tx)
        assert answer.status == Status.SUCCESS, answer
        return session

    session = until_available(commit)
    for partition in range(PARTITIONS):
        assert values_of(nodes[partition % 3].kafka, target, partition, 1) == [b"1"]
    for raw in clients:
        found = raw.result("DescribeConsumer", path=f"/local/{source}", consumer="c", include_stats=True)
        assert found.partitions[0].partition_consumer_stats.committed_offset == 2
    session.stream.cancel()


@pytest.mark.slow
def test_a_session_ends_with_a_stream_at_another_node(clients: list[RawClient]) -> None:
    first, second, _ = clients

    def create() -> str:
        created = ask(first, "CreateSession")
        assert created.status == Status.SUCCESS, created
        return str(created.session_id)

    session_id = until_available(create)
    stream = second.stream("Query.AttachSession")
    stream.send(session_id=session_id)
    assert stream.receive().status == Status.SUCCESS
    stream.cancel()
    while ask(first, "BeginTransaction", session_id=session_id, tx_settings=MODE).status != Status.BAD_SESSION:
        pass  # the nodes learn that the client has gone


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_what_a_killed_coordinator_has_not_committed_is_not_there(
    nodes: list[NodeProcess], clients: list[RawClient]
) -> None:
    first, second, _ = clients
    topic = made(second)
    session = session_of(first)
    tx = session.begin()
    staged(clients, topic, tx)
    nodes[0].kill()
    nodes[0].start()

    def commit_elsewhere() -> None:
        again = session_of(second)
        other = again.begin()
        staged([second, clients[2]], topic, other)  # nothing of the first one has used the numbers
        committed = again.commit(other)
        assert committed.status == Status.SUCCESS, committed

    until_available(commit_elsewhere)
    for partition in range(PARTITIONS):
        assert values_of(nodes[1].kafka, topic, partition, 1) == [b"1"]
