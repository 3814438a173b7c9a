"""On a disk without a free byte topics can still be deleted, and so space be made."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridges.errors import StorageFull
from bridges.node.assembly import Node
from bridges.node.config import load
from sbp_back.errors import StoreError
from sbp_back.placement_driver.state import StateError
from tests.databases import database, pd_state

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
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(path: Path) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(fd, bytes(4096))
    finally:
        os.close(fd)


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
    with pytest.raises(OSError, match="No space left"):
        fill(small_disk / "fill")
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
    with pytest.raises(OSError, match="No space left"):
        fill(small_disk / "fill")
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
    with pytest.raises(OSError, match="No space left"):
        fill(small_disk / "fill")
    with pytest.raises(StoreError, match=r"cannot open .*node\.db: its disk is full"):
        await started(small_disk)
    with pytest.raises(StateError, match=r"cannot open .*pd\.sqlite: its disk is full"):
        pd_state(data / "sbp" / "pd.sqlite", asyncio.get_running_loop())
