"""Sessions and their transactions: what is staged, and how a transaction is committed over partitions of any nodes.

The owner of the slot of a session's name coordinates the session's transactions; it is the node that made the session.
An open transaction is in this node's memory only, so it holds up no reader and dies with its session. A commit:

1. stores a row of the transaction with its partitions and producers;
2. checks the seq_nos, and appends the staged messages as batches of a transaction of the log;
3. stores the decision. In the same step positions move, each only from where its range begins;
4. has a marker written in each partition (:mod:`bridges.log.transactions.marking`), tells ledgers the producers' last
   seq_nos, and deletes the row.

What could go wrong | why it does not:

* The node dies before step 3.
  | The next coordinator finds an undecided row, and aborts.
* It dies after step 3.
  | The next coordinator carries out the decision.
* Two transactions, at two nodes, have the same messages of a producer, because a client repeats an unknown commit.
  | A row keeps out other transactions of its producers (and new write sessions) until the ledgers know its seq_nos.
* A batch is on its way when its transaction is aborted.
  | An abort writes its marker in every partition, and logs refuse the producer's earlier epoch from then on.
* A position is committed in another way meanwhile.
  | The decision's step compares it in the database; the node that coordinates the consumer reads it again afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from msgspec import Struct, field

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run import clock
from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.sliced import Sliced
from anabranch_kit.run.turns import worked_off
from bridges.catalog.progress import Move
from bridges.catalog.topics.topic import ChangeKind
from bridges.catalog.views.groups import Place
from bridges.cluster import versions
from bridges.cluster.at_owner import at_owner
from bridges.cluster.owned import OwnedNames
from bridges.errors import LogDeleted, LogError, LogUnavailable, NotOwner, PartitionSealed
from bridges.formats import FormatId
from bridges.formats.producer import InTransaction, ProducerStamp, SeqNoStamp
from bridges.formats.ydb import Head, encode_in_slices
from bridges.log.interfaces import Appended, Batch, note
from bridges.log.transactions.ends import TransactionEnds
from bridges.log.transactions.marking import End, Markers
from bridges.log.transactions.producers import Producers
from ydb_topic_front.service.transactions import tables
from ydb_topic_front.service.transactions.tables import State
from ydb_topic_front.service.transactions.transaction import RANGE_BYTES, StagedWrite, Transaction
from ydb_topic_front.service.write.last_seq_no import decided_last
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, bad_request

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.catalog.topics.topic import Change
    from bridges.cluster.members import Member
    from bridges.log.interfaces import AppendDone
    from ydb_topic_front.service.core import YdbService

MOST_OPEN = 10
"""Most open transactions of a session, YDB's default."""
_MOST_RANGES = 100_000
"""Most ranges of offsets in one request."""
_WRITE_BYTES = 1024
"""Memory of a staged write besides its messages."""
_NAMES_TRIED = 10_000
_ATTACH_S = 60.0
"""How long a session that no stream is attached to lives."""
_EXPIRY_MS = 10_000
VISIBLE_S = 15.0
"""How long an answer waits until a decision is carried out everywhere."""
_AGAIN_S = 1.0
_KEY = "ydb session"
_MARKERS, _POSITIONS = "ydb transaction markers", "ydb transaction positions"
_YDB = int(FormatId.YDB)


class Mark(Struct, frozen=True):
    """Request to the owner of partitions to write a transaction's markers."""

    id: str
    producer_id: int
    epoch: int
    commit: bool
    places: list[tuple[str, int]]


class Moved(Struct, frozen=True):
    """Request to the coordinator of a consumer to read positions that a transaction has moved."""

    consumer: str
    places: list[tuple[str, int]]


class Done(Struct, frozen=True):
    """Answer to these requests."""


class Session(Struct, eq=False):
    """A session of the query service."""

    name: str
    made_at: float
    attached: bool = False
    busy: bool = False
    """Whether a commit is going on."""
    transactions: dict[str, Transaction] = field(default_factory=dict)
    committed: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_OPEN))
    """The last committed transactions: a commit whose answer was lost between nodes is asked for again."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)


def name_of(session_id: str) -> str:
    """Return the name in a session's id. Raises YdbError."""
    parts = urlsplit(session_id) if session_id.isascii() else None
    name = parse_qs(parts.query).get("id", [""])[0] if parts is not None and parts.scheme == "ydb" else ""
    if not name:
        raise bad_request(f"Invalid session id: {session_id[:200]!r}")
    return name


class _Differs(LogError):
    """A position is not where a transaction's range begins."""


class Transactions(OwnedNames):
    """The sessions that this node coordinates, and this node's part in other nodes' transactions."""

    what = "session of YDB's transactions"

    def __init__(self, service: YdbService) -> None:
        node = service.node
        super().__init__(node.owners)
        self._service = service
        self._node = node
        self._sessions: dict[str, Session] = {}
        self._committing: dict[str, Transaction] = {}
        self._account = node.budget.account(lambda: None)
        self._producers = Producers(node.catalog)
        self._markers = Markers(node.logs, node.db, node.owners)
        self._ends: TransactionEnds[Transaction] = TransactionEnds(
            self._markers, node.barrier, "a YDB transaction", self._finish, self._ended, self._ask_to_mark
        )
        node.peers.serve(_MARKERS, Mark, self._mark_here)
        node.peers.serve(_POSITIONS, Moved, self._moved_here)
        node.catalog.on_change.append(self._changed)
        node.every(_EXPIRY_MS, self._expire, "expiry of YDB's sessions")

    async def close(self) -> None:
        """Stop; the next start continues."""
        for session in list(self._sessions.values()):
            self.end_session(session)
        await super().close()
        await self._ends.close()
        self._account.close()

    # --- names ------------------------------------------------------------------------------------------------------

    def slot(self, name: str) -> int:
        return self._owners.slot_of_key(_KEY, name)

    def finding(self, session_id: str) -> Callable[[], int] | None:
        """Return a function that finds a session's slot; None if the id is none of a session."""
        try:
            name = name_of(session_id)
        except YdbError:
            return None
        return lambda: self.slot(name)

    def is_here(self, session_id: str) -> bool:
        """Return whether no other node coordinates a session."""
        find = self.finding(session_id)
        return find is None or self._owners.is_mine(find())

    async def read(self, wanted: Callable[[str], bool]) -> None:
        for row, parts in await self._node.db.run(partial(tables.read, wanted=wanted)):
            if row.id in self._committing:
                continue
            producer, readers = (row.producer_id, row.epoch), tables.decode_readers(row.readers)
            found = Transaction(
                id=row.id, session=row.session, producer=producer, state=State(row.state), parts=parts, readers=readers
            )
            found.places, found.begun_here = _places(parts), False
            self._committing[found.id] = found
            if found.state is State.OPEN:
                self._tasks.spawn(self._abort(found))
            else:
                self._ends.begin([found])

    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        for session in [one for one in self._sessions.values() if self.slot(one.name) in slots]:
            self.end_session(session)
        for found in [one for one in self._committing.values() if self.slot(one.session) in slots]:
            found.given_up = True
            found.ended.set()
            del self._committing[found.id]
        if in_order:
            await self._node.db.await_writes()  # what was submitted before is durable when the next owner reads

    def _changed(self, change: Change) -> None:
        if change.kind is ChangeKind.DELETED and change.topic is not None:
            for found in self._committing.values():
                found.places.pop(change.topic.name, None)

    # --- sessions ---------------------------------------------------------------------------------------------------

    def begin_session(self) -> str:
        """Begin a session, and return its id. Raises YdbError."""
        if len(self._sessions) >= self._service.settings.max_streams:
            raise YdbError(Status.OVERLOADED, f"there are {len(self._sessions)} sessions, as many as ydb.max_streams")
        for _ in range(_NAMES_TRIED):
            name = uuid4().hex
            if self.owns(name):
                self._sessions[name] = Session(name, time.monotonic())
                return f"ydb://session/3?node_id={self._service.node_id}&id={name}"
        raise YdbError(Status.UNAVAILABLE, "this node coordinates no sessions: ask another one")

    def session(self, session_id: str) -> Session:
        """Return a session. Raises YdbError."""
        session = self._sessions.get(name_of(session_id))
        if session is None:
            raise YdbError(Status.BAD_SESSION, "Session not found")
        return session

    def end_session(self, session: Session) -> None:
        """End a session with its open transactions. A commit goes on."""
        session.closed.set()
        self._sessions.pop(session.name, None)
        for found in list(session.transactions.values()):
            if not found.closing:
                self._drop(session, found)

    async def _expire(self, now_ms: int) -> None:
        before = time.monotonic() - _ATTACH_S
        for session in [one for one in self._sessions.values() if not one.attached and one.made_at < before]:
            self.end_session(session)

    # --- transactions -----------------------------------------------------------------------------------------------

    async def begin_transaction(self, session: Session) -> str:
        """Begin a transaction, and return its id. Raises YdbError."""
        self._require_free(session)
        if self._node.db.engine.shared:
            level = await self._node.db.run(versions.level)
            if level.stores < versions.YDB_TRANSACTIONS:  # nodes of the previous release could not read its batches
                raise YdbError(Status.UNSUPPORTED, "Disabled transaction support for TopicService.")
        if len(session.transactions) >= MOST_OPEN:
            raise YdbError(Status.BAD_SESSION, f"Too many transactions, current active: {MOST_OPEN}")
        found = Transaction(id=uuid4().hex, session=session.name)
        session.transactions[found.id] = found
        return found.id

    def find(self, session: Session, transaction_id: str) -> Transaction:
        """Return an open transaction of a session. Raises YdbError."""
        found = session.transactions.get(transaction_id)
        if found is None or found.closing:
            message = f"Transaction not found: {transaction_id[:200]}"
            raise YdbError(Status.NOT_FOUND, message, Issue.TRANSACTION_NOT_FOUND)
        return found

    def rollback(self, session: Session, transaction_id: str) -> None:
        """Drop a transaction. Raises YdbError."""
        self._require_free(session)
        self._drop(session, self.find(session, transaction_id))

    def _require_free(self, session: Session) -> None:
        if session.busy:
            raise YdbError(Status.SESSION_BUSY, "Pending previous query completion")

    def _drop(self, session: Session, found: Transaction) -> None:
        session.transactions.pop(found.id, None)
        found.closing = True
        found.writes.clear()
        self._account.give(Kind.REQUESTS, found.size)
        found.size = 0

    def _hold_memory(self, found: Transaction, size: int) -> None:
        if not self._account.admit(Kind.REQUESTS, size):
            message = f"a transaction's messages need {size} bytes: limits.connections_memory_bytes is exhausted"
            raise YdbError(Status.OVERLOADED, message)
        found.size += size

    def stage(self, write: StagedWrite) -> int:
        """Stage messages, and return how many of the first ones the producer has staged before. Raises YdbError."""
        found = self.find(self.session(write.session), write.transaction)
        known = found.count_known(write)
        if known < len(write.seq_nos):
            self._hold_memory(found, len(write.messages) + _WRITE_BYTES)
            found.stage(write.without_first(known) if known else write)
        return known

    def add_ranges(self, found: Transaction, consumer: str, ranges: Sequence[tuple[Place, int, int]]) -> None:
        """Add ranges of offsets that a consumer has read. Raises YdbError."""
        if len(ranges) > _MOST_RANGES:
            raise bad_request(f"a request has at most {_MOST_RANGES} ranges of offsets, not {len(ranges)}")
        self._hold_memory(found, len(ranges) * RANGE_BYTES)
        for place, start, end in ranges:
            found.add_range(consumer, place, start, end)

    # --- commits ----------------------------------------------------------------------------------------------------

    async def commit(self, session: Session, transaction_id: str) -> None:
        """Commit a transaction; it is visible when this returns, or soon after. Raises YdbError, LogError."""
        if transaction_id in session.committed:
            return
        self._require_free(session)
        found = self.find(session, transaction_id)
        found.closing = session.busy = True
        # A task of its own: a client that goes away must not interrupt a decision.
        await self._tasks.finish(self._commit(session, found))

    async def _commit(self, session: Session, found: Transaction) -> None:
        try:
            moves = await self._check_moves(found)
            if found.writes:
                await self._prepare(found)
            if found.writes or moves:
                await self._decide(found, moves)
            session.committed.append(found.id)
        finally:
            session.busy = False
            self._drop(session, found)

    async def _check_moves(self, found: Transaction) -> dict[str, list[Move]]:
        """Return how positions move. Raises YdbError if that is not possible any more."""
        moves = found.moves()
        service = self._service
        for consumer, places in moves.items():
            for topic, partition, _, end in places:
                there = service.catalog.topics.get(topic)
                if there is None or consumer not in service.topics.get_settings(topic).consumers:
                    raise YdbError(Status.ABORTED, f"Unknown consumer '{consumer}'")
                log = service.log_to_read(there, partition)
                await log.refresh()
                if end > log.high_watermark:
                    message = f"an offset {end} of partition {partition}, which ends at {log.high_watermark}"
                    raise YdbError(Status.ABORTED, message)
                found.readers.append((consumer, topic, partition))
        return moves

    async def _prepare(self, found: Transaction) -> None:
        """Append the staged messages as a transaction of the log. Raises YdbError; the transaction is aborted then."""
        topics = self._service.catalog.topics
        for writes in found.writes.values():
            topic = topics.get(writes[0].topic)
            if topic is None or topic.topic_id.bytes != writes[0].topic_id:
                raise YdbError(Status.ABORTED, f"topic {writes[0].topic!r} was deleted")
        found.producer = await self._producers.take()
        found.parts = found.parts_of_writes()
        self._committing[found.id] = found
        try:
            begin = partial(
                tables.begin, row=found.row(State.OPEN), parts=found.parts, hold=self.holding(found.session)
            )
            other = await self._node.db.run(begin)
            if other is not None:
                self._ended(found)
                message = "another transaction with messages of the same producer is being committed"
                raise YdbError(Status.ABORTED, message)
            await self._check_seq_nos(found)
            found.places = _places(found.parts)
            await self._append(found)
        except Exception as error:
            if found.id in self._committing:
                await self._abort_soon(found)
            if isinstance(error, PartitionSealed):
                raise YdbError(Status.ABORTED, f"a partition is inactive: {error}", Issue.PARTITION_INACTIVE) from error
            raise

    async def _check_seq_nos(self, found: Transaction) -> None:
        least = {(one.place, one.producer): one.seq_nos[0] for of in found.writes.values() for one in reversed(of)}
        for part in found.parts:
            if part.producer:
                last = await decided_last(self._node, *part[:2], SeqNoStamp(part.producer, ()).key)
                if last is not None and last >= least[part[:2], part.producer]:
                    message = f"MinSeqNo violation failure: the producer's last seq_no is {last}"
                    raise YdbError(Status.ABORTED, message)

    async def _append(self, found: Transaction) -> None:
        size = found.size
        self._account.take(Kind.REQUESTS, size)  # the batches encoded from what is staged
        futures: list[asyncio.Future[Appended]] = []
        try:
            for place, writes in found.writes.items():
                sequence = 0
                for write in writes:
                    batch = await worked_off(_batch(write, found.producer, sequence))
                    futures.append(found.appended(_Place(self._node.partitions.append, place), batch))
                    sequence += batch.count
            for result in await asyncio.gather(*futures, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
            for (topic, _), writes in found.writes.items():
                traffic = self._node.metrics.topic(topic)
                for write in writes:
                    traffic.appended(1, len(write.seq_nos), len(write.messages))
        finally:
            self._account.give(Kind.REQUESTS, size)

    async def _decide(self, found: Transaction, moves: dict[str, list[Move]]) -> None:
        """Decide to commit, and return when readers see it, or after a while. Raises YdbError, LogError."""
        self._committing[found.id] = found
        try:
            state = await self._store(found, State.COMMITTING, moves)
        except (_Differs, NotOwner) as error:
            await self._abort_soon(found)
            status = Status.ABORTED if isinstance(error, _Differs) else Status.UNAVAILABLE
            raise YdbError(status, str(error)) from error
        except LogError as error:
            self._tasks.spawn(self._abort(found))  # carries out what the database has decided
            raise YdbError(Status.UNDETERMINED, str(error)) from error
        self._carry_out(found, state)
        await _await_end(found)

    async def _store(self, found: Transaction, wanted: State, moves: dict[str, list[Move]]) -> State:
        """Store a decision, and return it, or what was decided before."""
        hold, row, now = self.holding(found.session), found.row(wanted), clock.now_ms()
        progress = self._node.progress

        def decide(connection: Connection) -> State:
            hold(connection)
            known = tables.decided(connection, row.id)
            if known not in (None, State.OPEN):
                return known
            for consumer, places in moves.items():
                differs = progress.move(connection, consumer, places, now)
                if differs is not None:
                    raise _Differs(f"the position of '{consumer}' in partition {differs[1]} has moved meanwhile")
            if known is State.OPEN or wanted is State.COMMITTING:
                tables.decide(connection, row)
            return wanted

        return await self._node.db.run(decide, flush=True)

    async def _abort_soon(self, found: Transaction) -> None:
        """Abort a transaction, and return when its producers may write again, or after a while."""
        self._tasks.spawn(self._abort(found))
        await _await_end(found)

    async def _abort(self, found: Transaction) -> None:
        """Abort a transaction unless it is decided, and carry out the decision."""
        while not found.given_up:
            try:
                self._carry_out(found, await self._store(found, State.ABORTING, {}))
                return
            except NotOwner:
                found.ended.set()  # the next coordinator does it
                return
            except LogError as error:
                self._service.log.warning("a YDB transaction is aborted later", reason=str(error), **found.about)
            await asyncio.sleep(_AGAIN_S)

    def _carry_out(self, found: Transaction, state: State) -> None:
        if not found.given_up:
            found.state = state
            self._ends.begin([found])

    # --- ends -------------------------------------------------------------------------------------------------------

    async def _ask_to_mark(self, found: Transaction, owner: Member, places: list[Place]) -> None:
        asked = Mark(found.id, *found.producer, found.commits, places)
        await self._node.peers.ask(owner, _MARKERS, asked, Done)

    async def _mark_here(self, asked: Mark) -> Done:
        wanted = State.COMMITTING if asked.commit else State.ABORTING
        end = End(asked.producer_id, asked.epoch + 1, asked.commit, fences=True)
        await self._markers.write(end, asked.places, lambda connection: tables.decided(connection, asked.id) is wanted)
        return Done()

    async def _finish(self, found: Transaction) -> None:
        """Do the rest of an end, once its markers are everywhere. Raises LogError."""
        if found.commits:
            for part in found.parts:
                if part.producer and part.topic in found.places:
                    await self._note(part, note(SeqNoStamp(part.producer, (part.last,))))
            for consumer in sorted({reader[0] for reader in found.readers}):
                places = [(topic, partition) for name, topic, partition in found.readers if name == consumer]
                await self._tell_of_move(Moved(consumer, places))
        await self._node.db.run(partial(tables.forget, id=found.id, hold=self.holding(found.session)))

    async def _note(self, part: tables.Part, batch: Batch) -> None:
        """Tell the ledger of a partition a producer's last seq_no; of its children if it is sealed meanwhile."""
        append = self._node.partitions.append
        stored: asyncio.Future[Appended] = awaited(lambda done: append(part.topic, part.partition, batch, done))
        try:
            await stored
        except LogDeleted:
            return
        except PartitionSealed as error:
            for child in error.children:
                await self._note(part._replace(partition=child), batch)

    async def _tell_of_move(self, moved: Moved) -> None:
        owners = self._owners
        await at_owner(
            owners,
            lambda: owners.slot_of_key(self._node.progress.space, moved.consumer),
            lambda: self._moved_here(moved),
            lambda owner: self._node.peers.ask(owner, _POSITIONS, moved, Done),
            patience_s=0,  # the caller repeats it
        )

    async def _moved_here(self, moved: Moved) -> Done:
        """Follow positions that a transaction has moved; their readers go on."""
        readers = self._service.readers
        found = await self._node.progress.refresh(moved.consumer, moved.places)
        for (topic, partition), offset in found.items():
            reader = readers.owner(moved.consumer, topic, partition)
            if reader is not None:
                reader.position_moved(topic, partition, offset, tell=False)
            readers.ended(moved.consumer, topic)
        return Done()

    def _ended(self, found: Transaction) -> None:
        self._committing.pop(found.id, None)
        found.ended.set()
        if found.begun_here and found.producer_id >= 0:
            self._producers.give(*found.producer)

    # --- for write sessions -----------------------------------------------------------------------------------------

    async def require_decided(self, place: Place, producer: bytes) -> None:
        """Raise LogUnavailable while a transaction with messages of a producer is being committed: its last seq_no is
        not known until then."""
        if await self._node.db.run(partial(tables.committer, place=place, producer=producer)) is not None:
            raise LogUnavailable("a transaction with messages of this producer is being committed: retry")


class _Place:
    """A partition of any owner."""

    __slots__ = ("_append", "_place")

    def __init__(self, append: Callable[[str, int, Batch, AppendDone], None], place: Place) -> None:
        self._append = append
        self._place = place

    def append(self, batch: Batch, done: AppendDone) -> None:
        self._append(*self._place, batch, done)


async def _await_end(found: Transaction) -> None:
    """Wait until a decision is carried out: readers see a commit, and the producers may write again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(VISIBLE_S):
            await found.ended.wait()


def _batch(write: StagedWrite, producer: tuple[int, int], sequence: int) -> Sliced[Batch]:
    """Encode staged messages as a batch of a transaction, in slices."""
    count = len(write.seq_nos)
    stamp = ProducerStamp(*producer, sequence, count)
    numbers = count, write.seq_nos[0], write.seq_nos[-1], write.max_created_ms
    head = Head(False, write.codec, *numbers, write.producer, write.meta, part=stamp)
    payload = yield from encode_in_slices(head, write.messages)
    return Batch(payload, count, _YDB, write.max_created_ms, stamp, transaction=InTransaction(*producer))


def _places(parts: Sequence[tables.Part]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for part in parts:
        found.setdefault(part.topic, set()).add(part.partition)
    return found
