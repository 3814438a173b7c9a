"""Logs of partitions that other nodes own, as readers here see them, and this node's answers about its own logs.

Between each two nodes one stream carries the questions, many at a time: the state of a log, batches of it, and when it
moves beyond the state that the asker knows. The owner answers from its memory where it can. This node keeps only the
last known state. When the partition moves, the next question goes to its next owner, or to this node itself.

    u32 bytes of the head (big endian) | head in MessagePack | payloads of the batches
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.task_set import TaskSet
from bridges.cluster.at_owner import AGAIN_S, PATIENCE_S, at_owner
from bridges.cluster.peers.lane import Answers
from bridges.cluster.peers.peers import LaneOpening
from bridges.cluster.peers.wire_errors import EncodedError, decode_error, encode_error
from bridges.errors import LogDeleted, LogError, LogUnavailable, NotOwner
from bridges.formats.records import StoredBatch
from bridges.log.interfaces import Phase
from bridges.log.transactions.partition_transactions import Aborted

if TYPE_CHECKING:
    from anabranch_kit.run.barrier import Barrier
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Ownership
    from bridges.cluster.peers.peers import Peers
    from bridges.cluster.peers.stream import PeerStream
    from bridges.log.damage.skips import Span
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog

KIND = "read"
"""The kind of peer stream."""
_HEAD = struct.Struct(">I")
_WATCHED_S = 20.0
"""Seconds after which a watch is answered even if nothing has moved."""
_ASKED_S = 30.0
_SHORT_S = 0.1
"""Patience of a read: other partitions are read meanwhile."""
_AT_ONCE = 65_536
"""Most questions of one other node in work: a watch of a log is one, too."""
_BYTES_AT_ONCE = 64 * 1024 * 1024
_READS_AT_ONCE = 16
"""Concurrent reads for each other node."""
_LARGEST_READ = 8 * 1024 * 1024
_UNKNOWN_BATCH = 64 * 1024


_WINDOWS_MS = (60_000, 3_600_000, 86_400_000)


class State(NamedTuple):
    """The state of a log: offsets (``final`` -1 while it is not sealed), when it was last appended to, its size, and
    how much of that was appended within each of :data:`_WINDOWS_MS`."""

    start: int = 0
    high: int = 0
    stable: int = 0
    final: int = -1
    last_append_ms: int = -1
    size_bytes: int = 0
    recent: tuple[int, ...] = ()


class Op(IntEnum):
    STATE = 0
    COMMITTED = 1
    BATCHES = 2
    WATCH = 3
    TIME = 4
    ABORTED = 5


class Question(msgspec.Struct, array_like=True, frozen=True):
    """One question to the owner of a partition. ``offset`` is a time, in ms since 1970, for ``Op.TIME``; ``limit`` is
    the end of the range for ``Op.ABORTED``."""

    number: int
    op: int
    topic: str
    topic_id: bytes
    partition: int
    offset: int = 0
    max_bytes: int = 0
    limit: int = 0
    known: State = State()


class Found(msgspec.Struct, array_like=True):
    """Further facts, by the question: ``epoch`` and ``skipped`` with the state, the first record not older than a time,
    how far the list of aborted transactions reaches, and that list. Nodes of earlier releases send none."""

    epoch: int = -1
    skipped: tuple[tuple[int, int], ...] = ()
    record: tuple[int, int] | None = None
    reached: int = 0
    aborted: Sequence[Aborted] = ()


class _AnswerHead(msgspec.Struct, array_like=True):
    """The head of an answer. ``batches``: base, end, flags, bytes, written; ``next_bytes``: approximate size of the
    next read."""

    number: int
    state: State = State()
    batches: list[tuple[int, int, int, int, int]] = []
    next_bytes: int = 0
    error: EncodedError | None = None
    found: Found | None = None


class Answer(NamedTuple):
    number: int
    state: State
    batches: list[StoredBatch]
    next_bytes: int
    found: Found | None
    error: EncodedError | None = None


_question = msgspec.msgpack.Decoder(Question).decode
_head = msgspec.msgpack.Decoder(_AnswerHead).decode


class LogsElsewhere:
    """The remote reads of one node: of other nodes' logs here, and of its own logs by other nodes."""

    def __init__(
        self,
        peers: Peers,
        owners: Ownership,
        logs: Logs,
        identify: Callable[[str], bytes | None],
        barrier: Barrier,
    ) -> None:
        self.owners = owners
        self.barrier = barrier
        self._peers = peers
        self._logs = logs
        self._identify = identify
        self._known: dict[tuple[str, int, bytes], LogElsewhere] = {}
        self.tasks = TaskSet()
        peers.serve_stream(KIND, LaneOpening, self._serve)

    def get(self, topic: str, partition: int, stream_id: int) -> LogElsewhere:
        """Return the log of a partition, whichever node owns it."""
        topic_id = self._identify(topic) or b""
        key = (topic, partition, topic_id)
        found = self._known.get(key)
        if found is None:
            for gone in [one for one in self._known if one[:2] == key[:2]]:
                del self._known[gone]
            found = self._known[key] = LogElsewhere(self, topic, partition, stream_id, topic_id)
        return found

    async def close(self) -> None:
        """Stop watching logs."""
        await self.tasks.close()

    async def ask(self, question: Question, patience_s: float) -> Answer:
        """Return the owner's answer. Raises its LogError, and as :func:`bridges.cluster.at_owner.at_owner`."""

        def slot() -> int:
            if self._identify(question.topic) != question.topic_id:
                raise LogDeleted(f"{question.topic}-{question.partition} was deleted")
            return self.owners.slot_of(question.topic, question.partition)

        async def there(owner: Member) -> Answer:
            lane = self._peers.lane(owner, KIND, _decode_answer)
            numbered = partial(msgspec.structs.replace, question)
            answer = await lane.ask(lambda number: msgspec.msgpack.encode(numbered(number=number)), _ASKED_S)
            if answer.error is not None:
                raise decode_error(answer.error)
            return answer

        return await at_owner(self.owners, slot, lambda: self._answer(question), there, patience_s)

    # --- for others -------------------------------------------------------------------------------------------------

    async def _serve(self, opening: LaneOpening, stream: PeerStream) -> None:
        answers = Answers(
            stream, partial(self._tell, stream, asyncio.Semaphore(_READS_AT_ONCE)), _AT_ONCE, _BYTES_AT_ONCE
        )
        stream.when_draining(lambda: answers.stop(finishes=False))
        await answers.run()

    async def _tell(self, stream: PeerStream, reads: asyncio.Semaphore, raw: bytes) -> bytes:
        question = _question(raw)
        try:
            if not self.owners.is_mine(self.owners.slot_of(question.topic, question.partition)):
                raise NotOwner(f"{question.topic}-{question.partition}", -1)
            if question.op in (Op.STATE, Op.WATCH):
                return _encoded(await self._answer(question))
            async with reads:
                if question.op in (Op.TIME, Op.ABORTED):
                    return _encoded(await self._answer(question))
                held = await self._room(stream, question)
                try:
                    return _encoded(await self._answer(question))
                finally:
                    stream.account.give(Kind.READS, held)
        except LogError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - logged and counted; it fails only that question
            self.barrier.caught("question of another node", error)
            failure = LogUnavailable(f"{question.topic}-{question.partition} could not be read at its owner")
        head = msgspec.msgpack.encode(_AnswerHead(question.number, error=encode_error(failure)))
        return _HEAD.pack(len(head)) + head

    async def _room(self, stream: PeerStream, question: Question) -> int:
        log = self._log(question)
        await log.ready()
        least = log.measure(question.offset, 1) or _UNKNOWN_BATCH
        most = max(least, min(question.max_bytes, _LARGEST_READ))
        while not (held := stream.account.grant(Kind.READS, most, least)):  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)  # others release theirs; the asker has a timeout
        return held

    def _log(self, question: Question) -> PartitionLog:
        log = self._logs.get(question.topic, question.partition)
        if log is None:
            raise LogDeleted(f"{question.topic}-{question.partition} is not served any more")
        if self._identify(question.topic) != question.topic_id:
            raise LogUnavailable(f"{question.topic}-{question.partition} is another topic's here")
        return log

    async def _answer(self, question: Question) -> Answer:
        """Answer a question about a partition that this node owns. Raises LogError."""
        log = self._log(question)
        await log.ready()
        batches: list[StoredBatch] = []
        found = None
        if question.op == Op.WATCH:
            try:
                async with asyncio.timeout(_WATCHED_S):
                    await log.until(lambda: not log.is_open or _moved(_state(log), question.known))
            except TimeoutError:
                pass
            if not log.is_open:
                raise NotOwner(f"{question.topic}-{question.partition}", -1)
        elif question.op == Op.COMMITTED:
            batches = await log.read_committed(question.offset, min(question.max_bytes, _LARGEST_READ))
        elif question.op == Op.BATCHES:
            size = min(question.max_bytes, _LARGEST_READ)
            batches = await log.read_batches(question.offset, size, question.limit)
        elif question.op == Op.TIME:
            found = Found(record=await log.find_timestamp(question.offset))
        elif question.op == Op.ABORTED:
            reached, aborted = await log.find_aborted(question.offset, question.limit)
            found = Found(reached=reached, aborted=aborted)
        state = _state(log)
        if question.op == Op.STATE:
            now = now_ms()
            recent = tuple(log.bytes_since(now - window) for window in _WINDOWS_MS)
            state = state._replace(size_bytes=log.size_bytes, recent=recent)
            found = Found(log.epoch, log.skipped)
        behind = batches[-1].end_offset if batches else question.offset
        return Answer(question.number, state, batches, log.measure(behind, 1, state.stable), found)


class LogElsewhere:
    """One partition's log at another node (:class:`bridges.log.remote.readable.ReadableLog`). Reads raise the errors of
    a log, and NotOwner and PeerUnreachable where the caller should retry."""

    def __init__(self, all_of: LogsElsewhere, topic: str, partition: int, stream_id: int, topic_id: bytes) -> None:
        self.topic = topic
        self.partition = partition
        self.stream_id = stream_id
        self.phase = Phase.CLOSED
        self.epoch = -1
        """The owner's epoch; it and ``skipped`` are those of the last :meth:`refresh`."""
        self.skipped: tuple[Span, ...] = ()
        self._all = all_of
        self._topic_id = topic_id
        self._state = State()
        self._next = (-1, 0)  # an offset, and the approximate size of a read there
        self._waiters: dict[Any, None] = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Return whether any state is known."""
        return self.phase is Phase.OPEN

    @property
    def is_current(self) -> bool:
        return False

    @property
    def log_start_offset(self) -> int:
        return self._state.start

    @property
    def high_watermark(self) -> int:
        return self._state.high

    @property
    def last_stable_offset(self) -> int:
        return self._state.stable

    @property
    def final_offset(self) -> int | None:
        return None if self._state.final < 0 else self._state.final

    @property
    def last_append_ms(self) -> int:
        return self._state.last_append_ms

    @property
    def size_bytes(self) -> int:
        """Return the size at the last :meth:`refresh`."""
        return self._state.size_bytes

    def bytes_since(self, since_ms: int) -> int:
        """Return the bytes appended since ``since_ms``, as of the last :meth:`refresh`, for the nearest of
        :data:`_WINDOWS_MS`."""
        if not self._state.recent:
            return 0
        ago = now_ms() - since_ms
        return min(zip(_WINDOWS_MS, self._state.recent, strict=True), key=lambda one: abs(one[0] - ago))[1]

    def measure(self, offset: int, max_bytes: int, limit: int = 0) -> int:
        """Return the approximate size of a read; 0: unknown."""
        return self._next[1] if self._next[0] == offset else 0

    def committed_limit(self, offset: int) -> int:
        """Return how far committed data is known to reach."""
        return self._state.stable

    async def ready(self) -> None:
        """Return when some state is known."""
        if self.phase is Phase.DELETED:
            raise LogDeleted(f"{self.topic}-{self.partition} was deleted")
        if self.phase is not Phase.OPEN:
            await self.refresh()

    async def refresh(self) -> None:
        """Return when the present state is known. If that fails, or is cancelled, no state counts as known any more."""
        try:
            found = (await self._ask(Op.STATE)).found
        except (LogError, asyncio.CancelledError):
            if self.phase is Phase.OPEN:
                self.phase = Phase.CLOSED
            raise
        if found is not None:
            self.epoch, self.skipped = found.epoch, found.skipped

    async def find_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Ask the owner for :meth:`bridges.log.partition.partition_log.PartitionLog.find_timestamp`."""
        return self._require_found((await self._ask(Op.TIME, timestamp)).found).record

    async def find_aborted(self, start: int, end: int) -> tuple[int, Sequence[Aborted]]:
        """Ask the owner for :meth:`bridges.log.partition.partition_log.PartitionLog.find_aborted`."""
        found = self._require_found((await self._ask(Op.ABORTED, start, limit=end)).found)
        return found.reached, found.aborted

    def _require_found(self, found: Found | None) -> Found:
        if found is None:
            place = f"{self.topic}-{self.partition}"
            raise LogUnavailable(f"the owner of {place} has an earlier release, which other nodes cannot ask for this")
        return found

    async def read_committed(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        return (await self._ask(Op.COMMITTED, offset, max_bytes, patience_s=_SHORT_S)).batches

    async def read_batches(self, offset: int, max_bytes: int, limit: int = 1 << 62) -> list[StoredBatch]:
        return (await self._ask(Op.BATCHES, offset, max_bytes, limit, _SHORT_S)).batches

    def add_waiter(self, waiter: Any) -> None:
        """Call ``waiter`` when the log has moved beyond the state known here."""
        self._waiters[waiter] = None
        if self._watching is None:
            self._watching = self._all.tasks.spawn(self._watch())

    def remove_waiter(self, waiter: Any) -> None:
        self._waiters.pop(waiter, None)
        if not self._waiters and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self) -> None:
        told = self._state
        while self._waiters:
            try:
                await self._ask(Op.WATCH)
            except LogDeleted:
                self.phase = Phase.DELETED
            except LogError:
                await asyncio.sleep(AGAIN_S)
            # Also after an error: another question may have moved the state meanwhile.
            if self.phase is Phase.DELETED or _moved(self._state, told):
                told = self._state
                for waiter in list(self._waiters):
                    self._all.barrier.call("waiter", waiter.log_moved, self)
            if self.phase is Phase.DELETED:
                return

    async def _ask(
        self, op: Op, offset: int = 0, max_bytes: int = 0, limit: int = 0, patience_s: float = PATIENCE_S
    ) -> Answer:
        asked = Question(0, op, self.topic, self._topic_id, self.partition, offset, max_bytes, limit, self._state)
        answer = await self._all.ask(asked, patience_s)
        behind = answer.batches[-1].end_offset if answer.batches else offset
        self._next = (behind, answer.next_bytes)
        # Answers may overtake each other; offsets only rise.
        told, known = answer.state, self._state
        self._state = State(
            max(told.start, known.start),
            max(told.high, known.high),
            max(told.stable, known.stable),
            max(told.final, known.final),
            max(told.last_append_ms, known.last_append_ms),
            *(told[5:] if op is Op.STATE else known[5:]),
        )
        if self.phase is Phase.CLOSED:
            self.phase = Phase.OPEN
        return answer


def _decode_answer(raw: bytes) -> Answer:
    (length,) = _HEAD.unpack_from(raw)
    view = memoryview(raw)
    at = _HEAD.size + length
    head = _head(view[_HEAD.size : at])
    batches = []
    for base, end, flags, size, written in head.batches:
        batches.append(StoredBatch(base, end, flags, view[at : at + size], written))
        at += size
    return Answer(head.number, head.state, batches, head.next_bytes, head.found, head.error)


def _state(log: PartitionLog) -> State:
    final = -1 if log.final_offset is None else log.final_offset
    return State(log.log_start_offset, log.high_watermark, log.last_stable_offset, final, log.last_append_ms)


def _moved(state: State, known: State) -> bool:
    return state[:4] != known[:4]


def _encoded(answer: Answer) -> bytes:
    described = [
        (one.base_offset, one.end_offset, one.flags, len(one.payload), one.written_ms) for one in answer.batches
    ]
    head = msgspec.msgpack.encode(
        _AnswerHead(answer.number, answer.state, described, answer.next_bytes, None, answer.found)
    )
    payloads: Sequence[Any] = [one.payload for one in answer.batches]
    return b"".join((_HEAD.pack(len(head)), head, *payloads))
