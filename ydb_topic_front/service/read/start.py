"""Searches in a log by time: when a record was written, and the first offset written at a given time or later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from bridges.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import Account
    from bridges.formats.records import StoredBatch
    from bridges.log.remote.readable import ReadableLog

_UNKNOWN_BATCH = 64 * 1024


async def written_at(log: ReadableLog, offset: int, account: Account) -> int:
    """Return when the record at ``offset`` was written, or the first remaining one after it, in ms since the
    epoch; -1 if there is none. The log must be open.

    Bytes read are counted in ``account`` during the search. Raises the errors of a read.
    """
    while True:
        offset = max(offset, log.log_start_offset)
        if offset >= log.high_watermark:
            return -1
        try:
            batches = await _batch_at(log, offset, log.high_watermark, account)
        except OffsetOutOfRange:
            if offset >= log.log_start_offset:
                raise
            continue  # the log was trimmed meanwhile
        return batches[0].written_ms if batches else -1


async def first_written(log: ReadableLog, written_ms: int, account: Account) -> int:
    """Return the first offset whose batch was appended at ``written_ms`` or later; the high watermark if there is
    none.

    Binary search: appends are in the order of their times as far as the clocks allow, so about twenty batches are read.
    Bytes read are counted in ``account`` during the search. Raises the errors of a read.
    """
    await log.ready()
    low, high = log.log_start_offset, log.high_watermark
    while (low := max(low, log.log_start_offset)) < high:
        middle = (low + high) // 2
        try:
            batches = await _batch_at(log, middle, high, account)
        except OffsetOutOfRange:
            if middle >= log.log_start_offset:
                raise
            continue  # the log was trimmed meanwhile
        if not batches:
            high = middle  # an operator has skipped the damaged records here
            continue
        batch = batches[0]
        if batch.written_ms >= written_ms:
            high = min(middle, max(low, batch.base_offset))
        else:
            low = max(batch.end_offset, low + 1)
    return low


async def _batch_at(log: ReadableLog, offset: int, end: int, account: Account) -> list[StoredBatch]:
    """Return the batch that contains ``offset`` as a list; an empty list if it was damaged and is skipped."""
    size = log.measure(offset, 1, end) or _UNKNOWN_BATCH
    account.take(Kind.READS, size)
    try:
        return await log.read_batches(offset, 1, end)
    finally:
        account.give(Kind.READS, size)
