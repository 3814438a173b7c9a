"""Partition session of a read session: what was started, read, confirmed and asked to stop; no I/O."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from msgspec import Struct, field

from ydb_topic_front.session.commit_ranges import CommitRanges
from ydb_topic_front.session.direct_reads import DirectReads
from ydb_topic_front.session.read_data import Place
from ydb_topic_front.wire.statuses import bad_request


class ReadingState(Enum):
    OPENING = "opening"
    """The node determines where to begin."""
    STARTING = "starting"
    """The client was asked to start the partition session and has not answered."""
    ACTIVE = "active"
    STOPPING = "stopping"
    """The client was asked to stop: it gets nothing more, and may still commit."""


class Feed(Protocol):
    """Sender of a partition's data, to one stream of the client."""

    def add(self, reading: PartitionReading) -> None:
        """Send the partition's data as long as it may be sent."""

    def remove(self, reading: PartitionReading) -> None:
        """Send no more data of the partition."""

    async def await_idle(self) -> None:
        """Wait until nothing is being read of a partition that was removed."""


class PartitionReading(Struct, eq=False):
    """Partition session. ``session_id`` is unique in its stream; offsets are the log's."""

    session_id: int
    topic: str
    path: str
    partition: int
    state: ReadingState = ReadingState.OPENING
    commits: CommitRanges = field(default_factory=lambda: CommitRanges(0))
    stored: int = 0
    """The consumer's durable position; confirmed offsets may be ahead of it."""
    place: Place = field(default_factory=lambda: Place(0))
    not_before_ms: int = -1
    """Messages written before this time (ms since the epoch) are not sent."""
    max_lag_ms: int = -1
    """Messages written longer ago than this are not sent; -1: all are."""
    began_ms: int = 0
    last_read_ms: int = 0
    sent: int = 0
    """Number of messages sent."""
    sent_end: int = 0
    """Offset behind the last message that was sent, or where reading began."""
    end: int | None = None
    """The final end of a partition that has ended, once all of it was sent."""
    end_told: bool = False
    """Whether the client was told that the partition has ended, after all of its messages."""
    feed: Feed | None = None
    """Sender of its data; None if there is none yet, or no longer."""
    direct: DirectReads | None = None
    """Reads of a session with direct_read, from the time when the client was asked to start it."""

    @property
    def may_send(self) -> bool:
        """Return whether the client accepts data of the partition."""
        return self.state is ReadingState.ACTIVE and (self.direct is None or not self.direct.is_full)

    def started(self, read_offset: int | None, start_offset: int) -> None:
        """Handle the client's answer: it reads from ``read_offset`` if given, and not below ``start_offset``. Raises
        YdbError."""
        if self.state is ReadingState.STOPPING:
            return
        if self.state is not ReadingState.STARTING:
            raise bad_request(f"partition session {self.session_id} was started before")
        if read_offset is not None:
            if read_offset < self.commits.position:
                raise bad_request(f"offset {read_offset} lies before {self.commits.position}, which is committed")
            start_offset = max(start_offset, read_offset)
        self.place = Place(start_offset)
        self.sent_end = start_offset
        if self.direct is not None:
            self.direct.begin(self.place)
        self.state = ReadingState.ACTIVE
