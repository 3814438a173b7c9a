"""The servers that are compared: our node and Apache Kafka, each in a safe and in a relaxed way of flushing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kafka_broker import KafkaBroker
from tests.node_process import DocumentNode, NodeProcess

Server = NodeProcess | KafkaBroker


@dataclass(frozen=True, slots=True)
class Target:
    """A server in one configuration; ``promise`` says what an acknowledgement survives. Some are measured only when
    they are asked for."""

    name: str
    kind: str
    settings: Mapping[str, str]
    promise: str
    asked_for: bool = False

    def server(self, directory: Path, tree: Path | None = None) -> Server:
        """A server of this kind, not started, with its data below ``directory``; ``tree`` is another checkout with an
        environment of its own, whose node it is if this target is one of before."""
        place = directory / self.name
        if self.kind == "kafka":
            return KafkaBroker(place, heap="1g", settings=dict(self.settings))
        if self.kind == "document":
            return DocumentNode(place / "data", settings=self.settings, backend_settings=self.settings)
        node = NodeProcess(place / "data", settings=self.settings)
        if self.kind == "before":
            assert tree is not None
            node.python = [str(tree.absolute() / ".venv/bin/python"), "-P"]  # not what lies in this directory
        return node


TARGETS = {
    target.name: target
    for target in (
        Target("anabranch-fsync", "anabranch", {"sbp.durability": "fsync"}, "power loss: flushed before acknowledged"),
        Target("anabranch-os", "anabranch", {"sbp.durability": "os"}, "death of the process, not power loss"),
        Target("kafka-default", "kafka", {}, "death of the process, not power loss (flushing left to the system)"),
        Target(
            "kafka-flush-1",
            "kafka",
            {"log.flush.interval.messages": "1"},
            "power loss: flush.messages=1, flushed before acknowledged",
        ),
        Target("before-fsync", "before", {"sbp.durability": "fsync"}, "power loss; of --tree", asked_for=True),
        Target("before-os", "before", {"sbp.durability": "os"}, "death of the process; of --tree", asked_for=True),
        Target(
            "workers-2-fsync",
            "anabranch",
            {"sbp.durability": "fsync", "node.workers": "2", "node.worker_port_step": "0"},
            "power loss; two processes that are one node",
            asked_for=True,
        ),
        Target(
            "document-fsync",
            "document",
            {"sbp.durability": "fsync"},
            "power loss; the data is behind another process, spoken to in SBP's dialect v0.1",
            asked_for=True,
        ),
        Target(
            "document-os",
            "document",
            {"sbp.durability": "os"},
            "death of the process, not power loss; behind another process, in SBP's dialect v0.1",
            asked_for=True,
        ),
    )
}
# Whom a target is compared with: those that promise the same.
RIVALS = (
    ("anabranch-fsync", "kafka-flush-1"),
    ("anabranch-os", "kafka-default"),
    ("anabranch-fsync", "before-fsync"),
    ("anabranch-os", "before-os"),
)
