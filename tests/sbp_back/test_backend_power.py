"""The game of :mod:`tests.sbp_back.test_backend_model`, in which the power goes as well: of a placement driver and
range servers that lose messages, die and lose their power in one schedule, with all their files on simulated disks.

The range servers' disks are below their system calls (``range_server/store/power_loss.py``). SQLite is taken at its
word: what it committed with ``synchronous = FULL`` is on the disk, with less only what is in the main file.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Literal, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from anabranch_kit.disk import files
from anabranch_kit.disk.files import Files
from anabranch_kit.errors import StoreError
from anabranch_kit.sql.sqlite import SqliteEngine
from sbp_back.errors import SbpError
from sbp_back.placement_driver.state import Transaction
from sbp_back.range_server.store import StoreOptions
from sbp_back.range_server.store.writing.wal_writer import WalWriter
from tests.depth import examples, factor, timeout
from tests.sbp_back.range_server.store.power_loss import HOW, NAMES, Disk, RecordingCalls, steps_of, write_image
from tests.sbp_back.test_backend_model import SERVERS, STORE, BackendMachine, Stream


class PowerMachine(BackendMachine):
    """With ``durability = fsync``: nothing that was acknowledged is ever lost, whatever happens."""

    durability: Literal["fsync", "os"] = "fsync"

    def __init__(self) -> None:
        self.disks: dict[int, RecordingCalls] = {}
        self.power_lost = False
        super().__init__()

    async def _start_server(self, number: int) -> None:
        if number not in self.disks:
            root = self.directory / f"disk-{number}"
            root.mkdir()
            self.disks[number] = RecordingCalls(root)
            self.paths[number] = root / "store"
        await super()._start_server(number)

    def store_options(self, number: int) -> StoreOptions:
        return replace(STORE, durability=self.durability, zero_ahead_bytes=0, files=Files(self.disks[number]))

    async def _stop_server(self, number: int, *, gracefully: bool) -> None:
        service = self.servers[number]
        if gracefully or service is None:
            await super()._stop_server(number, gracefully=True)
            return
        # The process dies, the kernel lives: nothing reaches that any more, and what it has stays.
        self.servers[number] = None
        self.places[service.server.info.server_id].die()
        self.disks[number].dead = True
        await service.close()
        self.disks[number].dead = False

    def copy_state(self, tx: Transaction, source: Path, target: Path) -> None:
        super().copy_state(tx, source, target)
        (synchronous,) = cast("Transaction", tx)._db.execute("PRAGMA synchronous").fetchone()
        if self.power_lost and synchronous < 2:
            (target / "pd.sqlite-wal").unlink(missing_ok=True)

    @rule(seed=st.integers(0, 1 << 32))
    def lose_power(self, seed: int) -> None:
        """Of all of them at once; clients live elsewhere."""
        self.run(self._lose_power(Random(seed)))

    async def _lose_power(self, rng: Random) -> None:
        for place in (self.pd_place, *self.places):
            place.die()
        for number in range(SERVERS):
            await self._stop_server(number, gracefully=False)
        self.power_lost = True
        await self._stop_pd(gracefully=False)
        self.power_lost = False
        self.lives += 1
        for number, recording in list(self.disks.items()):
            disk = Disk()
            for step in recording.steps:
                disk.apply(step)
            image = disk.image(rng, rng.choice(HOW), rng.choice(NAMES))
            root = self.directory / f"disk-{number}-{self.lives}"
            root.mkdir()
            write_image(image, root)
            found = self.disks[number] = RecordingCalls(root)
            found.adopt(image)
            found.steps = list(steps_of(image))
            self.paths[number] = root / "store"
        await self._boot()


class OsPowerMachine(PowerMachine):
    """With ``durability = os``: what lies below an end that the placement driver knows is never lost, and what was not
    lost can be read. Writers lose their power with the others, as those of a node with a backend inside do."""

    durability = "os"

    async def _lose_power(self, rng: Random) -> None:
        for stream in self.streams:
            await self._forget(stream)
        await super()._lose_power(rng)
        for stream in self.streams:
            await self._forgive(stream)

    async def _forgive(self, stream: Stream) -> None:
        """What was acknowledged behind the last known end may be gone."""
        client = self.client()
        try:
            ranges = await client.list_ranges(stream.stream_id)
        finally:
            await client.close()
        settled = max((known.end for known in ranges), default=0)
        stream.end = max(settled, 0)
        stream.sure = {base: sure for base, sure in stream.sure.items() if base + sure[0] <= stream.end}
        stream.maybe_trimmed = min(stream.maybe_trimmed, stream.end) if stream.end else stream.maybe_trimmed


def play(machine: PowerMachine, seed: int) -> None:
    """A short game whose outcome rests on every flush."""
    try:
        machine.create()
        machine.open(0)
        for _ in range(3):
            machine.append(0, 0, [100, 2000], 2, 0, -2)
        machine.seal(0)
        machine.lose_power(seed)
        machine.open(0)
        machine.append(0, 0, [10], 1, 0, -2)
        machine.lose_power(seed + 1)
    except SbpError as error:
        raise AssertionError(str(error)) from error
    finally:
        machine.teardown()


MUTATIONS = (
    "nothing",
    "nothing, with durability os",
    "writes without the flag that flushes",
    "seals not flushed",
    "SQLite not flushed",
)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_what_any_of_them_forgets_to_flush_is_noticed(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutation == "writes without the flag that flushes":
        monkeypatch.setattr(files, "DSYNC", 0)
        monkeypatch.setattr(RecordingCalls, "fdatasync", lambda _self, _fd: None)
    elif mutation == "seals not flushed":
        monkeypatch.setattr(WalWriter, "_flush_before", lambda _self, _group: None)
    elif mutation == "SQLite not flushed":
        opened = SqliteEngine.open

        def lower(self: SqliteEngine) -> None:
            opened(self)
            self.connection.execute("PRAGMA synchronous = NORMAL")

        monkeypatch.setattr(SqliteEngine, "open", lower)
    kind = OsPowerMachine if mutation in ("seals not flushed", "nothing, with durability os") else PowerMachine
    noticed: list[Exception] = []
    for seed in range(12):
        try:
            play(kind(), seed)
        except (AssertionError, SbpError, OSError, StoreError) as error:
            noticed.append(error)
            print(mutation, seed, repr(error)[:300])
            break
    assert bool(noticed) == (not mutation.startswith("nothing")), noticed


pytestmark = [pytest.mark.slow, pytest.mark.timeout(timeout(300))]

_SETTINGS = settings(
    max_examples=examples(25),
    stateful_step_count=20 if factor() == 1 else 60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestPower = PowerMachine.TestCase
TestPower.settings = _SETTINGS
TestPowerWithoutFlushes = OsPowerMachine.TestCase
TestPowerWithoutFlushes.settings = _SETTINGS
