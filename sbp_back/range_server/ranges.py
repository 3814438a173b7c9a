"""What a range server keeps in memory of one range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbp_back.model import RangeInfo
from sbp_back.range_server.window import AppendWindow, WindowState

if TYPE_CHECKING:
    from sbp_back.range_server.appends import ParkedAppend
    from sbp_back.range_server.fetches import Fetch


class RangeState:
    """A range that exists here: OPEN, or SEALED once ``end`` is not negative (reference/sbp.md, section 2.7).

    ``start`` is where the range began, ``min_offset`` the first offset still to be had. ``waiters`` are fetches that
    wait for data; ``arrived`` counts the bytes committed since they were last looked at.
    """

    __slots__ = ("arrived", "end", "epoch", "index", "min_offset", "start", "stream_id", "waiters", "window")

    def __init__(
        self, stream_id: int, index: int, epoch: int, start: int, min_offset: int, next_offset: int, end: int
    ) -> None:
        self.stream_id = stream_id
        self.index = index
        self.epoch = epoch
        self.start = start
        self.min_offset = min_offset
        self.end = end
        self.window: AppendWindow[ParkedAppend] = AppendWindow(next_offset)
        self.waiters: dict[Fetch, None] = {}  # a dict as an ordered set
        self.arrived = 0

    @property
    def sealed(self) -> bool:
        return self.end >= 0

    @property
    def confirm_offset(self) -> int:
        """All below it is durable here and may be read."""
        return self.end if self.end >= 0 else self.window.committed

    @property
    def writable(self) -> bool:
        return self.end < 0 and self.window.state == WindowState.OPEN

    def info(self) -> RangeInfo:
        """As told to others: what was trimmed away is no part of the range."""
        start = max(self.start, self.min_offset)
        if self.end >= 0:
            start = min(start, self.end)
        return RangeInfo(self.stream_id, self.epoch, self.index, start, self.end)


class RangeTable:
    """The ranges of a server. ``by_key`` is for the hot paths to look up in; add and remove only through here."""

    __slots__ = ("_by_stream", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[tuple[int, int], RangeState] = {}
        self._by_stream: dict[int, dict[int, RangeState]] = {}

    def add(self, state: RangeState) -> None:
        self.by_key[state.stream_id, state.index] = state
        self._by_stream.setdefault(state.stream_id, {})[state.index] = state

    def remove(self, state: RangeState) -> None:
        del self.by_key[state.stream_id, state.index]
        of_stream = self._by_stream[state.stream_id]
        del of_stream[state.index]
        if not of_stream:
            del self._by_stream[state.stream_id]

    def of_stream(self, stream_id: int) -> list[RangeState]:
        """In order of index."""
        return [state for _index, state in sorted(self._by_stream.get(stream_id, {}).items())]

    def stream_ids(self) -> list[int]:
        return list(self._by_stream)
