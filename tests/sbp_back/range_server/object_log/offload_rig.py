"""A store whose old data moves to objects, under the power-loss simulator: its further threads run one step at a time,
too, and the object storage, which is elsewhere, has what it was given before the power went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from anabranch_kit.memory.buffers import Buffer
from sbp_back.range_server.object_log.objects.bucket import OPERATIONS, Bucket
from sbp_back.range_server.object_log.range_objects import offload, offload_store, range_writer
from sbp_back.range_server.object_log.range_objects.moved import NAMES, SEALED_NAMES
from sbp_back.range_server.object_log.range_objects.offload_store import OffloadStore
from sbp_back.range_server.store import Store, StoreOptions
from sbp_back.range_server.store.options import MOVED
from sbp_back.range_server.store.stats import Requests
from tests.sbp_back.range_server.store.power_loss import Image, RecordingCalls, Step
from tests.sbp_back.range_server.store.power_rig import Jobs, Rig
from tests.sbp_back.range_server.store.store_harness import KIB


class RecordedBucket(Bucket):
    """Objects in memory, each change of which is a step of the record."""

    def __init__(self, calls: RecordingCalls) -> None:
        self.url = "memory"
        self.requests = {operation: Requests() for operation in OPERATIONS}
        self._prefix = ""
        self._calls = calls

    def put_if_absent(self, key: str, content: Buffer) -> bool:
        return self._calls.put(self._prefix + key, bytes(content))

    def get(self, key: str) -> Buffer:
        try:
            return memoryview(self._calls.objects[self._prefix + key])
        except KeyError:
            raise FileNotFoundError(key) from None

    def get_range(self, key: str, begin: int, end: int) -> Buffer:
        return memoryview(self.get(key))[begin:end]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._calls.remove(self._prefix + key)

    def list(self, prefix: str) -> dict[str, int]:
        whole = self._prefix + prefix
        return {
            key[len(self._prefix) :]: len(content)
            for key, content in self._calls.objects.items()
            if key.startswith(whole)
        }


class _AtOnce:
    """In place of the threads that read what is not on the disk."""

    def submit(self, work: Callable[..., None], *arguments: object) -> None:
        work(*arguments)

    def shutdown(self) -> None:
        pass


class OffloadRig(Rig):
    """Segments of 64 KiB, of which two or three stay: those that move are in both checkpoints."""

    DURABILITIES = ("fsync",)
    store: OffloadStore

    def _open_store(self, path: Path, options: StoreOptions) -> Store:
        changed = replace(
            options,
            objects="memory",
            local_bytes=160 * KIB,
            object_range_bytes=16 * KIB,
            object_cache_bytes=0,
            object_index_seconds=0.0,
            object_grace_seconds=0.0,
        )
        with patch.object(offload_store, "Bucket", lambda _url: RecordedBucket(self.files)):
            return OffloadStore.open(path, changed)

    def _take_threads(self) -> None:
        super()._take_threads()
        store = self.store
        moves, later = Jobs(), Jobs()
        self.waiting += [moves.waiting, later.waiting]
        for real in (store.moving_thread, store._far):
            real.shutdown()
        store.moving_thread = moves  # type: ignore[assignment]
        store._far = store._gathers._far = _AtOnce()  # type: ignore[assignment]
        store.offload.background = partial(store._on_thread, moves)  # type: ignore[arg-type]
        store.offload._later = lambda _seconds, work: later.submit(work)

    def between_jobs(self) -> None:
        self.store.maintenance.start_chores()

    async def begin(self, rng: Random) -> None:
        self.store.maintenance.tick()
        await self.work(rng.randint(1, 20))

    async def go_on(self) -> None:
        self.store.maintenance.tick()
        await self.work()

    @classmethod
    def matters(cls, step: Step) -> bool:
        return step[0] in ("put", "remove") or (step[0] == "unlink" and str(step[2]).endswith(".seg"))

    @classmethod
    def spoiled(cls, image: Image, rng: Random) -> Image:
        """The lists of what was moved are in the bucket, too, once anything was."""
        lists = [path for path in image if f"/{MOVED}/" in path and not path.endswith(".tmp")]
        names = image.get(f"{cls.PLACE}/{MOVED}/{NAMES}")
        if not names or not SEALED_NAMES.decode(names).key or rng.random() < 0.7:
            return image
        return {**image, rng.choice(sorted(lists)): b"damaged"}


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is to be done later may be done now."""
    fake = SimpleNamespace(monotonic=partial(next, count()))
    for module in (offload, range_writer):
        monkeypatch.setattr(module, "time", fake)
