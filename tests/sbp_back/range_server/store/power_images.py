"""Images of a disk after a loss of power, spread over the record of a store's lives, and the first that breaks a
promise.

``ANBR_POWER_SEED`` and ``ANBR_POWER_IMAGES`` choose other runs than the usual one.
"""

from __future__ import annotations

import inspect
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any

import pytest

from tests.left_out import replaced
from tests.sbp_back.range_server.store.power_loss import Disk, Image, RecordingCalls, Step
from tests.sbp_back.range_server.store.power_rig import Life, Rig, Violation, check, record

SEED = int(os.environ.get("ANBR_POWER_SEED", "1"))
IMAGES = int(os.environ.get("ANBR_POWER_IMAGES", "750"))

_MOMENTS = 100
"""Least number that are looked at before there can be said to be no further images: the last few are rare."""


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory where that is possible: nothing here needs a disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="anbr-power-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


async def recorded(
    root: Path, lives: list[Life], name: str = "record", dsync: bool = True, make: type[Rig] = Rig
) -> list[Step]:
    (root / name).mkdir()
    recording = RecordingCalls(root / name)
    recording.dsync = dsync
    await record(recording, Random(f"{SEED} {name}"), lives, make)
    return recording.steps


def images(
    steps: list[Step], broken: frozenset[str], rng: Random, number: int, make: type[Rig]
) -> Iterator[tuple[int, str, Image]]:
    """Distinct images of moments that are spread over the record, a few each: (steps done, how, image)."""
    changes = [count for count, step in enumerate(steps, 1) if step[0] != "mark"]
    # A lie shows soon after it was told, or much later.
    looked_at = [count for count, step in enumerate(steps, 1) if step[-1] in broken or make.matters(step)]
    soon = [min(count + after, len(steps)) for count in looked_at for after in range(9)]
    known: set[int] = set()
    while len(known) < number:
        before = len(known)
        disk = Disk(broken)
        done = 0
        for moment in sorted(
            rng.choice(rng.choice((changes, soon or changes))) for _ in range(max(_MOMENTS, (number - before + 2) // 3))
        ):
            for step in steps[done:moment]:
                disk.apply(step)
            done = moment
            new = 0
            elsewhere = sum(step[0] in ("put", "remove") for step in steps[:moment])
            for how, image in disk.images(rng, 8):
                key = hash((elsewhere, *sorted(image.items())))
                if key not in known and new < 3 and len(known) < number:
                    known.add(key)
                    new += 1
                    yield moment, how, image
        assert len(known) > before, "there are not so many images"


def each_image(steps: list[Step], rng: Random, make: type[Rig]) -> Iterator[tuple[int, str, Image]]:
    """An image before each step that matters, and one behind it: as :func:`images`."""
    disk = Disk()
    for done, step in enumerate(steps):
        wanted = make.matters(step) or (done > 0 and make.matters(steps[done - 1]))
        if wanted:
            yield done, *rng.choice(list(disk.images(rng, 6)))
        disk.apply(step)


async def first_violation(
    steps: list[Step], broken: frozenset[str], root: Path, rng: Random, number: int, make: type[Rig] = Rig
) -> tuple[int, str | None]:
    """Check images until one of them breaks a promise: how many, and what was wrong. ``number`` 0: of each step that
    matters."""
    count = 0
    for moment, how, image in images(steps, broken, rng, number, make) if number else each_image(steps, rng, make):
        count += 1
        try:
            await check(steps[:moment], image, broken, root / "image", rng, make)
        except Violation as violation:
            return count, f"power lost after step {moment} of {len(steps)}, {how}: {violation}"
        finally:
            shutil.rmtree(root / "image", ignore_errors=True)
    return count, None


def change(monkeypatch: pytest.MonkeyPatch, function: Callable[..., object], old: str, new: str) -> None:
    """Put ``new`` in the place of a part of a function, as :mod:`tests.left_out` does."""
    assert isinstance(function, FunctionType)
    text = textwrap.dedent(inspect.getsource(function))
    made: dict[str, Any] = {}
    tree = replaced("from __future__ import annotations\n" + text, old, new)
    exec(compile(tree, function.__module__, "exec"), function.__globals__, made)
    changed = made[function.__name__]
    code = (changed.fget if isinstance(changed, property) else changed).__code__
    monkeypatch.setattr(function, "__code__", code.replace(co_qualname=function.__qualname__))
