"""Configurations of named resources: groups, subscriptions to client metrics, and brokers.

As with a broker, a name may be configured before anything of that name exists; a later group has the values. All values
are in memory, and follow other nodes' changes (:mod:`bridges.catalog.database.following`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from bridges.catalog.config_types import ConfigDef, ConfigSource, ConfigValue, InvalidConfig
from bridges.catalog.database.following import rows_named
from bridges.catalog.database.sql import Connection, upsert
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Database

GROUPS, CLIENT_METRICS = "front_kafka_group_configs", "front_kafka_client_metrics"
BROKERS = "front_kafka_broker_configs"
"""Tables with the columns ``grp`` (the resource's name), ``name`` and ``value``; .share.tables has created that of
groups."""

Configs = dict[str, dict[str, str]]
"""Values by resource and by key."""


class OwnConfigs:
    """The configurations of one kind of resource, of at most ``most`` resources; call :meth:`load` first.

    ``usual`` are the values of a resource that sets none, before a definition's default. ``check`` raises InvalidConfig
    for a resource's new own values.
    """

    def __init__(
        self,
        db: Database,
        table: str,
        what: str,
        source: ConfigSource,
        definitions: Mapping[str, ConfigDef],
        most: int,
        usual: Mapping[str, str],
        check: Callable[[Mapping[str, str]], None] = lambda own: None,
    ) -> None:
        self.definitions = definitions
        self._db = db
        self._table = table
        self._what = what
        self._source = source
        self._usual = {key: usual.get(key, one.default or "") for key, one in definitions.items()}
        self._check = check
        self._most = most
        self._own: Configs = {}
        self.changed: Callable[[], None] = lambda: None
        """Called after every change."""

    async def load(self) -> None:
        """Read the stored values, and follow their changes from now on. Raises LogError."""
        read = partial(_read, table=self._table)
        self._db.changes.mirror(self._table, read, self._follow)
        self._own = await self._db.run(read)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of resources that have values of their own."""
        return iter(self._own)

    def own_values(self, name: str) -> Mapping[str, str]:
        """Return a resource's own values by key. Raises KafkaError for an empty name."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a {self._what} needs a name")
        return self._own.get(name, {})

    def number(self, name: str, key: str) -> int | None:
        """Return a resource's own value as a number; None if it sets none."""
        value = self._own.get(name, {}).get(key)
        return None if value is None else int(value)

    def value(self, name: str, key: str) -> str:
        """Return the effective value of a resource's key."""
        return self._own.get(name, {}).get(key, self._usual[key])

    def values(self, name: str) -> list[ConfigValue]:
        """Return all effective values of a resource, as its description lists them. Raises KafkaError for an empty
        name."""
        own = self.own_values(name)
        told = []
        for key, definition in self.definitions.items():
            usual = self._usual[key]
            # The sources of a value, as a broker lists them: it lists no defaults of a subscription.
            found: list[tuple[str, str | None, ConfigSource]] = []
            if key in own:
                found = [(key, own[key], self._source)]
            elif self._source is ConfigSource.GROUP:
                found = [(key, usual, ConfigSource.DEFAULT)]
            source = self._source if key in own else ConfigSource.DEFAULT
            told.append(ConfigValue(definition, own.get(key, usual), source, found))
        return told

    def checked(self, name: str, changes: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the changes as they are stored; None removes a key. Raises KafkaError, InvalidConfig."""
        own = dict(self.own_values(name))
        stored: dict[str, str | None] = {}
        for key, value in changes.items():
            definition = self.definitions.get(key)
            if definition is None:
                raise InvalidConfig(f"{key!r} is not a configuration of a {self._what}")
            stored[key] = None if value is None else definition.canonical(value)
        own.update((key, value) for key, value in stored.items() if value is not None)
        self._check({key: value for key, value in own.items() if stored.get(key, value) is not None})
        if name not in self._own and len(self._own) >= self._most:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"as many of a {self._what} are configured as there may be")
        return stored

    async def change(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Store the result of :meth:`checked`; durable when this returns. Raises LogError."""

        def stored(_: None) -> None:
            own = {key: value for key, value in {**self._own.get(name, {}), **changes}.items() if value is not None}
            if own:
                self._own[name] = own
            else:
                self._own.pop(name, None)
            self.changed()

        note = self._db.changes.note(self._table, [name])

        def write(connection: Connection) -> None:
            note(connection)
            for key, value in changes.items():
                if value is None:
                    connection.execute(f"DELETE FROM {self._table} WHERE grp = ? AND name = ?", (name, key))
                else:
                    connection.execute(upsert(self._table, "grp name", "value"), (name, key, value))

        await self._db.run(write, then=stored)

    def _follow(self, found: Configs, names: Collection[str] | None) -> None:
        """Take over the changes that another node made to ``names`` (None: any)."""
        for name in list(self._own) if names is None else names:
            self._own.pop(name, None)
        self._own.update(found)
        self.changed()


def _read(connection: Connection, names: Collection[str] | None = None, *, table: str) -> Configs:
    found: Configs = {}
    for name, key, value in rows_named(connection, f"SELECT grp, name, value FROM {table}", "grp", names):
        found.setdefault(str(name), {})[str(key)] = str(value)
    return found


def _create(connection: Connection, table: str) -> None:
    columns = "grp TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (grp, name)"
    connection.execute(f"CREATE TABLE {table} ({columns}) STRICT")


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    partial(_create, table=CLIENT_METRICS),
    partial(_create, table=BROKERS),
)
