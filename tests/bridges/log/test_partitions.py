"""Partitions of any node: what a front gets of one stays usable when the owner changes, and ends with the topic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridges import front_kit
from bridges.errors import LogDeleted, NotOwner
from bridges.formats.records import Record, StoredBatch
from bridges.front_kit import KitNode
from bridges.log.remote.partitions import Partition
from tests.kit.waiting import until


async def found(kit: KitNode, topic: str, partition: int) -> Partition:
    one = await kit.node.floors.log.partitions.find(topic, partition)
    assert one is not None
    return one


async def read(partition: Partition, offset: int) -> list[tuple[int, int]]:
    return [(one.base_offset, one.end_offset) for one in await partition.read_committed(offset, 1 << 20)]


async def test_a_partition_is_read_and_awaited_while_its_owner_changes(tmp_path: Path) -> None:
    async with front_kit.cluster(tmp_path) as (here, there):
        await here.make("t", 1)
        owner, other = (here, there) if await here.owned("t") else (there, here)
        partitions = [await found(kit, "t", 0) for kit in (owner, other)]
        await here.write("t", 0, Record(b"k", b"v", timestamp=5))
        assert [await read(one, 0) for one in partitions] == [[(0, 1)], [(0, 1)]]
        assert [(await one.state()).high_watermark for one in partitions] == [1, 1]
        waits = [asyncio.ensure_future(one.await_record(1)) for one in partitions]
        cluster = owner.node.floors.place.cluster
        await cluster.move([cluster.slot_of("t", 0)], other.node.floors.place.cluster.node_id)
        await until(lambda: other.node.logs.owns("t", 0))
        assert not any(one.done() for one in waits)
        await owner.write("t", 0, Record(b"k", b"w", timestamp=6))
        await asyncio.wait_for(asyncio.gather(*waits), 60)
        assert [await read(one, 1) for one in partitions] == [[(1, 2)], [(1, 2)]]


async def test_a_partition_of_a_deleted_topic_is_not_the_one_of_a_topic_made_again(tmp_path: Path) -> None:
    async with front_kit.cluster(tmp_path) as kits:
        await kits[0].make("t", 1)
        await kits[0].write("t", 0, Record(b"k", b"v", timestamp=5))
        before = [await found(kit, "t", 0) for kit in kits]
        wait = asyncio.ensure_future(before[0].await_record(1))
        await kits[0].node.catalog.delete_topic("t")
        with pytest.raises(LogDeleted):
            await wait
        await kits[0].make("t", 1)
        assert await read(await found(kits[1], "t", 0), 0) == []
        for one in before:
            with pytest.raises(LogDeleted):
                await one.read_committed(0, 1000)


async def test_a_read_waits_for_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with front_kit.serving(tmp_path) as kit:
        await kit.make("t", 1)
        await kit.write("t", 0, Record(b"k", b"v", timestamp=5))
        partition = await found(kit, "t", 0)
        log = kit.node.logs.get("t", 0)
        assert log is not None
        refusals = [NotOwner("t-0", -1), NotOwner("t-0", 1)]
        read_here = type(log).read_committed

        async def refuse(self: object, offset: int, max_bytes: int) -> list[StoredBatch]:
            if refusals:
                raise refusals.pop()
            return await read_here(log, offset, max_bytes)

        monkeypatch.setattr(type(log), "read_committed", refuse)
        assert await read(partition, 0) == [(0, 1)]
        assert not refusals


async def test_a_partition_that_does_not_exist_is_none(tmp_path: Path) -> None:
    async with front_kit.serving(tmp_path) as kit:
        await kit.make("t", 1)
        assert await kit.node.floors.log.partitions.find("t", 1) is None
        assert await kit.node.floors.log.partitions.find("u", 0) is None
