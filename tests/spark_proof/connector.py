"""Spark's own connector for Kafka reads and writes a node's Kafka front, and gets the rows that our source gets.

    python -m tests.spark_proof.connector                   # some minutes; needs Java, and Maven and PyPI once
    python -m tests.spark_proof.connector --broker kafka    # Apache Kafka instead: ours reads through protocol=kafka

The connector runs unchanged in a PySpark of its own version (`benchmarks/spark_connector.py`), our source in ours.
Topics of all codecs and shapes of records, transactions that were committed, aborted and left open, gaps, a late
beginning, times of the log, and what YDB's SDK wrote are read whole, in pieces, by a pattern, between offsets, between
times, and as streams; both sides are compared row by row, every column. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import ydb

from benchmarks.kafka_broker import KafkaBroker
from benchmarks.spark_queries import CONNECTOR, OURS, Queries
from bridges.formats.kafka import TRANSACTIONAL, encode, marker
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.importer import Importer
from tests.node_process import ANY, FRONTS, NodeProcess
from tests.spark_proof.difficult_topics import CODECS, Source, beginning_late, compacted, of_codec, transactional
from tests.spark_proof.same_rows import Rows, differences

BROKER = {"log.cleaner.backoff.ms": "200", "transaction.state.log.num.partitions": "1"}
FIRST_MS = 1_700_000_000_000
GENERATED = 20_000
PARTITIONS = 3
ROWS = [
    "concat('key ', id % 97) as key",
    "case when id % 11 = 0 then null else concat('value ', id) end as value",
    "array(struct('number' as key, cast(cast(id as string) as binary) as value)) as headers",
    f"cast(id % {PARTITIONS} as int) as partition",
]


@dataclass(slots=True)
class Proof:
    """Topics of one broker, two sessions, and what was found to differ."""

    source: Source
    directory: Path
    theirs: Queries
    mine: Queries
    ours: Sequence[tuple[str, dict[str, str]]]
    """By name, how our source reads."""
    topics: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    steps: int = 0

    @property
    def reads(self) -> dict[str, str]:
        """Options of the connector that are not the query's: committed records, which ours never asks for."""
        return {"kafka.bootstrap.servers": self.source.bootstrap, "kafka.isolation.level": "read_committed"}

    @property
    def writes(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.source.bootstrap}

    def place(self, name: str) -> str:
        self.steps += 1
        return str(self.directory / f"{self.steps:03}-{name.replace(' ', '-')}")

    def say(self, name: str, rows: Rows, found: list[str]) -> None:
        self.found += found
        told = "DIFFERENT" if found else f"{len(rows)} rows, digest {rows.digest}"
        print(f"{time.strftime('%H:%M:%S')} {name}: {told}", *found, sep="\n", flush=True)

    def compare(self, name: str, query: dict[str, str], *, stream: bool = False) -> Rows:
        """The same query of the connector and of ours, in each way in which ours reads."""
        query = {"includeHeaders": "true", **query}
        theirs = self.rows(self.theirs, name, {**query, **self.reads}, stream=stream)
        for way, options in self.ours:
            mine = self.rows(self.mine, name, {**query, **options}, stream=stream)
            self.say(f"{name}, {way}", mine, differences(name, theirs, mine))
        return theirs

    def rows(self, queries: Queries, name: str, options: dict[str, str], *, stream: bool) -> Rows:
        out = self.place(name)
        if stream:
            queries.ask("stream_save", options=options, out=out, checkpoint=self.place("checkpoint"))
        else:
            queries.ask("save", options=options, out=out)
        return Rows.saved(Path(out))

    # --- reading ----------------------------------------------------------------------------------------------------

    def batches(self) -> None:
        everything = self.compare("all rows", {"subscribe": ",".join(self.topics)})
        missing = [topic for topic in self.topics if not everything.of(topic) and not topic.startswith("empty-")]
        self.found += [f"no rows of {topic} were compared" for topic in missing]
        self.compare("in pieces", {"subscribe": ",".join(self.topics), "minPartitions": "60"})
        self.compare("small pieces", {"subscribe": self.topics[0], "maxRecordsPerPartition": "97"})
        self.compare("by pattern", {"subscribePattern": "codec-.*"})
        codec = self.topics[: len(CODECS)]
        assigned = json.dumps({codec[0]: [0, 2], codec[1]: [1]})
        self.compare("assigned", {"assign": assigned})
        between: dict[str, dict[str, dict[str, int]]] = {"startingOffsets": {}, "endingOffsets": {}}
        for number, topic in enumerate(codec):
            between["startingOffsets"][topic] = {str(one): 17 * one + number for one in range(PARTITIONS)}
            between["endingOffsets"][topic] = {"0": 200 + number, "1": -1, "2": 261}
        given = {name: json.dumps(offsets) for name, offsets in between.items()}
        self.compare("between offsets", {"subscribe": ",".join(codec), **given})
        times = {"startingTimestamp": str(FIRST_MS + 333), "endingTimestamp": str(FIRST_MS + 777)}
        self.compare("between times", {"subscribe": ",".join(codec), **times})
        late = {"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": str(FIRST_MS + 500)}
        self.compare("from a time", {"subscribe": ",".join(self.topics), **late})
        each = {codec[0]: {str(one): FIRST_MS + 100 * one for one in range(PARTITIONS)}}
        self.compare("from times", {"subscribe": codec[0], "startingOffsetsByTimestamp": json.dumps(each)})

    def streams(self) -> None:
        every = {"subscribe": ",".join(self.topics), "startingOffsets": "earliest"}
        self.compare("a stream", {**every, "maxOffsetsPerTrigger": "4000"}, stream=True)
        late = {"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": str(FIRST_MS + 500)}
        self.compare("a stream from a time", {"subscribe": ",".join(self.topics), **late}, stream=True)

    # --- writing ----------------------------------------------------------------------------------------------------

    def written(self) -> None:
        """What the connector writes, each row once, and read by both."""
        topic = self.source.create("written", PARTITIONS)
        self.theirs.ask("generate", count=GENERATED, tasks=4, exprs=ROWS, sink={**self.writes, "topic": topic})
        rows = self.compare("written by the connector", {"subscribe": topic}).of(topic)
        told = sorted(
            (int(row["headers"][0]["value"]), row["key"], row["value"], row["partition"])  # type: ignore[index]
            for row in rows
        )
        expected = [
            (number, b"key %d" % (number % 97), b"value %d" % number if number % 11 else None, number % PARTITIONS)
            for number in range(GENERATED)
        ]
        if told != expected:
            self.found.append(f"the connector has written {len(rows)} rows, which are not the {GENERATED} it was given")

    def copied(self) -> None:
        """A stream of the connector's from topic to topic, gone on with from its checkpoint."""
        source, target = (
            of_codec(self.source, "lz4", partitions=PARTITIONS, records=900),
            self.source.create("copied", 3),
        )
        query = {**self.reads, "subscribe": source, "startingOffsets": "earliest", "includeHeaders": "true"}
        exprs, checkpoint = ["key", "value", "headers", "partition"], self.place("checkpoint")
        sink = {**self.writes, "topic": target}
        for turn in range(2):
            options = {**query, "maxOffsetsPerTrigger": "400"}
            told = self.theirs.ask("copy", options=options, sink=sink, checkpoint=checkpoint, exprs=exprs)
            if told["rows"] != (500 if turn else 900):
                self.found.append(f"the connector's stream has copied {told['rows']} rows")
            if not turn:
                producer = self.source.producer()
                for number in range(500):
                    producer.produce(source, f"later {number}", f"k{number}", number % PARTITIONS)
                assert producer.flush(60) == 0
        self._same_contents(
            source, target, self.compare("copied by the connector", {"subscribe": f"{source},{target}"})
        )

    def copied_by_ours(self) -> None:
        """Everything, by our source and sink, in transactions: the connector reads the copies as they were."""
        name, options = self.ours[0]
        for topic in self.topics[: len(CODECS) + 1]:
            target = self.source.create(f"ours-{topic}", PARTITIONS)
            query = {**options, "subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
            query["maxOffsetsPerTrigger"] = "700"
            sink = {"endpoint": options["endpoint"], "topic": target}
            exprs = ["key", "value", "headers", "partition", "timestamp"]
            self.mine.ask("copy", options=query, sink=sink, checkpoint=self.place("checkpoint"), exprs=exprs)
            rows = self.compare(f"copied by ours ({name})", {"subscribe": f"{topic},{target}"})
            self._same_contents(topic, target, rows, ("timestamp",))

    def _same_contents(self, source: str, target: str, rows: Rows, more: tuple[str, ...] = ()) -> None:
        """Whether two topics have the same records in the same order in each partition, wherever they lie."""
        kept = ("partition", "key", "value", "headers", *more)
        sent, got = ([{name: row[name] for name in kept} for row in rows.of(topic)] for topic in (source, target))
        if not sent or sent != got:
            self.found.append(f"{len(sent)} rows of {source} became {len(got)} of {target}, or others")


PARTS = {
    "batches": Proof.batches,
    "streams": Proof.streams,
    "written": Proof.written,
    "copied": Proof.copied,
    "ours": Proof.copied_by_ours,
}

# --- topics ---------------------------------------------------------------------------------------------------------


def common(source: Source) -> list[str]:
    """Topics that are made with Kafka's clients, those of all codecs first."""
    made = [of_codec(source, codec, partitions=PARTITIONS, records=1000) for codec in CODECS]
    made.append(beginning_late(source))
    appended = source.create("appended", 2, message_timestamp_type="LogAppendTime")
    producer = source.producer(**{"compression.type": "zstd"})
    for number in range(300):
        producer.produce(appended, f"value {number}", f"k{number}", number % 2, timestamp=FIRST_MS + number)
    assert producer.flush(60) == 0
    return [*made, appended, source.create("empty", 2)]


@contextmanager
def left_open(source: Source) -> Iterator[str]:
    """A topic with a transaction that nobody ends while the block lasts: what lies behind it is not for readers."""
    topic = source.create("open", 1)
    first = source.producer()
    for number in range(50):
        first.produce(topic, f"before {number}", None, 0)
    assert first.flush(60) == 0
    producer = source.producer(**{"transactional.id": topic, "transaction.timeout.ms": 900_000})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(50):
        producer.produce(topic, f"open {number}", None, 0)
        first.produce(topic, f"behind {number}", None, 0)
    assert producer.flush(60) == first.flush(60) == 0
    yield topic
    producer.abort_transaction(60)


def with_transactions(url: str) -> str:
    """A topic as a migration brings it, with transactions of two producers that overlap: every other one of each is
    aborted, and the last one is open. It stays the migration's, since it could not be handed over like this."""
    topic = f"transactions-{uuid.uuid4().hex[:8]}"
    importer = Importer(url, {}, f"migration-{topic}")
    offset = 0
    sequences = {7: 0, 8: 0}
    batches: list[bytes] = []

    def add(producer: int, turn: int) -> None:
        nonlocal offset
        records = [Record(None, b"%d in turn %d" % (number, turn), timestamp=FIRST_MS) for number in range(10)]
        stamp = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
        batches.append(bytes(encode(records, offset, codec=turn % 5, attributes=TRANSACTIONAL, **stamp)))
        sequences[producer] += len(records)
        offset += len(records)

    def end(producer: int, turn: int) -> None:
        nonlocal offset
        ended = marker(InTransaction(producer, 0, commit=turn % 4 < 2), FIRST_MS)
        ended[:8] = offset.to_bytes(8)
        batches.append(bytes(ended))
        offset += 1

    try:
        epoch = importer.begin(topic, 1, {}).epoch
        for turn in range(24):
            producer = 7 + turn % 2
            add(producer, turn)
            if turn:
                end(15 - producer, turn - 1)
                add(producer, turn)
        importer.append(TopicPartition(topic, 0), epoch, batches)
    finally:
        importer.close()
    return topic


def with_gaps(url: str) -> str:
    """A topic as it comes from a compacted one, by a migration: gaps within batches, between them, and at the end."""
    topic = f"gaps-{uuid.uuid4().hex[:8]}"
    importer = Importer(url, {}, f"migration-{topic}")
    try:
        epoch = importer.begin(topic, 1, {}).epoch
        part = TopicPartition(topic, 0)
        batches = []
        for turn in range(20):
            base = 1000 + 100 * turn
            records = [
                Record(b"k%d" % offset, b"value %d" % offset, timestamp=FIRST_MS + offset, offset=offset)
                for offset in range(base + turn, base + 80, 1 + turn % 5)
            ]
            batches.append(bytes(encode(records, base, codec=turn % 5, count=90)))
        importer.bounds(part, epoch, start=1000)
        importer.append(part, epoch, batches)
        importer.bounds(part, epoch, start=1005, end=3500)
        importer.cutover({topic: [3500]})
    finally:
        importer.close()
    return topic


def by_ydb(address: str) -> str:
    """A topic that YDB's SDK has written: plain and compressed messages with metadata items."""
    topic = f"ydb-{uuid.uuid4().hex[:8]}"
    with ydb.Driver(endpoint=f"grpc://{address}", database="/local") as driver:
        driver.wait(30)
        driver.topic_client.create_topic(topic, min_active_partitions=2)
        for codec in (ydb.TopicCodec.RAW, ydb.TopicCodec.GZIP):
            with driver.topic_client.writer(topic, producer_id=f"p{codec}", codec=codec) as writer:
                for number in range(200):
                    items = {"number": str(number), "codec": str(int(codec))} if number % 3 else None
                    writer.write(ydb.TopicWriterMessage(f"message {number}" * (number % 9), metadata_items=items))
                writer.flush()
    return topic


def main() -> int:
    """Make topics, read and write them with both, and say what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=("anabranch", "kafka"), default="anabranch")
    parser.add_argument("--only", default=",".join(PARTS), help="some of these, with commas between")
    args = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="connector-")))
        ours: list[tuple[str, dict[str, str]]]
        if args.broker == "kafka":
            source = Source(stack.enter_context(KafkaBroker(directory / "kafka", settings=BROKER)).bootstrap)
            ours, others = [], [compacted(source), transactional(source), stack.enter_context(left_open(source))]
        else:
            listen = dict.fromkeys((*FRONTS, "pipeline", "ydb"), ANY)
            node = stack.enter_context(NodeProcess(directory / "node" / "data", listen=listen))
            source, url = Source(node.kafka), f"anabranch://{node.addresses['pipeline']}"
            ours = [("over SBP", {"endpoint": url})]
            others = [with_gaps(url), with_transactions(url), by_ydb(node.ydb)]
        ours.append(("over Kafka", {"protocol": "kafka", "kafka.bootstrap.servers": source.bootstrap}))
        topics = [*common(source), *others]
        theirs = stack.enter_context(Queries(CONNECTOR, directory / "connector"))
        mine = stack.enter_context(Queries(OURS, directory / "ours"))
        proof = Proof(source, directory, theirs, mine, ours, topics)
        for part in args.only.split(","):
            if part != "ours" or args.broker == "anabranch":
                PARTS[part](proof)
    print(*proof.found, sep="\n")
    print(f"DIFFERENT: {len(proof.found)}" if proof.found else "the same rows everywhere")
    return 1 if proof.found else 0


if __name__ == "__main__":
    sys.exit(main())
