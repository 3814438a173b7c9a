"""A reader of a partition of an internal topic."""

from __future__ import annotations

import struct

from confluent_kafka import Consumer, KafkaError, TopicPartition

from kafka_front.service.internal.topic_copy import partition_of
from tests.kit.waiting import wait_until

TOPIC = "__consumer_offsets"


class Reader:
    """Reads the partition of a name to its present end, and goes on from there with each look."""

    def __init__(self, bootstrap: str, name: str, start: int = 0, topic: str = TOPIC) -> None:
        self.offset = start
        self.offsets: list[int] = []
        self.state: dict[bytes, bytes | None] = {}
        self._partition = partition_of(name, 50)
        settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
        # a reader that commits would be in what it reads
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, self._partition, start)])

    def look(self) -> dict[bytes, bytes | None]:
        while True:
            message = self._consumer.poll(60)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                return self.state
            self.offsets.append(message.offset())
            self.offset = message.offset() + 1
            self.state[message.key()] = message.value()

    def await_offset(self, key: bytes, offset: int | None) -> None:
        """Return once the last record of a position says this offset; None: that the position is gone."""
        wait_until(lambda: key in self.look() and offset_of(self.state[key]) == offset)

    def close(self) -> None:
        self._consumer.close()


def position_key(group: str, topic: str, partition: int) -> bytes:
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in (group, topic))
    return struct.pack(">h", 1) + names + struct.pack(">i", partition)


def offset_of(value: bytes | None) -> int | None:
    return None if value is None else struct.unpack_from(">hq", value)[1]
