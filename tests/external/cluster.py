"""A node, a placement driver and range servers, each in a process of its own, as users run them."""

from __future__ import annotations

import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from sbp_back.client.client import Client
from sbp_back.client.leader import pd_carrier
from sbp_back.transport.tcp_carrier import parse_address, tcp_connector
from tests.conftest import TEST_SETTINGS
from tests.kit.waiting import wait_until
from tests.node_process import ANY, NodeFailed, NodeProcess

PATIENCE = 90.0
"""Seconds in which anything that can happen must have happened."""

SERVER_SETTINGS = {
    "sbp.heartbeat_ms": "200",
    "sbp.alive_ms": "4s",  # nobody who lives is silent for so long, unless the machine stands still
    "sbp.segment_bytes": "8MiB",
    "sbp.low_water_bytes": "0",
}
NODE_TIMEOUT_MS = 6000


class Server(NodeProcess):
    """A process of the backend: ``kind`` is its command."""

    def __init__(self, kind: str, data: Path, arguments: list[str], settings: Mapping[str, str]) -> None:
        super().__init__(data, settings=settings, listen={})
        self.kind = kind
        self.arguments = arguments

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self.addresses[f"sbp-{self.kind}"]

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "bridges", self.kind, "--data", str(self.data), *self.arguments]
        command += ["--listen", self._address(f"sbp-{self.kind}"), "--metrics", self._address("metrics")]
        command += ["--ready-file", str(self.ready_file)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    def metric(self, name: str) -> float:
        """A metric without labels."""
        with urllib.request.urlopen(f"http://{self.addresses['metrics']}/metrics", timeout=PATIENCE) as response:
            text = response.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name:
                    return sample.value
        raise AssertionError(f"no metric {name}")


class Cluster:
    """One placement driver, ``servers`` range servers and a node that uses them; all started. With ``objects`` the
    range servers keep their logs there."""

    def __init__(self, directory: Path, servers: int, objects: str | None = None) -> None:
        self.directory = directory
        self.objects = objects
        self.pd = Server("pd", directory / "pd", [], SERVER_SETTINGS)
        self.servers: list[Server] = []
        self.wanted = servers
        self._streams: dict[str, int] = {}
        """Topic -> its first stream; those of its partitions follow one another."""
        self._next_stream = 0
        self.nodes: list[NodeProcess] = []

    def start(self) -> Cluster:
        """Everything at once: range servers wait for the placement driver, nodes need neither to start."""
        self.pd.start()
        for _ in range(self.wanted):
            self.add_server().launch()
        node = self.add_node()
        node.launch()
        for process in (*self.servers, node):
            process.await_ready()
        wait_until(lambda: self.alive() == self.wanted, "range servers report")
        return self

    def add_server(self) -> Server:
        number = len(self.servers)
        arguments = ["--pd", self.pd.address]
        settings = dict(SERVER_SETTINGS)
        if self.objects is not None:
            settings |= {"sbp.durability": "object", "sbp.objects": self.objects, "sbp.object_log": str(number)}
            settings |= {"sbp.object_linger_ms": "10"}
        server = Server("range-server", self.directory / f"rs-{number}", arguments, settings)
        self.servers.append(server)
        return server

    def add_node(self, name: str = "node", **settings: str) -> NodeProcess:
        given = {
            **TEST_SETTINGS,
            "sbp.mode": "external",
            "sbp.pd": self.pd.address,
            "sbp.timeout_ms": str(NODE_TIMEOUT_MS),
            **settings,
        }
        node = NodeProcess(self.directory / name, settings=given, listen={"kafka": ANY, "console": ANY})
        self.nodes.append(node)
        return node

    @property
    def node(self) -> NodeProcess:
        return self.nodes[0]

    def alive(self) -> int:
        """Range servers the placement driver would give new ranges to."""
        return int(self.pd.metric("anabranch_pd_range_servers_alive"))

    def client(self) -> Client:
        """A client of the backend that is no node. Belongs to the running event loop."""
        return Client(pd_carrier(self.pd.address), tcp_connector())

    async def placement(self, topic: str, partitions: int) -> dict[int, list[int]]:
        """For each partition of a topic that :meth:`create_topic` made the servers of its ranges, in order."""
        client = self.client()
        first = self._streams[topic]
        try:
            return {
                partition: [known.servers[0].server_id for known in await client.list_ranges(first + partition)]
                for partition in range(partitions)
            }
        finally:
            await client.close()

    def server_of(self, server_id: int) -> Server:
        """The process that has the number ``server_id``."""
        for server in self.servers:
            if server.process is not None and server.metric("anabranch_range_server_id") == server_id:
                return server
        raise NodeFailed(f"no range server {server_id} is running")

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.kafka})
        for future in admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))]).values():
            future.result(PATIENCE)
        self._streams[topic] = self._next_stream
        self._next_stream += partitions

    def mend(self) -> Cluster:
        """Start what does not run; returns when every range server reports."""
        for process in (self.pd, *self.servers, *self.nodes):
            if process.process is None or process.process.poll() is not None:
                process.process = None
                process.start()
        wait_until(lambda: self.alive() == self.wanted, "range servers report")
        return self

    def dispose(self) -> None:
        for process in (*self.nodes, *self.servers, self.pd):
            process.dispose()

    def tail(self) -> str:
        return "\n".join(f"--- {p.log.name}\n{p.tail()}" for p in (self.pd, *self.servers, *self.nodes))


class Load(threading.Thread):
    """An idempotent producer that numbers its records and remembers what was acknowledged, until told to finish.

    Record n goes to partition n modulo the number of partitions. librdkafka repeats what fails, for ``PATIENCE``.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.partitions = partitions
        self.acked: dict[tuple[int, int], int] = {}
        self.refused: list[str] = []
        self.sent = 0
        self._finish = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 50,
                "queue.buffering.max.messages": 500,
                "message.timeout.ms": int(PATIENCE * 1000),
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.max.ms": 200,
            }
        )

    def run(self) -> None:
        while not self._finish.is_set():
            try:
                self._producer.produce(
                    self.topic, value(self.sent), partition=self.sent % self.partitions, on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(0.05)
                continue
            self.sent += 1
            self._producer.poll(0)
        left = self._producer.flush(PATIENCE)
        if left:
            self.refused.append(f"{left} records were never answered")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        offset, partition = message.offset(), message.partition()
        if error is not None or offset is None or partition is None:
            self.refused.append(str(error))
            return
        self.acked[partition, offset] = number(message)

    def more(self, count: int) -> None:
        """Return once ``count`` further records are acknowledged."""
        enough = len(self.acked) + count
        wait_until(lambda: len(self.acked) >= enough or bool(self.refused), f"{count} more acknowledgements")
        assert not self.refused, self.refused[:5]

    def finish(self) -> None:
        """Send no more, and wait for what is on its way."""
        self._finish.set()
        self.join(2 * PATIENCE)
        assert not self.is_alive()

    def verify(self, bootstrap: str) -> None:
        """Everything acknowledged is there, where it was said to be, once and in order."""
        assert not self.refused, self.refused[:5]
        found = read_all(bootstrap, self.topic, self.partitions)
        for partition in range(self.partitions):
            numbers = [found[place] for place in sorted(found) if place[0] == partition]
            expected = list(range(partition, self.sent, self.partitions))
            assert numbers == expected, f"partition {partition}: lost, doubled or out of order"
        assert self.acked == found
        assert len(self.acked) == self.sent


def value(number: int) -> bytes:
    """The value of record ``number``: 20 to 1019 bytes."""
    return b"%d:" % number + b"." * (17 + number * 37 % 1000)


def number(message: Message) -> int:
    """The number of a record, whose value must be what it was."""
    content = message.value()
    assert content is not None
    found = int(content.split(b":", 1)[0])
    assert content == value(found)
    return found


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[tuple[int, int], int]:
    """The number of every record by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "reconnect.backoff.max.ms": 200,
        }
    )
    try:
        places = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=PATIENCE)[1] for place in places}
        consumer.assign(places)
        found: dict[tuple[int, int], int] = {}
        deadline = time.monotonic() + PATIENCE
        while len(found) < sum(ends.values()):
            assert time.monotonic() < deadline, f"{len(found)} of {sum(ends.values())} records could be read"
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is not None:
                    assert error.retriable(), error
                    continue
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                assert (partition, offset) not in found
                found[partition, offset] = number(message)
        return found
    finally:
        consumer.close()


def host_port(address: str) -> tuple[str, int]:
    """``address`` as a socket wants it."""
    return parse_address(address)
