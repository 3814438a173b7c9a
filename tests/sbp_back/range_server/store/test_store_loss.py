"""An operator is told what accepting damage would lose, and only that is lost."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from sbp_back.errors import StoreCorrupt, StoreLocked
from sbp_back.range_server.store import Store
from sbp_back.range_server.store.format import BLOCK
from sbp_back.range_server.store.loss import accept, look
from sbp_back.range_server.store.recovery import LOSSES
from tests.sbp_back.range_server.store.store_harness import Driver, make_entry, small_options


async def full_store(tmp_path: Path, name: str = "full") -> Path:
    async with Driver(tmp_path / "live", small_options(evacuate_below=0)) as driver:
        await driver.create(1)
        for base in range(60):
            await asyncio.gather(driver.append(make_entry(1, base, size=4000)))
        return driver.crash_copy(tmp_path / name)


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def damage_a_group(store: Path) -> None:
    """Flip a byte behind the checkpoints, which are gone, with undamaged groups behind it."""
    for path in (store / "ckpt").iterdir():
        path.unlink()
    segment = sorted((store / "wal").glob("*.seg"))[1]
    data = bytearray(segment.read_bytes())
    data[BLOCK + 60] ^= 0xFF
    segment.write_bytes(data)


@pytest.mark.parametrize("what", ["group", "missing", "header"])
async def test_what_accepting_would_lose_is_told_before_and_nothing_is_changed(tmp_path: Path, what: str) -> None:
    store = await full_store(tmp_path)
    segments = sorted((store / "wal").glob("*.seg"))
    if what == "group":
        damage_a_group(store)
    elif what == "missing":
        segments[1].unlink()
    else:
        with open(segments[1], "r+b") as file:
            file.write(b"????")
    with pytest.raises(StoreCorrupt):
        Store.open(store, small_options())
    before = content(store)
    loss = look(store, small_options())
    assert content(store) == before, "looking changes nothing"
    assert loss.damage
    messages = accept(store, small_options(), loss)
    assert [text for text in messages if text.startswith("data loss accepted")] == [
        f"data loss accepted: {text}" for text in loss.damage if "are gone;" not in text
    ], "what was told is what is done; the gaps are known by then"
    assert {path.stem for path in (store / "wal").glob("*.damaged")} == set(loss.set_aside)
    told = json.loads((store / LOSSES).read_text())
    assert (told["lost"], told["gaps"]) == (loss.sentences(), [list(gap) for gap in loss.gaps])
    for _ in range(2):
        opened = Store.open(store, small_options())
        assert [(1, 0, *gap) for gap in opened.ranges[1, 0].gaps()] == loss.gaps
        opened.close()
    assert look(store, small_options()).damage == [], "what was given up is no damage any more"


async def test_what_was_given_up_hides_no_other_damage(tmp_path: Path) -> None:
    store = await full_store(tmp_path)
    segments = sorted((store / "wal").glob("*.seg"))
    segments[1].unlink()
    accept(store, small_options(), look(store, small_options()))
    segments[3].unlink()
    with pytest.raises(StoreCorrupt, match=r"acknowledged data is damaged: offsets .* are gone"):
        Store.open(store, small_options())


async def test_a_store_without_damage_has_nothing_to_accept(tmp_path: Path) -> None:
    store = await full_store(tmp_path)
    before = content(store)
    assert look(store, small_options()).sentences() == []
    assert content(store) == before


async def test_a_store_in_use_is_not_looked_at(tmp_path: Path) -> None:
    store = await full_store(tmp_path)
    shutil.rmtree(tmp_path / "live")
    opened = Store.open(store, small_options())
    try:
        with pytest.raises(StoreLocked):
            look(store, small_options())
    finally:
        opened.close()
