"""Migrations from YDB's topics and Pravega's streams, with kills of the job and of nodes while clients write.

    python -m tests.spark_proof.prove_streams            # some minutes; --only real needs Java and, once, Maven

Producers write while the topics are followed; the job is killed again and again, the nodes too; then the producers
stop, and the cut-over is killed at several of its steps. Afterwards every record is compared, and the same producers go
on at the target: of each there must be every message, once, in its order. A real Pravega is moved as well, one of its
streams scaled, and Spark reads and moves both kinds. Exits with 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ydb
from pravega_client import StreamManager

from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from tests.node_process import ANY, FRONTS, SELDOM, NodeProcess
from tests.pravega_front.controller_client import ControllerClient
from tests.pravega_front.controller_client import stream as stream_of
from tests.spark_proof.killed_cutover import killed_at
from tests.spark_proof.prove_migration import migrate, say

ALL = Columns.select(headers=True, metadata=True)
PATIENCE = 60
PARTITIONS = 3
_STEPS = ("reconcile", "groups", "hand over", "smoke read")


def rows(url: str, topic: str, partitions: int) -> list[dict[str, Any]]:
    """All records of a topic but for when they came there."""
    side = endpoint(url)
    try:
        parts = [TopicPartition(topic, number) for number in range(partitions)]
        found = [
            row
            for part, at in side.positions(parts).items()
            for batch in side.read(OffsetRange(part.topic, part.partition, at.start, at.stable), ALL)
            for row in batch.to_pylist()
        ]
    finally:
        side.close()
    return [{name: value for name, value in row.items() if name != "written"} for row in found]


class Writers:
    """Producers that write numbered messages until they are told to stop; a thread each."""

    def __init__(self, write: Callable[[str, int, threading.Event], int], names: list[str]) -> None:
        self._over = threading.Event()
        self.last: dict[str, int] = {}
        self._failures: list[BaseException] = []

        def work(name: str) -> None:
            try:
                self.last[name] = write(name, 0, self._over)
            except BaseException as error:  # noqa: BLE001 - raised by stop
                self._failures.append(error)

        self._threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """When this returns, ``last`` has the last number of each, which was acknowledged."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        if self._failures:
            raise self._failures[0]
        assert not any(thread.is_alive() for thread in self._threads), "a producer has not ended"


def ydb_writer(address: str, path: str) -> Callable[[str, int, threading.Event], int]:
    """Writes messages with a producer's numbers behind ``first``, until it is over or, then, ten more."""

    def write(name: str, first: int, over: threading.Event) -> int:
        with ydb.Driver(endpoint=f"grpc://{address}", database="/local") as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            number = first
            codec = ydb.TopicCodec.GZIP if name.endswith("1") else ydb.TopicCodec.RAW
            with driver.topic_client.writer(path, producer_id=name, auto_seqno=False, codec=codec) as writer:
                while not over.is_set() or number < first + 10:
                    number += 1
                    items = {"__key": f"{name}-{number % 7}"}
                    message = ydb.TopicWriterMessage(
                        f"{name} {number} ".encode() * 30, seqno=number, metadata_items=items
                    )
                    writer.write_with_ack(message, timeout=PATIENCE)
        return number

    return write


def pravega_writer(address: str, scope: str, stream: str) -> Callable[[str, int, threading.Event], int]:
    """The same for Pravega, whose writers keep no numbers of their own over sessions: the name is the routing key."""

    def write(name: str, first: int, over: threading.Event) -> int:
        streams = StreamManager(f"tcp://{address}")  # its writers end with it
        writer = streams.create_writer(scope, stream)
        number = first
        while not over.is_set() or number < first + 10:
            number += 1
            writer.write_event_bytes(f"{name} {number} ".encode() * 30, routing_key=name)
            time.sleep(0.002)  # the wheel holds Python's lock while it writes
        writer.flush()
        return number

    return write


def numbered(found: list[dict[str, Any]]) -> dict[str, list[int]]:
    """The numbers of each producer in the order of offsets."""
    told: dict[str, list[int]] = {}
    for row in found:
        name, number = row["value"].split(b" ")[:2]
        told.setdefault(name.decode(), []).append(int(number))
    return told


class Proof:
    """Two nodes, and a directory."""

    def __init__(self, source: NodeProcess, target: NodeProcess, path: Path, kills: int) -> None:
        self.source = source
        self.target = target
        self.path = path
        self.kills = kills
        self.random = random.Random(11)

    @property
    def url(self) -> str:
        return f"anabranch://{self.target.addresses['pipeline']}"

    def plan(self, url: str, topic: str, *options: str) -> Path:
        path = self.path / f"plan-{time.monotonic_ns()}.json"
        migrate("plan", "--from", url, "--to", self.url, "--topics", topic, "-o", path, *options)
        return path

    def followed(self, plan: Path, *, kill_source: bool) -> None:
        """Follow, killed again and again."""
        command = [sys.executable, "-m", "bridges", "migrate", "run", str(plan), "--quiet", "--follow"]
        for turn in range(self.kills):
            job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(2 + 3 * self.random.random())
            if turn % 3 == 1:
                self.target.restart(kill=True)
            if turn % 3 == 2 and kill_source:
                self.source.restart(kill=True)
            assert job.poll() is None, f"the job has ended with {job.returncode}"
            job.kill()
            job.wait()

    def cut_over(self, plan: Path, *options: str) -> None:
        """Killed at steps that change something, and then whole."""
        for step in _STEPS:
            assert killed_at(plan, step, *options), f"the cut-over did not come to {step!r}"
            states = {one["state"] for one in migrate("status", plan)["topics"].values()}
            assert len(states) == 1, states
        migrate("cutover", plan, "--silence", "0.5", "--quiet", *options)

    # --- the proofs -------------------------------------------------------------------------------------------------

    def of_ydb(self) -> None:
        """Producers go on at the target from their last numbers."""
        topic = f"orders-{time.monotonic_ns()}"
        path, url = f"/local/{topic}", f"ydb://{self.source.ydb}/local"
        with ydb.Driver(endpoint=f"grpc://{self.source.ydb}", database="/local") as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            driver.topic_client.create_topic(path, min_active_partitions=PARTITIONS, consumers=["c"])
        names = [f"producer-{number}" for number in range(4)]
        writers = Writers(ydb_writer(self.source.ydb, path), names)
        plan = self.plan(url, topic)
        self.followed(plan, kill_source=True)
        writers.stop()
        self.cut_over(plan, "--target-option", f"ydb=ydb://{self.target.ydb}/local")
        theirs = rows(url, topic, PARTITIONS)
        assert rows(self.url, topic, PARTITIONS) == theirs
        self.target.restart(kill=True)
        over = threading.Event()
        over.set()
        for name in names:
            ydb_writer(self.target.ydb, path)(name, writers.last[name], over)
        told = numbered(rows(self.url, topic, PARTITIONS))
        assert told == {name: list(range(1, writers.last[name] + 11)) for name in names}
        say(
            f"YDB: {len(theirs)} messages of {len(names)} producers, {self.kills} kills and at several steps; all go on"
        )

    def of_pravega(self) -> None:
        """Events of each routing key, once and in order, at the positions that they had."""
        scope = f"scope{time.monotonic_ns()}"
        address = self.source.addresses["pravega"]
        streams = StreamManager(f"tcp://{address}")
        streams.create_scope(scope)
        streams.create_stream(scope, "events", PARTITIONS)
        names = [f"writer-{number}" for number in range(4)]
        writers = Writers(pravega_writer(address, scope, "events"), names)
        url, topic = f"pravega://{address}/{scope}", f"{scope}.events"
        plan = self.plan(url, topic)
        self.followed(plan, kill_source=False)  # the wheel's writers give up when it takes long
        writers.stop()
        self.cut_over(plan)
        theirs = rows(url, topic, PARTITIONS)
        assert rows(self.url, topic, PARTITIONS) == theirs
        assert rows(f"pravega://{self.target.addresses['pravega']}/{scope}", topic, PARTITIONS) == theirs
        over = threading.Event()
        over.set()
        for name in names:
            pravega_writer(self.target.addresses["pravega"], scope, "events")(name, writers.last[name], over)
        told = numbered(rows(self.url, topic, PARTITIONS))
        assert told == {name: list(range(1, writers.last[name] + 11)) for name in names}
        say(
            f"Pravega: {len(theirs)} events of {len(names)} writers, {self.kills} kills and at several steps; all go on"
        )

    def of_a_real_pravega(self) -> None:
        """Pravega's own controller and segment store, with a stream that was scaled."""
        from benchmarks.java_server import SHORT_LIVED_JAVA
        from benchmarks.pravega_standalone import PravegaStandalone

        with PravegaStandalone(self.path / "real", heap="1g", options=SHORT_LIVED_JAVA) as real:
            streams = StreamManager(f"tcp://{real.bootstrap}")
            streams.create_scope("real")
            streams.create_stream("real", "events", 1)
            writer = streams.create_writer("real", "events")
            controller = ControllerClient(real.bootstrap)
            expected: dict[str, list[int]] = {}
            for number in range(2000):
                name = f"key-{number % 5}"
                expected.setdefault(name, []).append(number)
                size = 100_000 if number % 500 == 3 else 5
                writer.write_event_bytes(f"{name} {number} ".encode() * size, routing_key=name)
                if number == 1000:
                    writer.flush()
                    ranges = [{"start": 0.0, "end": 0.5}, {"start": 0.5, "end": 1.0}]
                    controller.scale(streamInfo=stream_of("real", "events"), sealedSegments=[0], newKeyRanges=ranges)
            writer.flush()
            controller.close()
            url = f"pravega://{real.bootstrap}/real"
            plan = self.plan(url, "real.events")
            migrate("run", plan, "--quiet", "--throttle", "20MB/s")
            assert not migrate("verify", plan, "--quiet")["differences"]
            migrate("cutover", plan, "--silence", "0.5", "--quiet")
            theirs = rows(url, "real.events", 3)
            mine = rows(self.url, "real.events", 3)
            assert mine == theirs
            assert numbered(mine) == expected
        say(f"a real Pravega: {len(mine)} events of a stream that was scaled, every one once, in the order of its key")

    def by_spark(self) -> None:
        """Spark reads both kinds, and its tasks move them."""
        from spark_pipeline.spark.session import session

        scope, topic = f"spark{time.monotonic_ns()}", f"sparked-{time.monotonic_ns()}"
        address = self.source.addresses["pravega"]
        streams = StreamManager(f"tcp://{address}")
        streams.create_scope(scope)
        streams.create_stream(scope, "events", 2)
        writer = streams.create_writer(scope, "events")
        for number in range(1000):
            writer.write_event(f"event {number}")
        writer.flush()
        with ydb.Driver(endpoint=f"grpc://{self.source.ydb}", database="/local") as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            driver.topic_client.create_topic(f"/local/{topic}", min_active_partitions=2)
            with driver.topic_client.writer(f"/local/{topic}") as messages:
                messages.write([f"message {number}" for number in range(1000)])
        spark = session("streams", "local[2,3]", {"spark.ui.enabled": "false"})
        for name, url in (
            (topic, f"ydb://{self.source.ydb}/local"),
            (f"{scope}.events", f"pravega://{address}/{scope}"),
        ):
            protocol = url.partition(":")[0]
            read = spark.read.format("anabranch").option("protocol", protocol).option("endpoint", url)
            found = read.option("subscribe", name).load().selectExpr("count(*)", "count(distinct value)").collect()
            assert [*found[0]] == [1000, 1000], found
        spark.stop()
        for name, url in (
            (topic, f"ydb://{self.source.ydb}/local"),
            (f"{scope}.events", f"pravega://{address}/{scope}"),
        ):
            plan = self.plan(url, name)
            migrate("run", plan, "--quiet", "--engine", "spark", "--master", "local[2,3]")
            assert not migrate("verify", plan, "--quiet")["differences"]
            assert rows(self.url, name, 2) == rows(url, name, 2)
        say("by Spark: 1000 messages and 1000 events are read, and moved by its tasks")


def main() -> int:
    """Run all proofs."""
    parser = argparse.ArgumentParser(description="Prove migrations from YDB and Pravega.")
    parser.add_argument("--kills", type=int, default=6, help="kills of the job while it follows")
    parser.add_argument("--only", choices=["ydb", "pravega", "real", "spark"], default=None)
    args = parser.parse_args()
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prove-streams-")))
        listen = dict.fromkeys((*FRONTS, *SELDOM), ANY)
        source, target = (
            stack.enter_context(NodeProcess(path / name / "data", listen=listen)) for name in ("source", "target")
        )
        proof = Proof(source, target, path, args.kills)
        proofs = {
            "ydb": proof.of_ydb,
            "pravega": proof.of_pravega,
            "real": proof.of_a_real_pravega,
            "spark": proof.by_spark,
        }
        for name, prove in proofs.items():
            if args.only in (None, name):
                prove()
    say("all of it holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
