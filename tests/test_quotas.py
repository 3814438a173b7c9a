"""Quotas hold whatever protocol a client speaks, also after kill -9, and slow nobody else down."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import ydb
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bridges.commands.cli import main
from pravega_front.wire import commands as wire
from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, NodeProcess
from tests.node_users import basic, login, with_users
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.raw_client import RawClient

SECONDS = 30
RATE = 1_000_000
SENT = 4 * RATE
LEAST = 2.0
"""Seconds that it takes, with a second's worth at once, and a request that may go beyond that."""
MOST = 15.0
USERS = ("root", "slow", "quick")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    data = tmp_path / "data"
    with_users(data, USERS)
    made = NodeProcess(
        data,
        settings={**TEST_SETTINGS, "auth.required": "true"},
        listen=dict.fromkeys(("kafka", "ydb", "console", "pravega", "pravega-segmentstore"), ANY),
    )
    made.start()
    admin = AdminClient(login(made.kafka, "root"))
    admin.create_topics([NewTopic("t", 1)])["t"].result(SECONDS)
    yield made
    made.dispose()


def produced(node: NodeProcess, user: str, throttled: list[int] | None = None, **other: Any) -> float:
    """How long it takes to write some megabytes."""
    failed: list[object] = []

    def told(text: str) -> None:
        for broker in json.loads(text)["brokers"].values():
            if throttled is not None:
                throttled.append(broker["throttle"]["max"])

    settings = {"stats_cb": told, "statistics.interval.ms": 200, "linger.ms": 5, "batch.size": 100_000, **other}
    producer = Producer({**login(node.kafka, user), **settings})
    producer.list_topics("t", SECONDS)
    began = time.monotonic()
    for _ in range(SENT // 10_000):
        producer.produce("t", bytes(10_000), on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not failed
    return time.monotonic() - began


def consumed(node: NodeProcess, user: str) -> float:
    """How long it takes to read them."""
    consumer = Consumer({**login(node.kafka, user), "group.id": "g", "fetch.message.max.bytes": 200_000})
    consumer.assign([TopicPartition("t", 0, 0)])
    began, size = time.monotonic(), 0
    while size < SENT:
        message = consumer.poll(SECONDS)
        assert message is not None
        size += len(message.value() or b"")
    consumer.close()
    return time.monotonic() - began


def quota(node: NodeProcess, *arguments: str, code: int = 0) -> Any:
    environment = {
        "ANABRANCH_NODE": f"http://{node.addresses['console']}",
        "ANABRANCH_USER": "root",
        "ANABRANCH_PASSWORD": "root",
    }
    done = CliRunner().invoke(main, ["quota", *arguments, "--json"], env=environment, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if code == 0 else done.stderr


def test_who_has_a_quota_waits_and_nobody_else(node: NodeProcess) -> None:
    set_quota = ("set", "--user", "slow", f"producer_byte_rate={RATE}", f"consumer_byte_rate={RATE}")
    found = quota(node, *set_quota)
    assert found == [{"entity": {"user": "slow"}, "values": {"producer_byte_rate": RATE, "consumer_byte_rate": RATE}}]
    throttled: list[int] = []
    slow = produced(node, "slow", throttled)
    assert LEAST < slow < MOST
    assert max(throttled) > 0, "librdkafka was told"
    assert produced(node, "quick") < LEAST
    assert LEAST < consumed(node, "slow") < MOST
    assert consumed(node, "quick") < LEAST

    node.kill()
    node.start()
    assert quota(node, "list") == found
    assert produced(node, "slow") > LEAST
    assert quota(node, "remove", "--user", "slow") == [{"entity": {"user": "slow"}, "values": {}}]
    assert produced(node, "slow") < LEAST


def test_connections_of_one_user_share_its_quota(node: NodeProcess) -> None:
    quota(node, "set", "--user", "*", f"producer_byte_rate={RATE}")
    began = time.monotonic()
    for _ in range(4):  # each new connection waits for what those before it took
        producer = Producer(login(node.kafka, "slow"))
        producer.produce("t", bytes(900_000))
        assert producer.flush(SECONDS) == 0
    assert time.monotonic() - began > 1.5


def test_a_client_id_of_a_user_comes_before_the_user(node: NodeProcess) -> None:
    quota(node, "set", "--user", "slow", f"producer_byte_rate={RATE}")
    quota(node, "set", "--user", "slow", "--client-id", "bulk", f"producer_byte_rate={100 * RATE}")
    assert produced(node, "slow", **{"client.id": "bulk"}) < LEAST
    assert produced(node, "slow", **{"client.id": "other"}) > LEAST


class Earliest(ydb.TopicReaderEvents.EventHandler):  # type: ignore[misc]
    """Reads from the beginning."""

    def on_partition_get_start_offset(self, event: Any) -> Any:
        return ydb.TopicReaderEvents.OnPartitionGetStartOffsetResponse(0)


def test_a_writer_and_a_reader_of_ydb_wait(node: NodeProcess) -> None:
    quota(node, "set", "--user", "slow", f"producer_byte_rate={RATE}", f"consumer_byte_rate={RATE}")
    for user, waits in (("slow", True), ("quick", False)):
        credentials = ydb.StaticCredentials.from_user_password(user, user)
        with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/Root", credentials=credentials) as driver:
            driver.wait(SECONDS)
            began = time.monotonic()
            with driver.topic_client.writer("/Root/t", producer_id=user, codec=ydb.TopicCodec.RAW) as writer:
                for _ in range(8):
                    writer.write(bytes(SENT // 8))
                    writer.flush()
            assert (time.monotonic() - began > LEAST) == waits
            selector = ydb.TopicReaderSelector(path="/Root/t", partitions=[0])
            began, size = time.monotonic(), 0
            options = {"buffer_size_bytes": RATE // 2, "event_handler": Earliest()}
            with driver.topic_client.reader(selector, consumer=None, **options) as reader:
                while size < SENT:
                    size += len(reader.receive_message(timeout=SECONDS).data)
            assert (time.monotonic() - began > LEAST) == waits


def test_a_writer_of_pravega_waits(node: NodeProcess) -> None:
    quota(node, "set", "--user", "slow", f"producer_byte_rate={RATE}")
    segment = "s/one/0.#epoch.0"
    for user, waits in (("slow", True), ("quick", False)):
        controller = ControllerClient(node.addresses["pravega"], (("authorization", basic(user)),))
        controller.createScope(scope="s")
        controller.createStream(streamInfo={"scope": "s", "stream": "one"}, scalingPolicy={"minNumSegments": 1})
        token = controller.getDelegationToken(scope="s", stream="one").delegationToken
        controller.close()
        with RawClient(node.addresses["pravega-segmentstore"]) as raw:
            writer = uuid4().bytes
            raw.ask(wire.SetupAppend(1, writer, segment, token), wire.AppendSetup)
            began = time.monotonic()
            for number in range(1, 9):
                data = bytes(SENT // 8)
                raw.ask(wire.AppendBlockEnd(writer, len(data), data, 1, number, number), wire.DataAppended)
            assert (time.monotonic() - began > LEAST) == waits


def test_a_neighbour_goes_on_while_another_is_muted(node: NodeProcess) -> None:
    quota(node, "set", "--user", "slow", f"producer_byte_rate={RATE}")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(produced, node, "slow")
        assert produced(node, "quick") < LEAST
        assert not slow.done()
        assert slow.result(SECONDS) > LEAST


def test_who_makes_and_deletes_topics_waits(node: NodeProcess) -> None:
    quota(node, "set", "--user", "slow", "controller_mutation_rate=5")
    for user, waits in (("slow", True), ("quick", False)):
        admin = AdminClient(login(node.kafka, user))
        names = [f"{user}-{number}" for number in range(3)]
        began = time.monotonic()
        for name in names:  # five partitions each, which is what comes in a second
            admin.create_topics([NewTopic(name, 4)])[name].result(SECONDS)
            admin.create_partitions([NewPartitions(name, 5)])[name].result(SECONDS)
        for name in names:
            admin.delete_topics([name])[name].result(SECONDS)
        # Thirty partitions; a second's worth came at once, and the last request may go beyond that by its own.
        assert (time.monotonic() - began > 3.0) == waits


def test_what_makes_no_quota_is_refused_in_a_sentence(node: NodeProcess) -> None:
    for arguments, words in (
        (("producer_byte_rate=1",), "a quota is of a user"),
        (("--user", "a", "producer_byte_rate=0"), "above 0"),
        (("--user", "a", "producer_byte_rate=1.5"), "whole number"),
        (("--user", "a", "flights=1"), "have no flights"),
        (("--user", "a", "--ip", "10.0.0.1", "connection_creation_rate=1"), "cannot be combined"),
        (("--ip", "here", "connection_creation_rate=1"), "not a valid IP address"),
        (("--ip", "10.0.0.1", "producer_byte_rate=1"), "addresses have no"),
    ):
        assert words in quota(node, "set", *arguments, code=1)
    assert quota(node, "list") == []
