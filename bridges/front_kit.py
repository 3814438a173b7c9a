"""A test kit for authors of fronts (docs/fronts.md).

It has a node in the test's own process, checks of a stored format, and checks of the rules that every front must obey.
All checks raise AssertionError with a sentence. Nothing needs pytest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from anabranch_kit.run import clock
from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.sliced import at_once
from anabranch_kit.sql.notices import Notices, mailboxes
from bridges.catalog.topics.lineage import WHOLE
from bridges.catalog.topics.topic import TopicKind
from bridges.errors import BatchInvalid
from bridges.formats import format_of, records_of
from bridges.formats.base import FIRST_OF_FRONTS, FORMAT_MASK, FormatId, StoredFormat
from bridges.formats.kafka import encode
from bridges.formats.records import Record, StoredBatch
from bridges.log.interfaces import Appended, Batch
from bridges.log.partition.partition_log import PartitionLog
from bridges.log.remote.partitions import Partition
from bridges.log.retention import Retention
from bridges.node.assembly import Node
from bridges.node.front import Front
from bridges.node.settings.config import load
from bridges.node.storage.data_dir import DataDirectory
from bridges.node.workers.settings import settings_of
from bridges.node.workers.worker import Worker

_NOW = 1_700_000_000_000
_HOUR, _DAY = 3_600_000, 86_400_000
SAMPLES = (
    Record(b"key", b"value", timestamp=_NOW),
    Record(None, b"no key", timestamp=_NOW),
    Record(b"", b"a key of no bytes", timestamp=_NOW),
    Record(b"no value", None, timestamp=_NOW),
    Record(b"empty", b"", timestamp=_NOW),
    Record(bytes(range(256)), bytes(range(256)), timestamp=_NOW),
    Record(b"headers", b"v", [("a", b"1"), ("a", b"2"), ("none", None), ("binary", b"\xff\0")], _NOW),
    Record(b"1969", b"v", timestamp=-1_000),
    Record(b"far ahead", b"v", timestamp=1_000_000_000_000_000),
    Record(b"large", bytes(2_500_000), timestamp=_NOW),
    Record(b"encoded", b"\x1f\x8b", timestamp=_NOW, codec="gzip"),
)
"""Records of every kind that other protocols write."""
_FIELDS = ("key", "value", "headers", "timestamp")
_RESTS_AFTER = 1000
"""Most records that a format may yield without a None, at which the event loop serves others."""


def check_format(plug: StoredFormat, samples: Sequence[Record] = SAMPLES) -> dict[str, int]:
    """Check a stored format for what the log, translation and searches need.

    Return how many of ``samples`` keep each field when translated into the format and back, for comparison with what
    the front intends to keep.
    """
    assert FIRST_OF_FRONTS <= int(plug.id) <= FORMAT_MASK, (
        f"formats of fronts have numbers {FIRST_OF_FRONTS} to {FORMAT_MASK}"
    )
    kept = dict.fromkeys(_FIELDS, 0)
    for sample in samples:
        (back,) = _read(plug, _built(plug, [sample], 7, 8))
        assert back.offset == 7, f"a record at offset 7 came back at {back.offset}"
        for name in _FIELDS:
            kept[name] += getattr(back, name) == getattr(sample, name)
    assert not _read(plug, _built(plug, [], 3, 9)), "a batch without records has some"
    many = [Record(b"k", b"%d" % number, timestamp=_NOW + number) for number in range(5000)]
    whole = _built(plug, many, 100, 5100)
    assert len(_read(plug, whole)) == len(many), "of 5,000 records some were lost"
    assert _offsets(_read(plug, whole, 5098)) == [5098, 5099], "records from offset 5098 on begin elsewhere"
    _check_rests(plug.records(whole))
    newest = plug.describe(whole.payload).max_timestamp
    times = [one.timestamp for one in _read(plug, whole)]
    assert newest in (-1, max(times)), "the header's highest time is none of the records'"
    sparse = _built(plug, [many[0], many[9]], 50, 60, [52, 59])
    assert _offsets(_read(plug, sparse)) == [52, 59], "records whose neighbours are missing moved"
    _check_damaged(plug, _built(plug, [*samples[:9], *many[:20]], 0, 29))
    return kept


def _built(
    plug: StoredFormat, records: Sequence[Record], base: int, end: int, offsets: Sequence[int] = ()
) -> StoredBatch:
    made = []
    for finish in ("finish", "finish_in_slices"):
        builder = plug.builder(base, end)
        for record, offset in zip(records, offsets or range(base, end), strict=False):
            builder.add(
                Record(record.key, record.value, list(record.headers), record.timestamp, offset, codec=record.codec)
            )
        assert len(builder) == len(records), "a builder counts other records than it was given"
        made.append(builder.finish() if finish == "finish" else at_once(builder.finish_in_slices()))
    assert bytes(made[0]) == bytes(made[1]), "finish_in_slices() makes another batch than finish()"
    return StoredBatch(base, end, int(plug.id), made[0], _NOW)


def _read(plug: StoredFormat, batch: StoredBatch, start: int = 0) -> list[Record]:
    found: list[Record] = []
    for record in plug.records(batch, start=start):
        if record is not None:
            found.append(record)
            assert len(found) <= batch.end_offset - batch.base_offset, "a batch has more records than offsets"
    places = _offsets(found)
    assert places == sorted(set(places)), "records are not in the order of their offsets"
    assert all(batch.base_offset <= place < batch.end_offset for place in places), "a record lies outside of its batch"
    return found


def _offsets(records: Sequence[Record]) -> list[int]:
    return [record.offset for record in records]


def _check_rests(records: Iterator[Record | None]) -> None:
    since = 0
    for record in records:
        since = 0 if record is None else since + 1
        assert since <= _RESTS_AFTER, (
            f"more than {_RESTS_AFTER} records come without a None, where others have their turn"
        )


def _check_damaged(plug: StoredFormat, batch: StoredBatch) -> None:
    """Check that damaged bytes give records within the batch's offsets, or BatchInvalid."""
    payload = bytes(batch.payload)
    damaged = [payload[:size] for size in range(0, len(payload), max(1, len(payload) // 60))]
    for at in range(0, len(payload), max(1, len(payload) // 80)):
        damaged += [payload[:at] + bytes([payload[at] ^ bits]) + payload[at + 1 :] for bits in (0xFF, 0x80, 0x01)]
    for one in damaged:
        with suppress(BatchInvalid):
            plug.describe(one)
            plug.event_bytes(one)
            _read(plug, batch._replace(payload=one))


# --- a node -----------------------------------------------------------------------------------------------------------


class KitNode:
    """A node in this process, on free ports of the loopback interface."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def address(self, listener: str) -> tuple[str, int]:
        found = self.node.addresses[listener]
        return found.host, found.port

    async def make(self, topic: str, partitions: int = 1, /, **config: str) -> None:
        """Create a topic. In the names of its configuration, underscores stand for dots."""
        await self.node.catalog.create_topic(topic, partitions, {key.replace("_", "."): v for key, v in config.items()})

    async def owned(self, topic: str) -> set[int]:
        await self.node.db.changes.latest()  # another node may have just made the topic
        return {
            info.index for info in self.node.catalog.topics[topic].partitions if self.node.logs.owns(topic, info.index)
        }

    async def write(self, topic: str, partition: int, *records: Record) -> int:
        """Append records as a Kafka producer would, and return the offset of the first."""
        newest = max(record.timestamp for record in records)
        batch = Batch(encode(list(records)), len(records), int(FormatId.KAFKA), newest)
        found = await self._find(topic, partition)
        stored: Appended = await awaited(lambda done: found.append(batch, done))
        return stored.base

    async def read(self, topic: str, partition: int, offset: int = 0) -> list[Record]:
        """Return the committed records from ``offset`` on, as readers of other protocols get them."""
        log = await self._find(topic, partition)
        found: list[Record] = []
        while batches := await log.read_committed(offset, 1 << 20):
            for batch in batches:
                records = records_of(format_of(batch.flags), batch, start=offset)
                found += [one for one in records if one is not None]
            offset = batches[-1].end_offset
        return found

    async def _find(self, topic: str, partition: int) -> Partition:
        log = await self.node.floors.log.partitions.find(topic, partition)
        assert log is not None, f"there is no {topic}-{partition}"
        return log


@asynccontextmanager
async def serving(directory: Path, *fronts: type[Front], **settings: str) -> AsyncIterator[KitNode]:
    """Run a node with these fronts while inside; a data directory below ``directory`` that exists is used again.

    In the names of ``settings`` the first double underscore stands for a dot: ``line__max_line_bytes="1MiB"``.
    """
    async with cluster(directory, *fronts, nodes=1, **settings) as (node,):
        yield node


@asynccontextmanager
async def cluster(
    directory: Path, *fronts: type[Front], nodes: int = 2, **settings: str
) -> AsyncIterator[tuple[KitNode, ...]]:
    """Run several nodes with these fronts while inside, each of which owns a part of the partitions; see
    :func:`serving`.

    They share a data directory, as the workers of ``anabranch serve --workers`` do, and talk to one another over TCP.
    """
    flags = {
        "data_dir": str(directory / "data"),
        "node.workers": str(nodes),
        "node.worker_port_step": "0",
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
        **{f"listen.{name}": "off" for name in ("console", "sbp-pd")},
        "listen.sbp-range-server": "off" if nodes == 1 else "127.0.0.1:0",
        **{f"listen.{listener.name}": "127.0.0.1:0" for front in fronts for listener in front.listeners},
        **{key.replace("__", ".", 1): value for key, value in settings.items()},
    }
    loaded = load(flags, environ={}, directory=directory, fronts=fronts).settings
    async with AsyncExitStack() as stack:
        workers: list[Worker | None] = [None]
        if nodes > 1:
            held = DataDirectory(loaded.data_dir)
            stack.callback(held.release)
            boxes = mailboxes(nodes)
            for pair in boxes:
                for end in pair:
                    stack.callback(end.close)
            notices = [Notices(reading, [writing for _, writing in boxes]) for reading, _ in boxes]
            workers = [Worker(number, nodes, held, notices[number]) for number in range(nodes)]
        made = [Node(settings_of(loaded, fronts, number), worker=one) for number, one in enumerate(workers)]
        for node in made:
            stack.push_async_callback(node.stop)
        shared_out = asyncio.Event()

        def follow(slots: Collection[int]) -> None:
            counts = [len(node.floors.place.cluster.mine) for node in made]
            if max(counts) - min(counts) < nodes:
                shared_out.set()

        await asyncio.gather(*(node.start() for node in made))
        for node in made:
            node.floors.place.cluster.on_gained.append(follow)
        follow(())
        await shared_out.wait()
        yield tuple(map(KitNode, made))


# --- what no front may do ---------------------------------------------------------------------------------------------

Put = Callable[[str, bytes | None, bytes, int], Awaitable[str | None]]
"""Writes one record through the front under test, as one of its clients: canonical name of a topic, key, value, time
(ms). Fields that the protocol cannot express are left out. Returns None when the record was acknowledged, otherwise the
error that the client got.
"""


class Duty(NamedTuple):
    """A demand of a topic: its configuration, the record to send, and a predicate for records that the log may hold."""

    demand: str
    config: dict[str, str]
    key: bytes | None
    value: bytes
    ahead_ms: int
    holds: Callable[[Record], bool]


_DUTIES = (
    Duty("keys where it is compacted", {"cleanup_policy": "compact"}, None, b"v", 0, lambda one: one.key is not None),
    Duty("no larger messages", {"max_message_bytes": "1000"}, b"k", bytes(2000), 0, lambda one: one.size <= 1000),
    Duty(
        "no times far ahead",
        {"message_timestamp_after_max_ms": "1000"},
        b"k",
        b"v",
        _DAY,
        lambda one: one.timestamp < time.time() * 1000 + _DAY / 2,
    ),
    Duty(
        "no times long ago",
        {"message_timestamp_before_max_ms": "1000"},
        b"k",
        b"v",
        -_DAY,
        lambda one: one.timestamp > time.time() * 1000 - _DAY / 2,
    ),
    Duty(
        "the time of the append",
        {"message_timestamp_type": "LogAppendTime"},
        b"k",
        b"v",
        -_DAY,
        lambda one: one.timestamp > time.time() * 1000 - _DAY / 2,
    ),
    Duty("nothing that its protocol did not write: it is internal", {}, b"k", b"v", 0, lambda one: False),
    Duty("nothing more: its partition is sealed", {}, b"k", b"v", 0, lambda one: False),
    Duty("nothing but what its migration brings", {}, b"k", b"v", 0, lambda one: False),
)


async def check_duties(node: KitNode, put: Put) -> list[str]:
    """Have a client of the front send records that topics do not allow, and return the demands, all of which were met.

    The log refuses such records. A front must not acknowledge them, and must not report an error for a stored record.
    """
    catalog = node.node.catalog
    for number, duty in enumerate(_DUTIES):
        topic = f"duty-{number}"
        if "internal" in duty.demand:
            await catalog.create_topic(topic, 1, kind=TopicKind.INTERNAL)
        elif "migration" in duty.demand:
            await catalog.create_topic(topic, 1, migration="kit")
        else:
            await node.make(topic, 1, **duty.config)
        if "sealed" in duty.demand:
            await catalog.set_config(topic, {"anabranch.partitions.split": "true"})
            await catalog.change_partitions(topic, [0], [WHOLE])
        told = await put(topic, duty.key, duty.value, clock.now_ms() + duty.ahead_ms)
        found = await node.read(topic, 0)
        assert all(map(duty.holds, found)), f"the topic demands {duty.demand}, and has something else"
        assert bool(found) == (told is None), (
            f"the topic demands {duty.demand}; its log has {len(found)} records, and the client was told {told!r}"
        )
        good = await put(topic, b"k", b"v", clock.now_ms()) if duty.config else None
        assert good is None, f"the topic demands {duty.demand}, which this record is: {good}"
    await _check_deletion(node, put)
    return [*(duty.demand for duty in _DUTIES), "deletion by the time of the append"]


async def _need_nothing(log: PartitionLog, now_ms: int) -> int | None:
    return None


async def _check_deletion(node: KitNode, put: Put) -> None:
    """Check that the time in a record neither deletes it early nor keeps it."""
    await node.make("duty-deletion", 1, retention_ms=str(_HOUR))
    log = node.node.logs.get("duty-deletion", 0)
    assert log is not None
    now = clock.now_ms()
    told = await put(log.topic, b"k", b"yesterday's", now - _DAY)
    assert told is None, f"a topic without demands takes a record of yesterday: {told}"
    retention = Retention(node.node.logs, lambda _: (_HOUR, -1), _need_nothing)
    await retention.enforce([(log.topic, 0)], now)
    assert log.log_start_offset == 0, "a record was deleted for a time that its client claims"
    await put(log.topic, b"k", b"tomorrow's", now + _DAY)
    await retention.enforce([(log.topic, 0)], now + 2 * _HOUR)
    assert log.log_start_offset == log.high_watermark, "a record was kept for a time that its client claims"
