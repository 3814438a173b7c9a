"""Appends to partitions that other nodes own, and this node's answers to those of other nodes.

The answer is the owner's, so the owner recognises repetitions. Batches of a partition are handed over in the order in
which they were given, even when the partition moves, to this node or another.

After a lost answer, the batch is sent again if it has a producer or is a marker. The outcome of any other batch is
unknown, and its writer gets LogUnavailable.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from anabranch_kit.memory.budget import Kind
from bridges.cluster.ownership import owner_of
from bridges.cluster.told_errors import heard, tell
from bridges.errors import LogDeleted, LogError, LogUnavailable, NotOwner, PeerUnreachable
from bridges.log.interfaces import NOT_APPENDED, AppendDone, Appended, Batch
from bridges.log.remote.forwarded_wire import (
    AppendAnswer,
    ForwardedAppend,
    decode_answer,
    decode_append,
    encode_answer,
    encode_append,
)

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Ownership
    from bridges.cluster.peer_stream import PeerStream
    from bridges.cluster.peers import Peers

KIND = "append"
"""The kind of peer stream."""
_UNDER_WAY = 16 * 1024 * 1024
"""Most bytes in flight to one node; a single batch may be larger."""
_AGAIN_S = 0.05
_WORTH_S = 30.0
"""Seconds for which a batch is sent again: clients wait no longer."""

_log = structlog.get_logger("anabranch.cluster")

Identify = Callable[[str], bytes | None]
Here = Callable[[str, int, Batch, AppendDone], None]


class ForwardedAppends:
    """The forwarded appends of one node (see :class:`.appends.Elsewhere`). ``here`` appends to its own logs;
    ``identify`` returns a topic's id, because a topic that was made again under its name is another one."""

    def __init__(
        self, peers: Peers, owners: Ownership, node_id: int, here: Here, identify: Identify, barrier: Barrier
    ) -> None:
        self._peers = peers
        self._owners = owners
        self._node_id = node_id
        self._barrier = barrier
        self._here = here
        self._identify = identify
        self._places: dict[tuple[str, int], _Place] = {}
        self._lanes: dict[int, _Lane] = {}
        self.forwarded = 0
        """Batches that were sent to other nodes."""
        peers.serve_stream(KIND, _Opening, self._serve)

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether another node must append a batch for the partition, or the batch must wait behind a forwarded
        one."""
        owners = self._owners
        return (topic, partition) in self._places or not owners.is_mine(owners.slot_of(topic, partition))

    def append(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        """Append a batch through its owner; see :meth:`bridges.log.remote.appends.Appends.append`."""
        place = self._places.get((topic, partition))
        if place is None:
            place = self._places[topic, partition] = _Place(topic, partition)
        place.waiting.append(_Forwarded(batch, done))
        place.wake.set()
        if place.driver is None:
            place.driver = asyncio.get_running_loop().create_task(self._drive(place))

    async def close(self) -> None:
        """Stop sending, and refuse the waiting appends because the node is stopping."""
        drivers = [place.driver for place in self._places.values() if place.driver is not None]
        for driver in drivers:
            driver.cancel()
        if drivers:
            await asyncio.wait(drivers)
        for lane in list(self._lanes.values()):
            await lane.close()

    # --- to others ----------------------------------------------------------------------------------------------

    async def _drive(self, place: _Place) -> None:
        """Append all waiting batches of a partition, in order; return when none waits."""
        try:
            while place.waiting:
                try:
                    await self._some(place)
                except PeerUnreachable as error:
                    _log.debug("an owner does not answer", topic=place.topic, error=str(error))
                    await asyncio.sleep(_AGAIN_S)
                except LogError as error:
                    self._refuse(place, error)
                self._give_up_old(place)
        except Exception as error:  # noqa: BLE001 - logged, counted and answered
            self._barrier.caught("forwarded appends", error)
        finally:
            del self._places[place.topic, place.partition]
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

    async def _some(self, place: _Place) -> None:
        """Append through one owner as long as it accepts batches. Raises LogError; all batches that are not done still
        wait then."""
        owners = self._owners
        topic_id = self._identify(place.topic)
        if topic_id is None:
            raise LogDeleted(f"{place} is not served any more")
        owner = await owner_of(owners, self._node_id, lambda: owners.slot_of(place.topic, place.partition))
        if owner is None:
            while place.waiting:
                one = place.waiting.popleft()
                one.answered = True
                self._here(place.topic, place.partition, one.batch, one.done)
            return
        lane = await self._lane(owner)
        place.turn += 1
        place.stopped = False
        whole = (place.topic, topic_id, place.partition)
        while not place.stopped:
            while place.waiting and not place.stopped:
                one = place.waiting.popleft()
                place.sent.append(one)
                one.again = False
                try:
                    raw = encode_append(lane.next_number(), place.turn, whole, one.batch)
                except LogError as error:
                    self._answer(one, NOT_APPENDED, error)
                    continue
                self.forwarded += 1
                await lane.send(raw, partial(self._answered, place, one))
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
        await asyncio.sleep(_AGAIN_S)

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
            self._answer(one, NOT_APPENDED, heard(answer.error))
        else:
            one.batch.append_time_ms = answer.append_time_ms
            self._answer(one, Appended(answer.base, answer.end, answer.skipped, answer.duplicate), None)

    async def _lane(self, owner: Member) -> _Lane:
        lane = self._lanes.get(owner.start)
        if lane is None or lane.broken:
            opened = await self._peers.stream(owner, KIND, _Opening())
            other = self._lanes.get(owner.start)
            if other is not None and not other.broken:
                self._peers.left_stream(owner, opened)
                return other
            lane = self._lanes[owner.start] = _Lane(opened, partial(self._lane_ended, owner))
        return lane

    def _lane_ended(self, owner: Member, lane: _Lane) -> None:
        self._peers.left_stream(owner, lane.stream)
        if self._lanes.get(owner.start) is lane:
            del self._lanes[owner.start]

    # --- from others --------------------------------------------------------------------------------------------

    async def _serve(self, opening: _Opening, stream: PeerStream) -> None:
        await _Receiver(self, stream).serve()

    def receive(self, head: ForwardedAppend, batch: Batch, done: AppendDone) -> bool:
        """Append a batch that another node has forwarded; False if this node does not own the partition."""
        if not self._owners.is_mine(self._owners.slot_of(head.topic, head.partition)):
            return False
        if self._identify(head.topic) != head.topic_id:
            return False  # one of the two nodes has not followed a change yet
        self._here(head.topic, head.partition, batch, done)
        return True


class _Opening(msgspec.Struct, array_like=True):
    """The empty opening message of a stream of appends."""


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


class _Lane:
    """The stream of appends to one node."""

    def __init__(self, stream: PeerStream, ended: Callable[[_Lane], None]) -> None:
        self.stream = stream
        self._account = stream.account
        self._ended = ended
        self._asked: dict[int, tuple[int, Callable[[AppendAnswer | None], None]]] = {}
        self._number = 0
        self._bytes = 0
        self._room = asyncio.Event()
        self._writing = asyncio.Lock()
        self.broken = False
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def next_number(self) -> int:
        self._number += 1
        return self._number

    async def send(self, raw: bytes, answered: Callable[[AppendAnswer | None], None]) -> None:
        """Send an append that was encoded with the last number; ``answered`` is called exactly once."""
        number, size = self._number, len(raw)
        self._asked[number] = size, answered
        self._account.take(Kind.REQUESTS, size)
        self._bytes += size
        try:
            # In the order of their numbers: the lock is first come, first served.
            async with self._writing:
                while self._bytes - size >= _UNDER_WAY and not self.broken:
                    self._room.clear()
                    await self._room.wait()
                if not self.broken:
                    await self.stream.write(raw)
        except PeerUnreachable:
            self._break()
        if self.broken:
            self._settle(number, None)

    def _settle(self, number: int, answer: AppendAnswer | None) -> None:
        found = self._asked.pop(number, None)
        if found is None:
            return
        size, answered = found
        self._account.give(Kind.REQUESTS, size)
        self._bytes -= size
        self._room.set()
        answered(answer)

    async def _read(self) -> None:
        try:
            while (raw := await self.stream.read()) is not None:
                self._account.give(Kind.REQUESTS, len(raw))
                answer = decode_answer(raw)
                self._settle(answer.number, answer)
        except (PeerUnreachable, msgspec.DecodeError) as error:
            _log.debug("forwarded appends are cut off", error=str(error))
        finally:
            self._break()

    def _break(self) -> None:
        if self.broken:
            return
        self.broken = True
        for number in list(self._asked):
            self._settle(number, None)
        self._room.set()
        self._ended(self)

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
        self._break()


class _Receiver:
    """The stream of appends from one other node."""

    def __init__(self, appends: ForwardedAppends, stream: PeerStream) -> None:
        self._appends = appends
        self._stream = stream
        self._answers: deque[bytes] = deque()
        self._moved = asyncio.Event()
        # By partition: the turn in which a batch was refused because this node did not own the partition.
        self._refused: dict[tuple[str, int], int] = {}
        self._in_flight = 0
        self._draining = False
        self._reading: asyncio.Task[None] | None = None
        self._over = False

    async def serve(self) -> None:
        """Append what arrives until the other node ends the stream, or this node stops."""
        sending = asyncio.create_task(self._send())
        self._reading = reading = asyncio.create_task(self._read())
        self._stream.when_draining(self._drain)
        try:
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.result()
            while self._answers:
                await self._stream.write(self._answers.popleft())
        finally:
            self._over = True
            reading.cancel()
            sending.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)

    async def _read(self) -> None:
        while (raw := await self._stream.read()) is not None:
            self._take(raw)

    def _drain(self) -> None:
        """End the stream once everything that has arrived is answered, because the node stops."""
        self._draining = True
        if not self._in_flight and self._reading is not None:
            self._reading.cancel()

    def _take(self, raw: bytes) -> None:
        size = len(raw)
        head, batch = decode_append(raw, id(self))
        place = (head.topic, head.partition)
        done = partial(self._done, head, batch, size)
        self._in_flight += 1
        if self._refused.get(place, -1) >= head.turn or not self._appends.receive(head, batch, done):
            self._refused[place] = head.turn
            self._stream.account.give(Kind.REQUESTS, size)
            self._put(AppendAnswer(head.number, elsewhere=True))
            self._in_flight -= 1

    def _done(self, head: ForwardedAppend, batch: Batch, size: int, appended: Appended, error: LogError | None) -> None:
        self._stream.account.give(Kind.REQUESTS, size)
        if isinstance(error, NotOwner):
            self._refused[head.topic, head.partition] = head.turn
            self._put(AppendAnswer(head.number, elsewhere=True, unknown=True))
        elif error is not None:
            self._put(AppendAnswer(head.number, error=tell(error)))
        else:
            self._put(AppendAnswer(head.number, *appended, append_time_ms=batch.append_time_ms))
        self._in_flight -= 1
        if self._draining:
            self._drain()

    def _put(self, answer: AppendAnswer) -> None:
        if not self._over:
            self._answers.append(encode_answer(answer))
            self._moved.set()

    async def _send(self) -> None:
        while True:
            self._moved.clear()
            while self._answers:
                await self._stream.write(self._answers.popleft())
            await self._moved.wait()
