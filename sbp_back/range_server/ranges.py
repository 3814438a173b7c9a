"""In-memory state of the ranges of a range server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from sbp_back.errors import ErrorCode
from sbp_back.range_server.window import AppendWindow, WindowState
from sbp_back.wire.model import RangeInfo

if TYPE_CHECKING:
    from sbp_back.range_server.appends import ParkedAppend
    from sbp_back.range_server.fetches import Fetch
    from sbp_back.range_server.store.index import StoredRange


logger = logging.getLogger(__name__)

TELLS_NOTHING = -1
NOT_LOOKED_UP = -2


class RangeState:
    """A range that exists here: OPEN, or SEALED once ``end`` is not negative (docs/protocols/sbp.md, "Ranges of a
    server").

    ``stored`` is its durable part; the store keeps it up to date, also when it trims to save space. ``waiters`` are
    fetches that wait for data; ``arrived`` counts the bytes committed since they were last evaluated. ``told``: the
    writer has confirmed that everything below is durable; -1 for a writer that never confirms, -2 when it has to be
    read from the last entry first. ``decided``: the end comes from the placement driver. ``asking``: callbacks that
    wait for the placement driver to promise that the range goes as far as it does here; ``checking``: whether a check
    is scheduled that asks for this promise if it is needed.
    """

    __slots__ = (
        "arrived",
        "asking",
        "checking",
        "decided",
        "index",
        "stored",
        "stream_id",
        "told",
        "waiters",
        "window",
    )

    def __init__(self, stored: StoredRange) -> None:
        self.stream_id = stored.stream_id
        self.index = stored.index
        self.stored = stored
        self.window: AppendWindow[ParkedAppend] = AppendWindow(stored.next_offset)
        if stored.end >= 0:
            self.window.start_closing(ErrorCode.RANGE_ALREADY_SEALED)
            self.window.close(stored.end)
        self.waiters: dict[Fetch, None] = {}  # a dict as an ordered set
        self.arrived = 0
        self.told = NOT_LOOKED_UP if stored.next_offset > stored.start else TELLS_NOTHING
        self.decided = False
        self.asking: list[Callable[[], None]] | None = None
        self.checking = False

    @property
    def sealed(self) -> bool:
        return self.stored.end >= 0

    @property
    def confirm_offset(self) -> int:
        """Return the offset below which everything is durable here."""
        end = self.stored.end
        return end if end >= 0 else self.window.committed

    @property
    def shown_offset(self) -> int:
        """Return the offset below which readers may see everything: it stays whatever becomes of the range. A writer
        may yet give up what is durable here but was not confirmed to it; the placement driver decides that, too.
        """
        confirmed = self.confirm_offset
        if self.told == TELLS_NOTHING or (self.decided and self.stored.end >= 0):
            return confirmed
        return min(self.told, confirmed)

    @property
    def writable(self) -> bool:
        return self.stored.end < 0 and self.window.state == WindowState.OPEN

    def decide(self, end: int) -> None:
        """Take the placement driver's word that the range ends at ``end``; log for the operator when there is less
        here.
        """
        self.decided = True
        here = self.confirm_offset
        if here < end:
            lost = f"offsets {here} to {end - 1} of stream {self.stream_id} are lost: range {self.index} ends at {end}"
            logger.error("%s for the placement driver, and the log here has nothing of it from %d on", lost, here)

    def info(self) -> RangeInfo:
        """Describe the range to others: without what was trimmed away."""
        stored = self.stored
        start = max(stored.start, stored.min_offset)
        if stored.end >= 0:
            start = min(start, stored.end)
        return RangeInfo(self.stream_id, stored.epoch, self.index, start, stored.end)


class RangeTable:
    """The ranges of a server. ``by_key`` is for lookups of the hot paths; add and remove only through the methods."""

    __slots__ = ("_by_stream", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[tuple[int, int], RangeState] = {}
        self._by_stream: dict[int, dict[int, RangeState]] = {}

    def add(self, state: RangeState) -> None:
        self.by_key[state.stream_id, state.index] = state
        self._by_stream.setdefault(state.stream_id, {})[state.index] = state

    def remove(self, state: RangeState) -> None:
        """Remove a range. Idempotent."""
        if self.by_key.get((state.stream_id, state.index)) is not state:
            return
        del self.by_key[state.stream_id, state.index]
        of_stream = self._by_stream[state.stream_id]
        del of_stream[state.index]
        if not of_stream:
            del self._by_stream[state.stream_id]

    def remove_dropped(self) -> list[RangeState]:
        """Remove the ranges that the store gave up by itself; return them."""
        dropped = [state for state in self.by_key.values() if state.stored.dropped]
        for state in dropped:
            self.remove(state)
        return dropped

    def of_stream(self, stream_id: int) -> list[RangeState]:
        """Return the ranges of a stream in order of index."""
        states = sorted(self._by_stream.get(stream_id, {}).items())
        return [state for _index, state in states if not state.stored.dropped]

    def stream_ids(self) -> list[int]:
        return list(self._by_stream)
