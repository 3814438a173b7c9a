"""What a node tells readers, as objects: topics, partitions, positions, aborted transactions.

The node answers in pages; here they are put together. Offsets count records, sizes are in bytes, times in ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct, convert

from spark_pipeline.core.node_client import NodeClient, NodeError

_NAMES_AT_ONCE = 500
_PARTITIONS_AT_ONCE = 1_000
_SEARCHES_AT_ONCE = 100

Place = tuple[str, int]
"""Topic and number of a partition."""


class SbpPlace(Struct, frozen=True):
    """Where range servers are asked for, see ``bridges.node.front.SbpPlace``: ``pd`` are HOST:PORT. Empty where a node
    keeps that to itself. ``tickets``: whether they want those that the node gives."""

    pd: tuple[str, ...]
    dialect: str
    flavor: str
    tls: bool
    identity: str
    tickets: bool = False


class NodeFacts(Struct, frozen=True):
    """Who a node is."""

    version: str
    node_id: int
    cluster_id: str
    sbp: SbpPlace


class PartitionFacts(Struct, frozen=True):
    """A partition: ``state`` is active or sealed, ``end`` where a sealed one ends once that is final. ``keys``: the
    bounds of its range of keys, in steps of 2**-128, in hexadecimal."""

    partition: int
    stream_id: int
    state: str
    keys: tuple[str, str]
    end: int | None
    parents: tuple[int, ...]
    children: tuple[int, ...]


class TopicFacts(Struct, frozen=True):
    """A topic. ``config`` has the effective values, ``overrides`` those that were set for it; both are empty for who
    may not see them. ``names``: what other protocols call it."""

    name: str
    id: str
    kind: str
    names: dict[str, str]
    partitions: tuple[PartitionFacts, ...]
    config: dict[str, Any] = {}
    overrides: dict[str, str] = {}

    @property
    def active(self) -> list[PartitionFacts]:
        """The partitions that take appends."""
        return [one for one in self.partitions if one.state == "active"]


class PartitionPositions(Struct, frozen=True):
    """Offsets of a partition at one moment: readers of committed data stop at ``stable``. ``skipped`` are spans
    [first, end) that an operator has declared lost; ``bytes`` is about what the partition keeps. ``topic_id`` is "" of
    a node of an earlier release."""

    start: int
    stable: int
    high_watermark: int
    stream_id: int
    bytes: int
    skipped: tuple[tuple[int, int], ...]
    topic_id: str = ""


class Ticket(NamedTuple):
    """Lets a partition's stream be read for so many seconds."""

    text: str
    seconds: float


class AbortedTransaction(NamedTuple):
    """What its producer wrote from ``first_offset`` on was aborted by the marker at ``last_offset``."""

    producer_id: int
    first_offset: int
    last_offset: int


class NodeTopics:
    """What readers ask a node. Raises NodeError whatever is asked."""

    def __init__(self, client: NodeClient) -> None:
        self.client = client

    def node(self) -> NodeFacts:
        """Who the node is, and where its streams are read."""
        return convert(self.client.get("/v1/node"), NodeFacts)

    def names(self, pattern: str | None = None, *, internal: bool = False) -> list[str]:
        """Names of topics in alphabetical order: all, or those that ``pattern``, a regular expression, matches whole.

        Raises ValueError for a pattern that is none. ``internal``: also those that protocols keep for themselves.
        """
        try:
            wanted = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = self.client.get("/v1/topics", after=after)
            for topic in page["topics"]:
                if (internal or topic["kind"] == "user") and (wanted is None or wanted.fullmatch(topic["name"])):
                    found.append(topic["name"])
            after = page["next"]
        return found

    def topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Topics by name. Raises NodeError for one that is not there, or not to be seen."""
        found: dict[str, TopicFacts] = {}
        for some in _pieces(names, _NAMES_AT_ONCE):
            found.update(self._topics(some))
        return found

    def _topics(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        told: dict[str, dict[str, Any]] = {}
        for page in self._pages("/v1/describe", names):
            for topic in page["topics"]:
                _raise_told(topic)
                first = told.setdefault(topic["name"], topic)
                if first is not topic:
                    first["partitions"] += topic["partitions"]
        return {name: convert(topic, TopicFacts) for name, topic in told.items()}

    def _pages(self, path: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """What is told of topics, which goes on within a topic of many partitions."""
        at: list[int] | None = [0, 0]
        while at is not None:
            first, partition = at
            page = self.client.post(path, {"topics": list(names[first:]), "partition": partition})
            yield page
            at = None if page["next"] is None else [first + page["next"][0], page["next"][1]]

    def positions(self, places: Iterable[Place]) -> dict[Place, PartitionPositions]:
        """Positions by partition; of up to a thousand at the same moment."""
        found: dict[Place, PartitionPositions] = {}
        for some in _pieces(places, _PARTITIONS_AT_ONCE):
            page = self.client.post("/v1/positions", {"partitions": some})
            found.update(zip(some, map(_positions, page["partitions"]), strict=True))
        return found

    def ticket(self, place: Place) -> Ticket | None:
        """To read a partition with; None where nothing is demanded. Raises NodeError for who may not read it."""
        page = self.client.post("/v1/positions", {"partitions": [place], "tickets": True})
        _raise_told(page["partitions"][0])
        return None if page["ticket"] is None else Ticket(page["ticket"], page["seconds"])

    def topic_positions(self, names: Iterable[str]) -> dict[Place, PartitionPositions]:
        """Positions of all partitions of topics; of up to a thousand at the same moment. Raises NodeError for a topic
        that is not there, or not to be seen."""
        found: dict[Place, PartitionPositions] = {}
        for some in _pieces(names, _NAMES_AT_ONCE):
            for page in self._pages("/v1/positions", some):
                found.update(((one["topic"], one["partition"]), _positions(one)) for one in page["partitions"])
        return found

    def find_timestamp(self, at_ms: Mapping[Place, int]) -> dict[Place, int | None]:
        """The offset of the first record, in offset order, that is not older; None where there is none."""
        found: dict[Place, int | None] = {}
        for some in _pieces(at_ms.items(), _SEARCHES_AT_ONCE):
            page = self.client.post("/v1/timestamps", {"partitions": [[*place, ms] for place, ms in some]})
            for (place, _), one in zip(some, page["partitions"], strict=True):
                _raise_told(one)
                found[place] = one["offset"]
        return found

    def aborted(self, topic: str, partition: int, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that have a part in ``[start, end)``, which must not reach above ``stable``."""
        found: dict[AbortedTransaction, None] = {}
        while start < end:
            asked = {"topic": topic, "partition": partition, "start": start, "end": end}
            page = self.client.post("/v1/aborted", asked)
            if page["reached"] <= start:
                raise NodeError(f"what lies from offset {start} of {topic}-{partition} on is not decided yet")
            found.update((AbortedTransaction(*one), None) for one in page["aborted"])
            start = page["reached"]
        return list(found)

    def groups(self) -> dict[str, dict[Place, int]]:
        """Groups of consumers and the offsets that they go on from."""
        found: dict[str, dict[Place, int]] = {}
        at: list[Any] | None = ["", 0]
        while at is not None:
            page = self.client.get("/v1/groups", after=at[0], told=str(at[1]))
            for group, positions in page["groups"].items():
                told = found.setdefault(group, {})
                told.update({(topic, partition): offset for topic, partition, offset in positions})
            at = page["next"]
        return found


def _raise_told(one: Mapping[str, Any]) -> None:
    if "error" in one:
        raise NodeError(one["error"], one["kind"], one["status"], one)


def _positions(told: Mapping[str, Any]) -> PartitionPositions:
    _raise_told(told)
    return convert(told, PartitionPositions)


def _pieces(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    source = iter(items)
    while piece := list(islice(source, size)):
        yield piece
