"""The segment made ready ahead of the log, met again after a crash."""

from __future__ import annotations

from pathlib import Path

from tests.kit.waiting import until
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, make_entry


async def test_a_spare_segment_found_at_start_is_empty_whatever_its_size(tmp_path: Path) -> None:
    """The checkpoint written when the log rolls into it must not point behind what was really written there."""
    async with Driver(tmp_path / "first") as driver:
        await driver.create(1)
        for base in range(2):
            await driver.append(make_entry(1, base, size=20 * KIB))
        # The spare is made by a thread that tells nobody.
        await until(lambda: len(list((tmp_path / "first" / "wal").glob("*.seg"))) >= 2)
        crashed = driver.crash_copy(tmp_path / "crashed")
    copies = []
    async with Driver(crashed) as driver:
        for base in range(2, 9):  # rolls twice on the way
            await driver.append(make_entry(1, base, size=20 * KIB))
            copies.append(driver.crash_copy(tmp_path / f"after-{base}"))
    for written, copy in enumerate(copies, start=3):
        async with Driver(copy) as driver:
            assert [entry.base_offset for entry in await driver.read_all(1)] == list(range(written))
