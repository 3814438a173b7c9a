"""The records and bytes of topics, in partitions that are in use; other nodes are asked for theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from anabranch_kit.run.turns import Turns
from bridges.cluster.at_owner import find_others
from bridges.errors import LogError

if TYPE_CHECKING:
    from bridges.catalog.topics.catalog import Catalog
    from bridges.catalog.topics.topic import Topic
    from bridges.cluster.members import Member
    from bridges.cluster.ownership import Membership, Others
    from bridges.log.logs import Logs
    from bridges.log.partition.partition_log import PartitionLog

_KIND = "topic sizes"
_NAMES_PER_MESSAGE = 2_000
"""Most names in a request to another node: half a megabyte."""


_ASKED_S = 3.0


class Size(NamedTuple):
    """The size of a topic, or of a part of it."""

    records: int = 0
    bytes: int = 0


class Sizes(NamedTuple):
    """The sizes of topics at other nodes. ``unanswered``: ids of the nodes that did not answer."""

    of: dict[str, Size]
    unanswered: set[int]

    def as_json(self) -> dict[str, object]:
        """Return the field of an answer that names the missing nodes; empty if there are none."""
        return {"unanswered": sorted(self.unanswered)} if self.unanswered else {}


class _Asked(Struct, array_like=True):
    names: list[str]


class _Told(Struct, array_like=True):
    sizes: list[Size]


class TopicSizes:
    """Access to the sizes of topics at all nodes: asks the others, and answers them."""

    def __init__(self, catalog: Catalog, logs: Logs, owners: Membership, peers: Others) -> None:
        self._catalog = catalog
        self._logs = logs
        self._owners = owners
        self._peers = peers
        peers.serve(_KIND, _Asked, self._answer)

    async def elsewhere(self, names: Sequence[str]) -> Sizes:
        """Return the sizes of topics at other nodes."""
        found = Sizes({}, set())
        if names:
            await asyncio.gather(*(self._ask(member, names, found) for member in find_others(self._owners)))
        return found

    async def _ask(self, member: Member, names: Sequence[str], found: Sizes) -> None:
        try:
            for start in range(0, len(names), _NAMES_PER_MESSAGE):
                some = list(names[start : start + _NAMES_PER_MESSAGE])
                told = await self._peers.ask(member, _KIND, _Asked(some), _Told, _ASKED_S)
                for name, size in zip(some, told.sizes, strict=True):
                    before = found.of.get(name, Size())
                    found.of[name] = Size(before.records + size.records, before.bytes + size.bytes)
        except LogError:
            found.unanswered.add(member.node_id)  # the answer names the node; the sizes it has sent count

    async def _answer(self, asked: _Asked) -> _Told:
        turns = Turns()
        told = []
        for name in asked.names:
            records = size = 0
            topic = self._catalog.topics.get(name)
            for log in in_use(self._logs, topic) if topic is not None else ():
                records += log.high_watermark - log.log_start_offset
                size += log.size_bytes
                await turns.rest()
            told.append(Size(records, size))
            await turns.rest()
        return _Told(told)


def in_use(logs: Logs, topic: Topic) -> Iterator[PartitionLog]:
    """Yield the logs of a topic's partitions that are open at this node."""
    for partition in topic.partitions:
        log = logs.find_used(topic.name, partition.index)
        if log is not None and log.is_open:
            yield log
