"""An open transaction: the writes that are staged in it, and the positions that it will move."""

from __future__ import annotations

from bisect import bisect_right
from typing import ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from bridges.catalog.progress import Move
from bridges.catalog.views.groups import Place
from bridges.formats.ydb import without_first
from bridges.log.transactions.open_transaction import OpenTransaction
from ydb_topic_front.service.transactions.tables import Part, Reader, Row, State, encode_readers
from ydb_topic_front.wire.statuses import Status, YdbError, bad_request

RANGE_BYTES = 100
"""Memory of a range of offsets."""


class StagedWrite(Struct, array_like=True, frozen=True):
    """Messages of a part of a WriteRequest, for the session and transaction that they belong to."""

    session: str
    transaction: str
    topic: str
    topic_id: bytes
    partition: int
    producer: bytes
    meta: bytes
    codec: int
    seq_nos: list[int]
    max_created_ms: int
    messages: bytes

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    def without_first(self, count: int) -> StagedWrite:
        """Return the write without its first ``count`` messages."""
        left = bytes(without_first(self.messages, count))
        return replace(self, seq_nos=self.seq_nos[count:], messages=left)


class Transaction(OpenTransaction, kw_only=True):
    """A transaction of a session. Nobody but its coordinator knows of it until ``state`` is stored with its commit."""

    fences: ClassVar[bool] = True

    id: str
    session: str
    producer: tuple[int, int] = (-1, -1)
    state: State = State.OPEN
    closing: bool = False
    """Whether it takes no more writes and positions, because it is being committed."""
    begun_here: bool = True
    """Whether this node began it: another node may use the producer of a transaction that was taken over again."""
    size: int = 0
    """Bytes of memory that it holds."""
    writes: dict[Place, list[StagedWrite]] = field(default_factory=dict)
    last: dict[tuple[Place, bytes], int] = field(default_factory=dict)
    """Last staged seq_no of each of YDB's producers in a partition."""
    ranges: dict[str, dict[Place, list[tuple[int, int]]]] = field(default_factory=dict)
    """Disjoint ranges of read offsets in their order, by consumer and partition."""
    parts: list[Part] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)

    @property
    def producer_id(self) -> int:
        return self.producer[0]

    @property
    def marker_epoch(self) -> int:
        # The producer's next epoch: from this marker on, logs refuse batches that were on their way.
        return self.producer[1] + 1

    @property
    def commits(self) -> bool:
        return self.state is State.COMMITTING

    @property
    def about(self) -> dict[str, object]:
        return {"transaction": self.id}

    def row(self, state: State) -> Row:
        """Return the transaction's row in the database, with a decision."""
        return Row(self.id, self.session, *self.producer, int(state), encode_readers(self.readers))

    # --- writes -----------------------------------------------------------------------------------------------------

    def count_known(self, write: StagedWrite) -> int:
        """Return the number of first messages whose seq_nos the producer has staged before."""
        if not write.producer:
            return 0
        return bisect_right(write.seq_nos, self.last.get((write.place, write.producer), 0))

    def stage(self, write: StagedWrite) -> None:
        """Stage messages, all of them new."""
        self.writes.setdefault(write.place, []).append(write)
        if write.producer:
            self.last[write.place, write.producer] = write.seq_nos[-1]

    def parts_of_writes(self) -> list[Part]:
        """Return what the staged writes are, by partition and producer."""
        named = [Part(*place, producer, last) for (place, producer), last in self.last.items()]
        nameless = {write.place for writes in self.writes.values() for write in writes if not write.producer}
        return named + [Part(*place, b"", 0) for place in sorted(nameless)]

    # --- positions --------------------------------------------------------------------------------------------------

    def add_range(self, consumer: str, place: Place, start: int, end: int) -> None:
        """Add a range of offsets that a consumer has read. Raises YdbError."""
        if not 0 <= start < end:
            raise bad_request(f"a range of offsets [{start}, {end}) holds no offset")
        ranges = self.ranges.setdefault(consumer, {}).setdefault(place, [])
        index = bisect_right(ranges, (start, end))
        if (index and ranges[index - 1][1] > start) or (index < len(ranges) and ranges[index][0] < end):
            raise bad_request(f"offset ranges intersect: [{start}, {end}) of partition {place[1]}")
        if index and ranges[index - 1][1] == start:
            index -= 1
            start = ranges.pop(index)[0]
        if index < len(ranges) and ranges[index][0] == end:
            end = ranges.pop(index)[1]
        ranges.insert(index, (start, end))

    def moves(self) -> dict[str, list[Move]]:
        """Return how positions move at the commit, by consumer. Raises YdbError if a partition's ranges have a hole."""
        found: dict[str, list[Move]] = {}
        for consumer, places in self.ranges.items():
            for (topic, partition), ranges in places.items():
                if len(ranges) > 1:
                    message = f"the offsets of '{consumer}' in partition {partition} are not one range"
                    raise YdbError(Status.ABORTED, message)
                found.setdefault(consumer, []).append((topic, partition, *ranges[0]))
        return found
