"""MirrorMaker 2 of Apache Kafka, one process as it comes: what a migration is compared with.

The jars come from Maven Central through `benchmarks/mirror_jars/pom.xml` and are kept below `.tools/mirror`. Needs
`java` (17 or newer) and, the first time, `mvn`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from benchmarks.java_server import MEASURED_JAVA, JavaServer, ServerFailed, fetch_jars
from benchmarks.spark_load import cpu
from benchmarks.tools import TOOLS as ALL_TOOLS

POM = Path(__file__).resolve().parent / "mirror_jars" / "pom.xml"
TOOLS = ALL_TOOLS / "mirror"
BUFFER_BYTES = 256 * 1024 * 1024
"""What all tasks' producers may hold together, as much as the loop's one. A task keeps what it has read as well until
that is acknowledged: four times as much does not fit into the heap when the target is slower than the source."""
_LOOK_S = 0.02
_LOG = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.connect.mirror.MirrorMaker=info",
)


def install_jars(tools: Path = TOOLS) -> Path:
    """The directory with its jars, fetched once. Raises ServerFailed when they cannot be had."""
    return fetch_jars(POM, tools)


class MirrorMaker(JavaServer):
    """Copies one topic between two clusters of Kafka's, or what speaks like one, from its first record on.

    Consumer and producer are set as those of the loop that it stands beside; what it does besides copying (heartbeats,
    positions of groups, configurations) is off.
    """

    started = "Kafka MirrorMaker started"

    def __init__(
        self, directory: Path, source: str, target: str, topic: str, tasks: int, batch_bytes: int, alias: str
    ) -> None:
        """``alias`` is what it calls the source, and the copy by it: it goes on where one of that name has ended."""
        super().__init__(directory, start_seconds=120.0)
        self.target, self.copy = target, f"{alias}.{topic}"
        mirror = f"{alias}->new"
        self._properties = {
            "clusters": f"{alias}, new",
            f"{alias}.bootstrap.servers": source,
            "new.bootstrap.servers": target,
            f"{mirror}.enabled": "true",
            f"{mirror}.topics": topic,
            f"new->{alias}.enabled": "false",
            "tasks.max": str(tasks),
            **dict.fromkeys(
                (
                    "replication.factor",
                    "checkpoints.topic.replication.factor",
                    "heartbeats.topic.replication.factor",
                    "offset-syncs.topic.replication.factor",
                    "config.storage.replication.factor",
                    "offset.storage.replication.factor",
                    "status.storage.replication.factor",
                ),
                "1",
            ),
            **dict.fromkeys(
                (
                    "emit.heartbeats.enabled",
                    "emit.checkpoints.enabled",
                    "sync.topic.acls.enabled",
                    "sync.topic.configs.enabled",
                    "refresh.groups.enabled",
                ),
                "false",
            ),
            f"{alias}.consumer.max.partition.fetch.bytes": str(8 * 1024 * 1024),
            f"{alias}.consumer.max.poll.records": "10000",
            "new.producer.batch.size": str(batch_bytes),
            "new.producer.linger.ms": "50",
            "new.producer.buffer.memory": str(BUFFER_BYTES // tasks),
        }

    @property
    def bootstrap(self) -> str:
        """`host:port` of where the copy is."""
        return self.target

    def command(self) -> Sequence[str]:
        """The command line, once its properties are written."""
        jars = install_jars()
        config = self.directory / "mm2.properties"
        config.write_text("".join(f"{name} = {value}\n" for name, value in self._properties.items()))
        java = ["java", "-Xmx2g", "-Xms1g", *_LOG, *MEASURED_JAVA, "-cp", f"{jars}/*"]
        return [*java, "org.apache.kafka.connect.mirror.MirrorMaker", str(config)]

    def copied(
        self, partitions: int, count: int, pids: Sequence[int], patience_s: float = 180.0
    ) -> tuple[float, float, float]:
        """Wait until ``count`` records are at the target, whose topic must be there; gives the seconds from the moment
        at which the first was there, and the CPU seconds of this process and of ``pids`` since then.

        Raises ServerFailed when that takes longer than there is patience.
        """
        consumer = Consumer({"bootstrap.servers": self.target, "group.id": "looks-on", "enable.auto.commit": False})
        give_up = time.monotonic() + patience_s
        began = own = others = 0.0
        try:
            while True:
                there = sum(_end(consumer, self.copy, number) for number in range(partitions))
                now = time.monotonic()
                if there and not began:
                    began, own, others = now, cpu(self.pid), cpu(*pids)
                if there >= count:
                    return now - began, cpu(self.pid) - own, cpu(*pids) - others
                if now > give_up or self.process is None or self.process.poll() is not None:
                    raise ServerFailed(f"MirrorMaker brought {there} of {count} records:\n{self.tail()[-2000:]}")
                time.sleep(_LOOK_S)
        finally:
            consumer.close()


def _end(consumer: Consumer, topic: str, partition: int) -> int:
    return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10.0)[1])
