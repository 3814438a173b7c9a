"""The ends of a migrated topic's partitions that other nodes own. Real clusters are in tests/cluster/test_imports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bridges.catalog.topics.topic import TopicNotFound
from bridges.errors import ImportFenced, NotOwner, PeerUnreachable
from spark_pipeline.node.import_ends import settle, settle_here
from spark_pipeline.node.messages import Ends, SettleEnds

OWNERS = {0: 2, 1: 3, 2: 2, 3: 3}
"""Partition -> the node that owns it; this is node 1."""
TOPIC: Any = SimpleNamespace(
    name="t", import_epoch=7, partitions=[SimpleNamespace(index=number) for number in sorted(OWNERS)]
)


class World:
    """A node that owns nothing, and the answers of others."""

    def __init__(self, answers: dict[int, Ends | Exception], owners: dict[int, int] = OWNERS) -> None:
        self._answers = answers
        self._owners = owners
        self.asked: dict[int, SettleEnds] = {}
        self.node: Any = SimpleNamespace(
            node_id=1,
            db=SimpleNamespace(changes=SimpleNamespace(shared=False)),
            owners=SimpleNamespace(
                slot_of=lambda topic, partition: partition, is_mine=lambda slot: False, owner=self._owner
            ),
            peers=SimpleNamespace(ask=self._ask),
        )

    def _owner(self, slot: int) -> Any:
        number = self._owners.get(slot)
        return None if number is None else SimpleNamespace(node_id=number, start=10 * number)

    async def _ask(self, owner: Any, kind: str, asked: SettleEnds, answer: type[Ends], patience_s: float) -> Ends:
        self.asked[owner.node_id] = asked
        found = self._answers[owner.node_id]
        if isinstance(found, Exception):
            raise found
        return found


async def test_every_owner_settles_its_own_partitions_for_the_run() -> None:
    world = World({2: Ends([(0, 5, 5), (1, 6, 6)], 1), 3: Ends([(2, 7, 7), (3, 8, 8)], 2)})
    found = await settle(world.node, TOPIC, [5, 7, 6, 8], abort_open=True)
    assert found == Ends([(0, 5, 5), (2, 7, 7), (1, 6, 6), (3, 8, 8)], 3)
    assert world.asked == {
        2: SettleEnds("t", 7, [0, 2], [5, 6], abort_open=True),
        3: SettleEnds("t", 7, [1, 3], [7, 8], abort_open=True),
    }


async def test_what_is_not_as_expected_at_any_owner_is_told() -> None:
    world = World({2: Ends([(0, 5, 5), (1, 6, 6)]), 3: Ends([], wrong="t-1 ends at 4, not at 7")})
    assert (await settle(world.node, TOPIC, [5, 7, 6, 8])).wrong == "t-1 ends at 4, not at 7"


async def test_a_node_that_does_not_answer_is_named() -> None:
    silent = PeerUnreachable("node 3 has not answered for 30 s")
    world = World({2: Ends([(0, 5, 5), (1, 6, 6)]), 3: silent})
    with pytest.raises(PeerUnreachable, match="2 of 4 partitions of t: node 3 has not answered for 30 s"):
        await settle(world.node, TOPIC)


async def test_a_partition_without_an_owner_is_asked_for_again() -> None:
    with pytest.raises(NotOwner, match="t-3"):
        await settle(World({}, {0: 2, 1: 2, 2: 2}).node, TOPIC)


class Log:
    """A log that this node owns; ``arriving`` appends are in flight until somebody waits for them."""

    def __init__(self, end: int, arriving: int = 0, opened: int | None = None) -> None:
        self.topic, self.partition = "t", 0
        self.import_epoch = 6
        self.log_start_offset = 0
        self.high_watermark = self.last_stable_offset = end
        self.next_offset = end + arriving
        self.is_open = True
        self.state = SimpleNamespace(
            transactions=SimpleNamespace(open={} if opened is None else {1: opened}, first_open=opened)
        )

    async def ready(self) -> None:
        pass

    async def until(self, condition: Any) -> None:
        if not condition():
            self.high_watermark = self.last_stable_offset = self.next_offset
        assert condition()

    def not_importing(self, epoch: int) -> ImportFenced:
        return ImportFenced(f"not run {epoch}")


def node_with(log: Log, epoch: int = 7) -> Any:
    """A node that learns of the run ``epoch`` from the database."""

    async def catch_up() -> None:
        log.import_epoch = epoch

    return SimpleNamespace(
        db=SimpleNamespace(changes=SimpleNamespace(shared=True, catch_up=catch_up)),
        logs=SimpleNamespace(get=lambda topic, partition: log if (topic, partition) == ("t", 0) else None),
    )


async def test_an_owner_learns_of_the_run_and_waits_for_what_is_in_flight() -> None:
    log = Log(5, arriving=3)
    assert await settle_here(node_with(log), SettleEnds("t", 7, [0])) == Ends([(0, 8, 8)])
    with pytest.raises(ImportFenced, match="not run 7"):
        await settle_here(node_with(log, epoch=8), SettleEnds("t", 7, [0]))
    with pytest.raises(TopicNotFound):
        await settle_here(node_with(log), SettleEnds("t", 7, [1]))


async def test_an_owner_tells_what_is_not_as_expected() -> None:
    assert (await settle_here(node_with(Log(5)), SettleEnds("t", 7, [0], [5]))).wrong == ""
    assert (await settle_here(node_with(Log(5)), SettleEnds("t", 7, [0], [4]))).wrong == "t-0 ends at 5, not at 4"
    told = await settle_here(node_with(Log(5, opened=3)), SettleEnds("t", 7, [0], [5]))
    assert told.wrong == "1 transactions are open in t-0, the first from offset 3 on"
    assert (await settle_here(node_with(Log(5, opened=3)), SettleEnds("t", 7, [0]))).wrong == "", "of a new run"
