"""What a node says is wrong: its own counters, groups, transactions and jobs, and nodes that do not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridges.auth import Operation, Resource
from bridges.catalog.progress import Committed
from bridges.catalog.views.jobs import JobView
from bridges.cluster.members import Member, State
from bridges.cluster.ownership import Outages
from bridges.console.history.rings import FINE_S
from bridges.console.problems.measuring import tell
from bridges.console.problems.rules import BY_NAME, Measured
from bridges.console.problems.watch import Watch
from bridges.errors import PeerUnreachable
from bridges.log.transactions.partition_transactions import NEVER
from bridges.metric_text import render
from bridges.node.assembly import Node
from bridges.node.finding import Finding, fine, warning, wrong
from sbp_back.range_server.store.stats import StoreStats
from tests.bridges.node.test_node import append, get, settings_of


class Clock:
    """A clock that a test sets."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def findings() -> list[Finding]:
    """What the doctor finds."""
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def node(tmp_path: Path, findings: list[Finding], clock: Clock) -> AsyncIterator[Node]:
    made = Node(settings_of(tmp_path), fronts=[], checkup=lambda _: findings)
    await made.start()
    made.floors.host.watch = Watch(clock)
    yield made
    await made.stop()


async def ask(node: Node) -> list[dict[str, Any]]:
    status, answer = await get(node, "/api/problems")
    assert status == 200, answer
    found: Any = answer["problems"]
    return list(found)


async def names(node: Node) -> list[str]:
    return [one["about"] for one in await ask(node)]


def stats_of(node: Node) -> StoreStats:
    """Have the node's store tell these counters, and return them."""
    stats = StoreStats()
    node.floors.host.embedded = SimpleNamespace(store=SimpleNamespace(stats=stats))  # type: ignore[assignment]
    return stats


async def test_nothing_is_wrong_with_a_fresh_node(node: Node) -> None:
    assert await ask(node) == []


async def test_what_the_doctor_warns_of_is_said_with_its_remedy(node: Node, findings: list[Finding]) -> None:
    findings += [
        fine("disk", "is there"),
        warning("clock", "nobody keeps it right", "run chrony"),
        wrong("x", "y", "z"),
    ]
    worst, other = await ask(node)
    assert (worst["severity"], worst["sentence"], worst["remedy"]) == ("critical", "x: y", "z")
    assert (other["severity"], other["sentence"]) == ("warning", "clock: nobody keeps it right")


async def test_a_full_disk_is_said_once(node: Node, findings: list[Finding]) -> None:
    findings.append(wrong("disk", "0.0 GB are free", "make room"))
    stats = stats_of(node)
    stats.disk_full = True
    (found,) = await ask(node)
    assert (found["about"], found["severity"]) == ("DiskFull", "critical")
    assert found["sentence"] == "this node refuses writes: its disk is full"
    stats.disk_full = False
    assert await names(node) == ["disk"]


async def test_counters_count_for_as_long_as_the_rule_says(node: Node, clock: Clock) -> None:
    host, barrier = node.floors.host, node.metrics.barrier
    await host.watch.sample(host)
    barrier.failures["callback"] = 3
    host.stalls.buckets[-1] += 10_000
    assert sorted(await names(node)) == ["Defect", "Stalls"]
    for _ in range(6 * 60 // FINE_S):
        clock.now += FINE_S
        await host.watch.sample(host)
    assert await names(node) == ["Defect"]
    for _ in range(10 * 60 // FINE_S):
        clock.now += FINE_S
        await host.watch.sample(host)
    assert await names(node) == []


async def test_a_disk_that_fills_up_is_foretold(node: Node, clock: Clock) -> None:
    host, stats = node.floors.host, stats_of(node)
    for minute in range(20):
        stats.disk_free = (60 - minute) * 2**30
        for _ in range(3):
            clock.now += FINE_S
            await host.watch.sample(host)
    assert "DiskFillsUp" in await names(node)


async def test_a_group_that_falls_behind_is_named_with_its_seconds(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.catalog.create_topic("words", 1)
    await append(node, "words", 0, 1_000)
    await node.progress.front("one").commit("readers", [("words", 0, Committed(0))])
    recorder = node.floors.host.recorder
    recorder.lags["consumers", "readers"] = (100, 7_300.0, True)
    recorder.lags["consumers", "late"] = (100, 400.0, True)
    recorder.lags["consumers", "soon"] = (100, 30.0, True)
    trends = {"readers": 5.0, "late": -5.0, "soon": 5.0}
    monkeypatch.setattr(recorder, "trend", lambda name: trends[name[1]])
    (found,) = await ask(node)
    assert (found["group"], found["space"]) == ("readers", "consumers")
    assert found["sentence"] == "group readers is 2 h behind, and falls further behind"


async def test_who_may_not_see_a_group_is_not_told_of_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    class NotSecret:
        def allows(self, principal: object, operation: Operation, resource: Resource) -> bool:
            return resource.name != "secret"

    host = node.floors.host
    host.authorizer = NotSecret()
    for group in ("secret", "open"):
        host.recorder.lags["consumers", group] = (100, 7_300.0, True)
    monkeypatch.setattr(host.recorder, "trend", lambda name: 1.0)
    assert [one["group"] for one in await ask(node)] == ["open"]


async def test_an_open_transaction_that_holds_up_readers_is_named(node: Node, clock: Clock) -> None:
    await node.catalog.create_topic("words", 1)
    await append(node, "words", 0, 1_000)
    log, host = node.logs.get("words", 0), node.floors.host
    assert log is not None
    transactions = log.state.transactions
    transactions.open[7] = transactions.first_open = 0
    await host.watch.sample(host)
    clock.now += 899
    assert await names(node) == []
    clock.now += 2
    (found,) = await ask(node)
    assert (found["about"], found["topic"]) == ("TransactionHangs", "words")
    assert "words, partition 0, have waited 15 min" in found["sentence"]
    shown = render(node.metrics)
    assert b'anabranch_partition_unstable_seconds{partition="0",topic="words"} 901.0' in shown
    transactions.first_open = NEVER
    await host.watch.sample(host)
    assert await names(node) == []


async def test_failed_and_differing_jobs_are_counted_and_named(node: Node) -> None:
    class Jobs:
        def jobs(self) -> list[JobView]:
            states = ["failed"] * 7 + ["different", "running", "silent"]
            kind = ("audit", "copy")
            return [
                JobView(str(n), kind[n % 2], f"job{n}", state, "me", 0, None, "rows", None, None, 0, 0, {})
                for n, state in enumerate(states)
            ]

    node.floors.host.job_directories = lambda: {"pipeline": Jobs()}
    sentences = [one["sentence"] for one in await ask(node)]
    assert "4 of the data pipeline's jobs (audit) ended as failed: job0, job2, job4, job6" in sentences
    assert "1 of the data pipeline's jobs (copy) ended as different: job7" in sentences
    assert "1 of the data pipeline's jobs (copy) have not been heard of for a minute: job9" in sentences


async def test_very_many_are_cut_and_counted() -> None:
    rule = BY_NAME["GroupFallsBehind"]
    found = tell(rule, [Measured(400.0 + n, {"group": f"g{n}"}) for n in range(500)], "node 1", 1)
    assert len(found) == 20
    assert (found[0].group, found[-1].more) == ("g499", 480)


async def test_a_restored_node_says_so_and_is_well(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    await node.stop()
    (tmp_path / "data" / "restored.json").write_text('{"backup_taken": "Monday", "restored": "Tuesday"}')
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    (found,) = await ask(node)
    assert (found["severity"], found["about"]) == ("note", "restored")
    assert found["sentence"] == "the data was restored at Tuesday from a backup of Monday"
    await node.stop()


class Peers:
    """Other nodes: one that answers as it is told to, and one that does not."""

    def __init__(self, answers: Mapping[int, object]) -> None:
        self._answers = answers

    async def ask(self, member: Member, *rest: object) -> object:
        if member.node_id not in self._answers:
            raise PeerUnreachable(f"node {member.node_id} does not answer")
        return self._answers[member.node_id]


async def test_nodes_that_do_not_answer_come_first(node: Node, findings: list[Finding]) -> None:
    findings.append(wrong("disk", "full", "make room"))
    host = node.floors.host

    class Cluster:
        node_id = 0
        nodes = tuple(Member(n + 1, n, State.UP) for n in range(3))

        def outages(self) -> Outages:
            return Outages({1: 0.1, 2: 1.0, 9: 3.0, 1_000: 40.0})

    from bridges.console.problems.nodes import Told, find_everywhere

    host.cluster = Cluster()  # type: ignore[assignment]
    host.peers = Peers({1: Told(tell(BY_NAME["DiskFull"], [Measured(1)], "node 1", 1), 4)})  # type: ignore[assignment]
    found = await find_everywhere(host)
    assert [one.sentence for one in found] == [
        "node 2 does not answer",
        "node 9 does not answer",
        "node 1000 does not answer",
        "disk: full",
        "node 1 refuses writes: its disk is full",
        "4 nodes were taken for dead in half an hour",
    ]


async def test_lines_to_connect_with_have_the_advertised_addresses(tmp_path: Path) -> None:
    advertised = {
        "advertise.kafka": "log.example:9092",
        "listen.kafka": "127.0.0.1:0",
        "listen.kafka-inside": "0.0.0.0:0",
    }
    off = dict.fromkeys(("listen.pravega-segmentstore", "listen.pipeline"), "off")
    others = {"listen.ydb": "127.0.0.1:0", "listen.pravega": "off"}
    told = {name.replace(".", "__"): value for name, value in (advertised | off | others).items()}
    node = Node(settings_of(tmp_path, **told))
    await node.start()
    _, answer = await get(node, "/api/connect")
    found: Any = answer["connect"]
    ports = {name: address.port for name, address in node.addresses.items()}
    assert {one["listener"]: one["line"] for one in found} == {
        "kafka": "bootstrap.servers=log.example:9092",
        "kafka-inside": f"bootstrap.servers=127.0.0.1:{ports['kafka-inside']}",
        "ydb": f"grpc://127.0.0.1:{ports['ydb']}/local",
    }
    await node.stop()
