"""YDB's messages as columns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from bridges.errors import BatchInvalid
from bridges.formats.codecs.ydb import Codec, Inflate, short_inflater
from bridges.formats.columns import Unusual
from bridges.formats.columns.rows import STEP_RECORDS, Body, Fields, Headers, Rows, distinct
from bridges.formats.columns.varints import Bools, Int64s, Numbers, chain, sizes, steps_by, walk
from bridges.formats.columns.weaving import Constant, Number, Part, cut, lists, weave
from bridges.formats.records import StoredBatch
from bridges.formats.ydb import (
    DELTA_TAG,
    KEY_ITEM,
    LAST_CREATED,
    NULL_ITEM,
    TIMESTAMP_ITEM,
    TOMBSTONE_ITEM,
    Head,
    YdbBuilder,
    check_crc,
    next_message,
    parse_head,
)

_CODECS = frozenset({Codec.RAW, Codec.GZIP, Codec.ZSTD})
_INFLATED_RECORDS, _INFLATED_BYTES = 500, 1024 * 1024
"""Most messages that are inflated in one step, and most bytes to which they are."""
_MESSAGE_TAG = 0x0A
_SEQ_NO, _CREATED, _DATA, _UNCOMPRESSED_SIZE, _ITEM = 0x08, 0x12, 0x1A, 0x20, 0x3A
"""Tags of a message's fields. Tags inside metadata items and times stand in the code that reads them."""
_LATEST = 1 << 53
_MS_PER_S = 1000
_NS_PER_MS = 1_000_000
_KEY = b"\x0a%c%b\x12" % (len(KEY_ITEM), KEY_ITEM.encode())
"""A metadata item for a key, without the key and its length."""
_OWN = {KEY_ITEM, NULL_ITEM, TIMESTAMP_ITEM, TOMBSTONE_ITEM}
"""Names that mean something else among a message's items than among headers."""
_TOMBSTONE = b"\x3a%c\x0a%c%b" % (len(TOMBSTONE_ITEM) + 2, len(TOMBSTONE_ITEM), TOMBSTONE_ITEM.encode())


@dataclass(slots=True, kw_only=True)
class YdbBody(Body):
    """Messages of a batch."""

    head: Head

    @property
    def step_records(self) -> int:
        return STEP_RECORDS if self.head.codec == Codec.RAW else _INFLATED_RECORDS

    @property
    def producer(self) -> str | None:
        return self.head.producer_id.decode(errors="replace") or None


def open_body(batch: StoredBatch, limit: int) -> Generator[None, None, YdbBody | None]:
    head = parse_head(batch.payload)
    yield from check_crc(batch.payload)
    if head.codec not in _CODECS or not head.messages:
        raise Unusual
    if head.codec != Codec.RAW and (head.messages // _INFLATED_RECORDS + 1) * _INFLATED_BYTES > limit:
        raise Unusual
    if not head.sparse and head.messages != batch.end_offset - batch.base_offset:
        raise Unusual
    return YdbBody(batch=batch, data=memoryview(batch.payload)[head.body :], count=head.messages, head=head)


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


def decode(bodies: Sequence[YdbBody], partial: bool = False) -> Rows:
    numbers = Numbers(body.data for body in bodies)
    begins, ends, counts, behind = _places(numbers, bodies, partial)
    count = len(begins)
    if not count:
        raise Unusual
    messages = _fields(numbers, begins, ends)
    items = _items(numbers, messages)
    if any(_is(numbers, items, name).any() for name in (NULL_ITEM, TIMESTAMP_ITEM)):
        raise Unusual
    keys, missing = None, None
    if len(items.of):
        is_key, is_tombstone = _is(numbers, items, KEY_ITEM), _is(numbers, items, TOMBSTONE_ITEM)
        is_tombstone &= (messages.data_start == messages.data_end)[items.of]
        if is_tombstone.any():
            missing = np.zeros(count, np.bool_)
            missing[items.of[is_tombstone]] = True
        key_items = items.chosen(np.flatnonzero(is_key))
        keyed, first = np.unique(key_items.of, return_index=True)
        if len(keyed):
            key_items = key_items.chosen(first)
            start, end = begins.copy(), begins.copy()
            start[keyed], end[keyed] = key_items.start, key_items.end
            without = np.ones(count, np.bool_)
            without[keyed] = False
            keys = Fields(numbers.data, start, end, without)
        is_key[:] = _is_first(is_key, items.of)
        items = items.chosen(~(is_key | is_tombstone))
    return Rows(
        numbers,
        _offsets(bodies, counts, messages.delta),
        messages.created,
        messages.seq_no,
        keys,
        _plain(Fields(numbers.data, messages.data_start, messages.data_end, missing), bodies, counts),
        _headers(numbers, items, count) if len(items.of) else None,
        behind,
    )


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


def _places(numbers: Numbers, bodies: Sequence[YdbBody], partial: bool) -> tuple[Int64s, Int64s, list[int], int]:
    """Return the positions at which each message's fields begin and end, the number of each body's messages, and the
    end of the last message."""
    found: list[Int64s] = []
    begin = behind = 0
    for body in bodies:
        end = begin + len(body.data)
        starts, behind = chain(numbers, begin, end, body.count, _head, _steps, partial)
        if behind < end and not partial and not _is_last(numbers.data, behind, end):
            raise Unusual
        found.append(starts)
        begin = end
    size, at = numbers.unsigned(np.concatenate(found) + 1)
    return at, at + size, [len(one) for one in found], behind


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


def _plain(values: Fields, bodies: Sequence[YdbBody], counts: Sequence[int]) -> Fields:
    """Return the values decoded. Raises Unusual for those that are not short, or do not decode."""
    if all(body.head.codec == Codec.RAW for body in bodies):
        return values
    data = memoryview(values.data)
    missing = set() if values.missing is None else set(np.flatnonzero(values.missing).tolist())
    places = enumerate(zip(values.starts.tolist(), values.ends.tolist(), strict=True))
    plain: list[bytes] = []
    left = _INFLATED_BYTES
    for body, count in zip(bodies, counts, strict=True):
        inflate: Inflate = bytes if body.head.codec == Codec.RAW else short_inflater(body.head.codec)
        for number, (start, end) in islice(places, count):
            value = b"" if number in missing else inflate(data[start:end])
            if value is None or (left := left - len(value)) < 0:
                raise Unusual
            plain.append(value)
    ends = np.cumsum([len(value) for value in plain])
    return Fields(b"".join(plain), np.concatenate(([0], ends[:-1])), ends, values.missing)


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


def _offsets(bodies: Sequence[YdbBody], counts: Sequence[int], delta: Int64s) -> Int64s:
    begin = 0
    parts: list[Int64s] = []
    for body, number in zip(bodies, counts, strict=True):
        batch = body.batch
        if body.head.sparse:
            # A message without a relative offset has -1 here, which is refused like one that is out of order.
            own = delta[begin : begin + number]
            if (np.diff(own, prepend=-1) <= 0).any() or int(own[-1]) >= batch.end_offset - batch.base_offset:
                raise Unusual
        else:
            own = body.first + np.arange(number, dtype=np.int64)
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


def _headers(numbers: Numbers, items: _Items, count: int) -> Callable[[], Headers]:
    def read() -> Headers:
        first = np.concatenate(([0], np.cumsum(np.bincount(items.of, minlength=count))))
        names = Fields(numbers.data, items.name_start, items.name_end)
        distinct(names)
        return first, names, Fields(numbers.data, items.start, items.end)

    return read


def encode(builders: Sequence[YdbBuilder], rows: Rows, counts: Sequence[int], producers: Sequence[str | None]) -> None:
    """Add ``rows`` to ``builders``: to each as many as its count. Raises Unusual for times that created_at cannot
    hold, or negative ones."""
    count, times, values = len(rows), rows.timestamps, rows.values
    if (times < -1).any() or (times > LAST_CREATED).any():
        raise Unusual
    timed = times >= 0
    seq_nos = np.where(rows.sequences < 0, rows.offsets + 1, rows.sequences)
    some = None if timed.all() else np.flatnonzero(timed)
    seconds, nanos = np.divmod(times if some is None else times[some], _MS_PER_S)
    with_nanos = np.flatnonzero(nanos)
    nanos = nanos[with_nanos] * _NS_PER_MS
    created = 1 + sizes(seconds)
    created[with_nanos] += 1 + sizes(nanos)
    if some is not None:
        with_nanos = some[with_nanos]
    value_sizes = values.sizes
    full = np.flatnonzero(value_sizes)
    full_sizes = Number(value_sizes[full], full)
    parts: list[Part] = [
        Constant(b"\x08"),
        Number(seq_nos),
        Constant(b"\x12", some),
        Number(created, some),
        Constant(b"\x08", some),
        Number(seconds, some),
        Constant(b"\x10", with_nanos),
        Number(nanos, with_nanos),
        Constant(b"\x1a", full),
        full_sizes,
        values,
        Constant(b"\x20", full),
        full_sizes,
    ]
    if rows.keys is not None:
        keyed = np.arange(count) if rows.keys.missing is None else np.flatnonzero(~rows.keys.missing)
        key_sizes = rows.keys.sizes[keyed]
        parts += [
            Constant(b"\x3a", keyed),
            Number(len(_KEY) + sizes(key_sizes) + key_sizes, keyed),
            Constant(_KEY, keyed),
            Number(key_sizes, keyed),
            rows.keys,
        ]
    if rows.headers is not None:
        parts.append(_encode_items(*rows.headers()))
    if values.missing is not None:
        parts.append(Constant(_TOMBSTONE, np.flatnonzero(values.missing)))
    data, ends = weave(count, parts, lambda size: [Constant(bytes((_MESSAGE_TAG,))), Number(size)])
    firsts = np.cumsum([0, *counts])
    newest = np.maximum.reduceat(times, firsts[:-1]).tolist()
    lasts = seq_nos[firsts[1:] - 1].tolist()
    seq_nos_of = zip(seq_nos[firsts[:-1]].tolist(), lasts, strict=True)
    for builder, told, number, most, producer, piece in zip(
        builders, seq_nos_of, counts, newest, producers, cut(data, ends, firsts), strict=True
    ):
        builder.add_encoded(piece, number, told, most, producer)


def _encode_items(first: Int64s, names: Fields, values: Fields) -> Fields:
    if values.missing is not None or distinct(names) & _OWN:
        raise Unusual
    full = np.flatnonzero(values.sizes)
    parts: list[Part] = [
        Constant(b"\x0a"),
        Number(names.sizes),
        names,
        Constant(b"\x12", full),
        Number(values.sizes[full], full),
        values,
    ]
    return lists(first, parts, lambda size: [Constant(bytes((_ITEM,))), Number(size)])
