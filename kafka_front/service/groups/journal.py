"""The journal of group snapshots: one write at a time for each group, all waiting groups in one flush of the
database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.barrier import Barrier
from bridges.errors import LogError, NotOwner
from kafka_front.service.groups.classic.requests import SavedCallback
from kafka_front.service.groups.classic.snapshot import GroupSnapshot, encode_snapshot
from kafka_front.service.groups.consumer.requests import Encode
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.progress import FrontProgress

_log = structlog.get_logger("anabranch.kafka.groups")


class _Write(Struct):
    encode: Encode | None
    done: list[SavedCallback] = field(default_factory=list)


class GroupJournal:
    """The journal of coordinators whose clock is ``now_ms``; ``unix_ms`` returns Unix time."""

    def __init__(
        self,
        store: FrontProgress,
        now_ms: Callable[[], int],
        unix_ms: Callable[[], int],
        barrier: Barrier | None = None,
    ) -> None:
        self._store = store
        self._barrier = barrier or Barrier()
        self._now_ms = now_ms
        self._unix_ms = unix_ms
        self._waiting: dict[str, _Write] = {}
        self.writer: asyncio.Task[None] | None = None
        self._rounds = 0
        self._round_ended = asyncio.Event()

    def to_unix(self, ms: int) -> int:
        """Convert a time of the coordinator's clock to Unix time, in ms."""
        return self._unix_ms() - self._now_ms() + ms

    def from_unix(self, ms: int) -> int:
        """Convert Unix time to the coordinator's clock, in ms; negative for times before that clock began."""
        return self._now_ms() - self._unix_ms() + ms

    def save(self, group_id: str, snapshot: GroupSnapshot, done: SavedCallback) -> None:
        """Replace a classic group's stored snapshot; a later save of the same group overtakes an earlier one."""
        stored = replace(snapshot, since_ms=self.to_unix(snapshot.since_ms))
        blob = encode_snapshot(stored)
        self.put(group_id, lambda _: blob, done)

    async def erase(self, group_id: str) -> None:
        """Remove a group's stored state, after any write in flight. Raises KafkaError."""
        written: asyncio.Future[int] = awaited(lambda settle: self.put(group_id, None, lambda _, error: settle(error)))
        if error := await written:
            raise KafkaError(error, f"the stored state of group {group_id!r} could not be removed")

    async def await_writes(self) -> None:
        """Wait until all writes requested before this call have ended."""
        until = self._rounds + 2  # the writes in flight, and those that wait for them
        while self.writer is not None and self._rounds < until:
            await self._round_ended.wait()

    async def close(self) -> None:
        """Wait until all waiting groups are written."""
        while self.writer is not None:
            await asyncio.wait([self.writer])

    def put(self, group_id: str, encode: Encode | None, done: SavedCallback) -> None:
        """Replace a group's stored state by the result of ``encode``, called when the write begins; None removes the
        state."""
        write = self._waiting.setdefault(group_id, _Write(encode))
        write.encode = encode  # replaces an earlier snapshot that still waits
        write.done.append(done)
        if self.writer is None:
            self.writer = asyncio.get_running_loop().create_task(self._write_all())

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
            self.writer = None
            self._end_round()

    def _end_round(self) -> None:
        self._rounds += 1
        ended, self._round_ended = self._round_ended, asyncio.Event()
        ended.set()

    async def _write(self, group_id: str, encode: Encode | None) -> int:
        try:
            await self._store.save_group(group_id, None if encode is None else encode(self.to_unix))
        except NotOwner:
            return ErrorCode.NOT_COORDINATOR
        except LogError as error:
            _log.warning("group not stored", group=group_id, error=str(error))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        except Exception as error:  # noqa: BLE001 - counted: this group's members get an error, other groups go on
            self._barrier.caught("storing a group", error, group=group_id)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE
