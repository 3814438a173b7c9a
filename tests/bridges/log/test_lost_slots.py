"""Partitions go to another node: whoever opens them next finds no range that takes appends here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import structlog.testing

from bridges.cluster.members import Member, State
from bridges.cluster.ownership import Gained, Gone, Lost
from bridges.errors import LogDeleted, LogError, LogUnavailable, NotOwner
from bridges.log.compaction.cleaned_logs import CleanedLogs
from bridges.log.compaction.cleaner import Cleaner, CompactionPolicy
from bridges.log.damage.skips import Skips
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from tests.bridges.log.log_lab import Backend, World, Writer, batch, settle

OTHER = Member(2, 2, State.UP)


class Owners:
    """A slot for each partition, all of them this node's at first."""

    node_id = 1
    is_sure = True

    async def sure(self) -> None:
        pass

    def __init__(self) -> None:
        self.on_lost: list[Lost] = []
        self.on_gained: list[Gained] = []
        self.on_gone: list[Gone] = []
        self.nodes = ()
        self.lost: set[int] = set()
        self.epochs: dict[int, int] = {}

    def slot_of(self, topic: str, partition: int) -> int:
        return partition

    def slot_of_key(self, kind: str, key: str) -> int:
        return -1

    def owner(self, slot: int) -> Member | None:
        return OTHER

    def is_mine(self, slot: int) -> bool:
        return slot not in self.lost

    @property
    def mine(self) -> list[int]:
        return []

    def epoch(self, slot: int) -> int:
        return self.epochs.get(slot, 5)

    def holding(self, slot: int) -> Callable[[Any], None]:
        return lambda connection: None

    async def raise_epoch(self, slot: int) -> int:
        if slot in self.lost:
            raise NotOwner(f"slot {slot}", 2)
        self.epochs[slot] = self.epoch(slot) + 1
        return self.epochs[slot]

    async def lose(self, slot: int, *, in_order: bool = True) -> None:
        self.lost.add(slot)
        for lost in self.on_lost:
            await lost([slot], in_order)


class SlowBackend(Backend):
    """Opens when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()

    async def open(self, stream_id: int, epoch: int) -> Writer:
        opened = await super().open(stream_id, epoch)
        await self.let.wait()
        return opened


async def world_of(backend: Backend) -> tuple[World, Owners]:
    world, owners = World(), Owners()
    world.backend, world.owners = backend, owners
    await world.boot(open_it=False)
    return world, owners


class SharedSkips(Skips):
    """Those of a database that other nodes have, too; remembers how many had opened a stream when it was asked."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.asked: list[int] = []

    @property
    def shared(self) -> bool:
        return True

    async def reload(self, streams: Collection[int]) -> None:
        self.asked.append(len(self.backend.writers))


async def test_what_the_database_has_of_a_stream_is_asked_for_once_when_nobody_else_can_append() -> None:
    world = World()
    world.owners = Owners()
    world.skips = skips = SharedSkips(world.backend)
    await world.boot()
    assert skips.asked == [1]
    await world.logs.close()


async def test_retention_makes_no_logs_of_what_others_own_or_what_it_does_not_open() -> None:
    world = World(partitions=100, retention_openings=7)
    world.owners = owners = Owners()
    owners.lost.update(range(50))
    await world.boot(open_it=False)
    made = {log.partition for log in world.logs}
    await world.retain([("t", n) for n in range(100)], lambda topic: (1_000, -1), 10_000)
    assert {log.partition for log in world.logs} - made == set(range(50, 57))
    await world.logs.close()


async def test_compaction_looks_only_at_what_is_this_nodes() -> None:
    world = World(partitions=200)
    world.owners = owners = Owners()
    owners.lost.update(range(150))
    await world.boot(open_it=False)
    made = {log.partition for log in world.logs}
    cleaner = Cleaner(world.logs, CleanedLogs(), lambda topic: CompactionPolicy())
    measured: list[int] = []

    async def measure(_due: object, _now_ms: int, place: tuple[str, int]) -> None:
        measured.append(place[1])

    cleaner._measure = measure  # type: ignore[method-assign]
    await cleaner.clean([("t", n) for n in range(200)], 0)
    assert min(measured) == 150
    assert {log.partition for log in world.logs} - made <= set(range(150, 200))
    await cleaner.close()
    await world.logs.close()


async def test_a_log_that_is_open_is_sealed_before_its_slot_goes() -> None:
    world, owners = await world_of(Backend())
    log = world.logs.get("t", 0)
    assert log is not None
    await log.ready()
    log.append(batch(), world.done)
    losing = asyncio.ensure_future(owners.lose(0))
    await settle()
    assert not world.backend.seals, "what is under way is decided first"
    world.writer.acknowledge(1)
    await losing
    assert world.answers == [0]
    assert world.backend.seals == [5]
    assert world.logs.opener.count_taken(0) == 0
    await world.logs.close()


async def test_a_log_that_is_being_opened_is_sealed_before_its_slot_goes() -> None:
    backend = SlowBackend()
    world, owners = await world_of(backend)
    log = world.logs.get("t", 0)
    assert log is not None
    opening = asyncio.ensure_future(log.ready())
    await settle()
    assert backend.epochs == [5]
    losing = asyncio.ensure_future(owners.lose(0))
    await settle()
    assert not losing.done()
    backend.let.set()
    await losing
    assert backend.seals == [5]
    assert isinstance((await asyncio.gather(opening, return_exceptions=True))[0], NotOwner)
    await world.logs.close()


async def test_a_log_that_is_deleted_while_it_is_opened_is_not_given_up_with_its_slot() -> None:
    backend = SlowBackend()
    world, owners = await world_of(backend)
    log = world.logs.get("t", 0)
    assert log is not None
    opening = asyncio.ensure_future(log.ready())
    await settle()
    world.logs.topic_deleted("t", [0])
    backend.let.set()
    assert isinstance((await asyncio.gather(opening, return_exceptions=True))[0], LogDeleted)
    await settle()
    assert backend.writers[0].closed
    assert world.logs.opener.count_taken(0) == 0
    await owners.lose(0)
    assert not backend.seals, "its stream is deleted with its topic"
    await world.logs.close()


async def test_a_log_that_is_wanted_again_is_opened_when_its_former_opening_has_ended() -> None:
    """A caller asks again as soon as it is refused, while what the opening had taken is still being sealed."""

    class SlowSeals(SlowBackend):
        async def seal(self, stream_id: int, epoch: int) -> int:
            await sealed.wait()
            return await super().seal(stream_id, epoch)

    sealed = asyncio.Event()
    backend = SlowSeals()
    world, owners = await world_of(backend)
    log = world.logs.get("t", 0)
    assert log is not None
    refused: list[LogError | None] = []

    def ask_again(error: LogError | None) -> None:
        refused.append(error)
        if len(refused) < 3:
            log.when_open(ask_again)

    log.when_open(ask_again)
    await settle()
    losing = asyncio.ensure_future(owners.lose(0))
    backend.let.set()
    await settle()
    assert not losing.done()
    sealed.set()
    await losing
    await settle()
    assert [type(error) for error in refused] == [NotOwner] * 3
    assert world.logs.barrier.failures == {}
    assert backend.seals == [5]
    assert world.writer.closed
    await world.logs.close()


async def test_a_log_that_failed_after_it_was_opened_is_sealed_before_its_slot_goes() -> None:
    world, owners = await world_of(Backend())
    log = world.logs.get("t", 0)
    assert log is not None
    world.backend.end, world.backend.broken_at = 3, 0  # it cannot be rebuilt
    assert isinstance((await asyncio.gather(log.ready(), return_exceptions=True))[0], LogUnavailable)
    await owners.lose(0)
    assert world.backend.seals == [5]
    await world.logs.close()


async def test_a_stream_that_was_deleted_meanwhile_is_no_range_left_open() -> None:
    class Deleted(Backend):
        async def seal(self, stream_id: int, epoch: int) -> int:
            raise SbpError(ErrorCode.NOT_FOUND, f"stream {stream_id} was deleted")

    world, owners = await world_of(Deleted())
    log = world.logs.get("t", 0)
    assert log is not None
    world.backend.end, world.backend.broken_at = 3, 0  # it cannot be rebuilt
    assert isinstance((await asyncio.gather(log.ready(), return_exceptions=True))[0], LogUnavailable)
    with structlog.testing.capture_logs() as logged:
        await owners.lose(0)
    assert [one["event"] for one in logged] == []
    await world.logs.close()


async def test_nothing_is_sealed_of_what_was_lost_to_others() -> None:
    """This node was ended: its log is fenced, and there is nobody to ask."""
    world, owners = await world_of(Backend())
    log = world.logs.get("t", 0)
    assert log is not None
    await log.ready()
    await owners.lose(0, in_order=False)
    assert world.backend.seals == []
    await world.logs.close()


async def test_what_could_not_be_opened_is_tried_again_when_its_server_has_a_successor() -> None:
    world, owners = await world_of(Backend())
    log = world.logs.get("t", 0)
    assert log is not None
    world.backend.refusals = [ConnectionLost("the server is gone"), ConnectionLost("it still is")]
    for _ in range(2):
        assert isinstance((await asyncio.gather(log.ready(), return_exceptions=True))[0], LogUnavailable)
    opening = asyncio.ensure_future(log.ready())
    await settle()
    assert not opening.done(), "it waits for its time"
    for gone in owners.on_gone:
        gone()
    assert not world.logs.opener.put_off, "it waits no longer"
    await opening
    assert log.is_open
    await world.logs.close()
