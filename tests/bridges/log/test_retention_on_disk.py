"""Retention gives disk space back, also when another partition's old data lies in the same segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.waiting import wait_until
from tests.node_process import NodeProcess

MIB = 1024 * 1024
KEPT = 4 * MIB
WRITTEN = 64 * MIB
VALUE = bytes(16 * 1024)


def log_bytes(data: Path) -> int:
    """Disk really taken by the write-ahead log."""
    return sum(path.stat().st_blocks * 512 for path in data.rglob("*.seg"))


def test_trimmed_data_frees_segments_and_slow_partitions_do_not_pin_them(
    node_factory: Callable[..., NodeProcess],
) -> None:
    node = node_factory(
        settings={"sbp.segment_bytes": "4MiB", "log.retention_check_interval_ms": "200", "logging.level": "info"}
    )
    admin = AdminClient({"bootstrap.servers": node.kafka})
    slow = NewTopic("slow", 1, 1, config={"retention.ms": "-1"})
    fast = NewTopic("fast", 1, 1, config={"retention.ms": "-1", "retention.bytes": str(KEPT)})
    for future in admin.create_topics([slow, fast]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 0, "enable.idempotence": True})
    rounds = 64
    per_round = WRITTEN // len(VALUE) // rounds
    for number in range(rounds):  # a little of the slow topic in every segment
        producer.produce("slow", f"{number}", partition=0)
        for _ in range(per_round):
            producer.produce("fast", VALUE, partition=0)
        assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g", "enable.auto.commit": False})

    def earliest() -> int:
        low, _ = consumer.get_watermark_offsets(TopicPartition("fast", 0), timeout=30)
        return int(low)

    total = rounds * per_round
    wait_until(lambda: (total - earliest()) * len(VALUE) < 2 * KEPT, "trimming to retention.bytes")
    assert (total - earliest()) * len(VALUE) >= KEPT, "what is to be kept is kept"
    wait_until(lambda: log_bytes(node.data) < WRITTEN // 2, "freeing segments")
    consumer.assign([TopicPartition("slow", 0, OFFSET_BEGINNING)])
    values = []
    while len(values) < rounds:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message.error()
        values.append(int(message.value()))
    assert values == list(range(rounds))
    consumer.close()
    node.restart(kill=True)
    again = Consumer({"bootstrap.servers": node.kafka, "group.id": "g"})
    low, high = again.get_watermark_offsets(TopicPartition("slow", 0), timeout=30)
    assert (low, high) == (0, rounds)
    low, high = again.get_watermark_offsets(TopicPartition("fast", 0), timeout=30)
    assert high == total
    assert low > 0
    again.close()
