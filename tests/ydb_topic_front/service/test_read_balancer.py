"""Partitions are shared among readers: each has one, all are read, and nobody has two more than another."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bridges.catalog.lineage import PartitionInfo
from ydb_topic_front.service.read_balancer import Share


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

    def let_go(self, topic: str, partition: int) -> None:
        assert partition in self.reads
        assert partition not in self.asked
        self.asked.append(partition)

    def has_read_all(self, topic: str, partition: int) -> bool:
        return partition in self.ended

    def obey(self) -> None:
        for partition in self.asked:
            self.reads.discard(partition)
            self.lab.share.released(self, partition)
        self.asked.clear()
        self.lab.share.balance()


class Lab:
    def __init__(self, partitions: int) -> None:
        self.infos = [PartitionInfo(index, index) for index in range(partitions)]
        self.finished: set[int] = set()
        self.share = Share("t", lambda: self.infos, lambda info: info.index in self.finished)
        self.readers: list[Reader] = []

    def join(self, *partitions: int) -> Reader:
        reader = Reader(self, partitions)
        self.readers.append(reader)
        self.share.join(reader, partitions)
        self.share.balance()
        return reader

    def leave(self, reader: Reader) -> None:
        self.readers.remove(reader)
        self.share.leave(reader)
        self.share.balance()

    def settle(self) -> None:
        for _ in range(100):
            busy = [reader for reader in self.readers if reader.asked]
            if not busy:
                return
            for reader in busy:
                reader.obey()
        raise AssertionError("readers are asked for ever")


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.sampled_from(["join", "named", "leave", "obey", "grow"]), st.integers(0, 11)), max_size=25),
)
def test_whoever_comes_and_goes(partitions: int, steps: list[tuple[str, int]]) -> None:
    lab = Lab(partitions)
    for step, number in steps:
        if step == "join":
            lab.join()
        elif step == "named":
            lab.join(number, (number + 1) % 12)
        elif step == "grow":
            lab.infos.append(PartitionInfo(len(lab.infos), 0))
            lab.share.balance()
        elif lab.readers:
            reader = lab.readers[number % len(lab.readers)]
            lab.leave(reader) if step == "leave" else reader.obey()
    lab.settle()
    everybody = [reader for reader in lab.readers if not reader.partitions]
    for info in lab.infos:
        takers = [reader for reader in lab.readers if info.index in reader.reads]
        named = [reader for reader in lab.readers if info.index in reader.partitions]
        assert len(takers) == (1 if everybody or named else 0)
        assert not named or takers[0] in named
    shares = [len(reader.reads) for reader in everybody]
    assert not shares or max(shares) - min(shares) <= 1


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
    lab.share.balance()
    assert (first.reads, first.asked) == ({0, 1, 2}, []), "in order only in the same hands"
    lab.finished.add(0)
    lab.share.balance()
    lab.settle()
    assert sorted([*first.reads - {0}, *second.reads]) == [1, 2]
    third = Lab(0)
    third.infos, third.finished = lab.infos, {0}
    assert third.join().reads == {1, 2}, "what is all committed is not read again"
