"""How a migration talks to the node that takes its topics: begin, write, bounds, positions, hand-over, give up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bridges.formats import FormatId
from spark_pipeline.core.node_client import Buffer, NodeClient, NodeOptions
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import Positions
from spark_pipeline.endpoints.node_errors import as_pipeline_errors


@dataclass(frozen=True, slots=True)
class ImportState:
    """A topic of a migration: which run has it, when it was handed over (ms; None: not yet), positions by number, and
    what it was said to be filled with (empty: nothing was said)."""

    topic: str
    epoch: int
    handed_over_ms: int | None
    partitions: tuple[Positions, ...]
    origin: str = ""

    def lag(self, source: Mapping[TopicPartition, Positions]) -> int:
        """How many offsets the source has by now that are not here, of the partitions that are here."""
        return sum(
            max(0, source[TopicPartition(self.topic, number)].high_watermark - at.high_watermark)
            for number, at in enumerate(self.partitions)
        )


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the target's topics have by themselves. Keys that are not ``configured`` have Kafka's own defaults: those
    for sizes and times bind Kafka's batches alone (bridges/log/partition/admission.py)."""

    config: Mapping[str, str]
    configured: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PositionsSet:
    """What became of a group's positions: how many were ``set``; ``kept`` are those that somebody has committed at the
    target, ``ahead`` those that lie behind the end of what is there: rows of topic, partition, offset."""

    set: int
    kept: tuple[tuple[str, int, int], ...]
    ahead: tuple[tuple[str, int, int], ...]


class Importer:
    """The target of one migration. For one thread; raises EndpointUnavailable, Fenced, Conflict, UnknownTopic."""

    def __init__(self, url: str, options: Mapping[str, str], migration: str) -> None:
        self._client = NodeClient(NodeOptions.of(url, options))
        self._root = f"/v1/imports/{quote(migration, safe='')}"

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def defaults(self) -> Defaults:
        """The configuration that a topic has here if nothing is said about it."""
        with as_pipeline_errors():
            answer = self._client.get("/v1/defaults")
        return Defaults(answer["config"], frozenset(answer["configured"]))

    def begin(self, topic: str, partitions: int, config: Mapping[str, str], origin: str = "") -> ImportState:
        """Make the topic, or take it for another run, which keeps earlier ones out. ``origin`` says what it is filled
        with, always in the same words (see :func:`origin_of`); raises Conflict if that was something else before."""
        asked = {"partitions": partitions, "config": dict(config), **({"origin": origin} if origin else {})}
        return _state(self._post(self._topic(topic), asked))

    def state(self, topic: str) -> ImportState:
        """What has become of the topic."""
        with as_pipeline_errors():
            return _state(self._client.get(self._topic(topic)))

    def append(
        self, part: TopicPartition, epoch: int, batches: Sequence[Buffer], form: int = int(FormatId.KAFKA)
    ) -> int:
        """Bring whole batches, as their stored format ``form`` travels (:mod:`spark_pipeline.core.import_frames`); when
        this returns, all are durable at their offsets. Gives where the log ends."""
        named = "" if form == FormatId.KAFKA else f"&format={form}"
        with as_pipeline_errors():
            answer = self._client.post_bytes(f"{self._place(part)}/batches?epoch={epoch}{named}", batches)
        return int(answer["end"])

    def bounds(self, part: TopicPartition, epoch: int, *, start: int = 0, end: int = 0) -> Positions:
        """Have the log reach ``end`` and begin at ``start``, if it does not."""
        answer = self._post(f"{self._place(part)}/bounds?epoch={epoch}", {"start": start, "end": end})
        return Positions(answer["start"], answer["end"], answer["end"])

    def positions(self, group: str, positions: Sequence[tuple[TopicPartition, int, str]]) -> PositionsSet:
        """Say how far a group has read: partition, offset and metadata of each."""
        rows = [[part.topic, part.partition, offset, metadata] for part, offset, metadata in positions]
        answer = self._post(f"{self._root}/positions", {"group": group, "positions": rows})
        return PositionsSet(answer["set"], tuple(map(tuple, answer["kept"])), tuple(map(tuple, answer["ahead"])))

    def cutover(self, ends: Mapping[str, Sequence[int]], *, abort_open: bool = False) -> dict[str, Any]:
        """Hand topics over, all at once; ``ends`` are where all their partitions end."""
        return self._post(
            f"{self._root}/cutover",
            {"topics": {topic: list(one) for topic, one in ends.items()}, "abort_open": abort_open},
        )

    def abort(self, topics: Sequence[str], *, delete: bool) -> list[str]:
        """Give the migration up; the topics that were still its own."""
        answer = self._post(f"{self._root}/abort", {"topics": list(topics), "delete": delete})
        return list(answer["deleted" if delete else "left"])

    def _topic(self, topic: str) -> str:
        return f"{self._root}/topics/{quote(topic, safe='')}"

    def _place(self, part: TopicPartition) -> str:
        return f"{self._topic(part.topic)}/{part.partition}"

    def _post(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        with as_pipeline_errors():
            return self._client.post(path, content)


def origin_of(source: str, topic: str, identity: str, **filters: int | None) -> str:
    """What a topic is filled with: a topic of a system, by its identity where it has one, since a system has several
    addresses, and which of its records."""
    place = {"identity": identity} if identity else {"source": source}
    chosen = {name: value for name, value in filters.items() if value is not None}
    return json.dumps({**place, "topic": topic, **chosen}, sort_keys=True)


def _state(answer: Mapping[str, Any]) -> ImportState:
    partitions = tuple(Positions(start, stable, end) for start, stable, end in answer["partitions"])
    return ImportState(answer["topic"], answer["epoch"], answer["handed_over_ms"], partitions, answer["origin"])
