"""Seals are carried out beside one another: one that waits, or fails, keeps no other from its turn."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from anabranch_kit.run.barrier import Barrier
from bridges.catalog.database.schema import APPLICATION_ID, MIGRATIONS
from bridges.catalog.topics import seals as seals_module
from bridges.catalog.topics.lineage import WHOLE, PartitionInfo
from bridges.catalog.topics.seals import Seals
from bridges.catalog.topics.topic import Topic
from bridges.errors import LogUnavailable, NotOwner
from tests.databases import database


@pytest.mark.parametrize("patience", [0.0, 60.0])
async def test_partitions_are_sealed_while_others_wait_for_a_server_that_is_gone(
    tmp_path: Path, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are sealed at the same time."""
    monkeypatch.setattr(seals_module, "PATIENCE_S", patience)
    monkeypatch.setattr(seals_module, "RETRY_FIRST_S", 0.001)
    db = database(tmp_path / "db", MIGRATIONS, application_id=APPLICATION_ID)
    await db.open()
    topic = Topic("t", uuid.uuid4(), [PartitionInfo(number, number, WHOLE) for number in range(200)], {}, 0)
    dead = set(range(100 if patience == 0.0 else 10))
    back = asyncio.Event()
    all_others, everything = asyncio.Event(), asyncio.Event()
    sealed: list[int] = []

    def confirmed(topic: Topic, number: int, end: int) -> None:
        sealed.append(number)
        if len(sealed) == 200 - len(dead):
            all_others.set()
        if len(sealed) == 200:
            everything.set()

    async def seal(topic: str, number: int) -> int:
        if number in dead and not back.is_set():
            await back.wait()
            raise LogUnavailable("the server was gone")
        return number

    seals = Seals(db, Barrier(), confirmed)
    for partition in topic.partitions:
        seals.want(topic, partition)
    seals.start(seal)
    async with asyncio.timeout(60):
        await all_others.wait()
        assert len(seals) == len(dead)
        assert dead.isdisjoint(sealed)
        back.set()
        await everything.wait()
    assert sorted(sealed) == list(range(200))
    await seals.close()
    await db.close()


async def test_a_seal_that_fails_when_a_retry_was_asked_for_is_tried_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This node became the owner while it was refused for not being it: nobody asks a second time."""
    monkeypatch.setattr(seals_module, "RETRY_FIRST_S", 3600.0)
    db = database(tmp_path / "db", MIGRATIONS, application_id=APPLICATION_ID)
    await db.open()
    confirmed = asyncio.Event()
    asked = 0

    async def seal(topic: str, number: int) -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            seals.retry()
            raise NotOwner("t-0", 2)
        return number

    seals = Seals(db, Barrier(), lambda *_: confirmed.set())
    topic = Topic("t", uuid.uuid4(), [PartitionInfo(0, 0, WHOLE)], {}, 0)
    seals.want(topic, topic.partitions[0])
    seals.start(seal)
    async with asyncio.timeout(60):
        await confirmed.wait()
    await seals.close()
    await db.close()
