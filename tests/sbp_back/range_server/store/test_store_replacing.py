"""Entries take the place of others: at the same offsets, durably, and never the wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from anabranch_kit.errors import DiskFull, StoreError
from sbp_back.client.replacing import Substitute, substituted
from sbp_back.range_server.store.upkeep.maintenance import Maintenance
from sbp_back.wire.entry import pack_entry, parse_entry
from sbp_back.wire.model import Entry
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry


async def filled(driver: Driver, count: int = 10, size: int = 100, stream: int = 1) -> list[Entry]:
    await driver.create(stream, epoch=3)
    await driver.append(*(make_entry(stream, 2 * base, 2, size) for base in range(count)))
    return await driver.read_all(stream)


async def test_new_entries_are_there_in_the_place_of_the_old_ones_also_after_restarts(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        old = await filled(driver)
        new = [make_entry(1, 4, 6, 50, fill=1), make_entry(1, 10, 2, 3000, fill=1)]
        await driver.replace(3, old[2:6], new)
        await driver.append(make_entry(1, 20, 5))
        wanted = [*map(entry_bytes, [*old[:2], *new, *old[6:]]), entry_bytes(make_entry(1, 20, 5))]
        for _ in range(3):
            assert [entry_bytes(entry) for entry in await driver.read_all(1)] == wanted
            for inside in (4, 7, 9):
                assert (await driver.read(1, inside))[0].base_offset == 4
            driver.reopen()
        crashed = Driver(driver.crash_copy(tmp_path / "crashed"))
        assert [entry_bytes(entry) for entry in await crashed.read_all(1)] == wanted
        crashed.close()


async def test_the_last_entry_may_be_replaced_and_appends_go_on_behind_it(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        old = await filled(driver, 3)
        new = make_entry(1, 0, 6, 40, fill=9)
        await driver.replace(3, old, [new])
        await driver.append(make_entry(1, 6), make_entry(1, 7))
        await driver.replace(3, await driver.read(1, 6), [make_entry(1, 6, 2, 30, fill=8)])
        await driver.append(make_entry(1, 8))
        for _ in range(2):
            assert [(e.base_offset, e.end_offset) for e in await driver.read_all(1)] == [(0, 6), (6, 8), (8, 9)]
            driver.reopen()


@pytest.mark.parametrize(
    ("epoch", "old", "new", "why"),
    [
        (2, [0], [(0, 2)], "epoch 3"),
        (3, [0, 1], [(0, 2)], "not to end at 2"),
        (3, [0], [(0, 4)], "not to end at 4"),
        (3, [0, 2], [(0, 6)], "belongs elsewhere"),
        (3, [0, 1], [(0, 1), (2, 2)], "belongs elsewhere"),
        (3, [], [(0, 2)], "by nothing"),
        (3, [0], [], "by nothing"),
    ],
)
async def test_what_does_not_fit_is_refused(
    tmp_path: Path, epoch: int, old: list[int], new: list[tuple[int, int]], why: str
) -> None:
    async with Driver(tmp_path) as driver:
        there = await filled(driver)
        with pytest.raises(StoreError, match=why):
            await driver.replace(epoch, [there[n] for n in old], [make_entry(1, *place, 10, fill=1) for place in new])
        assert [*map(entry_bytes, await driver.read_all(1))] == [*map(entry_bytes, there)]


async def test_what_was_replaced_or_trimmed_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        old = await filled(driver)
        await driver.replace(3, old[4:5], [make_entry(1, 8, 2, 10, fill=1)])
        with pytest.raises(StoreError, match="now holds another entry"):
            await driver.replace(3, old[3:6], [make_entry(1, 6, 6, 10, fill=2)])
        await driver.trim(1, 4)
        with pytest.raises(StoreError, match="nothing at offset 0"):
            await driver.replace(3, old[:2], [make_entry(1, 0, 4, 10, fill=3)])
        with pytest.raises(StoreError, match="does not exist"):
            await driver.replace(3, [make_entry(2, 0)], [make_entry(2, 0, fill=1)])


async def test_a_full_disk_refuses_replacements(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        old = await filled(driver)
        driver.store.writer.refuse_appends = DiskFull("full")
        with pytest.raises(DiskFull):
            await driver.replace(3, old[:1], [make_entry(1, 0, 2, 10, fill=1)])


async def test_the_space_of_what_was_replaced_comes_back(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        for base in range(200):
            await driver.append(make_entry(1, base, size=4000))
        before = len(driver.segments())
        at = 0
        while at < 200:
            old = await driver.read(1, at, max_bytes=16 * KIB)
            at = old[-1].end_offset
            await driver.replace(0, old, [make_entry(1, old[0].base_offset, at - old[0].base_offset, 50, fill=1)])
        await driver.until(lambda: len(driver.segments()) <= 3)
        assert before > 10
        for _ in range(2):
            assert (await driver.read_all(1))[-1].end_offset == 200
            driver.reopen()


async def _replaced_while_evacuated(path: Path) -> tuple[bytes, bytes]:
    """An entry is replaced while a copy of it, read before, is on its way: (what is there then, what was put there)."""
    async with Driver(path) as driver:
        await driver.create(1)
        await driver.create(2)
        for base in range(60):
            await driver.append(make_entry(1, base, size=4000), make_entry(2, base, size=100))
        held: list[Callable[[], None]] = []
        maintenance: Any = driver.store.maintenance
        background = maintenance.background

        def hold(work: Callable[[], Any], then: Callable[[Any], None]) -> None:
            # What was read is not written before it is let go.
            evacuating = maintenance.evacuating is not None
            background(work, (lambda result: held.append(lambda: then(result))) if evacuating else then)

        maintenance.background = hold
        await driver.trim(1, 60)
        await driver.until(lambda: bool(held))
        maintenance.background = background
        old = (await driver.read(2, 0))[:1]
        new = make_entry(2, 0, size=77, fill=5)
        done = driver.replace(0, old, [new])
        for _ in range(50):
            await asyncio.sleep(0.001)
        for release in held:
            release()
        await done
        await driver.until(lambda: maintenance.evacuating is None)
        driver.reopen()
        return entry_bytes((await driver.read(2, 0))[0]), entry_bytes(new)


async def test_an_evacuation_under_way_does_not_bring_back_what_is_replaced(tmp_path: Path) -> None:
    found, wanted = await _replaced_while_evacuated(tmp_path)
    assert found == wanted


async def test_without_turns_an_evacuation_would_bring_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(Maintenance, "_moving", never, raising=False)
    found, wanted = await _replaced_while_evacuated(tmp_path)
    assert found != wanted


async def test_bytes_between_offsets_are_those_of_the_payloads(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        for base in range(100):
            await driver.append(make_entry(1, base, size=1000 + base))
        old = await driver.read(1, 10)
        await driver.replace(0, old[:10], [make_entry(1, 10, 10, 60, fill=1)])
        for _ in range(2):
            entries = await driver.read_all(1)

            def payload(first: int, end: int, entries: list[Entry] = entries) -> int:
                return sum(len(entry.payload) for entry in entries if first <= entry.base_offset < end)

            bounds = [0, 5, 10, 15, 40, 41, 90, 100, 1 << 60]
            wanted = [payload(*pair) for pair in pairwise(bounds)]
            assert driver.store.bytes_between(1, bounds) == wanted
            driver.reopen()
            await driver.read(1, 0)
        assert driver.store.bytes_between(7, [0, 1]) == [0]


def test_substitutes_tell_what_was_confirmed_and_what_stays_is_what_was_read() -> None:
    old = [pack_entry(1, 0, 1, base, 1, 5 + base, b"x", confirmed) for base, confirmed in ((0, 0), (1, 7), (2, 2))]
    foreign = parse_entry(memoryview(entry_bytes(old[2])))
    new = substituted(old, [Substitute(0, 2, 0x41, 6, b"yy"), foreign])
    assert (new[0].base_offset, new[0].end_offset, new[0].flags, new[0].timestamp, new[0].confirmed) == (
        0,
        2,
        0x41,
        6,
        7,
    )
    assert new[1] is foreign
