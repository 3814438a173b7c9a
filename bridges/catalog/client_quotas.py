"""The quotas of users and clients (:mod:`bridges.auth.quotas`), kept in the node's database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anabranch_kit.run.turns import portions
from bridges.auth.quotas import DEFAULT, FIELDS, Entity, QuotaKey, QuotaRules
from bridges.catalog.database.following import KeyedRows
from bridges.errors import LogError

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection, Database

_FOLLOWED = "quotas"
_ROWS = KeyedRows("client_quotas", "user_name client_id ip quota", "value")

Change = tuple[Entity, QuotaKey, float | None]
"""The new value of a quota; None removes it."""


class TooManyQuotas(LogError):
    """The node already keeps as many quotas as it may."""


class ClientQuotas:
    """The quotas in force, at most ``most``. ``changed`` is called after every change.

    A change is durable before it takes effect, and takes effect before the request is answered.
    """

    def __init__(self, db: Database, rules: QuotaRules, most: int, changed: Callable[[], None]) -> None:
        self.rules = rules
        self._db = db
        self._most = most
        self._changed = changed
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        self._db.changes.mirror(_FOLLOWED, _ROWS.read, self._follow)
        rows = await self._db.run(_ROWS.read)
        async for some in portions(rows):
            for *parts, key, value in some:
                self.rules.put(Entity(*map(_part, parts)), QuotaKey(key), float(value))
        self._changed()

    async def alter(self, changes: Sequence[Change]) -> None:
        """Apply ``changes``, all or none; the last change of a quota wins. Raises TooManyQuotas, DatabaseError."""
        await self._db.changes.settle(lambda: self._alter(changes))

    async def _alter(self, changes: Sequence[Change]) -> None:
        async with self._changing:
            wanted = {(entity, key): value for entity, key, value in changes}
            put: list[tuple[str, ...]] = []
            gone: list[tuple[str, ...]] = []
            more = 0
            async for some in portions(wanted.items()):
                for (entity, key), value in some:
                    there = key in self.rules.find_limits(entity)
                    row = (*map(_column, entity), key.value)
                    if value is not None:
                        put.append((*row, repr(value)))
                        more += not there
                    elif there:
                        gone.append(row)
                        more -= 1
            if more > 0 and len(self.rules) + more > self._most:
                raise TooManyQuotas(f"there are {len(self.rules)} quotas, and at most {self._most} are kept")
            if not put and not gone:
                return
            mark = self._db.changes.mark(_FOLLOWED, [json.dumps(row[:4]) for row in (*put, *gone)])

            def store(connection: Connection) -> None:
                mark(connection)
                connection.executemany(_ROWS.store, put)
                connection.executemany(_ROWS.drop, gone)

            await self._db.run(store, flush=True, frees=more <= 0, then=lambda _: self._hold(wanted))

    async def find(
        self, parts: Mapping[str, str | None], kinds: Iterable[str] = (), *, exactly: bool = False
    ) -> list[tuple[Entity, dict[QuotaKey, float]]]:
        """Return the entities that have these ``parts`` (Kafka's names; None is the default) and any part of each of
        these ``kinds``. With ``exactly``, an entity must have no other parts."""
        named = [(FIELDS[kind], DEFAULT if name is None else name) for kind, name in parts.items()]
        present = [FIELDS[kind] for kind in kinds]
        count = len(named) + len(present)
        found: list[tuple[Entity, dict[QuotaKey, float]]] = []
        async with self._changing:
            async for some in portions(list(self.rules.entities())):  # changes by other nodes may come in between
                for entity, values in some:
                    if (
                        all(getattr(entity, field) == name for field, name in named)
                        and all(getattr(entity, field) is not None for field in present)
                        and not (exactly and sum(part is not None for part in entity) != count)
                    ):
                        found.append((entity, dict(values)))
        return found

    def _follow(self, found: list[tuple[Any, ...]], names: Collection[str] | None) -> None:
        """Apply changes by other nodes to the quotas with these names, or to all (None)."""
        wanted: dict[tuple[Entity, QuotaKey], float | None] = {}
        if names is None:
            wanted = {(entity, key): None for entity, values in self.rules.entities() for key in values}
        else:
            for *parts, key in map(json.loads, names):
                wanted[Entity(*map(_part, parts)), QuotaKey(key)] = None
        for *parts, key, value in found:
            wanted[Entity(*map(_part, parts)), QuotaKey(key)] = float(value)
        self._hold(wanted)

    def _hold(self, wanted: Mapping[tuple[Entity, QuotaKey], float | None]) -> None:
        for (entity, key), value in wanted.items():
            self.rules.put(entity, key, value)
        self._changed()


def _column(part: str | None) -> str:
    """Return how a part is stored: empty for a part that the entity lacks, ``*`` for the default, ``=`` before a
    name."""
    return "" if part is None else "*" if part == DEFAULT else f"={part}"


def _part(column: str) -> str | None:
    return None if not column else DEFAULT if column == "*" else column[1:]
