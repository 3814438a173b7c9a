"""The wire format of appends, and their answers, between nodes: a head in MessagePack, then the batch's own bytes.

u32 bytes of the head (big endian) | head | payload
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from bridges.cluster.told_errors import Told
from bridges.errors import BatchInvalid
from bridges.formats import format_of
from bridges.formats.producer import (
    FIRST_KIND_OF_FRONTS,
    EventStamp,
    InTransaction,
    LedgerKind,
    ProducerStamp,
    SeqNoStamp,
    Stamp,
)
from bridges.log.interfaces import Batch, Guard

_HEAD = struct.Struct(">I")

_STAMPS: Mapping[int, Callable[..., Stamp]] = {
    int(LedgerKind.KAFKA): ProducerStamp,
    int(LedgerKind.EVENT_NUMBER): EventStamp,
    int(LedgerKind.SEQ_NO): SeqNoStamp,
}


class ForwardedAppend(msgspec.Struct, array_like=True, frozen=True):
    """One batch for a partition of the topic with this id. ``turn`` grows when the sender begins again: after a batch
    was refused because the receiver does not own the partition, the later batches of that turn are refused, too."""

    number: int
    turn: int
    topic: str
    topic_id: bytes
    partition: int
    count: int
    flags: int
    max_timestamp: int
    stamp: tuple[Any, ...] | None
    guard: Guard | None
    transaction: InTransaction | None
    import_epoch: int
    own: bool
    lane: int | None


class AppendAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The outcome of the append ``number``. ``elsewhere``: this node does not own the partition, and has done nothing;
    with ``unknown``, it has lost the partition, and the append may have been done."""

    number: int
    base: int = -1
    end: int = -1
    skipped: int = 0
    duplicate: bool = False
    append_time_ms: int = -1
    error: Told | None = None
    elsewhere: bool = False
    unknown: bool = False


_to_bytes = msgspec.msgpack.Encoder().encode
_append = msgspec.msgpack.Decoder(ForwardedAppend).decode
_answer = msgspec.msgpack.Decoder(AppendAnswer).decode


def encode_append(number: int, turn: int, place: tuple[str, bytes, int], batch: Batch) -> bytes:
    """Encode a batch. The stamp of a front's own kind of writers is not sent: the receiver reads it from the batch."""
    stamp = batch.producer
    told: tuple[Any, ...] | None = None
    if stamp is not None and stamp.kind not in _STAMPS:
        told = (stamp.kind,)
    elif isinstance(stamp, tuple):
        told = (stamp.kind, *(list(value) if isinstance(value, range) else value for value in stamp))
    head = _to_bytes(
        ForwardedAppend(
            number,
            turn,
            *place,
            batch.count,
            batch.flags,
            batch.max_timestamp,
            told,
            batch.guard,
            batch.transaction,
            batch.import_epoch,
            batch.own,
            None if batch.lane is None else hash(batch.lane),
        )
    )
    return b"".join((_HEAD.pack(len(head)), head, batch.payload))


def decode_append(raw: bytes, sender: int) -> tuple[ForwardedAppend, Batch]:
    """Decode a batch; ``sender`` distinguishes the lanes of different nodes. Raises BatchInvalid."""
    try:
        (length,) = _HEAD.unpack_from(raw)
        view = memoryview(raw)[_HEAD.size :]
        head = _append(view[:length])
        stamp = None
        if head.stamp is not None and head.stamp[0] >= FIRST_KIND_OF_FRONTS:
            with suppress(
                BatchInvalid
            ):  # admission refuses what this node cannot read (bridges/log/partition/admission.py)
                stamp = format_of(head.flags).describe(view[length:]).producer
        elif head.stamp is not None:
            stamp = _STAMPS[head.stamp[0]](*head.stamp[1:])
    except (struct.error, msgspec.DecodeError, KeyError, TypeError) as error:
        raise BatchInvalid(f"this is no forwarded append: {error}") from None
    batch = Batch(
        bytearray(view[length:]),  # the append path stamps it in place
        head.count,
        head.flags,
        head.max_timestamp,
        stamp,
        head.guard,
        None,
        head.transaction,
        head.import_epoch,
        head.own,
        None if head.lane is None else (sender, head.lane),
    )
    return head, batch


def encode_answer(answer: AppendAnswer) -> bytes:
    return _to_bytes(answer)


def decode_answer(raw: bytes) -> AppendAnswer:
    """Decode an answer. Raises msgspec.DecodeError."""
    return _answer(raw)
