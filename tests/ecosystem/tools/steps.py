"""What is asked of Kafka's command-line tools, in order: each step one call of a tool, as somebody would type it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

T = "org.apache.kafka.tools."
TOOLS = {
    "acls": f"{T}AclCommand",
    "broker-api-versions": f"{T}BrokerApiVersionsCommand",
    "client-metrics": f"{T}ClientMetricsCommand",
    "cluster": f"{T}ClusterTool",
    "configs": f"{T}ConfigCommand",
    "console-consumer": f"{T}consumer.ConsoleConsumer",
    "console-producer": f"{T}ConsoleProducer",
    "console-share-consumer": f"{T}consumer.ConsoleShareConsumer",
    "consumer-groups": f"{T}consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": f"{T}ConsumerPerformance",
    "delegation-tokens": f"{T}DelegationTokenCommand",
    "delete-records": f"{T}DeleteRecordsCommand",
    "e2e-latency": f"{T}EndToEndLatency",
    "features": f"{T}FeatureCommand",
    "get-offsets": f"{T}GetOffsetShell",
    "groups": f"{T}GroupsCommand",
    "leader-election": f"{T}LeaderElectionCommand",
    "log-dirs": f"{T}LogDirsCommand",
    "metadata-quorum": f"{T}MetadataQuorumCommand",
    "producer-perf-test": f"{T}ProducerPerformance",
    "reassign-partitions": f"{T}reassign.ReassignPartitionsCommand",
    "replica-verification": f"{T}ReplicaVerificationTool",
    "share-groups": f"{T}consumer.group.ShareGroupCommand",
    "streams-application-reset": f"{T}StreamsResetter",
    "streams-groups": f"{T}streams.StreamsGroupCommand",
    "topics": f"{T}TopicCommand",
    "transactions": f"{T}TransactionsCommand",
    "verifiable-consumer": f"{T}VerifiableConsumer",
    "verifiable-producer": f"{T}VerifiableProducer",
    "verifiable-share-consumer": f"{T}VerifiableShareConsumer",
}
"""What the script `kafka-NAME.sh` of a distribution starts."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a tool. ``bootstrap`` is the option that names the server, "" where none does; ``around`` holds
    something open while it runs, and ``seconds`` is how long it may. ``reason`` says why Apache Kafka answers
    otherwise; without ``numbers`` these are not compared."""

    tool: str
    line: str
    bootstrap: str = "--bootstrap-server"
    input: str = ""
    around: Callable[[str], Iterator[None]] | None = None
    seconds: int = 60
    numbers: bool = True
    polls: bool = False
    alone: bool = False
    reason: str | None = None

    @property
    def name(self) -> str:
        """As it would be typed, without the server."""
        return f"kafka-{self.tool} {self.line}".strip()


def _open_transaction(transactional_id: str, topic: str) -> Callable[[str], Iterator[None]]:
    """A transaction that has written to a topic and stays open meanwhile."""

    def around(bootstrap: str) -> Iterator[None]:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"open", b"k", partition=0)
        producer.flush(30)
        yield
        producer.purge()

    return around


def _member(group: str, topic: str, protocol: str = "classic") -> Callable[[str], Iterator[None]]:
    """A member that has everything assigned meanwhile."""

    def around(bootstrap: str) -> Iterator[None]:
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "client.id": "member"}
        consumer = Consumer(
            {**settings, "group.protocol": protocol, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe([topic])
        while not consumer.consume(1, 10.0):
            pass
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        yield
        consumer.close()

    return around


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Positions of a group that has no members."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def _filled(bootstrap: str) -> Iterator[None]:
    """Records in partitions that no library chooses, with times that no clock does; the highest one several times."""
    producer = Producer({"bootstrap.servers": bootstrap})
    began = int(time.time() * 1000)
    for number in range(28):
        at = began + min(number, 20)
        producer.produce("tools", f"value {number}", f"key {number}", partition=number % 3, timestamp=at)
    producer.flush(30)
    yield


def _committed(group: str) -> Callable[[str], Iterator[None]]:
    def around(bootstrap: str) -> Iterator[None]:
        commit(bootstrap, group, "tools", {0: 1, 1: 2, 2: 0})
        yield

    return around


NO_CONFIG = "nodes are configured in their settings"
OTHERWISE = {
    "kafka-configs --describe --entity-type topics": "no topics of its own",
    "kafka-configs --alter --entity-type brokers --entity-name 0 --add-config log.cleaner.threads=2": NO_CONFIG,
    "kafka-configs --describe --entity-type brokers --entity-name 0": NO_CONFIG,
    "kafka-configs --alter --entity-type brokers --entity-name 0 --delete-config log.cleaner.threads": NO_CONFIG,
    "kafka-configs --describe --entity-type broker-loggers --entity-name 0": "loggers have names of their own",
    "kafka-broker-api-versions": "docs/compatibility.md has them one by one",
    "kafka-features describe": "docs/compatibility.md: Versions of Kafka's requests",
}
"""Calls whose answer differs, and why. Those of parts that do not exist here are marked where they are made."""


@contextmanager
def held(step: Step, bootstrap: str) -> Iterator[None]:
    """Whatever the step wants around it."""
    if step.around is None:
        yield
        return
    around = contextmanager(step.around)
    with around(bootstrap):
        yield


def _json(directory: Path, name: str, value: object) -> str:
    path = directory / name
    path.write_text(json.dumps(value))
    return str(path)


def steps(directory: Path) -> list[Step]:
    """All of them; files that tools are given are written to ``directory``."""
    three = [{"topic": "tools", "partition": number} for number in range(3)]
    records = _json(directory, "records.json", {"partitions": [{**three[0], "offset": 2}], "version": 1})
    beyond = _json(directory, "beyond.json", {"partitions": [{**three[0], "offset": 999}], "version": 1})
    moving = _json(directory, "move.json", {"topics": [{"topic": "tools"}], "version": 1})
    elsewhere = _json(directory, "plan.json", {"version": 1, "partitions": [{**three[0], "replicas": [7]}]})
    here = _json(directory, "here.json", {"version": 1, "partitions": [{**three[0], "replicas": [0]}]})
    chosen = _json(directory, "elect.json", {"partitions": three})
    positions = directory / "positions.csv"
    positions.write_text('"tools",0,1\n"tools",1,1\n')
    nothing = directory / "client.properties"
    nothing.write_text("")
    found: list[Step] = []

    def add(tool: str, *lines: str, **more: object) -> None:
        for line in lines:
            step = Step(tool, line, **more)  # type: ignore[arg-type]
            found.append(replace(step, reason=step.reason or OTHERWISE.get(step.name)))

    add(
        "topics",
        "--list",
        "--create --topic tools --partitions 3 --config retention.ms=86400000",
        "--create --topic tools",
        "--create --topic tools --if-not-exists",
        "--create --topic bad!name",
        "--create --topic compacted --partitions 1 --config cleanup.policy=compact",
        "--create --topic odd --config no.such.config=1",
        "--create --topic odd --config retention.ms=x",
        "--create --topic odd --partitions 0",
        "--create --topic spread --replica-assignment 0,0",
        "--create --topic moved --replica-assignment 7",
        "--describe --topic tools",
        "--describe --topic none",
        "--describe --topic none --if-exists",
        "--describe --topics-with-overrides",
        "--describe --under-replicated-partitions",
        "--describe --unavailable-partitions",
        "--describe --at-min-isr-partitions",
        "--describe --under-min-isr-partitions",
        "--alter --topic compacted --partitions 2",
        "--alter --topic compacted --partitions 1",
        "--alter --topic none --partitions 4",
        "--delete --topic none",
        "--list --topic t.*",
    )
    add("topics", "--create --topic single --config retention.ms=-1")
    add("topics", "--describe --topic single", around=_filled)
    add("console-producer", "--topic single", input="one\ntwo\nthree\n")
    add(
        "console-producer",
        "--topic compacted --reader-property parse.key=true --reader-property key.separator=:",
        input="a:1\nb:2\na:3\n",
    )
    add("verifiable-producer", "--topic single --max-messages 20 --value-prefix 7 --acks -1", numbers=False)
    created = "--repeating-keys 2 --message-create-time 1000000000000"
    add("verifiable-producer", f"--topic single --max-messages 5 {created}", numbers=False)
    add("console-consumer", "--topic single --from-beginning --max-messages 28 --formatter-property print.key=true")
    add("console-consumer", "--topic tools --partition 0 --offset 1 --max-messages 2 --timeout-ms 20000")
    add("console-consumer", "--topic none --from-beginning --timeout-ms 1500")
    add("console-consumer", "--topic tools --group console --from-beginning --max-messages 28 --timeout-ms 20000")
    add(
        "get-offsets",
        "--topic tools",
        "--topic tools --time earliest",
        "--topic tools --time max-timestamp",
        "--topic tools --time earliest-local",
        "--topic tools --time latest-tiered",
        "--topic tools --time 999999999999",
        "--topic-partitions tools:0-2",
        "--topic none",
        "",
        "--exclude-internal-topics --topic-partitions tools:1",
    )
    add(
        "verifiable-consumer",
        "--topic tools --group-id verifiable --max-messages 28 --reset-policy earliest",
        polls=True,
    )
    add(
        "consumer-groups",
        "--list",
        "--list --state",
        "--list --type",
        "--list --state Stable",
        "--list --type consumer",
    )
    for protocol in ("classic", "consumer"):
        group = f"live-{protocol}"
        for line in (
            f"--describe --group {group}",
            f"--describe --group {group} --members --verbose",
            f"--describe --group {group} --state",
            f"--describe --group {group} --state --verbose",
            f"--delete --group {group}",
            f"--reset-offsets --group {group} --topic tools --to-earliest --execute",
            f"--delete-offsets --group {group} --topic tools",
        ):
            add("consumer-groups", line, around=_member(group, "tools", protocol))
    add("consumer-groups", "--describe --group steady", around=_committed("steady"))
    add(
        "consumer-groups",
        "--describe --group steady --state",
        "--describe --group steady --members",
        "--describe --group none",
        "--describe --all-groups",
        "--reset-offsets --group steady --topic tools --to-earliest --dry-run",
        "--reset-offsets --group steady --topic tools --to-latest --dry-run",
        "--reset-offsets --group steady --topic tools --shift-by 1 --dry-run",
        "--reset-offsets --group steady --topic tools --shift-by -100 --dry-run",
        "--reset-offsets --group steady --topic tools --to-offset 1 --dry-run",
        "--reset-offsets --group steady --topic tools --to-current --dry-run",
        "--reset-offsets --group steady --topic tools --by-duration PT1H --dry-run",
        "--reset-offsets --group steady --topic tools --to-datetime 2100-01-01T00:00:00.000 --dry-run",
        "--reset-offsets --group steady --topic tools:0,1 --to-latest --export",
        f"--reset-offsets --group steady --from-file {positions} --execute",
        "--reset-offsets --group steady --all-topics --to-latest --execute",
        "--reset-offsets --group fresh --topic tools --to-earliest --execute",
        "--reset-offsets --group fresh --topic none --to-earliest --execute",
        "--describe --group fresh --offsets",
        "--delete-offsets --group fresh --topic tools:0",
        "--delete-offsets --group fresh --topic none",
        "--delete --group fresh",
        "--delete --group none",
        "--delete --all-groups",
        "--list",
    )
    add("groups", "--list")
    add(
        "share-groups",
        "--list",
        "--reset-offsets --group shared --topic tools --to-earliest --execute",
    )
    add("configs", "--alter --entity-type groups --entity-name shared --add-config share.auto.offset.reset=earliest")
    for line in (
        "--describe --group shared",
        "--describe --group shared --verbose",
        "--describe --group shared --members",
        "--describe --group shared --state",
    ):
        add("share-groups", line)
    add(
        "share-groups",
        "--list --state",
        "--describe --group none",
        "--reset-offsets --group shared --topic tools --to-latest --dry-run",
        "--reset-offsets --group shared --topic tools --to-earliest --execute",
        "--describe --group shared --offsets",
        "--delete-offsets --group shared --topic tools",
        "--delete-offsets --group shared --topic none",
        "--delete --group shared",
        "--delete --group none",
        "--list",
    )
    earliest = "share.auto.offset.reset=earliest"
    add("configs", f"--alter --entity-type groups --entity-name shared-3 --add-config {earliest}", alone=True)
    add("console-share-consumer", "--topic tools --group shared-3 --max-messages 28 --timeout-ms 30000", alone=True)
    verified = "--group-id shared-2 --offset-reset-strategy earliest --acknowledgement-mode sync"
    add("verifiable-share-consumer", f"--topic tools --max-messages 28 {verified}", alone=True)
    add("share-groups", "--delete --group shared-2", "--delete --group shared-3", alone=True)
    add("streams-groups", "--list")
    add("streams-groups", "--describe --group none")
    for line in (
        "list",
        "list --transactional-id-pattern op.*",
        "describe --transactional-id open",
        "describe-producers --topic tools --partition 0",
        "find-hanging --broker-id 0",
        "find-hanging --topic tools --max-transaction-timeout 0",
        "forceTerminateTransaction --transactionalId open",
    ):
        numbers = not line.startswith("describe ")  # one tells for how long it is open
        add("transactions", line, around=_open_transaction("open", "tools"), numbers=numbers)
    add(
        "transactions",
        "describe --transactional-id none",
        "describe-producers --topic none --partition 0",
        "describe-producers --topic tools --partition 0 --broker-id 0",
        "abort --topic tools --partition 0 --start-offset 3",
        "forceTerminateTransaction --transactionalId none",
    )
    add(
        "acls",
        "--list",
        "--add --allow-principal User:alice --operation Read --operation Write --topic tools --force",
        "--add --deny-principal User:bob --deny-host 10.0.0.1 --operation All --topic t "
        "--resource-pattern-type prefixed",
        "--add --allow-principal User:carol --producer --topic tools --transactional-id tx --idempotent --force",
        "--add --allow-principal User:dora --consumer --topic tools --group g --force",
        "--add --allow-principal User:erin --operation Describe --cluster --force",
        "--add --allow-principal User:erin --operation CreateTokens --user-principal User:erin --force",
        "--add --allow-principal User:erin --operation Read --cluster --force",
        "--list",
        "--list --topic tools",
        "--list --topic tools --resource-pattern-type match",
        "--list --principal User:alice",
        "--list --group g",
        "--remove --allow-principal User:alice --operation Read --topic tools --force",
        "--remove --topic tools --force",
        "--remove --topic t --resource-pattern-type any --force",
        "--remove --group g --force",
        "--remove --cluster --force",
        "--remove --transactional-id tx --force",
        "--remove --user-principal User:erin --force",
        "--list",
    )
    add(
        "configs",
        "--alter --entity-type users --entity-name alice --add-config SCRAM-SHA-256=[iterations=4096,password=secret]",
        "--alter --entity-type users --entity-name alice --add-config SCRAM-SHA-512=[password=secret]",
        "--alter --entity-type users --entity-name bob --add-config SCRAM-SHA-256=[iterations=100,password=x]",
        "--describe --entity-type users",
        "--describe --entity-type users --entity-name alice",
        "--alter --entity-type users --entity-name alice --delete-config SCRAM-SHA-256",
        "--describe --entity-type users --entity-name alice",
        "--alter --entity-type users --entity-name alice --delete-config SCRAM-SHA-256",
        "--alter --entity-type users --entity-name alice --delete-config SCRAM-SHA-512",
        "--alter --entity-type users --entity-name alice --add-config producer_byte_rate=1000,consumer_byte_rate=2000",
        "--alter --entity-type users --entity-default --add-config request_percentage=50",
        "--alter --entity-type clients --entity-name c --add-config producer_byte_rate=10",
        "--alter --entity-type users --entity-name alice --entity-type clients --entity-name c "
        "--add-config consumer_byte_rate=5",
        "--alter --entity-type users --entity-name alice --entity-type clients --entity-default "
        "--add-config consumer_byte_rate=6",
        "--alter --entity-type users --entity-name alice --add-config controller_mutation_rate=5",
        "--alter --entity-type users --entity-name alice --delete-config controller_mutation_rate",
        "--alter --entity-type users --entity-name alice --add-config no_such_quota=5",
        "--alter --entity-type ips --entity-name 127.0.0.9 --add-config connection_creation_rate=100",
        "--alter --entity-type ips --entity-default --add-config connection_creation_rate=1000",
        "--describe --entity-type users",
        "--describe --entity-type users --entity-name alice",
        "--describe --entity-type users --entity-default",
        "--describe --entity-type clients",
        "--describe --entity-type users --entity-type clients",
        "--describe --entity-type users --entity-name alice --entity-type clients --entity-name c",
        "--describe --entity-type ips",
        "--alter --entity-type users --entity-name alice --delete-config producer_byte_rate,consumer_byte_rate",
        "--alter --entity-type users --entity-default --delete-config request_percentage",
        "--alter --entity-type clients --entity-name c --delete-config producer_byte_rate",
        "--alter --entity-type users --entity-name alice --entity-type clients --entity-name c "
        "--delete-config consumer_byte_rate",
        "--alter --entity-type users --entity-name alice --entity-type clients --entity-default "
        "--delete-config consumer_byte_rate",
        "--alter --entity-type ips --entity-name 127.0.0.9 --delete-config connection_creation_rate",
        "--alter --entity-type ips --entity-default --delete-config connection_creation_rate",
        "--describe --entity-type users",
        "--alter --entity-type topics --entity-name tools --add-config max.message.bytes=100000,segment.ms=600000",
        "--describe --entity-type topics --entity-name tools",
        "--alter --entity-type topics --entity-name tools --delete-config segment.ms",
        "--alter --entity-type topics --entity-name tools --add-config cleanup.policy=[compact,delete]",
        "--alter --entity-type topics --entity-name tools --add-config retention.ms=no",
        "--alter --entity-type topics --entity-name tools --add-config nothing.known=1",
        "--alter --entity-type topics --entity-name none --add-config retention.ms=1000",
        "--alter --entity-type topics --entity-name tools --delete-config cleanup.policy,max.message.bytes",
        "--describe --entity-type topics --entity-name none",
        "--describe --entity-type topics",
        "--alter --entity-type brokers --entity-name 0 --add-config log.cleaner.threads=2",
        "--describe --entity-type brokers --entity-name 0",
        "--alter --entity-type brokers --entity-name 0 --delete-config log.cleaner.threads",
        "--alter --entity-type brokers --entity-default --add-config message.max.bytes=2000000",
        "--alter --entity-type brokers --entity-default --delete-config message.max.bytes",
        "--alter --entity-type brokers --entity-name 9 --add-config message.max.bytes=2000000",
        "--describe --entity-type broker-loggers --entity-name 0",
    )
    add(
        "configs",
        "--alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=50000",
        "--describe --entity-type groups --entity-name g",
        "--alter --entity-type groups --entity-name g --delete-config consumer.session.timeout.ms",
    )
    add(
        "configs",
        "--alter --entity-type client-metrics --entity-name m --add-config metrics=[],interval.ms=60000",
        "--describe --entity-type client-metrics --entity-name m",
    )
    add(
        "client-metrics",
        "--list",
        "--alter --name n --metrics org.apache.kafka. --interval 30000",
        "--describe --name n",
        "--describe",
        "--delete --name n",
    )
    add("client-metrics", "--describe --name none")
    add("log-dirs", "--describe --topic-list tools", "--describe --broker-list 0 --topic-list none", numbers=False)
    add("log-dirs", "--describe --broker-list 0,9")
    add(
        "leader-election",
        "--election-type preferred --all-topic-partitions",
        "--election-type preferred --topic tools --partition 0",
        f"--election-type unclean --path-to-json-file {chosen}",
        "--election-type preferred --topic none --partition 0",
    )
    add(
        "reassign-partitions",
        "--list",
        f"--generate --topics-to-move-json-file {moving} --broker-list 0",
        f"--generate --topics-to-move-json-file {moving} --broker-list 7",
        f"--execute --reassignment-json-file {here}",
        f"--verify --reassignment-json-file {here}",
        f"--execute --reassignment-json-file {elsewhere}",
        f"--cancel --reassignment-json-file {here}",
    )
    add("broker-api-versions", "")
    add(
        "metadata-quorum",
        "describe --status",
        "describe --replication",
        "describe --replication --human-readable",
        numbers=False,
    )
    removed = "remove-controller --controller-id 9 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ"
    add("metadata-quorum", removed)
    add("features", "describe")
    unchanged = "features are what the node's settings say"
    add("features", "upgrade --feature transaction.version=2", "downgrade --feature share.version=0", reason=unchanged)
    for line in ("cluster-id", "list-endpoints"):
        add("cluster", f"{line} --bootstrap-server {{bootstrap}}", bootstrap="", numbers=line == "cluster-id")
    gone = "unregister --id 9 --bootstrap-server {bootstrap}"
    add("cluster", gone, bootstrap="", reason="brokers are not unregistered")
    add("delegation-tokens", f"--describe --command-config {nothing}")
    add("delete-records", f"--offset-json-file {records}", f"--offset-json-file {beyond}")
    add("get-offsets", "--topic tools --time earliest")
    add(
        "streams-application-reset",
        "--application-id none --input-topics tools --dry-run",
        "--application-id none --input-topics tools --to-latest",
        "--application-id none --input-topics missing",
    )
    add("replica-verification", "--broker-list {bootstrap} --topics-include tools --time -1", bootstrap="", seconds=5)
    add(
        "producer-perf-test",
        "--topic single --num-records 500 --record-size 100 --throughput -1 --command-property acks=all",
        "--topic single --num-records 500 --record-size 100 --throughput -1 --transactional-id perf "
        "--transaction-duration-ms 50",
        numbers=False,
    )
    add("consumer-perf-test", "--topic single --num-records 500 --timeout 20000", numbers=False)
    add("e2e-latency", "--topic single --num-records 20 --producer-acks all --record-size 100", numbers=False)
    add("topics", "--delete --topic compacted", "--delete --topic single", "--delete --topic tools", "--list")
    return found
