"""Kafka's own command-line tools against a node: what they print, and that none of them fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from kafka_front.group_config import GROUP_CONFIGS
from tests.ecosystem.tools.run import Shell
from tests.kafka_front.groups.wire_client import WireClient, commit
from tests.kafka_front.place import Place
from tests.kafka_front.streams.test_requests import Member, copying
from tests.node_process import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]

CONFIGS = "org.apache.kafka.tools.ConfigCommand"
METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
STREAMS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with closing(Shell()) as shell:
        yield shell


@pytest.fixture
def run(shell: Shell, shared_node: NodeProcess) -> Run:
    """Runs a tool against a node; gives the lines it prints. It must end without a failure."""
    bootstrap = shared_node.kafka

    def run(tool: str, *arguments: str) -> list[str]:
        code, out, errors = shell.call(tool, ["--bootstrap-server", bootstrap, *arguments])
        assert code == 0, out + errors
        assert "Exception" not in out + errors
        return out.splitlines()

    return run


def test_configurations_are_described(run: Run) -> None:
    run(TOPICS, "--create", "--topic", "tools", "--partitions", "2", "--config", "segment.bytes=2000000")
    assert run(CONFIGS, "--entity-type", "topics", "--entity-name", "tools", "--describe") == [
        "Dynamic configs for topic tools are:",
        "  segment.bytes=2000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=2000000, "
        "DEFAULT_CONFIG:log.segment.bytes=1073741824}",
    ]
    lines = run(CONFIGS, "--entity-type", "topics", "--entity-name", "tools", "--describe", "--all")
    assert "  retention.ms=604800000 sensitive=false synonyms={}" in lines
    minimum = "min.insync.replicas=1 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:min.insync.replicas=1"
    assert f"  {minimum}, DEFAULT_CONFIG:min.insync.replicas=1}}" in lines
    assert run(CONFIGS, "--entity-type", "brokers", "--entity-default", "--describe") == [
        "Default configs for brokers in the cluster are:",
        f"  {minimum}}}",
    ]
    assert run(CONFIGS, "--entity-type", "brokers", "--entity-name", "0", "--describe", "--all")[0] == (
        "All configs for broker 0 are:"
    )


@pytest.mark.parametrize(
    ("kind", "name", "printed"),
    [
        ("groups", "nobody", ["The group 'nobody' doesn't exist and doesn't have dynamic config."]),
        ("client-metrics", "m", ["The client-metric 'm' doesn't exist and doesn't have dynamic config."]),
        ("client-metrics", None, []),
        ("users", "x", []),
        ("users", None, []),
        ("clients", None, []),
        ("ips", None, []),
    ],
)
def test_what_nobody_has_is_told_as_that(run: Run, kind: str, name: str | None, printed: list[str]) -> None:
    named = ["--entity-name", name] if name else []
    assert run(CONFIGS, "--entity-type", kind, *named, "--describe") == printed


def test_the_configuration_of_all_groups_is_told_for_one(run: Run) -> None:
    lines = run(CONFIGS, "--entity-type", "groups", "--entity-name", "g", "--describe", "--all")
    assert lines[0] == "All configs for group g are:"
    assert len(lines) == 1 + len(GROUP_CONFIGS)


def test_groups_and_subscriptions_to_client_metrics_are_configured(run: Run) -> None:
    group = ("--entity-type", "groups", "--entity-name", "configured")
    added = "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=6000"
    assert run(CONFIGS, *group, "--alter", "--add-config", added) == ["Completed updating config for group configured."]
    beat = "consumer.heartbeat.interval.ms"
    assert run(CONFIGS, *group, "--describe")[:2] == [
        "Dynamic configs for group configured are:",
        f"  {beat}=6000 sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{beat}=6000}}",
    ]
    run(CONFIGS, *group, "--alter", "--delete-config", "consumer.session.timeout.ms,consumer.heartbeat.interval.ms")
    assert run(METRICS, "--list") == [""]
    run(METRICS, "--alter", "--name", "subscribed", "--metrics", "org.apache.kafka.", "--interval", "30000")
    assert run(METRICS, "--list") == ["subscribed"]
    assert run(METRICS, "--describe", "--name", "subscribed") == [
        "Client metrics configs for subscribed are:",
        "  interval.ms=30000",
        "  match=",
        "  metrics=org.apache.kafka.",
    ]
    run(METRICS, "--delete", "--name", "subscribed")
    assert run(METRICS, "--list") == [""]


def test_a_streams_group_is_listed_described_reset_and_deleted(run: Run, shared_node: NodeProcess) -> None:
    host, _, port = shared_node.kafka.rpartition(":")
    run(TOPICS, "--create", "--topic", "processed", "--partitions", "2")

    async def member(epoch: int = 0) -> None:
        async with WireClient(host, int(port)) as client:
            place = Place(client, ours=True, node_id=0, stack=AsyncExitStack())
            one = Member(place, "processing", copying("processed"))
            one.epoch = epoch
            if epoch:
                assert (await one.beat()).error_code == 0
            else:
                await one.until()
                await place.call(9, commit("processing", {("processed", 0): 0}, one.id, one.epoch))

    asyncio.run(member())
    assert "processing" in run(STREAMS, "--list")
    (state,) = [line.split() for line in run(STREAMS, "--list", "--state") if line.startswith("processing")]
    assert state == ["processing", "Stable"]
    described = [*run(STREAMS, "--describe", "--group", "processing", "--members")]
    assert any("m" in line.split() and "0:[0,1];" in "".join(line.split()) for line in described), described
    with urlopen(f"{shared_node.console}/api/groups/processing") as answer:
        shown = json.load(answer)
    assert (shown["kind"], shown["state"]) == ("streams", "Stable")
    assert [(one["member_id"], one["partitions"]) for one in shown["members"]] == [("m", {"processed": [0, 1]})]
    offsets = [line.split() for line in run(STREAMS, "--describe", "--group", "processing", "--offsets")]
    assert [row[1:3] for row in offsets if row and row[0] == "processing"], offsets
    asyncio.run(member(-1))
    reset = ("--reset-offsets", "--group", "processing", "--all-input-topics", "--to-earliest", "--execute")
    lines = run(STREAMS, *reset)
    assert any("processed" in line for line in lines), lines
    run(STREAMS, "--delete", "--group", "processing")
    assert "processing" not in run(STREAMS, "--list")


def test_the_quorum_is_described(run: Run) -> None:
    status = dict(line.split(":", 1) for line in run(QUORUM, "describe", "--status"))
    assert {key: value.strip() for key, value in status.items() if key.startswith(("Leader", "Max", "CurrentO"))} == {
        "LeaderId": "0",
        "LeaderEpoch": status["LeaderEpoch"].strip(),
        "MaxFollowerLag": "0",
        "MaxFollowerLagTimeMs": "0",
        "CurrentObservers": "[]",
    }
    assert '"id": 0' in status["CurrentVoters"]
    assert run(QUORUM, "describe", "--replication")[1].split("\t")[-2].strip() == "Leader"


def test_where_partitions_are_is_verified_and_what_moves_is_cancelled(run: Run, tmp_path: Path) -> None:
    """Both take away the throttles of nodes and topics, too."""
    run(TOPICS, "--create", "--topic", "moved")
    plan = tmp_path / "plan.json"
    plan.write_text('{"version":1,"partitions":[{"topic":"moved","partition":0,"replicas":[0]}]}')
    assert run(REASSIGN, "--verify", "--reassignment-json-file", str(plan)) == [
        "Status of partition reassignment:",
        "Reassignment of partition moved-0 is completed.",
        "",
        "Clearing broker-level throttles on broker 0",
        "Clearing topic-level throttles on topic moved",
    ]
    assert run(REASSIGN, "--cancel", "--reassignment-json-file", str(plan))[0].startswith("None of the specified")


def test_a_transactional_producer_writes_to_many_partitions_at_full_speed(run: Run) -> None:
    """Its transactions are short, so that partitions join them while batches for others are under way."""
    run(TOPICS, "--create", "--topic", "performance", "--partitions", "12")
    load = ("--num-records", "100000", "--throughput", "-1", "--record-size", "100")
    ends = ("--transactional-id", "performance", "--transaction-duration-ms", "50")
    assert run(PERFORMANCE, "--topic", "performance", *load, *ends)[-1].startswith("100000 records sent")
