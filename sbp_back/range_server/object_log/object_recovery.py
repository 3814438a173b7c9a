"""Opening a log of objects: an incarnation of one's own, an end for those before, and what they say.

Every start takes the next number that nobody has (``incarnations/NUMBER``, put if absent), so there is one of each
below its own. It ends their logs one after the other and reads them in order. A former self that still lives finds its
next number taken; one that is just starting finds its first one taken.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct, field

from sbp_back.errors import DecodeError, StoreCorrupt, StoreError
from sbp_back.range_server.object_log.bucket import Bucket
from sbp_back.range_server.object_log.cache import Cache, source_of
from sbp_back.range_server.object_log.content import HEAD_BYTES, UNIQUE_BYTES, decode_head, key_of
from sbp_back.range_server.object_log.group import BEFORE_RECORDS, ObjectGroup, decode_group, records_end
from sbp_back.range_server.store.index import StoreState
from sbp_back.range_server.store.replay import apply_records
from sbp_back.range_server.store.segment import Segment

logger = logging.getLogger(__name__)

_PATIENCE = 30.0
"""Seconds for which a start waits for a store that does not answer."""
_BEGINNING = 64 * 1024
"""Bytes of an object that are read for its record headers, unless there are more of them."""
_READS = 16
"""Objects looked at at once."""


class RecoveredObjects(Struct):
    """``segments`` in order; the last one is empty, to be written next."""

    incarnation: int
    state: StoreState = field(default_factory=StoreState)
    segments: list[Segment] = field(default_factory=list)
    objects: int = 0
    scanned_bytes: int = 0


def recover(bucket: Bucket, cache: Cache, segment_bytes: int) -> RecoveredObjects:
    """Take over what was written at ``bucket`` before. Raises ``StoreCorrupt`` and ``OSError``."""
    result = RecoveredObjects(_claim(bucket))
    with ThreadPoolExecutor(_READS, "anabranch-recover") as pool:
        for incarnation in range(result.incarnation):
            end = bucket.end_log(incarnation, 0, os.urandom(UNIQUE_BYTES), _PATIENCE)
            sizes = bucket.numbers(incarnation)
            tasks = ((bucket, incarnation, number, sizes.get(number, 0)) for number in range(end))
            for number, group in enumerate(_ahead(pool, tasks)):
                _apply(result, cache, incarnation, number, group)
    base = result.segments[-1].end if result.segments else 0
    for segment in result.segments:
        segment.sealed = True
    result.segments.append(cache.segment(base, segment_bytes))
    return result


def _claim(bucket: Bucket) -> int:
    """A number that nobody else has, when everybody has one below."""
    names = bucket.list("incarnations/")
    number = max((int(name.rpartition("/")[2], 16) for name in names), default=-1) + 1
    unique = os.urandom(UNIQUE_BYTES)
    while bucket.write_once(f"incarnations/{number:016x}", unique, _PATIENCE) != unique:
        number += 1
    return number


def _ahead(pool: ThreadPoolExecutor, tasks: Iterable[tuple[Bucket, int, int, int]]) -> Iterator[ObjectGroup]:
    """The groups of objects, in order, so many looked at at once."""
    waiting = []
    for task in tasks:
        waiting.append(pool.submit(_look, *task))
        if len(waiting) > _READS:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _look(bucket: Bucket, incarnation: int, number: int, size: int) -> ObjectGroup:
    """The group of an object that is part of a log; ``size`` of it, if that is known. Raises ``StoreCorrupt``."""
    key = key_of("", incarnation, number)
    try:
        if not size:
            size = len(bucket.get(key))
        start = bucket.get_range(key, 0, min(size, _BEGINNING))
        head = decode_head(start, incarnation, number)
        if len(start) < BEFORE_RECORDS:
            raise DecodeError("it has no group")
        wanted = records_end(start)
        if len(start) < min(wanted, size):
            start = bucket.get_range(key, 0, min(wanted, size))
        group = decode_group(start, size)
        if HEAD_BYTES + head.length != size:
            raise DecodeError(f"it has {size} bytes, not {HEAD_BYTES + head.length}")
        return group
    except FileNotFoundError as error:
        raise StoreCorrupt(f"acknowledged data is missing: {error}") from error
    except DecodeError as error:
        raise StoreCorrupt(f"acknowledged data is damaged: {bucket.url}, {key}: {error}") from error


def _apply(result: RecoveredObjects, cache: Cache, incarnation: int, number: int, group: ObjectGroup) -> None:
    segments = result.segments
    segment = segments[-1] if segments else None
    if segment is None or segment.base != group.base:
        if segment is not None and group.base < segment.end:
            raise StoreCorrupt(f"object {number} of incarnation {incarnation} says that it lies in front of others")
        segment = cache.segment(group.base, group.segment_bytes)
        segments.append(segment)
    if group.position != segment.used:
        raise StoreCorrupt(f"object {number} of incarnation {incarnation} does not follow the one before")
    source_of(segment).add(group.position, incarnation, number, group.size)
    try:
        apply_records(result.state, segment, group)
    except StoreError as error:
        raise StoreCorrupt(f"object {number} of incarnation {incarnation}: {error}") from error
    segment.used = group.position + group.size
    result.objects += 1
    result.scanned_bytes += group.size
