"""A node's answers to readers as objects: topics, partitions, positions, aborted transactions.

The node answers in pages; the classes here join them. Offsets count records, sizes are in bytes, times in ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct, convert

from spark_pipeline.core.client.node_client import NodeClient, NodeError

_NAMES_PER_REQUEST = 500
_PARTITIONS_PER_REQUEST = 1_000
_SEARCHES_PER_REQUEST = 100

Place = tuple[str, int]
"""Topic and partition number."""


class SbpPlace(Struct, frozen=True):
    """The address at which range servers are reached, see ``bridges.node.front.SbpPlace``.

    ``pd`` are HOST:PORT of placement drivers; empty if the node does not publish them. ``tickets``: whether the range
    servers demand tickets, which the node issues.
    """

    pd: tuple[str, ...]
    dialect: str
    flavor: str
    tls: bool
    identity: str
    tickets: bool = False


class NodeFacts(Struct, frozen=True):
    """A node's identity and the address of its range servers."""

    version: str
    node_id: int
    cluster_id: str
    sbp: SbpPlace


class PartitionFacts(Struct, frozen=True):
    """A partition of a topic.

    ``state`` is active or sealed; ``end`` is the end offset of a sealed partition once it is final. ``keys`` are the
    bounds of its range of keys, in steps of 2**-128, in hexadecimal.
    """

    partition: int
    stream_id: int
    state: str
    keys: tuple[str, str]
    end: int | None
    parents: tuple[int, ...]
    children: tuple[int, ...]


class TopicFacts(Struct, frozen=True):
    """A topic.

    ``config`` has the effective values, ``overrides`` the values set for this topic; both are empty for a principal
    that may not see them. ``names`` are the topic's names in other protocols.
    """

    name: str
    id: str
    kind: str
    names: dict[str, str]
    partitions: tuple[PartitionFacts, ...]
    config: dict[str, Any] = {}
    overrides: dict[str, str] = {}

    @property
    def active(self) -> list[PartitionFacts]:
        """Return the partitions that take appends."""
        return [one for one in self.partitions if one.state == "active"]


class PartitionPositions(Struct, frozen=True):
    """Offsets of a partition at one moment.

    Readers of committed data stop at ``stable``. ``skipped`` are the spans [first, end) that an operator has declared
    lost; ``bytes`` is about what the partition keeps. ``topic_id`` is "" if the node runs an earlier release.
    """

    start: int
    stable: int
    high_watermark: int
    stream_id: int
    bytes: int
    skipped: tuple[tuple[int, int], ...]
    topic_id: str = ""


class Ticket(NamedTuple):
    """A permit to read a partition's stream for ``seconds``."""

    text: str
    seconds: float


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its producer's records from ``first_offset`` up to the marker at ``last_offset``."""

    producer_id: int
    first_offset: int
    last_offset: int


class NodeTopics:
    """The requests that readers send to a node. Every method may raise NodeError."""

    def __init__(self, client: NodeClient) -> None:
        self.client = client

    def node(self) -> NodeFacts:
        """Return the node's identity and the address at which its streams are read."""
        return convert(self.client.get("/v1/node"), NodeFacts)

    def names(self, pattern: str | None = None, *, internal: bool = False) -> list[str]:
        """Return topic names in alphabetical order: all, or those that ``pattern``, a regular expression, matches
        whole.

        ``internal``: include the topics that protocols keep for themselves. Raises ValueError for an invalid pattern.
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
        """Return topics by name. Raises NodeError for a topic that does not exist or may not be seen."""
        found: dict[str, TopicFacts] = {}
        for some in _pieces(names, _NAMES_PER_REQUEST):
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
        """Yield the pages of an answer about topics; a topic with many partitions spans several pages."""
        at: list[int] | None = [0, 0]
        while at is not None:
            first, partition = at
            page = self.client.post(path, {"topics": list(names[first:]), "partition": partition})
            yield page
            at = None if page["next"] is None else [first + page["next"][0], page["next"][1]]

    def positions(self, places: Iterable[Place]) -> dict[Place, PartitionPositions]:
        """Return positions by partition; up to a thousand partitions are read at the same moment."""
        found: dict[Place, PartitionPositions] = {}
        for some in _pieces(places, _PARTITIONS_PER_REQUEST):
            page = self.client.post("/v1/positions", {"partitions": some})
            found.update(zip(some, map(_positions, page["partitions"]), strict=True))
        return found

    def ticket(self, place: Place) -> Ticket | None:
        """Return a ticket to read a partition; None if none is required. Raises NodeError without the permission."""
        page = self.client.post("/v1/positions", {"partitions": [place], "tickets": True})
        _raise_told(page["partitions"][0])
        return None if page["ticket"] is None else Ticket(page["ticket"], page["seconds"])

    def topic_positions(self, names: Iterable[str]) -> dict[Place, PartitionPositions]:
        """Return the positions of all partitions of topics; up to a thousand are read at the same moment.

        Raises NodeError for a topic that does not exist or may not be seen.
        """
        found: dict[Place, PartitionPositions] = {}
        for some in _pieces(names, _NAMES_PER_REQUEST):
            for page in self._pages("/v1/positions", some):
                found.update(((one["topic"], one["partition"]), _positions(one)) for one in page["partitions"])
        return found

    def find_timestamp(self, at_ms: Mapping[Place, int]) -> dict[Place, int | None]:
        """Return per partition the lowest offset whose record is not older than a time in ms; None without one."""
        found: dict[Place, int | None] = {}
        for some in _pieces(at_ms.items(), _SEARCHES_PER_REQUEST):
            page = self.client.post("/v1/timestamps", {"partitions": [[*place, ms] for place, ms in some]})
            for (place, _), one in zip(some, page["partitions"], strict=True):
                _raise_told(one)
                found[place] = one["offset"]
        return found

    def aborted(self, topic: str, partition: int, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap ``[start, end)``; ``end`` must not be above ``stable``."""
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
        """Return consumer groups and their positions."""
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
