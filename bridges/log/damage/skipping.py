"""An operator's request that readers skip a batch that nobody can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.turns import in_turns
from bridges.errors import BatchInvalid, DataCorrupt, LogUnavailable, OffsetOutOfRange, StillReadable
from bridges.formats import FORMAT_MASK, FormatId, format_of
from bridges.formats.kafka import check_batch
from bridges.log.damage.extent import end_of_damage
from bridges.log.damage.skips import Span, past
from bridges.log.partition.partition_log import PartitionLog, read_error
from bridges.log.streams import stored_batches
from sbp_back.errors import SbpError

if TYPE_CHECKING:
    from bridges.formats.records import StoredBatch
    from bridges.log.logs import Logs
    from bridges.log.streams import Streams

_log = structlog.get_logger("anabranch.skips")


async def skip(logs: Logs, log: PartitionLog, offset: int, *, force: bool) -> tuple[Span, str]:
    """Make readers of a partition skip the batch at ``offset``, for good; return the span skipped and the reason.

    The whole stretch of damage from ``offset`` on is skipped, and the whole batch that contains it. ``force`` skips
    readable batches, too. Raises OffsetOutOfRange (nothing is there, or it is skipped already), StillReadable,
    LogUnavailable, LogDeleted, or an error of the database.
    """
    await _opened(log)  # a damaged batch may prevent that, but the backend can still be read
    if log.is_open and not log.log_start_offset <= offset < log.high_watermark:
        raise OffsetOutOfRange(f"{log.topic}-{log.partition} has no offset {offset}")
    if past(logs.stores.skips.spans_of(log.stream_id), offset) != offset:
        raise OffsetOutOfRange(f"offset {offset} is skipped already")
    look = _Look(logs.client, log.stream_id)
    batch = await look.at(offset)
    if batch is not None:
        span = (batch.base_offset, batch.end_offset)
        reason = await _why_unreadable(batch)
        if reason is None:
            if not force:
                raise StillReadable(f"the batch at offsets {span[0]} to {span[1] - 1} can be read: it is not skipped")
            reason = "an operator wanted it so, though it can be read"
    else:
        span = (offset, await end_of_damage(offset, look.good_from))
        reason = look.reason
    await logs.finishing.finish(_skip(logs, log, span, reason))
    return span, reason


async def _skip(logs: Logs, log: PartitionLog, span: Span, reason: str) -> None:
    await logs.positions.keep_around(log, span)
    # An open log knows what the batch said, such as a transaction's end; a later opening would not.
    await log.upkeep.saved_behind(min(span[1], log.high_watermark))
    await logs.stores.skips.add(log.stream_id, span, reason)
    await _opened(log)
    if log.is_open:
        log.skip(span)
    _log.warning("offsets skipped", topic=log.topic, partition=log.partition, first=span[0], end=span[1], reason=reason)


async def _opened(log: PartitionLog) -> None:
    try:
        await log.ready()
    except LogUnavailable:
        return


class _Look:
    """A reader of single batches of a stream."""

    def __init__(self, client: Streams, stream_id: int) -> None:
        self._client = client
        self._stream_id = stream_id
        self.reason = ""
        """Why the first damaged batch cannot be read."""

    async def at(self, offset: int) -> StoredBatch | None:
        """Return the batch that contains ``offset``; None if it is damaged. Raises OffsetOutOfRange, LogUnavailable."""
        if offset < 0:
            raise OffsetOutOfRange(f"there is no offset {offset}")
        try:
            entries = await self._client.fetch_entries(self._stream_id, offset, 1)
        except SbpError as error:
            told = read_error(error)
            if not isinstance(told, DataCorrupt):
                raise told from error
            self.reason = self.reason or str(error)
            return None
        batches = stored_batches(entries)
        if not batches:
            raise OffsetOutOfRange(f"there is nothing at offset {offset}")
        return batches[0]

    async def good_from(self, offset: int) -> int | None:
        """Return the beginning of the readable batch at ``offset``, or ``offset`` at the log's end; None if it is
        damaged."""
        try:
            batch = await self.at(offset)
        except OffsetOutOfRange:
            return offset
        return None if batch is None else batch.base_offset


async def _why_unreadable(batch: StoredBatch) -> str | None:
    """Return why a reader cannot read the records of a batch, or None."""
    try:
        if batch.flags & FORMAT_MASK == FormatId.KAFKA:
            check_batch(memoryview(batch.payload))
        async for _ in in_turns(format_of(batch.flags).records(batch)):
            pass
    except BatchInvalid as error:
        return str(error)
    return None
