"""A node on servers of elastic-stream, as far as their faults are known (``servers.py`` beside this), over TCP."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import ClientSession
from click.testing import CliRunner, Result

from anabranch_kit.errors import StoreError
from bridges.commands.cli import main
from bridges.errors import LogError, LogUnavailable, OffsetOutOfRange
from bridges.formats.records import StoredBatch
from bridges.log.partition.partition_log import PartitionLog
from bridges.log.retention import Retention
from bridges.metric_text import render
from bridges.node.assembly import Node
from bridges.node.settings.config import Settings, load
from sbp_back.client.client import Client
from sbp_back.client.leader import pd_carrier
from sbp_back.placement_driver.driver import PlacementDriver
from sbp_back.transport.tcp_carrier import tcp_connector
from sbp_back.wire.model import (
    AppendRequest,
    CreateRangeRequest,
    CreateStreamRequest,
    DeleteStreamRequest,
    SealRangeRequest,
    TrimStreamRequest,
)
from tests.bridges.log.log_lab import batch, need_nothing
from tests.databases import pd_state
from tests.kit.waiting import until
from tests.sbp_document.elastic_stream.servers import ForeignCluster, Panic


@pytest.fixture
async def cluster() -> AsyncIterator[ForeignCluster]:
    made = ForeignCluster(servers=1)
    await made.serve()
    yield made
    await made.close()


def settings(path: Path, pd: str, flavor: str = "elastic-stream", **more: str) -> Settings:
    flags = {
        "data_dir": str(path / "node"),
        "listen.console": "off",
        "sbp.mode": "external",
        "sbp.pd": pd,
        "sbp.flavor": flavor,
        "sbp.timeout_ms": "15s",
        **more,
    }
    return load(flags, environ={}, directory=path).settings


async def test_a_foreign_placement_driver_is_refused_unless_the_flavor_says_so(
    tmp_path: Path, cluster: ForeignCluster
) -> None:
    with pytest.raises(StoreError) as refused:
        await Node(settings(tmp_path, cluster.address, "anabranch"), fronts=[]).start()
    sentence = str(refused.value)
    assert "does not say which one it is" in sentence
    assert "sbp.flavor=elastic-stream" in sentence
    assert "\n" not in sentence
    node = Node(settings(tmp_path, cluster.address), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 1)
    await node.stop()
    # Also when the node has topics there: the setting was taken away.
    with pytest.raises(StoreError, match="does not say which one it is"):
        await Node(settings(tmp_path, cluster.address, "anabranch"), fronts=[]).start()
    assert cluster.pd.asked(CreateStreamRequest) == 1


async def test_a_foreign_placement_driver_met_later_gets_no_request(tmp_path: Path, cluster: ForeignCluster) -> None:
    """None answered when the node started, and the one that comes then is foreign."""
    address = cluster.address
    await cluster.close()
    node = Node(settings(tmp_path, address, "anabranch"), fronts=[])
    await node.start()
    again = ForeignCluster(servers=1)
    host, port = address.rsplit(":", 1)
    await again.serve(host, int(port))
    try:
        with pytest.raises(Exception, match="does not say which one it is"):
            await node.catalog.create_topic("t", 1)
        assert again.pd.asked(CreateStreamRequest) == 0
    finally:
        await node.stop()
        await again.close()


async def test_a_foreign_range_server_of_our_placement_driver_is_refused_unless_the_flavor_says_so(
    tmp_path: Path,
) -> None:
    """It would be believed where it says that a range ends, which it forgets with its process."""
    state = pd_state(tmp_path / "pd.sqlite", asyncio.get_running_loop())
    cluster = ForeignCluster(servers=1, pd=PlacementDriver(state))
    await cluster.serve()
    node = Node(settings(tmp_path, cluster.address, "anabranch", **{"sbp.timeout_ms": "1s"}), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 1)
    log = await opened(node)
    told = "no answer in time"
    while "no answer in time" in told:  # a machine may stand still for as long as the node is patient
        with pytest.raises(LogUnavailable) as refused:
            await append(log)
        told = str(refused.value)
    assert "this range server is none of Anabranch's" in told
    asked = {type(request) for request in cluster.servers[0].requests}
    assert not asked & {AppendRequest, CreateRangeRequest, SealRangeRequest}
    await node.stop()
    async with running(tmp_path, cluster) as node:
        assert await append(await opened(node)) == 0
    await cluster.close()
    await state.close()


async def opened(node: Node, topic: str = "t") -> PartitionLog:
    log = node.logs.get(topic, 0)
    assert log is not None
    await log.ready()
    return log


async def append(log: PartitionLog, count: int = 1, size: int = 10) -> int:
    future: asyncio.Future[int | LogError] = asyncio.get_running_loop().create_future()
    log.append(batch(count, size=size), lambda appended, error: future.set_result(error or appended.base))
    answer = await future
    if isinstance(answer, LogError):
        raise answer
    return answer


@asynccontextmanager
async def running(path: Path, cluster: ForeignCluster, **more: str) -> AsyncIterator[Node]:
    node = Node(settings(path, cluster.address, **more), fronts=[])
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def test_trimming_moves_the_log_start_for_good_where_the_backend_cannot_trim(
    tmp_path: Path, cluster: ForeignCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, cluster) as node:
        for topic in ("t", "u"):
            await node.catalog.create_topic(topic, 1)
            log = await opened(node, topic)
            for _ in range(10):
                await append(log, 3)
            assert await log.trim(12) == 12
            assert await log.trim(15) == 15
            with pytest.raises(OffsetOutOfRange):
                await log.read_batches(14, 1000)
            assert (await log.read_batches(15, 1000))[0].base_offset == 15
    assert cluster.pd.asked(TrimStreamRequest) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if "does not trim" in line]
    assert len(said) == 1, said
    assert "the space of what is below is not given back" in said[0]
    async with running(tmp_path, cluster) as node:
        log = await opened(node)
        assert (log.log_start_offset, log.high_watermark) == (15, 30)
        assert await append(log) == 30
        await node.catalog.delete_topic("t")
        assert await node.db.run(lambda c: c.execute("SELECT stream_id, start FROM log_starts").fetchall()) == [(1, 15)]


async def test_retention_moves_the_log_start_where_the_backend_cannot_trim(
    tmp_path: Path, cluster: ForeignCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, cluster) as node:
        await node.catalog.create_topic("t", 1, {"retention.bytes": "100000", "retention.ms": "-1"})
        log = await opened(node)
        for _ in range(30):
            await append(log, size=20_000)
        before = log.log_start_offset
        retention = Retention(node.logs, lambda _: (-1, 100_000), need_nothing)
        assert await retention.enforce([("t", 0)], 0) == 1
        assert log.log_start_offset > before
        assert await retention.enforce([("t", 0)], 0) == 0
        start = log.log_start_offset
    assert "retention not applied" not in capfd.readouterr().out
    async with running(tmp_path, cluster) as node:
        assert (await opened(node)).log_start_offset == start


async def test_consumers_from_the_beginning_go_on_where_data_is_left(
    tmp_path: Path, cluster: ForeignCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, cluster, **{"log.tail_cache_bytes": "0"}) as node:
        await node.catalog.create_topic("t", 1)
        log = await opened(node)
        for _ in range(40):
            await append(log, 3)
        cluster.servers[0].reclaimed = 60
        answers = await asyncio.gather(*(log.read_batches(n, 1000) for n in (0, 0, 59, 60)), return_exceptions=True)
        assert [isinstance(answer, OffsetOutOfRange) for answer in answers] == [True, True, True, False]
        assert log.log_start_offset == 60
        assert (await log.read_batches(log.log_start_offset, 1000))[0].base_offset == 60
    said = [line for line in capfd.readouterr().out.splitlines() if "is gone from the backend" in line]
    assert len(said) == 1, said
    assert "log_start=60" in said[0]
    assert "records_gone=60" in said[0]
    async with running(tmp_path, cluster) as node:
        assert (await opened(node)).log_start_offset == 60


async def test_searches_and_the_console_go_on_where_data_is_left(tmp_path: Path, cluster: ForeignCluster) -> None:
    more = {"log.tail_cache_bytes": "0", "listen.console": "127.0.0.1:0"}
    async with running(tmp_path, cluster, **more) as node, ClientSession() as http:
        for topic in ("by-time", "highest", "printed"):
            await node.catalog.create_topic(topic, 1)
            log = await opened(node, topic)
            for _ in range(40):
                await append(log, 3)
        cluster.servers[0].reclaimed = 60
        assert await (await opened(node, "by-time")).find_timestamp(1000) == (60, 1000)
        assert await (await opened(node, "highest")).find_max_timestamp() == (60, 1000)
        url = f"http://{node.addresses['console']}/api/topics/printed/records?offset=earliest&limit=100"
        async with http.get(url) as response:
            lines = (await response.text()).splitlines()
        assert [json.loads(line)["offset"] for line in lines] == list(range(60, 120))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("reclaimed", [60, 117, 120])
async def test_a_partition_whose_data_since_its_snapshot_is_gone_opens_again(
    tmp_path: Path, cluster: ForeignCluster, reclaimed: int, restarted: bool
) -> None:
    async with running(tmp_path, cluster) as node:
        await node.catalog.create_topic("t", 1)
        log = await opened(node)
        for _ in range(40):
            await append(log, 3)
    # As after kill -9: nothing is saved of what was learned.
    with sqlite3.connect(tmp_path / "node" / "node.db") as db:
        assert db.execute("DELETE FROM partition_snapshots").rowcount == 1
    cluster.servers[0].reclaimed = reclaimed
    if restarted:
        cluster.servers[0].restart()
    async with running(tmp_path, cluster) as node:
        log = await opened(node)
        if restarted and reclaimed == 120:
            assert log.log_start_offset == log.high_watermark > 120, "where it ended nobody knows any more"
        else:
            assert (log.log_start_offset, log.high_watermark) == (reclaimed, 120)
        end = log.high_watermark
        assert await append(log, 2) == end
        assert (await log.read_batches(end, 1000))[0].end_offset == end + 2
        assert log.size_bytes < 10_000


async def test_a_stream_that_somebody_else_trimmed_is_read_from_its_new_start(tmp_path: Path) -> None:
    flags = {
        "data_dir": str(tmp_path / "node"),
        "listen.console": "off",
        "listen.sbp-pd": "127.0.0.1:0",
        "listen.sbp-range-server": "127.0.0.1:0",
        "sbp.segment_bytes": "1MiB",
        "sbp.low_water_bytes": "0",
        "log.tail_cache_bytes": "0",
    }
    node = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 1)
    log = await opened(node)
    for _ in range(10):
        await append(log, 3)
    other = Client(pd_carrier(str(node.addresses["sbp-pd"])), tcp_connector())
    assert await other.trim(log.stream_id, 18) == 18
    await other.close()
    with pytest.raises(OffsetOutOfRange):
        await log.read_batches(log.log_start_offset, 1)
    assert log.log_start_offset == 18
    assert (await log.read_batches(18, 1))[0].base_offset == 18
    await node.stop()


@pytest.mark.parametrize("dialect", ["0.2", "v0.1"])
async def test_our_own_store_gives_up_its_oldest_data_and_readers_go_on_with_the_rest(
    tmp_path: Path, dialect: str
) -> None:
    """sbp.retention_bytes drops the oldest segments whoever they belong to, and asks nobody."""
    listener = "sbp-pd" if dialect == "0.2" else "sbp-v0.1"
    flags = {
        "data_dir": str(tmp_path / "backend"),
        "listen.console": "off",
        "listen.sbp-pd": "127.0.0.1:0",
        "listen.sbp-range-server": "127.0.0.1:0",
        "listen.sbp-v0.1": "127.0.0.1:0",
        "sbp.segment_bytes": "1MiB",
        "sbp.retention_bytes": "3MiB",
        "sbp.low_water_bytes": "0",
    }
    backend = Node(load(flags, environ={}, directory=tmp_path).settings, fronts=[])
    await backend.start()
    pd = str(backend.addresses[listener])
    more = {"sbp.dialect": dialect, "log.tail_cache_bytes": "0"}
    node = Node(settings(tmp_path, pd, "anabranch", **more), fronts=[])
    await node.start()
    await node.catalog.create_topic("t", 1)
    log = await opened(node)
    for _ in range(100):
        await append(log, size=100_000)
    answer: list[StoredBatch] = []
    while not answer or not log.log_start_offset:  # the store drops segments in its own time
        with suppress(OffsetOutOfRange):
            answer = await log.read_batches(log.log_start_offset, 1)
    assert answer[0].end_offset > 1
    await node.stop()
    with sqlite3.connect(tmp_path / "node" / "node.db") as db:
        db.execute("DELETE FROM partition_snapshots")
        db.execute("DELETE FROM log_starts")
        db.execute("UPDATE row_sums SET total = 0 WHERE tbl = 'log_starts'")  # as of a table without rows
    node = Node(settings(tmp_path, pd, "anabranch", **more), fronts=[])
    await node.start()
    again = await opened(node)
    assert again.log_start_offset >= log.log_start_offset
    assert await append(again) == 100
    await node.stop()
    await backend.stop()


async def test_a_deleted_topic_leaves_the_backend_able_to_start(
    tmp_path: Path, cluster: ForeignCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, cluster) as node:
        for topic in ("t", "u"):
            await node.catalog.create_topic(topic, 2)
            await append(await opened(node, topic))  # the other partition was never used: its stream has no range
            await node.catalog.delete_topic(topic)
        await until(lambda: not node.catalog.pending_deletions)
        assert node.catalog.left_streams == 2
        assert b"anabranch_streams_left 2.0" in render(node.metrics)
        await node.catalog.create_topic("t", 1)
        assert await append(await opened(node)) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if "stay in the backend" in line]
    assert len(said) == 2, said
    assert cluster.pd.asked(DeleteStreamRequest) == 2
    await cluster.start_again()
    async with running(tmp_path, cluster) as node:
        assert node.catalog.left_streams == 2
        assert node.catalog.pending_deletions == 0


def repair(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["repair-streams", *arguments], catch_exceptions=False)


async def test_streams_that_were_forgotten_with_their_ranges_are_made_known_again(
    tmp_path: Path, cluster: ForeignCluster
) -> None:
    async with running(tmp_path, cluster) as node:
        for topic in ("t", "u", "v"):
            await node.catalog.create_topic(topic, 1)
            await append(await opened(node, topic))
    before = dict(cluster.pd.streams)
    for stream_id in (0, 2):
        cluster.pd.serve(DeleteStreamRequest(stream_id))
    with pytest.raises(Panic):
        await cluster.start_again()
    async with running(tmp_path, cluster) as node:
        with pytest.raises(LogUnavailable, match="was deleted, but has ranges; UPDATE_STREAM makes it known again"):
            await opened(node)
    checked = await asyncio.to_thread(repair, "--pd", cluster.address, "--check", "--json")
    assert json.loads(checked.output) == {"forgotten": [0, 2], "repaired": False}
    assert set(cluster.pd.streams) == {1}
    repaired = await asyncio.to_thread(repair, "--pd", cluster.address)
    assert "known again: 0, 2" in repaired.output
    assert cluster.pd.streams == before
    await cluster.start_again()
    async with running(tmp_path, cluster) as node:
        assert (await opened(node)).high_watermark == 1
    assert "is known" in (await asyncio.to_thread(repair, "--pd", cluster.address)).output
    await cluster.close()
    unreachable = await asyncio.to_thread(repair, "--pd", cluster.address)
    assert unreachable.exit_code == 1


async def test_a_topic_whose_stream_somebody_else_deleted_leaves_the_backend_able_to_start(
    tmp_path: Path, cluster: ForeignCluster
) -> None:
    async with running(tmp_path, cluster) as node:
        await node.catalog.create_topic("t", 1)
        await append(await opened(node))
        cluster.pd.serve(DeleteStreamRequest(0))
        await node.catalog.delete_topic("t")
        await until(lambda: not node.catalog.pending_deletions)
        assert node.catalog.left_streams == 1
    await cluster.start_again()
