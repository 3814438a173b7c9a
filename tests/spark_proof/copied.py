"""Topics of a proof: filled, copied by a query in another process, and compared by digests."""

from __future__ import annotations

import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from tests.node_process import NodeProcess

PARTITIONS = 3
COMPARED = Columns(("key", "value", "headers", "timestamp"))


@dataclass(slots=True)
class Copy:
    """A topic of ``records`` records, and the one that they are copied into, partition by partition."""

    node: NodeProcess
    directory: Path
    records: int
    source: str = ""
    target: str = ""

    def __post_init__(self) -> None:
        name = uuid.uuid4().hex[:8]
        self.source, self.target = f"source-{name}", f"target-{name}"
        admin = AdminClient({"bootstrap.servers": self.node.kafka})
        for made in admin.create_topics([NewTopic(one, PARTITIONS, 1) for one in (self.source, self.target)]).values():
            made.result(30)
        producer = Producer({"bootstrap.servers": self.node.kafka, "linger.ms": 20, "compression.type": "lz4"})
        for number in range(self.records):
            producer.produce(
                self.source,
                b"value %d" % number,
                b"%d" % (number % 97),
                number % PARTITIONS,
                headers=[("n", b"%d" % number)],
            )
            producer.poll(0)
        assert producer.flush(60) == 0

    @property
    def url(self) -> str:
        return f"anabranch://{self.node.addresses['pipeline']}"

    def query(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the driver; what it prints goes to a file beside the data."""
        command = [sys.executable, "-m", "tests.spark_proof.copy_query", "--endpoint", self.url]
        command += ["--source", self.source, "--target", self.target, *arguments]
        command += ["--checkpoint", str(self.directory / "checkpoint")]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    @property
    def log(self) -> Path:
        return self.directory / "query.log"

    def copied(self) -> int:
        """Records that readers of the target see."""
        return sum(end for _, end in self._ends(self.target))

    def _ends(self, topic: str) -> list[tuple[int, int]]:
        reader = endpoint(self.url)
        try:
            told = reader.positions([TopicPartition(topic, number) for number in range(PARTITIONS)])
        finally:
            reader.close()
        return [(part.partition, told[part].stable) for part in sorted(told)]

    def rows(self, topic: str) -> list[list[dict[str, object]]]:
        """Of each partition, in order."""
        reader = endpoint(self.url)
        try:
            return [
                [
                    row
                    for batch in reader.read(OffsetRange(topic, number, 0, end), COMPARED)
                    for row in batch.to_pylist()
                ]
                for number, end in self._ends(topic)
            ]
        finally:
            reader.close()

    def differences(self) -> list[str]:
        """What is not the same in both topics: each record once, in the order of its partition."""
        found = []
        for number, (sent, got) in enumerate(zip(self.rows(self.source), self.rows(self.target), strict=True)):
            if sent != got:
                first = next((at for at, pair in enumerate(zip(sent, got, strict=False)) if pair[0] != pair[1]), -1)
                found.append(f"partition {number}: {len(sent)} records became {len(got)}, first difference at {first}")
        return found
