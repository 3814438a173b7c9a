"""Encoder of WriteRequests as the log's batches, for the producer of one session.

Small requests may share a batch. Their messages are stored as received, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anabranch_kit.run.sliced import Sliced
from bridges.formats import FormatId
from bridges.formats.producer import SeqNoStamp
from bridges.formats.protobuf import length
from bridges.formats.records import Buffer
from bridges.formats.ydb import Head, encode_batch, encode_in_slices, parse_head, without_first
from bridges.log.interfaces import Batch
from ydb_topic_front.session.write_request import Part

if TYPE_CHECKING:
    from ydb_topic_front.session.write_queue import Request

_YDB = int(FormatId.YDB)
_MESSAGE_TAG = 0x0A
TOGETHER_BYTES = 256 * 1024
_TOGETHER_MESSAGES = 64
"""Limits of a shared batch: bytes in total, and messages per request. Larger requests gain nothing from sharing, and
finding where their messages end takes time."""


class Held(NamedTuple):
    """Request of one part that waits to be handed over."""

    request: Request
    part: Part
    codec: int

    @property
    def shares(self) -> bool:
        """Return whether the request is small enough to share a batch."""
        return len(self.part.seq_nos) <= _TOGETHER_MESSAGES


def together(held: Sequence[Held]) -> Iterator[Sequence[Held]]:
    """Split ``held``, in order, into groups that can share a batch. A new group begins where the codec changes, the
    numbers do not rise, or the batch would become too large."""
    begin = size = 0
    for at, one in enumerate(held):
        size += len(one.part.messages)
        if at > begin:
            last = held[at - 1]
            if (
                one.codec != last.codec
                or one.part.seq_nos[0] <= last.part.seq_nos[-1]
                or not (one.shares and last.shares)
                or size > TOGETHER_BYTES
            ):
                yield held[begin:at]
                begin, size = at, len(one.part.messages)
    if begin < len(held):
        yield held[begin:]


def joined(parts: Sequence[Part]) -> Part:
    """Join parts with rising numbers into one, without the other fields of their requests."""
    first, last = parts[0].seq_nos[0], parts[-1].seq_nos[-1]
    straight = last - first == sum(len(part.seq_nos) for part in parts) - 1
    seq_nos = range(first, last + 1) if straight else [number for part in parts for number in part.seq_nos]
    return Part(b"".join(map(_messages_alone, parts)), seq_nos, max(part.max_created_ms for part in parts))


def _messages_alone(part: Part) -> Buffer:
    """Return a part's bytes without the fields of the request that follow its messages."""
    messages = part.messages
    position, end = 0, len(messages)
    for _ in part.seq_nos:
        if messages[position] != _MESSAGE_TAG:
            return messages  # other fields are in between, which readers of the batch skip
        size = messages[position + 1]
        position = position + 2 + size if size < 0x80 else length(messages, position + 1, end)[1]
    return messages[:position]


class Batches:
    """Encodes batches. ``producer`` is empty if nothing is deduplicated; ``meta`` is the session's encoded metadata."""

    __slots__ = ("_meta", "_producer")

    def __init__(self, producer: bytes, meta: bytes) -> None:
        self._producer = producer
        self._meta = meta

    def batch(self, part: Part, codec: int) -> Batch:
        """Encode a part as a batch. Copies its messages."""
        return self._around(encode_batch(self._head(part, codec), part.messages), part)

    def in_slices(self, part: Part, codec: int) -> Sliced[Batch]:
        """Encode a large part in slices: copying it at once would block the event loop."""
        payload = yield from encode_in_slices(self._head(part, codec), part.messages)
        return self._around(payload, part)

    def _head(self, part: Part, codec: int) -> Head:
        seq_nos = part.seq_nos
        numbers = len(seq_nos), seq_nos[0], seq_nos[-1], part.max_created_ms
        return Head(False, codec, *numbers, self._producer, self._meta)

    def _around(self, payload: Buffer, part: Part) -> Batch:
        seq_nos = part.seq_nos
        if not self._producer:
            return Batch(payload, len(seq_nos), _YDB, part.max_created_ms)
        stamp = SeqNoStamp(self._producer, seq_nos)
        rest = partial(self._rest, payload, seq_nos)
        return Batch(payload, len(seq_nos), _YDB, part.max_created_ms, stamp, None, rest)

    def _rest(self, payload: Buffer, seq_nos: Sequence[int], skipped: int) -> Batch:
        """Return the batch without its first ``skipped`` messages, which are in the log already."""
        head = parse_head(payload)
        messages = without_first(memoryview(payload)[head.body :], skipped)
        return self.batch(Part(messages, seq_nos[skipped:], head.max_created_ms), head.codec)
