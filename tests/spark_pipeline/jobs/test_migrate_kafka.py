"""Migrations from a real Apache Kafka: difficult topics, live groups, kills, and a corruption that is found."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResourceType,
    ResourcePattern,
    ResourceType,
    UserScramCredentialUpsertion,
)
from kafka.admin import ConfigResource as KafkaConfigResource
from kafka.protocol.admin import AlterClientQuotasRequest

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.kafka_broker import KafkaBroker
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, UnknownTopic
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.ranges import TopicPartition as Part
from spark_pipeline.core.rows import Columns
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.endpoints.base import Positions
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.endpoints.kafka.endpoint import KafkaEndpoint
from spark_pipeline.jobs.migrate.command import command
from spark_pipeline.jobs.migrate.copying import Copier, CopyTask, Route
from spark_pipeline.jobs.migrate.plan import Plan
from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, FRONTS, NodeProcess
from tests.spark_pipeline.jobs.migrations import migrate, planned, target_url
from tests.spark_proof.difficult_topics import (
    CODECS,
    Source,
    a_group,
    beginning_late,
    compacted,
    gaps,
    of_codec,
    read_all,
    transactional,
)
from tests.spark_proof.killed_cutover import killed_at
from tests.spark_proof.live_group import LiveGroup

SET = AlterConfigOpType.SET

pytestmark = [pytest.mark.java, pytest.mark.slow]

BROKER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    # What holds for topics that say nothing of it, and is not what a target has by itself.
    "log.retention.ms": "-1",
    "message.max.bytes": "2000000",
    "offsets.retention.minutes": "20160",
    "log.cleaner.backoff.ms": "200",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    directory = tmp_path_factory.mktemp("kafka")
    with KafkaBroker(directory, heap="512m", settings=BROKER, options=SHORT_LIVED_JAVA) as broker:
        yield Source(broker.bootstrap)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    listen = dict.fromkeys((*FRONTS, "pipeline"), ANY)
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", settings=TEST_SETTINGS, listen=listen) as node:
        yield node


# --- the source -------------------------------------------------------------------------------------------------------


def test_a_kafka_cluster_as_an_endpoint(source: Source) -> None:
    topic = transactional(source, rounds=4)
    late = beginning_late(source)
    endpoint = KafkaEndpoint(source.url, {})
    try:
        found = endpoint.topics()
        assert (found[topic].partitions, found[late].partitions) == ((0, 1), (0,))
        assert found[topic].identity != found[late].identity
        parts = [Part(topic, 0), Part(topic, 1), Part(late, 0)]
        positions = endpoint.positions(parts)
        assert positions[parts[2]] == Positions(333, 600, 600)
        rows = [
            row
            for part in parts[:2]
            for batch in endpoint.read(
                OffsetRange(part.topic, part.partition, 0, positions[part].stable),
                Columns(("partition", "offset", "value")),
            )
            for row in batch.to_pylist()
        ]
        expected = read_all(source.bootstrap, topic)
        assert [(row["partition"], row["offset"], row["value"]) for row in rows] == [
            (partition, offset, value) for partition, offset, _, value, _, _ in expected
        ]
        everything = read_all(source.bootstrap, topic, isolation="read_uncommitted")
        assert len(everything) > len(expected)
        raw = list(endpoint.read_raw(OffsetRange(late, 0, 333, 600)))
        assert raw[0].base_offset < 333 < raw[0].end_offset, "the log begins within a batch"
        assert raw[-1].end_offset == 600
        with pytest.raises(OffsetsGone) as gone:
            list(endpoint.read_raw(OffsetRange(late, 0, 100, 600)))
        assert gone.value.start == 333
        with pytest.raises(UnknownTopic):
            endpoint.positions([Part("no-such-topic", 0)])
        stamped = next(iter(expected))
        at = endpoint.find_timestamp({Part(topic, stamped[0]): stamped[5][1], parts[2]: 1 << 60})
        assert at == {Part(topic, stamped[0]): stamped[1], parts[2]: None}
    finally:
        endpoint.close()


def test_a_cluster_that_is_not_there() -> None:
    endpoint = KafkaEndpoint("kafka://127.0.0.1:1", {"kafka.bootstrap.timeout.ms": "300"})
    with pytest.raises(EndpointUnavailable):
        endpoint.topics()


# --- all of it --------------------------------------------------------------------------------------------------------


def refused(source_node: NodeProcess, topic: str) -> None:
    """Nobody writes to the topic at the target, whatever he speaks."""
    producer = Source(source_node.kafka).producer()
    failures: list[str] = []
    producer.produce(topic, b"mine", partition=0, on_delivery=lambda error, _: failures.append(error.name()))
    producer.flush(30)
    assert failures == ["POLICY_VIOLATION"]
    admin = AdminClient({"bootstrap.servers": source_node.kafka})
    for future in admin.delete_topics([topic]).values():
        with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
            future.result(30)
    for future in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
            future.result(30)
    request = urllib.request.Request(
        f"{source_node.console}/api/topics/{topic}/records", data=b'{"value": "mine"}\n', method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(request, timeout=30)
    assert answer.value.code == 409
    with urllib.request.urlopen(f"{source_node.console}/api/topics/{topic}", timeout=30) as told:
        assert json.load(told)["importing"].startswith("migration-")


def test_a_plan_lists_what_it_leaves_behind(source: Source, target: NodeProcess, tmp_path: Path) -> None:
    topic = source.create("listed", 1)
    pattern = ResourcePattern(ResourceType.TOPIC, topic, ACLResourcePatternType.LITERAL)
    acls = [ACL("User:alice", host, ACLOperation.READ, ACLPermissionType.ALLOW, pattern) for host in ("*", "10.1.2.3")]
    entry = AlterClientQuotasRequest.EntryData
    quota = entry(
        entity=[entry.EntityData(entity_type="user", entity_name="alice")],
        ops=[entry.OpData(key="producer_byte_rate", value=1000.0, remove=False)],
    )
    configs = {"consumer.session.timeout.ms": "47000"}
    with closing(KafkaAdminClient(bootstrap_servers=source.bootstrap)) as admin:
        admin.create_acls(acls)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", "SCRAM_SHA_512", "secret")])
        admin._manager.run(admin._manager.send, AlterClientQuotasRequest(entries=[quota], validate_only=False))
        admin.alter_configs([KafkaConfigResource(ConfigResourceType.GROUP, "board", configs=configs)])
        plan = planned(source.url, target, tmp_path, topic)
        told = {one.what: one.why for one in Plan.load(plan).not_carried}
        admin.delete_acls(acls)
    assert told.keys() >= {
        f"ACL ALLOW READ on TOPIC LITERAL {topic} for User:alice from *",
        f"ACL ALLOW READ on TOPIC LITERAL {topic} for User:alice from 10.1.2.3",
        "user alice (SCRAM-SHA-512)",
        "quota of user=alice: producer_byte_rate=1000",
        "configuration of group board: consumer.session.timeout.ms = 47000",
    }
    assert "kafka-acls" in told[f"ACL ALLOW READ on TOPIC LITERAL {topic} for User:alice from *"]


def test_ten_difficult_topics_move_with_their_groups(source: Source, target: NodeProcess, tmp_path: Path) -> None:
    topics = [of_codec(source, codec, records=300) for codec in CODECS]
    topics += [transactional(source), beginning_late(source), compacted(source)]
    empty = source.create("empty", 3)
    emptied = beginning_late(source, records=50, first=50)
    topics += [empty, emptied]
    group, committed = a_group(source, [topics[0], topics[5]], 120)
    live = LiveGroup(source.bootstrap, [topics[3], topics[5], topics[6]], 2 + 2 + 1, 40)
    plan = planned(source.url, target, tmp_path, *topics)

    before = migrate("run", plan, "--dry-run")
    assert before["topics"][topics[0]]["0"] == {"start": 0, "end": 150, "left": 150}
    assert migrate("status", plan)["topics"][topics[0]] == {"state": "not begun"}
    done = migrate("run", plan, "--quiet")
    assert done["lag"] == 0
    for topic in (topics[0], topics[6]):
        refused(target, topic)
    assert migrate("status", plan)["topics"][topics[0]] == {"state": "importing", "lag": 0}
    verified = migrate("verify", plan, "--quiet")
    assert (verified["level"], verified["differences"], verified["lag"]) == (2, [], 0)
    assert verified["records"] > 1500
    synced = migrate("sync-groups", plan)["groups"]
    assert synced[group]["set"] == len(committed)
    assert (synced[group]["members"], synced[live.name]["members"]) == (False, True)
    live.read(60)  # it is still there, and its position moves on after it was carried

    # What is new meanwhile is brought by the cut-over, positions too.
    producer = source.producer()
    producer.produce(topics[0], b"last", b"k", 1)
    assert producer.flush(30) == 0
    told = migrate("cutover", plan, "--dry-run", "--quiet")
    assert told["steps"]["dry_run"] == {"lag": 1, "lag_is_small_enough": True, "open_transactions": []}
    report = migrate("cutover", plan, "--silence", "0.5", "--quiet")
    assert list(report["steps"]) == ["reconcile", "drain", "verify", "groups", "hand over", "smoke read"]
    assert {one["what"] for one in report["not_carried"]} >= {"members of groups", "segment.ms = 100"}
    again = migrate("cutover", plan, "--silence", "0.5", "--quiet")
    assert list(again["steps"]) == ["smoke read"], "what is handed over stays so"

    mine = KafkaEndpoint(f"kafka://{target.kafka}", {})
    theirs = KafkaEndpoint(source.url, {})
    try:
        parts = Plan.load(plan).partitions
        assert {p: (at.start, at.high_watermark) for p, at in mine.positions(parts).items()} == {
            p: (at.start, at.high_watermark) for p, at in theirs.positions(parts).items()
        }
        assert mine.group_positions()[group] == theirs.group_positions()[group]
        assert {(part.topic, part.partition) for part in mine.group_positions()[group]} == committed.keys()
        assert mine.topics()[topics[7]].config["cleanup.policy"] == "compact"
        at = theirs.positions([Part(topics[7], 0)])[Part(topics[7], 0)]
        assert gaps(theirs, OffsetRange(topics[7], 0, 0, at.high_watermark))
    finally:
        mine.close()
        theirs.close()
    for topic in topics:
        if topic == topics[7]:
            # The source may have compacted more since.
            here = {row[1]: row for row in read_all(target.kafka, topic)}
            assert all(here[row[1]] == row for row in read_all(source.bootstrap, topic))
            continue
        assert read_all(target.kafka, topic) == read_all(source.bootstrap, topic), topic
    goes_on(source, target, group, [topics[0], topics[5]])
    live.move(target.kafka)
    assert sorted(live.got) == sorted(
        (topic, row[0], row[1], row[3]) for topic in live.topics for row in read_all(source.bootstrap, topic)
    )
    # From now on they are written here, also by a producer whose number the source had given to somebody.
    producer = Source(target.kafka).producer(**{"enable.idempotence": True})
    for number in range(10):
        producer.produce(topics[5], f"new {number}", None, 0)
    assert producer.flush(30) == 0
    assert [row[3] for row in read_all(target.kafka, topics[5]) if row[0] == 0][-1] == b"new 9"


def goes_on(source: Source, target: NodeProcess, group: str, topics: list[str]) -> None:
    """A consumer of the group gets at the target what it would have got at the source."""
    got = []
    for bootstrap in (source.bootstrap, target.kafka):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )
        consumer.subscribe(topics)
        ended: set[tuple[str, int]] = set()
        found = []
        deadline = time.monotonic() + 60
        while len(ended) < 4 and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ended.add((message.topic(), message.partition()))
            else:
                found.append((message.topic(), message.partition(), message.offset(), message.value()))
        assert len(ended) == 4
        consumer.close()
        got.append(sorted(found))
    assert got[0]
    assert got[0] == got[1]


# --- kills ------------------------------------------------------------------------------------------------------------


def test_what_a_source_keeps_by_default_is_kept_after_the_cut_over(source: Source, tmp_path: Path) -> None:
    topic = source.create("kept", 1)
    old = source.producer()
    for number in range(100):
        old.produce(topic, b"%d" % number, partition=0, timestamp=1_500_000_000_000 + number)
    assert old.flush(30) == 0
    # Retention acts at once, and all the time.
    settings = {**TEST_SETTINGS, "migrate.grace_ms": "0", "log.retention_check_interval_ms": "20"}
    listen = dict.fromkeys(("kafka", "pipeline", "sbp-pd", "sbp-range-server"), ANY)
    with NodeProcess(tmp_path / "data", settings=settings, listen=listen) as node:
        name = tmp_path / f"plan-{topic}.json"
        told = migrate("plan", "--from", source.url, "--to", target_url(node), "-o", name, "--topics", topic)
        assert told["settings"] == {topic: {"retention.ms": "-1", "max.message.bytes": "2000000"}}
        assert "offsets.retention.minutes = 20160" in {one["what"] for one in told["not_carried"]}
        migrate("run", name, "--quiet")
        assert migrate("cutover", name, "--silence", "0.1", "--quiet")["steps"]["verify"]["settings"] == []
        # Another topic shows that retention has looked at all of them since.
        here = Source(node.kafka)
        other = here.create("other", 1)
        producer = here.producer()
        producer.produce(other, b"old", partition=0, timestamp=1_500_000_000_000)
        assert producer.flush(30) == 0
        mine = KafkaEndpoint(here.url, {})
        try:
            parts = [Part(topic, 0), Part(other, 0)]
            deadline = time.monotonic() + 60
            while (found := mine.positions(parts))[parts[1]].start == 0:
                assert time.monotonic() < deadline
            assert (found[parts[0]].start, found[parts[0]].high_watermark) == (0, 100)
        finally:
            mine.close()
        admin = here.admin()
        changed = ConfigResource(
            ConfigResource.Type.TOPIC,
            topic,
            incremental_configs=[ConfigEntry("retention.ms", "2000000000", incremental_operation=SET)],
        )
        for future in admin.incremental_alter_configs([changed]).values():
            future.result(30)
        unlike = [{"topic": topic, "key": "retention.ms", "source": "-1", "target": "2000000000"}]
        assert migrate("verify", name, "--quiet", "--level", "0", code=2)["settings"] == unlike


def test_the_job_and_the_node_are_killed_halfway(source: Source, target: NodeProcess, tmp_path: Path) -> None:
    topic = source.create("large", 2)
    producer = source.producer(**{"batch.num.messages": 50, "compression.type": "lz4"})
    for number in range(6000):
        producer.produce(topic, os.urandom(1000), f"k{number}", number % 2)
        producer.poll(0)
    assert producer.flush(60) == 0
    plan = planned(source.url, target, tmp_path, topic)
    part = Part(topic, 0)
    run = [sys.executable, "-m", "bridges", "migrate", "run", str(plan), "--quiet", "--throttle", "1MB/s"]
    for kill_node in (False, True):
        job = subprocess.Popen(run, stdout=subprocess.DEVNULL)
        importer = Importer(target_url(target), {}, Plan.load(plan).migration)
        start = -1
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                end = importer.state(topic).partitions[part.partition].high_watermark
            except UnknownTopic:
                continue
            start = end if start < 0 else start
            if end > start:
                break
        importer.close()
        assert end > start >= 0
        if kill_node:
            target.restart(kill=True)
        job.send_signal(signal.SIGKILL)
        job.wait()
    done = migrate("resume", plan, "--quiet")
    assert done["lag"] == 0
    assert migrate("verify", plan, "--quiet")["differences"] == []
    receipts = [json.loads(line) for line in (tmp_path / f"{plan.name}.state/receipts.jsonl").read_text().splitlines()]
    for number in (0, 1):
        mine = [one for one in receipts if one["partition"] == number]
        assert (mine[0]["start"], mine[-1]["end"]) == (0, 3000)
        assert all(one["start"] == before["end"] for before, one in pairwise(mine))
    assert read_all(target.kafka, topic) == read_all(source.bootstrap, topic)
    assert migrate("abort", plan, "--delete")["deleted"] == [topic]
    assert migrate("status", plan)["topics"][topic] == {"state": "not begun"}


def test_it_follows_the_source_until_it_is_told_to_stop(source: Source, target: NodeProcess, tmp_path: Path) -> None:
    topic = source.create("followed", 1)
    producer = source.producer()
    producer.produce(topic, b"first", partition=0)
    assert producer.flush(30) == 0
    plan = planned(source.url, target, tmp_path, topic)
    run = [sys.executable, "-m", "bridges", "migrate", "run", str(plan), "--quiet", "--follow"]
    job = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
    try:
        importer = Importer(target_url(target), {}, Plan.load(plan).migration)
        reached(importer, topic, [(0, 1)], job)
        # More of it, a new partition, and a log that begins later.
        admin = source.admin()
        for future in admin.create_partitions([NewPartitions(topic, 2)]).values():
            future.result(30)
        producer = source.producer()  # one that knows of the new partition
        refused: list[str] = []
        for number in range(20):
            producer.produce(
                topic, b"more", partition=0 if number else 1, on_delivery=lambda error, _: refused.append(error)
            )
        assert producer.flush(30) == 0
        assert not any(refused)
        for future in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
            future.result(30)
        reached(importer, topic, [(5, 20), (0, 1)], job)
        importer.close()
        job.send_signal(signal.SIGINT)
        report = json.loads(job.communicate(timeout=60)[0])
    finally:
        job.kill()
    assert (job.returncode, report["interrupted"], report["lag"]) == (0, True, 0)
    assert report["ends"] == {topic: {"0": 20, "1": 1}}


def reached(importer: Importer, topic: str, bounds: list[tuple[int, int]], job: subprocess.Popen[str]) -> None:
    """Return once the target's partitions begin and end there."""
    seen: list[tuple[int, int]] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert job.poll() is None, job.communicate()[0]
        try:
            seen = [(at.start, at.high_watermark) for at in importer.state(topic).partitions]
        except UnknownTopic:
            continue
        if seen == bounds:
            return
        time.sleep(0.05)
    raise AssertionError(f"{topic} came to {seen}, not to {bounds}")


def test_what_is_deleted_at_the_source_while_it_is_copied(source: Source, target: NodeProcess, tmp_path: Path) -> None:
    """As retention does while a large topic is on its way: the copy goes on where the source's log begins by now."""
    topic = source.create("shrinking", 1)
    producer = source.producer(**{"batch.num.messages": 10, "linger.ms": 0})
    for _ in range(60):
        for _ in range(10):
            producer.produce(topic, os.urandom(2_000), partition=0)
        assert producer.flush(30) == 0
    plan = planned(source.url, target, tmp_path, topic)
    migration = Plan.load(plan).migration
    importer = Importer(target_url(target), {}, migration)
    epoch = importer.begin(topic, 1, {}).epoch
    admin = source.admin()
    deleted: list[int] = []

    def delete(offset: int, size: int) -> None:
        if not deleted:
            deleted.append(offset)
            for future in admin.delete_records([TopicPartition(topic, 0, 405)]).values():
                future.result(30)

    route = Route("plan", migration, source.url, target_url(target))
    copier = Copier(route, Throttle(64 * 1024, sleep=lambda seconds: None))
    try:
        receipts = list(copier.copy(CopyTask(Part(topic, 0), epoch, 0, 0, 600), delete))
    finally:
        copier.close()
        importer.close()
    assert deleted[0] < 300, "a good part was still at the source"
    assert (receipts[0].start, receipts[-1].start, receipts[-1].end) == (0, 405, 600)
    kept = read_all(target.kafka, topic)
    assert len(kept) == 195
    assert kept == read_all(source.bootstrap, topic)


def test_a_cut_over_is_killed_when_it_hands_over(source: Source, target: NodeProcess, tmp_path: Path) -> None:
    topic = transactional(source, rounds=3)
    plan = planned(source.url, target, tmp_path, topic)
    migrate("run", plan, "--quiet")
    assert killed_at(plan, "hand over")
    target.restart(kill=True)
    assert migrate("status", plan)["topics"][topic]["state"] in {"importing", "handed over"}
    migrate("cutover", plan, "--silence", "0.3", "--quiet")
    assert migrate("status", plan)["topics"][topic]["state"] == "handed over"
    assert read_all(target.kafka, topic) == read_all(source.bootstrap, topic)


def test_what_is_still_open_at_the_source_holds_the_cut_over_up(
    source: Source, target: NodeProcess, tmp_path: Path
) -> None:
    topic = source.create("open", 1)
    # It stays open for as long as this takes: the source decides by itself what nobody has decided for that long.
    producer = source.producer(**{"transactional.id": topic, "transaction.timeout.ms": 600_000})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"undecided", partition=0)
    producer.flush(30)
    plan = planned(source.url, target, tmp_path, topic)
    migrate("run", plan, "--quiet")
    # No round is as short as this: the source is silent for longer, and what is still open is what holds it up.
    short = ("--silence", "0.001", "--drain", "0", "--quiet")
    refusal = migrate("cutover", plan, *short, code=1)
    assert refusal["kind"] == "NotYet"
    assert f"transactions are open at the source in {topic}-0" in refusal["error"]
    patient = CliRunner().invoke(command, ["cutover", str(plan), "--silence", "0.001", "--drain", "1"])
    assert patient.exit_code == 1
    # How much of the second is left when it first looks is the machine's.
    assert re.search(rf"transactions are open in {topic}-0: waiting [01] s", patient.stderr), "who waits says for what"
    refusal = migrate("cutover", plan, *short, "--fence", "echo no; exit 3", code=1)
    assert "ended with 3: no" in refusal["error"]
    done = migrate("cutover", plan, *short, "--abort-open-transactions")
    assert done["steps"]["hand over"]["transactions_aborted"] == 1
    assert read_all(target.kafka, topic) == []
    producer.abort_transaction(60)


# --- Spark ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_same_by_spark(
    source: Source, target: NodeProcess, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [of_codec(source, "lz4", records=200), beginning_late(source), source.create("empty", 1)]
    plan = planned(source.url, target, tmp_path, *topics)
    done = migrate("run", plan, "--quiet", "--engine", "spark", "--throttle", "100MB/s")
    assert done["lag"] == 0
    assert migrate("verify", plan, "--quiet")["differences"] == []
    # Again there is nothing left to do; the session that was there goes on.
    assert migrate("run", plan, "--quiet", "--engine", "spark")["bytes_copied"] == 0
    assert spark.range(3).count() == 3
    for name in ("run", "resume", "cutover"):
        words = [name, str(plan), "--print-submit", "--master", "spark://host:7077", "--parallel", "7"]
        monkeypatch.setattr("sys.argv", ["anabranch", "migrate", *words])
        line = CliRunner().invoke(command, words).stdout
        assert line.startswith("spark-submit --master spark://host:7077 --conf ")
        words.remove("--print-submit")
        assert line.rstrip().endswith(f"submit.py migrate {' '.join(words)} --engine spark")
    assert migrate("status", plan)["topics"][topics[0]]["state"] == "importing", "to print is not to do"


# --- corruption -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
def test_a_planted_corruption_is_found_at_its_offset(
    source: Source, target: NodeProcess, tmp_path: Path, level: int
) -> None:
    topic = of_codec(source, "zstd", partitions=1, records=400)
    plan = planned(source.url, target, tmp_path, topic)
    migration = Plan.load(plan).migration
    endpoint = KafkaEndpoint(source.url, {})
    batches = list(endpoint.read_raw(OffsetRange(topic, 0, 0, 400)))
    rows = read_all(source.bootstrap, topic)
    endpoint.close()
    bad = batches[3]
    offset = bad.base_offset + 17
    changed = [
        Record(row[2], b"changed" if row[1] == offset else row[3], list(row[4] or []), row[5][1], row[1])
        for row in rows[bad.base_offset : bad.end_offset]
    ]
    batches_brought = [bytes(one.payload) for one in batches]
    batches_brought[3] = bytes(encode(changed, bad.base_offset, codec=4))  # a good batch: its checksum is right
    importer = Importer(target_url(target), {}, migration)
    begun = importer.begin(topic, 1, {})
    assert importer.append(Part(topic, 0), begun.epoch, batches_brought) == 400
    importer.close()
    found = migrate("verify", plan, "--quiet", "--level", level, code=2)["differences"]
    assert [(one["topic"], one["partition"], one["offset"]) for one in found] == [(topic, 0, offset)]
    assert found[0]["reason"] == "value differ"
    assert migrate("verify", plan, "--quiet", "--level", "0")["differences"] == []
    # A run that meets it says so, and a cut-over does not happen.
    assert migrate("run", plan, "--quiet", code=1)["kind"] == "Conflict"
