"""Kafka clients at a node whose data lives on range servers in other processes, while those come and go."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import NotLeaderForPartitionError

from tests.external.cluster import NODE_TIMEOUT_MS, Cluster, Load, read_all, value
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Make = Callable[[int], Cluster]


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t-{uuid4().hex[:12]}"


def post(cluster: Cluster, topic: str, partition: int, text: str) -> tuple[int, dict[str, object]]:
    """Append over HTTP: status and body."""
    url = f"{cluster.node.console}/api/topics/{topic}/records"
    line = json.dumps({"value": text, "partition": partition}).encode()
    request = urllib.request.Request(url, line + b"\n", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def accepts(cluster: Cluster, topic: str, partition: int) -> bool:
    return post(cluster, topic, partition, "after")[0] == 200


def polled(consumer: KafkaConsumer) -> dict[tuple[int, int], bytes]:
    return {(r.partition, r.offset): r.value for records in consumer.poll(500).values() for r in records}


def test_two_client_libraries_and_ranges_on_all_servers(shared_cluster: Make, topic: str) -> None:
    cluster = shared_cluster(3)
    cluster.create_topic(topic, 12)
    with_confluent = Producer({"bootstrap.servers": cluster.node.kafka, "enable.idempotence": True})
    for n in range(120):
        with_confluent.produce(topic, value(n), partition=n % 12)
    assert with_confluent.flush(60) == 0
    with_python = KafkaProducer(bootstrap_servers=cluster.node.kafka)
    futures = [with_python.send(topic, value(n), partition=n % 12) for n in range(120, 240)]
    assert {(f.get(60).partition, f.get(60).offset) for f in futures} == {
        (p, 10 + n) for p in range(12) for n in range(10)
    }
    with_python.close()
    found = read_all(cluster.node.kafka, topic, 12)
    assert found == {(n % 12, n // 12): n for n in range(240)}
    consumer = KafkaConsumer(bootstrap_servers=cluster.node.kafka, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, p) for p in range(12)])
    read: dict[tuple[int, int], bytes] = {}
    wait_until(
        lambda: len(read) == 240, "kafka-python reads everything", meanwhile=lambda: read.update(polled(consumer))
    )
    assert read == {(n % 12, n // 12): value(n) for n in range(240)}
    consumer.close()
    placement = asyncio.run(cluster.placement(topic, 12))
    assert {len(servers) for servers in placement.values()} == {1}
    assert {servers[0] for servers in placement.values()} == {0, 1, 2}, "no server is left out"
    # A graceful end and a new start of everything, ids and data kept.
    ids = [server.metric("anabranch_range_server_id") for server in cluster.servers]
    assert cluster.node.terminate() == 0
    for server in cluster.servers:
        assert server.terminate() == 0
    assert cluster.pd.terminate() == 0
    for process in (*cluster.servers, cluster.node):
        process.launch()  # none of them needs the placement driver to start again
        process.await_ready()
    cluster.pd.start()
    assert [server.metric("anabranch_range_server_id") for server in cluster.servers] == ids
    assert read_all(cluster.node.kafka, topic, 12) == found


def test_a_range_server_dies_under_load_and_comes_back(shared_cluster: Make, topic: str) -> None:
    cluster = shared_cluster(3)
    cluster.create_topic(topic, 6)
    load = Load(cluster.node.kafka, topic, 6)
    load.start()
    load.more(500)
    for _ in range(2):
        placement = asyncio.run(cluster.placement(topic, 6))
        victim = cluster.server_of(placement[0][-1])  # one that is being written to
        victim.kill()
        load.more(2000)  # appends move to the others
        victim.start()
        load.more(500)
    load.finish()
    load.verify(cluster.node.kafka)
    placement = asyncio.run(cluster.placement(topic, 6))
    assert any(len(servers) > 1 for servers in placement.values())
    # What the node knows by heart must also be what is stored.
    cluster.node.restart()
    load.verify(cluster.node.kafka)


def test_ranges_of_a_dead_server_move_at_once(cluster_of: Make, topic: str) -> None:
    """Its connection to the placement driver ends with it; nobody waits for its silence to tell."""
    cluster = cluster_of(2)
    cluster.pd.settings["sbp.alive_ms"] = "1h"
    cluster.pd.restart()
    wait_until(lambda: cluster.alive() == 2, "range servers report")
    cluster.create_topic(topic, 12)
    load = Load(cluster.node.kafka, topic, 12)
    load.start()
    load.more(500)
    wait_until(lambda: all(asyncio.run(cluster.placement(topic, 12)).values()), "every partition is written to")
    placement = asyncio.run(cluster.placement(topic, 12))
    victim_id = placement[0][-1]
    cluster.server_of(victim_id).kill()
    load.more(2000)
    load.finish()
    after = asyncio.run(cluster.placement(topic, 12))
    for stream, servers in placement.items():
        moved = [1 - victim_id] if servers[-1] == victim_id else []
        assert after[stream] == servers + moved, "no range was given to the dead server"
    for server in cluster.servers:
        if server.process is None or server.process.poll() is not None:
            server.process = None
            server.start()
    load.verify(cluster.node.kafka)


def test_the_placement_driver_dies_under_load_and_comes_back(shared_cluster: Make, topic: str) -> None:
    cluster = shared_cluster(2)
    cluster.create_topic(topic, 4)
    load = Load(cluster.node.kafka, topic, 4)
    load.start()
    load.more(300)
    cluster.pd.kill()
    load.more(2000)  # open ranges need no placement driver
    cluster.pd.start()
    wait_until(lambda: cluster.alive() == 2, "range servers report again")
    cluster.create_topic(f"{topic}-after", 4)
    with_confluent = Producer({"bootstrap.servers": cluster.node.kafka})
    for n in range(40):
        with_confluent.produce(f"{topic}-after", value(n), partition=n % 4)
    assert with_confluent.flush(60) == 0
    load.more(300)
    load.finish()
    load.verify(cluster.node.kafka)
    assert len(read_all(cluster.node.kafka, f"{topic}-after", 4)) == 40


def test_the_node_dies_under_load_and_comes_back(shared_cluster: Make, topic: str) -> None:
    cluster = shared_cluster(2)
    cluster.create_topic(topic, 4)
    load = Load(cluster.node.kafka, topic, 4)
    load.start()
    for _ in range(2):
        load.more(400)
        cluster.node.restart(kill=True)
    load.more(400)
    load.finish()
    load.verify(cluster.node.kafka)


def test_everything_dies_at_once_under_load(shared_cluster: Make, topic: str) -> None:
    cluster = shared_cluster(2)
    cluster.create_topic(topic, 4)
    load = Load(cluster.node.kafka, topic, 4)
    load.start()
    load.more(400)
    processes = [cluster.pd, *cluster.servers, cluster.node]
    for process in processes:
        process.kill()
    for process in reversed(processes):
        process.launch()
    for process in processes:
        process.await_ready()
    load.more(400)
    load.finish()
    load.verify(cluster.node.kafka)


def test_without_its_only_server_a_partition_refuses_clearly_and_works_again_by_itself(
    shared_cluster: Make, topic: str
) -> None:
    cluster = shared_cluster(1)
    cluster.create_topic(topic, 2)
    assert post(cluster, topic, 0, "before")[0] == 200
    cluster.servers[0].kill()
    # An open partition, and one that has never been used.
    for partition in (0, 1):
        start = time.monotonic()
        status, body = post(cluster, topic, partition, "meanwhile")
        assert (status, body["kind"]) == (503, "LogUnavailable")
        assert time.monotonic() - start < 3 * NODE_TIMEOUT_MS / 1000
    python = KafkaProducer(bootstrap_servers=cluster.node.kafka, retries=0, enable_idempotence=False, acks="all")
    with pytest.raises(NotLeaderForPartitionError):
        python.send(topic, b"meanwhile", partition=0).get(60)
    python.close()
    cluster.servers[0].start()
    for partition in (0, 1):
        wait_until(partial(accepts, cluster, topic, partition), "works again")
    found: dict[tuple[int, int], bytes] = {}
    consumer = KafkaConsumer(bootstrap_servers=cluster.node.kafka, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    wait_until(lambda: len(found) >= 3, "everything can be read", meanwhile=lambda: found.update(polled(consumer)))
    consumer.close()
    assert found == {(0, 0): b"before", (0, 1): b"after", (1, 0): b"after"}


def test_a_server_that_hangs_is_answered_for_in_time(shared_cluster: Make, topic: str) -> None:
    cluster = shared_cluster(1)
    cluster.create_topic(topic, 2)
    assert post(cluster, topic, 0, "before")[0] == 200
    os.kill(cluster.servers[0].pid, signal.SIGSTOP)
    try:
        for partition in (0, 1):
            start = time.monotonic()
            status, body = post(cluster, topic, partition, "meanwhile")
            assert (status, body["kind"]) == (503, "LogUnavailable")
            assert time.monotonic() - start < 3 * NODE_TIMEOUT_MS / 1000
    finally:
        os.kill(cluster.servers[0].pid, signal.SIGCONT)
    for partition in (0, 1):
        wait_until(partial(accepts, cluster, topic, partition), "works again")


def test_streams_made_while_a_server_is_dead_go_to_the_living(shared_cluster: Make, topic: str) -> None:
    cluster = shared_cluster(3)
    cluster.servers[1].kill()
    wait_until(lambda: cluster.alive() == 2, "the placement driver notices")
    cluster.create_topic(topic, 8)
    producer = Producer({"bootstrap.servers": cluster.node.kafka})
    for n in range(80):
        producer.produce(topic, value(n), partition=n % 8)
    assert producer.flush(60) == 0
    living = {int(cluster.servers[k].metric("anabranch_range_server_id")) for k in (0, 2)}
    placement = asyncio.run(cluster.placement(topic, 8))
    assert {server for servers in placement.values() for server in servers} == living
    assert len(read_all(cluster.node.kafka, topic, 8)) == 80


def test_a_deleted_topic_is_forgotten_by_a_server_that_was_dead_meanwhile(shared_cluster: Make, topic: str) -> None:
    cluster = shared_cluster(1)
    cluster.create_topic(topic, 2)
    server = cluster.servers[0]
    before = server.metric("anabranch_store_live_bytes")
    producer = Producer({"bootstrap.servers": cluster.node.kafka})
    for n in range(20):
        producer.produce(topic, bytes(1000), partition=n % 2)
    assert producer.flush(60) == 0
    wait_until(lambda: server.metric("anabranch_store_live_bytes") > before + 20_000, "the store counts its data")
    server.kill()
    request = urllib.request.Request(f"{cluster.node.console}/api/topics/{topic}", method="DELETE")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200
    server.start()
    wait_until(lambda: server.metric("anabranch_store_live_bytes") == before, "the data is given back")


def test_data_of_an_embedded_backend_is_served_by_processes_of_their_own(cluster_of: Make) -> None:
    """The directory of an embedded backend is that of a range server and of a placement driver, both at once."""
    cluster = cluster_of(1)
    alone = cluster.add_node("alone", **{"sbp.mode": "embedded"})
    del alone.settings["sbp.pd"]
    alone.start()
    producer = Producer({"bootstrap.servers": alone.kafka})
    for n in range(40):
        producer.produce("moved", value(n), partition=0)
    assert producer.flush(60) == 0
    assert alone.terminate() == 0
    for process in (cluster.node, *cluster.servers, cluster.pd):
        process.terminate()
    for process in (cluster.pd, *cluster.servers):
        process.data = alone.data / "sbp"
        process.start()
    alone.settings.update({"sbp.mode": "external", "sbp.pd": cluster.pd.address})
    alone.start()
    assert read_all(alone.kafka, "moved", 1) == {(0, n): n for n in range(40)}
