"""An operator is told what accepting damage would lose, and only that is lost."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreCorrupt, StoreLocked
from sbp_back.range_server.loss import accept, find_loss
from sbp_back.range_server.object_log.range_objects.moved import moved_rows
from sbp_back.range_server.store import Store
from sbp_back.range_server.store.layout.format import BLOCK
from sbp_back.range_server.store.opening.recovery import LOSSES
from tests.kit.waiting import until
from tests.sbp_back.range_server.object_log.object_harness import (
    contents,
    crash_copy,
    is_moved,
    mixed,
    moving,
    the_mover_stopped,
    wanted,
)
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options


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
    loss = find_loss(store, small_options())
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
    assert find_loss(store, small_options()).damage == [], "what was given up is no damage any more"


async def _damaged_behind_what_moved(path: Path) -> Path:
    """A store whose old data is in objects, and of which a group is damaged that was written just before it moved."""
    options = moving(path / "bucket", local_bytes=None, evacuate_below=0.0)
    driver = Driver(path / "live", options)
    await mixed(driver, 60, size=4000)
    await until(lambda: driver.store.log.checkpoint_lsn > driver.store.log.active.base)
    # Segments go behind a checkpoint only, which none of what follows is in.
    driver.store.maintenance._delete_dead = lambda: None  # type: ignore[attr-defined]
    at, name = driver.store.log.active.used, driver.store.log.active.path.name
    await mixed(driver, 6, size=100)
    options.local_bytes = 100 * KIB
    await until(lambda: sum(bool(one.runs) for one in driver.store.log.segments) <= 4 and is_moved(driver, 100)())
    options.local_bytes = None
    await mixed(driver, 3, size=100)
    with the_mover_stopped(driver):
        store = crash_copy(driver, path / "full")
    driver.close()
    segment = store / "wal" / name
    data = bytearray(segment.read_bytes())
    groups = [place for place in range(at, len(data), BLOCK) if data[place : place + 8] == b"ANBRGRP\1"]
    data[groups[1] + 60] ^= 0xFF
    segment.write_bytes(data)
    return store


async def _accepted_with_what_moved(path: Path) -> tuple[bytes, bytes]:
    """An entry that was moved is replaced behind the place where the log was cut: (what is read, what should be)."""
    store = await _damaged_behind_what_moved(path)
    options = moving(path / "bucket", local_bytes=None)
    with pytest.raises(StoreCorrupt):
        Driver(store, options)
    before = content(store)
    found = find_loss(store, small_options())
    assert content(store) == before, "looking changes nothing"
    assert found.damage
    assert found.gaps == [], "what was moved is no gap"
    assert found.end < max(one.lsn for one in moved_rows(store / "moved"))
    messages = accept(store, small_options(), found)
    assert [text for text in messages if text.startswith("data loss accepted")] == [
        f"data loss accepted: {text}" for text in found.damage
    ]
    assert json.loads((store / LOSSES).read_text())["lost"] == found.sentences()
    driver = Driver(store, options)
    for stream in (1, 2):
        kept = driver.store.ranges[stream, 0].next_offset
        assert 60 <= kept < 66
        assert contents(await driver.read_all(stream))[:60] == wanted(stream, 0, 60, 4000)
    new = make_entry(1, 2, size=77, fill=5)
    await driver.replace(0, (await driver.read(1, 2))[:1], [new])
    driver.reopen()
    return contents((await driver.read(1, 2))[:1])[0], entry_bytes(new)


async def test_what_was_moved_is_not_lost_with_the_end_of_the_log(tmp_path: Path) -> None:
    found, right = await _accepted_with_what_moved(tmp_path)
    assert found == right


async def test_without_a_new_place_in_the_order_what_was_moved_would_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbp_back.range_server.loss.moved_before", lambda *_: None)
    found, right = await _accepted_with_what_moved(tmp_path)
    assert found != right


@pytest.mark.parametrize("what", ["names", "rows"])
async def test_lists_that_only_the_bucket_has_are_fetched_by_a_start(tmp_path: Path, what: str) -> None:
    store = await _damaged_behind_what_moved(tmp_path)
    path = store / "moved" / "names" if what == "names" else next((store / "moved").glob("*.idx"))
    path.write_bytes(b"?")
    with pytest.raises(StoreCorrupt, match=r"a start with sbp\.objects fetches it"):
        find_loss(store, small_options())
    with pytest.raises(StoreCorrupt, match="acknowledged data is damaged"):
        Driver(store, moving(tmp_path / "bucket"))
    assert find_loss(store, small_options()).damage


async def test_what_was_given_up_hides_no_other_damage(tmp_path: Path) -> None:
    store = await full_store(tmp_path)
    segments = sorted((store / "wal").glob("*.seg"))
    segments[1].unlink()
    accept(store, small_options(), find_loss(store, small_options()))
    segments[3].unlink()
    with pytest.raises(StoreCorrupt, match=r"acknowledged data is damaged: offsets .* are gone"):
        Store.open(store, small_options())


async def test_a_store_without_damage_has_nothing_to_accept(tmp_path: Path) -> None:
    store = await full_store(tmp_path)
    before = content(store)
    assert find_loss(store, small_options()).sentences() == []
    assert content(store) == before


async def test_a_store_in_use_is_not_looked_at(tmp_path: Path) -> None:
    store = await full_store(tmp_path)
    shutil.rmtree(tmp_path / "live")
    opened = Store.open(store, small_options())
    try:
        with pytest.raises(StoreLocked):
            find_loss(store, small_options())
    finally:
        opened.close()
