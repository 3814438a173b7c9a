"""The interface of endpoints, systems with records that the pipeline reads, and how a URL opens one.

Endpoints are synchronous and belong to the process and thread that made them: workers receive the URL and the options.
All raise :class:`~spark_pipeline.core.errors.PipelineError` of the kinds named there.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.options import refuse_unknown
from spark_pipeline.core.ranges import OffsetRange, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from bridges.formats.records import StoredBatch
    from spark_pipeline.core.rows import Columns

BATCH_BYTES = 2 * 1024 * 1024
"""About how many bytes of stored batches become one ``pa.RecordBatch``: the best size for PySpark was measured to be
1 to 4 MiB (docs/protocols/spark.md, "Sizes")."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Offsets of one partition.

    ``start`` is the log start; readers of committed data stop at ``stable``; below ``high_watermark`` everything is
    durable. ``size`` is about the bytes kept, -1 if unknown. ``identity`` is the topic's, see :class:`TopicInfo`; empty
    if the system does not send it with positions.
    """

    start: int
    stable: int
    high_watermark: int
    size: int = -1
    identity: str = ""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: its partitions by number, sealed ones included, and its configuration in its system's words.

    ``states``: of each partition, "active" or "sealed", or another state that its system knows. ``parents``: the
    partitions that one was split or merged from, whose records come before its own. ``identity`` distinguishes a topic
    from an earlier one of the same name; empty if the system has none. ``config`` has the values set for the topic
    itself; ``effective`` has, under Kafka's names, the effective values with the system's defaults; empty if unknown.
    """

    name: str
    partitions: tuple[int, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[int, str] = field(default_factory=dict)
    parents: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    identity: str = ""
    internal: bool = False
    effective: Mapping[str, str] = field(default_factory=dict)


class Endpoint(ABC):
    """One system. All methods raise EndpointUnavailable when it does not answer, and UnknownTopic."""

    @abstractmethod
    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics, by name."""

    def some_topics(self, wanted: Collection[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        """Return the topics of the names ``wanted`` that exist, or users' topics whose names match the pattern."""
        found = self.topics()
        if isinstance(wanted, re.Pattern):
            return {name: info for name, info in found.items() if wanted.fullmatch(name) and not info.internal}
        return {name: found[name] for name in wanted if name in found}

    @abstractmethod
    def positions(self, parts: Sequence[TopicPartition]) -> dict[TopicPartition, Positions]:
        """Return the present positions of ``parts``."""

    def topic_positions(self, wanted: Collection[str] | re.Pattern[str]) -> dict[TopicPartition, Positions] | None:
        """Return the positions of all partitions of the topics ``wanted``, as for :meth:`some_topics`, in one step.

        None: this system answers about topics and positions in separate steps. Raises UnknownTopic if one of the topics
        does not exist (any more).
        """
        return None

    @abstractmethod
    def find_timestamp(self, at_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset whose record's timestamp is at least the given one; None without such a record."""

    @abstractmethod
    def read(self, range: OffsetRange, columns: Columns, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield the committed records of a range in order, in batches of about ``batch_bytes``, none of them empty.

        Control batches, records of aborted transactions and records removed by compaction are left out: offsets have
        gaps there. All of the range must lie below ``stable``. Raises OffsetsGone if it begins below ``start``,
        UnreadableBatch for a damaged batch.
        """

    @abstractmethod
    def read_raw(self, range: OffsetRange) -> Iterator[StoredBatch]:
        """Yield the batches that hold offsets of a range, verbatim and whole.

        These are all batches, also control batches and those of aborted transactions; ``written_ms`` is -1 if the time
        of the append is unknown. Raises OffsetsGone.
        """

    @abstractmethod
    def groups(self) -> dict[str, dict[TopicPartition, int]]:
        """Return consumer groups and their positions."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections; a second call has no effect."""


_SCHEMES = {
    **dict.fromkeys(("anabranch", "kafka", "archive", "archive+s3", "pravega"), "spark"),
    **dict.fromkeys(("anabranch+tls", "pravega+tls"), "spark"),
    **dict.fromkeys(("ydb", "ydb+tls"), "ydb"),
}
"""Scheme of a URL -> the extra of this package with its client. The room with ``endpoint.open_endpoint(url, options)``
has the name of the scheme's first word."""


def may_cut(url: str) -> bool:
    """Return whether ranges of the system at ``url`` may be cut anywhere; if not, they are read as a whole."""
    return not urlsplit(url).scheme.startswith("pravega")  # most of Pravega's offsets are not the start of an event


def endpoint(url: str, options: Mapping[str, str] | None = None) -> Endpoint:
    """Open the system at ``url``: ``anabranch://host:8090``, ``kafka://host:9092``, ``pravega://...``, ``ydb://...``.

    This sends no request yet. Raises OptionError for an invalid URL, a scheme without an endpoint, or an option that
    the endpoint does not have.
    """
    given = dict(options or {})
    opened: Endpoint = checked_module(url, given).open_endpoint(url, given)
    return opened


def checked_module(url: str, options: Collection[str], others: Collection[str] = ()) -> ModuleType:
    """Return the module of the endpoint at ``url``, once it has all of ``options`` but the caller's own, ``others``."""
    scheme = urlsplit(url).scheme
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise OptionError(f"{url!r} is no address of an endpoint: it begins with one of {known}")
    try:
        module = import_module(f"spark_pipeline.endpoints.{scheme.partition('+')[0]}.endpoint")
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{scheme}:// needs the Python package {error.name}: pip install 'anabranch[{_SCHEMES[scheme]}]'"
        ) from error
    # Kafka's endpoint checks the options of Kafka's clients itself.
    unchecked = [one for one in options if scheme != "kafka" or not one.startswith("kafka.")]
    refuse_unknown(unchecked, {*module.OPTIONS, *others}, f"{scheme}://")
    return module
