"""One node as several processes: kills of one of them and of their parent, under load, and other numbers of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import ydb
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic
from pravega_client import StreamManager
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from bridges.node.workers.worker import LEASE_S
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode
from tests.bridges.log.log_lab import batch
from tests.cluster.load import (
    PARTITIONS,
    PATIENCE,
    TOPIC,
    Load,
    Writer,
    await_acknowledged,
    await_leaders,
    leaders,
    read_all,
)
from tests.cluster.test_failover import commanded
from tests.cluster.test_pravega_clients import read
from tests.compose.clients import Clients
from tests.conftest import NodeFactory
from tests.kafka_front.test_session import Client
from tests.kit.waiting import wait_until
from tests.node_process import ANY, NodeFailed, NodeProcess
from tests.node_users import login, rule, ruled, with_users
from tests.ports import free_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_JSON = {"Content-Type": "application/json"}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[NodeFactory]:
    factory = NodeFactory(tmp_path)
    try:
        yield factory
    finally:
        factory.dispose()


def workers(make: NodeFactory, count: int, name: str = "node", start: bool = True) -> NodeProcess:
    """``count`` workers on one data directory; above the first one at any free ports."""
    settings = {"node.workers": f"{count}", "node.worker_port_step": "0"}
    return make(name, settings=settings, start=start)


def start_in_place(node: NodeProcess) -> None:
    """Start two workers that are always where they were, as in production: librdkafka asks for its coordinator where it
    has met it, while that has the same id, wherever FindCoordinator says that it is now."""
    node.command()
    bases = [int(address.rpartition(":")[2]) for address in node.addresses.values()]
    node.settings["node.worker_port_step"] = f"{free_step(bases)}"
    node.start()


def bootstrap(node: NodeProcess) -> str:
    return ",".join(address for name, address in node.addresses.items() if name.partition("/")[0] == "kafka")


def children(node: NodeProcess) -> list[int]:
    """Pids of the workers that live, in the order in which they were started."""
    found = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text()
    return [int(pid) for pid in found.split()]


def is_alive(pid: int) -> bool:
    """Whether it may still do anything; not so one whose parent has not asked for its end."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def await_end(pids: list[int]) -> None:
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def made(node: NodeProcess) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap(node)})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    return admin


def test_clients_go_on_when_a_worker_is_killed(make: NodeFactory) -> None:
    node = workers(make, 2, start=False)
    start_in_place(node)
    admin = made(node)
    await_leaders(admin, {0, 1})
    with Load(bootstrap(node)) as load:
        await_acknowledged(load.writer, 300)
        load.writer.longest = 0.0  # first openings are not what this is about
        for victim in (1, 0):
            before = children(node)
            os.kill(before[victim], signal.SIGKILL)
            await_acknowledged(load.writer, 300)
            after = children(node)
            assert len(after) == 2
            assert len({*before, *after}) == 3
        load.end()
    load.judge()
    # Nothing was moved for it.
    await_leaders(admin, {0, 1})
    assert load.writer.longest < 30
    assert node.terminate() == 0


def test_no_worker_calls_a_topic_unknown_that_another_has_just_made(make: NodeFactory) -> None:
    """An idempotent producer's next batch might be taken, and its first one refused for good (KAFKA-15591)."""
    node = workers(make, 2)
    asyncio.run(write_at_once([address for name, address in node.addresses.items() if name.startswith("kafka")]))
    assert node.terminate() == 0


async def write_at_once(addresses: list[str]) -> None:
    """Make topics at the first worker, and write to each of their partitions at its leader, at once."""

    async def connect(address: str) -> Client:
        host, _, port = address.rpartition(":")
        return Client(*await asyncio.open_connection(host, int(port)))

    clients = {address: await connect(address) for address in addresses}
    first = clients[addresses[0]]
    used = set()
    for number in range(100):
        name = f"new-{number}"
        made = await first.call(7, m.CreateTopicsRequest([m.CreateTopicsRequest.CreatableTopic(name, 2, 1)], 30_000))
        assert made.topics[0].error_code == 0
        told = await first.call(12, m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=name)], False))
        brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in told.brokers}
        for partition in told.topics[0].partitions:
            data = m.ProduceRequest.PartitionProduceData(partition.partition_index, bytes(batch(sequence=0).payload))
            topic = m.ProduceRequest.TopicProduceData(name=name, partition_data=[data])
            used.add(brokers[partition.leader_id])
            answer = await clients[brokers[partition.leader_id]].call(12, m.ProduceRequest(None, -1, 30_000, [topic]))
            code = answer.responses[0].partition_responses[0].error_code
            assert code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER), "slots may be on their way"
    assert used == set(addresses)


def test_a_worker_that_does_not_get_on_is_killed(make: NodeFactory) -> None:
    node = workers(make, 2, start=False)
    node.settings["node.stall_ms"] = "4s"
    node.start()
    admin = made(node)
    await_leaders(admin, {0, 1})
    stopped = children(node)[1]
    os.kill(stopped, signal.SIGSTOP)
    await_end([stopped])
    assert "does not get on" in node.tail()
    await_leaders(admin, {0, 1})
    writer = Writer(bootstrap(node))
    writer.write(1)
    writer.close()
    assert writer.failed == []
    assert {partition for partition, _ in writer.acknowledged} == set(range(PARTITIONS))


def test_workers_end_with_their_parent_and_nothing_is_lost(make: NodeFactory) -> None:
    node = workers(make, 2)
    await_leaders(made(node), {0, 1})
    writer = Writer(bootstrap(node))
    writer.write(3)
    writer.close()
    pids = children(node)
    assert len(pids) == 2
    node.kill()
    await_end(pids)
    node.start()
    assert read_all(bootstrap(node)) == writer.acknowledged
    assert writer.failed == []


@pytest.mark.parametrize(
    ("durability", "counts", "tickets"),
    [("fsync", [1, 3, 2, 1, 2], "false"), ("object", [2, 1, 3], "false"), ("fsync", [1, 2, 1], "true")],
)
def test_other_numbers_of_workers_have_what_those_before_have_written(
    make: NodeFactory, tmp_path: Path, durability: str, counts: list[int], tickets: str
) -> None:
    """More, fewer, and a node by itself in between; they let one another at their stores, also where these demand
    tickets."""
    (tmp_path / "bucket").mkdir()
    node = workers(make, counts[0], start=False)
    node.settings |= {"sbp.durability": durability, "sbp.objects": f"file://{tmp_path}/bucket", "sbp.tickets": tickets}
    node.start()
    admin = made(node)
    known: dict[tuple[int, int], bytes] = {}
    for number, count in enumerate(counts):
        if number:
            node.terminate()
            node.settings |= {"node.workers": f"{count}", "node.worker_port_step": "0"}
            node.start()
            admin = AdminClient({"bootstrap.servers": bootstrap(node)})
        await_leaders(admin, set(range(count)))
        if number:
            assert read_all(bootstrap(node)) == known
        writer = Writer(bootstrap(node))
        writer.write(1)
        writer.close()
        assert writer.failed == []
        assert not known.keys() & writer.acknowledged.keys()
        known |= writer.acknowledged
    assert read_all(bootstrap(node)) == known
    assert len(known) > 100 * len(counts)


def test_what_is_moved_to_a_worker_stays_there(make: NodeFactory) -> None:
    node = workers(make, 2)
    admin = made(node)
    await_leaders(admin, {0, 1})
    with Load(bootstrap(node)) as load:
        await_acknowledged(load.writer, 100)
        commanded(node, "move", "1", "--topic", TOPIC)
        assert set(leaders(admin).values()) == {1}
        await_acknowledged(load.writer, 100)
        before = children(node)
        os.kill(before[1], signal.SIGKILL)
        await_acknowledged(load.writer, 100)
        assert set(leaders(admin).values()) == {1}
        commanded(node, "move", "0", "--topic", TOPIC, "--partition", "3")
        assert [number for number, leader in leaders(admin).items() if leader == 0] == [3]
        await_acknowledged(load.writer, 100)
        load.end()
    load.judge()
    assert "node 2 does not serve" in commanded(node, "move", "2", "--slot", "0", code=1)
    # After any other number of them, too.
    for count, wanted in ((1, {0}), (2, {0, 1})):
        assert node.terminate() == 0
        node.settings["node.workers"] = f"{count}"
        node.start()
        await_leaders(AdminClient({"bootstrap.servers": node.kafka}), wanted)
    admin = AdminClient({"bootstrap.servers": bootstrap(node)})
    assert [number for number, leader in leaders(admin).items() if leader == 0] == [3]
    commanded(node, "drain", "1")
    assert set(leaders(admin).values()) == {0}
    node.restart()
    await_leaders(admin, {0})
    commanded(node, "undrain", "1")
    await_leaders(admin, {0, 1})
    commanded(node, "unpin", "--all")
    assert len(read_all(bootstrap(node))) == len(load.writer.acknowledged)


def test_a_second_node_is_refused_beside_workers(make: NodeFactory) -> None:
    node = workers(make, 2)
    other = NodeProcess(node.data, settings={})
    for count in ("1", "2"):
        other.settings = {"node.workers": count, "node.worker_port_step": "0"}
        other.log = node.log.with_name("other.log")
        other.ready_file = node.ready_file.with_name("other.ready")
        with pytest.raises(NodeFailed, match=f"in use by process {node.pid}"):
            other.start()
    assert len(children(node)) == 2


def test_what_workers_cannot_be_is_told(make: NodeFactory) -> None:
    node = workers(make, 2, start=False)
    node.listen["sbp-range-server"] = "off"
    with pytest.raises(NodeFailed, match="give listen"):
        node.start()
    node.settings["cluster.database"] = "postgresql://nowhere/nothing"
    with pytest.raises(NodeFailed, match="start as many nodes"):
        node.start()
    code = subprocess.run([*node.command(), "--workers", "0"], capture_output=True, check=False, timeout=PATIENCE)
    assert code.returncode == 2


@pytest.mark.long
def test_histories_of_clients_are_clean_when_workers_and_their_parent_are_killed(
    make: NodeFactory, tmp_path: Path
) -> None:
    node = workers(make, 2, start=False)
    node.listen["ydb"] = ANY
    start_in_place(node)
    clients = Clients(bootstrap(node), node.ydb, tmp_path / "histories", "judged")
    clients.begin()
    try:
        for number in range(6):
            pids = children(node)
            victim = pids[number % 2]
            if number == 3:
                # Longer than a lease: the other takes its slots, unless it was stopped as it had the database; and it
                # finds that it was ended when it wakes up. Their parent would have killed it before that.
                os.kill(node.pid, signal.SIGSTOP)
                os.kill(victim, signal.SIGSTOP)
                time.sleep(LEASE_S + 3)
                os.kill(victim, signal.SIGCONT)
                time.sleep(1)
                os.kill(node.pid, signal.SIGCONT)
            elif number == 4:
                node.restart(kill=True)
            else:
                os.kill(victim, signal.SIGKILL)
            print(f"fault {number}: all go on after {clients.progress():.1f} s")
    finally:
        clients.finish.set()
    assert clients.end() == []
    assert clients.unanswered() == []
    assert node.terminate() == 0


def test_clients_of_the_other_protocols_reach_what_any_worker_has(make: NodeFactory) -> None:
    node = workers(make, 2, start=False)
    node.listen |= dict.fromkeys(("ydb", "pravega", "pravega-segmentstore"), ANY)
    node.start()
    await_leaders(made(node), {0, 1})
    sent = {partition: [f"{partition}.{number}".encode() for number in range(50)] for partition in range(PARTITIONS)}
    streams = StreamManager(f"tcp://{node.addresses['pravega']}")
    streams.create_scope("workers")
    streams.create_stream("workers", "events", 6)
    events = streams.create_writer("workers", "events")
    for turn in range(2):
        for number in range(150):
            events.write_event(f"{150 * turn + number}", routing_key=f"key-{number % 17}")
        events.flush()
        with ydb.Driver(ydb.DriverConfig(f"grpc://{node.ydb}", "/local")) as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            for partition, values in sent.items():
                producer = {"producer_id": f"p{partition}", "partition_id": partition}
                with driver.topic_client.writer(TOPIC, **producer) as writer:
                    writer.write(values[25 * turn : 25 * turn + 25])
                    writer.flush(timeout=PATIENCE)
        if not turn:
            for pid in children(node):
                os.kill(pid, signal.SIGKILL)
    found = read_all(bootstrap(node))
    assert {place: value for place, value in found.items() if place[1] < 50} == {
        (partition, offset): value for partition, values in sent.items() for offset, value in enumerate(values)
    }
    reader = streams.create_reader_group("group", "workers", "events").create_reader("reader")
    assert sorted(read(reader, 300)) == list(range(300))
    reader.reader_offline()
    status = commanded(node, "status")
    assert status.count("up ") == 2
    assert all(address in status for name, address in node.addresses.items() if name.partition("/")[0] == "kafka")


def scraped(address: str, query: str = "") -> list[Metric]:
    with urlopen(f"http://{address}/metrics{query}", timeout=PATIENCE) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def values(families: list[Metric], name: str) -> dict[str, float]:
    """Of a sample without labels of its own, by the worker."""
    found = [sample for family in families for sample in family.samples if sample.name == name]
    assert len({sample.labels["worker"] for sample in found}) == len(found)
    return {sample.labels["worker"]: sample.value for sample in found}


def test_the_first_worker_tells_what_all_count(make: NodeFactory) -> None:
    node = workers(make, 3)
    await_leaders(made(node), {0, 1, 2})
    writer = Writer(bootstrap(node))
    writer.write(0.5)
    count = writer.close()
    families = scraped(node.addresses["console"])
    names = [family.name for family in families]
    assert len(names) == len(set(names))  # all samples of a family are together, as scrapers demand
    assert values(families, "anabranch_worker_up") == {"0": 1, "1": 1, "2": 1}
    acting = values(families, "anabranch_cluster_slots_acting")
    assert (acting.keys(), sum(acting.values())) == ({"0", "1", "2"}, 1024)
    (appended,) = [family for family in families if family.name == "anabranch_appended_records"]
    told = {sample.labels["worker"]: sample.value for sample in appended.samples if sample.labels["topic"] == TOPIC}
    assert (told.keys(), sum(told.values())) == ({"0", "1", "2"}, count)
    # Others tell their own, and the first one too where it is asked for that.
    for alone in (scraped(node.addresses["console/1"]), scraped(node.addresses["console"], "?alone")):
        assert not any("worker" in sample.labels for family in alone for sample in family.samples)
        assert "anabranch_cluster_slots_acting" in {family.name for family in alone}
    stopped = children(node)[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        families = scraped(node.addresses["console"])
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert values(families, "anabranch_worker_up") == {"0": 1, "1": 0, "2": 1}
    assert values(families, "anabranch_cluster_slots_acting").keys() == {"0", "2"}


def console(node: NodeProcess, worker: int, path: str, body: object = None) -> list[Any]:
    """The lines of an answer of one worker's console."""
    address = node.addresses["console" + (f"/{worker}" if worker else "")]
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"http://{address}{path}", data, _JSON if data else {}), timeout=PATIENCE) as answer:
        return [json.loads(line) for line in answer.read().splitlines()]


def test_the_console_of_every_worker_shows_the_partitions_of_all(make: NodeFactory) -> None:
    """Records too; and a group's lag and positions, which any of them sets, wherever the group is coordinated."""
    node = workers(make, 2)
    await_leaders(made(node), {0, 1})
    writer = Writer(bootstrap(node))
    writer.write(0.5)
    writer.close()
    for worker in range(2):
        (topic,) = console(node, worker, f"/api/topics/{TOPIC}")
        assert {row["partition"]: row["end_offset"] for row in topic["partitions"]} == writer.ends
        found = console(node, worker, f"/api/topics/{TOPIC}/records")
        assert {(one["partition"], one["offset"]): one["value"].encode() for one in found} == writer.acknowledged
    consumer = Consumer({"bootstrap.servers": bootstrap(node), "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition(TOPIC, number, 1) for number in range(PARTITIONS)], asynchronous=False)
    consumer.close()
    lag = sum(writer.ends.values()) - PARTITIONS
    by_node: list[list[str]] = []
    for worker in range(2):
        (group,) = console(node, worker, "/api/groups/readers")
        assert (group["lag"], group["unknown_lags"]) == (lag, 0)
    for worker, to in enumerate(("earliest", "latest")):
        (answer,) = console(node, worker, "/api/groups/readers/reset", {"topics": [TOPIC], "to": to})
        assert [row["before"] for row in answer["positions"]] == [1 - worker] * PARTITIONS
        (group,) = console(node, 1 - worker, "/api/groups/readers")
        assert group["lag"] == (0 if worker else lag + PARTITIONS)
        (listed,) = console(node, worker, "/api/groups")
        assert "unanswered" not in listed
        by_node.append([one["group"] for one in listed["groups"]])
        for page in ("", "?limit=5", "?limit=5&sort=records&descending=true"):
            (listed,) = console(node, worker, f"/api/topics{page}")
            assert [topic["records"] for topic in listed["topics"]] == [sum(writer.ends.values())]
            assert "unanswered" not in listed
    consumer = Consumer({"bootstrap.servers": bootstrap(node), "group.id": "readers"})
    consumer.subscribe([TOPIC])
    while not consumer.assignment():
        consumer.poll(0.1)
    for worker in range(2):
        with pytest.raises(HTTPError) as refused:
            console(node, worker, "/api/groups/readers/reset", {"topics": [TOPIC], "to": "latest"})
        assert refused.value.code == 409
        (group,) = console(node, worker, "/api/groups/readers")
        assert len(group["members"]) == 1
    consumer.close()
    assert by_node == [["readers"]] * 2
    other = children(node)[1]
    os.kill(other, signal.SIGSTOP)
    try:
        (groups,) = console(node, 0, "/api/groups?limit=5")
        (listed,) = console(node, 0, "/api/topics")
    finally:
        os.kill(other, signal.SIGCONT)
    assert listed["unanswered"] == groups["unanswered"] == [1]
    assert 0 < listed["topics"][0]["records"] < sum(writer.ends.values())
    with urlopen(Request(f"{node.console}/api/topics/{TOPIC}/records", method="DELETE"), timeout=PATIENCE) as answer:
        assert json.load(answer)["deleted"] == sum(writer.ends.values())
    (topic,) = console(node, 1, f"/api/topics/{TOPIC}")
    assert {row["partition"]: row["start_offset"] for row in topic["partitions"]} == writer.ends


@pytest.mark.parametrize("tickets", [False, True])
def test_workers_serve_clients_that_must_say_who_they_are(make: NodeFactory, tickets: bool) -> None:
    """Each knows users and rules that came to another one; what a start had told holds after a kill. With tickets they
    read each other's partitions at listeners that nobody had to open."""
    node = workers(make, 2, start=False)
    with_users(node.data, ("root", "eve"))
    node.settings |= {"auth.required": "true", "auth.rules": "deny", "auth.super_users": "User:root"}
    if tickets:
        node.settings["sbp.tickets"] = "true"
    node.start()
    root, eve = (login(bootstrap(node), name) for name in ("root", "eve"))
    admin = AdminClient(root)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
    await_leaders(admin, {0, 1})

    def write(options: dict[str, Any]) -> dict[int, KafkaError | None]:
        producer = Producer(options)
        told: dict[int, KafkaError | None] = {}
        for partition in range(PARTITIONS):
            producer.produce(
                TOPIC,
                b"x",
                partition=partition,
                on_delivery=lambda error, message: told.update({message.partition(): error}),
            )
        assert producer.flush(PATIENCE) == 0
        return told

    assert set(write(root).values()) == {None}
    refused = write(eve)
    assert {error.code() for error in refused.values() if error} == {KafkaError.TOPIC_AUTHORIZATION_FAILED}
    ruled(admin, rule(TOPIC, "User:eve", AclOperation.WRITE), PATIENCE)
    # The other worker is told of it at once, and a moment later than who has answered.
    began = time.monotonic()
    while set(write(eve).values()) != {None}:
        assert time.monotonic() - began < PATIENCE
    for pid in children(node):
        os.kill(pid, signal.SIGKILL)
    assert set(write(eve).values()) == {None}
