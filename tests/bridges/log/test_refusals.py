"""Nothing later of a producer is taken before a batch of its that was refused, whether the ledger knows it or not."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from bridges.errors import LogError, LogUnavailable, OutOfOrderSequence, StorageFull, UnknownProducer
from bridges.formats.kafka import parse_header
from bridges.formats.producer import SEQUENCES, ProducerStamp
from bridges.log.interfaces import NOT_APPENDED, Appended, Batch
from bridges.log.partition import refusals
from bridges.log.partition.partition_log import PartitionLog
from bridges.log.partition.refusals import Refusals
from sbp_back.errors import ErrorCode, NoSpace, SbpError
from tests.bridges.log.log_lab import World, batch, settle
from tests.bridges.log.test_lost_slots import Owners

Answer = int | type[LogError]


class Client:
    """A producer with several batches in flight, and a front that tells it what becomes of them."""

    def __init__(self, log: PartitionLog, refused: Refusals) -> None:
        self.log, self.refused = log, refused
        self.answers: dict[int, Answer] = {}

    def send(self, *sequences: int) -> None:
        for sequence in sequences:
            self.answers.pop(sequence, None)
            sent = batch(sequence=sequence)
            self.log.append(sent, self._done(sequence, sent))

    def _done(self, sequence: int, sent: Batch) -> Callable[[Appended, LogError | None], None]:
        def done(appended: Appended, error: LogError | None) -> None:
            self.answers[sequence] = appended.base if error is None else type(error)
            if error is not None:
                self.refused.note("t", 0, sent.producer, error)

        return done


async def written(world: World) -> Client:
    """A producer of which the ledger knows nothing, and its partition, where others have written."""
    log = await world.boot()
    log.append(batch(), world.done)
    world.writer.acknowledge(1)
    return Client(log, world.logs.refusals)


async def test_a_producer_begins_with_zero_where_nobody_has_written() -> None:
    world = World()
    log = await world.boot()
    client = Client(log, world.logs.refusals)
    client.send(3)
    assert client.answers == {3: UnknownProducer}
    log.append(batch(), world.done)  # somebody else writes meanwhile
    client.send(4, 0)
    world.writer.acknowledge(2)
    assert client.answers == {3: UnknownProducer, 4: OutOfOrderSequence, 0: 1}


async def test_a_producer_that_the_ledger_has_forgotten_goes_on_where_others_have_written() -> None:
    """KIP-360: also if retention, or DeleteRecords, has taken everything."""
    world = World()
    client = await written(world)
    await client.log.trim(1)
    client.send(500, 501)
    world.writer.acknowledge(2)
    assert client.answers == {500: 1, 501: 2}


@pytest.mark.parametrize("reopened", [False, True])
async def test_what_was_in_flight_behind_a_refused_batch_waits_for_it(reopened: bool) -> None:
    """A full disk; a backend that is lost, and back when the next batch comes."""
    world = World()
    client = await written(world)
    client.send(0, 1)
    if reopened:
        world.writer.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "gone"))
    else:
        world.writer.refuse(NoSpace())
    refused = LogUnavailable if reopened else StorageFull
    assert client.answers == {0: refused, 1: refused}
    client.send(2)
    await client.log.ready()
    assert client.answers[2] is OutOfOrderSequence
    client.send(0, 1, 2)
    world.writer.acknowledge(3)
    assert client.answers == {0: 1, 1: 2, 2: 3}
    assert not len(world.logs.refusals)


async def test_it_waits_when_the_partition_was_another_nodes_meanwhile() -> None:
    world = World()
    owners = world.owners = Owners()
    client = await written(world)
    client.send(0)
    await owners.lose(0, in_order=False)
    await settle()
    assert isinstance(client.answers[0], type)
    owners.lost.clear()
    client.send(1)
    await client.log.ready()
    assert client.answers[1] is OutOfOrderSequence
    client.send(0, 1)
    world.writer.acknowledge(2)
    assert client.answers == {0: 1, 1: 2}


async def test_what_another_node_took_meanwhile_is_not_missed() -> None:
    """The next owner's ledger knows better."""
    world = World()
    client = await written(world)
    client.send(0)
    world.writer.refuse(NoSpace())
    other = await world.boot()
    for sequence in (0, 1):
        other.append(batch(sequence=sequence), world.done)
    world.writer.acknowledge(2)
    world.logs.refusals.note("t", 0, ProducerStamp(7, 0, 0, 1))
    back = Client(other, world.logs.refusals)
    back.send(2)
    world.writer.acknowledge(1)
    assert back.answers == {2: 3}


async def test_a_batch_that_is_refused_for_good_leaves_its_number_to_the_next() -> None:
    """Java gives the number of a refused batch to the next one: had the log taken one that was in flight behind it, the
    next would be taken for its repetition, and lost."""
    world = World()
    client = await written(world)
    world.writer.largest = 10
    client.send(0)
    world.writer.largest = 1 << 30
    client.send(1)
    assert client.answers[1] is OutOfOrderSequence
    client.send(0, 1)
    world.writer.acknowledge(2)
    assert client.answers == {0: 1, 1: 2}


async def test_a_sealed_partitions_children_begin_with_zero() -> None:
    world = World(partitions=2)
    client = await written(world)
    client.log.sealed((1,))
    client.send(0)
    child = world.logs.get("t", 1)
    assert child is not None
    await child.ready()
    Client(child, world.logs.refusals).send(0)
    assert len(world.writer.flying) == 1


def test_a_refusal_counts_for_its_epoch_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Refusals()
    first, later = ProducerStamp(7, 1, 5, 1), ProducerStamp(7, 1, 6, 1)
    refused.note("t", 0, later)
    refused.note("t", 0, first)
    refused.note("t", 0, later)
    with pytest.raises(OutOfOrderSequence, match="sequence 5 was refused"):
        refused.require_first("t", 0, later, written=True)
    for other in (ProducerStamp(7, 2, 6, 1), ProducerStamp(8, 1, 6, 1), ProducerStamp(7, 1, 4, 1)):
        refused.require_first("t", 0, other, written=True)
    refused.require_first("t", 1, later, written=True)
    refused.note("t", 0, later, OutOfOrderSequence())
    refused.require_first("t", 0, first, written=False)  # it goes on in a topic that was made anew
    refused.require_first("t", 0, later, written=True)
    last = ProducerStamp(9, 0, SEQUENCES - 1, 1)
    refused.note("t", 0, last)
    with pytest.raises(OutOfOrderSequence):
        refused.require_first("t", 0, ProducerStamp(9, 0, 0, 1), written=True)
    monkeypatch.setattr(refusals, "KEPT_S", 0.0)
    refused.require_first("t", 0, ProducerStamp(9, 0, 0, 1), written=True)


def test_producers_that_were_refused_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MOST", 10)
    refused = Refusals()
    for producer in range(100):
        refused.note("t", 0, ProducerStamp(producer, 0, 0, 1))
    assert len(refused) == 10
    with pytest.raises(OutOfOrderSequence):
        refused.require_first("t", 0, ProducerStamp(99, 0, 1, 1), written=True)


class Pipeline:
    """A producer as Java's is: up to five batches in flight, and what was refused goes again before anything new."""

    def __init__(self, world: World, log: PartitionLog) -> None:
        self.world, self.log = world, log
        self.next = 0
        self.again: set[int] = set()
        self.in_flight: set[int] = set()
        self.wire: deque[int] = deque()

    def send(self, *, new: bool = True) -> None:
        if len(self.in_flight) >= 5 or not (self.again or new):
            return
        sequence = min(self.again) if self.again else self.next
        self.again.discard(sequence)
        self.next = max(self.next, sequence + 1)
        self.in_flight.add(sequence)
        self.wire.append(sequence)

    def arrive(self, *, refused_by_front: bool = False) -> None:
        """The next batch has come over."""
        if not self.wire:
            return
        sequence = self.wire.popleft()
        sent = batch(sequence=sequence)

        def done(appended: Appended, error: LogError | None) -> None:
            self.in_flight.remove(sequence)
            if error is not None:
                self.world.logs.refusals.note("t", 0, sent.producer, error)
                self.again.add(sequence)

        if refused_by_front:
            done(NOT_APPENDED, LogUnavailable("the coordinator is away"))
        else:
            self.log.append(sent, done)

    def stored(self) -> list[int]:
        headers = [parse_header(entry.payload) for entry in self.world.backend.entries]
        return [header.base_sequence for header in headers if header.producer_id == 7]


async def play(seed: int) -> Pipeline:
    """Random refusals of every kind, until all is stored."""
    rng = random.Random(seed)
    world = World()
    log = await world.boot()
    producer = Pipeline(world, log)
    for step in range(200):
        calm = step > 40
        choice = rng.random() if not calm else rng.random() / 2
        if choice < 0.15:
            producer.send(new=not calm)
        elif choice < 0.3:
            producer.arrive(refused_by_front=not calm and rng.random() < 0.1)
        elif choice < 0.5:
            world.writer.acknowledge(len(world.writer.flying) if calm else min(1, len(world.writer.flying)))
        elif choice < 0.7:
            world.writer.refuse(NoSpace())
        elif choice < 0.8:
            world.writer.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "gone"))
        elif choice < 0.9:
            log.append(batch(), lambda appended, error: None)  # somebody else
        else:
            await settle()
        if calm:
            await log.ready()
    return producer


async def in_disorder() -> list[int]:
    """Histories, by their seeds, that leave batches in another order, or leave some out."""
    found = []
    for seed in range(100):
        producer = await play(seed)
        if producer.in_flight or producer.again or producer.stored() != [*range(producer.next)]:
            found.append(seed)
    return found


async def test_a_producers_batches_are_in_order_whatever_was_refused() -> None:
    assert await in_disorder() == []


@pytest.mark.parametrize("forgotten", ["note", "require_first"])
async def test_without_the_memory_of_refusals_they_are_not(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Refusals, forgotten, lambda *_, **__: None)
    assert await in_disorder()
