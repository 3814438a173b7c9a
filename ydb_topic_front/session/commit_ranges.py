"""Offset ranges that a reader confirms in any order; the position advances as far as there is no hole."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from ydb_topic_front.wire.statuses import bad_request

MOST_RANGES = 10_000
"""Most ranges of one partition that wait for a hole before them to be filled."""


class CommitRanges:
    """Confirmed offsets of one partition in one session (docs/protocols/ydb.md, "Commits")."""

    __slots__ = ("_ends", "_own", "_starts", "position")

    def __init__(self, committed: int) -> None:
        self.position = committed
        """Next offset to confirm: all before it are confirmed, by this session or by others."""
        # This session itself confirmed everything below _own (or it was committed before the session began), and the
        # ranges. Ranges may lie below the position, with holes that others have passed and this session may still fill.
        self._own = committed
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> bool:
        """Confirm ``[start, end)``; return whether the position moved. Raises YdbError for offsets that were confirmed
        before."""
        if not 0 <= start < end:
            raise bad_request(f"a commit of [{start}, {end}) holds no offset")
        if start < self._own:
            raise bad_request(f"a commit from offset {start}, where everything below {self._own} was committed before")
        index = bisect_left(self._starts, start)
        if index and self._ends[index - 1] > start:
            raise bad_request(f"offset {start} is committed twice")
        if index < len(self._starts) and self._starts[index] < end:
            raise bad_request(f"offset {self._starts[index]} is committed twice")
        if index and self._ends[index - 1] == start:
            index -= 1
            self._ends[index] = end
        else:
            if len(self._starts) >= MOST_RANGES:
                self.forget_passed()
                index = bisect_left(self._starts, start)
                if len(self._starts) >= MOST_RANGES and start > self.position:
                    raise bad_request(f"there are {MOST_RANGES} ranges of commits with holes between them")
            self._starts.insert(index, start)
            self._ends.insert(index, end)
        if index + 1 < len(self._starts) and self._starts[index + 1] == self._ends[index]:
            self._ends[index] = self._ends.pop(index + 1)
            del self._starts[index + 1]
        return self._advance()

    def moved(self, position: int) -> bool:
        """Note that others have committed up to ``position``; return whether that moved this session's position."""
        if position <= self.position:
            return False
        self.position = position
        self._advance()
        return True

    def forget_passed(self) -> None:
        """Drop the ranges below the position. The only loss is that a second commit of them is no longer refused."""
        passed = bisect_right(self._ends, self.position)
        del self._starts[:passed], self._ends[:passed]

    def _advance(self) -> bool:
        """Advance the position through the range it lies in, and ``_own`` through the range that begins at it; return
        whether the position moved. One range each suffices: adjacent ranges are merged."""
        before = self.position
        index = bisect_right(self._ends, before)
        if index < len(self._starts) and self._starts[index] <= before:
            self.position = self._ends[index]
        if self._starts and self._starts[0] == self._own:
            self._own = self._ends.pop(0)
            del self._starts[0]
        return self.position > before
