"""Access rules (:mod:`bridges.auth.rules`), kept in the node's database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from anabranch_kit.run.turns import portions
from bridges.auth import Operation, ResourceKind
from bridges.auth.rules import Pattern, Rule, RuleFilter, Rules
from bridges.catalog.database.following import KeyedRows
from bridges.errors import LogError

if TYPE_CHECKING:
    from anabranch_kit.sql.connection import Connection
    from bridges.catalog.database.sql import Database

_ROWS = KeyedRows("access_rules", "kind pattern name principal host operation allow")
_FOLLOWED = "access rule"
_Row = tuple[str, str, str, str, str, str, int]


class TooManyRules(LogError):
    """The node already keeps as many rules as it may."""


class AccessRules:
    """The rules in force, at most ``most``. Callbacks in ``on_change`` are called after every change.

    A change is durable before it takes effect, and takes effect before the request is answered.
    """

    def __init__(self, db: Database, most: int) -> None:
        self.rules = Rules()
        self.on_change: list[Callable[[], None]] = []
        self._db = db
        self._most = most
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        self._db.changes.mirror(_FOLLOWED, _ROWS.read, self._follow)
        rows = await self._db.run(_ROWS.read)
        async for some in portions(rows):
            for row in some:
                self.rules.add(_rule(row))

    async def add(self, rules: Sequence[Rule]) -> None:
        """Add ``rules``, all or none; a rule that exists already changes nothing. Raises TooManyRules,
        DatabaseError."""
        await self._db.changes.settle(lambda: self._add(rules))

    async def _add(self, rules: Sequence[Rule]) -> None:
        async with self._changing:
            new = [rule for rule in dict.fromkeys(rules) if rule not in self.rules]
            if len(self.rules) + len(new) > self._most:
                raise TooManyRules(f"there are {len(self.rules)} rules, and at most {self._most} are kept")
            if new:
                rows = list(map(_row, new))
                mark = self._db.changes.mark(_FOLLOWED, map(json.dumps, rows))

                def write(connection: Connection) -> None:
                    mark(connection)
                    connection.executemany(_ROWS.store, rows)

                await self._db.run(
                    write,
                    flush=True,
                    then=lambda _: self._hold(new, self.rules.add),
                )

    async def find(self, wanted: RuleFilter) -> list[Rule]:
        async with self._changing:
            return await self._find(wanted)

    async def remove(self, filters: Sequence[RuleFilter]) -> list[list[Rule]]:
        """Remove the rules that match any filter. Return, for each filter, the rules that it matched. Raises
        DatabaseError."""
        return await self._db.changes.settle(lambda: self._remove(filters))

    async def _remove(self, filters: Sequence[RuleFilter]) -> list[list[Rule]]:
        async with self._changing:
            overtaken = self._db.changes.mark(_FOLLOWED, ())
            found = [await self._find(wanted) for wanted in filters]
            gone = list(dict.fromkeys(rule for taken in found for rule in taken))
            if gone:
                rows = list(map(_row, gone))
                note = self._db.changes.note(_FOLLOWED, map(json.dumps, rows))

                def write(connection: Connection) -> None:
                    overtaken(connection)
                    note(connection)
                    connection.executemany(_ROWS.drop, rows)

                await self._db.run(
                    write,
                    flush=True,
                    frees=True,
                    then=lambda _: self._hold(gone, self.rules.remove),
                )
            return found

    async def _find(self, wanted: RuleFilter) -> list[Rule]:
        found: list[Rule] = []
        async for some in portions(list(self.rules)):  # changes by other nodes may come in between
            found += filter(wanted.takes, some)
        return found

    def _hold(self, rules: Sequence[Rule], change: Callable[[Rule], None]) -> None:
        for rule in rules:
            change(rule)
        for told in self.on_change:
            told()

    def _follow(self, found: list[tuple[Any, ...]], names: Collection[str] | None) -> None:
        now = {_rule(row) for row in found}
        concerned = list(self.rules) if names is None else [_rule(json.loads(name)) for name in names]
        for rule in concerned:
            if rule not in now and rule in self.rules:
                self.rules.remove(rule)
        self._hold(list(now), self.rules.add)


def _row(rule: Rule) -> _Row:
    return (
        rule.kind.name,
        rule.pattern.name,
        rule.name,
        rule.principal,
        rule.host,
        rule.operation.name,
        int(rule.allow),
    )


def _rule(row: tuple[Any, ...]) -> Rule:
    kind, pattern, name, principal, host, operation, allow = row
    return Rule(ResourceKind[kind], Pattern[pattern], name, principal, host, Operation[operation], bool(allow))
