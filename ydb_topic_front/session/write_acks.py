"""Encoder of the answer to a WriteRequest: one ack per message (docs/protocols/ydb.md, "Acknowledgements").

Acks of messages whose numbers and offsets rise by one have the same byte pattern, so a run of them is written column by
column instead of one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from anabranch_kit.run.sliced import Sliced
from bridges.formats.protobuf import put_varint
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.statuses import Status

_WriteResponse = messages["Ydb.Topic.StreamWriteMessage.WriteResponse"]

_HEAD = bytearray(b"\x08")
put_varint(_HEAD, Status.SUCCESS)
_HEAD.append(0x22)  # field 4: write_response
_ACK = 0x0A
_SEQ_NO = 0x08
_WRITTEN = 0x12
IN_TRANSACTION = -2
"""Offset of messages that are staged in a transaction."""
_OUTCOMES = {-1: b"\x1a\x02\x08\x01", IN_TRANSACTION: b"\x22\x00"}
"""Outcomes without an offset: field 3 with reason 1, already written; field 4, written in a transaction."""
_OFFSET = 0x08
_LOWS = bytes(range(0x80, 0x100))
_LOW = [bytes((digit,)) for digit in range(0x80)]
_HIGH = [bytes((digit | 0x80,)) for digit in range(0x80)]
"""_LOW: encoded numbers below 128. _HIGH: first bytes of larger numbers."""
_FEW = 32
"""Fewer acks than this are written one by one just as fast."""
_RUNS_AT_ONCE = 2_000


class Run(NamedTuple):
    """Messages with the same outcome: those with ``seq_nos`` lie from ``offset`` on, were skipped (-1), or are
    :data:`IN_TRANSACTION`."""

    seq_nos: Sequence[int]
    offset: int


class Times(NamedTuple):
    """Times that a request waited, in seconds: for its turn (least and most of its parts), to become durable, and for
    the write speed of its partition."""

    persisting: float
    min_wait: float
    max_wait: float
    quota: float = 0.0


def encode_at_once(runs: Sequence[Run], partition: int, times: Times) -> bytes | None:
    """Return the result of :func:`encode_response` for a single run without gaps, the usual case; None for any
    other."""
    if len(runs) != 1:
        return None
    seq_nos, offset = runs[0]
    if not isinstance(seq_nos, range) or len(seq_nos) > _RUNS_AT_ONCE:
        return None
    out = bytearray()
    _put(out, seq_nos.start, len(seq_nos), offset)
    return _whole(out, partition, times)


def encode_response(runs: Sequence[Run], partition: int, times: Times) -> Sliced[bytes]:
    """Encode a ``FromServer`` with a write_response, in slices."""
    out = bytearray()
    steps = 0
    for run in runs:
        for first, count, offset in _straight(run):
            _put(out, first, count, offset)
            steps += 1 + count // 128
            if steps >= _RUNS_AT_ONCE:
                steps = 0
                yield None
    return _whole(out, partition, times)


def _whole(out: bytearray, partition: int, times: Times) -> bytes:
    persisting, least, most, quota = times
    out += _tail(partition, round(persisting * 1000), round(least * 1000), round(most * 1000), round(quota * 1000))
    return b"".join((_HEAD, _varint(len(out)), out))


@lru_cache(maxsize=4096)
def _tail(partition: int, persisting: int, min_wait: int, max_wait: int, quota: int) -> bytes:
    """Encode the fields behind the acks. Times are in whole ms, as a YDB server reports them."""
    response = _WriteResponse(partition_id=partition)
    statistics = response.write_statistics
    for duration, ms in (
        (statistics.persisting_time, persisting),
        (statistics.min_queue_wait_time, min_wait),
        (statistics.max_queue_wait_time, max_wait),
        (statistics.partition_quota_wait_time, quota),
        # Topics have no quota of their own, but clients require the field.
        (statistics.topic_quota_wait_time, 0),
    ):
        duration.SetInParent()
        duration.seconds, duration.nanos = ms // 1000, ms % 1000 * 1_000_000
    encoded: bytes = response.SerializeToString()
    return encoded


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


def _straight(run: Run) -> Iterator[tuple[int, int, int]]:
    """Yield (first number, count, offset or outcome) for each gapless stretch of a run."""
    seq_nos, offset = run
    if isinstance(seq_nos, range):
        if seq_nos:
            yield seq_nos[0], len(seq_nos), offset
        return
    begin = 0
    for index in range(1, len(seq_nos) + 1):
        if index == len(seq_nos) or seq_nos[index] != seq_nos[index - 1] + 1:
            yield seq_nos[begin], index - begin, offset + begin if offset >= 0 else offset
            begin = index


def _put(out: bytearray, first: int, count: int, offset: int) -> None:
    if count == 1:
        number = _varint(first)
        if offset < 0:
            outcome = _OUTCOMES[offset]
            out += b"%c%c%c%b%b" % (_ACK, 1 + len(number) + len(outcome), _SEQ_NO, number, outcome)
        else:
            at = _varint(offset)
            parts = (_ACK, 4 + len(number) + len(at), _SEQ_NO, number, _WRITTEN, 1 + len(at), _OFFSET, at)
            out += b"%c%c%c%b%c%c%c%b" % parts
        return
    if count <= _FEW and (first & 0x7F) + count <= 0x80 and (offset < 0 or (offset & 0x7F) + count <= 0x80):
        _put_few(out, first, count, offset)
        return
    while count:
        # Up to where the encoded number or offset gets longer.
        size = _size(first)
        same = min(count, (1 << 7 * size) - first)
        if offset < 0:
            outcome = _OUTCOMES[offset]
            _put_alike(out, same, [(first, size)], bytes((_ACK, 1 + size + len(outcome), _SEQ_NO)), outcome)
        else:
            place = _size(offset)
            same = min(same, (1 << 7 * place) - offset)
            head = bytes((_ACK, 4 + size + place, _SEQ_NO))
            _put_alike(out, same, [(first, size), (offset, place)], head, bytes((_WRITTEN, 1 + place, _OFFSET)))
            offset += same
        first += same
        count -= same


def _put_few(out: bytearray, first: int, count: int, offset: int) -> None:
    """Append acks whose numbers, and offsets, differ in their lowest byte only."""
    low, rest = first & 0x7F, _varint(first >> 7) if first >> 7 else b""
    numbers = (_HIGH if rest else _LOW)[low : low + count]
    if offset < 0:
        outcome = _OUTCOMES[offset]
        head, tail = bytes((_ACK, 2 + len(rest) + len(outcome), _SEQ_NO)), rest + outcome
        out += b"".join([head + number + tail for number in numbers])
        return
    place, end = offset & 0x7F, _varint(offset >> 7) if offset >> 7 else b""
    places = (_HIGH if end else _LOW)[place : place + count]
    head = bytes((_ACK, 6 + len(rest) + len(end), _SEQ_NO))
    middle = rest + bytes((_WRITTEN, 2 + len(end), _OFFSET))
    out += b"".join([head + number + middle + at + end for number, at in zip(numbers, places, strict=True)])


def _put_alike(out: bytearray, count: int, numbers: list[tuple[int, int]], head: bytes, middle: bytes) -> None:
    """Append ``count`` acks of the same length: head, number, middle, and the second number if there is one."""
    (first, size), *others = numbers
    start = len(out)
    pattern = head + bytes(size) + middle + bytes(sum(size for _, size in others))
    out += pattern * count
    width = len(pattern)
    at = start + len(head)
    _put_column(out, at, width, first, size, count)
    for value, place in others:
        _put_column(out, at + size + len(middle), width, value, place, count)


def _put_column(out: bytearray, at: int, width: int, first: int, size: int, count: int) -> None:
    """Write ``count`` numbers from ``first`` on, ``size`` bytes each, at ``at`` and every ``width`` bytes behind it."""
    end = at + width * count
    for place in range(size):
        if place == 0:
            low = first & 0x7F
            column = (_LOWS * (count // 128 + 2))[low : low + count]
        else:
            pieces = []
            value, left = first, count
            while left:
                block = 1 << 7 * place
                same = min(left, block - (value & block - 1))
                pieces.append(bytes((value >> 7 * place & 0x7F | 0x80,)) * same)
                value += same
                left -= same
            column = b"".join(pieces)
        if place == size - 1:
            column = column.translate(_LAST)
        out[at + place : end : width] = column


_LAST = bytes(byte & 0x7F for byte in range(256))


def _size(value: int) -> int:
    """Return the length of a varint in bytes."""
    return max(1, (value.bit_length() + 6) // 7)
