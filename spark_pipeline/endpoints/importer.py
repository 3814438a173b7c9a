"""The client of a migration's target node: begin, append, bounds, positions, hand-over, abort."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bridges.formats import FormatId
from spark_pipeline.core.client.node_client import Buffer, NodeClient, NodeOptions, as_pipeline_errors
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import Positions


@dataclass(frozen=True, slots=True)
class ImportState:
    """A topic of a migration at the target.

    ``epoch`` is its present run, ``handed_over_ms`` the time of the hand-over (None: not yet), ``partitions`` the
    positions by number, ``origin`` the source given at its creation (empty: none was given).
    """

    topic: str
    epoch: int
    handed_over_ms: int | None
    partitions: tuple[Positions, ...]
    origin: str = ""

    def lag(self, source: Mapping[TopicPartition, Positions]) -> int:
        """Return the number of offsets that the target's partitions lack of the source's."""
        return sum(
            max(0, source[TopicPartition(self.topic, number)].high_watermark - at.high_watermark)
            for number, at in enumerate(self.partitions)
        )


@dataclass(frozen=True, slots=True)
class Defaults:
    """The default configuration of the target's topics.

    Keys that are not ``configured`` have Kafka's own defaults; of these, the limits of sizes and times apply to Kafka's
    batches only (bridges/log/partition/admission.py).
    """

    config: Mapping[str, str]
    configured: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PositionsSet:
    """The result of setting a group's positions.

    ``set`` is their number. ``kept`` are positions that a consumer has committed at the target, ``ahead`` positions
    above the target's end: rows of topic, partition, offset.
    """

    set: int
    kept: tuple[tuple[str, int, int], ...]
    ahead: tuple[tuple[str, int, int], ...]


class Importer:
    """The target of one migration. Not thread-safe. Raises EndpointUnavailable, Fenced, Conflict, UnknownTopic."""

    def __init__(self, url: str, options: Mapping[str, str], migration: str) -> None:
        self._client = NodeClient(NodeOptions.parse(url, options))
        self._root = f"/v1/imports/{quote(migration, safe='')}"

    def close(self) -> None:
        self._client.close()

    def defaults(self) -> Defaults:
        """Return the default configuration of the target's topics."""
        with as_pipeline_errors():
            answer = self._client.get("/v1/defaults")
        return Defaults(answer["config"], frozenset(answer["configured"]))

    def begin(self, topic: str, partitions: int, config: Mapping[str, str], origin: str = "") -> ImportState:
        """Create the topic, or take it for another run, which fences earlier ones.

        ``origin`` describes the source, always in the same words (see :func:`origin_of`). Raises Conflict if the topic
        has another origin.
        """
        asked = {"partitions": partitions, "config": dict(config), **({"origin": origin} if origin else {})}
        return _state(self._post(self._topic(topic), asked))

    def state(self, topic: str) -> ImportState:
        with as_pipeline_errors():
            return _state(self._client.get(self._topic(topic)))

    def append(
        self, part: TopicPartition, epoch: int, batches: Sequence[Buffer], form: int = int(FormatId.KAFKA)
    ) -> int:
        """Append whole batches in the wire form of stored format ``form`` (:mod:`spark_pipeline.core.frames`).

        Returns the log's end when all batches are durable at their offsets.
        """
        named = "" if form == FormatId.KAFKA else f"&format={form}"
        with as_pipeline_errors():
            answer = self._client.post_bytes(f"{self._place(part)}/batches?epoch={epoch}{named}", batches)
        return int(answer["end"])

    def bounds(self, part: TopicPartition, epoch: int, *, start: int = 0, end: int = 0) -> Positions:
        """Extend the log to ``end`` and trim it to ``start``, where needed."""
        answer = self._post(f"{self._place(part)}/bounds?epoch={epoch}", {"start": start, "end": end})
        return Positions(answer["start"], answer["end"], answer["end"])

    def positions(self, group: str, positions: Sequence[tuple[TopicPartition, int, str]]) -> PositionsSet:
        """Set a group's positions: partition, offset and metadata of each."""
        rows = [[part.topic, part.partition, offset, metadata] for part, offset, metadata in positions]
        answer = self._post(f"{self._root}/positions", {"group": group, "positions": rows})
        return PositionsSet(answer["set"], tuple(map(tuple, answer["kept"])), tuple(map(tuple, answer["ahead"])))

    def cutover(self, ends: Mapping[str, Sequence[int]], *, abort_open: bool = False) -> dict[str, Any]:
        """Hand topics over, all at once; ``ends`` are the ends of all their partitions."""
        return self._post(
            f"{self._root}/cutover",
            {"topics": {topic: list(one) for topic, one in ends.items()}, "abort_open": abort_open},
        )

    def abort(self, topics: Sequence[str], *, delete: bool) -> list[str]:
        """Give the migration up; return the topics that were still its own."""
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
    """Describe the source of a topic's records: the source's topic, and the filters of its records.

    The topic's system is named by the topic's identity if there is one, because a system may have several addresses.
    """
    place = {"identity": identity} if identity else {"source": source}
    chosen = {name: value for name, value in filters.items() if value is not None}
    return json.dumps({**place, "topic": topic, **chosen}, sort_keys=True)


def _state(answer: Mapping[str, Any]) -> ImportState:
    partitions = tuple(Positions(start, stable, end) for start, stable, end in answer["partitions"])
    return ImportState(answer["topic"], answer["epoch"], answer["handed_over_ms"], partitions, answer["origin"])
