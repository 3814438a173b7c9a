"""One partition as one reading session sees it: what was started, read, confirmed and asked to stop; no I/O."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from ydb_topic_front.session.commit_ranges import CommitRanges
from ydb_topic_front.session.read_data import Place
from ydb_topic_front.wire.statuses import bad_request


class ReadingState(Enum):
    OPENING = "opening"
    """The node looks where to begin."""
    STARTING = "starting"
    """The client was asked to start it and has not answered."""
    ACTIVE = "active"
    STOPPING = "stopping"
    """The client was asked to let go of it: it gets nothing more, and may still commit."""


class PartitionReading(Struct, eq=False):
    """A partition session. ``session_id`` is unique in its stream; offsets are those of the log."""

    session_id: int
    topic: str
    path: str
    partition: int
    state: ReadingState = ReadingState.OPENING
    commits: CommitRanges = field(default_factory=lambda: CommitRanges(0))
    stored: int = 0
    """The consumer's position that is durable; what was confirmed may be ahead of it."""
    place: Place = field(default_factory=lambda: Place(0))
    not_before_ms: int = -1
    """What was written before this is not sent."""
    max_lag_ms: int = -1
    """What was written longer ago than this is not sent; -1: anything is."""
    began_ms: int = 0
    last_read_ms: int = 0
    sent: int = 0
    """Messages."""
    sent_end: int = 0
    """Behind the last message that was sent, or where reading began."""
    end_told: bool = False
    """The client knows that the partition has ended, and has got all of it."""

    @property
    def may_send(self) -> bool:
        """Whether the client takes data of it."""
        return self.state is ReadingState.ACTIVE

    def started(self, read_offset: int | None, start_offset: int) -> None:
        """The client has answered: it reads from ``read_offset``, if it says so, and not below ``start_offset``.

        Raises YdbError.
        """
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
        self.state = ReadingState.ACTIVE
