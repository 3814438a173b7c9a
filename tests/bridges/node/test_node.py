"""A node inside this process: order of starting and stopping, failures, chores."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from anabranch_kit.errors import StoreError, StoreFailed, StoreLocked
from anabranch_kit.net.address import Address
from bridges.catalog.progress import Committed
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.life import Phase
from bridges.log.logs import Logs
from bridges.log.partition.partition_log import Batch, PartitionLog
from bridges.metric_text import render
from bridges.node.assembly import Node
from bridges.node.floors.upkeep import compact
from bridges.node.front import Front, Listener, NodeServices
from bridges.node.settings.config import Settings, load
from bridges.node.settings.sections import SettingsError
from bridges.node.storage.data_dir import DataDirectory
from tests.kit.waiting import until


def settings_of(path: Path, **more: str) -> Settings:
    flags = {
        "data_dir": str(path / "data"),
        "listen.console": "127.0.0.1:0",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return load(flags, environ={}, directory=path).settings


class PuppetFront(Front):
    """A front whose every step the test sees and can hold up."""

    name = "puppet"
    listeners = (Listener("puppet", 5555), Listener("puppet-two", 5556))

    def __init__(self, node: NodeServices) -> None:
        self.node = node
        self.calls: list[str] = []
        self.may_drain = asyncio.Event()
        self.may_drain.set()
        self.start_error: Exception | None = None
        self.drain_error: Exception | None = None
        self.draining = asyncio.Event()

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        self.calls.append(f"start {sorted(listen)}")
        if self.start_error is not None:
            raise self.start_error
        return {name: Address(address.host, 1000 + len(name)) for name, address in listen.items()}

    async def drain(self) -> None:
        self.calls.append("drain")
        self.draining.set()
        await self.may_drain.wait()
        if self.drain_error is not None:
            raise self.drain_error
        # What fronts need to finish must still be there.
        await self.node.progress.commit("last", [("t", 0, Committed(1))])
        self.calls.append("drained")

    async def stop(self) -> None:
        self.calls.append("stop")


def front_of(node: Node) -> PuppetFront:
    """The puppet of a node that has started, or tried to."""
    (front,) = node.fronts
    assert isinstance(front, PuppetFront)
    return front


async def get(node: Node, path: str) -> tuple[int, dict[str, object]]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{node.addresses['console']}{path}") as response,
    ):
        return response.status, await response.json()


async def append(node: Node, topic: str, partition: int, timestamp: int, value: bytes = b"v") -> None:
    log = node.logs.get(topic, partition)
    assert log is not None
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    batch = Batch(encode([Record(b"k", value, timestamp=timestamp)]), 1, int(FormatId.KAFKA), timestamp)
    log.append(batch, lambda at, error: done.set_result(at.base) if error is None else done.set_exception(error))
    await done


async def test_a_node_looks_at_its_bucket_while_it_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridges.cluster.marks.EVERY_S", 0.02)
    node = Node(settings_of(tmp_path, sbp__objects=f"file://{tmp_path}/bucket"), fronts=[])
    await node.start()
    (mark,) = (tmp_path / "bucket").glob("marks/*/*")
    await until(lambda: not mark.exists())
    assert node.failure is None
    shutil.rmtree(tmp_path / "bucket" / "marks")
    await until(lambda: node.failure is not None)
    assert "has gone back" in (node.failure or "")
    await node.stop()


async def test_life_of_a_node(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[PuppetFront])
    ready = tmp_path / "ready"
    await node.start(ready)
    front = front_of(node)
    assert front.calls == ["start ['puppet', 'puppet-two']"]
    assert node.addresses["puppet"] == Address("127.0.0.1", 1006)
    assert json.loads(ready.read_text()) == {name: str(address) for name, address in node.addresses.items()}
    cluster_id = node.catalog.cluster_id
    assert (await get(node, "/readyz"))[0] == 200
    assert (await get(node, "/healthz"))[0] == 200
    assert node.floors.place.cluster.epoch(0) == 0

    front.may_drain.clear()
    stopping = asyncio.create_task(node.stop())
    await front.draining.wait()
    # While requests in flight are finished the node still answers, and says that it takes no new clients.
    status, body = await get(node, "/readyz")
    assert (status, body["phase"]) == (503, "draining")
    assert (await get(node, "/healthz"))[0] == 200
    assert not ready.exists()
    front.may_drain.set()
    await stopping
    assert front.calls[1:] == ["drain", "drained", "stop"]
    assert node.phase is Phase.STOPPED
    await node.stop()
    assert front.calls[-1] == "stop"

    again = Node(settings_of(tmp_path), fronts=[])
    await again.start()
    assert again.catalog.cluster_id == cluster_id
    assert again.floors.place.cluster.epoch(0) == 1
    assert again.progress.front("puppet").committed("last", "t", 0) == Committed(1)
    await again.stop()


async def test_a_drain_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path, node__drain_timeout_ms="20"), fronts=[PuppetFront])
    await node.start()
    front_of(node).may_drain.clear()
    unseen: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: unseen.append(about))
    await node.stop()
    gc.collect()
    assert front_of(node).calls[1:] == ["drain", "stop"]
    assert unseen == [], "nothing that somebody has to look at"


async def test_a_drain_can_be_hurried(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path, node__drain_timeout_ms="1h"), fronts=[PuppetFront])
    await node.start()
    front_of(node).may_drain.clear()
    stopping = asyncio.create_task(node.stop())
    await front_of(node).draining.wait()
    node.hurry()
    await stopping
    assert front_of(node).calls[1:] == ["drain", "stop"]


async def test_a_front_that_fails_to_drain_is_stopped_all_the_same(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[PuppetFront])
    await node.start()
    front_of(node).drain_error = ValueError("defect")
    await node.stop()
    assert front_of(node).calls[1:] == ["drain", "stop"]
    DataDirectory(tmp_path / "data").release()  # nobody holds it any more


async def test_a_failed_start_takes_everything_back(tmp_path: Path) -> None:
    class Failing(PuppetFront):
        async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
            self.calls.append("start")
            raise OSError("address taken")

    node = Node(settings_of(tmp_path), fronts=[Failing])
    with pytest.raises(OSError, match="address taken"):
        await node.start(tmp_path / "ready")
    assert front_of(node).calls == ["start", "stop"]
    assert node.phase is Phase.STOPPED
    assert not (tmp_path / "ready").exists()
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    await node.stop()


async def test_a_directory_serves_one_node(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    second = Node(settings_of(tmp_path), fronts=[])
    with pytest.raises(StoreLocked, match="in use by process"):
        await second.start()
    assert (await get(node, "/readyz"))[0] == 200
    await node.stop()


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file is in the way")
    with pytest.raises(StoreError, match="cannot use data directory"):
        await Node(settings_of(tmp_path), fronts=[]).start()


async def test_listeners_that_do_not_exist_or_make_no_sense(tmp_path: Path) -> None:
    for more, message in (
        ({"listen__nope": ":1"}, "there is no listener 'nope'"),
        ({"listen__console": "nonsense"}, r"listen\.console"),
        ({"advertise__puppet": "nonsense"}, r"advertise\.puppet"),
    ):
        with pytest.raises(SettingsError, match=message):
            await Node(settings_of(tmp_path, **more), fronts=[PuppetFront]).start()


async def test_what_clients_are_told(tmp_path: Path) -> None:
    more = {"listen__puppet": "0.0.0.0:0", "advertise__puppet-two": "outside:77", "listen__puppet-two": "0.0.0.0:0"}
    node = Node(settings_of(tmp_path, **more), fronts=[PuppetFront])
    await node.start()
    advertised = node.services(PuppetFront).advertised
    assert advertised("puppet") is None  # every interface: the client knows best where it connected to
    assert advertised("puppet-two") == Address("outside", 77)
    assert advertised("console") == node.addresses["console"]
    assert advertised("nope") is None
    await node.stop()


async def test_a_failure_is_told_once_and_makes_the_node_unhealthy(tmp_path: Path) -> None:
    told: list[str] = []
    node = Node(settings_of(tmp_path), fronts=[PuppetFront], on_failed=told.append)
    await node.start()
    node.fail("the disk is gone")
    node.fail("and more")
    assert told == ["the disk is gone"]
    status, body = await get(node, "/healthz")
    assert (status, body["failure"]) == (503, "the disk is gone")
    assert (await get(node, "/readyz"))[0] == 503
    await node.stop()
    # Nothing can become durable any more: waiting for requests in flight would be in vain.
    assert front_of(node).calls[1:] == ["stop"]
    assert node.failure == "the disk is gone"


async def test_a_thread_of_the_store_that_breaks_ends_the_node_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    node = Node(settings_of(tmp_path), fronts=[], on_failed=told.set_result)
    await node.start()
    assert node.floors.storage.embedded is not None

    def broken(*_arguments: object) -> None:
        raise TypeError("a defect")

    monkeypatch.setattr("sbp_back.range_server.store.writing.wal_writer.encode_group", broken)
    answered: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    node.floors.storage.embedded.store.create_range(999, 0, 0, 0, answered.set_result)
    assert isinstance(await answered, StoreFailed)
    assert "TypeError: a defect" in await told
    assert node.failure == await told
    await node.stop()


async def test_chores_repeat_also_after_an_error_and_end_with_the_node(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    clocks: list[int] = []
    enough = asyncio.Event()

    async def chore(now_ms: int) -> None:
        clocks.append(now_ms)
        if len(clocks) == 1:
            raise ValueError("the first time is always hard")
        if len(clocks) == 3:
            enough.set()

    node.chores.every(1, chore, "a test's chore")
    await enough.wait()
    assert abs(clocks[0] - time.time() * 1000) < 3_600_000
    await node.stop()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "a test's chore"]


async def test_compaction_looks_at_topics_while_others_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    await node.catalog.create_topic("first", 1)
    await node.catalog.create_topic("second", 1)
    seen: list[tuple[str, int]] = []

    async def look(places: Iterable[tuple[str, int]], _now_ms: int) -> None:
        for place in places:
            seen.append(place)
            await node.catalog.create_topic(f"after-{place[0]}", 1)

    monkeypatch.setattr(node.floors.log.cleaner, "clean", look)
    await compact(node.floors, 0)
    assert seen == [("first", 0), ("second", 0)]
    await node.stop()


async def test_retention_is_applied_to_topics_that_want_it(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path, log__retention_check_interval_ms="20"), fronts=[])
    await node.start()
    await node.catalog.create_topic("old", 1, {"retention.ms": "1000"})
    await node.catalog.create_topic("compacted", 1, {"retention.ms": "1000", "cleanup.policy": "compact"})
    for topic in ("old", "compacted"):
        await append(node, topic, 0, 1_000_000)
    old, compacted = node.logs.get("old", 0), node.logs.get("compacted", 0)
    assert old is not None
    assert compacted is not None
    moved = asyncio.Event()

    class Waiter:
        def log_moved(self, log: PartitionLog) -> None:
            if log.log_start_offset == 1:
                moved.set()

    waiter = Waiter()
    old.add_waiter(waiter)
    if old.log_start_offset == 0:
        await moved.wait()
    assert compacted.log_start_offset == 0
    await node.stop()


async def test_deleting_a_topic_ends_its_logs_positions_and_metrics(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 2)
    await append(node, "t", 1, 5)
    await node.progress.front("kafka").commit("g", [("t", 1, Committed(1))])
    node.metrics.front("kafka").topic("t").appended(1, 1, 1)
    await node.catalog.delete_topic("t")
    assert node.logs.get("t", 1) is None
    assert node.progress.front("kafka").committed("g", "t", 1) is None
    assert b'topic="t"' not in render(node.metrics)
    await node.catalog.create_topic("t", 2)
    log = node.logs.get("t", 1)
    assert log is not None
    await log.ready()
    assert log.high_watermark == 0
    await node.stop()


async def test_metrics_of_partitions_and_lag(tmp_path: Path) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 2)
    for _ in range(3):
        await append(node, "t", 1, 5)
    await node.progress.front("kafka").commit("g", [("t", 1, Committed(1))])
    text = render(node.metrics).decode()
    assert 'anabranch_group_lag_records{group="g",partition="1",space="consumers",topic="t"} 2.0' in text
    assert 'anabranch_partition_end_offset{partition="1",topic="t"} 3.0' in text
    assert "anabranch_partitions 2.0" in text
    assert "anabranch_partitions_open 1.0" in text
    assert "anabranch_store_" in text
    await node.stop()


async def test_a_restart_believes_the_snapshots_of_the_stop_before_and_reads_nothing_twice(tmp_path: Path) -> None:
    for runs in range(3):
        node = Node(settings_of(tmp_path), fronts=[])
        await node.start()
        if not runs:
            await node.catalog.create_topic("t", 1)
        log = node.logs.get("t", 0)
        assert log is not None
        await log.ready()
        assert log.high_watermark == 3 * runs
        assert not log.has_moved, "nothing but the batch below the snapshot's offset was looked at"
        assert log.size_bytes > 0 or not runs
        for _ in range(3):
            await append(node, "t", 0, 5)
        await node.stop()


async def test_a_list_of_topics_looks_only_at_the_partitions_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(settings_of(tmp_path), fronts=[])
    await node.start()
    for topic in ("a", "b"):
        await node.catalog.create_topic(topic, 2)
    for _ in range(3):
        await append(node, "a", 1, 5)

    def everything(logs: Logs) -> Iterator[PartitionLog]:
        raise AssertionError("every topic would look at all partitions of all")

    with monkeypatch.context() as patch:
        patch.setattr(Logs, "__iter__", everything)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{node.addresses['console']}/api/topics") as response,
        ):
            told = (await response.json())["topics"]
    assert [(topic["name"], topic["records"]) for topic in told] == [("a", 3), ("b", 0)]
    await node.stop()
