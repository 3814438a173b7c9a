"""What arrives at a node that does not own the partition is appended by the one that does."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pytest
import ydb
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from grpc import StatusCode

from tests.cluster.together import together
from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess
from tests.postgres import Postgres
from tests.ydb_topic_front.raw import RawClient, RawStream
from ydb_topic_front.wire.statuses import Status

PATIENCE = 60
PARTITIONS = 8
LISTENERS = ("kafka", "ydb", "console", "sbp-pd", "sbp-range-server")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[NodeProcess]]:
    directory = tmp_path_factory.mktemp("forwarded")
    with together(directory, 2, postgres.made(), LISTENERS, lambda _: {}) as made:
        yield made


def made(nodes: list[NodeProcess], topic: str) -> dict[int, int]:
    """A topic of which each node has some partitions: whose each of them is."""
    admins = [AdminClient({"bootstrap.servers": node.kafka}) for node in nodes]
    admins[0].create_topics([NewTopic(topic, PARTITIONS)])[topic].result(PATIENCE)
    until = time.monotonic() + PATIENCE
    while True:
        told = [admin.list_topics(timeout=PATIENCE).topics.get(topic) for admin in admins]
        leaders = [{} if one is None else {n: p.leader for n, p in one.partitions.items()} for one in told]
        if leaders[0] == leaders[1] and set(leaders[0].values()) == {1, 2}:
            break
        assert time.monotonic() < until, leaders
        time.sleep(0.05)
    # A client of Kafka's asks whichever node it likes.
    for raw in [RawClient(node.ydb) for node in nodes]:
        with raw:
            while raw.call("DescribeTopic", path=topic).status != Status.SUCCESS:
                assert time.monotonic() < until
                time.sleep(0.05)
    return leaders[0]


def posted(node: NodeProcess, topic: str, lines: list[dict[str, object]]) -> dict[str, object]:
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with urlopen(Request(f"{node.console}/api/topics/{topic}/records", body), timeout=PATIENCE) as answer:
        found: dict[str, object] = json.loads(answer.read())
    return found


def values(nodes: list[NodeProcess], topic: str, counts: dict[int, int]) -> dict[int, list[bytes]]:
    """The values of each partition, of so many records in each."""
    bootstrap = ",".join(node.kafka for node in nodes)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in counts])
    found: dict[int, list[bytes]] = {partition: [] for partition in counts}
    while any(len(found[partition]) < count for partition, count in counts.items()):
        message = consumer.poll(PATIENCE)
        assert message is not None
        assert message.error() is None, message.error()
        assert message.offset() == len(found[message.partition()])
        found[message.partition()].append(message.value())
    consumer.close()
    return found


def test_records_over_http_go_to_their_owners_from_any_node(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "posted")
    for turn in range(3):
        for node in nodes:
            lines = [{"value": f"{turn}.{n}", "partition": n % PARTITIONS} for n in range(200)]
            answer = posted(node, "posted", lines)
            assert answer["records"] == 200, answer
    found = values(nodes, "posted", dict.fromkeys(leaders, 150))
    for partition in leaders:
        turns = [f"{turn}.{n}".encode() for turn in range(3) for _ in nodes for n in range(200) if n % 8 == partition]
        assert found[partition] == turns


def test_many_at_once_through_the_wrong_node_keep_their_order(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "ordered")
    (elsewhere, *_) = [partition for partition, leader in leaders.items() if leader == 2]
    lines = [{"value": f"{number}", "partition": elsewhere} for number in range(30_000)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: posted(nodes[0], "ordered", lines), range(2)))
    assert [answer["records"] for answer in answers] == [30_000, 30_000]
    found = [int(value) for value in values(nodes, "ordered", {elsewhere: 60_000})[elsewhere]]
    assert sorted(found) == sorted([*range(30_000)] * 2)
    # Each of the two in its order: where one is behind, it has not skipped anything.
    first, second = 0, 0
    for value in found:
        assert value in (first, second), (value, first, second)
        if value == first:
            first += 1
        else:
            second += 1


@contextmanager
def driver_of(node: NodeProcess, *, alone: bool = False) -> Iterator[ydb.Driver]:
    """A driver that was given one node's address; ``alone``: it asks for no others."""
    config = ydb.DriverConfig(f"grpc://{node.ydb}", "/local", disable_discovery=alone)
    with ydb.Driver(config) as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        yield driver


def test_discovery_tells_of_all_nodes_and_descriptions_of_owners(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "described")
    for node in nodes:
        raw = RawClient(node.ydb)
        found = raw.result("ListEndpoints")
        places = {(one.node_id, f"{one.address}:{one.port}") for one in found.endpoints}
        assert places == {(number + 1, one.ydb) for number, one in enumerate(nodes, 1)}
        told = raw.result("DescribeTopic", path="described", include_location=True).partitions
        assert {one.partition_id: one.partition_location.node_id - 1 for one in told} == leaders
        one = raw.result("DescribePartition", path="described", partition_id=3, include_location=True).partition
        assert one.partition_location == told[3].partition_location
        assert one.partition_location.generation >= 1


def test_a_writer_of_ydb_writes_through_either_node(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "through")
    for partition in leaders:
        for turn, node in enumerate(nodes):
            with (
                driver_of(node, alone=True) as driver,
                driver.topic_client.writer("through", producer_id=f"p{partition}", partition_id=partition) as writer,
            ):
                assert writer.wait_init(timeout=PATIENCE).last_seqno == 100 * turn
                writer.write([f"{turn}.{number}" for number in range(100)])
                writer.flush(timeout=PATIENCE)
    found = values(nodes, "through", dict.fromkeys(leaders, 200))
    assert all(found[n] == [f"{t}.{i}".encode() for t in range(2) for i in range(100)] for n in leaders)


def test_a_second_session_of_a_producer_ends_the_first_one_wherever_they_came(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "taken")
    (partition, *_) = [number for number, leader in leaders.items() if leader == 2]
    raws = [RawClient(node.ydb) for node in nodes]
    first = raws[0].stream("StreamWrite")
    first.send(init_request={"path": "taken", "producer_id": "p", "partition_id": partition})
    assert first.receive().status == Status.SUCCESS
    first.send(write_request={"messages": [{"seq_no": 7, "data": b"x"}], "codec": 1})
    assert first.receive().write_response.acks[0].seq_no == 7
    second = raws[1].stream("StreamWrite")
    second.send(init_request={"path": "taken", "producer_id": "p", "partition_id": partition})
    assert second.receive().init_response.last_seq_no == 7
    assert [message.status for message in first.rest()] == [Status.SESSION_EXPIRED]
    # Refusals come through as they are.
    wrong = raws[0].stream("StreamWrite")
    wrong.send(init_request={"path": "taken", "producer_id": "p", "partition_id": (partition + 1) % PARTITIONS})
    assert [message.status for message in wrong.rest()] == [Status.BAD_REQUEST]
    second.half_close()
    assert second.rest() == []


def test_direct_writers_are_refused_where_the_partition_is_not(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "direct")
    (partition, *_) = [number for number, leader in leaders.items() if leader == 2]
    raws = [RawClient(node.ydb) for node in nodes]

    def tried(node: int) -> int:
        asked = raws[node].result("DescribePartition", path="direct", partition_id=partition, include_location=True)
        place = {"partition_id": partition, "generation": asked.partition.partition_location.generation}
        stream = raws[node].stream("StreamWrite")
        stream.send(init_request={"path": "direct", "producer_id": "p", "partition_with_generation": place})
        return int(stream.receive().status)

    until = time.monotonic() + PATIENCE
    while tried(1) != Status.SUCCESS:  # the opening may raise the generation
        assert time.monotonic() < until
    assert tried(0) == Status.UNAVAILABLE


def written(nodes: list[NodeProcess], topic: str, leaders: dict[int, int], count: int = 50) -> set[tuple[int, int]]:
    """Numbers in all partitions: (partition, seq_no) of each message."""
    with driver_of(nodes[0], alone=True) as driver:
        for partition in leaders:
            with driver.topic_client.writer(topic, producer_id=f"p{partition}", partition_id=partition) as writer:
                writer.write([b"%d" % number for number in range(count)])
                writer.flush(timeout=PATIENCE)
    return {(partition, number + 1) for partition in leaders for number in range(count)}


class Reading(threading.Thread):
    """Reads for a consumer until ``over``, and commits. The SDK gives a partition back at once when it is asked to, and
    forgets about commits on their way: what those were of, another reader may get again."""

    def __init__(self, node: NodeProcess, topic: str, consumer: str, seen: list[tuple[int, int]]) -> None:
        super().__init__()
        self._node, self._topic, self._consumer = node, topic, consumer
        self.seen = seen
        self.uncertain: set[tuple[int, int]] = set()
        """Read, and not known to be committed."""
        self.over = threading.Event()

    def run(self) -> None:
        with (
            driver_of(self._node, alone=True) as driver,
            driver.topic_client.reader(self._topic, self._consumer) as reader,
        ):
            while not self.over.is_set():
                try:
                    batch = reader.receive_batch(timeout=0.2)
                except TimeoutError:
                    continue
                got = [(message.partition_id, message.seqno) for message in batch.messages]
                self.seen += got
                try:
                    reader.commit_with_ack(batch, timeout=PATIENCE)
                except ydb.TopicReaderPartitionExpiredError:
                    self.uncertain.update(got)


def committed(node: NodeProcess, consumer: str) -> list[int]:
    with RawClient(node.ydb) as raw:
        told = raw.result("DescribeConsumer", path="shared", consumer=consumer, include_stats=True).partitions
        return [one.partition_consumer_stats.committed_offset for one in told]


def test_readers_at_both_nodes_share_a_consumers_partitions(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "shared")
    RawClient(nodes[0].ydb).result("AlterTopic", path="shared", add_consumers=[{"name": "c"}, {"name": "d"}])
    await_consumers([RawClient(node.ydb) for node in nodes], "shared", ["c", "d"])
    wanted = written(nodes, "shared", leaders)
    for consumer in ("c", "d"):  # of which one is most likely the one node's, one the other's
        seen: list[tuple[int, int]] = []
        readers = [Reading(node, "shared", consumer, seen) for node in nodes]
        for reader in readers:
            reader.start()
        try:
            wait_until(lambda seen=seen: {*seen} >= wanted, lambda seen=seen: len(seen))
            wait_until(lambda name=consumer: committed(nodes[0], name) == [50] * PARTITIONS)
        finally:
            for reader in readers:
                reader.over.set()
            for reader in readers:
                reader.join()
        assert {*seen} == wanted
        assert {one for one, times in Counter(seen).items() if times > 1} <= readers[0].uncertain | readers[1].uncertain
        for node in nodes:
            assert committed(node, consumer) == [50] * PARTITIONS
            with RawClient(node.ydb) as raw:
                told = raw.result("DescribeConsumer", path="shared", consumer=consumer, include_stats=True).partitions
                assert [one.partition_stats.partition_offsets.end for one in told] == [50] * PARTITIONS
                stats = raw.result("DescribeTopic", path="shared", include_stats=True, include_location=True)
                assert [one.partition_stats.partition_offsets.end for one in stats.partitions] == [50] * PARTITIONS
                for one in stats.partitions:
                    assert one.partition_stats.partition_node_id == one.partition_location.node_id
                assert all(one.partition_stats.store_size_bytes > 0 for one in stats.partitions)


def await_consumers(raws: list[RawClient], topic: str, consumers: list[str]) -> None:
    """Return when all nodes know them."""
    until = time.monotonic() + PATIENCE
    for raw in raws:
        while {one.name for one in raw.result("DescribeTopic", path=topic).consumers} != set(consumers):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_positions_are_set_at_any_node(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "positioned")
    raws = [RawClient(node.ydb) for node in nodes]
    consumers = [f"n{n}" for n in range(4)]
    raws[0].result("AlterTopic", path="positioned", add_consumers=[{"name": name} for name in consumers])
    await_consumers(raws, "positioned", consumers)
    written(nodes, "positioned", leaders, 10)
    for number, (partition, turn) in enumerate((p, t) for p in leaders for t in range(2)):
        for n in range(4):
            place = {"path": "positioned", "partition_id": partition, "consumer": f"n{n}"}
            raws[turn].result("CommitOffset", **place, offset=number % 10)
            for raw in raws:
                told = raw.result("DescribeConsumer", path="positioned", consumer=f"n{n}").partitions[partition]
                assert told.partition_consumer_stats.committed_offset == number % 10
    assert raws[1].call("CommitOffset", **place, offset=11).status == Status.BAD_REQUEST
    raws[1].result("AlterTopic", path="positioned", drop_consumers=consumers)
    raws[1].result("AlterTopic", path="positioned", add_consumers=[{"name": name} for name in consumers])
    await_consumers(raws, "positioned", consumers)
    for n in range(4):
        told = raws[0].result("DescribeConsumer", path="positioned", consumer=consumers[n]).partitions
        assert {one.partition_consumer_stats.committed_offset for one in told} == {0}


class FromTheStart(ydb.TopicReaderEvents.EventHandler):
    """What the SDK wants of who reads without a consumer."""

    def on_partition_get_start_offset(self, event: object) -> object:
        return ydb.TopicReaderEvents.OnPartitionGetStartOffsetResponse(0)


def test_a_reader_without_a_consumer_reads_at_any_node(nodes: list[NodeProcess]) -> None:
    leaders = made(nodes, "alone")
    wanted = written(nodes, "alone", leaders)
    for node in nodes:
        selector = ydb.TopicReaderSelector("alone", partitions=list(leaders))
        with (
            driver_of(node, alone=True) as driver,
            driver.topic_client.reader(selector, None, event_handler=FromTheStart()) as reader,
        ):
            found: set[tuple[int, int]] = set()
            while found != wanted:
                batch = reader.receive_batch(timeout=PATIENCE)
                found |= {(message.partition_id, message.seqno) for message in batch.messages}


def test_a_producer_goes_on_in_a_part_of_its_partition_that_another_node_has(nodes: list[NodeProcess]) -> None:
    raws = [RawClient(node.ydb) for node in nodes]
    automatic = {"strategy": "AUTO_PARTITIONING_STRATEGY_SCALE_UP"}
    raws[0].result(
        "CreateTopic",
        path="split",
        partitioning_settings={
            "min_active_partitions": 1,
            "max_active_partitions": 16,
            "auto_partitioning_settings": automatic,
        },
    )
    producers = [f"p{number}" for number in range(16)]
    for number, producer in enumerate(producers, 1):
        stream = raws[0].stream("StreamWrite")
        stream.send(init_request={"path": "split", "producer_id": producer})
        assert stream.receive().status == Status.SUCCESS
        stream.send(write_request={"messages": [{"seq_no": number, "data": b"x"}], "codec": 1})
        assert stream.receive().write_response.acks[0].seq_no == number
        stream.cancel()
    raws[0].result("AlterTopic", path="split", alter_partitioning_settings={"set_min_active_partitions": 4})
    wait_until(lambda: len(raws[1].result("DescribeTopic", path="split").partitions) >= 4)
    told = raws[1].result("DescribeTopic", path="split", include_location=True).partitions
    assert len({one.partition_location.node_id for one in told}) == 2, "each node has one of them"
    for number, producer in enumerate(producers, 1):
        stream = raws[number % 2].stream("StreamWrite")
        stream.send(init_request={"path": "split", "producer_id": producer})
        opened = stream.receive().init_response
        assert opened.last_seq_no == number
        assert opened.partition_id != 0
        stream.cancel()


def reading(consumer: str, **topic: object) -> dict[str, object]:
    return {"init_request": {"topics_read_settings": [topic], "consumer": consumer}}


REFUSED = {
    "StreamRead": {
        "no consumer of the topic's": reading("nobody", path="refused"),
        "no topic": reading("c", path="nowhere"),
        "no partition": reading("c", path="refused", partition_ids=[PARTITIONS]),
        "no topics": {"init_request": {"consumer": "c"}},
        "not the first message": {"read_request": {"bytes_size": 1}},
    },
    "StreamWrite": {
        "no topic": {"init_request": {"path": "nowhere", "producer_id": "p"}},
        "no partition": {"init_request": {"path": "refused", "partition_id": PARTITIONS}},
        "a partition of another node's": {
            "init_request": {"path": "refused", "partition_with_generation": {"partition_id": 0, "generation": 0}}
        },
        "not the first message": {"write_request": {"messages": [{"seq_no": 1, "data": b"x"}], "codec": 1}},
    },
}


def test_a_stream_whose_start_is_refused_is_over(nodes: list[NodeProcess]) -> None:
    made(nodes, "refused")
    for node in nodes:
        with RawClient(node.ydb) as raw:
            for method, firsts in REFUSED.items():
                for why, first in firsts.items():
                    stream = raw.stream(method)
                    stream.send(**first)
                    (last,) = stream.rest()
                    assert last.status not in (0, Status.SUCCESS), why
                    assert stream.call.code() is StatusCode.OK, why
                stream = raw.stream(method)
                stream.send_raw(b"\xff")  # no message at all
                assert [last.status for last in stream.rest()] == [Status.BAD_REQUEST]


def test_streams_are_over_when_their_node_or_its_peer_is(nodes: list[NodeProcess]) -> None:
    one, two = nodes
    leaders = made(nodes, "over")
    with RawClient(one.ydb) as raw:
        raw.result("AlterTopic", path="over", add_consumers=[{"name": f"c{n}"} for n in range(PARTITIONS)])

        def opened() -> list[RawStream]:
            """A reader and a writer of each partition."""
            streams = []
            for number in range(PARTITIONS):
                streams += [raw.stream("StreamRead"), raw.stream("StreamWrite")]
                streams[-2].send(**reading(f"c{number}", path="over"))
                streams[-1].send(init_request={"path": "over", "partition_id": number})
            return streams

        streams = opened()
        assert {stream.receive().status for stream in streams} == {Status.SUCCESS}
        two.kill()
        led = [streams[2 * number + 1] for number, leader in leaders.items() if leader == 2]
        assert {stream.rest()[-1].status for stream in led} == {Status.UNAVAILABLE}
        two.start()
        # Of two nothing has been said yet.
        streams = [*opened(), raw.stream("StreamRead"), raw.stream("StreamWrite")]
        raw.result("DescribeTopic", path="over")
        assert one.terminate() == 0
        assert {stream.rest()[-1].status for stream in streams} == {Status.UNAVAILABLE}
    one.start()
