"""Who hands groups over waits for what is being stored of them, not for what others store meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from bridges.errors import NotOwner
from kafka_front.service.groups.journal import GroupJournal
from kafka_front.wire.errors import ErrorCode, KafkaError


class Store:
    """Stores when the test says so."""

    def __init__(self) -> None:
        self.saved: list[str] = []
        self.turns = asyncio.Semaphore(0)
        self.refusal: Exception | None = None

    async def load_groups(self) -> dict[str, bytes]:
        return {}

    async def save_group(self, group: str, state: bytes | None) -> None:
        await self.turns.acquire()
        if self.refusal is not None:
            raise self.refusal
        self.saved.append(group)


async def test_groups_that_are_stored_without_end_hold_up_nobody() -> None:
    store = Store()
    journal = GroupJournal(store, lambda: 0, lambda: 0)
    count = 0

    def again(_: int, error: int) -> None:
        nonlocal count
        count += 1
        journal.put(f"other{count}", lambda _: b"", again)

    journal.put("first", lambda _: b"", again)
    await asyncio.sleep(0)
    journal.put("mine", lambda _: b"", lambda _, error: None)
    settled = asyncio.ensure_future(journal.await_writes())
    for _ in range(6):
        assert not settled.done() or "mine" in store.saved
        store.turns.release()
        await asyncio.sleep(0.01)
    await asyncio.wait_for(settled, 5)
    assert store.saved[0] == "first"
    assert "mine" in store.saved
    assert journal.writer is not None, "the others go on"
    journal.writer.cancel()


async def test_nothing_under_way_is_settled_at_once() -> None:
    journal = GroupJournal(Store(), lambda: 0, lambda: 0)
    await asyncio.wait_for(journal.await_writes(), 5)


async def test_a_coordinator_that_is_none_any_more_is_told_so() -> None:
    store = Store()
    store.refusal = NotOwner("slot 7", 2)
    store.turns.release()
    journal = GroupJournal(store, lambda: 0, lambda: 0)
    with pytest.raises(KafkaError) as refused:
        await journal.erase("g")
    assert refused.value.code == ErrorCode.NOT_COORDINATOR
