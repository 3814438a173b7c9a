"""YDB's SDKs under test, behind driver programs that know one set of commands."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import drivers
from tests.drivers import Driver, Program

HERE = Path(__file__).resolve().parent

RAW, GZIP, LZOP, ZSTD = 1, 2, 3, 4
"""Numbers of codecs, as YDB's protocol has them."""


@dataclass(frozen=True, slots=True)
class Sdk:
    """An SDK and what it can do at all."""

    program: Program
    codecs: Sequence[int] = (RAW, GZIP)
    metadata: bool = True
    """Its writer sends metadata items."""
    own_numbers: bool = True
    """It sends the sequence numbers that it is given, after a reconnection too."""
    acks: bool = True
    """It tells its user of each acknowledgement."""
    tls: bool = True
    copies: bool = False
    """Its driver copies topics in transactions."""

    @property
    def name(self) -> str:
        """Name of the test parameter."""
        return self.program.name


SDKS = (
    Sdk(drivers.go("ydb-go", HERE / "go"), acks=False, copies=True),
    Sdk(
        drivers.java("ydb-java", HERE / "java" / "pom.xml", "anabranch.tests.YdbDriver"),
        codecs=(RAW, GZIP, LZOP, ZSTD),
        copies=True,
    ),
    Sdk(drivers.node("ydb-js", HERE / "node", "driver_new.mjs", ["lines.js"]), copies=True),
    Sdk(drivers.node("ydb-js-old", HERE / "node", "driver_old.js", ["lines.js"]), own_numbers=False),
    Sdk(drivers.rust("ydb-rust", HERE / "rust", "ydb-tests-rust"), metadata=False, tls=False),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a driver connects to, and as whom."""

    endpoint: str
    database: str = "/local"
    user: str = ""
    password: str = ""
    ca: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message to write."""

    seq: int
    data: bytes
    metadata: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Got:
    """A message that was read; ``partition`` is None where the SDK does not tell it."""

    partition: int | None
    offset: int
    seq: int
    producer: str
    data: bytes
    metadata: Mapping[str, bytes]


class Client:
    """One SDK connected to one place."""

    def __init__(self, driver: Driver, place: Place) -> None:
        self._driver = driver
        self._place = place

    def _call(self, op: str, path: str, **arguments: Any) -> Any:
        where = {
            "endpoint": self._place.endpoint,
            "database": self._place.database,
            "user": self._place.user,
            "password": self._place.password,
            "ca": self._place.ca,
        }
        return self._driver.call({"op": op, **where, "path": path, **arguments})

    def create(
        self, path: str, *, partitions: int = 1, consumers: Sequence[str] = (), codecs: Sequence[int] = ()
    ) -> None:
        """Create a topic; no codecs: any is allowed."""
        self._call("create", path, partitions=partitions, consumers=list(consumers), codecs=list(codecs))

    def add_consumer(self, path: str, consumer: str) -> None:
        """Alter the topic."""
        self._call("add_consumer", path, consumer=consumer)

    def describe(self, path: str) -> dict[str, list[Any]]:
        """Numbers of its `partitions`, names of its `consumers`, numbers of its `codecs`."""
        return dict(self._call("describe", path))

    def drop(self, path: str) -> None:
        """Delete the topic."""
        self._call("drop", path)

    def write(
        self, path: str, producer: str, messages: Sequence[Sent], *, codec: int = RAW, partition: int | None = None
    ) -> list[tuple[int, str, int]] | None:
        """Write and wait for all acknowledgements: (seq, `written` or `skipped`, offset), None where none are told."""
        encoded = [
            {
                "seq": message.seq,
                "data": base64.b64encode(message.data).decode(),
                "metadata": {key: base64.b64encode(value).decode() for key, value in message.metadata.items()},
            }
            for message in messages
        ]
        acks = self._call("write", path, producer=producer, codec=codec, partition=partition, messages=encoded)
        return None if acks is None else [(seq, status, offset) for seq, status, offset in acks]

    def write_many(self, path: str, producer: str, *, first: int, count: int, prefix: str) -> None:
        """Write `prefix0`, `prefix1` ... with seq_nos from ``first`` on, ten at a time, each waiting for the last."""
        self._call("write_many", path, producer=producer, codec=RAW, first=first, count=count, prefix=prefix)

    def copy(self, path: str, consumer: str, target: str, count: int) -> None:
        """Copy ``count`` messages of a topic with one partition to another topic, in transactions."""
        self._call("copy", path, consumer=consumer, target=target, count=count)

    def read(self, path: str, consumer: str, count: int, *, commit: bool = True) -> list[Got]:
        """Read until there are ``count`` messages, and commit them."""
        found = self._call("read", path, consumer=consumer, count=count, commit=commit)
        return [
            Got(
                partition=message["partition"],
                offset=message["offset"],
                seq=message["seq"],
                producer=message["producer"],
                data=base64.b64decode(message["data"] or ""),
                metadata={key: base64.b64decode(value or "") for key, value in (message["metadata"] or {}).items()},
            )
            for message in found
        ]
