"""Loss of power while old data moves to objects: at any step all that was promised is there, in the old place or the
new; and each safeguard of that is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from sbp_back.range_server.object_log.range_objects.moved import Names
from sbp_back.range_server.object_log.range_objects.offload import Offload
from sbp_back.range_server.object_log.range_objects.range_writer import RangeWriter
from sbp_back.range_server.store.opening.recovery import Recovery
from tests.sbp_back.range_server.object_log.offload_rig import OffloadRig, time_passes
from tests.sbp_back.range_server.store.power_images import IMAGES, SEED, change, first_violation, recorded, root
from tests.sbp_back.range_server.store.power_loss import Step
from tests.sbp_back.range_server.store.power_rig import Life, Violation

__all__ = ["root", "time_passes"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("time_passes")]

PLAN: list[Life] = [
    ("fsync", "stop", 30),
    ("fsync", "killed", 12),
    ("fsync", "kill", 25),
    ("fsync", "eio", 12),
    ("fsync", "stop", 25),
    ("fsync", "kill", 15),
]

NEEDLESS = {
    "file flush in write_file_durably.idx of what was moved": "rows are in the bucket, too; the flush spares a request",
    "directory flush in write_file_durably.idx of what was moved": "the same",
}


def kinds(steps: list[Step]) -> set[str]:
    """What was asked of the bucket and of the lists on the disk."""
    found = set()
    for step in steps:
        match step:
            case ("put" | "remove", str(key), *_):
                found.add(f"{step[0]} {key.split('/')[2]}")
            case ("unlink", str(place), str(name)):
                found.add(f"unlink {place.rpartition('/')[2]}/{name.rpartition('.')[2]}")
    return found


async def test_loss_of_power_at_any_step_loses_nothing_that_moves(root: Path) -> None:
    print(f"ANBR_POWER_SEED={SEED}")
    steps = await recorded(root, PLAN, make=OffloadRig)
    moved = {"put ranges", "put rows", "put index", "remove ranges", "remove rows", "remove index"}
    assert kinds(steps) >= moved | {"unlink wal/seg", "unlink moved/idx"}
    for number in (0, IMAGES // 3):
        rng = Random(f"{SEED} images")
        count, violation = await first_violation(steps, frozenset(), root, rng, number, OffloadRig)
        assert violation is None, f"ANBR_POWER_SEED={SEED}: {violation}"
        assert count >= (number or 200)


@pytest.mark.timeout(180)
async def test_no_flush_before_a_deletion_can_be_left_out(root: Path) -> None:
    print(f"ANBR_POWER_SEED={SEED}")
    steps = await recorded(root, PLAN, make=OffloadRig)
    sites = {str(step[-1]) for step in steps if step[0] in ("flush", "sync", "sync_directory")}
    sites = {site for site in sites if site.endswith((" of what was moved", " in make_directories"))}
    assert len(sites) == 5
    unnoticed = set()
    for site in sorted(sites):
        rng = Random(f"{SEED} {site}")
        number = 100 if site in NEEDLESS else 400
        _count, violation = await first_violation(steps, frozenset([site]), root, rng, number, OffloadRig)
        if violation is None:
            unnoticed.add(site)
    assert unnoticed == NEEDLESS.keys(), f"ANBR_POWER_SEED={SEED}: {unnoticed}"


def function_of(whose: property) -> Callable[..., object]:
    assert whose.fget is not None
    return whose.fget


MUTATIONS: dict[str, tuple[Callable[..., object], str, str]] = {
    "segments go before an index names what has taken their place": (
        function_of(Offload.named),  # type: ignore[arg-type]
        "not self.made and not self._naming",
        "True",
    ),
    "the index on the disk names what nobody has the rows of": (
        Offload._write_names,
        "        check(self._bucket, names, 0.0)\n",
        "        check(self._bucket, names, 0.0)\n"
        "        write_file_durably(files, directory / NAMES, [SEALED_NAMES.encode(names)])\n",
    ),
    "the index is not in the bucket": (
        Offload._write_names,
        "        self._bucket.put_again(key, SEALED_NAMES.encode(names), 0.0)\n",
        "",
    ),
    "rows are not in the bucket": (
        Offload._write_names,
        "            self._bucket.put_again(one.rows, data, 0.0)\n",
        "            pass\n",
    ),
    "objects are found that were not put": (RangeWriter._write, "        self._put(what, fd, file.crcs)\n", ""),
    "objects go while an index on the disk names them": (
        Offload._write_names,
        "    self._naming = True\n",
        "    self._naming = True\n"
        "    facts = [self._facts[one] for one in dead]\n"
        "    self._bucket.delete([key for one in facts for key in (one.what.key, one.rows)])\n",
    ),
    "objects go that the index names": (function_of(Names.keys), "{self.key, *..., *...}", "set()"),  # type: ignore[arg-type]
    "what was moved is found behind what was written later": (
        Recovery._place_moved,
        "self._moved[0].lsn <= upto",
        "upto == sys.maxsize",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.timeout(180)
async def test_no_order_of_the_steps_can_be_left_out(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, *MUTATIONS[name])
    rng = Random(f"{SEED} {name}")
    for attempt in range(6):
        try:
            steps = await recorded(root, PLAN, f"record-{attempt}", make=OffloadRig)
        except Violation:
            return  # the next of its lives has found it out, with its power
        for number in (0, 200):
            _count, violation = await first_violation(steps, frozenset(), root, rng, number, OffloadRig)
            if violation is not None:
                return
    raise AssertionError(f"ANBR_POWER_SEED={SEED}: nobody noticed")
