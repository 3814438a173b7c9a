"""On a disk without a free byte topics can still be deleted, and so space be made."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch_kit.errors import StoreError
from bridges.errors import StorageFull
from bridges.node.assembly import Node
from bridges.node.settings.config import load
from sbp_back.placement_driver.state import StateError
from tests.databases import database, pd_state
from tests.node_process import NodeProcess
from tests.numbers import consumed, produce

MIB = 1024 * 1024


def table(connection) -> None:
    connection.execute("CREATE TABLE t (v TEXT)")


async def test_what_makes_room_takes_the_reserve_and_nothing_else_does(tmp_path: Path) -> None:
    reserve = tmp_path / "a.db-reserve"
    db = database(tmp_path / "a.db", (table,), application_id=1, reserve_bytes=MIB)
    await db.open()
    await db.run(lambda connection: None)
    assert reserve.stat().st_blocks * 512 >= MIB

    def insert(connection) -> None:
        # As on a disk of which the reserve is all that is left.
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages if reserve.exists() else 10 * pages}")
        connection.execute("INSERT INTO t VALUES (?)", ("x" * 20_000,))

    with pytest.raises(StorageFull):
        await db.run(insert)
    assert reserve.exists()
    others = [db.submit(insert) for _ in range(3)]
    await db.run(insert, frees=True)
    assert not reserve.exists()
    for other in others:
        with pytest.raises(StorageFull):
            await other
    assert await db.run(lambda connection: connection.execute("SELECT count(*) FROM t").fetchone()) == (1,)
    await db.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"file systems cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(path: Path) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        while True:
            os.write(fd, bytes(4096))
    finally:
        os.close(fd)


def fill_up(disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        fill(disk / "fill")


async def started(disk: Path) -> Node:
    flags = {
        "data_dir": str(disk / "data"),
        "listen.console": "off",
        "listen.sbp-pd": "off",
        "listen.sbp-range-server": "off",
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
    }
    node = Node(load(flags, environ={}, directory=disk, fronts=()).settings)
    await node.start()
    return node


async def fill_database(node: Node) -> None:
    for number in range(5_000):
        await node.progress.front("test").save_group(f"g{number}", bytes(4096))


async def test_topics_can_be_deleted_when_somebody_has_filled_the_disk(small_disk: Path) -> None:
    node = await started(small_disk)
    for number in range(20):
        await node.catalog.create_topic(f"t{number}", 3)
    fill_up(small_disk)
    with pytest.raises(StorageFull):
        await fill_database(node)
    for number in range(20):
        await node.catalog.delete_topic(f"t{number}")
    assert not node.catalog.topics
    await node.stop()
    assert node.failure is None


async def test_a_node_starts_on_a_disk_that_somebody_has_filled(small_disk: Path) -> None:
    """SQLite cannot open a file there, and says that it is broken."""
    node = await started(small_disk)
    await node.catalog.create_topic("t", 1)
    await node.stop()
    fill_up(small_disk)
    node = await started(small_disk)
    await node.catalog.delete_topic("t")
    await node.stop()
    assert node.failure is None


async def test_a_disk_without_room_for_a_start_is_told_from_damage(small_disk: Path) -> None:
    node = await started(small_disk)
    await node.stop()
    data = small_disk / "data"
    for reserve in (data / "node.db-reserve", data / "sbp" / "pd.sqlite-reserve"):
        reserve.unlink()
    fill_up(small_disk)
    with pytest.raises(StoreError, match=r"cannot open .*node\.db: its disk is full"):
        await started(small_disk)
    with pytest.raises(StateError, match=r"cannot open .*pd\.sqlite: its disk is full"):
        pd_state(data / "sbp" / "pd.sqlite", asyncio.get_running_loop())


@pytest.mark.parametrize("filled", ["while it ran", "while it was down"])
def test_after_kill_9_on_a_full_disk_partitions_are_read_and_topics_deleted(small_disk: Path, filled: str) -> None:
    settings = {"sbp.segment_bytes": "4MiB", "sbp.low_water_bytes": "1MiB"}
    with NodeProcess(small_disk / "data", settings=settings) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        for made in admin.create_topics(
            [NewTopic("t", 1, 1), NewTopic("many", 40, 1), NewTopic("gone", 3, 1)]
        ).values():
            made.result(20)
        produce(node, range(30))
        if filled == "while it ran":
            fill_up(small_disk)
            producer = Producer({"bootstrap.servers": node.bootstrap, "message.timeout.ms": 3000})
            for _ in range(3000):
                producer.produce("many", bytes(1000), partition=0)
            producer.flush(20)  # what the log had reserved is used up
        node.kill()
        fill_up(small_disk)
        node.start()
        fill_up(small_disk)  # whatever the start gave back
        assert consumed(node, 29) == {one: one for one in range(30)}
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g"})
        for number in range(1, 40):
            assert consumer.get_watermark_offsets(TopicPartition("many", number), timeout=20) == (0, 0)
        consumer.close()
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.delete_topics(["gone"])["gone"].result(20)
        (small_disk / "fill").unlink()
        produce(node, range(30, 40))
        assert consumed(node, 39) == {one: one for one in range(40)}
        assert "gone" not in admin.list_topics(timeout=20).topics
