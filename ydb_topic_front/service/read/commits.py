"""Commits of one read session: collects the offsets its client confirms and stores them durably as the consumer's
position."""

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

RANGES_PER_TRANSACTION = 500
"""Most partitions whose positions are stored together."""
_MOST_RANGES = 100_000
"""Most ranges of one session that wait for a hole before them to be filled."""


class ReadCommits:
    """Commits of one session. ``over`` returns whether the session has ended, so that others may have its
    partitions."""

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
        self._ranges = 0  # ranges with a hole before them, of all partitions
        self._moved: dict[PartitionReading, None] = {}
        self._storing: frozenset[PartitionReading] = frozenset()
        self._storage = Chore(begin, self.store_all)

    @property
    def unsettled(self) -> bool:
        """Return whether any position has yet to be stored."""
        return bool(self._moved or self._storing)

    def is_unsettled(self, reading: PartitionReading) -> bool:
        """Return whether the position of this partition has yet to be stored."""
        return reading in self._moved or reading in self._storing

    def untie(self) -> None:
        """See :meth:`ydb_topic_front.service.read.partitions.ReadPartitions.untie`."""
        del self._over, self._storage

    # --- confirmed offsets ------------------------------------------------------------------------------------------

    async def request(self, request: Any) -> None:
        """Handle a ``CommitOffsetRequest``. Raises YdbError."""
        if not self._partitions.consumer:
            raise bad_request("a session without a consumer cannot commit: name one in the init_request")
        if not request.commit_offsets:
            raise bad_request("commit_offset_request has no commit_offsets")
        turns = Turns()
        for part in request.commit_offsets:
            if not part.offsets:
                raise bad_request("commit_offset_request has no offsets")
            for offsets in part.offsets:
                await turns.rest()
                reading = self._partitions.get(part.partition_session_id)
                if reading is not None:  # else the partition session was stopped, and the client may not know yet
                    self.add(reading, offsets.start, offsets.end)

    def add(self, reading: PartitionReading, start: int, end: int) -> None:
        """Record that the client has confirmed ``[start, end)``. Raises YdbError."""
        if reading.state is ReadingState.OPENING:
            raise bad_request(f"partition session {reading.session_id} was not started")
        log = self._partitions.log_of(reading)
        # The partition's owner may be another node, so this node's high watermark may lag behind what was sent.
        known = max(log.high_watermark, reading.place.offset)
        if log.is_open and end > known:
            raise bad_request(f"a commit up to {end} of partition {reading.partition}, which ends at {known}")
        commits = reading.commits
        before = len(commits)
        # Trimmed records were never sent, so the client does not confirm them.
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
        """Move the position to the end of a partition that has ended, once the client has confirmed every message it
        was sent. Behind the last message there may be records that clients never see, such as a transaction's
        marker."""
        end = self._partitions.end_of(reading) if self._partitions.consumer else None
        commits = reading.commits
        if end is not None and reading.place.offset >= end > commits.position >= reading.sent_end:
            commits.moved(end)
            self._moved[reading] = None
            self._storage.want()

    def _forget_passed(self) -> None:
        """Drop the ranges that others have committed past (see :meth:`CommitRanges.forget_passed`)."""
        for reading in self._partitions.readings:
            before = len(reading.commits)
            reading.commits.forget_passed()
            self._count(len(reading.commits) - before)

    def _count(self, ranges: int) -> None:
        """Add ``ranges``, which may be negative, to the number of waiting ranges, and count their memory."""
        self._ranges += ranges
        if ranges:
            self._remember(ranges * RANGE_BYTES)

    def forget(self, reading: PartitionReading) -> None:
        """Stop counting a partition that the client has let go of. Positions it confirmed before are still stored."""
        self._count(-len(reading.commits))

    # --- storing them -----------------------------------------------------------------------------------------------

    async def store_all(self) -> None:
        """Store moved positions, up to :data:`RANGES_PER_TRANSACTION` together, and tell the client. Runs until the
        session ends."""
        partitions = self._partitions
        while True:
            await self._storage.await_work()
            if self._over():
                return
            if not self._moved:
                continue
            self._storing = frozenset(islice(self._moved, RANGES_PER_TRANSACTION))
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
                elif partitions.end_of(reading) is not None:
                    self._readers.ended(partitions.consumer, reading.topic)
            self._wake()

    def stored_by_others(self, reading: PartitionReading, offset: int, *, tell: bool) -> None:
        """Follow a position that another call has stored on behalf of this session, and ``tell`` the client."""
        if self._catch_up(reading, offset) and tell:
            self._tell({reading: offset})

    def _catch_up(self, reading: PartitionReading, offset: int) -> bool:
        """Note that the consumer's durable position is ``offset``; return whether that moved this session's. Offsets
        that the client has confirmed without a hole behind it are queued to be stored."""
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
