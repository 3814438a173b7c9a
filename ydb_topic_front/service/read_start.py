"""When what lies at a place was written, and where reading begins that is asked for by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.net.budget import Kind

if TYPE_CHECKING:
    from bridges.log.partition_log import PartitionLog
    from bridges.net.budget import Account

_UNKNOWN_BATCH = 64 * 1024


async def written_at(log: PartitionLog, offset: int, account: Account) -> int:
    """When what lies at ``offset`` of an open log was written, in ms since the epoch; -1 if nothing does.

    What is read is counted in ``account`` meanwhile. Raises the errors of a read.
    """
    end = log.high_watermark
    if offset >= end:
        return -1
    size = log.measure(offset, 1, end) or _UNKNOWN_BATCH
    account.take(Kind.READS, size)
    try:
        batches = await log.read_batches(offset, 1, end)
    finally:
        account.give(Kind.READS, size)
    return batches[0].written_ms if batches else -1


async def first_written(log: PartitionLog, written_ms: int, account: Account) -> int:
    """The first offset whose batch was appended at ``written_ms`` or later; the high watermark if there is none.

    Appends are in the order of their times, as far as clocks are, so halving finds it: some twenty batches are read.
    What is read is counted in ``account`` meanwhile. Raises the errors of a read.
    """
    await log.ready()
    low, high = log.log_start_offset, log.high_watermark
    while low < high:
        middle = max((low + high) // 2, log.log_start_offset)
        size = log.measure(middle, 1, high) or _UNKNOWN_BATCH
        account.take(Kind.READS, size)
        try:
            batches = await log.read_batches(middle, 1, high)
        finally:
            account.give(Kind.READS, size)
        if not batches:
            high = middle  # what was there is declared lost
            continue
        batch = batches[0]
        if batch.written_ms >= written_ms:
            high = min(middle, max(low, batch.base_offset))
        else:
            low = max(batch.end_offset, low + 1)
    return low
