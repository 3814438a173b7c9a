"""A topic is split while one of Kafka's transactions is open in it: the split happens at once, the marker still reaches
the part that was sealed, and readers of all protocols see the transaction whole, or nothing of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import ydb
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, NodeProcess
from tests.split_clients import (
    LISTENERS,
    LONG_MS,
    PATIENCE,
    Readers,
    Transactional,
    controller_of,
    end,
    judge,
    made,
    plainly,
    split,
)

SHORT_MS = 8_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    listen = {**dict.fromkeys(LISTENERS, ANY), "console": "off", "sbp-pd": "off", "sbp-range-server": "off"}
    process = NodeProcess(tmp_path_factory.mktemp("split") / "data", settings=TEST_SETTINGS, listen=listen)
    try:
        yield process.start()
    finally:
        process.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["commit", "abort", "timeout", "kill, commit", "kill, abort"])
def test_a_transaction_over_a_split_is_whole_for_readers_of_all_protocols(node: NodeProcess, how: str) -> None:
    topic = "over-" + how.replace(", ", "-")
    made(node, topic)
    controller = controller_of(node)
    plainly(node, topic, 0, "before")
    with Readers(node, topic, 3) as readers:
        readers.until(lambda one: one.values == ["before"])
        transaction = Transactional(node, topic, SHORT_MS if how == "timeout" else LONG_MS)
        assert not transaction.write(topic, 0, "t0", "t1")
        plainly(node, topic, 0, "behind")
        begun = time.monotonic()
        split(controller, topic)
        assert time.monotonic() - begun < 3, "the split does not wait for the transaction"
        # Nor does anything else wait: another stream is split, and the parts take records of everybody.
        made(node, f"{topic}-other")
        split(controller, f"{topic}-other")
        plainly(node, topic, 1, "child")
        readers.until(lambda one: one.name != "kafka" or "child" in one.values)
        if how != "timeout":
            assert not transaction.write(topic, 2, "t2"), "it goes on in a part"
            readers.see_nothing_of_it()
        if how.startswith("kill"):
            node.kill()
            node.start()
        took = end(readers, transaction, how)
        controller.close()
    judge(readers, how)
    assert took < (SHORT_MS / 1000 if how == "timeout" else 0) + 10, "no reader waits for longer than for the end"


def test_a_transaction_that_goes_on_in_a_sealed_partition_is_told_at_once(node: NodeProcess) -> None:
    """The error is none that is worth a repetition: the producer aborts and begins again, with the parts' keys."""
    made(node, "goes-on")
    controller = controller_of(node)
    transaction = Transactional(node, "goes-on", LONG_MS)
    assert not transaction.write("goes-on", 0, "lost")
    split(controller, "goes-on")
    (error,) = transaction.write("goes-on", 0, "refused")
    assert error.code() == KafkaError.POLICY_VIOLATION
    with pytest.raises(KafkaException) as refused:
        transaction.producer.commit_transaction(PATIENCE)
    assert refused.value.args[0].txn_requires_abort()
    transaction.producer.abort_transaction(PATIENCE)
    transaction.producer.begin_transaction()
    assert not transaction.write("goes-on", 1, "again")
    transaction.commit()
    with Readers(node, "goes-on", 3) as readers:
        readers.until(lambda one: one.values == ["again"])
    controller.close()


def test_partitions_that_are_added_join_the_transaction_that_is_open(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic("wider", 1, 1)])["wider"].result(PATIENCE)
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE, fail_fast=True)
        driver.topic_client.alter_topic("wider", add_consumers=["all", "old"])
    transaction = Transactional(node, "wider", LONG_MS)
    assert not transaction.write("wider", 0, "old")
    admin.create_partitions([NewPartitions("wider", 2)])["wider"].result(PATIENCE)
    assert not transaction.write("wider", 1, "new")
    plainly(node, "wider", 1, "behind")
    found: list[Any] = []
    with Readers(node, "wider", 2) as readers:
        transaction.commit()
        readers.until(lambda one: len(one.values) >= 3)
        found = [sorted(one.values) for one in readers.readings.values()]
    assert found == [["behind", "new", "old"]] * 4
