"""The transaction coordinator as a pure state machine.

It has no clock, no disk and no tasks. Every call carries the time, durable state goes through the journal, and the
service calls :meth:`Coordinator.advance` at :attr:`Coordinator.next_deadline_ms`. No answer is given, and nothing
begins in a log, before its row is durable; memory follows the journal, never the other way. The rules and the order of
errors are those of a Kafka broker (docs/protocols/kafka.md, rules 34-36; KIP-98, KIP-360, KIP-588, KIP-890;
KAFKA-19367).

The service decides which transactional ids a node coordinates, and restores them here. If there are more than the
limit, ids without an open transaction rest in the database alone, and the service restores them when they are used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from anabranch_kit.run.awaited import Settle
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.deadlines import DeadlineQueue
from bridges.log.transactions.open_transaction import OpenPlaces, Place, TooManyPlaces
from kafka_front.service.transactions.transaction import (
    DECIDED,
    LAST_EPOCH,
    NO_EPOCH,
    NO_ID,
    Add,
    Pending,
    Row,
    Transaction,
    TxnState,
    completed,
)
from kafka_front.wire.errors import ErrorCode, KafkaError

CONCURRENT: Final = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED: Final = ErrorCode.PRODUCER_FENCED
NOT_AVAILABLE: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
NOT_MAPPED: Final = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WRONG_STATE: Final = ErrorCode.INVALID_TXN_STATE

_LOOKS = 100
"""Ids that are checked for one that may rest, before a producer has to retry."""
_AGAIN_MS = 500
"""Time after which the abort of an overdue transaction is retried, if it cannot be made durable now."""


class Now(NamedTuple):
    """A point in time, in ms: on a clock that never goes back, and as Unix time."""

    ms: int
    unix_ms: int


class Producer(NamedTuple):
    """The id and epoch with which a client goes on."""

    producer_id: int
    epoch: int


class Limits(Struct, frozen=True):
    """Limits of the coordinator. ``ids``: most ids in memory; ``places``: most partitions and groups in open
    transactions, counted once for each transaction."""

    max_timeout_ms: int = 900_000
    ids: int = 100_000
    places: int = 1_000_000


class Save(Struct, frozen=True):
    """A change to make durable in one step: the row, and the places and groups that its transaction adds; ``anew``:
    after removing those of the last transaction."""

    row: Row
    places: Sequence[Place] = ()
    groups: Sequence[str] = ()
    anew: bool = False


class Journal(Protocol):
    """The store of the coordinator's state. It has at most one save in flight for a transactional id."""

    def save(self, save: Save, done: Callable[[Now, bool], None]) -> None:
        """Call ``done`` once, with whether the change is durable; never before this returns."""


class Coordinator:
    """Transactional ids by name. ``end`` is called with a transaction whose decision is durable; after carrying it out,
    the service calls :meth:`ended`."""

    def __init__(
        self, limits: Limits, journal: Journal, end: Callable[[Transaction], None], barrier: Barrier | None = None
    ) -> None:
        self.transactions: OrderedDict[str, Transaction] = OrderedDict()
        """Ids in the order in which they are checked when room is needed."""
        self.rest = False
        """Whether ids may rest in the database."""
        self.open_places: OpenPlaces[Transaction] = OpenPlaces(limits.places)
        self.timed_out = 0
        """Number of transactions aborted after their timeout."""
        self._limits = limits
        self._journal = journal
        self._end = end
        self._barrier = barrier or Barrier()
        self._timers: DeadlineQueue[str] = DeadlineQueue()

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when :meth:`advance` has work next."""
        return self._timers.next

    def advance(self, now: Now) -> int:
        """Abort overdue transactions; return the number of deadlines."""
        steps = 0
        for _ in range(len(self._timers)):
            name = self._timers.pop_due(now.ms)
            if name is None:
                break
            steps += 1
            if not self._barrier.call("a transaction's timeout", self._overdue, now, name, transactional_id=name):
                self._timers.set(name, now.ms, _AGAIN_MS)
        return steps

    def _overdue(self, now: Now, name: str) -> None:
        transaction = self.transactions.get(name)
        if transaction is None or transaction.state is not TxnState.ONGOING:
            return
        if transaction.pending is Pending.NOTHING:
            self.timed_out += 1
            self._fence(transaction, now)
        else:
            self._timers.set(name, now.ms, _AGAIN_MS)

    # --- producers --------------------------------------------------------------------------------------------------

    def wants_id(self, name: str) -> bool:
        """Return whether :meth:`init` or :meth:`end` may need a new producer id."""
        transaction = self.transactions.get(name)
        return transaction is None or transaction.row.is_exhausted

    def init(
        self,
        now: Now,
        name: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        fresh_id: int | None,
        reply: Settle[Producer],
    ) -> None:
        """Handle InitProducerId: give a transactional id its next epoch, which fences its earlier producers. An open
        transaction is aborted first, and the client has to retry. Raises KafkaError.

        ``expected``: producer id and epoch that the client has (KIP-360).
        """
        if not 0 < timeout_ms <= self._limits.max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction = self.transactions.get(name)
        if transaction is None:
            if not self.has_room():
                raise KafkaError(NOT_AVAILABLE)
            if fresh_id is None:
                raise KafkaError(CONCURRENT)
            transaction = self.transactions[name] = Transaction(row=Row(name, fresh_id, NO_EPOCH))
        elif transaction.pending is not Pending.NOTHING:
            raise KafkaError(CONCURRENT)
        elif expected is not None and not _may_be(transaction.row, *expected):
            raise KafkaError(FENCED)
        if transaction.state is TxnState.ONGOING:
            self._fence(transaction, now)
            raise KafkaError(CONCURRENT)
        if transaction.state in DECIDED:
            raise KafkaError(CONCURRENT)
        following = _next_epoch(transaction.row, expected, fresh_id)._replace(
            state=TxnState.EMPTY, timeout_ms=timeout_ms, started_ms=-1, updated_ms=now.unix_ms
        )
        self._change(transaction, Save(following, anew=True), partial(self._initialised, transaction, reply))

    def _initialised(self, transaction: Transaction, reply: Settle[Producer], now: Now, durable: bool) -> None:
        row = transaction.row
        if durable:
            reply(Producer(row.producer_id, row.epoch))
            return
        if row.epoch == NO_EPOCH and not transaction.given_up:
            self.transactions.pop(row.transactional_id, None)  # no client knows it
        reply(KafkaError(NOT_AVAILABLE))

    # --- what a transaction has -------------------------------------------------------------------------------------

    def check(self, name: str, producer_id: int, epoch: int, place: Place | None = None, group: str = "") -> None:
        """Raise KafkaError unless a producer's open transaction includes a place or a group; WRONG_STATE if it lacks
        it."""
        found = self._require(name, producer_id, epoch)
        if found.pending is Pending.CHANGING or found.state in DECIDED:
            raise KafkaError(CONCURRENT)
        has = group in found.groups if place is None else found.writes_to(place)
        if found.state is not TxnState.ONGOING or not has:
            raise KafkaError(WRONG_STATE)

    def _require(self, name: str, producer_id: int, epoch: int) -> Transaction:
        transaction = self.transactions.get(name)
        if transaction is None or transaction.row.producer_id != producer_id:
            raise KafkaError(NOT_MAPPED)
        if transaction.row.epoch != epoch:
            raise KafkaError(FENCED)
        return transaction

    def add(
        self,
        now: Now,
        name: str,
        producer_id: int,
        epoch: int,
        places: Sequence[Place],
        groups: Sequence[str],
        reply: Settle[None],
    ) -> None:
        """Add partitions (``places``) and ``groups`` to a producer's transaction; the first ones begin it. ``reply`` is
        called when that is durable. Raises KafkaError."""
        found = self._require(name, producer_id, epoch)
        if found.pending is Pending.ADDING:
            found.waiting.append(Add(places, groups, reply))
        elif found.pending is Pending.CHANGING or found.state in DECIDED:
            raise KafkaError(CONCURRENT)
        else:
            self._add(now, found, [Add(places, groups, reply)])

    def _add(self, now: Now, transaction: Transaction, adds: list[Add]) -> None:
        """Save the places and groups that are new, and reply at once to ``adds`` without new ones. If such a batch
        waited for a save of other partitions, its producer's next batch, which :meth:`check` lets pass, would overtake
        it."""
        begins = transaction.state is not TxnState.ONGOING
        lacking: list[Add] = []
        complete: list[Add] = []
        for one in adds:
            has_all = all(map(transaction.writes_to, one.places)) and transaction.groups.issuperset(one.groups)
            (complete if has_all and not begins else lacking).append(one)
        if lacking:
            self._save_parts(now, transaction, lacking, begins)
        _tell(complete)

    def _save_parts(self, now: Now, transaction: Transaction, adds: list[Add], begins: bool) -> None:
        places = {place for one in adds for place in one.places if not transaction.writes_to(place)}
        groups = {group for one in adds for group in one.groups} - transaction.groups
        row = transaction.row
        if begins:
            row = row._replace(state=TxnState.ONGOING, started_ms=now.unix_ms)
        try:
            self.open_places.promise(len(places) + len(groups))
        except TooManyPlaces:
            _tell(adds, KafkaError(NOT_AVAILABLE))
            return
        row = row._replace(updated_ms=now.unix_ms)
        transaction.pending = Pending.ADDING
        save = Save(row, sorted(places), sorted(groups), anew=begins)
        self._journal.save(save, partial(self._added, transaction, save, adds))

    def _added(self, transaction: Transaction, save: Save, adds: list[Add], now: Now, durable: bool) -> None:
        # Groups count in the limit until the transaction has ended.
        durable = durable and not transaction.given_up  # its next coordinator reads the durable state
        self.open_places.release(len(save.places) + (0 if durable else len(save.groups)))
        if durable:
            transaction.row, transaction.kept = save.row, True
            self.open_places.write_to(transaction, save.places)
            transaction.groups.update(save.groups)
            if save.anew:
                transaction.ended.clear()
                self._timers.set(save.row.transactional_id, now.ms, save.row.timeout_ms)
        # Reply before the waiting adds go on: their batches must not overtake.
        try:
            _tell(adds, None if durable else KafkaError(NOT_AVAILABLE))
        finally:
            transaction.pending = Pending.NOTHING
            waiting, transaction.waiting = transaction.waiting, []
            if not durable:
                _tell(waiting, KafkaError(NOT_AVAILABLE))
            elif waiting:
                self._add(now, transaction, waiting)

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(
        self,
        now: Now,
        name: str,
        producer_id: int,
        epoch: int,
        commit: bool,
        *,
        bumps: bool,
        fresh_id: int | None,
        reply: Settle[Producer],
    ) -> None:
        """Handle EndTxn: decide a producer's transaction; ``reply`` is called when that is durable. Raises KafkaError.

        ``bumps``: the client goes on with the next epoch (transaction.version 2), or with a new producer id if there is
        none.
        """
        transaction = self.transactions.get(name)
        if transaction is None:
            raise KafkaError(NOT_MAPPED)
        row = transaction.row
        may_have_ended = transaction.state not in (TxnState.ONGOING, TxnState.EMPTY)
        again = bumps and may_have_ended and _is_end_again(row, producer_id, epoch)
        if row.producer_id != producer_id and not again:
            raise KafkaError(NOT_MAPPED)
        if not again and (row.epoch != epoch or (bumps and transaction.state in DECIDED)):
            raise KafkaError(FENCED)
        if transaction.pending is not Pending.NOTHING:
            raise KafkaError(CONCURRENT)
        if transaction.state is TxnState.ONGOING:
            self._decide(now, transaction, commit, bumps, fresh_id, reply)
        elif transaction.state in DECIDED:
            raise KafkaError(CONCURRENT if transaction.commits == commit else WRONG_STATE)
        elif again or not bumps:
            if transaction.state is not (TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT):
                raise KafkaError(WRONG_STATE)
            reply(Producer(row.producer_id, row.epoch))
        elif commit:
            raise KafkaError(WRONG_STATE)
        else:
            # Nothing was written, so there is nothing to abort, but the client goes on with the next epoch.
            self._decide(now, transaction, False, bumps, fresh_id, reply)

    def _decide(
        self,
        now: Now,
        transaction: Transaction,
        commit: bool,
        bumps: bool,
        fresh_id: int | None,
        reply: Settle[Producer],
    ) -> None:
        state = TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT
        row = transaction.row._replace(state=state, updated_ms=now.unix_ms)
        if bumps:
            if row.is_exhausted:
                if fresh_id is None:
                    raise KafkaError(CONCURRENT)
                row = row._replace(next_id=fresh_id)
            row = row._replace(epoch=row.epoch + 1, last_epoch=row.epoch)
        anew = transaction.state is not TxnState.ONGOING
        if anew:
            row = completed(row, now.unix_ms)
        self._change(transaction, Save(row, anew=anew), partial(self._decided, transaction, reply))

    def _fence(self, transaction: Transaction, now: Now) -> None:
        """Abort a transaction in the next epoch, which fences its producer. The epoch is raised once, whatever the
        transaction's version (KAFKA-19367)."""
        row = transaction.row
        row = row._replace(
            state=TxnState.PREPARE_ABORT,
            epoch=min(row.epoch + 1, LAST_EPOCH),
            last_epoch=NO_EPOCH,
            updated_ms=now.unix_ms,
        )
        self._change(transaction, Save(row), partial(self._fenced, transaction))

    def _fenced(self, transaction: Transaction, now: Now, durable: bool) -> None:
        if durable:
            self._timers.remove(transaction.row.transactional_id)
            self._end(transaction)
        elif not transaction.given_up:
            self._timers.set(transaction.row.transactional_id, now.ms, _AGAIN_MS)

    def _decided(self, transaction: Transaction, reply: Settle[Producer], now: Now, durable: bool) -> None:
        if not durable:
            reply(KafkaError(NOT_AVAILABLE))
            return
        row = transaction.row
        if row.state in DECIDED:
            self._timers.remove(row.transactional_id)
            self._end(transaction)
        reply(Producer(row.producer_id, row.epoch) if row.next_id == NO_ID else Producer(row.next_id, 0))

    def abort(self, now: Now, name: str) -> None:
        """Abort the open transaction of an id for an operator, which fences its producer. Raises KafkaError."""
        transaction = self.transactions.get(name)
        if transaction is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        if transaction.pending is not Pending.NOTHING:
            raise KafkaError(CONCURRENT)
        if transaction.state is TxnState.ONGOING:
            self._fence(transaction, now)
        elif transaction.state is not TxnState.PREPARE_ABORT:
            raise KafkaError(WRONG_STATE)

    def ended(self, now: Now, transaction: Transaction) -> None:
        """Note that a decision is carried out everywhere. This need not be durable: repeating it makes no
        difference."""
        assert transaction.state in DECIDED, transaction.state
        assert transaction.pending is Pending.NOTHING, transaction.pending
        transaction.row, transaction.kept = completed(transaction.row, now.unix_ms), False
        self.open_places.forget(transaction)
        self.open_places.release(len(transaction.groups))
        transaction.groups.clear()
        transaction.ended.set()

    # --- life -------------------------------------------------------------------------------------------------------

    def surrender(self, name: str) -> None:
        """Forget an id that another node coordinates from now on; waiting requests get NOT_AVAILABLE."""
        transaction = self.transactions.pop(name, None)
        if transaction is None:
            return
        transaction.given_up = True
        self._timers.remove(name)
        self.open_places.forget(transaction)
        self.open_places.release(len(transaction.groups))
        transaction.groups.clear()
        waiting, transaction.waiting = transaction.waiting, []
        transaction.ended.set()
        _tell(waiting, KafkaError(NOT_AVAILABLE))

    def restore(self, now: Now, row: Row, places: Iterable[Place], groups: Iterable[str]) -> Transaction:
        """Bring an id back from the database; the caller must carry out its decision if it has one."""
        transaction = self.transactions[row.transactional_id] = Transaction(row=row)
        if row.state == TxnState.ONGOING or row.state in DECIDED:
            self.open_places.write_to(transaction, places)
            transaction.groups.update(groups)
            self.open_places.hold(len(transaction.groups))
        if row.state == TxnState.ONGOING:
            # Never longer than its timeout, however Unix time has jumped.
            left = min(row.started_ms + row.timeout_ms - now.unix_ms, row.timeout_ms)
            self._timers.set(row.transactional_id, now.ms, left)
        return transaction

    @property
    def spare(self) -> int:
        """Return how many more ids fit without any going to rest."""
        return max(self._limits.ids - len(self.transactions), 0)

    def has_room(self) -> bool:
        """Return whether one more id fits; an id that may rest is dropped for it. Ids that may not rest move to the end
        of the order."""
        if len(self.transactions) < self._limits.ids:
            return True
        for _ in range(_LOOKS):
            name, transaction = next(iter(self.transactions.items()))
            if transaction.may_rest:
                del self.transactions[name]
                self.rest = True
                return True
            self.transactions.move_to_end(name)
        return False

    def stored(self, row: Row) -> None:
        """Note that the database has the row of an ended transaction."""
        transaction = self.transactions.get(row.transactional_id)
        if transaction is not None and transaction.row == row:
            transaction.kept = True

    def expired(self, before_ms: int) -> list[Row]:
        """Return the rows of ids without an open transaction that were last used before ``before_ms`` (Unix time)."""
        return [
            one.row
            for one in self.transactions.values()
            if one.row.updated_ms < before_ms
            and one.pending is Pending.NOTHING
            and one.state is not TxnState.ONGOING
            and one.state not in DECIDED
        ]

    def forget(self, row: Row) -> bool:
        """Forget an id if its row is still ``row``; return whether it was forgotten."""
        transaction = self.transactions.get(row.transactional_id)
        if transaction is None or transaction.row != row or transaction.pending is not Pending.NOTHING:
            return False
        del self.transactions[row.transactional_id]
        return True

    def _change(self, transaction: Transaction, save: Save, then: Callable[[Now, bool], None]) -> None:
        transaction.pending = Pending.CHANGING

        def done(now: Now, durable: bool) -> None:
            transaction.pending = Pending.NOTHING
            if transaction.given_up:
                durable = False  # even if it is: the next coordinator continues from the database
            if durable:
                transaction.row, transaction.kept = save.row, True
            then(now, durable)

        self._journal.save(save, done)


def _tell(adds: Iterable[Add], error: KafkaError | None = None) -> None:
    for one in adds:
        one.reply(None, error)


def _may_be(row: Row, producer_id: int, epoch: int) -> bool:
    """Return whether a producer that has this id and epoch may get the next epoch (KIP-360)."""
    if row.epoch == NO_EPOCH or producer_id == row.producer_id:
        return True
    return producer_id == row.previous_id and epoch >= LAST_EPOCH - 1


def _next_epoch(row: Row, expected: tuple[int, int] | None, fresh_id: int | None) -> Row:
    """Return the row with the producer's next id and epoch. Raises KafkaError."""
    epoch = None if expected is None else expected[1]
    if row.is_exhausted and (epoch is None or epoch == row.epoch):
        if fresh_id is None:
            raise KafkaError(CONCURRENT)
        last = NO_EPOCH if epoch is None else row.epoch
        return row._replace(producer_id=fresh_id, epoch=0, last_epoch=last, previous_id=row.producer_id)
    if epoch is None:
        return row._replace(epoch=row.epoch + 1, last_epoch=NO_EPOCH)
    if row.epoch in (NO_EPOCH, epoch):
        return row._replace(epoch=row.epoch + 1, last_epoch=row.epoch)
    if epoch == row.last_epoch:
        return row  # the client repeats a request whose answer it did not get
    raise KafkaError(FENCED)


def _is_end_again(row: Row, producer_id: int, epoch: int) -> bool:
    """Return whether a client repeats the EndTxn that it has sent in its previous epoch."""
    if row.producer_id == producer_id:
        return row.epoch == epoch + 1
    return row.previous_id == producer_id and epoch == LAST_EPOCH - 1 and row.epoch == 0
