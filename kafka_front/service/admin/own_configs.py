"""What resources that somebody names are configured with: groups, subscriptions to metrics of clients, and brokers, as
far as it changes nothing here.

A name need not be one of anything that exists, as at a broker: what it is set to counts for the group to come. All of
it is in memory, and follows what other nodes change (:mod:`bridges.catalog.following`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from bridges.catalog.config_types import ConfigDef, ConfigSource, ConfigValue, InvalidConfig
from bridges.catalog.following import rows_named
from bridges.catalog.sql import Connection, upsert
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.sql import Database

GROUPS, CLIENT_METRICS = "front_kafka_group_configs", "front_kafka_client_metrics"
BROKERS = "front_kafka_broker_configs"
"""Tables, of columns ``grp`` (whose it is), ``name`` and ``value``; that of groups is older (.share.tables)."""

Configs = dict[str, dict[str, str]]
"""Values by whose they are and by key."""


class OwnConfigs:
    """Of one kind, ``most`` resources of it; call :meth:`load` first. ``usual`` counts where a resource says nothing,
    before a definition's default; ``check`` raises InvalidConfig for what a resource is to have of its own."""

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

    async def load(self) -> None:
        """Know what is stored. Raises LogError."""
        read = partial(_read, table=self._table)
        self._db.changes.mirror(self._table, read, self._follow)
        self._own = await self._db.run(read)

    def __iter__(self) -> Iterator[str]:
        """Names of those that have something of their own."""
        return iter(self._own)

    def of(self, name: str) -> Mapping[str, str]:
        """What one has of its own. Raises KafkaError for a name that is none."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a {self._what} needs a name")
        return self._own.get(name, {})

    def number(self, name: str, key: str) -> int | None:
        """A number of its own."""
        value = self._own.get(name, {}).get(key)
        return None if value is None else int(value)

    def value(self, name: str, key: str) -> str:
        """What counts for it."""
        return self._own.get(name, {}).get(key, self._usual[key])

    def values(self, name: str) -> list[ConfigValue]:
        """All that counts for it, as it is told. Raises KafkaError for a name that is none."""
        own = self.of(name)
        told = []
        for key, definition in self.definitions.items():
            usual = self._usual[key]
            # Where a value comes from, as a broker tells it: of a subscription nothing of defaults.
            found: list[tuple[str, str | None, ConfigSource]] = []
            if key in own:
                found = [(key, own[key], self._source)]
            elif self._source is ConfigSource.GROUP:
                found = [(key, usual, ConfigSource.DEFAULT)]
            source = self._source if key in own else ConfigSource.DEFAULT
            told.append(ConfigValue(definition, own.get(key, usual), source, found))
        return told

    def checked(self, name: str, changes: Mapping[str, str | None]) -> dict[str, str | None]:
        """Changes as they are stored; None takes a key away. Raises KafkaError, InvalidConfig."""
        own = dict(self.of(name))
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
        """Set what :meth:`checked` gave; durable when this returns. Raises LogError."""

        def stored(_: None) -> None:
            own = {key: value for key, value in {**self._own.get(name, {}), **changes}.items() if value is not None}
            if own:
                self._own[name] = own
            else:
                self._own.pop(name, None)

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
        """Another node has changed ``names`` (None: any)."""
        for name in list(self._own) if names is None else names:
            self._own.pop(name, None)
        self._own.update(found)


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
