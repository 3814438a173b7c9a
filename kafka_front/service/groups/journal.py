"""Stores group snapshots: one write at a time for each group, all waiting groups in one flush of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.barrier import Barrier
from bridges.errors import LogError, NotOwner
from kafka_front.service.groups import codes
from kafka_front.service.groups.classic.requests import SavedCallback
from kafka_front.service.groups.classic.snapshot import GroupSnapshot, encode_snapshot
from kafka_front.service.groups.consumer.requests import Encode

_log = structlog.get_logger("anabranch.kafka.groups")


class GroupStore(Protocol):
    """The part of :class:`bridges.catalog.progress.FrontProgress` that keeps a front's groups."""

    async def load_groups(self) -> dict[str, bytes]: ...

    async def save_group(self, group: str, state: bytes | None) -> None: ...


class _Write(Struct):
    encode: Encode | None
    done: list[SavedCallback] = field(default_factory=list)


class GroupJournal:
    """Journal of a :class:`.coordinator.Coordinator` whose clock is ``now_ms``; ``unix_ms`` gives the time of day."""

    def __init__(
        self,
        store: GroupStore,
        now_ms: Callable[[], int],
        unix_ms: Callable[[], int],
        barrier: Barrier | None = None,
    ) -> None:
        self._store = store
        self._barrier = barrier or Barrier()
        self._now_ms = now_ms
        self._unix_ms = unix_ms
        self._waiting: dict[str, _Write] = {}
        self._writer: asyncio.Task[None] | None = None
        self._rounds = 0
        self._round_ended = asyncio.Event()

    def to_unix(self, ms: int) -> int:
        """Time of day of a moment of the coordinator's clock."""
        return self._unix_ms() - self._now_ms() + ms

    def from_unix(self, ms: int) -> int:
        """The reverse of :meth:`to_unix`; below zero for moments before that clock began."""
        return self._now_ms() - self._unix_ms() + ms

    def save(self, group_id: str, snapshot: GroupSnapshot, done: SavedCallback) -> None:
        """See :class:`.requests.Journal`."""
        stored = replace(snapshot, since_ms=self.to_unix(snapshot.since_ms))
        blob = encode_snapshot(stored)
        self.put(group_id, lambda _: blob, done)

    async def erase(self, group_id: str) -> int:
        """Remove what is stored of a group, after whatever is being written of it; returns the error code."""
        return await awaited(lambda settle: self.put(group_id, None, lambda _, error: settle(error)))

    async def settled(self) -> None:
        """Return when everything has been written that was asked for until now."""
        until = self._rounds + 2  # the writes that are under way, and those that wait for their end
        while self._writer is not None and self._rounds < until:
            await self._round_ended.wait()

    async def close(self) -> None:
        """Return when everything that waits has been written."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    def put(self, group_id: str, encode: Encode | None, done: SavedCallback) -> None:
        """Replace what is stored of a group by what ``encode`` gives when the write begins; None removes it."""
        write = self._waiting.setdefault(group_id, _Write(encode))
        write.encode = encode  # an earlier snapshot that still waits is of no use any more
        write.done.append(done)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                writes, self._waiting = self._waiting, {}
                errors = await asyncio.gather(*(self._write(group_id, w.encode) for group_id, w in writes.items()))
                for write, error in zip(writes.values(), errors, strict=True):
                    for done in write.done:
                        self._barrier.call("end of storing a group", done, self._now_ms(), error)
                self._end_round()
        finally:
            self._writer = None
            self._end_round()

    def _end_round(self) -> None:
        self._rounds += 1
        ended, self._round_ended = self._round_ended, asyncio.Event()
        ended.set()

    async def _write(self, group_id: str, encode: Encode | None) -> int:
        try:
            await self._store.save_group(group_id, None if encode is None else encode(self.to_unix))
        except NotOwner:
            return codes.NOT_COORDINATOR
        except LogError as error:
            _log.warning("group not stored", group=group_id, error=str(error))
            return codes.COORDINATOR_NOT_AVAILABLE
        except Exception as error:  # noqa: BLE001 - counted there: the members of this group hear of it, others go on
            self._barrier.caught("storing a group", error, group=group_id)
            return codes.COORDINATOR_NOT_AVAILABLE
        return codes.NONE
