"""The quotas of users and clients (:mod:`bridges.auth.quotas`), kept in the node's database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import portions
from anabranch_kit.sql.connection import upsert
from bridges.auth.quotas import DEFAULT, FIELDS, Entity, QuotaKey, QuotaRules
from bridges.errors import LogError

if TYPE_CHECKING:
    from bridges.catalog.sql import Connection, Database

_FOLLOWED = "quotas"
_NAMES = "user_name client_id ip quota"
_COLUMNS = f"{_NAMES} value".replace(" ", ", ")
_IS_QUOTA = " AND ".join(f"{name} = ?" for name in _NAMES.split())
_Row = tuple[str, str, str, str, str]

Change = tuple[Entity, QuotaKey, float | None]
"""A quota that is to hold, or with None none."""


class TooManyQuotas(LogError):
    """There are as many quotas as the node keeps."""


class ClientQuotas:
    """Quotas as they hold; ``most`` are kept. ``changed`` is called after every change.

    A change is durable before it holds, and holds before it is answered.
    """

    def __init__(self, db: Database, rules: QuotaRules, most: int, changed: Callable[[], None]) -> None:
        self.rules = rules
        self._db = db
        self._most = most
        self._changed = changed
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Read what is kept."""
        self._db.changes.mirror(_FOLLOWED, _read, self._follow)
        rows = await self._db.run(_all_rows)
        async for some in portions(rows):
            for *parts, key, value in some:
                self.rules.put(Entity(*map(_part, parts)), QuotaKey(key), float(value))
        self._changed()

    async def alter(self, changes: Sequence[Change]) -> None:
        """Have these hold, all or none; the last one counts of one quota. Raises TooManyQuotas, DatabaseError."""
        await self._db.changes.settled(lambda: self._alter(changes))

    async def _alter(self, changes: Sequence[Change]) -> None:
        async with self._changing:
            wanted = {(entity, key): value for entity, key, value in changes}
            put: list[tuple[str, ...]] = []
            gone: list[tuple[str, ...]] = []
            more = 0
            async for some in portions(wanted.items()):
                for (entity, key), value in some:
                    there = key in self.rules.of(entity)
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
            drop = f"DELETE FROM client_quotas WHERE {_IS_QUOTA}"

            def store(connection: Connection) -> None:
                mark(connection)
                connection.executemany(upsert("client_quotas", _NAMES, "value"), put)
                connection.executemany(drop, gone)

            await self._db.run(store, flush=True, frees=more <= 0, then=lambda _: self._hold(wanted))

    async def find(
        self, parts: Mapping[str, str | None], kinds: Iterable[str] = (), *, exactly: bool = False
    ) -> list[tuple[Entity, dict[QuotaKey, float]]]:
        """The entities that have these parts, by Kafka's names (None: the default), and parts of these kinds whatever
        their names; ``exactly``: and no others."""
        named = [(FIELDS[kind], DEFAULT if name is None else name) for kind, name in parts.items()]
        present = [FIELDS[kind] for kind in kinds]
        count = len(named) + len(present)
        found: list[tuple[Entity, dict[QuotaKey, float]]] = []
        async with self._changing:
            async for some in portions(list(self.rules.entities())):  # other nodes' changes come in between
                for entity, values in some:
                    if (
                        all(getattr(entity, field) == name for field, name in named)
                        and all(getattr(entity, field) is not None for field in present)
                        and not (exactly and sum(part is not None for part in entity) != count)
                    ):
                        found.append((entity, dict(values)))
        return found

    def _follow(self, found: list[_Row], names: Collection[str] | None) -> None:
        """Other nodes have changed what is called so, or anything (None)."""
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


def _all_rows(connection: Connection) -> list[_Row]:
    return connection.execute(f"SELECT {_COLUMNS} FROM client_quotas").fetchall()


def _read(connection: Connection, names: Collection[str] | None) -> list[_Row]:
    """The rows of the quotas that are called so and hold, or of all that do."""
    if names is None:
        return _all_rows(connection)
    query = f"SELECT {_COLUMNS} FROM client_quotas WHERE {_IS_QUOTA}"
    return [row for name in names for row in connection.execute(query, json.loads(name)).fetchall()]


def _column(part: str | None) -> str:
    """Empty for what an entity does not have, ``*`` for the default, ``=`` before a name."""
    return "" if part is None else "*" if part == DEFAULT else f"={part}"


def _part(column: str) -> str | None:
    return None if not column else DEFAULT if column == "*" else column[1:]
