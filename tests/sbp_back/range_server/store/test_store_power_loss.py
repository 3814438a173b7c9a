"""Loss of power at any moment: what was promised is there, and what was never written is not."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest

from anabranch_kit.disk import files
from sbp_back.range_server import store
from sbp_back.range_server.store.layout.format import BLOCK
from sbp_back.range_server.store.writing.prepare import SegmentFactory
from tests.sbp_back.range_server.store.power_images import IMAGES, SEED, change, first_violation, recorded, root
from tests.sbp_back.range_server.store.power_loss import Disk, Image, RecordingCalls, Step, steps_of, write_image
from tests.sbp_back.range_server.store.power_rig import Life, Rig, Violation, Workload, World

__all__ = ["root"]

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
        ("fsync", "enospc", 8),
        ("fsync", "killed", 5),
    ],
}

NEEDLESS = {
    "file flush in write_file_durably.idx": "an index file that is not whole is made again; the flush spares that scan",
    "directory flush in write_file_durably.idx": "the same for one that is not there",
    "file flush in Preparer._zero_ahead": "zeros count as much as nothing; flushed ahead, they do not delay the writer",
    "flushed write in Files.probe": "asks whether the file system knows the flag",
    "directory flush in Files.probe": "asks whether the file system can do that",
}
"""Flushes that no promise rests on, and what they are good for."""


@pytest.fixture(autouse=True)
def _groups_of_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger groups go to the kernel in pieces here, too, which are flushed in another way than those of one."""
    monkeypatch.setattr(files, "PIECE", 8192)


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
            _count, violation = await first_violation(steps, frozenset([site]), root, rng, 400)
            if violation is not None:
                break
        else:
            unnoticed.append(site)
    assert not unnoticed, f"ANBR_POWER_SEED={SEED}: {unnoticed}"


MUTATIONS: dict[str, tuple[Callable[..., object], str, str]] = {
    "writes without the flag that flushes": (
        files.Files.write,
        "self._calls.pwritev(fd, parts, offset, self._dsync)",
        "self._calls.pwritev(fd, parts, offset)",
    ),
    "writes not flushed where there is no such flag": (files.Files.write, "self._calls.fdatasync(fd)", "pass"),
    "pieces not flushed": (files.Files._write_pieces, "self._calls.fdatasync(fd)", "pass"),
    "pieces flushed before the last one is written": (
        files.Files._write_pieces,
        "done = self._calls.pwritev(fd, piece, offset + written)",
        "if durable and written + size >= sum(map(len, parts)):\n"
        "    self._calls.fdatasync(fd)\n"
        "    durable = False\n"
        "done = self._calls.pwritev(fd, piece, offset + written)",
    ),
    "files not flushed": (files.Files.sync, "self._calls.fsync(fd)", "pass"),
    "directories not flushed": (files.Files.sync_directory, "self._calls.fsync(fd)", "pass"),
    "segments get their name before they are flushed": (
        SegmentFactory.create,
        "files.sync(fd)\nfiles.rename(temporary, path)\nfiles.sync_directory(self.directory)",
        "files.rename(temporary, path)\nfiles.sync_directory(self.directory)\nfiles.sync(fd)",
    ),
}
"""What the kernel is asked for, changed: a function, a part of its text, and what is put in its place."""


@pytest.mark.parametrize("name", MUTATIONS)
async def test_no_flag_and_no_order_of_system_calls_can_be_left_out(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated disk is below the system calls: it believes what the kernel was asked for, and nothing else."""
    change(monkeypatch, *MUTATIONS[name])
    dsync = name != "writes not flushed where there is no such flag"
    for plan, lives in PLANS.items():
        rng = Random(f"{SEED} {name} {plan}")
        steps = await recorded(root, lives, plan, dsync)
        _count, violation = await first_violation(steps, frozenset(), root, rng, 400)
        if violation is not None:
            return
    raise AssertionError(f"ANBR_POWER_SEED={SEED}: nobody noticed")


async def test_a_flush_that_failed_is_not_believed_by_the_next_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has dropped the pages, so to flush them again is not enough: they have to be written again."""

    def only_flushed(_files: object, _fd: int, _data: object, _offset: int) -> None:
        pass

    monkeypatch.setattr("sbp_back.range_server.store.opening.recovery.write_all", only_flushed)
    steps = await recorded(root, [("fsync", "eio", 4)] * 5)
    _count, violation = await first_violation(steps, frozenset(), root, Random(f"{SEED} images"), 300)
    assert violation is not None


async def test_the_records_have_every_place_that_asks_for_a_flush(root: Path) -> None:
    asked: set[str] = set()

    def look(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                look(child, f"{name}.{child.name}".lstrip("."))
                continue
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
                writes = child.func.attr == "write" and len(child.args) == 4
                if writes or child.func.attr in ("sync", "sync_directory"):
                    asked.add(name)
            look(child, name)

    for path in (Path(files.__file__), *Path(str(store.__file__)).parent.rglob("*.py")):
        look(ast.parse(path.read_text("utf-8")), "")
    places = {
        str(step[-1]).partition(" in ")[2].removesuffix(".idx").removesuffix(".ckpt")
        for plan, lives in PLANS.items()
        for step in await recorded(root, lives, plan)
        if step[0] in ("flush", "sync", "sync_directory")
    }
    elsewhere = {"Recovery._replay"}  # test_segments_that_were_cut_off_do_not_come_back
    never_durable = {"write_all"}
    assert asked == places | elsewhere | never_durable


@pytest.mark.parametrize("flushed", [True, False])
async def test_segments_that_were_cut_off_do_not_come_back(root: Path, flushed: bool) -> None:
    """The one flush that comes too late in too few runs for chance to find it out: a segment that was removed because
    the log ends before it returns, just when new groups of the same size have reached its number."""

    async def until(rig: Rig, groups: int) -> None:
        while rig.store.log.next_seq <= groups:
            await rig.do(*workload.operations(rig.world, 1))

    rng = Random(SEED)
    workload = Workload(rng)
    workload.uniform = True
    rig = started(root / "first", None, "os")
    await rig.do(*workload.operations(rig.world, 1))
    at = rig.store.log.active.used + BLOCK
    while len(rig.store.log.segments) == 1:
        await rig.do(*workload.operations(rig.world, 1))
    filled = rig.store.log.next_seq - 2
    await until(rig, filled + 3)
    rig.kill()
    image = disk_of(rig.files.steps).image(rng, "all", "all")
    path = f"{Rig.PLACE}/wal/{0:020d}.seg"
    content = image[path]
    assert content is not None
    image[path] = content[:at] + bytes(BLOCK) + content[at + BLOCK :]

    rig = started(root / "second", image, "os", rig.chain)
    assert any("was not flushed" in message for message in rig.store.messages)
    await until(rig, filled)
    rig.kill()
    site = "directory flush in Recovery._replay"
    assert any(step[-1] == site for step in rig.files.steps)
    disk = disk_of([*steps_of(image), *rig.files.steps], frozenset() if flushed else frozenset([site]))
    last = disk.image(rng, "all", "none")
    if flushed:
        started(root / "third", last, "os", rig.chain).kill()
    else:
        with pytest.raises(Violation):
            started(root / "third", last, "os", rig.chain)


def disk_of(steps: Iterable[Step], broken: frozenset[str] = frozenset()) -> Disk:
    disk = Disk(broken)
    for step in steps:
        disk.apply(step)
    return disk


def started(root: Path, image: Image | None, durability: str, chain: list[World] | None = None) -> Rig:
    """A running store on what a loss of power left."""
    root.mkdir()
    recording = RecordingCalls(root)
    if image is not None:
        write_image(image, root)
        recording.adopt(image)
    rig = Rig(recording)
    if chain is not None:
        rig.chain, rig.opened = list(chain), True
    rig.mark()
    rig.open(durability)
    rig.start()
    return rig
