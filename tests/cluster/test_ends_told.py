"""A node that others have gone on without tells nobody ends of before: neither as it wakes up, nor while it is cut off
from the database; and while only the database is away everything is told as ever."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.load import PARTITIONS, PATIENCE, TOPIC, Writer, await_leaders
from tests.conftest import NodeFactory
from tests.node_process import ANY, FRONTS, NodeProcess
from tests.postgres import Postgres

NOT_LEADER = 6
LEASE_S = 6.0
"""Three times the usual one: on a busy machine, none of the three nodes is to be taken for dead but the one that is."""


@pytest.fixture
def server() -> Iterator[Postgres]:
    server = Postgres()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def proxied(server: Postgres, directory: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A way to the server that can be stopped as a process: its URL."""
    directory.mkdir()
    directory.chmod(0o755)
    name = ".s.PGSQL.5432"
    program = Path(__file__).with_name("relay.py")
    process = subprocess.Popen([sys.executable, str(program), str(directory / name), str(server.directory / name)])
    try:
        while not (directory / name).exists():
            assert process.poll() is None
            time.sleep(0.01)
        yield server.url().replace(str(server.directory), str(directory)), process
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def cluster(server: Postgres, tmp_path: Path, first: str) -> Iterator[list[NodeProcess]]:
    """Three nodes that own partitions; the first one has the database at ``first``."""
    factory = NodeFactory(tmp_path)
    (tmp_path / "bucket").mkdir()
    stored = {"sbp.durability": "object", "sbp.objects": f"file://{tmp_path}/bucket", "sbp.object_linger_ms": "10"}
    stored["cluster.lease_ms"] = f"{LEASE_S:g}s"
    try:
        made = []
        for number, url in ((1, first), (2, server.url()), (3, server.url())):
            own = {"cluster.database": url, "node.id": f"{number}", "sbp.object_log": f"{number}"}
            listen = dict.fromkeys(FRONTS, ANY)
            made.append(factory(f"node{number}", settings=stored | own, listen=listen, start=False))
        for node in made:
            node.launch()
        for node in made:
            node.await_ready()
        admin = AdminClient({"bootstrap.servers": ",".join(node.kafka for node in made)})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(PATIENCE)
        await_leaders(admin, {1, 2, 3})
        yield made
    finally:
        factory.dispose()


class Asking:
    """A connection that was made, and questions that were sent, whether or not the node runs."""

    def __init__(self, node: NodeProcess, partitions: list[int], offsets: dict[int, int]) -> None:
        host, _, port = node.kafka.rpartition(":")
        self._link = socket.create_connection((host, int(port)), PATIENCE)
        self._partitions = partitions
        name = TOPIC.encode()
        head = struct.pack(f">ih{len(name)}si", 1, len(name), name, len(partitions))
        asked = b"".join(struct.pack(">iq", one, -1) for one in partitions)
        self._send(2, 1, struct.pack(">i", -1) + head + asked)
        read = b"".join(struct.pack(">iqi", one, offsets[one], 1 << 20) for one in partitions)
        self._send(1, 4, struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0) + head + read)

    def _send(self, key: int, version: int, body: bytes) -> None:
        message = struct.pack(">hhih3s", key, version, 7, 3, b"raw") + body
        self._link.sendall(struct.pack(">i", len(message)) + message)

    def _answer(self) -> bytes | None:
        found = b""
        while len(found) < 4 or len(found) < 4 + struct.unpack_from(">i", found)[0]:
            try:
                part = self._link.recv(65536)
            except ConnectionError:
                part = b""
            if not part:
                return None
            found += part
        return found[8:]

    def told(self) -> list[tuple[int, int]]:
        """Partitions and the ends that were told of them, by ListOffsets and with what Fetch gave, without errors."""
        with self._link:
            ends: list[tuple[int, int]] = []
            listed = self._answer()
            if listed is None:
                return ends
            at = 4 + 2 + len(TOPIC) + 4
            for _ in self._partitions:
                partition, error, _, offset = struct.unpack_from(">ihqq", listed, at)
                at += 22
                assert error in (0, NOT_LEADER)
                ends += [] if error else [(partition, offset)]
            fetched = self._answer()
            if fetched is None:
                return ends
            at = 4 + 4 + 2 + len(TOPIC) + 4
            for _ in self._partitions:
                partition, error, high, _, aborted, size = struct.unpack_from(">ihqqii", fetched, at)
                at += 30 + 16 * max(aborted, 0) + max(size, 0)
                assert error in (0, NOT_LEADER)
                ends += [] if error else [(partition, high)]
            return ends


def ends_of(bootstrap: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
    found = {n: consumer.get_watermark_offsets(TopicPartition(TOPIC, n), PATIENCE)[1] for n in range(PARTITIONS)}
    consumer.close()
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["it stands still", "it is cut off from the database"])
def test_ends_of_before_are_told_to_nobody(server: Postgres, tmp_path: Path, way: str) -> None:
    with ExitStack() as stack:
        url, relay = stack.enter_context(proxied(server, tmp_path / "way"))
        first, *others = stack.enter_context(cluster(server, tmp_path, url))
        bootstrap = ",".join(node.kafka for node in (first, *others))
        # It knows the first node as well, and asks that: it is not to wait a minute for an answer.
        patient = {"bootstrap.servers": ",".join(node.kafka for node in others), "socket.timeout.ms": 2_000}
        admin = AdminClient(patient)
        writer = Writer(bootstrap)
        writer.write(1.0)
        writer.close()
        mine = [n for n, one in admin.list_topics(TOPIC, PATIENCE).topics[TOPIC].partitions.items() if one.leader == 1]
        before = writer.ends
        stopped = first.pid if way == "it stands still" else relay.pid
        os.kill(stopped, signal.SIGSTOP)
        await_leaders(admin, {2, 3})
        writer = Writer(",".join(node.kafka for node in others))
        writer.write(1.0)
        writer.close()
        after = writer.ends
        assert all(after[one] > before[one] for one in mine)
        asking: list[Asking] = []
        with suppress(ConnectionError):  # it may have found out by now, and ended
            asking.extend(Asking(first, mine, before) for _ in range(20))
        if way == "it stands still":
            os.kill(stopped, signal.SIGCONT)
        told = [end for one in asking for end in one.told()]
        print(f"{way}: {len(told)} ends were told, of {2 * len(mine) * len(asking)} that were asked for")
        old = [(partition, end) for partition, end in told if end < after[partition]]
        assert old == [], "what was acknowledged before it was asked for lies behind these"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_while_only_the_database_is_away_ends_are_told_and_all_is_read(server: Postgres, tmp_path: Path) -> None:
    with cluster(server, tmp_path, server.url()) as nodes:
        bootstrap = ",".join(node.kafka for node in nodes)
        writer = Writer(bootstrap)
        writer.write(1.0)
        writer.close()  # all partitions are open, which the database is needed for
        server.stop()
        time.sleep(1.5 * LEASE_S)  # nobody can say any more that it was heard of
        for _ in range(2):
            writer.write(1.0)
            began = time.monotonic()
            assert writer.close() == len(writer.acknowledged)
            found = ends_of(bootstrap)
            assert found == writer.ends
            print(f"ends of {PARTITIONS} partitions without the database after {time.monotonic() - began:.2f} s")
        server.start()
