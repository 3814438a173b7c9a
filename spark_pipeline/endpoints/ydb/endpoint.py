"""A YDB database's topics as an endpoint; partitions and offsets have the same meaning there.

A topic's name is its path below the database, with dots for slashes, as in docs/translation.md: ``sales/orders`` is
``sales.orders``. Two paths with the same name are both left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import ydb

from bridges.catalog.topics.names import InvalidTopicName, canonical_name, derived_names
from bridges.formats import FormatId
from bridges.formats.records import StoredBatch
from spark_pipeline.core.client.node_client import ACCESS_OPTIONS
from spark_pipeline.core.decoding.batches import decode
from spark_pipeline.core.errors import UnknownTopic
from spark_pipeline.core.ranges import OffsetRange, TopicPartition
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import BATCH_BYTES, Positions, TopicInfo
from spark_pipeline.endpoints.migration import FramedRecords, GroupPosition
from spark_pipeline.endpoints.ydb.client import YdbClient, YdbOptions
from spark_pipeline.endpoints.ydb.reading import YdbReading

_TIMES = Columns(("offset", "timestamp"))
_DIRECTORIES = frozenset({ydb.SchemeEntryType.DIRECTORY, ydb.SchemeEntryType.DATABASE})
_TOPICS = frozenset({ydb.SchemeEntryType.TOPIC, ydb.SchemeEntryType.PERS_QUEUE_GROUP})


OPTIONS = ACCESS_OPTIONS


def open_endpoint(url: str, options: Mapping[str, str]) -> YdbEndpoint:
    """Open the database at ``ydb://host:2136/local``; options: those of :class:`YdbOptions`. Raises OptionError."""
    return YdbEndpoint(YdbOptions.parse(url, options))


class YdbEndpoint(FramedRecords):
    """A YDB database."""

    form = int(FormatId.YDB)

    def __init__(self, options: YdbOptions) -> None:
        self._client = YdbClient(options)
        self._database = options.database
        self._paths: dict[str, str] = {}

    def close(self) -> None:
        self._client.close()

    # --- what there is ----------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics below the database that have a unique name here."""
        self._list()
        return {name: self._info(name, self.describe(name)) for name in sorted(self._paths)}

    def some_topics(self, wanted: Collection[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        if isinstance(wanted, re.Pattern):
            self._list()
            names = [name for name in self._paths if wanted.fullmatch(name)]
        else:
            names = list(wanted)
        found: dict[str, TopicInfo] = {}
        for name in sorted(names):
            try:
                found[name] = self._info(name, self.describe(name))
            except UnknownTopic:
                continue
        return found

    def path(self, name: str) -> str:
        """Return a topic's path, from the database on."""
        if name not in self._paths:
            self.describe(name)
        return self._at(self._paths[name])

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """Return the result of ``call`` with the SDK's driver.

        Raises EndpointUnavailable, UnknownTopic, PipelineError.
        """
        return self._client.ask(call)

    def _list(self) -> None:
        found: dict[str, list[str]] = {}
        waiting = [""]
        while waiting:
            place = waiting.pop()
            listed = self._client.ask(lambda driver: driver.scheme_client.list_directory(self._at(place)))  # noqa: B023
            for entry in listed.children:
                path = f"{place}/{entry.name}" if place else entry.name
                if entry.type in _DIRECTORIES and not entry.name.startswith("."):
                    waiting.append(path)
                elif entry.type in _TOPICS:
                    try:
                        found.setdefault(canonical_name("ydb", path), []).append(path)
                    except InvalidTopicName:
                        continue  # no topic name here
        self._paths = {name: paths[0] for name, paths in found.items() if len(paths) == 1}

    def _at(self, path: str) -> str:
        return f"{self._database}/{path}" if path else self._database

    def describe(self, name: str) -> Any:
        """Return the SDK's description of a topic, with statistics. Raises UnknownTopic."""
        known = self._paths.get(name)
        # Before topics were listed, the path of a name with dots is not known: try both.
        for path in [known] if known is not None else dict.fromkeys((name.replace(".", "/"), name)):
            try:
                found = self._client.ask(
                    lambda driver: driver.topic_client.describe_topic(self._at(path), include_stats=True)  # noqa: B023
                )
            except UnknownTopic:
                continue
            self._paths[name] = path
            return found
        self._paths.pop(name, None)
        raise UnknownTopic(f"YDB has no topic {name!r} in {self._database}")

    def _info(self, name: str, described: Any) -> TopicInfo:
        partitions = sorted(described.partitions, key=lambda one: one.partition_id)
        return TopicInfo(
            name,
            tuple(one.partition_id for one in partitions),
            self._config(name, described),
            {one.partition_id: "active" if one.active else "sealed" for one in partitions},
            {one.partition_id: tuple(one.parent_partition_ids) for one in partitions if one.parent_partition_ids},
        )

    def positions(self, parts: Sequence[TopicPartition]) -> dict[TopicPartition, Positions]:
        """Return positions from the topics' descriptions, which do not show open transactions."""
        found: dict[TopicPartition, Positions] = {}
        for name in sorted({part.topic for part in parts}):
            for one in self.describe(name).partitions:
                stats = one.partition_stats
                part = TopicPartition(name, one.partition_id)
                end = stats.partition_end
                found[part] = Positions(stats.partition_start, end, end, stats.store_size_bytes)
        for part in parts:
            if part not in found:
                raise UnknownTopic(f"YDB has no partition {part}")
        return {part: found[part] for part in parts}

    def find_timestamp(self, at_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Search from the first message that was written at the given time or later.

        A message whose writer dated it later than it was written may be missed.
        """
        positions = self.positions(list(at_ms))
        found: dict[TopicPartition, int | None] = {}
        for part, wanted in at_ms.items():
            end = positions[part].stable
            reading = self._reading(part.topic)
            with closing(reading.since(part.topic, part.partition, wanted, end)) as batches:
                found[part] = _first_at(batches, part.range(0, end), wanted)
        return found

    # --- records ----------------------------------------------------------------------------------------------------

    def batches(self, wanted: OffsetRange, read_bytes: int = 0) -> Iterator[StoredBatch]:
        """Yield the messages of a range as they were sent; the server chooses the borders of batches."""
        if wanted.count:
            yield from self._reading(wanted.topic).batches(wanted)

    def _reading(self, name: str) -> YdbReading:
        return YdbReading(self._client, self.path(name))

    # --- consumers --------------------------------------------------------------------------------------------------

    def group_positions(self) -> dict[str, dict[TopicPartition, GroupPosition]]:
        """Return the consumers of all topics, and their positions; a consumer of several topics is one group.

        YDB does not distinguish a consumer without commits from one at offset 0: such positions are left out.
        """
        found: dict[str, dict[TopicPartition, GroupPosition]] = {}
        for part, consumer, stats in self._consumers():
            told = found.setdefault(consumer, {})
            if stats.committed_offset > 0:
                told[part] = GroupPosition(stats.committed_offset)
        return found

    def group_states(self) -> dict[str, str]:
        """Return Stable for a consumer with a read session of a partition, else Empty."""
        found: dict[str, str] = {}
        for _, consumer, stats in self._consumers():
            if stats.read_session_id or found.get(consumer) == "Stable":
                found[consumer] = "Stable"
            else:
                found[consumer] = "Empty"
        return found

    def _consumers(self) -> Iterator[tuple[TopicPartition, str, Any]]:
        """Yield each partition of each consumer of each topic, with YDB's statistics for it."""
        self._list()
        for name in sorted(self._paths):
            path = self._at(self._paths[name])
            for consumer in self.describe(name).consumers:
                told = self._client.ask(
                    lambda driver: driver.topic_client.describe_consumer(path, consumer.name, include_stats=True)  # noqa: B023
                )
                for one in told.partitions:
                    yield TopicPartition(name, one.partition_id), consumer.name, one.partition_consumer_stats

    def _config(self, name: str, described: Any) -> dict[str, str]:
        """Return the settings of a topic's owner in YDB's words; ``path`` if it does not follow from the name."""
        config = _settings(described)
        if self._paths[name] != derived_names(name).get("ydb"):
            config["path"] = self._paths[name]
        return config


def _settings(described: Any) -> dict[str, str]:
    config: dict[str, str] = {}
    if described.retention_period:
        config["retention_period"] = f"{described.retention_period.total_seconds():g}s"
    for name in (
        "retention_storage_mb",
        "partition_write_speed_bytes_per_second",
        "partition_write_burst_bytes",
        "max_active_partitions",
        "partition_count_limit",
    ):
        value = getattr(described, name)
        if value:
            config[name] = str(value)
    if described.supported_codecs:
        config["supported_codecs"] = ",".join(str(int(one)) for one in described.supported_codecs)
    auto = described.auto_partitioning_settings
    if auto is not None and auto.strategy is not None and int(auto.strategy) > 1:
        config["auto_partitioning"] = auto.strategy.name
    if described.consumers:
        config["consumers"] = ",".join(one.name for one in described.consumers)
    config.update({f"attributes.{name}": value for name, value in sorted(described.attributes.items())})
    return config


def _first_at(batches: Iterator[StoredBatch], wanted: OffsetRange, at_ms: int) -> int | None:
    if not wanted.count:
        return None
    for rows in decode(batches, wanted, _TIMES, BATCH_BYTES):
        times = rows.column("timestamp").cast("int64").to_numpy()
        for row in (times >= at_ms * 1000).nonzero()[0][:1]:
            return int(rows.column("offset")[int(row)].as_py())
    return None
