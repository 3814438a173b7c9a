"""The whole of a migration against a real Apache Kafka, with kills of the job and of the node at every step.

    python -m tests.spark_proof.prove_migration          # some minutes; needs Java

Ten topics of all codecs, with transactions, compaction's gaps and late beginnings, and groups that have read a part
of them, are moved three times: undisturbed; with the job killed again and again while it copies, the node too; and
with the cut-over killed at each of its steps. Each time all records, positions and digests are compared. A planted
corruption must be found at its offset. Exits with 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.kafka_broker import KafkaBroker
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.endpoints.kafka.endpoint import KafkaEndpoint
from spark_pipeline.jobs.migrate.plan import Plan
from tests.node_process import ANY, FRONTS, NodeProcess
from tests.spark_proof.difficult_topics import (
    CODECS,
    Source,
    a_group,
    beginning_late,
    compacted,
    of_codec,
    read_all,
    transactional,
)
from tests.spark_proof.killed_cutover import STEPS, killed_at
from tests.spark_proof.live_group import LiveGroup

BROKER = {"log.cleaner.backoff.ms": "200", "transaction.state.log.num.partitions": "1"}


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


def migrate(*arguments: object, code: int = 0) -> dict[str, Any]:
    """Run the command as users do; its report."""
    command = [sys.executable, "-m", "bridges", "migrate", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise AssertionError(f"{command} ended with {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout or done.stderr.splitlines()[-1])
    return report


class Proof:
    """A source with its ten topics, and a target."""

    def __init__(self, source: Source, node: NodeProcess, path: Path, scale: int) -> None:
        self.source = source
        self.node = node
        self.path = path
        self.scale = scale
        self.random = random.Random(7)

    @property
    def url(self) -> str:
        return f"anabranch://{self.node.addresses['pipeline']}"

    def topics(self) -> list[str]:
        made = [of_codec(self.source, codec, partitions=3, records=500 * self.scale) for codec in CODECS]
        made += [transactional(self.source, rounds=4 * self.scale), transactional(self.source, rounds=5)]
        made += [beginning_late(self.source, records=2000, first=1777), compacted(self.source)]
        made.append(self.source.create("empty", 2))
        return made

    def plan(self, topics: list[str]) -> Path:
        path = self.path / f"plan-{time.monotonic_ns()}.json"
        named = [word for topic in topics for word in ("--topics", topic)]
        migrate("plan", "--from", self.source.url, "--to", self.url, "-o", path, *named)
        return path

    def compare(self, topics: list[str], groups: dict[str, dict[tuple[str, int], int]]) -> int:
        """Every record of every topic, as Kafka's consumers get it on both sides; how many."""
        total = 0
        for topic in topics:
            theirs, mine = read_all(self.source.bootstrap, topic), read_all(self.node.kafka, topic)
            if topic.startswith("compacted"):
                here = {row[1]: row for row in mine}
                assert all(here.get(row[1]) == row for row in theirs), topic
            else:
                assert mine == theirs, f"{topic}: {len(theirs)} records at the source, {len(mine)} at the target"
            total += len(theirs)
        endpoint = KafkaEndpoint(f"kafka://{self.node.kafka}", {})
        positions = endpoint.group_positions()
        endpoint.close()
        for group, committed in groups.items():
            told = {(part.topic, part.partition): at.offset for part, at in positions[group].items()}
            assert told == committed, f"{group}: {committed} at the source, {told} at the target"
        return total

    def groups(self, topics: list[str]) -> dict[str, dict[tuple[str, int], int]]:
        return dict(a_group(self.source, [topics[first], topics[first + 5]], 60) for first in (0, 1))

    # --- the proofs -------------------------------------------------------------------------------------------------

    def live(self, topics: list[str]) -> LiveGroup:
        """A group that reads on while topics are moved: compressed, with transactions, and one that begins late."""
        return LiveGroup(self.source.bootstrap, [topics[3], topics[5], topics[7]], 3 + 2 + 1, 70)

    def goes_on(self, group: LiveGroup) -> None:
        """The group goes on here where it was: with what it had got, each record once."""
        before = len(group.got)
        group.move(self.node.kafka)
        expected = sorted(
            (topic, partition, offset, value)
            for topic in group.topics
            for partition, offset, _, value, _, _ in read_all(self.source.bootstrap, topic)
        )
        assert sorted(group.got) == expected, f"{group.name} got {len(group.got)} of {len(expected)} records"
        say(f"a live group got {before} records at the source and went on with {len(expected) - before} here")

    def undisturbed(self) -> None:
        topics = self.topics()
        groups = self.groups(topics)
        live = self.live(topics)
        plan = self.plan(topics)
        migrate("run", plan, "--quiet")
        verified = migrate("verify", plan, "--quiet")
        assert not verified["differences"]
        migrate("sync-groups", plan)
        live.read(100)  # its position moves again after it was carried
        migrate("cutover", plan, "--silence", "1", "--quiet")
        self.goes_on(live)
        say(f"undisturbed: {self.compare(topics, groups)} records in {len(topics)} topics, the same on both sides")

    def killed_while_copying(self, times: int) -> None:
        topics = self.topics()
        groups = self.groups(topics)
        live = self.live(topics)
        plan = self.plan(topics)
        for turn in range(times):
            live.read(10)
            command = [sys.executable, "-m", "bridges", "migrate", "run", str(plan), "--quiet", "--throttle", "300KB/s"]
            job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                job.wait(2 + 3 * self.random.random())
            except subprocess.TimeoutExpired:
                if turn % 2:
                    self.node.restart(kill=True)
                job.kill()
                job.wait()
        migrate("resume", plan, "--quiet")
        assert not migrate("verify", plan, "--quiet")["differences"]
        migrate("cutover", plan, "--silence", "1", "--quiet")
        self.node.restart(kill=True)
        self.goes_on(live)
        say(f"killed {times} times while copying: {self.compare(topics, groups)} records, the same on both sides")

    def killed_at_each_step(self) -> None:
        topics = self.topics()
        groups = self.groups(topics)
        plan = self.plan(topics)
        migrate("run", plan, "--quiet")
        for number, step in enumerate(STEPS):
            assert killed_at(plan, step, "--fence", "true"), f"the cut-over did not come to {step!r}"
            if number % 2:
                self.node.restart(kill=True)
            states = {one["state"] for one in migrate("status", plan)["topics"].values()}
            # All of them or none, whatever it was killed in.
            assert len(states) == 1, states
            expected = {"handed over"} if step == "smoke read" else {"importing", "handed over"}
            assert states <= expected, (step, states)
        migrate("cutover", plan, "--silence", "0.5", "--quiet")
        say(f"killed at {len(STEPS)} steps: {self.compare(topics, groups)} records, the same on both sides")

    def corrupted(self) -> None:
        topic = of_codec(self.source, "zstd", partitions=1, records=1000)
        plan = self.plan([topic])
        endpoint = KafkaEndpoint(self.source.url, {})
        batches = [bytes(one.payload) for one in endpoint.read_raw(OffsetRange(topic, 0, 0, 1000))]
        bases = [int.from_bytes(one[:8]) for one in batches]
        endpoint.close()
        bad = self.random.randrange(len(batches))
        rows = read_all(self.source.bootstrap, topic)
        end = bases[bad + 1] if bad + 1 < len(bases) else 1000
        offset = self.random.randrange(bases[bad], end)
        changed = [
            Record(row[2], b"planted" if row[1] == offset else row[3], list(row[4] or []), row[5][1], row[1])
            for row in rows[bases[bad] : end]
        ]
        batches[bad] = bytes(encode(changed, bases[bad], codec=4))
        importer = Importer(self.url, {}, Plan.load(plan).migration)
        epoch = importer.begin(topic, 1, {}).epoch
        importer.append(TopicPartition(topic, 0), epoch, batches)
        importer.close()
        for level in (1, 2):
            found = migrate("verify", plan, "--quiet", "--level", level, code=2)["differences"]
            assert [one["offset"] for one in found] == [offset], found
        say(f"a planted corruption at offset {offset} was found there")

    def by_spark(self) -> None:
        topics = self.topics()
        groups = self.groups(topics)
        plan = self.plan(topics)
        migrate("run", plan, "--quiet", "--engine", "spark", "--master", "local[2,3]")
        assert not migrate("verify", plan, "--quiet")["differences"]
        migrate("cutover", plan, "--silence", "1", "--quiet", "--engine", "spark", "--master", "local[2,3]")
        say(f"by Spark: {self.compare(topics, groups)} records, the same on both sides")


def main() -> int:
    """Run all proofs."""
    parser = argparse.ArgumentParser(description="Prove migrations against a real Apache Kafka.")
    parser.add_argument("--scale", type=int, default=4, help="how large the topics are")
    parser.add_argument("--kills", type=int, default=6, help="kills while copying")
    parser.add_argument("--only", choices=["undisturbed", "copying", "steps", "corruption", "spark"], default=None)
    args = parser.parse_args()
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prove-migration-")))
        broker = stack.enter_context(KafkaBroker(path / "kafka", heap="512m", settings=BROKER))
        listen = dict.fromkeys((*FRONTS, "pipeline"), ANY)
        node = stack.enter_context(NodeProcess(path / "node" / "data", listen=listen))
        proof = Proof(Source(broker.bootstrap), node, path, args.scale)
        proofs = {
            "undisturbed": proof.undisturbed,
            "copying": lambda: proof.killed_while_copying(args.kills),
            "steps": proof.killed_at_each_step,
            "corruption": proof.corrupted,
            "spark": proof.by_spark,
        }
        for name, prove in proofs.items():
            if args.only in (None, name):
                prove()
    say("all of it holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
