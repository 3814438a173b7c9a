"""An existing Kafka cluster as an endpoint: its topics, batch by batch as stored, and its groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import TopicPartition as KafkaPartition

from bridges.formats import FormatId
from bridges.formats.kafka import parse_header, transaction_of
from bridges.formats.records import StoredBatch
from bridges.log.damage.extent import end_of_damage
from spark_pipeline.core.decoding.batches import decode
from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, PipelineError, UnreadableBatch
from spark_pipeline.core.kafka_batches import BatchHead, NoBatch, heads
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.endpoints.base import BATCH_BYTES, Positions, TopicInfo
from spark_pipeline.endpoints.kafka.client import FETCH_BYTES, Corrupt, Fetched, KafkaClient, OutOfRange
from spark_pipeline.endpoints.kafka.rules import left_behind
from spark_pipeline.endpoints.migration import GroupPosition, MigrationSource, RecordSet

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_pipeline.core.rows import Columns

_LOOKED_AT = 64 * 1024
"""Bytes of a fetch that only checks whether an offset can be read."""
_EARLIEST, _LATEST = -2, -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1


OPTIONS = ()
"""Only options that begin with ``kafka.``, which :mod:`spark_pipeline.endpoints.kafka.options` checks."""


def open_endpoint(url: str, options: Mapping[str, str]) -> KafkaEndpoint:
    """Open the cluster at ``kafka://host:9092[,host:9092...]``; options have librdkafka's names, behind ``kafka.``."""
    return KafkaEndpoint(url, options)


class KafkaEndpoint(MigrationSource):
    """A cluster of Kafka brokers, or of compatible servers."""

    form = int(FormatId.KAFKA)
    verbatim = True

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url = url
        self._client = KafkaClient(url, options)

    def close(self) -> None:
        self._client.close()

    # --- what there is ----------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics, with the values set for each itself, and the effective values with brokers' defaults."""
        described = self._client.ask(lambda admin: admin.describe_topics())
        names = [one["name"] for one in described if not one["error_code"]]
        configs = self._configs(names)
        return {
            one["name"]: TopicInfo(
                one["name"],
                tuple(sorted(part["partition_index"] for part in one["partitions"])),
                {key: value for key, (value, own) in configs.get(one["name"], {}).items() if own},
                effective={key: value for key, (value, _) in configs.get(one["name"], {}).items()},
                identity="" if one.get("topic_id") is None else str(one["topic_id"]),
                internal=bool(one.get("is_internal")),
            )
            for one in described
            if not one["error_code"]
        }

    def _configs(self, names: Sequence[str]) -> dict[str, dict[str, tuple[str, bool]]]:
        """Return by topic and key the effective value, and whether it is set for the topic itself."""
        if not names:
            return {}
        wanted = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        found = self._client.ask(lambda admin: admin.describe_configs(wanted, config_filter="all"))
        return {
            name: {
                key: (str(row["value"]), row["config_source"] in ("DYNAMIC_TOPIC_CONFIG", "TOPIC_CONFIG"))
                for key, row in rows.items()
                if row["value"] is not None
            }
            for name, rows in found.get("topic", {}).items()
        }

    def broker_config(self, keys: Collection[str]) -> dict[str, str]:
        """Return the values of ``keys`` that a broker reports; nothing if the client may not ask."""
        try:
            nodes = self._client.ask(lambda admin: admin.describe_cluster())["brokers"]
            wanted = [ConfigResource(ConfigResourceType.BROKER, str(one["broker_id"])) for one in nodes[:1]]
            found = self._client.ask(lambda admin: admin.describe_configs(wanted, config_filter="all"))
        except EndpointUnavailable:
            return {}
        rows: Mapping[str, Any] = next(iter(found.get("broker", {}).values()), {})
        return {key: str(rows[key]["value"]) for key in keys if key in rows and rows[key]["value"] is not None}

    def positions(self, parts: Sequence[TopicPartition]) -> dict[TopicPartition, Positions]:
        stable, high = self._ends(parts)
        start = self._offsets(dict.fromkeys(parts, _EARLIEST), _READ_UNCOMMITTED)
        # A log may have grown meanwhile, and its start may be above the end read before. Such an end is within a batch.
        grown = [part for part in parts if high[part] < start[part]]
        again = self._ends(grown)
        stable, high = {**stable, **again[0]}, {**high, **again[1]}
        return {
            part: Positions(start[part], min(max(stable[part], start[part]), high[part]), high[part]) for part in parts
        }

    def _ends(self, parts: Sequence[TopicPartition]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return last stable offsets and high watermarks, read in this order: the first never exceed the second."""
        latest = dict.fromkeys(parts, _LATEST)
        return self._offsets(latest, _READ_COMMITTED), self._offsets(latest, _READ_UNCOMMITTED)

    def find_timestamp(self, at_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found = self._offsets(at_ms, _READ_UNCOMMITTED)
        return {part: offset if (offset := found[part]) >= 0 else None for part in at_ms}

    def _offsets(self, at: Mapping[TopicPartition, int], isolation: int) -> dict[TopicPartition, int]:
        wanted = {KafkaPartition(part.topic, part.partition): time for part, time in at.items()}
        found = self._client.ask(lambda admin: admin.list_partition_offsets(wanted, isolation)) if wanted else {}
        return {TopicPartition(part.topic, part.partition): row.offset for part, row in found.items()}

    # --- groups -----------------------------------------------------------------------------------------------------

    def group_positions(self) -> dict[str, dict[TopicPartition, GroupPosition]]:
        """Return every group with committed positions, and the positions."""
        names = self.group_states()
        if not names:
            return {}
        found: Mapping[str, Mapping[Any, Any]] = self._client.ask(lambda admin: admin.list_group_offsets(sorted(names)))
        return {
            group: {
                TopicPartition(part.topic, part.partition): GroupPosition(row.offset, row.metadata or "")
                for part, row in rows.items()
                if row.offset >= 0
            }
            for group, rows in found.items()
            if rows
        }

    def group_states(self) -> dict[str, str]:
        """Return the consumer groups and their states (``Stable``, ``Empty``, ...), "" if the brokers do not say."""
        listed = self._client.ask(lambda admin: admin.list_groups())
        return {
            one["group_id"]: one.get("group_state") or ""
            for one in listed
            if one.get("protocol_type") in ("consumer", "", None) and (one.get("group_type") or "classic") != "share"
        }

    def left_behind(self) -> Iterator[tuple[str, str]]:
        """See :func:`spark_pipeline.endpoints.kafka.rules.left_behind`."""
        return left_behind(self._client)

    # --- records ----------------------------------------------------------------------------------------------------

    def read(self, range: OffsetRange, columns: Columns, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        yield from decode(self._committed(range), range, columns, batch_bytes)

    def _committed(self, range: OffsetRange) -> Iterator[StoredBatch]:
        """Yield the batches of a range that readers of committed data get.

        Brokers report the starts of aborted transactions; the markers in the log are their ends (KIP-98).
        """
        aborted: set[int] = set()
        waiting: set[tuple[int, int]] = set()
        for found, told in self._fetched(range, FETCH_BYTES, committed=True):
            waiting.update((first, producer) for producer, first in told)
            payload = found.payload
            for head in heads(payload, str(range.part)):
                begun = {one for one in waiting if one[0] < head.end_offset}
                waiting -= begun
                aborted.update(producer for _, producer in begun)
                batch = payload[head.at : head.until]
                if head.is_transactional:
                    part = transaction_of(batch, parse_header(batch))
                    if part is not None and part.commit is not None:
                        aborted.discard(part.producer_id)
                    if part is None or part.commit is not None or part.producer_id in aborted:
                        continue
                if not head.is_control:
                    yield StoredBatch(head.base_offset, head.end_offset, self.form, batch)

    def read_raw(self, range: OffsetRange) -> Iterator[StoredBatch]:
        for found in self.read_sets(range):
            for head in heads(found.payload, str(range.part)):
                batch = found.payload[head.at : head.until]
                yield StoredBatch(head.base_offset, head.end_offset, self.form, batch)

    def read_sets(self, range: OffsetRange, fetch_bytes: int = FETCH_BYTES) -> Iterator[RecordSet]:
        """Yield the batches that hold offsets of a range, several together as one fetch returns them.

        The next fetch is in flight while the caller works on a set. Ends early if the log has nothing more below the
        range's end, for example after compaction. Raises OffsetsGone.
        """
        return (found for found, _ in self._fetched(range, fetch_bytes))

    def _fetched(
        self, range: OffsetRange, fetch_bytes: int, *, committed: bool = False
    ) -> Iterator[tuple[RecordSet, tuple[tuple[int, int], ...]]]:
        """Yield record sets, and the aborted transactions reported with each (producer id, first offset)."""
        part = range.part
        offset = range.start

        def begin() -> Callable[[], Fetched] | None:
            if offset >= range.end:
                return None
            return self._client.begin_fetch(part, offset, fetch_bytes, committed=committed)

        pending = begin()
        while pending is not None:
            try:
                fetched = pending()
            except OutOfRange:
                start = self.positions([part])[part].start
                if offset >= start:
                    raise EndpointUnavailable(f"{part} does not reach offset {offset} any more") from None
                raise OffsetsGone(part.topic, part.partition, offset, start) from None
            except Corrupt as error:
                raise self._unreadable(part, offset, error) from error
            try:
                found = _within(fetched, range, offset)
            except NoBatch as error:
                raise self._unreadable(part, offset, error) from error
            if found is None:
                if fetched.high_watermark < range.end:
                    raise EndpointUnavailable(f"{part} ends at {fetched.high_watermark}, before {range.end}")
                return  # nothing is left: a gap up to the end
            offset = found.end
            pending = begin()
            yield found, fetched.aborted

    def _unreadable(self, part: TopicPartition, offset: int, error: PipelineError) -> UnreadableBatch:
        async def good_from(at: int) -> int | None:
            try:
                fetched = self._client.begin_fetch(part, at, _LOOKED_AT)()
                found = next((head for head in heads(fetched.records, str(part)) if head.end_offset > at), None)
            except OutOfRange:
                return at
            except (Corrupt, NoBatch):
                return None
            if found is None:
                return at if at >= fetched.high_watermark else None
            return found.base_offset

        return UnreadableBatch(
            part.topic, part.partition, offset, str(error), asyncio.run(end_of_damage(offset, good_from))
        )


def _within(fetched: Fetched, range: OffsetRange, offset: int) -> RecordSet | None:
    """Return the whole batches of a fetch from ``offset`` on that overlap a range; None if there are none."""
    first = last = None
    count = 0
    for head in _sound(fetched.records, str(range.part)):
        if head.end_offset <= offset:
            continue
        if head.base_offset >= range.end:
            break
        first = first or head
        last = head
        count += 1
    if first is None or last is None:
        return None
    return RecordSet(first.base_offset, last.end_offset, count, fetched.records[first.at : last.until])


def _sound(records: memoryview, place: str) -> Iterator[BatchHead]:
    """Yield the batches in front of the first invalid one, which the next fetch reports. Raises NoBatch, OldFormat."""
    some = False
    try:
        for head in heads(records, place):
            yield head
            some = True
    except NoBatch:
        if not some:
            raise
    if not some and len(records):  # brokers send the first batch whole, however large it is
        raise NoBatch(f"{place} has a batch whose length is beyond what its broker has of it")
