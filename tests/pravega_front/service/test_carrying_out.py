"""What was decided is carried out as often as it takes, and costs others nothing while it waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridges.catalog.database.schema import MIGRATIONS as TABLES
from bridges.errors import LogError, LogUnavailable, StorageFull
from pravega_front.service.state import ConditionFailed, Merging, SegmentState
from pravega_front.service.transactions import carrying_out
from pravega_front.service.transactions.carrying_out import carry_out
from pravega_front.service.transactions.merging import Merges
from pravega_front.tables import MIGRATIONS
from pravega_front.wire.commands import NO_NUMBER
from pravega_front.wire.fields import AttributeUpdate
from tests.databases import database, on_each_engine


async def test_what_waits_for_its_next_time_holds_no_slot() -> None:
    slots = asyncio.Semaphore(1)
    failed = asyncio.Event()

    async def fails() -> int:
        failed.set()
        raise LogUnavailable("not now")

    async def works() -> int:
        return 7

    waiting = asyncio.create_task(carry_out(fails, slots, LogError, "work"))
    await failed.wait()
    assert await carry_out(works, slots, LogError, "work") == 7
    assert not waiting.done()
    waiting.cancel()


async def test_it_is_tried_until_it_does_not_fail_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying_out, "AGAIN_S", 0.001)
    tries = 0

    async def work() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise LogUnavailable("not now")
        if tries == 3:
            raise StorageFull("for good")
        return tries

    with pytest.raises(StorageFull):
        await carry_out(work, asyncio.Semaphore(1), LogUnavailable, "work")
    assert await carry_out(work, asyncio.Semaphore(1), LogUnavailable, "work") == 4


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[SegmentState]:
    db = database(tmp_path / "tables.db", (*TABLES, *MIGRATIONS), application_id=1)
    await db.open()
    yield SegmentState(db, 10)
    await db.close()


@on_each_engine
async def test_a_merge_is_decided_with_its_attributes_or_not_at_all(state: SegmentState) -> None:
    first, second = bytes(16), bytes(range(16))
    wanted = Merging("target", 0, 5, 100, -1)
    await state.update("target", 0, [AttributeUpdate(second, 1, 2, 0)])
    refused = [AttributeUpdate(first, 4, 1, NO_NUMBER), AttributeUpdate(second, 4, 3, 9)]
    with pytest.raises(ConditionFailed):
        await state.decide_merge("source", wanted, refused)
    assert await state.merges() == {}
    assert await state.attribute("target", 0, first) == NO_NUMBER
    updates = [AttributeUpdate(first, 4, 1, NO_NUMBER), AttributeUpdate(second, 4, 3, 2)]
    assert await state.decide_merge("source", wanted, updates) == wanted
    assert [await state.attribute("target", 0, one) for one in (first, second)] == [1, 3]
    other = Merging("target", 0, 5, 200, -1)
    assert await state.decide_merge("source", other, updates) == wanted, "it is decided already"
    await state.set_attempt("source", other)
    assert (await state.merges())["source"] == other
    # What cannot be carried out leaves attributes as they were, but for what others have changed since.
    await state.update("target", 0, [AttributeUpdate(second, 4, 8, 3)])
    await state.give_up_merge("source")
    assert [await state.attribute("target", 0, one) for one in (first, second)] == [NO_NUMBER, 8]
    assert await state.merges() == {}


class Source:
    """A small segment that is to be merged."""

    topic = "source"

    def __init__(self) -> None:
        self.loose_sealed = False

    async def quiet(self) -> None:
        pass

    async def start(self) -> int:
        return 0

    async def length(self) -> int:
        return 10


@pytest.mark.parametrize(
    ("error", "sealed"),
    [(LogUnavailable("no answer"), True), (asyncio.CancelledError(), True), (LogError("no"), False)],
)
async def test_a_source_that_was_perhaps_merged_takes_no_more(error: BaseException, sealed: bool) -> None:
    """The ledger takes a second merge for the first one, so it must be of the same bytes."""
    merges: Any = Merges.__new__(Merges)
    merges._changing, merges._few = {}, asyncio.Semaphore(1)

    async def append(*_: object) -> int:
        raise error

    merges._append_one = append
    source = Source()
    with pytest.raises(type(error)):
        await merges._begin("source", source, SimpleNamespace(topic="target"), ())
    assert source.loose_sealed is sealed
