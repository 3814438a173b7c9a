"""Views of the node's transactions for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bridges.catalog.views.transactions import NothingToAbort, TransactionNotFound, TransactionView
from bridges.errors import LogUnavailable
from kafka_front.service.transactions.coordinator import WRONG_STATE
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.service.transactions.service import Transactions
    from kafka_front.service.transactions.transaction import Transaction


class LiveTransactions:
    """The transactions that this node coordinates; see
    :class:`bridges.catalog.views.transactions.TransactionDirectory`."""

    def __init__(self, transactions: Transactions) -> None:
        self._service = transactions
        self._coordinator = transactions.coordinator

    @property
    def timed_out(self) -> int:
        return self._coordinator.timed_out

    def transactions(self) -> Iterator[TransactionView]:
        return map(_view, list(self._coordinator.transactions.values()))

    def view(self, transactional_id: str) -> TransactionView | None:
        found = self._coordinator.transactions.get(transactional_id)
        return None if found is None else _view(found)

    async def read_others(self) -> list[TransactionView]:
        return [_view(one) for one in await self._service.read_others()]

    async def find(self, transactional_id: str) -> TransactionView | None:
        if self._service.owned.owns(transactional_id):
            try:
                await self._service.know(transactional_id)
            except KafkaError as error:
                raise LogUnavailable(str(error)) from error
            return self.view(transactional_id)
        found = await self._service.owned.read_stored(transactional_id)
        return None if found is None else _view(found)

    def writing_to(self, topic: str, partition: int) -> Iterator[TransactionView | None]:
        for one in self._coordinator.open_places.writing_to(topic):
            yield _view(one) if one.writes_to((topic, partition)) else None

    @property
    def ids(self) -> int:
        return self._service.ids

    async def forget(self, wanted: Callable[[str], bool], before_ms: int) -> int:
        return await self._service.forget(wanted, before_ms)

    async def abort(self, transactional_id: str) -> TransactionView:
        busy = f"transactional id {transactional_id!r} is just being changed"
        try:
            await self._service.owned.abort(transactional_id)
        except KafkaError as refused:
            if refused.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise TransactionNotFound(f"there is no transactional id {transactional_id!r}") from refused
            if refused.code != WRONG_STATE:
                raise LogUnavailable(busy) from refused
            view = await self.find(transactional_id)
            state = "" if view is None else f": it is {view.state}"
            text = f"transactional id {transactional_id!r} has nothing open to be aborted{state}"
            raise NothingToAbort(text) from refused
        view = await self.find(transactional_id)
        if view is None:
            raise LogUnavailable(busy)
        return view


def _view(transaction: Transaction) -> TransactionView:
    row = transaction.row
    return TransactionView(
        row.transactional_id,
        transaction.state.kafka_name,
        row.producer_id,
        row.epoch,
        row.timeout_ms,
        row.started_ms if transaction.is_open else None,
        row.updated_ms,
        transaction.places,
        transaction.groups,
    )
