"""Partitions are shared among readers: each has one, all are read, and nobody has two more than another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.barrier import Barrier
from bridges.catalog.topics.lineage import PartitionInfo
from bridges.cluster.alone import Alone, NoPeers
from ydb_topic_front.service.read import balancer as read_balancer
from ydb_topic_front.service.read.balancer import STEP, Share
from ydb_topic_front.service.read.readers import Readers


class Reader:
    """Does as it is told, when :meth:`obey` says so."""

    def __init__(self, lab: Lab, partitions: Sequence[int] = ()) -> None:
        self.lab = lab
        self.partitions = partitions
        self.reads: set[int] = set()
        self.asked: list[int] = []
        self.ended: set[int] = set()

    def start(self, topic: str, partition: int) -> None:
        assert not any(partition in other.reads for other in self.lab.readers)
        assert not self.partitions or partition in self.partitions
        self.reads.add(partition)
        self.lab.moves += 1

    def let_go(self, topic: str, partition: int) -> None:
        assert partition in self.reads
        assert partition not in self.asked
        self.asked.append(partition)
        self.lab.moves += 1

    def has_read_all(self, topic: str, partition: int) -> bool:
        return partition in self.ended

    def obey(self) -> None:
        for partition in self.asked:
            self.reads.discard(partition)
            self.lab.share.released(self, partition)
        self.asked.clear()
        self.lab.changed()


class Lab:
    """A share that is balanced after every change, or ``in_turns``: when :meth:`step` says so."""

    def __init__(self, partitions: int, in_turns: bool = False) -> None:
        self.infos = [PartitionInfo(index, index) for index in range(partitions)]
        self.finished: set[int] = set()
        self.share: Share[Reader] = Share("t", lambda: self.infos, lambda info: info.index in self.finished)
        self.readers: list[Reader] = []
        self.in_turns = in_turns
        self.half_done: Iterator[None] | None = None
        self.moves = 0

    def step(self) -> bool:
        """One step of the balance that has begun, or of a new one; False if that was the last."""
        if self.half_done is None:
            self.half_done = self.share.balance()
        for _ in self.half_done:
            return True
        self.half_done = None
        return False

    def balance(self) -> None:
        while self.half_done is not None and self.step():
            pass
        while self.step():
            pass

    def changed(self) -> None:
        if not self.in_turns:
            self.balance()

    def join(self, *partitions: int) -> Reader:
        reader = Reader(self, partitions)
        self.readers.append(reader)
        self.share.join(reader, partitions)
        self.changed()
        return reader

    def leave(self, reader: Reader) -> None:
        self.readers.remove(reader)
        self.share.leave(reader)
        self.changed()

    def settle(self) -> None:
        self.in_turns = False
        self.balance()
        for _ in range(100):
            busy = [reader for reader in self.readers if reader.asked]
            if not busy:
                return
            for reader in busy:
                reader.obey()
        raise AssertionError("readers are asked for ever")

    def is_fair(self) -> None:
        everybody = [reader for reader in self.readers if not reader.partitions]
        for info in self.infos:
            takers = [reader for reader in self.readers if info.index in reader.reads]
            named = [reader for reader in self.readers if info.index in reader.partitions]
            assert len(takers) == (1 if everybody or named else 0)
            assert not named or takers[0] in named
            assert self.share.owner(info.index) is (takers[0] if takers else None)
        shares = [len(reader.reads) for reader in everybody]
        assert not shares or max(shares) - min(shares) <= 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "named", "leave", "obey", "grow", "silent", "heard", "step", "step"]),
        st.integers(0, 11),
    ),
    max_size=40,
)


@given(st.integers(0, 12), st.booleans(), STEPS)
def test_whoever_comes_and_goes(partitions: int, in_turns: bool, steps: list[tuple[str, int]]) -> None:
    with patch.object(read_balancer, "STEP", 2):
        lab = Lab(partitions, in_turns)
        for step, number in steps:
            if step == "join":
                lab.join()
            elif step == "named":
                lab.join(number, (number + 1) % 12)
            elif step == "grow":
                lab.infos.append(PartitionInfo(len(lab.infos), 0))
                lab.share.changed()
                lab.changed()
            elif step == "step":
                lab.step()
            elif lab.readers:
                reader = lab.readers[number % len(lab.readers)]
                if step == "leave":
                    lab.leave(reader)
                elif step == "heard":
                    lab.share.restore(reader)
                    lab.changed()
                else:
                    if step == "silent":
                        lab.share.demote(reader)
                    reader.obey()
        lab.settle()
        for reader in lab.readers:
            lab.share.restore(reader)
        lab.settle()
        lab.is_fair()


def test_no_step_depends_on_how_many_partitions_there_are() -> None:
    lab = Lab(10_000, in_turns=True)
    first = lab.join()

    def steps() -> int:
        taken, going = 0, True
        while going:
            before = lab.moves
            going = lab.step()
            taken += 1
            assert lab.moves - before <= STEP
        return taken

    assert steps() >= 10_000 // STEP
    assert len(first.reads) == 10_000
    second = lab.join()
    steps()
    assert len(first.asked) == 5_000
    lab.share.leave(first)
    lab.readers.remove(first)
    assert lab.share.owner(0) is None
    assert steps() >= 2 * 10_000 // STEP, "what it had is cleared away in steps, too"
    assert len(second.reads) == 10_000
    lab.is_fair()


class Looked(list[PartitionInfo]):
    """Counts how many partitions are looked at."""

    looked = 0

    def __getitem__(self, index: Any) -> Any:
        self.looked += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[PartitionInfo]:
        self.looked += len(self)
        return super().__iter__()


def test_a_session_costs_what_it_names_takes_or_had() -> None:
    lab = Lab(0)
    infos = lab.infos = Looked(PartitionInfo(index, index) for index in range(10_000))
    named = lab.join(7)
    assert named.reads == {7}
    everybody = [lab.join() for _ in range(100)]
    lab.settle()
    lab.is_fair()
    infos.looked = lab.moves = 0
    other = lab.join(9, 7)
    lab.settle()
    assert other.reads == {9}
    assert infos.looked < 10
    lab.leave(other)
    assert infos.looked < 10
    lab.is_fair()
    infos.looked = lab.moves = 0
    late = lab.join()
    lab.settle()
    assert 90 <= len(late.reads) <= 100
    assert lab.moves == 2 * len(late.reads), "let go once and begun once"
    assert infos.looked < 1000
    infos.looked = 0
    lab.leave(everybody.pop())
    assert infos.looked < 1000
    lab.is_fair()


def test_who_cannot_give_keeps_nobody_from_giving() -> None:
    """Two have children whose parent only they have read; the third gives of what else there is."""
    lab = Lab(0)
    lab.infos = [PartitionInfo(0, 0, sealed_epoch=1, end=5, children=(1, 2, 3))]
    lab.infos += [PartitionInfo(index, index, made_epoch=1, parents=(0,)) for index in (1, 2, 3)]
    lab.infos += [PartitionInfo(index, index) for index in range(4, 8)]
    first = lab.join()
    first.ended.add(0)
    lab.balance()
    assert len(first.reads) == 8
    second = lab.join()
    lab.settle()
    assert (first.reads, second.reads) == ({0, 1, 2, 3}, {4, 5, 6, 7})
    third = lab.join()
    lab.settle()
    assert first.reads == {0, 1, 2, 3}
    assert sorted(map(len, (second.reads, third.reads))) == [2, 2]
    lab.finished.add(0)
    lab.balance()
    lab.settle()
    assert sorted(len(reader.reads - {0}) for reader in lab.readers) == [2, 2, 3]


def test_what_was_left_undone_is_done_later() -> None:
    lab = Lab(10, in_turns=True)
    with patch.object(read_balancer, "STEP", 2):
        first = lab.join()
        lab.step()
        lab.half_done = None  # as if it had broken off
        lab.balance()
    assert first.reads == set(range(10))


async def test_others_have_their_turn_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand partitions go to two sessions in many turns of the event loop, and what comes meanwhile is seen."""
    partitions = [PartitionInfo(index, index) for index in range(10_000)]
    topic: Any = SimpleNamespace(name="t", partitions=partitions)
    service: Any = SimpleNamespace(
        node=SimpleNamespace(
            progress=Mock(),
            barrier=Barrier(),
            every=lambda *chore: None,
            owners=Alone(0, AsyncMock()),
            peers=NoPeers(),
            node_id=0,
        ),
        settings=SimpleNamespace(reader_patience_ms=1000, reader_answer_ms=1000),
        catalog=SimpleNamespace(on_change=[]),
        topics=SimpleNamespace(on_change=[]),
        loop=asyncio.get_running_loop(),
    )
    # Else it sleeps off what the first round has cost.
    monkeypatch.setattr("ydb_topic_front.service.read.readers.REST", 0)
    readers = Readers(service)
    lab = Lab(0)
    sessions = [Reader(lab), Reader(lab)]
    for number, session in enumerate(sessions):
        session.session_id, session.consumer, session.is_direct = str(number), "c", False  # type: ignore[attr-defined]
        readers.enter(session, [topic])  # type: ignore[arg-type]
    lab.readers = sessions
    readers.share(sessions[0], topic, ())  # type: ignore[arg-type]
    most = turns = 0
    while len(sessions[0].reads) < 10_000:
        before = lab.moves
        await asyncio.sleep(0)
        most, turns = max(most, lab.moves - before), turns + 1
    assert 0 < most <= STEP
    assert turns >= 10_000 // STEP
    readers.share(sessions[1], topic, ())  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        while len(sessions[0].asked) < 5_000:
            before = lab.moves
            await asyncio.sleep(0)
            assert lab.moves - before <= STEP
    assert not service.node.barrier.failures


def test_a_partition_moves_only_when_its_reader_has_let_go() -> None:
    lab = Lab(4)
    first = lab.join()
    assert first.reads == {0, 1, 2, 3}
    second = lab.join()
    assert (len(first.asked), second.reads) == (2, set())
    third = lab.join()
    assert len(first.asked) == 3
    first.obey()
    assert sorted(len(one.reads) for one in lab.readers) == [1, 1, 2]
    lab.leave(first)
    assert second.reads | third.reads == {0, 1, 2, 3}
    assert not second.asked
    assert not third.asked


def test_who_does_not_answer_gets_nothing_that_others_read_until_it_is_heard_of() -> None:
    lab = Lab(4)
    silent, other = lab.join(), lab.join()
    lab.settle()
    assert (len(silent.reads), len(other.reads)) == (2, 2)
    lab.share.demote(silent)
    silent.asked.extend(silent.reads)  # they are taken from it
    silent.obey()
    assert (silent.reads, other.reads) == (set(), {0, 1, 2, 3})
    lab.infos.append(PartitionInfo(4, 4))
    lab.share.changed()
    lab.balance()
    assert other.reads == {0, 1, 2, 3, 4}
    assert not other.asked
    lab.share.restore(silent)
    lab.settle()
    lab.is_fair()
    lab.share.demote(silent)
    lab.leave(other)
    assert silent.reads == {0, 1, 2, 3, 4}, "better it than nobody"


def test_who_does_not_answer_is_passed_over_also_for_what_it_has_named() -> None:
    lab = Lab(2)
    silent, named = lab.join(0, 1), lab.join(0)
    lab.settle()
    assert 1 in silent.reads
    lab.share.demote(silent)
    silent.asked.extend(silent.reads)
    silent.obey()
    assert (silent.reads, named.reads) == ({1}, {0}), "nobody else reads the one"
    lab.share.demote(silent)
    anybody = lab.join()
    silent.asked.append(1)
    silent.obey()
    assert anybody.reads == {1}
    lab.share.restore(silent)
    lab.settle()
    assert silent.reads == {1}


def test_who_named_a_partition_comes_first() -> None:
    lab = Lab(2)
    anybody = lab.join()
    named = lab.join(1)
    assert anybody.asked == [1]
    anybody.obey()
    assert (anybody.reads, named.reads) == ({0}, {1})
    lab.leave(named)
    assert anybody.reads == {0, 1}


def test_children_wait_for_their_parents() -> None:
    lab = Lab(1)
    lab.infos[0] = PartitionInfo(0, 0, sealed_epoch=1, end=10, children=(1, 2))
    lab.infos += [PartitionInfo(1, 1, parents=(0,)), PartitionInfo(2, 2, parents=(0,))]
    first, second = lab.join(), lab.join()
    assert (first.reads, second.reads) == ({0}, set())
    first.ended.add(0)
    lab.balance()
    assert (first.reads, first.asked) == ({0, 1, 2}, []), "in order only in the same hands"
    lab.finished.add(0)
    lab.balance()
    lab.settle()
    assert sorted([*first.reads - {0}, *second.reads]) == [1, 2]
    third = Lab(0)
    third.infos, third.finished = lab.infos, {0}
    assert third.join().reads == {1, 2}, "what is all committed is not read again"
