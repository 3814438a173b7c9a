"""A backup that is taken while clients of three protocols write has all that was acknowledged before, and no halves."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import ydb
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pravega_client import StreamManager

from bridges.node.storage.backup import back_up
from sbp_back.range_server.store.upkeep.backup import LogBackup
from tests.conftest import TEST_SETTINGS
from tests.kit.waiting import wait_until
from tests.node_process import ANY, FRONTS, NodeFailed, NodeProcess

PATIENCE = 60
LISTENERS = dict.fromkeys((*FRONTS, "ydb", "pravega", "pravega-segmentstore"), ANY)


def node_on(data: Path, workers: int = 1) -> NodeProcess:
    # Small segments: the log has several when the backup is taken, and rolls while it is.
    settings = {**TEST_SETTINGS, "sbp.segment_bytes": "1MiB", "node.workers": f"{workers}"}
    return NodeProcess(data, settings=settings | {"node.worker_port_step": "0"}, listen=dict(LISTENERS))


def command(*words: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bridges", *map(str, words), "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Writers:
    """One thread for each protocol, and one with Kafka's transactions; ``acknowledged`` by protocol, in order."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.acknowledged: dict[str, list[int]] = {"kafka": [], "ydb": [], "pravega": [], "pairs": []}
        self.over = threading.Event()
        self._threads = [threading.Thread(target=getattr(self, f"_{name}"), daemon=True) for name in self.acknowledged]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in self._threads:  # clients go on for a minute where a node is killed
                thread.join(PATIENCE)

    def counts(self) -> dict[str, int]:
        return {name: len(numbers) for name, numbers in self.acknowledged.items()}

    def _numbers(self) -> Iterator[int]:
        number = 0
        while not self.over.is_set():
            yield number
            number += 1

    def _kafka(self) -> None:
        producer = Producer({"bootstrap.servers": self.node.kafka, "linger.ms": 1})
        for number in self._numbers():
            producer.produce("flights", f"kafka {number} ".encode() + bytes(2000), on_delivery=self._delivered)
            producer.poll(0.002)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged["kafka"].append(int(message.value().split(b" ")[1]))

    def _ydb(self) -> None:
        with ydb.Driver(endpoint=f"grpc://{self.node.ydb}", database="/local") as driver:
            driver.wait(timeout=PATIENCE)
            with driver.topic_client.writer("flights", producer_id="tower", partition_id=0) as writer:
                for number in self._numbers():
                    writer.write_with_ack(f"ydb {number} ", timeout=PATIENCE)
                    self.acknowledged["ydb"].append(number)

    def _pravega(self) -> None:
        streams = StreamManager(f"tcp://{self.node.addresses['pravega']}")  # its writers end with it
        writer = streams.create_writer("default", "flights")
        for number in self._numbers():
            writer.write_event(f"pravega {number} ", routing_key="one")
            writer.flush()
            self.acknowledged["pravega"].append(number)

    def _pairs(self) -> None:
        producer = pairs_producer(self.node)
        group = {"bootstrap.servers": self.node.kafka, "group.id": "board"}
        with closing(Consumer(group)) as consumer:
            for number in self._numbers():
                producer.begin_transaction()
                for partition in range(2):
                    producer.produce("pairs", b"%d" % number, partition=partition)
                place = TopicPartition("flights", 0, number + 1)
                producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), PATIENCE)
                producer.commit_transaction(PATIENCE)
                self.acknowledged["pairs"].append(number)


def pairs_producer(node: NodeProcess) -> Producer:
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "pairs"})
    producer.init_transactions(PATIENCE)
    return producer


def read_all(node: NodeProcess, topic: str, partition: int) -> list[bytes]:
    """All committed records, whose offsets have no gaps but those of markers."""
    place = TopicPartition(topic, partition, 0)
    with closing(
        Consumer({"bootstrap.servers": node.kafka, "group.id": "all", "enable.partition.eof": True})
    ) as consumer:
        consumer.assign([place])
        found = []
        while True:
            message = consumer.poll(PATIENCE)
            assert message is not None
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return found
            found.append(message.value())


def of_writer(records: list[bytes], name: str) -> list[int]:
    return [int(number) for kind, number, _ in (one.split(b" ", 2) for one in records) if kind == name.encode()]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_acknowledged_before_a_hot_backup_is_there_and_nothing_is_torn(tmp_path: Path, workers: int) -> None:
    original, data, backup = node_on(tmp_path / "original", workers), tmp_path / "elsewhere", tmp_path / "backup"
    with original:
        admin = AdminClient({"bootstrap.servers": original.kafka})
        for future in admin.create_topics([NewTopic("flights", 1), NewTopic("pairs", 2)]).values():
            future.result(PATIENCE)
        writers = Writers(original)
        with writers.at_work():
            wait_until(lambda: min(writers.counts().values()) > 9, seconds=PATIENCE)
            before = writers.counts()
            told = command("backup", "--data", original.data, backup)
            wait_until(lambda: all(writers.counts()[name] > before[name] for name in before), seconds=PATIENCE)
        original.kill()
    shutil.rmtree(original.data)
    assert command("restore", backup, "--data", data)["taken"] == told["taken"]

    with node_on(data, workers) as restored:
        pairs_producer(restored)  # ends what was open
        flights = read_all(restored, "flights", 0)
        for name in ("kafka", "ydb", "pravega"):
            numbers = of_writer(flights, name)
            assert numbers == list(range(len(numbers))), name
            assert len(numbers) >= before[name], name
        pairs = read_all(restored, "pairs", 0)
        assert pairs == read_all(restored, "pairs", 1) == [b"%d" % number for number in range(len(pairs))]
        assert len(pairs) >= before["pairs"]
        with closing(Consumer({"bootstrap.servers": restored.kafka, "group.id": "board"})) as consumer:
            (place,) = consumer.committed([TopicPartition("flights", 0)], PATIENCE)
        assert place.offset == len(pairs), "a transaction's positions and its records are of different moments"
        with urllib.request.urlopen(f"{restored.console}/api/status") as answer:
            assert json.load(answer)["restored"]["backup_taken"] == told["taken"]
        assert "this data directory was restored from a backup" in restored.tail()


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a node that has ended, with a topic and records."""
    with node_on(tmp_path_factory.mktemp("used") / "data") as node:
        producer = Producer({"bootstrap.servers": node.kafka})
        producer.produce("flights", b"AA100 has landed")
        assert not producer.flush(PATIENCE)
        node.kill()
    return node.data


def test_no_database_changes_while_the_ends_of_logs_are_copied(
    used: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[list[str]] = []
    catch_up = LogBackup.catch_up

    def watched(self: LogBackup, *check: Callable[[], None]) -> int:
        changed.append([name for name in ("node.db", "sbp/pd.sqlite") if can_change(used / name)])
        return catch_up(self, *check)

    monkeypatch.setattr(LogBackup, "catch_up", watched)
    back_up(used, tmp_path / "backup")
    assert changed == [["node.db", "sbp/pd.sqlite"], []]


def can_change(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


def test_a_backup_is_served_only_after_it_was_restored(used: Path, tmp_path: Path) -> None:
    command("backup", "--data", used, tmp_path / "backup")
    with pytest.raises(NodeFailed, match="is a backup"):
        node_on(tmp_path / "backup").start()


def test_a_restored_node_gives_no_number_that_the_original_may_have_given(used: Path, tmp_path: Path) -> None:
    def numbers(data: Path) -> list[int]:
        with (
            closing(sqlite3.connect(data / "node.db")) as node,
            closing(sqlite3.connect(data / "sbp/pd.sqlite")) as driver,
        ):
            given = node.execute("SELECT value FROM meta WHERE key IN ('next_epoch', 'next_producer_id') ORDER BY key")
            return [*(int(value) for (value,) in given), driver.execute("SELECT min(next) FROM counters").fetchone()[0]]

    command("backup", "--data", used, tmp_path / "backup")
    command("restore", tmp_path / "backup", "--data", tmp_path / "data")
    ahead = [new - old for new, old in zip(numbers(tmp_path / "data"), numbers(used), strict=True)]
    assert ahead == [1_000_000, 1_000_000_000, 100_000]


def test_a_damaged_unfinished_or_misplaced_backup_is_refused_in_a_sentence(used: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    command("backup", "--data", used, backup)
    with pytest.raises(RuntimeError, match="is not empty"):
        command("backup", "--data", used, backup)
    with pytest.raises(RuntimeError, match="is not empty"):
        command("restore", backup, "--data", used)
    with pytest.raises(RuntimeError, match="is no backup"):
        command("restore", used, "--data", tmp_path / "data")
    (segment,) = (backup / "sbp" / "wal").glob("*.seg")
    segment.write_bytes(segment.read_bytes().replace(b"AA100", b"AA101"))
    with pytest.raises(RuntimeError, match="is not what was written there"):
        command("restore", backup, "--data", tmp_path / "data")
    with pytest.raises(NodeFailed, match="was not restored to the end"):
        node_on(tmp_path / "data").start()
    (backup / "backup.json").write_text("{}")
    with pytest.raises(RuntimeError, match="was not finished"):
        command("restore", backup, "--data", tmp_path / "more")
