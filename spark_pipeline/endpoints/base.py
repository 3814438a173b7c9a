"""What the pipeline asks of a system that keeps records, and how it is reached by a URL.

Endpoints are synchronous and belong to the process and thread that made them: what travels to workers is the URL and
the options. All raise :class:`~spark_pipeline.core.errors.PipelineError` of the kinds named there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import urlsplit

from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.options import refuse_unknown
from spark_pipeline.core.ranges import OffsetRange, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from bridges.formats.records import StoredBatch
    from spark_pipeline.core.rows import Columns

__all__ = [
    "BATCH_BYTES",
    "Endpoint",
    "OffsetRange",
    "Positions",
    "TopicInfo",
    "TopicPartition",
    "endpoint",
    "may_cut",
    "some_topics",
]

BATCH_BYTES = 2 * 1024 * 1024
"""Bytes of stored batches that one ``pa.RecordBatch`` is made of, about: the best size for PySpark was measured to be
1 to 4 MiB (docs/protocols/spark.md, "Sizes")."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Offsets of one partition. ``start`` is the first that is kept; readers of committed data stop at ``stable``;
    below ``high_watermark`` everything is durable. ``size``: bytes that are kept, about; -1 where nobody tells.
    ``identity``: of the topic, as :class:`TopicInfo` has it; empty where positions do not tell it."""

    start: int
    stable: int
    high_watermark: int
    size: int = -1
    identity: str = ""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic: its partitions by number, those that are sealed included, its configuration as its system has it.

    ``states``: of each partition, "active" or "sealed", or what else its system knows. ``parents``: the partitions that
    one was split from or merged from, whose records come before its own. ``identity`` tells a topic from another of the
    same name that was there before; empty where the system has none. ``config`` is what was set for the topic itself,
    ``effective``, in Kafka's words, what holds for it, defaults of its system included; empty where that is not known.
    """

    name: str
    partitions: tuple[int, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[int, str] = field(default_factory=dict)
    parents: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    identity: str = ""
    internal: bool = False
    effective: Mapping[str, str] = field(default_factory=dict)


class Endpoint(Protocol):
    """One system. All methods raise EndpointUnavailable when it does not answer, and UnknownTopic."""

    def topics(self) -> dict[str, TopicInfo]:
        """All topics, by name."""

    def positions(self, parts: Sequence[TopicPartition]) -> dict[TopicPartition, Positions]:
        """Where each of ``parts`` begins and ends now."""

    def find_timestamp(self, at_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose record's timestamp is at least the given one; None where there is no such record."""

    def read(self, range: OffsetRange, columns: Columns, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """The committed records of a range in order, in batches of about ``batch_bytes``, none of them empty.

        Records of control batches and of aborted transactions are left out, as is what compaction took: offsets have
        gaps there. All of the range must lie below ``stable``. Raises OffsetsGone if it begins below ``start``,
        UnreadableBatch for a damaged one.
        """

    def read_raw(self, range: OffsetRange) -> Iterator[StoredBatch]:
        """The batches that hold offsets of a range, verbatim and whole: all of them, control batches and those of
        aborted transactions too; ``written_ms`` is -1 where nobody tells when the log took one. Raises OffsetsGone."""

    def groups(self) -> dict[str, dict[TopicPartition, int]]:
        """Groups of consumers and what each has committed."""

    def close(self) -> None:
        """Let go of connections; again makes no difference."""


@runtime_checkable
class TellsSome(Protocol):
    """An endpoint that need not describe all topics to describe some."""

    def some_topics(self, wanted: Collection[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
        """Those of the names ``wanted`` that exist, or those whose whole names match."""


@runtime_checkable
class TellsPositions(Protocol):
    """An endpoint that tells what topics have, and where that begins and ends, at once."""

    def topic_positions(self, wanted: Collection[str] | re.Pattern[str]) -> dict[TopicPartition, Positions]:
        """Of all partitions of the names ``wanted``, or of users' topics whose whole names match.

        Raises UnknownTopic if one of them is not there (any more).
        """


def some_topics(source: Endpoint, wanted: Collection[str] | re.Pattern[str]) -> dict[str, TopicInfo]:
    """Those of the names ``wanted`` that exist, or those whose whole names match and that are users' topics."""
    if isinstance(source, TellsSome):
        return source.some_topics(wanted)
    found = source.topics()
    if isinstance(wanted, re.Pattern):
        return {name: info for name, info in found.items() if wanted.fullmatch(name) and not info.internal}
    return {name: found[name] for name in wanted if name in found}


class _Opener(Protocol):
    def __call__(self, url: str, options: Mapping[str, str]) -> Endpoint: ...


_SCHEMES = {
    **dict.fromkeys(("anabranch", "kafka", "archive", "archive+s3", "pravega"), "spark"),
    **dict.fromkeys(("anabranch+tls", "pravega+tls"), "spark"),
    **dict.fromkeys(("ydb", "ydb+tls"), "ydb"),
}
"""Scheme of a URL -> the extra of this package that brings its client; the module that has ``open_endpoint(url,
options)`` is called as the scheme's first word."""


def may_cut(url: str) -> bool:
    """Whether ranges of the system at ``url`` may be cut anywhere; if not, they are read as a whole."""
    return not urlsplit(url).scheme.startswith("pravega")  # in the middle of a range there may be no record


def endpoint(url: str, options: Mapping[str, str] | None = None) -> Endpoint:
    """The system at ``url``: ``anabranch://host:8090``, ``kafka://host:9092``, ``pravega://...``, ``ydb://...``.

    Nothing is asked of it yet. Raises OptionError for a URL that is none, a scheme that has no endpoint here, or an
    option that the endpoint does not have.
    """
    given = dict(options or {})
    module = checked_module(url, given)
    opener: _Opener = module.open_endpoint
    return opener(url, given)


def checked_module(url: str, options: Collection[str], others: Collection[str] = ()) -> ModuleType:
    """Return the module of the endpoint at ``url``, which has all of ``options``; ``others`` are those of who asks."""
    scheme = urlsplit(url).scheme
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise OptionError(f"{url!r} is no address of an endpoint: it begins with one of {known}")
    try:
        module = import_module(f"spark_pipeline.endpoints.{scheme.partition('+')[0]}")
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{scheme}:// needs the Python package {error.name}: pip install 'anabranch[{_SCHEMES[scheme]}]'"
        ) from error
    # Those of Kafka's clients the endpoint checks by itself.
    unchecked = [one for one in options if scheme != "kafka" or not one.startswith("kafka.")]
    refuse_unknown(unchecked, {*module.OPTIONS, *others}, f"{scheme}://")
    return module
