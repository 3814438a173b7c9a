"""What the node tells people of the transactions of sinks: attempts of tasks, by names made of what they are of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bridges.catalog.transaction_view import NothingToAbort, TransactionNotFound, TransactionView
from spark_pipeline.node.write_tables import AttemptState

if TYPE_CHECKING:
    from spark_pipeline.node.write_attempts import Attempt
    from spark_pipeline.node.writes import Writes

_PATIENCE_S = 2.0


class LiveAttempts:
    """See :class:`bridges.catalog.transaction_view.TransactionDirectory`. A timeout is the silence after which an
    attempt is aborted: one that is heard of may be open for longer."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    @property
    def timed_out(self) -> int:
        return self._writes.expired

    def transactions(self) -> Iterator[TransactionView]:
        return map(_view, self._writes.attempts.all())

    def view(self, transactional_id: str) -> TransactionView | None:
        found = self._find(transactional_id)
        return None if found is None else _view(found)

    async def others(self) -> list[TransactionView]:
        return []

    async def find(self, transactional_id: str) -> TransactionView | None:
        return self.view(transactional_id)

    def writing_to(self, topic: str, partition: int) -> Iterator[TransactionView | None]:
        for one in self._writes.attempts.places.writing_to(topic):
            yield _view(one) if one.writes_to((topic, partition)) else None

    async def abort(self, transactional_id: str) -> TransactionView:
        found = self._find(transactional_id)
        if found is None:
            raise TransactionNotFound(f"no task of a sink has the open transaction {transactional_id!r}")
        await self._writes.abort(found.row.owner, found.session.name, [found.key])
        if found.state is not AttemptState.ABORTING:
            raise NothingToAbort(f"it was decided that {transactional_id!r} is committed")
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await found.ended.wait()
        except TimeoutError:
            pass  # the view says so
        return _view(found)

    def _find(self, name: str) -> Attempt | None:
        producer, _, epoch = name.rpartition("/")[2].partition(".")
        try:
            found = self._writes.attempts.of_key((int(producer), int(epoch)))
        except ValueError:
            return None
        return found if found is not None and _name(found) == name else None


def _name(attempt: Attempt) -> str:
    row = attempt.row
    return f"{row.query}/{row.batch}/{row.task}/{row.producer_id}.{row.epoch}"


def _view(attempt: Attempt) -> TransactionView:
    row, ended = attempt.row, attempt.ended.is_set()
    state = "Ended" if ended else attempt.state.name.capitalize()
    return TransactionView(
        _name(attempt),
        state,
        row.producer_id,
        row.epoch,
        row.timeout_ms,
        None if ended else row.begun_ms,
        row.begun_ms,
        attempt.places,
        (),
    )
