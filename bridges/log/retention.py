"""Retention: the chore that trims what exceeds the age or size limits of partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.rounds import Rounds
from anabranch_kit.run.turns import in_turns
from bridges.errors import LogError
from bridges.log.opener import SLOW_MOST, SLOW_S

if TYPE_CHECKING:
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog

_log = structlog.get_logger("anabranch.logs")

Place = tuple[str, int]

_AT_ONCE = 8


class Retention:
    """Applies one node's retention, in rounds.

    ``limits(topic)`` returns (milliseconds to keep, bytes to keep), -1 for no limit; ``needed(log, now_ms)`` the first
    offset that must stay all the same, or None.

    Partitions not used since the node started are opened for it, ``openings`` of them in each round, in turns; one
    that failed to open a moment ago waits for a later round. A partition that takes longer than ``patience_s``
    continues in the background.
    """

    def __init__(
        self,
        logs: Logs,
        limits: Callable[[str], tuple[int, int]],
        needed: Callable[[PartitionLog, int], Awaitable[int | None]],
        *,
        openings: int = 2_000,
        patience_s: float = 1.0,
    ) -> None:
        self._logs = logs
        self._limits = limits
        self._needed = needed
        self._openings = openings
        self._opened: Rounds[Place] = Rounds(logs.barrier, "retention", at_once=_AT_ONCE, patience=patience_s)
        # Openings wait for their places and servers, not for anything of this node's.
        self._unopened: Rounds[Place] = Rounds(
            logs.barrier,
            "retention",
            at_once=logs.options.open_concurrency,
            patience=min(SLOW_S, patience_s),
            left=SLOW_MOST,
        )
        self._last: Place | None = None  # the last partition that was opened

    async def enforce(self, partitions: Iterable[Place], now_ms: int) -> int:
        """Trim what exceeds the limits of ``partitions``; return how many were trimmed in time."""
        trimmed = 0

        async def retain(place: Place) -> None:
            nonlocal trimmed
            trimmed += await self._retain(place, now_ms)

        opened, unopened = await self._choose(partitions)
        await self._opened.each(opened, retain)
        await self._unopened.each(unopened, retain)
        return trimmed

    async def close(self) -> None:
        """Cancel what still goes on."""
        await self._opened.close()
        await self._unopened.close()

    async def _choose(self, partitions: Iterable[Place]) -> tuple[list[Place], list[Place]]:
        """Return the partitions of this round: the open ones, and some of the others, in turns."""
        logs, most = self._logs, self._openings
        opened: list[Place] = []
        after_last: list[Place] = []
        up_to_last: list[Place] = []
        unopened = up_to_last
        async for place in in_turns(partitions):
            try:
                if max(self._limits(place[0])) >= 0 and logs.owns(*place):
                    # Make no log only for this check: each node would have all partitions of a cluster in memory.
                    log = logs.find_used(*place)
                    if log is not None and log.is_open:
                        opened.append(place)
                    elif len(unopened) < most and not (log is not None and logs.opener.has_failed(log)):
                        unopened.append(place)
            except Exception as error:  # noqa: BLE001 - logged and counted; the next partition is another matter
                logs.barrier.caught("retention", error, topic=place[0], partition=place[1])
            if place == self._last:
                unopened = after_last
        chosen = (after_last + up_to_last)[:most]
        if chosen:
            self._last = chosen[-1]
        return opened, chosen

    async def _retain(self, place: Place, now_ms: int) -> bool:
        """Apply retention to one partition; return whether it was trimmed."""
        topic, partition = place
        try:
            keep_ms, keep_bytes = self._limits(topic)
            log = self._logs.get(topic, partition)
            if log is None:
                return False
            await log.ready()
            if keep_ms >= 0:
                log.state.index.keep_for(keep_ms)
                await self._logs.search.settle_ages(log, now_ms - keep_ms, now_ms)
            offset = log.upkeep.retention_offset(keep_ms, keep_bytes, now_ms)
            if offset is not None and offset > log.log_start_offset:
                needed = await self._needed(log, now_ms)
                offset = offset if needed is None else min(offset, needed)
                if offset > log.log_start_offset:
                    await log.trim(offset, own=True)
                    return True
        except LogError as error:
            _log.warning("retention not applied", topic=topic, partition=partition, error=str(error))
        return False
