"""A segment's bytes appended to another in one batch: large events, and what tools merge.

The source is known to the target's ledger as a writer, by a digest of its name: its bytes are that writer's one append.
So a merge that is repeated, also after a crash, finds them there already, and nothing is stored twice.
"""

from __future__ import annotations

import asyncio
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING

from bridges.errors import BatchTooLarge, LogError
from bridges.formats.pravega import EVENT_HEAD
from bridges.formats.producer import EventStamp, LedgerKind
from bridges.formats.records import Buffer
from bridges.net.budget import Kind
from pravega_front.service.segments import SegmentMissing

if TYPE_CHECKING:
    from bridges.net.budget import Account
    from pravega_front.service.segment import Segment
    from pravega_front.service.segments import Segments

_MERGED = 1
"""The number of the one append that a merged segment is."""
_MOST = 15 * 1024 * 1024
"""Bytes of a source: with its header it has to fit into one batch of the backend."""
_READ = 2 * 1024 * 1024


class TooLarge(LogError):
    """The source is larger than can be appended as one."""


def transient_name(parent: str, writer_id: bytes) -> str:
    """A name for a segment that takes a large event of a writer, which nobody else has."""
    return f"{parent}#transient.{writer_id.hex()}.{secrets.token_hex(16)}"


async def merge(segments: Segments, target: Segment, source_name: str, account: Account) -> int:
    """Append all of a segment to another, atomically, and delete it; gives the target's length. What is held of it
    counts in ``account``.

    Raises SegmentMissing (there never was one), TooLarge, LogError.
    """
    writer_id = blake2b(source_name.encode("utf-8", "surrogateescape"), digest_size=16).digest()
    await target.log.ready()
    source = segments.find(source_name)
    if source is None or not source.loose:
        if target.log.last(LedgerKind.EVENT_NUMBER, writer_id) is None:
            raise SegmentMissing(f"there is no segment {source_name!r} to merge")
        return await target.length()
    async with segments.merges:
        sealed, source.loose_sealed = source.loose_sealed, True
        try:
            await source.quiet()  # what is acknowledged from now on would be part of nothing
            length = await _append_all(target, writer_id, source, account)
        except BaseException:
            source.loose_sealed = sealed
            raise
        await segments.delete(source_name)
    return length


async def _append_all(target: Segment, writer_id: bytes, source: Segment, account: Account) -> int:
    size = await source.length() - await source.start()
    if size > _MOST:
        raise TooLarge(f"{source.name} has {size} bytes, more than the {_MOST} that are merged as one")
    account.take(Kind.READS, 2 * size)  # what is read, and the batch that is made of it
    try:
        return await _append(target, writer_id, await _bytes(source, size), size)
    finally:
        account.give(Kind.READS, 2 * size)


async def _append(target: Segment, writer_id: bytes, parts: list[Buffer], size: int) -> int:
    events = await asyncio.to_thread(count_events, parts) if size else 0
    merged: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(length: int, error: LogError | None) -> None:
        if merged.done():
            return
        if error is None:
            merged.set_result(length)
        else:
            merged.set_exception(TooLarge(str(error)) if isinstance(error, BatchTooLarge) else error)

    target.append(parts, size, EventStamp(writer_id, _MERGED, events), None, done)
    return await merged


async def _bytes(source: Segment, size: int) -> list[Buffer]:
    parts: list[Buffer] = []
    at = await source.start()
    end = at + size
    while at < end:
        pieces = await source.read(at, min(_READ, end - at))
        if not pieces:
            raise LogError(f"{source.name} has nothing at {at}, below its end {end}")
        parts += pieces
        at += sum(map(len, pieces))
    return parts


def count_events(parts: list[Buffer]) -> int:
    """How many whole events bytes are; 0 if they are not."""
    data = b"".join(parts)
    at = count = 0
    while at + EVENT_HEAD <= len(data):
        if data[at : at + 4] != b"\0\0\0\0":
            return 0
        at += EVENT_HEAD + int.from_bytes(data[at + 4 : at + 8], "big")
        count += 1
    return count if at == len(data) else 0
