"""View of the transactions of Pravega's writers for operators, by stream and id."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from bridges.catalog.views.transactions import NothingToAbort, TransactionNotFound, TransactionView
from pravega_front.wire.controller import TxnState

if TYPE_CHECKING:
    from bridges.catalog.topics.catalog import Catalog
    from pravega_front.service.transactions.transaction import Transaction
    from pravega_front.service.transactions.transactions import Transactions

_PATIENCE_S = 2.0


class LiveTransactions:
    """Implementation of :class:`bridges.catalog.views.transactions.TransactionDirectory`. A transaction's name is
    ``SCOPE/STREAM/ID``, with the id as in its segments' names. The timeout is the lease; since pings renew it, a
    transaction may be open for longer."""

    def __init__(self, transactions: Transactions, catalog: Catalog) -> None:
        self._service = transactions
        self._catalog = catalog

    @property
    def timed_out(self) -> int:
        return self._service.timed_out

    def transactions(self) -> Iterator[TransactionView]:
        return (self._view(one) for one in self._service.open if self._service.ends(one))

    def view(self, transactional_id: str) -> TransactionView | None:
        found = self._find(transactional_id)
        return None if found is None else self._view(found)

    async def read_others(self) -> list[TransactionView]:
        return [self._view(one) for one in self._service.open if not self._service.ends(one)]

    async def find(self, transactional_id: str) -> TransactionView | None:
        return self.view(transactional_id)

    def writing_to(self, topic: str, partition: int) -> Iterator[TransactionView | None]:
        # While a large transaction is committed, the partition's log has an open transaction, too.
        for one in self._service.open.in_topic(topic):
            yield self._view(one) if partition in one.parents or partition in one.targets else None

    async def abort(self, transactional_id: str) -> TransactionView:
        found = self._find(transactional_id)
        if found is None:
            raise TransactionNotFound(f"there is no open transaction {transactional_id!r}")
        if not await self._service.abort(found):
            raise NothingToAbort(f"it was decided that {transactional_id!r} is committed")
        with suppress(TimeoutError):  # the view shows whether it has ended
            async with asyncio.timeout(_PATIENCE_S):
                await found.ended.wait()
        return self._view(found)

    def _find(self, name: str) -> Transaction | None:
        found = self._service.open.by_id(name.rpartition("/")[2])
        return found if found is not None and self._name(found) == name else None

    def _name(self, transaction: Transaction) -> str:
        topic = self._catalog.topics.get(transaction.topic)
        stream = transaction.topic if topic is None else topic.names["pravega"]
        return f"{stream}/{transaction.hex_id}"

    def _view(self, one: Transaction) -> TransactionView:
        return TransactionView(
            self._name(one),
            one.state.name.capitalize(),
            one.low,
            one.epoch,
            one.lease_ms,
            None if one.state in (TxnState.COMMITTED, TxnState.ABORTED) else one.created_ms,
            one.created_ms,
            {one.topic: one.parents},
            (),
        )
