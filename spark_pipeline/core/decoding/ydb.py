"""YDB's messages as columns, for bodies that are not compressed: all fields of all messages at once.

YDB compresses bodies one by one, so compressed bodies, like any other unusual input, raise :class:`Unusual` and are
read record by record (see :mod:`spark_pipeline.core.decoding.kafka`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bridges.errors import BatchInvalid
from bridges.formats.base import APPEND_TIME
from bridges.formats.compression import DEFAULT_LIMIT
from bridges.formats.records import StoredBatch
from bridges.formats.ydb import (
    DELTA_TAG,
    KEY_ITEM,
    NULL_ITEM,
    TIMESTAMP_ITEM,
    TOMBSTONE_ITEM,
    Head,
    check_crc,
    next_message,
    parse_head,
)
from bridges.formats.ydb_codecs import Codec
from spark_pipeline.core.decoding.columns import Fields, Wanted, assemble, list_of, strings, times
from spark_pipeline.core.decoding.varints import Bools, Int64s, Numbers, Unusual, chain, steps_by, walk
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns

_MESSAGE_TAG = 0x0A
_SEQ_NO, _CREATED, _DATA, _UNCOMPRESSED_SIZE, _ITEM = 0x08, 0x12, 0x1A, 0x20, 0x3A
"""Tags of a message's fields. Tags inside metadata items and times stand in the code that reads them."""
_LATEST = 1 << 53
_MS_PER_S = 1000
_NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Body:
    """A batch whose checksum matches its bytes."""

    batch: StoredBatch
    head: Head

    @property
    def size(self) -> int:
        """Return the bytes that its messages take."""
        return len(self.batch.payload) - self.head.body


def open_body(batch: StoredBatch, limit: int = DEFAULT_LIMIT) -> Body:
    """Check ``batch``. Raises BatchInvalid, BatchCorrupt."""
    head = parse_head(batch.payload)
    for _ in check_crc(batch.payload):
        pass
    return Body(batch, head)


@dataclass(slots=True)
class _Messages:
    """The fields of each message: ``created`` in ms, -1 if unknown; ``item_of``, each item's message, ascending."""

    seq_no: Int64s
    created: Int64s
    delta: Int64s
    data_start: Int64s
    data_end: Int64s
    item_of: Int64s
    item_start: Int64s
    item_end: Int64s


@dataclass(slots=True)
class _Items:
    """The metadata items: ``of`` is the message of each, the others are the positions of its name and its value."""

    of: Int64s
    name_start: Int64s
    name_end: Int64s
    start: Int64s
    end: Int64s

    def chosen(self, which: Bools | Int64s) -> _Items:
        return _Items(self.of[which], self.name_start[which], self.name_end[which], self.start[which], self.end[which])


def decode(bodies: Sequence[Body], within: OffsetRange, columns: Columns) -> pa.RecordBatch:
    """Return the records of ``bodies``, at least one, in a range of offsets. Raises Unusual."""
    if any(body.head.codec != Codec.RAW or not body.head.messages for body in bodies):
        raise Unusual
    numbers = Numbers(memoryview(body.batch.payload)[body.head.body :] for body in bodies)
    counts = np.array([body.head.messages for body in bodies], np.int64)
    begins, ends = _places(numbers, bodies)
    messages = _fields(numbers, begins, ends)
    offsets = _offsets(bodies, counts, messages.delta)
    items = _items(numbers, messages)
    wanted = Wanted(offsets, counts, within)
    chosen = wanted.chosen
    if any(_is(numbers, items, name).any() for name in (NULL_ITEM, TIMESTAMP_ITEM)):
        raise Unusual
    is_key, is_tombstone = _is(numbers, items, KEY_ITEM), _is(numbers, items, TOMBSTONE_ITEM)
    empty = messages.data_start == messages.data_end
    tombstone = np.zeros(len(offsets), np.bool_)
    is_tombstone &= empty[items.of]
    tombstone[items.of[is_tombstone]] = True
    keys = items.chosen(np.flatnonzero(is_key))
    keyed, first = np.unique(keys.of, return_index=True)
    keys = keys.chosen(first)
    is_key[:] = _is_first(is_key, items.of)
    headers = items.chosen(~(is_key | is_tombstone))

    def key() -> pa.Array:
        key_start, key_end = begins.copy(), begins.copy()
        key_start[keyed], key_end[keyed] = keys.start, keys.end
        missing = np.ones(len(offsets), np.bool_)
        missing[keyed] = False
        return Fields(numbers.data, key_start, key_end, missing).array(chosen)

    def value() -> pa.Array:
        missing = tombstone if tombstone.any() else None
        return Fields(numbers.data, messages.data_start, messages.data_end, missing).array(chosen)

    names = [body.head.producer_id.decode(errors="replace") or None for body in bodies]
    sent = [body.batch.written_ms for body in bodies]
    late = [body.batch.flags & APPEND_TIME != 0 for body in bodies]

    def timestamp() -> pa.Array:
        told = wanted.choose(messages.created)
        if any(late):
            told = np.where(wanted.of_batches([int(one) for one in late]) > 0, wanted.of_batches(sent), told)
        return times(told)

    made = {
        **wanted.columns("ydb", sent, names, late),
        "key": key,
        "value": value,
        "timestamp": timestamp,
        "headers": lambda: _headers(numbers, headers, len(offsets), chosen),
        "seq": lambda: pa.array(wanted.choose(messages.seq_no)),
    }
    return assemble(within, columns, wanted.count, made)


def _head(data: bytes, position: int) -> tuple[int, int]:
    """Return the size of a message's head, its tag and its length, and the position behind the message."""
    begin = position
    if data[position] != _MESSAGE_TAG:
        raise Unusual
    position += 1
    size = shift = 0
    while True:
        byte = data[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return position - begin, position + size
        shift += 7
        if shift > 28:
            raise Unusual


_steps = steps_by(_head)


def _places(numbers: Numbers, bodies: Sequence[Body]) -> tuple[Int64s, Int64s]:
    """Return the positions at which each message's fields begin and end."""
    found: list[Int64s] = []
    begin = 0
    for body in bodies:
        end = begin + body.size
        starts, behind = chain(numbers, begin, end, body.head.messages, _head, _steps)
        if behind < end and not _is_last(numbers.data, behind, end):
            raise Unusual
        found.append(starts)
        begin = end
    size, at = numbers.unsigned(np.concatenate(found) + 1)
    return at, at + size


def _is_last(data: bytes, position: int, end: int) -> bool:
    """Return whether no further message follows; other fields of a write request may."""
    try:
        return next_message(data, position, end) is None
    except (BatchInvalid, IndexError):
        return False


def _fields(numbers: Numbers, begins: Int64s, ends: Int64s) -> _Messages:
    count = len(begins)
    seq_no = np.zeros(count, np.int64)
    delta = np.full(count, -1, np.int64)
    data_start, data_end = begins.copy(), begins.copy()
    created_start, created_end = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    whose: list[Int64s] = []
    item_starts: list[Int64s] = []
    item_ends: list[Int64s] = []
    for tag, which, value, past in walk(numbers, begins, ends):
        if tag == _SEQ_NO:
            seq_no[which] = value
        elif tag == _CREATED:
            if (created_start[which] >= 0).any():
                raise Unusual
            created_start[which], created_end[which] = value, past
        elif tag == _DATA:
            data_start[which], data_end[which] = value, past
        elif tag == _ITEM:
            whose.append(which)
            item_starts.append(value)
            item_ends.append(past)
        elif tag == DELTA_TAG:
            delta[which] = value
        elif tag != _UNCOMPRESSED_SIZE:
            raise Unusual
    created = _created(numbers, created_start, created_end)
    if not whose:
        none = np.empty(0, np.int64)
        return _Messages(seq_no, created, delta, data_start, data_end, none, none, none)
    of = np.concatenate(whose)
    order = np.argsort(of, kind="stable")
    return _Messages(
        seq_no,
        created,
        delta,
        data_start,
        data_end,
        of[order],
        np.concatenate(item_starts)[order],
        np.concatenate(item_ends)[order],
    )


def _created(numbers: Numbers, begins: Int64s, ends: Int64s) -> Int64s:
    """Return times in ms; -1 for a message without a time, or with an invalid one."""
    seconds, nanos = np.zeros_like(begins), np.zeros_like(begins)
    for tag, which, value, _ in walk(numbers, begins, ends):
        if tag == 0x08:
            seconds[which] = value
        elif tag == 0x10:
            nanos[which] = value
        else:
            raise Unusual
    # A number of eight bytes is too large for either, and must not overflow here.
    ms = np.minimum(seconds, _LATEST) * _MS_PER_S + nanos // _NS_PER_MS
    return np.where((begins < 0) | (ms >= _LATEST), -1, ms)


def _offsets(bodies: Sequence[Body], counts: Int64s, delta: Int64s) -> Int64s:
    begin = 0
    parts: list[Int64s] = []
    for body in bodies:
        batch, number = body.batch, body.head.messages
        span = batch.end_offset - batch.base_offset
        if body.head.sparse:
            # A message without a relative offset has -1 here, which is refused like one that is out of order.
            own = delta[begin : begin + number]
            if (np.diff(own, prepend=-1) <= 0).any() or int(own[-1]) >= span:
                raise Unusual
        else:
            if number != span:
                raise Unusual
            own = np.arange(number, dtype=np.int64)
        parts.append(batch.base_offset + own)
        begin += number
    return np.concatenate(parts)


def _items(numbers: Numbers, messages: _Messages) -> _Items:
    begins, ends = messages.item_start, messages.item_end
    name_start, name_end = begins.copy(), begins.copy()
    start, end = begins.copy(), begins.copy()
    for tag, which, value, past in walk(numbers, begins, ends):
        if tag == 0x0A:
            name_start[which], name_end[which] = value, past
        elif tag == 0x12:
            start[which], end[which] = value, past
        else:
            raise Unusual
    return _Items(messages.item_of, name_start, name_end, start, end)


def _is(numbers: Numbers, items: _Items, name: str) -> Bools:
    """Mark the items whose name is ``name``."""
    wanted = name.encode()
    found: Bools = (items.name_end - items.name_start) == len(wanted)
    for place, byte in enumerate(wanted):
        which = np.flatnonzero(found)
        if not len(which):
            break
        found[which] = numbers.octets[items.name_start[which] + place] == byte
    return found


def _is_first(which: Bools, of: Int64s) -> Bools:
    """Mark the first item of each message among the items marked in ``which``."""
    places = np.flatnonzero(which)
    _, first = np.unique(of[places], return_index=True)
    found = np.zeros_like(which)
    found[places[first]] = True
    return found


def _headers(numbers: Numbers, items: _Items, count: int, chosen: Int64s | None) -> pa.Array:
    if chosen is not None:
        place = np.full(count, -1, np.int64)
        place[chosen] = np.arange(len(chosen))
        items = items.chosen(place[items.of] >= 0)
        items.of = place[items.of]
        count = len(chosen)
    first = np.concatenate(([0], np.cumsum(np.bincount(items.of, minlength=count))))
    names = strings(Fields(numbers.data, items.name_start, items.name_end))
    return list_of(first, names, Fields(numbers.data, items.start, items.end).array())
