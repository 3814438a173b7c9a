"""Appends that go by way of another node: two ends over a real connection, of which one goes away, or owns no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.net.address import Address
from anabranch_kit.run.barrier import Barrier
from bridges.catalog.topics.rules import UNBOUNDED
from bridges.cluster.members import Member, State
from bridges.cluster.peers.peers import LISTENER, Peers
from bridges.errors import BatchInvalid, EventNumberConflict, LogError, LogUnavailable, NotOwner, PartitionSealed
from bridges.formats import FORMATS
from bridges.formats.producer import EventStamp, InTransaction, ProducerStamp, SeqNoStamp, fence
from bridges.log.interfaces import NOT_APPENDED, AppendDone, Appended, Batch, Guard
from bridges.log.partition.admission import check
from bridges.log.remote.forwarded_appends import ForwardedAppends, decode_append, encode_append
from tests.kit.waiting import until
from tests.line_front.line_front import LINES, LineFormat, LineStamp, payload_of

TOPIC_ID = b"t" * 16


class Owners:
    """Everything is one slot, of one owner, who is whoever a test says."""

    def __init__(self, start: int) -> None:
        self.start = self.node_id = start
        self.members: dict[int, Member] = {}
        self.has = 0
        self.on_lost, self.on_gained, self.on_gone = [], [], []  # type: ignore[var-annotated]

    @property
    def nodes(self) -> list[Member]:
        return list(self.members.values())

    def slot_of(self, topic: str, partition: int) -> int:
        return 0

    def owner(self, slot: int) -> Member | None:
        return self.members.get(self.has)

    def is_mine(self, slot: int) -> bool:
        return self.has == self.start


class End:
    """One node's: what is appended here is in ``taken``, and answered when ``answering``."""

    def __init__(self, start: int) -> None:
        barrier = Barrier()
        self.start = start
        self.owners = Owners(start)
        self.budget = MemoryBudget(1 << 26, asyncio.get_running_loop().call_soon)
        self.peers = Peers(start, "secret", barrier, self.budget)
        self.owners.on_gone.append(lambda: self.peers.keep_only(self.owners.members))
        self.appends = ForwardedAppends(self.peers, self.owners, self.here, lambda topic: TOPIC_ID, barrier)
        self.taken: list[Batch] = []
        self.waiting: list[AppendDone] = []
        self.answering = True
        self.refusing: Callable[[Batch], LogError | None] = lambda batch: None

    def here(self, topic: str, partition: int, batch: Batch, done: AppendDone) -> None:
        error = self.refusing(batch)
        if error is not None:
            done(NOT_APPENDED, error)
            return
        self.taken.append(batch)
        base = len(self.taken) - 1
        if self.answering:
            done(Appended(base, base + 1), None)
        else:
            self.waiting.append(done)

    async def start_server(self) -> Member:
        opened = await self.peers.listen(Address("127.0.0.1", 0), None, None)
        return Member(self.start, self.start, State.UP, addresses={LISTENER: str(opened)})

    async def close(self) -> None:
        await self.appends.close()
        await self.peers.close()


@asynccontextmanager
async def ends(number: int) -> AsyncIterator[list[End]]:
    made = [End(start) for start in range(1, number + 1)]
    members = {end.start: await end.start_server() for end in made}
    for end in made:
        end.owners.members = dict(members)
    try:
        yield made
    finally:
        await asyncio.gather(*(end.close() for end in made))


def own(made: list[End], start: int) -> None:
    for end in made:
        end.owners.has = start


def lose(made: list[End], lost: End) -> None:
    """The cluster goes on without a node."""
    for end in made:
        end.owners.members.pop(lost.start, None)
        if end is not lost:
            for gone in end.owners.on_gone:
                gone()


def batch(number: int, stamped: bool = True) -> Batch:
    stamp = SeqNoStamp(b"somebody", (number,)) if stamped else None
    return Batch(b"%d" % number, 1, 0, producer=stamp)


async def appended(end: End, one: Batch) -> Appended:
    done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def answer(found: Appended, error: LogError | None) -> None:
        assert not done.done(), "answered twice"
        if error is None:
            done.set_result(found)
        else:
            done.set_exception(error)

    end.appends.append("t", 0, one, answer)
    return await asyncio.wait_for(done, 30)


async def test_a_batch_comes_over_as_it_is() -> None:
    async with ends(2) as made:
        one, two = made
        own(made, 2)
        sent = [
            Batch(b"", 0, 3, 17),
            Batch(b"k" * 100_000, 5, 1, 99, ProducerStamp(7, 1, 0, 5), transaction=InTransaction(7, 1)),
            Batch(
                b"m", 1, 0, producer=fence(InTransaction(7, 2, True)), transaction=InTransaction(7, 2, True), own=True
            ),
            Batch(b"e", 2, 4, producer=EventStamp(b"w" * 16, 4, 2, 3), guard=Guard(-1, 5), import_epoch=3, lane="x"),
            Batch(b"s", 3, 4, producer=SeqNoStamp(b"p", range(1, 4))),
        ]
        for base, given in enumerate(sent):
            assert await appended(one, given) == Appended(base, base + 1)
        for given, found in zip(sent, two.taken, strict=True):
            assert bytes(found.payload) == bytes(given.payload)
            assert isinstance(found.payload, bytearray)
            for name in ("count", "flags", "max_timestamp", "guard", "transaction", "import_epoch", "own"):
                assert getattr(found, name) == getattr(given, name), name
            assert type(found.producer) is type(given.producer)
        assert [*two.taken[4].producer.seq_nos] == [1, 2, 3]  # type: ignore[union-attr]
        assert (two.taken[3].lane is None, two.taken[1].lane is None) == (False, True)
        assert one.taken == []
        await until(lambda: one.budget.held == two.budget.held == 0)


async def test_what_the_owner_refuses_is_told_in_its_words() -> None:
    async with ends(2) as made:
        one, two = made
        own(made, 2)
        two.refusing = lambda batch: PartitionSealed("t-0", (4, 5))
        with pytest.raises(PartitionSealed, match="partition 4, 5") as sealed:
            await appended(one, batch(1))
        assert sealed.value.children == (4, 5)
        two.refusing = lambda batch: EventNumberConflict("no", 12)
        with pytest.raises(EventNumberConflict) as conflict:
            await appended(one, batch(1))
        assert conflict.value.last == 12


async def test_a_batch_follows_its_partition_in_order() -> None:
    async with ends(3) as made:
        one, two, three = made
        own(made, 2)
        results = [asyncio.create_task(appended(one, batch(number))) for number in range(50)]
        await asyncio.sleep(0)
        two.owners.has = 3  # which the sender has not heard of yet
        results += [asyncio.create_task(appended(one, batch(number))) for number in range(50, 100)]
        await asyncio.sleep(0.2)  # the former owner refuses some of them meanwhile
        own(made, 3)
        await asyncio.gather(*results)
        taken = [int(bytes(one.payload)) for one in [*two.taken, *three.taken]]
        assert taken == [*range(100)]


async def test_an_answer_that_is_lost_is_asked_for_at_the_next_owner() -> None:
    async with ends(3) as made:
        one, two, three = made
        own(made, 2)
        two.answering = False
        results = [asyncio.create_task(appended(one, batch(number))) for number in range(10)]
        unknown = asyncio.create_task(appended(one, batch(10, stamped=False)))
        await until(lambda: len(two.taken) == 11)
        own(made, 3)
        lose(made, two)
        await asyncio.gather(*results)
        assert [int(bytes(one.payload)) for one in three.taken] == [*range(10)]
        with pytest.raises(LogUnavailable, match="not known"):
            await unknown
        assert one.appends.places == {}
        await until(lambda: one.budget.held == 0)


async def test_it_comes_back_to_this_node_in_order() -> None:
    async with ends(2) as made:
        one, two = made
        own(made, 2)
        refused: list[Batch] = []

        def refuse(batch: Batch) -> NotOwner:
            refused.append(batch)
            return NotOwner("t-0", 1)

        two.refusing = refuse
        results = [asyncio.create_task(appended(one, batch(number))) for number in range(20)]
        await until(lambda: refused)
        own(made, 1)
        results.append(asyncio.create_task(appended(one, batch(20))))  # behind what is on its way
        await asyncio.gather(*results)
        assert [int(bytes(one.payload)) for one in one.taken] == [*range(21)]
        assert two.taken == []


async def test_a_batch_goes_behind_those_that_were_sent_before_the_partition_came_here() -> None:
    async with ends(2) as made:
        one, two = made
        own(made, 2)
        two.answering = False
        first = asyncio.create_task(appended(one, batch(1)))
        await until(lambda: two.waiting)
        own(made, 1)
        assert one.appends.takes("t", 0)
        two.waiting.pop()(Appended(0, 1), None)
        assert await first == Appended(0, 1)
        await until(lambda: not one.appends.takes("t", 0))


async def test_nothing_overtakes_what_was_refused_though_the_partition_comes_back_at_once() -> None:
    async with ends(2) as made:
        one, two = made
        own(made, 2)
        refused: list[bytes] = []

        def once(given: Batch) -> LogError | None:
            payload = bytes(given.payload)
            if payload == b"3" and payload not in refused:
                refused.append(payload)
                return NotOwner("t-0", 1)
            return None

        two.refusing = once
        await asyncio.gather(*(asyncio.create_task(appended(one, batch(number))) for number in range(20)))
        assert refused == [b"3"]
        assert [int(bytes(found.payload)) for found in two.taken] == [*range(20)]


async def test_nothing_overtakes_what_was_given_up() -> None:
    async with ends(2) as made:
        here, there = made
        own(made, 2)
        await there.close()
        answers: list[LogError | None] = []
        for number in (1, 2):
            here.appends.append("t", 0, batch(number), lambda _, error: answers.append(error))
        here.appends.places["t", 0].waiting[0].since -= 1000
        await until(lambda: bool(answers))
        assert [type(error) for error in answers] == [LogUnavailable] * 2


def test_writers_of_a_fronts_own_kind_are_told_by_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = payload_of(5, ["a=b"], b"me", 7)
    sent = Batch(payload, 1, LINES, 5, LineStamp(b"me", 7))
    raw = encode_append(1, 0, ("t", TOPIC_ID, 0), sent)
    monkeypatch.setitem(FORMATS, LINES, LineFormat())
    _, came = decode_append(raw, 3)
    assert came.producer == sent.producer
    assert came.producer is not None
    assert came.producer.kind == 128
    monkeypatch.delitem(FORMATS, LINES)
    _, came = decode_append(raw, 3)
    assert came.producer is None
    with pytest.raises(BatchInvalid, match="stored format 8 is not known"):  # where its front is not installed
        check(came, UNBOUNDED, 5)
