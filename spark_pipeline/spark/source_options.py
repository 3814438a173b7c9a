"""The options of the source, with the names and the meaning of Spark's connector for Kafka.

docs/spark.md has the differences. Nothing here imports PySpark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.options import SIZES, TIMES_MS, Options
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import checked_module

DEFAULT_ENDPOINT = "anabranch://localhost:8090"
EARLIEST, LATEST = "earliest", "latest"
_EARLIEST_OFFSET, _LATEST_OFFSET = -2, -1
"""Offsets in JSON that stand for ``earliest`` and ``latest``."""
_PROTOCOLS = ("sbp", "kafka", "pravega", "ydb")
_REFUSED = {
    "kafka.auto.offset.reset": "startingOffsets says where a query starts; it never begins elsewhere by itself",
    "kafka.enable.auto.commit": "the checkpoint keeps how far a query is, nothing is committed",
    "kafka.key.deserializer": "keys are bytes; decode them with functions of data frames",
    "kafka.value.deserializer": "values are bytes; decode them with functions of data frames",
    "kafka.key.serializer": "keys are bytes",
    "kafka.value.serializer": "values are bytes",
    "kafka.interceptor.classes": "an interceptor might change what a query relies on",
}
_MEANINGLESS = (
    "path",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Options without a meaning for endpoints, for example of Spark's connector's own groups, polls and retries."""

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or end of reading: ``place`` ("earliest" or "latest"), or one of the others.

    ``offsets``: of every partition, -2 earliest, -1 latest. ``timestamp``: ms, for all partitions; ``timestamps``: ms,
    for every partition.
    """

    place: str = ""
    offsets: Offsets | None = None
    timestamp: int | None = None
    timestamps: Offsets | None = None


@dataclass(frozen=True, slots=True)
class Topics:
    """The partitions to read: those of ``names``, of topics whose whole name matches ``pattern``, or ``parts``."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    parts: tuple[TopicPartition, ...] = ()

    @property
    def given_names(self) -> set[str]:
        """Return the topics that the options name, not by a pattern."""
        return {*self.names, *(part.topic for part in self.parts)}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of the source. Sizes are in bytes, times in ms; None for an option that is not given."""

    url: str
    topics: Topics
    starting: Bound
    ending: Bound
    fail_on_data_loss: bool = True
    latest_if_no_timestamp: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    max_bytes: int | None = None
    headers: bool = False
    metadata: bool = False
    batch_bytes: int = 2 << 20
    freeze: bool = True
    endpoint: Mapping[str, str] = field(default_factory=dict)
    """The options of the endpoint, with secrets."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Read and check ``options``, whose names are case-insensitive. Raises OptionError with a sentence."""
        given = _Given(options)
        for name in _MEANINGLESS:
            given.get(name)
        for name, reason in _REFUSED.items():
            if name in given:
                raise OptionError(f"option {name} is not supported: {reason}")
        starting = given.bound("starting", LATEST if streaming else EARLIEST)
        ending = given.bound("ending", LATEST)
        if streaming and (ending.place != LATEST or given.any("endingOffsets")):
            raise OptionError("endingOffsets and the like are for batch queries: a stream has no end")
        if not streaming and starting.place == LATEST:
            raise OptionError("startingOffsets = latest is for streams: a batch query would read nothing")
        if ending.place == EARLIEST:
            raise OptionError("endingOffsets = earliest would read nothing")
        if not streaming and starting.offsets and _LATEST_OFFSET in starting.offsets.values():
            raise OptionError("startingOffsets has -1, latest, which is for streams")
        if ending.offsets and _EARLIEST_OFFSET in ending.offsets.values():
            raise OptionError("endingOffsets has -2, earliest, which would read nothing")
        found = cls(
            given.url(),
            given.topics(),
            starting,
            ending,
            given.truth("failOnDataLoss", True),
            given.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
            given.number("minPartitions"),
            given.number("maxRecordsPerPartition"),
            given.number("maxOffsetsPerTrigger"),
            given.number("minOffsetsPerTrigger"),
            given.sized("maxTriggerDelay", TIMES_MS) or 15 * 60_000,
            given.sized("maxBytesPerTrigger", SIZES),
            given.truth("includeHeaders", False),
            given.truth("includeMetadata", False),
            given.sized("arrow.batch.bytes", SIZES) or 2 << 20,
            given.truth("worker.freeze", True),
            given.rest(),
        )
        checked_module(found.url, found.endpoint, given.names_read)
        return found


class _Given(Options):
    """The given options, with getters that combine several of them."""

    def url(self) -> str:
        protocol = self.choice("protocol", _PROTOCOLS)
        url = self.get("endpoint")
        if protocol == "sbp":
            return url or DEFAULT_ENDPOINT
        if protocol == "kafka":
            servers = self.get("kafka.bootstrap.servers")
            self.get("kafka.group.id")  # the endpoint joins no group
            if url is None and servers is not None:
                url = f"kafka://{servers}"
        if url is None:
            raise OptionError(f"protocol = {protocol} needs an endpoint: {protocol}://HOST:PORT")
        if not url.startswith((f"{protocol}:", f"{protocol}+")):
            raise OptionError(f"protocol = {protocol} is read from {protocol}://HOST:PORT, not from {url!r}")
        return url

    def topics(self) -> Topics:
        ways = [name for name in ("subscribe", "subscribePattern", "assign") if self.get(name) is not None]
        if len(ways) != 1:
            raise OptionError("exactly one of subscribe, subscribePattern and assign says what is read")
        text = self.get(ways[0]) or ""
        if ways[0] == "subscribe":
            names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
            if not names:
                raise OptionError("subscribe names no topic")
            return Topics(names)
        if ways[0] == "subscribePattern":
            try:
                re.compile(text)
            except re.error as error:
                raise OptionError(f"subscribePattern = {text!r} is no regular expression: {error}") from None
            return Topics(pattern=text)
        parts = tuple(
            TopicPartition(topic, number)
            for topic, numbers in _object(text, "assign").items()
            for number in _numbers(numbers, "assign")
        )
        if not parts:
            raise OptionError("assign names no partition")
        return Topics(parts=parts)

    def bound(self, which: str, default: str) -> Bound:
        """Return a bound. As in Spark's connector timestamps win over offsets, one for all over one for each."""
        timestamp, offsets = self.get(f"{which}Timestamp"), self.get(f"{which}Offsets")
        by_time = self.get(f"{which}OffsetsByTimestamp")
        if timestamp is not None:
            if not re.fullmatch(r"[0-9]{1,18}", timestamp.strip()):
                raise OptionError(f"{which}Timestamp = {timestamp!r} is no number of milliseconds")
            return Bound(timestamp=int(timestamp))
        if by_time is not None:
            return Bound(timestamps=_by_partition(by_time, f"{which}OffsetsByTimestamp", 0))
        if offsets is None:
            return Bound(default)
        if offsets.strip().lower() in (EARLIEST, LATEST):
            return Bound(offsets.strip().lower())
        return Bound(offsets=_by_partition(offsets, f"{which}Offsets", _EARLIEST_OFFSET))


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"{name} = {text!r:.100} is not a JSON object of topics")
    return found


def _numbers(value: Any, name: str) -> list[int]:
    if not isinstance(value, list) or not all(type(one) is int and one >= 0 for one in value):
        raise OptionError(f"{name} has {value!r:.100}, which is no list of partitions")
    return value


def _by_partition(text: str, name: str, least: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _object(text, name).items():
        if not isinstance(numbers, dict):
            raise OptionError(f"{name} has {numbers!r:.100} for {topic}, which is no object of partitions")
        for number, offset in numbers.items():
            if not re.fullmatch(r"[0-9]{1,9}", number) or type(offset) is not int or offset < least:
                raise OptionError(f"{name} has {number!r}: {offset!r} for {topic}")
            found[TopicPartition(topic, int(number))] = offset
    return found
