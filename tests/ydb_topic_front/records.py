"""What lies in a topic, read by a client of another protocol."""

from __future__ import annotations

from confluent_kafka import Consumer, Message, TopicPartition

PATIENCE = 90.0


def records_of(kafka: str, topic: str, partition: int, number: int) -> list[Message]:
    """The first ``number`` records of a partition, from its beginning; fails when they do not come."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[Message] = []
        while len(found) < number:
            got = consumer.consume(number - len(found), PATIENCE)
            assert got, f"{len(found)} of {number} records of {topic}-{partition} after {PATIENCE} s"
            for message in got:
                assert message.error() is None, message.error()
                found.append(message)
        return found
    finally:
        consumer.close()


def values_of(kafka: str, topic: str, partition: int, number: int) -> list[bytes | None]:
    """Their values."""
    return [message.value() for message in records_of(kafka, topic, partition, number)]
