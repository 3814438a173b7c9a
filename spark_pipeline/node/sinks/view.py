"""Views of sinks' transactions for operators: attempts of tasks, named by query, batch, task and producer.

In a cluster each node shows its own attempts from memory, and other nodes' from the database, which has every attempt
that has written something. An attempt is aborted by the owner of its query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anabranch_kit.run.turns import collected
from bridges.catalog.views.transactions import NothingToAbort, TransactionNotFound, TransactionView
from bridges.cluster.at_owner import at_owner
from bridges.errors import NotOwner
from spark_pipeline.node.messages import ABORT, AbortAttempt, Aborted, query_slot
from spark_pipeline.node.sinks.tables import AttemptRow, AttemptState, read_attempts

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.cluster.members import Member
    from bridges.node.front import NodeServices
    from spark_pipeline.node.sinks.attempts import Attempt
    from spark_pipeline.node.sinks.writes import Writes

_PATIENCE_S = 2.0
_ENDED = "Ended"
_NONE = ""


class LiveAttempts:
    """The directory of attempts, see :class:`bridges.catalog.views.transactions.TransactionDirectory`.

    A timeout here is the silence after which an attempt is aborted: an active one may be open for longer. ``writes``
    returns this node's attempts, None before its first sink.
    """

    def __init__(self, node: NodeServices, writes: Callable[[], Writes | None]) -> None:
        self._node = node
        self._writes = writes

    @property
    def timed_out(self) -> int:
        writes = self._writes()
        return 0 if writes is None else writes.expired

    def transactions(self) -> Iterator[TransactionView]:
        writes = self._writes()
        return map(_view, () if writes is None else writes.attempts.all())

    def view(self, transactional_id: str) -> TransactionView | None:
        found = self._find(transactional_id)
        return None if found is None else _view(found)

    async def read_others(self) -> list[TransactionView]:
        writes = self._writes()
        return await collected(
            await self._node.db.run(_read_stored),
            lambda one: writes is None or writes.attempts.of_key((one.producer_id, one.epoch)) is None,
        )

    async def find(self, transactional_id: str) -> TransactionView | None:
        known = self.view(transactional_id)
        if known is None:
            known = next((one for one in await self.read_others() if one.transactional_id == transactional_id), None)
        return known

    def writing_to(self, topic: str, partition: int) -> Iterator[TransactionView | None]:
        writes = self._writes()
        for one in () if writes is None else writes.attempts.places.writing_to(topic):
            yield _view(one) if one.writes_to((topic, partition)) else None

    async def abort(self, transactional_id: str) -> TransactionView:
        found = await self.find(transactional_id)
        state = _NONE if found is None else await self._abort(transactional_id)
        if found is None or state == _NONE:
            raise TransactionNotFound(f"no task of a sink has the open transaction {transactional_id!r}")
        if state == _name_of(AttemptState.COMMITTING):
            raise NothingToAbort(f"it was decided that {transactional_id!r} is committed")
        return replace(found, state=state, started_ms=None if state == _ENDED else found.started_ms)

    async def _abort(self, name: str) -> str:
        owners, peers = self._node.owners, self._node.peers

        async def there(owner: Member) -> str:
            return (await peers.ask(owner, ABORT, AbortAttempt(name), Aborted)).state

        return await at_owner(owners, lambda: query_slot(owners, _query_of(name)), lambda: self.abort_here(name), there)

    async def abort_here(self, name: str) -> str:
        """Abort an attempt of a query that this node owns, and wait a little for its end.

        Returns its state, empty if there is no such attempt. Raises LogError.
        """
        writes = self._writes()
        if writes is None:
            return _NONE
        if not writes.queries.owns(_query_of(name)):
            raise NotOwner(f"query {_query_of(name)}", -1)
        found = self._find(name)
        if found is None:
            return _NONE
        await writes.abort(found.row.owner, found.session.name, [found.key])
        if found.state is AttemptState.ABORTING:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await found.ended.wait()
            except TimeoutError:
                pass  # the returned state shows that it has not ended
        return _state(found)

    def _find(self, name: str) -> Attempt | None:
        writes = self._writes()
        producer, _, epoch = name.rpartition("/")[2].partition(".")
        try:
            found = None if writes is None else writes.attempts.of_key((int(producer), int(epoch)))
        except ValueError:
            return None
        return found if found is not None and _name(found.row) == name else None


def _read_stored(connection: Connection) -> list[TransactionView]:
    rows, places = read_attempts(connection, lambda query: True)
    of: dict[tuple[int, int], dict[str, set[int]]] = {}
    for producer_id, epoch, topic, partition in places:
        of.setdefault((producer_id, epoch), {}).setdefault(topic, set()).add(partition)
    return [
        _make_view(row, _name_of(AttemptState(row.state)), of.get((row.producer_id, row.epoch), {})) for row in rows
    ]


def _name(row: AttemptRow) -> str:
    return f"{row.query}/{row.batch}/{row.task}/{row.producer_id}.{row.epoch}"


def _query_of(name: str) -> str:
    return name.rsplit("/", 3)[0]


def _name_of(state: AttemptState) -> str:
    return state.name.capitalize()


def _state(attempt: Attempt) -> str:
    return _ENDED if attempt.ended.is_set() else _name_of(attempt.state)


def _view(attempt: Attempt) -> TransactionView:
    return _make_view(attempt.row, _state(attempt), attempt.places)


def _make_view(row: AttemptRow, state: str, places: Mapping[str, Collection[int]]) -> TransactionView:
    return TransactionView(
        _name(row),
        state,
        row.producer_id,
        row.epoch,
        row.timeout_ms,
        None if state == _ENDED else row.begun_ms,
        row.begun_ms,
        places,
        (),
    )
