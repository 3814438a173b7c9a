"""Kafka clients in other languages, behind driver programs (tests/drivers.py)."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import drivers
from tests.clients.api import ALL_ADMIN, Abilities, Client, ClientError, Got, GroupState, Rec, Shares
from tests.drivers import Driver, DriverError, Program

HERE = Path(__file__).resolve().parent


def _b64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _unb64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _encode(records: Sequence[Rec]) -> list[dict[str, Any]]:
    return [
        {
            "key": _b64(record.key),
            "value": _b64(record.value),
            "headers": [[name, _b64(value)] for name, value in record.headers],
            "timestamp": record.timestamp,
        }
        for record in records
    ]


def _decode(records: Sequence[Mapping[str, Any]]) -> list[Got]:
    return [
        Got(
            key=_unb64(record["key"]),
            value=_unb64(record["value"]),
            headers=tuple((name, _unb64(value)) for name, value in record["headers"]),
            timestamp=record["timestamp"],
            partition=record["partition"],
            offset=record["offset"],
        )
        for record in records
    ]


class RemoteClient(Client):
    """A client library behind a driver program."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        abilities: Abilities,
        driver: Driver,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """``settings`` are the library's own, for every client made (Java's only)."""
        super().__init__(bootstrap)
        self._settings = dict(settings or {})
        self.name = name
        self.abilities = abilities
        self._driver = driver

    def _call(self, op: str, **arguments: Any) -> Any:
        try:
            return self._driver.call({"op": op, "bootstrap": self.bootstrap, "settings": self._settings, **arguments})
        except DriverError as error:
            raise ClientError(error.error, error.message) from None

    def produce(
        self, topic: str, partition: int, records: Sequence[Rec], *, codec: str = "none", idempotent: bool = False
    ) -> list[int]:
        offsets = self._call(
            "produce", topic=topic, partition=partition, records=_encode(records), codec=codec, idempotent=idempotent
        )
        return list(offsets)

    def consume(self, topic: str, counts: Mapping[int, int], *, starts: Mapping[int, int] | None = None) -> list[Got]:
        got = self._call("consume", topic=topic, counts=counts, starts=starts or {}, isolation="read_uncommitted")
        return _decode(got)

    def consume_group(self, group: str, topic: str, count: int, *, protocol: str = "classic") -> list[Got]:
        return _decode(self._call("consume_group", group=group, topic=topic, count=count, protocol=protocol))

    def share(self, group: str, topic: str, partitions: int, *, protocol: str = "classic") -> Shares:
        answer = self._call("share", group=group, topic=topic, partitions=partitions, protocol=protocol)
        first, second, after = (frozenset(part) for part in answer)
        return Shares(first, second, after)

    def read_together(
        self, group: str, topic: str, count: int, first: str, second: str, instances: Sequence[str] = ()
    ) -> list[Got]:
        """Java's only: two members, of a group protocol each, read until they have ``count`` different records, and
        commit after each poll. ``instances`` makes them static members."""
        answer = self._call(
            "read_together",
            group=group,
            topic=topic,
            count=count,
            protocol=first,
            second=second,
            instances=list(instances),
        )
        return _decode(answer)

    def transact(self, topic: str, transactional_id: str, rounds: Sequence[tuple[bool, Sequence[Rec]]]) -> None:
        encoded = [[commit, _encode(records)] for commit, records in rounds]
        self._call("transact", topic=topic, transactional_id=transactional_id, rounds=encoded)

    def consume_committed(self, topic: str, count: int) -> list[Got]:
        return _decode(self._call("consume", topic=topic, counts={0: count}, starts={}, isolation="read_committed"))

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        self._call("create_topic", topic=topic, partitions=partitions, config=dict(config or {}))

    def delete_topic(self, topic: str) -> None:
        self._call("delete_topic", topic=topic)

    def topics(self) -> list[str]:
        return list(self._call("topics"))

    def partition_count(self, topic: str) -> int:
        return int(self._call("partition_count", topic=topic))

    def config(self, topic: str) -> dict[str, str | None]:
        return dict(self._call("config", topic=topic))

    def set_config(self, topic: str, values: Mapping[str, str]) -> None:
        self._call("set_config", topic=topic, values=dict(values))

    def add_partitions(self, topic: str, total: int) -> None:
        self._call("add_partitions", topic=topic, total=total)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._call("delete_records", topic=topic, partition=partition, before=before)

    def offset(self, topic: str, partition: int, at: str | int) -> int:
        return int(self._call("offset", topic=topic, partition=partition, at=at))

    def groups(self) -> list[str]:
        return list(self._call("groups"))

    def describe_group(self, group: str) -> GroupState:
        state, members = self._call("describe_group", group=group)
        return GroupState(state, members)

    def committed(self, group: str, topic: str, partition: int) -> int:
        return int(self._call("committed", group=group, topic=topic, partition=partition))

    def delete_group(self, group: str) -> None:
        self._call("delete_group", group=group)


@dataclass(frozen=True, slots=True)
class Remote:
    """A driver program and what the client library behind it can do."""

    program: Program
    abilities: Abilities

    @property
    def name(self) -> str:
        """Name of the client under test."""
        return self.program.name


def _java(name: str, version: str, *, new_group_protocol: bool) -> Remote:
    program = drivers.java(
        name, HERE / "java" / "pom.xml", "anabranch.tests.Driver", properties={"kafka.version": version}
    )
    abilities = Abilities(admin=ALL_ADMIN, transactions=True, new_group_protocol=new_group_protocol)
    return Remote(program, abilities)


_FRANZ_GO = Remote(
    drivers.go("franz-go", HERE / "go"), Abilities(admin=ALL_ADMIN, transactions=True, new_group_protocol=True)
)
_KAFKAJS = Remote(
    drivers.node("kafkajs", HERE / "node", "driver.js"),
    Abilities(null_headers=False, ordered_headers=False, admin=ALL_ADMIN, transactions=True),
)
_PLATFORMATIC = Remote(
    drivers.node("platformatic", HERE / "platformatic", "driver.js"),
    # It reads no snappy that is framed as Java's library frames it, and Node.js brings zstd since 22.15 only.
    Abilities(codecs=frozenset({"none", "gzip", "lz4"}), admin=ALL_ADMIN),
)

REMOTES = (
    _java("java-new", "4.4.0", new_group_protocol=True),
    _java("java-old", "3.4.1", new_group_protocol=False),
    _FRANZ_GO,
    _KAFKAJS,
    _PLATFORMATIC,
)
"""The newest Java client, the one inside Spark 3.5, franz-go, kafkajs and Node's newer one."""
