"""What one reading session confirms, and how it becomes its consumer's position, durably."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from anabranch_kit.run.turns import Turns
from ydb_topic_front.service.read.chore import Chore, Work
from ydb_topic_front.service.read.session_states import RANGE_BYTES
from ydb_topic_front.session.partition_reading import PartitionReading, ReadingState
from ydb_topic_front.wire.messages import StreamReadFromServer
from ydb_topic_front.wire.statuses import Status, bad_request

if TYPE_CHECKING:
    from ydb_topic_front.service.read.answers import ReadAnswers
    from ydb_topic_front.service.read.partitions import ReadPartitions
    from ydb_topic_front.service.read.readers import Readers

RANGES_AT_ONCE = 500
"""Ranges, or partitions, that are dealt with in one turn of the event loop."""
_MOST_RANGES = 100_000
"""Commits of a session that wait for a hole before them to be filled."""


class ReadCommits:
    """The commits of one session; ``over`` tells whether others have its partitions by now."""

    def __init__(
        self,
        partitions: ReadPartitions,
        readers: Readers,
        answers: ReadAnswers,
        over: Callable[[], bool],
        wake: Callable[[], None],
        remember: Callable[[int], None],
        begin: Callable[[Work], None],
    ) -> None:
        self._remember = remember
        self._partitions = partitions
        self._readers = readers
        self._answers = answers
        self._over = over
        self._wake = wake
        self._ranges = 0  # of all partitions, with holes before them
        self._moved: dict[PartitionReading, None] = {}
        self._storing: frozenset[PartitionReading] = frozenset()
        self._storage = Chore(begin, self.store_all)

    @property
    def unsettled(self) -> bool:
        """Whether a position has yet to be stored."""
        return bool(self._moved or self._storing)

    def is_unsettled(self, reading: PartitionReading) -> bool:
        """Whether the position of this partition has yet to be stored."""
        return reading in self._moved or reading in self._storing

    def untie(self) -> None:
        """See :meth:`ydb_topic_front.service.read.partitions.ReadPartitions.untie`."""
        del self._over, self._storage

    # --- what is confirmed ------------------------------------------------------------------------------------------

    async def request(self, request: Any) -> None:
        """A ``CommitOffsetRequest``. Raises YdbError."""
        if not self._partitions.consumer:
            raise bad_request("without a consumer nothing can be committed")
        if not request.commit_offsets:
            raise bad_request("a commit of nothing")
        turns = Turns()
        for part in request.commit_offsets:
            if not part.offsets:
                raise bad_request("a commit of no offsets")
            for offsets in part.offsets:
                await turns.rest()
                reading = self._partitions.get(part.partition_session_id)
                if reading is not None:  # else it was stopped, and the client may not know yet
                    self.add(reading, offsets.start, offsets.end)

    def add(self, reading: PartitionReading, start: int, end: int) -> None:
        """The client has confirmed ``[start, end)``. Raises YdbError."""
        if reading.state is ReadingState.OPENING:
            raise bad_request(f"partition session {reading.session_id} was not started")
        log = self._partitions.log_of(reading)
        # What was sent is there, although this node may not have heard so since the partition's owner is another one.
        known = max(log.high_watermark, reading.place.offset)
        if log.is_open and end > known:
            raise bad_request(f"a commit up to {end} of partition {reading.partition}, which ends at {known}")
        commits = reading.commits
        before = len(commits)
        # What retention took was never sent, and is not for the client to confirm.
        commits.moved(min(start, log.log_start_offset))
        if commits.add(start, end):
            self._moved[reading] = None
            self._storage.want()
        self._count(len(commits) - before)
        self.pass_rest(reading)
        if self._ranges > _MOST_RANGES:
            self._forget_passed()
        if self._ranges > _MOST_RANGES:
            raise bad_request(f"there are more than {_MOST_RANGES} commits with holes before them")

    def pass_rest(self, reading: PartitionReading) -> None:
        """What lies behind the last message of a partition that has ended, as the marker of a transaction does, is not
        for the client to confirm: it has confirmed all when it has confirmed what it was sent."""
        end = self._partitions.log_of(reading).final_offset if self._partitions.consumer else None
        commits = reading.commits
        if end is not None and reading.place.offset >= end > commits.position >= reading.sent_end:
            commits.moved(end)
            self._moved[reading] = None
            self._storage.want()

    def _forget_passed(self) -> None:
        """Keep nothing of what others have passed (see :meth:`CommitRanges.forget_passed`)."""
        for reading in self._partitions.readings:
            before = len(reading.commits)
            reading.commits.forget_passed()
            self._count(len(reading.commits) - before)

    def _count(self, ranges: int) -> None:
        """There are so many ranges more, or fewer."""
        self._ranges += ranges
        if ranges:
            self._remember(ranges * RANGE_BYTES)

    def forget(self, reading: PartitionReading) -> None:
        """The client has let go of a partition: what it confirmed before is stored all the same."""
        self._count(-len(reading.commits))

    # --- what becomes of it -----------------------------------------------------------------------------------------

    async def store_all(self) -> None:
        """Store positions that have moved, many that are waiting at once, and tell the client."""
        partitions = self._partitions
        while True:
            await self._storage.wanted()
            if self._over():
                return
            if not self._moved:
                continue
            self._storing = frozenset(islice(self._moved, RANGES_AT_ONCE))
            for reading in self._storing:
                del self._moved[reading]
            if self._moved:
                self._storage.want()
            positions = {(one.topic, one.partition): one.commits.position for one in self._storing}
            stored = await self._readers.store(partitions.consumer, positions, lambda: not self._over())
            done, self._storing = self._storing, frozenset()
            for reading in done:
                self._catch_up(reading, stored[reading.topic, reading.partition])
            self._tell({one: stored[one.topic, one.partition] for one in done})
            for reading in done:
                if not partitions.has(reading) and reading not in self._moved:
                    partitions.release(reading)
                elif reading.end_told or partitions.log_of(reading).final_offset is not None:
                    self._readers.ended(partitions.consumer, reading.topic)
            self._wake()

    def stored_by_others(self, reading: PartitionReading, offset: int) -> None:
        """Somebody has stored a position on behalf of this session."""
        if self._catch_up(reading, offset):
            self._tell({reading: offset})

    def _catch_up(self, reading: PartitionReading, offset: int) -> bool:
        """The consumer's position is ``offset``, durably; whether that moved this session's. What the client has
        confirmed without a hole behind it is to be stored then."""
        before = len(reading.commits)
        moved = reading.commits.moved(offset)
        reading.stored = offset
        if moved and reading.commits.position > offset:
            self._moved[reading] = None
            self._storage.want()
        if self._partitions.has(reading):
            self._count(len(reading.commits) - before)
        return moved

    def _tell(self, positions: Mapping[PartitionReading, int]) -> None:
        message = StreamReadFromServer(status=Status.SUCCESS)
        response = message.commit_offset_response
        for reading, offset in positions.items():
            if self._partitions.has(reading):
                response.partitions_committed_offsets.add(
                    partition_session_id=reading.session_id, committed_offset=offset
                )
        if response.partitions_committed_offsets:
            self._answers.put(message)
