"""A copy of coordinators' state in an internal topic: the last record of each key is what the database has now.

The owner of a partition writes it, alone: it reads the names that have changed from the database, and appends what
differs from what the partition has. So a record is shown only after its content is durable, and no late record of a
former coordinator can follow a newer one. Changes between two looks are one record, as if the topic had been compacted.

| what could go wrong | why it does not |
|---|---|
| a coordinator ends after a change, and has told nobody | owners compare everything then, and at their start |
| an owner ends | the next one reads the partition, and compares everything |
| another node writes to the partition meanwhile | the log is in another epoch then: the partition is read again |
| an append fails, or its fate is unknown | the partition is read again |
| an owner is told of a change just before another node takes over | everything is compared every ten minutes |
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog
from msgspec import Struct, field

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.shared import SharedWorks
from anabranch_kit.run.turns import in_turns
from bridges.catalog.topics.topic import ChangeKind, TopicExists, TopicKind
from bridges.cluster.at_owner import at_owner
from bridges.errors import BatchTooLarge, LogDeleted, LogError, LogUnavailable
from bridges.formats.base import FormatId
from bridges.formats.kafka import BatchBuilder, iterate
from bridges.formats.records import Record
from bridges.log.interfaces import Batch

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.catalog.topics.topic import Change, Topic
    from bridges.catalog.views.groups import Place
    from bridges.cluster.members import Member
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.node.front import NodeServices

_log = structlog.get_logger("anabranch.kafka.internal")

PARTITIONS = 50
"""Kafka's default for each of its internal topics."""
_CONFIG = {"cleanup.policy": "compact", "max.message.bytes": "16773120"}
_GATHER_S = 0.05
"""Time in which changes gather before the database is asked."""
_AGAIN_S, _SELDOM_S = 0.25, 60.0
"""First and longest pause after a failure."""
_COMPARE_MS = 600_000
_COMPARISON = -1
"""Stands for a comparison among the works of partitions."""
_NAMES_AT_ONCE = 50
"""Names read together, and in one message: such a message is below the 4 MiB that nodes take."""
_MOST_PLACES = 100
"""Places of a name beyond which all of it is read."""
_BATCH_BYTES = 512 * 1024
_READ_BYTES = 1024 * 1024

Places = Collection["Place"] | None
"""The places of a name's positions that have changed; None: all of the name."""
Names = Mapping[str, Places]


class Source(Protocol):
    """The state that a topic shows, by name. Records have keys that no other name has."""

    topic: str

    def names(self, connection: Connection) -> Collection[str]:
        """Return all names that the database has something of."""

    def read(self, connection: Connection, name: str, places: Places) -> dict[bytes, bytes | None]:
        """Return the records of a name by key, None for a place without a position."""

    def name_of(self, key: bytes) -> str:
        """Return the name whose record has this key."""


Tell = Callable[[str, int, Names, "Member"], Awaitable[object]]
"""Tells another node what has changed in a partition of a topic that it owns."""


class _Known(Struct):
    """The content of a partition, read in an epoch of its log: by name and key the hash of the value."""

    epoch: int
    records: dict[str, dict[bytes, int]] = field(default_factory=dict)

    def differing(self, name: str, found: Mapping[bytes, bytes | None], places: Places) -> Iterable[Record]:
        """Return the records that make the partition have what was ``found``, which it is taken to have from now
        on."""
        known = self.records.setdefault(name, {})
        gone = [key for key in known if key not in found] if places is None else []
        for key, value in (*found.items(), *((key, None) for key in gone)):
            if known.get(key) != (None if value is None else hash(value)):
                self.learn(name, key, value)
                yield Record(key, value, [], now_ms())
        if not known:
            del self.records[name]

    def learn(self, name: str, key: bytes, value: bytes | None) -> None:
        known = self.records.setdefault(name, {})
        if value is not None:
            known[key] = hash(value)
        else:
            known.pop(key, None)


class TopicCopy:
    """The copy of a ``source`` in its topic."""

    def __init__(self, node: NodeServices, source: Source, tell: Tell) -> None:
        self.topic = source.topic
        self._node = node
        self._source = source
        self._tell = tell
        self._changed: dict[int, dict[str, Places]] = {}
        """What has changed, by partition."""
        self._to_compare: set[int] = set()
        self._known: dict[int, _Known] = {}
        self._closed = False
        self._works: SharedWorks[int, None] = SharedWorks()
        """The task of each partition with changes, and that of a comparison."""

    async def find(self) -> Topic | None:
        """Return the topic, made if there is none; None if that is not possible now."""
        catalog = self._node.catalog
        if self.topic not in catalog.topics:
            try:
                await catalog.create_topic(self.topic, PARTITIONS, _CONFIG, kind=TopicKind.INTERNAL)
            except TopicExists:
                pass  # another request makes it
            except LogError as error:
                _log.warning("internal topic not made", topic=self.topic, error=str(error))
        return catalog.topics.get(self.topic)

    def start(self) -> None:
        """Compare everything once, and after each event that may have hidden a change."""
        owners = self._node.owners
        owners.on_gained.append(self.compare)
        owners.on_gone.append(self.compare)
        owners.on_lost.append(self._lost)
        self._node.catalog.on_change.append(self._topic_changed)
        self._node.every(_COMPARE_MS, self._compare_now, f"comparison of {self.topic}")
        self.compare()

    async def close(self) -> None:
        self._closed = True  # other fronts may still commit positions
        for task in self._works.tasks:
            task.cancel()
        await self._works.drain()

    def changed(self, name: str, places: Places = None) -> None:
        """Note that the state of a name has changed, durably. Costs next to nothing while there is no topic."""
        if (many := self._partitions) is not None:
            self.changed_in(partition_of(name, many), {name: places})

    def changed_in(self, partition: int, names: Names) -> None:
        """Note what has changed in a partition."""
        known = self._changed.setdefault(partition, {})
        for name, places in names.items():
            before = known.get(name, ())
            several = None if places is None or before is None else {*before, *places}
            known[name] = None if several is None or len(several) > _MOST_PLACES else several
        self._works.start(partition, partial(self._work, partition))

    @property
    def _partitions(self) -> int | None:
        topic = None if self._closed else self._node.catalog.topics.get(self.topic)
        return len(topic.partitions) if topic is not None and topic.kind is TopicKind.INTERNAL else None

    # --- what may have hidden a change ------------------------------------------------------------------------------

    def compare(self, slots: Collection[int] | None = None) -> None:
        """Compare all of this node's partitions, or those in ``slots``, with the database."""
        for partition in range(self._partitions or 0):
            slot = self._slot(partition)
            if self._node.owners.is_mine(slot) and (slots is None or slot in slots):
                self._to_compare.add(partition)
        if self._to_compare:
            self._works.start(_COMPARISON, self._compare)

    async def _compare_now(self, now_ms: int) -> None:
        self.compare()

    async def _compare(self) -> None:
        while self._to_compare and (many := self._partitions) is not None:
            await asyncio.sleep(_GATHER_S)
            partitions, self._to_compare = self._to_compare, set()
            try:
                stored = await self._node.db.run(self._source.names)
            except LogError as error:
                _log.warning("internal topic not compared", topic=self.topic, error=str(error))
                self._to_compare |= partitions
                await asyncio.sleep(_AGAIN_S)
                continue
            found: dict[int, dict[str, Places]] = {one: {} for one in partitions}
            for partition in partitions & self._known.keys():
                found[partition] |= dict.fromkeys(self._known[partition].records)
            async for name in in_turns(stored):
                if (names := found.get(partition_of(name, many))) is not None:
                    names[name] = None
            for partition, names in found.items():
                self.changed_in(partition, names)

    def _topic_changed(self, change: Change) -> None:
        if change.kind is ChangeKind.CREATED and change.topic is not None and change.topic.name == self.topic:
            self.compare()

    async def _lost(self, slots: Collection[int], in_order: bool) -> None:
        for partition in [one for one in self._known if self._slot(one) in slots]:
            del self._known[partition]

    # --- writing ----------------------------------------------------------------------------------------------------

    def _slot(self, partition: int) -> int:
        return self._node.owners.slot_of(self.topic, partition)

    async def _work(self, partition: int) -> None:
        pause = _AGAIN_S
        while partition in self._changed and self._partitions is not None:
            await asyncio.sleep(_GATHER_S)
            names = self._changed.pop(partition)
            try:
                await at_owner(
                    self._node.owners,
                    partial(self._slot, partition),
                    partial(self._write, partition, names),
                    partial(self._pass_on, partition, names),
                )
                pause = _AGAIN_S
                continue
            except LogError as error:
                _log.warning("internal topic is behind", topic=self.topic, partition=partition, error=str(error))
            except Exception as error:  # noqa: BLE001 - counted, and tried again
                self._node.barrier.caught("copying to an internal topic", error, topic=self.topic)
            self._known.pop(partition, None)
            self.changed_in(partition, names)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _SELDOM_S)

    async def _pass_on(self, partition: int, names: Names, owner: Member) -> None:
        for some in _portions(names):
            await self._tell(self.topic, partition, dict(some), owner)

    async def _write(self, partition: int, names: Names) -> None:
        """Append what differs from the database. Raises LogError."""
        log = self._node.logs.get(self.topic, partition)
        if log is None:
            raise LogDeleted(f"{self.topic}-{partition} is not served any more")
        await log.ready()
        known = self._known.get(partition)
        if known is None or known.epoch != log.epoch:
            known = await self._read(log)
            names = {**names, **dict.fromkeys(known.records)}
        for some in _portions(names):
            records: list[Record] = []
            found = await self._node.db.run(partial(self._find, some))
            async for (name, places), now in in_turns(zip(some, found, strict=True)):
                records += known.differing(name, now, places)
            await self._append(log, known, records)
        self._known[partition] = known

    def _find(self, names: Iterable[tuple[str, Places]], connection: Connection) -> list[dict[bytes, bytes | None]]:
        return [self._source.read(connection, name, places) for name, places in names]

    async def _append(self, log: PartitionLog, known: _Known, records: list[Record]) -> None:
        builder, size = BatchBuilder(), 0
        for position, record in enumerate(records):
            builder.add(record)
            size += record.size
            if size < _BATCH_BYTES and position + 1 < len(records):
                continue
            batch = Batch(builder.finish(), len(builder), int(FormatId.KAFKA), builder.max_timestamp, own=True)
            if log.epoch != known.epoch or not log.is_open:
                raise LogUnavailable(f"{log.topic}-{log.partition} was taken over meanwhile")
            try:
                await awaited(partial(log.append, batch))
            except BatchTooLarge as error:
                _log.warning("state too large for an internal topic", topic=self.topic, error=str(error))
            builder, size = BatchBuilder(), 0

    async def _read(self, log: PartitionLog) -> _Known:
        known = _Known(log.epoch)
        offset = log.log_start_offset
        while offset < log.high_watermark:
            found = await log.read_committed(offset, _READ_BYTES)
            if not found:
                break
            for batch in found:
                offset = batch.end_offset
                if batch.flags == FormatId.KAFKA:
                    async for record in in_turns(iterate(batch.payload)):
                        if record.key is not None:
                            known.learn(self._source.name_of(record.key), record.key, record.value)
        return known


def _portions(names: Names) -> Iterator[list[tuple[str, Places]]]:
    items = list(names.items())
    return (items[first : first + _NAMES_AT_ONCE] for first in range(0, len(items), _NAMES_AT_ONCE))


def partition_of(name: str, many: int) -> int:
    """Return the partition of a name among ``many``, as Kafka does: by the hash that the name has in Java."""
    raw = name.encode("utf-16-be")
    found = 0
    for unit in struct.unpack(f">{len(raw) // 2}H", raw):
        found = (31 * found + unit) & 0xFFFFFFFF
    return min(found, 2**32 - found) % 2**31 % many
