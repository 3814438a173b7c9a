"""Appends to partitions that other nodes own, and this node's answers to those of other nodes.

The answer is the owner's, so the owner recognises repetitions. Batches of a partition are handed over in the order in
which they were given, even when the partition moves, to this node or another.

After a lost answer, the batch is sent again if it has a producer or is a marker. The outcome of any other batch is
unknown, and its writer gets LogUnavailable.

On the wire an append is a head in MessagePack, then the batch's own bytes; an answer is in MessagePack.

    u32 bytes of the head (big endian) | head | payload
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from bridges.cluster.at_owner import AGAIN_S, find_owner
from bridges.cluster.peers.lane import Answers
from bridges.cluster.peers.peers import LaneOpening
from bridges.cluster.peers.wire_errors import EncodedError, decode_error, encode_error
from bridges.errors import BatchInvalid, LogDeleted, LogError, LogUnavailable, NotOwner, PeerUnreachable
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
from bridges.log.interfaces import NOT_APPENDED, AppendDone, Appended, Batch, Guard

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.cluster.ownership import Ownership
    from bridges.cluster.peers.peers import Peers
    from bridges.cluster.peers.stream import PeerStream

KIND = "append"
"""The kind of peer stream."""
_AT_ONCE = 16_384
"""Most batches of one other node that are being appended."""
_BYTES_AT_ONCE = 32 * 1024 * 1024
_WORTH_S = 30.0
"""Seconds for which a batch is sent again: clients wait no longer."""

_log = structlog.get_logger("anabranch.cluster")

Identify = Callable[[str], bytes | None]
Here = Callable[[str, int, Batch, AppendDone], None]


class ForwardedAppends:
    """The forwarded appends of one node (see :class:`.partitions.Elsewhere`). ``here`` appends to its own logs;
    ``identify`` returns a topic's id, because a topic that was made again under its name is another one."""

    def __init__(self, peers: Peers, owners: Ownership, here: Here, identify: Identify, barrier: Barrier) -> None:
        self._peers = peers
        self._owners = owners
        self._barrier = barrier
        self._here = here
        self._identify = identify
        self.places: dict[tuple[str, int], _Place] = {}
        self.forwarded = 0
        """Batches that were sent to other nodes."""
        peers.serve_stream(KIND, LaneOpening, self._serve)

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether another node must append a batch for the partition, or the batch must wait behind a forwarded
        one."""
        owners = self._owners
        return (topic, partition) in self.places or not owners.is_mine(owners.slot_of(topic, partition))

    def append(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        """Append a batch through its owner; see :meth:`bridges.log.remote.partitions.Partitions.append`."""
        place = self.places.get((topic, partition))
        if place is None:
            place = self.places[topic, partition] = _Place(topic, partition)
        place.waiting.append(_Forwarded(batch, done))
        place.wake.set()
        if place.driver is None:
            place.driver = asyncio.get_running_loop().create_task(self._drive(place))

    async def close(self) -> None:
        """Stop sending, and refuse the waiting appends because the node is stopping."""
        drivers = [place.driver for place in self.places.values() if place.driver is not None]
        for driver in drivers:
            driver.cancel()
        if drivers:
            await asyncio.wait(drivers)

    # --- to others ----------------------------------------------------------------------------------------------

    async def _drive(self, place: _Place) -> None:
        """Append all waiting batches of a partition, in order; return when none waits."""
        try:
            while place.waiting:
                try:
                    await self._append_some(place)
                except (NotOwner, PeerUnreachable) as error:
                    _log.debug("an owner does not answer", topic=place.topic, error=str(error))
                    await asyncio.sleep(AGAIN_S)
                except LogError as error:
                    self._refuse(place, error)
                self._give_up_old(place)
        except Exception as error:  # noqa: BLE001 - logged, counted and answered
            self._barrier.caught("forwarded appends", error)
        finally:
            del self.places[place.topic, place.partition]
            place.driver = None
            self._refuse(place, LogUnavailable("the node is stopping"))

    def _refuse(self, place: _Place, error: LogError) -> None:
        """Refuse all batches of a place, waiting ones and those in flight."""
        gone = [*place.sent, *place.waiting]
        place.sent.clear()
        place.waiting.clear()
        for one in gone:
            if not one.answered:
                self._answer(one, NOT_APPENDED, error)

    def _give_up_old(self, place: _Place) -> None:
        """Refuse all waiting batches once the oldest has waited for too long, because later ones must not overtake
        it."""
        if place.waiting and place.waiting[0].since < time.monotonic() - _WORTH_S:
            self._refuse(place, LogUnavailable(f"{place} had no owner that answered for {_WORTH_S:.0f} s"))

    def _answer(self, one: _Forwarded, appended: Appended, error: LogError | None) -> None:
        one.answered = True
        self._barrier.call("append answer", one.done, appended, error)

    async def _append_some(self, place: _Place) -> None:
        """Append through one owner as long as it accepts batches. Raises LogError; all batches that are not done still
        wait then."""
        owners = self._owners
        topic_id = self._identify(place.topic)
        if topic_id is None:
            raise LogDeleted(f"{place} is not served any more")
        owner = find_owner(owners, owners.slot_of(place.topic, place.partition), str(place))
        if owner is None:
            while place.waiting:
                one = place.waiting.popleft()
                one.answered = True
                self._here(place.topic, place.partition, one.batch, one.done)
            return
        lane = self._peers.lane(owner, KIND, _decode_answer)
        await lane.open()
        place.turn += 1
        place.stopped = False
        whole = (place.topic, topic_id, place.partition)
        while not place.stopped:
            while place.waiting and not place.stopped:
                one = place.waiting.popleft()
                place.sent.append(one)
                one.again = False
                encode = partial(encode_append, turn=place.turn, place=whole, batch=one.batch)
                try:
                    await lane.send(encode, partial(self._answered, place, one))
                    self.forwarded += 1
                except PeerUnreachable:
                    one.again = place.stopped = True  # it was not sent
                except LogError as error:
                    self._answer(one, NOT_APPENDED, error)
            place.forget_answered()
            if not place.waiting and not place.sent:
                return
            place.wake.clear()
            if not place.waiting and not place.stopped:
                await place.wake.wait()
        # Wait for the outcome of all batches in flight before any of them is sent again.
        while any(not (one.answered or one.again) for one in place.sent):
            place.wake.clear()
            await place.wake.wait()
        place.waiting.extendleft(one for one in reversed(place.sent) if not one.answered)
        place.sent.clear()
        await asyncio.sleep(AGAIN_S)

    def _answered(self, place: _Place, one: _Forwarded, answer: AppendAnswer | None) -> None:
        """Process the owner's answer; None: it will never come."""
        place.wake.set()
        if one.answered:
            return
        if answer is None or answer.elsewhere:
            place.stopped = True
            if (answer is not None and not answer.unknown) or one.may_be_repeated:
                one.again = True
            else:
                text = f"{place} has lost its owner: whether the records were appended is not known"
                self._answer(one, NOT_APPENDED, LogUnavailable(text))
        elif answer.error is not None:
            self._answer(one, NOT_APPENDED, decode_error(answer.error))
        else:
            one.batch.append_time_ms = answer.append_time_ms
            self._answer(one, Appended(answer.base, answer.end, answer.skipped, answer.duplicate), None)

    # --- from others --------------------------------------------------------------------------------------------

    async def _serve(self, opening: LaneOpening, stream: PeerStream) -> None:
        # By partition: the turn in which a batch was refused because this node did not own the partition.
        refused: dict[tuple[str, int], int] = {}
        answers = Answers(stream, partial(self._receive, refused), _AT_ONCE, _BYTES_AT_ONCE)
        stream.when_draining(answers.stop)
        await answers.run()

    def _receive(self, refused: dict[tuple[str, int], int], raw: bytes) -> asyncio.Future[bytes]:
        """Append a batch that another node has forwarded."""
        head, batch = decode_append(raw, id(refused))
        place = head.topic, head.partition
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def done(appended: Appended, error: LogError | None) -> None:
            if isinstance(error, NotOwner):
                # Here, and not where the answer is sent: the next batch must find it.
                refused[place] = head.turn
                found = AppendAnswer(head.number, elsewhere=True, unknown=True)
            elif error is not None:
                found = AppendAnswer(head.number, error=encode_error(error))
            else:
                found = AppendAnswer(head.number, *appended, append_time_ms=batch.append_time_ms)
            answer.set_result(_encode(found))

        # Where the ids differ, one of the two nodes has not followed a change yet.
        if (
            refused.get(place, -1) < head.turn
            and self._owners.is_mine(self._owners.slot_of(*place))
            and self._identify(head.topic) == head.topic_id
        ):
            self._here(*place, batch, done)
        else:
            refused[place] = head.turn
            answer.set_result(_encode(AppendAnswer(head.number, elsewhere=True)))
        return answer


class _Forwarded:
    """One batch to forward."""

    __slots__ = ("again", "answered", "batch", "done", "since")

    def __init__(self, batch: Batch, done: AppendDone) -> None:
        self.batch = batch
        self.done = done
        self.since = time.monotonic()
        self.answered = False
        self.again = False

    @property
    def may_be_repeated(self) -> bool:
        part = self.batch.transaction
        return self.batch.producer is not None or (part is not None and part.commit is not None)


class _Place:
    """The batches for one partition: ``sent`` are in flight, ``waiting`` follow them."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[_Forwarded] = deque()
        self.sent: deque[_Forwarded] = deque()
        self.turn = 0
        self.stopped = False
        self.wake = asyncio.Event()
        self.driver: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def forget_answered(self) -> None:
        while self.sent and self.sent[0].answered:
            self.sent.popleft()


# --- on the wire ------------------------------------------------------------------------------------------------

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
    error: EncodedError | None = None
    elsewhere: bool = False
    unknown: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode_append = msgspec.msgpack.Decoder(ForwardedAppend).decode
_decode_answer = msgspec.msgpack.Decoder(AppendAnswer).decode


def encode_append(number: int, turn: int, place: tuple[str, bytes, int], batch: Batch) -> bytes:
    """Encode a batch. The stamp of a front's own kind of writers is not sent: the receiver reads it from the batch."""
    stamp = batch.producer
    told: tuple[Any, ...] | None = None
    if stamp is not None and stamp.kind not in _STAMPS:
        told = (stamp.kind,)
    elif isinstance(stamp, tuple):
        told = (stamp.kind, *(list(value) if isinstance(value, range) else value for value in stamp))
    head = _encode(
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
        head = _decode_append(view[:length])
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
