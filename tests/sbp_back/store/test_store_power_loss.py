"""Loss of power at any moment: what was promised is there, and what was never written is not.

``ANBR_POWER_SEED`` and ``ANBR_POWER_IMAGES`` choose other runs than the usual one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from tests.sbp_back.store.power_loss import Disk, Image, RecordingFiles, Step
from tests.sbp_back.store.power_rig import Life, Violation, check, record

SEED = int(os.environ.get("ANBR_POWER_SEED", "1"))
IMAGES = int(os.environ.get("ANBR_POWER_IMAGES", "750"))

PLANS: dict[str, list[Life]] = {
    "os": [("os", "uniform", 12), ("os", "kill", 20), ("os", "stop", 20), ("os", "kill", 20)],
    "both": [
        ("os", "uniform", 10),
        ("fsync", "eio", 10),
        ("os", "stop", 6),
        ("os", "uniform", 10),
        ("fsync", "killed", 5),
        ("fsync", "eio", 5),
        ("os", "kill", 10),
    ],
    "fsync": [
        ("fsync", "stop", 25),
        ("fsync", "killed", 5),
        ("fsync", "eio", 5),
        ("fsync", "kill", 15),
        ("fsync", "eio", 5),
        ("fsync", "uniform", 5),
        ("fsync", "killed", 5),
    ],
}

NEEDLESS = {
    "file flush in write_file_durably.idx": "an index file that is not whole is made again; the flush spares that scan",
    "directory flush in write_file_durably.idx": "the same for one that is not there",
    "file flush in Preparer._zero_ahead": "zeros count as much as nothing; flushed ahead, they do not delay the writer",
}
"""Flushes that no promise rests on, and what they are good for."""


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory where that is possible: nothing here needs a disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="anbr-power-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


async def recorded(root: Path, lives: list[Life], name: str = "record") -> list[Step]:
    (root / name).mkdir()
    files = RecordingFiles(root / name)
    await record(files, Random(f"{SEED} {name}"), lives)
    return files.steps


def images(steps: list[Step], broken: frozenset[str], rng: Random, number: int) -> Iterator[tuple[int, str, Image]]:
    """Distinct images of moments that are spread over the record, a few each: (steps done, how, image)."""
    changes = [count for count, step in enumerate(steps, 1) if step[0] != "mark"]
    known: set[int] = set()
    while len(known) < number:
        before = len(known)
        disk = Disk(broken)
        done = 0
        for moment in sorted(rng.choice(changes) for _ in range((number - before + 2) // 3)):
            for step in steps[done:moment]:
                disk.apply(step)
            done = moment
            new = 0
            for how, image in disk.images(rng, 8):
                key = hash(tuple(sorted(image.items())))
                if key not in known and new < 3 and len(known) < number:
                    known.add(key)
                    new += 1
                    yield moment, how, image
        assert len(known) > before, "there are not so many images"


async def first_violation(
    steps: list[Step], broken: frozenset[str], root: Path, rng: Random, number: int
) -> tuple[int, str | None]:
    """Check images until one of them breaks a promise: how many, and what was wrong."""
    count = 0
    for moment, how, image in images(steps, broken, rng, number):
        count += 1
        try:
            await check(steps[:moment], image, broken, root / "image", rng)
        except Violation as violation:
            return count, f"power lost after step {moment} of {len(steps)}, {how}: {violation}"
        finally:
            shutil.rmtree(root / "image", ignore_errors=True)
    return count, None


@pytest.mark.parametrize("plan", PLANS)
async def test_loss_of_power_at_any_moment_breaks_no_promise(root: Path, plan: str) -> None:
    print(f"ANBR_POWER_SEED={SEED}")
    steps = await recorded(root, PLANS[plan], plan)
    count, violation = await first_violation(
        steps, frozenset(), root, Random(f"{SEED} {plan} images"), IMAGES // len(PLANS)
    )
    assert violation is None, f"ANBR_POWER_SEED={SEED}: {violation}"
    assert count == IMAGES // len(PLANS)


async def test_the_same_seed_makes_the_same_record(root: Path) -> None:
    def outline(steps: list[Step]) -> list[Step]:
        return [step[:3] for step in steps if step[0] != "mark"]

    first = outline(await recorded(root, PLANS["both"]))
    shutil.rmtree(root / "record")
    assert outline(await recorded(root, PLANS["both"])) == first


@pytest.mark.timeout(180)
async def test_no_flush_can_be_left_out(root: Path) -> None:
    """With any one of them a lie, a loss of power breaks a promise; or it is known what else it is good for."""
    print(f"ANBR_POWER_SEED={SEED}")
    records = {plan: await recorded(root, lives, plan) for plan, lives in PLANS.items()}
    sites = {
        str(step[-1]) for steps in records.values() for step in steps if step[0] in ("flush", "sync", "sync_directory")
    }
    assert NEEDLESS.keys() <= sites
    unnoticed = []
    for site in sorted(sites - NEEDLESS.keys()):
        for plan, steps in records.items():
            rng = Random(f"{SEED} {site} {plan}")
            _count, violation = await first_violation(steps, frozenset([site]), root, rng, 150)
            if violation is not None:
                break
        else:
            unnoticed.append(site)
    assert not unnoticed, f"ANBR_POWER_SEED={SEED}: {unnoticed}"


async def test_a_flush_that_failed_is_not_believed_by_the_next_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has dropped the pages, so to flush them again is not enough: they have to be written again."""

    def only_flushed(_files: object, _fd: int, _data: object, _offset: int) -> None:
        pass

    monkeypatch.setattr("sbp_back.range_server.store.recovery.write_all", only_flushed)
    steps = await recorded(root, [("fsync", "eio", 4)] * 5)
    _count, violation = await first_violation(steps, frozenset(), root, Random(f"{SEED} images"), 300)
    assert violation is not None
