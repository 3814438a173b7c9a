"""The ends of a migrated topic's partitions, settled by whichever nodes own them.

A run of a migration begins behind everything that earlier runs have appended, and a hand-over must find every partition
at its expected end. So each owner first learns of the run from the database, which fences earlier runs there, and then
waits until nothing is in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch_kit.run.turns import in_turns
from bridges.catalog.topics.topic import TopicNotFound
from bridges.errors import NotOwner, PeerUnreachable
from spark_pipeline.node.intake import Intake
from spark_pipeline.node.messages import ENDS, Ends, SettleEnds

if TYPE_CHECKING:
    from bridges.catalog.topics.topic import Topic
    from bridges.cluster.members import Member
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.node.front import NodeServices

_OPENED_TOGETHER = 64
_ASKED_TOGETHER = 1_000
"""Most partitions of one question to another node."""
_PATIENCE_S = 30.0


async def settle(
    node: NodeServices, topic: Topic, ends: Sequence[int] | None = None, *, abort_open: bool = False
) -> Ends:
    """Settle all partitions of a topic for its present run; return the bounds in the order of the partitions.

    See :class:`SettleEnds` for ``ends`` and ``abort_open``. Raises LogError, whose text names a node that does not
    answer.
    """
    here: list[int] = []
    elsewhere: dict[int, tuple[Member, list[int]]] = {}
    async for at, one in in_turns(enumerate(topic.partitions)):
        owner = owner_elsewhere(node, topic.name, one.index)
        if owner is None:
            here.append(at)
        else:
            elsewhere.setdefault(owner.start, (owner, []))[1].append(at)
    works = [_settle_some(node, topic, None, here, ends, abort_open)]
    for owner, places in elsewhere.values():
        works += [
            _settle_some(node, topic, owner, places[start : start + _ASKED_TOGETHER], ends, abort_open)
            for start in range(0, len(places), _ASKED_TOGETHER)
        ]
    bounds: dict[int, tuple[int, int, int]] = {}
    aborted, wrong = 0, ""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        places, found = result
        bounds.update(zip(places, found.bounds, strict=False))
        aborted += found.aborted
        wrong = wrong or found.wrong
    return Ends([bounds[at] for at in sorted(bounds)], aborted, wrong)


async def _settle_some(
    node: NodeServices,
    topic: Topic,
    owner: Member | None,
    places: list[int],
    ends: Sequence[int] | None,
    abort_open: bool,
) -> tuple[list[int], Ends]:
    """Settle the partitions at ``places``, which ``owner`` owns, None for this node."""
    numbers = [topic.partitions[at].index for at in places]
    asked = SettleEnds(
        topic.name, topic.import_epoch, numbers, None if ends is None else [ends[at] for at in places], abort_open
    )
    if owner is None:
        return places, await settle_here(node, asked)
    try:
        return places, await node.peers.ask(owner, ENDS, asked, Ends, _PATIENCE_S)
    except PeerUnreachable as error:
        some = f"{len(places)} of {len(topic.partitions)} partitions of {topic.name}"
        raise PeerUnreachable(f"{some}: {error}") from error


async def settle_here(node: NodeServices, asked: SettleEnds) -> Ends:
    """Settle partitions of this node. Raises LogError."""
    if node.db.changes.shared:
        await node.db.changes.catch_up()
    bounds: list[tuple[int, int, int]] = []
    aborted = 0
    for start in range(0, len(asked.partitions), _OPENED_TOGETHER):
        logs = [_log(node, asked.topic, number) for number in asked.partitions[start : start + _OPENED_TOGETHER]]
        await asyncio.gather(*map(_await_quiet, logs))
        for log in logs:
            if log.import_epoch != asked.epoch:
                raise log.not_importing(asked.epoch)
            if asked.ends is not None and log.high_watermark != (end := asked.ends[len(bounds)]):
                wrong = f"{log.topic}-{log.partition} ends at {log.high_watermark}, not at {end}"
                return Ends(bounds, aborted, wrong)
            if log.state.transactions.open and asked.abort_open:
                intake = Intake(log, asked.epoch)
                aborted += await intake.abort_open()
                await intake.finish()
            elif log.state.transactions.open and asked.ends is not None:
                wrong = (
                    f"{len(log.state.transactions.open)} transactions are open in {log.topic}-{log.partition}, the "
                    f"first from offset {log.state.transactions.first_open} on"
                )
                return Ends(bounds, aborted, wrong)
            bounds.append((log.log_start_offset, log.last_stable_offset, log.high_watermark))
    return Ends(bounds, aborted)


def owner_elsewhere(node: NodeServices, topic: str, partition: int) -> Member | None:
    """Return the owner of a partition; None if it is this node. Raises NotOwner if it has no owner now."""
    slot = node.owners.slot_of(topic, partition)
    if node.owners.is_mine(slot):
        return None
    owner = node.owners.owner(slot)
    if owner is None or owner.node_id == node.node_id:
        raise NotOwner(f"{topic}-{partition}", -1)
    return owner


def _log(node: NodeServices, topic: str, partition: int) -> PartitionLog:
    found = node.logs.get(topic, partition)
    if found is None:
        raise TopicNotFound(f"there is no partition {partition} of a topic {topic!r}")
    return found


async def _await_quiet(log: PartitionLog) -> None:
    """Return when no append of an earlier run is in flight: the new run begins at the log's end at that time."""
    await log.ready()
    await log.until(lambda: log.next_offset == log.high_watermark or not log.is_open)
    await log.ready()
