"""Dead letters of share groups (KIP-1191): records that a member has rejected, or that reached the delivery limit.

Such a record is ARCHIVING until it is in the group's dead letter topic, and ARCHIVED after that. As at a broker, a
record whose letter cannot be written is archived all the same, and the log says why. ARCHIVING is stored, so the node
that serves the share partition next writes the letters that its predecessor owes; one may be written twice.

A letter has headers that name the record, and its key and value if the group's configuration asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.awaited import Settle, awaited
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.sliced import SLICE_RECORDS
from bridges.catalog.topics.topic import TopicExists
from bridges.errors import BatchInvalid, LogError, OffsetOutOfRange
from bridges.formats import FormatId, format_of
from bridges.formats.kafka import BatchBuilder
from bridges.formats.records import CODEC_HEADER, Record
from bridges.log.interfaces import Appended, Batch

if TYPE_CHECKING:
    from bridges.formats.records import StoredBatch
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.node.front import NodeServices
    from kafka_front.service.admin.own_configs import OwnConfigs
    from kafka_front.service.groups.share.partition import Letter

log = structlog.get_logger("anabranch.kafka.share")

TOPIC_NAME = "errors.deadletterqueue.topic.name"
COPY_RECORD = "errors.deadletterqueue.copy.record.enable"
TAKES_LETTERS = "errors.deadletterqueue.group.enable"
"""The configuration of a topic that lets groups write their letters to it."""
_PREFIX = "errors.deadletterqueue.topic.name.prefix"
_AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"

REJECTED = "Offset rejected by client."
DELIVERED_TOO_OFTEN = "Offset delivery count exceeded the threshold."
"""A broker's words for the reason."""

_AT_ONCE = 4
"""Letters that are written at the same time: each may hold a batch of records."""
_ATTEMPTS = 5
BACKOFF_S = 1.0
_READ_BYTES = 1024 * 1024
_RECORD_BYTES = 96
"""What a record takes in a batch besides its key, value and headers, at most."""


class _Unusable(Exception):
    """The group's dead letter topic cannot take letters; the message says why."""


class DeadLetters:
    """The writer of a node's dead letters."""

    def __init__(
        self, node: NodeServices, partitions: int, configs: OwnConfigs, broker_config: Callable[[str], str]
    ) -> None:
        """Write through ``node``; a topic that is made has so many ``partitions``."""
        self._node = node
        self._new_partitions = partitions
        self._configs = configs
        self._broker_config = broker_config
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._memory = node.budget.account(lambda: None)

    def topic_of(self, group_id: str) -> str:
        """Return the group's dead letter topic; empty if it has none."""
        return self._configs.value(group_id, TOPIC_NAME)

    async def write(self, group_id: str, source: PartitionLog, letter: Letter) -> None:
        """Write the letters of some offsets, or log why that is impossible."""
        offset = letter.first
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
            try:
                async with self._turns:
                    name = await self._topic(group_id)
                    while offset <= letter.last:
                        offset = await self._write(group_id, name, source, letter, offset)
                return
            except _Unusable as unusable:
                reason = str(unusable)
                break
            except LogError as error:
                reason = str(error)
                if not error.retriable:
                    break
        log.error(
            "records are archived without a dead letter",
            group=group_id,
            topic=source.topic,
            partition=source.partition,
            first=offset,
            last=letter.last,
            reason=reason,
        )

    async def _topic(self, group_id: str) -> str:
        """Return the name of the group's dead letter topic, made if the settings allow that. Raises _Unusable,
        LogError."""
        name, prefix = self.topic_of(group_id), self._broker_config(_PREFIX)
        if not name:
            raise _Unusable(f"{TOPIC_NAME} of the group is empty")
        if not name.startswith(prefix):
            raise _Unusable(f"{TOPIC_NAME} is {name}: it must begin with {prefix} ({_PREFIX})")
        catalog = self._node.catalog
        if name not in catalog.topics:
            await self._node.db.changes.latest()  # another node may have made it
        if name not in catalog.topics:
            if self._broker_config(_AUTO_CREATE) != "true":
                raise _Unusable(f"there is no topic {name}: create it, or set {_AUTO_CREATE}")
            config = {TAKES_LETTERS: "true", "message.timestamp.type": "CreateTime"}
            with suppress(TopicExists):
                await catalog.create_topic(name, self._new_partitions, config)
        if not catalog.effective(name, TAKES_LETTERS):
            raise _Unusable(f"topic {name} takes no dead letters: set its {TAKES_LETTERS} to true")
        return name

    async def _write(self, group_id: str, name: str, source: PartitionLog, letter: Letter, offset: int) -> int:
        """Append letters from ``offset`` on in one batch; return the offset of the next. Raises LogError."""
        last, originals = letter.last, dict[int, Record]()
        if self._configs.value(group_id, COPY_RECORD) == "true":
            last, originals = await self._read(source, offset, letter.last)
        held = sum(record.size for record in originals.values())
        self._memory.take(Kind.READS, held)
        try:
            return await self._append(group_id, name, source, letter, offset, last, originals)
        finally:
            self._memory.give(Kind.READS, held)

    async def _append(
        self,
        group_id: str,
        name: str,
        source: PartitionLog,
        letter: Letter,
        offset: int,
        last: int,
        originals: Mapping[int, Record],
    ) -> int:
        catalog = self._node.catalog
        most = min(catalog.effective(name, "max.message.bytes"), _READ_BYTES)
        builder, size = BatchBuilder(), 0
        while offset <= last and len(builder) < SLICE_RECORDS:
            record = _letter(group_id, source, letter, offset, originals.get(offset))
            size += record.size + _RECORD_BYTES
            if size > most and len(builder):
                break
            builder.add(record)
            offset += 1
        partitions = catalog.topic(name).active
        if not partitions:
            raise _Unusable(f"topic {name} was ended: all its partitions are sealed")
        partition = partitions[source.partition % len(partitions)].index
        batch = Batch(builder.finish(), len(builder), int(FormatId.KAFKA), builder.max_timestamp)

        def append(settle: Settle[Appended]) -> None:
            self._node.partitions.append(name, partition, batch, settle)

        await awaited(append)
        return offset

    async def _read(self, source: PartitionLog, first: int, last: int) -> tuple[int, dict[int, Record]]:
        """Return the last offset that one read decides, and the records up to it that exist. Raises LogError."""
        try:
            batches = await source.read_batches(first, _READ_BYTES, last + 1)
            if not batches:
                return last, {}
            limit = self._node.limits.batch_inflated_bytes
            return await self._node.works.finish(_find_records(batches, first, last, limit))
        except (BatchInvalid, OffsetOutOfRange):
            return last, {}  # they cannot be read any more: their letters have headers alone


def _find_records(
    batches: Iterable[StoredBatch], first: int, last: int, limit: int
) -> Generator[None, None, tuple[int, dict[int, Record]]]:
    """Find the records of some offsets, up to :data:`_READ_BYTES`; sliced work."""
    found: dict[int, Record] = {}
    size, end = 0, first
    for batch in batches:
        for record in format_of(batch.flags).records(batch, limit, first):
            if record is None:
                yield
            elif first <= record.offset <= last:
                found[record.offset] = record
                size += record.size
                if size >= _READ_BYTES:
                    return record.offset, found
        end = batch.end_offset
    return min(end - 1, last), found


def _letter(group_id: str, source: PartitionLog, letter: Letter, offset: int, original: Record | None) -> Record:
    """Return the letter of one record, whose key and value it has if they are given."""
    told = (
        ("__dlq.errors.topic", source.topic),
        ("__dlq.errors.partition", str(source.partition)),
        ("__dlq.errors.offset", str(offset)),
        ("__dlq.errors.group", group_id),
        ("__dlq.errors.delivery.count", str(letter.count)),
        ("__dlq.errors.message", REJECTED if letter.rejected else DELIVERED_TOO_OFTEN),
    )
    headers: list[tuple[str, bytes | None]] = [(name, value.encode()) for name, value in told]
    if original is None:
        return Record(None, None, headers, now_ms())
    if original.codec is not None:
        headers.append((CODEC_HEADER, original.codec.encode()))
    return Record(original.key, original.value, headers, now_ms())
