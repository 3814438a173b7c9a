"""Callers that go away between what becomes durable and what memory knows of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.database.schema import MIGRATIONS
from bridges.log.damage.skipping import skip
from tests.bridges.log.log_lab import World, batch
from tests.databases import database
from ydb_topic_front.service.topics.directories import Directories


async def test_work_is_carried_to_its_end_though_its_caller_went_away() -> None:
    tasks, go_on, done = TaskSet(), asyncio.Event(), []

    async def work() -> None:
        await go_on.wait()
        done.append(1)
        raise ValueError("nobody hears of it")

    caller = asyncio.ensure_future(tasks.finish(work()))
    await asyncio.sleep(0)
    caller.cancel()
    closing = asyncio.ensure_future(tasks.drain())
    await asyncio.sleep(0)
    assert not closing.done(), "it waits for what is under way"
    go_on.set()
    await closing
    assert done == [1]
    with pytest.raises(asyncio.CancelledError):
        await caller
    with pytest.raises(ValueError, match="nobody hears"):
        await tasks.finish(work())


async def test_a_task_is_held_until_it_ends_and_ends_with_its_owner() -> None:
    tasks, stopped = TaskSet(), []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()  # nothing but the set holds this task
        finally:
            stopped.append(1)

    tasks.spawn(work(), "waits")
    await asyncio.sleep(0)
    gc.collect()
    assert len(tasks) == 1
    await tasks.close()
    await asyncio.sleep(0)
    assert (len(tasks), stopped) == (0, [1])


async def test_a_task_that_closes_its_own_set_is_cancelled_with_the_others() -> None:
    tasks = TaskSet()
    others = tasks.spawn(asyncio.sleep(1000))  # until it is cancelled
    closer = tasks.spawn(tasks.close())
    assert await asyncio.wait({others, closer}, timeout=60) == ({others, closer}, set())
    assert others.cancelled()
    assert closer.cancelled()


async def cancelled_once_durable(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Awaitable[object]]
) -> None:
    """Cancel ``call`` where what it has ``owner`` do is durable, and it has not heard of that."""
    work, durable, go_on = getattr(owner, name), asyncio.Event(), asyncio.Event()

    async def held(*args: object) -> None:
        await work(*args)
        durable.set()
        await go_on.wait()

    with monkeypatch.context() as patched:
        patched.setattr(type(owner), name, lambda _, *args: held(*args))
        caller = asyncio.ensure_future(call())
        await durable.wait()
        caller.cancel()
        with suppress(asyncio.CancelledError):
            await caller
        go_on.set()


async def test_a_partition_begins_where_it_was_trimmed_though_nobody_waited_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log = await world.boot()
    log.append(batch(5), world.done)
    world.writer.acknowledge(1)
    await cancelled_once_durable(world.logs.trims, "trim", monkeypatch, lambda: log.trim(3))
    await world.logs.finishing.drain()
    assert log.log_start_offset == 3


async def test_a_skipped_batch_is_passed_over_though_nobody_waited_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    log = await world.boot()
    for count in (3, 4, 5):
        log.append(batch(count), world.done)
        world.writer.acknowledge(1)
    await cancelled_once_durable(
        world.logs.stores.skips, "add", monkeypatch, lambda: skip(world.logs, log, 3, force=True)
    )
    await world.logs.finishing.drain()
    assert [one.base_offset for one in await log.read_batches(3, 1)] == [7]


async def test_a_directory_is_known_as_the_database_has_it_though_nobody_waited_for_that(tmp_path: Path) -> None:
    table = "CREATE TABLE front_ydb_directories (path TEXT PRIMARY KEY, created_ms INTEGER NOT NULL)"
    db = database(tmp_path / "node.db", [*MIGRATIONS, lambda connection: connection.execute(table)])
    await db.open()
    catalog = SimpleNamespace(topics={})
    directories = Directories(catalog, db)  # type: ignore[arg-type]
    await directories.make("gone")
    callers = [asyncio.ensure_future(directories.make("kept")), asyncio.ensure_future(directories.remove("gone"))]
    await asyncio.sleep(0)  # their closures are queued
    for caller in callers:
        caller.cancel()
    await db.run(lambda connection: None)
    again = Directories(catalog, db)  # type: ignore[arg-type]
    await again.load()
    assert [await one.has(path) for one in (directories, again) for path in ("kept", "gone")] == [True, False] * 2
    await db.close()
