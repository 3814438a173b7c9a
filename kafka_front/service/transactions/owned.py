"""The transactional ids of a node, and its part in other nodes' transactions (docs/kafka-transactions.md, "Several
nodes").

A transactional id is coordinated by the owner of its slot; its partitions and groups belong to the owners of theirs.
These nodes ask each other over :mod:`bridges.cluster.peers.peers`, and none trusts another's word. Markers are written
as :mod:`bridges.log.transactions.marking` describes. A node that another one asks to make positions valid checks in the
database that the transaction is decided and not yet carried out, and that it still coordinates the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.run.turns import in_turns
from bridges.cluster.at_owner import at_owner
from bridges.errors import LogError, LogUnavailable, NotOwner
from bridges.log.transactions.marking import End, Markers
from kafka_front.service.brokers import TRANSACTION
from kafka_front.service.log_errors import Refused
from kafka_front.service.owned_keys import OwnedKeys
from kafka_front.service.transactions import tables
from kafka_front.service.transactions.coordinator import CONCURRENT, FENCED, NOT_AVAILABLE
from kafka_front.service.transactions.parts import Parts
from kafka_front.service.transactions.tables import NotAsBelieved
from kafka_front.service.transactions.transaction import Transaction, rebuild
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.catalog.topics.topic import Topic
    from bridges.cluster.members import Member
    from bridges.log.interfaces import AppendDone, Batch
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.transactions.open_transaction import Place
    from bridges.node.front import NodeServices
    from kafka_front.service.transactions.service import Transactions


_IMPLICIT_SINCE = 12
"""First version of Produce that adds its partitions to the transaction itself."""
_REASONS = {
    ErrorCode.INVALID_PRODUCER_EPOCH: "the producer is fenced: its transactional id has another epoch",
    ErrorCode.INVALID_TXN_STATE: "the partition was not added to an open transaction of the producer",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id does not have this producer id",
    ErrorCode.CONCURRENT_TRANSACTIONS: "the producer's last transaction is still being ended",
}


_ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class Decided(Struct, frozen=True):
    """The decision of a transaction, as its coordinator reports it."""

    name: str
    producer_id: int
    epoch: int
    commit: bool

    @classmethod
    def from_transaction(cls, transaction: Transaction) -> Decided:
        row = transaction.row
        return cls(row.transactional_id, row.producer_id, row.epoch, transaction.commits)

    def is_due(self, connection: Connection) -> bool:
        """Return whether the database has this decision and it is not carried out yet."""
        return tables.is_decided(connection, self.name, self.producer_id, self.epoch, self.commit)

    def require(self, connection: Connection) -> None:
        """Raise NotAsBelieved unless the decision is due."""
        if not self.is_due(connection):
            raise NotAsBelieved(ErrorCode.INVALID_TXN_STATE)


class Mark(Struct, frozen=True):
    """A request to the owner of partitions to write a transaction's marker there."""

    decided: Decided
    places: list[tuple[str, int]]


class EndPositions(Struct, frozen=True):
    """A request to the coordinator of a group to end the positions that are part of a transaction."""

    decided: Decided
    group: str


class AddParts(Struct, frozen=True):
    """A request to the coordinator of a transaction to add partitions and groups to it."""

    name: str
    producer_id: int
    epoch: int
    places: list[tuple[str, int]]
    groups: list[str]


class Abort(Struct, frozen=True):
    """A request to the coordinator of a transaction to abort it."""

    name: str


class Code(Struct, frozen=True):
    """The code of a KafkaError, or 0."""

    code: int = 0

    def require(self) -> None:
        if self.code:
            raise KafkaError(self.code)


class OwnedTransactions(OwnedKeys):
    """The transactional ids that this node coordinates, and its part in other nodes' transactions."""

    what = "transactional id"

    def __init__(self, node: NodeServices, service: Transactions) -> None:
        super().__init__(node.owners)
        self._node = node
        self._peers = peers = node.peers
        self._service = service
        self._coordinator = service.coordinator
        self.parts = Parts(node.barrier)
        self.markers = Markers(node.logs, node.db, node.owners, self.parts.quiet)
        peers.serve("kafka transaction markers", Mark, self._asked_to_mark)
        peers.serve("kafka transaction positions", EndPositions, self._asked_to_end)
        peers.serve("kafka transaction parts", AddParts, self._asked_to_add)
        peers.serve("kafka transaction abort", Abort, self._asked_to_abort)

    async def close(self) -> None:
        await super().close()
        await self.parts.close()

    # --- ids that come and go ---------------------------------------------------------------------------------------

    def slot(self, name: str) -> int:
        return self._owners.slot_of_key(TRANSACTION, name)

    async def read(self, wanted: Callable[[str], bool]) -> None:
        idle = self._coordinator.spare
        rows, places, groups = await self._node.db.run(partial(tables.read, idle=idle, wanted=wanted))
        self._coordinator.rest |= len(rows) >= idle
        async for row in in_turns(rows):
            name = row.transactional_id
            if self._owners.is_mine(self.slot(name)) and name not in self._coordinator.transactions:
                self._service.restore(row, places.get(name, ()), groups.get(name, ()))

    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        async for name in in_turns(list(self._coordinator.transactions)):
            if self.slot(name) in slots:
                self._coordinator.surrender(name)
        self._service.forget_settled(lambda name: self.slot(name) in slots)
        self.parts.lost(lambda stream: True)
        if in_order:
            # Rows in flight must be stored before the next owner reads them.
            await self._node.db.await_writes()

    def topic_deleted(self, topic: Topic) -> None:
        """Drop the parts of a deleted topic."""
        gone = {partition.stream_id for partition in topic.partitions}
        self.parts.lost(lambda stream: stream in gone)

    def may_keep(self, connection: Connection, name: str) -> bool:
        """Return whether this node may change an id's row in this database transaction."""
        try:
            self.holding(name)(connection)
        except NotOwner:
            return False
        return True

    # --- batches and positions --------------------------------------------------------------------------------------

    def append(self, name: str, to: PartitionLog, batch: Batch, version: int, done: AppendDone) -> None:
        """Append a batch to a transaction, which any node may coordinate, if that includes the partition; from
        ``version`` 12 of Produce on, the partition is added to it (KIP-890)."""
        of = batch.transaction
        assert of is not None
        implicit = version >= _IMPLICIT_SINCE
        place = (to.topic, to.partition)

        async def require() -> None:
            try:
                await self._require_place(name, of.producer_id, of.epoch, place, implicit)
            except KafkaError as refused:
                raise _produce_error(refused.code, implicit) from refused

        self.parts.append(to, batch, require, done)

    async def _require_place(self, name: str, producer_id: int, epoch: int, place: Place, implicit: bool) -> None:
        """Raise KafkaError, or LogError, unless the transaction includes a partition; add it if ``implicit``."""
        if self.owns(name):
            await self._service.know(name)
            try:
                self._coordinator.check(name, producer_id, epoch, place)
            except KafkaError:
                if not implicit:
                    raise
                await self._add_here(name, producer_id, epoch, [place], [])
        elif implicit:
            await self.add(name, producer_id, epoch, [place], [])
        else:
            require = partial(tables.require_place, name=name, producer_id=producer_id, epoch=epoch, place=place)
            try:
                await self._node.db.run(require)
            except NotAsBelieved as error:
                raise KafkaError(error.code, str(error)) from error

    async def add(self, name: str, producer_id: int, epoch: int, places: list[Place], groups: list[str]) -> None:
        """Add partitions and groups to a transaction, which any node may coordinate. Raises KafkaError."""
        if self.owns(name):
            await self._add_here(name, producer_id, epoch, places, groups)
            return
        asked = AddParts(name, producer_id, epoch, places, groups)
        try:
            # Without patience: the client's other requests wait behind this one, and it retries.
            answer = await at_owner(
                self._owners,
                lambda: self.slot(name),
                lambda: self._asked_to_add(asked),
                lambda owner: self._peers.ask(owner, "kafka transaction parts", asked, Code),
                patience_s=0,
            )
        except LogError as error:
            raise KafkaError(NOT_AVAILABLE, str(error)) from error
        answer.require()

    async def _add_here(self, name: str, producer_id: int, epoch: int, places: list[Place], groups: list[str]) -> None:
        try:
            await self._service.add(name, producer_id, epoch, places, groups)
        except KafkaError as refused:
            if refused.code in _ELSEWHERE:  # the caller looks for a partition or a group, not for the transaction
                raise KafkaError(NOT_AVAILABLE, refused.message) from refused
            raise

    async def _asked_to_add(self, asked: AddParts) -> Code:
        self._require_mine(asked.name)
        name, producer_id, epoch = asked.name, asked.producer_id, asked.epoch
        try:
            await self._service.know(name)
            try:
                for place in asked.places:
                    self._coordinator.check(name, producer_id, epoch, place)
                for group in asked.groups:
                    self._coordinator.check(name, producer_id, epoch, group=group)
            except KafkaError:
                await self._add_here(name, producer_id, epoch, asked.places, asked.groups)
                return Code()
        except KafkaError as refused:
            return Code(refused.code)
        # Nothing is written, so the ownership of the id must be checked on its own.
        await self._node.db.run(self.holding(name))
        return Code()

    async def abort(self, name: str) -> None:
        """Abort the open transaction of an id, which any node may coordinate. Raises KafkaError, LogError."""
        if self.owns(name):
            await self._service.abort(name)
            return
        asked = Abort(name)
        answer = await at_owner(
            self._owners,
            lambda: self.slot(name),
            lambda: self._asked_to_abort(asked),
            lambda owner: self._peers.ask(owner, "kafka transaction abort", asked, Code),
        )
        answer.require()

    async def _asked_to_abort(self, asked: Abort) -> Code:
        self._require_mine(asked.name)
        try:
            await self._service.abort(asked.name)
        except KafkaError as refused:
            return Code(refused.code)
        return Code()

    def _require_mine(self, name: str) -> None:
        try:
            self.require(name)
        except KafkaError as error:
            raise LogUnavailable(error.message) from error

    # --- ends -------------------------------------------------------------------------------------------------------

    async def ask_to_mark(self, transaction: Transaction, owner: Member, places: list[Place]) -> None:
        """Ask the owner of partitions to write a transaction's markers. Raises LogError."""
        mark = Mark(Decided.from_transaction(transaction), places)
        await self._peers.ask(owner, "kafka transaction markers", mark, Code)

    async def _asked_to_mark(self, asked: Mark) -> Code:
        end = End(asked.decided.producer_id, asked.decided.epoch, asked.decided.commit)
        await self.markers.write(end, asked.places, asked.decided.is_due)
        return Code()

    async def finish(self, transaction: Transaction) -> None:
        """Make the positions of a transaction valid, or discard them. Raises LogError."""
        decided = Decided.from_transaction(transaction)
        for group in sorted(transaction.groups):
            await self._finish_in(EndPositions(decided, group))

    async def _finish_in(self, asked: EndPositions) -> None:
        await at_owner(
            self._owners,
            lambda: self._owners.slot_of_key(self._node.progress.space, asked.group),
            lambda: self._asked_to_end(asked),
            lambda owner: self._peers.ask(owner, "kafka transaction positions", asked, Code),
            patience_s=0,  # the caller repeats it
        )

    async def _asked_to_end(self, asked: EndPositions) -> Code:
        decided = asked.decided
        await self._node.progress.end_transaction_of(decided.name, asked.group, decided.require, commit=decided.commit)
        return Code()

    # --- what people look at ----------------------------------------------------------------------------------------

    async def read_stored(self, name: str) -> Transaction | None:
        """Return an id as the database has it. Raises LogError."""
        found = await self._node.db.run(partial(tables.whole, name=name))
        return None if found is None else rebuild(*found)


def _produce_error(code: int, implicit: bool) -> Refused:
    """Return the error that refuses a batch, with a code that its version of Produce knows."""
    if code == FENCED:
        known = ErrorCode.INVALID_PRODUCER_EPOCH
    elif code == NOT_AVAILABLE or (code == CONCURRENT and not implicit):
        known = ErrorCode.NOT_ENOUGH_REPLICAS  # every client retries on it
    else:
        known = ErrorCode(code)
    return Refused(known, _REASONS.get(known, "the coordinator of transactions did not take the batch"))
