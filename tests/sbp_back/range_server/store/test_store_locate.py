"""Where data lies and how much it is, told from the index alone, agrees with what a read finds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sbp_back.range_server.store import index
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.model import Entry
from tests.sbp_back.range_server.store.store_harness import Driver, make_entry


def expected(entries: list[Entry], offset: int, limit: int, max_bytes: int) -> tuple[int, int, int, int] | None:
    wanted = [e for e in entries if e.end_offset > offset and e.base_offset < limit]
    if not wanted or wanted[0].base_offset > offset or offset >= limit:
        return None
    size = count = 0
    end = wanted[0].base_offset
    for number, entry in enumerate(wanted):
        if number and size + len(entry.payload) > max_bytes:
            break
        size += len(entry.payload)
        count += 1
        end = entry.end_offset
    return wanted[0].base_offset, end, size, count


@pytest.mark.parametrize("rows_at_once", [1, 3, 1024])
async def test_a_place_is_what_a_read_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(index, "ROWS_AT_ONCE", rows_at_once)
    rng = random.Random(7)
    async with Driver(tmp_path) as driver:
        await driver.create(1, start=5)
        await driver.create(2)
        entries: list[Entry] = []
        base = 5
        for other in range(300):  # over several segments, between the entries of another range
            entry = make_entry(1, base, rng.randint(1, 4), rng.choice((1, 30, 700, 3000)))
            base = entry.end_offset
            entries.append(entry)
            await driver.append(entry, make_entry(2, other, 1, rng.randint(1, 900)))

        def check() -> None:
            for _ in range(400):
                offset, limit = rng.randint(0, base + 3), rng.randint(0, base + 3)
                most = rng.choice((0, 1, 500, 5000, 100_000, 1 << 30))
                got = driver.store.locate(1, 0, offset, limit, most)
                assert got == expected(entries, offset, min(limit, base), most), (offset, limit, most)

        check()
        driver.reopen()
        assert driver.store.locate(1, 0, 5, base, 1000) is None  # how long payloads are is not known yet
        await driver.read(1, 5, max_bytes=1)
        check()
        await driver.trim(1, base // 2)
        entries = [entry for entry in entries if entry.end_offset > base // 2]
        for offset in (0, base // 2 - 1):
            assert driver.store.locate(1, 0, offset, base, 1000) is None
        for offset in range(base // 2, base):
            assert driver.store.locate(1, 0, offset, base, 5000) == expected(entries, offset, base, 5000)
        assert driver.store.locate(3, 0, 0, base, 1000) is None


async def test_nothing_is_located_among_entries_of_various_makings(tmp_path: Path) -> None:
    async with Driver(tmp_path) as driver:
        await driver.create(1)
        await driver.append(*(make_entry(1, base) for base in range(5)))
        assert driver.store.locate(1, 0, 0, 5, 1000) == (0, 5, 500, 5)
        await driver.append(pack_entry(1, 0, 0, 5, 1, 0, bytes(100), confirmed=5))
        assert driver.store.locate(1, 0, 0, 6, 1000) is None
        driver.reopen()
        await driver.read(1)
        assert driver.store.locate(1, 0, 0, 6, 1000) is None
