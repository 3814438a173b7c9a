"""Records that are numbers, in one partition of topic ``t``: what of them is still there once a node has lost some."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.node_process import NodeProcess


def produce(node: NodeProcess, numbers: range, *, one_by_one: bool = False) -> None:
    """``one_by_one``: each is acknowledged before the next is sent."""
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in numbers:
        producer.produce("t", b"%d" % number, partition=0)
        if one_by_one:
            assert producer.flush(30) == 0
    assert producer.flush(30) == 0


def consumed(node: NodeProcess, last: int) -> dict[int, int]:
    """From the beginning up to the record ``last``, by offset."""
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found: dict[int, int] = {}
    number = None
    try:
        while number != last:
            (message,) = consumer.consume(1, timeout=20) or (None,)
            assert message is not None, f"nothing behind {number}\n{node.tail()}"
            assert message.error() is None, message.error()
            assert message.offset() not in found
            found[message.offset()] = number = int(message.value() or b"")
    finally:
        consumer.close()
    return found
