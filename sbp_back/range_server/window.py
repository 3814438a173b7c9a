"""The append window of one range: which entries may be stored, and when they may be acknowledged. Sans-IO.

Rules: docs/protocols/sbp.md, "Append window", and "Ranges of a server" for entries in flight when the range is sealed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Generic, TypeVar

from sbp_back.errors import ErrorCode

W = TypeVar("W")

OK: int = int(ErrorCode.OK)

SUSPENDED = 0
"""Answer of :meth:`AppendWindow.commit`: it is not known yet whether the entry may be acknowledged."""

# Offsets from here on are refused, so that adding a record count (int32) can never leave int64.
OFFSET_LIMIT = (1 << 63) - (1 << 32)


class WindowState(IntEnum):
    """State of a window. ``CLOSING``: nothing new is let in while the record that seals the range (or deletes it) is
    being written.
    """

    OPEN = 0
    CLOSING = 1
    CLOSED = 2


class AppendWindow(Generic[W]):
    """The window of one range. Offsets below ``committed`` are durable without a gap; ``next`` is the only base that is
    let in (docs/design.md, "Backend", lists the other places that know a range's end, and why).

    For every entry that ``admit`` answered with OK, call exactly one of ``commit`` and ``fail``, in any order between
    entries. An entry that cannot be decided at once is parked with a token of the caller's (``W``), which comes back
    from :meth:`take_released`, :meth:`close` or :meth:`reopen` with the entry's final code.
    """

    __slots__ = ("_close_code", "_failed_at", "_inflight", "_state", "committed", "next", "parked", "poisoned")

    def __init__(self, offset: int) -> None:
        self.committed = offset
        self.next = offset
        self.poisoned = False
        """An entry became durable after one before it had failed: its place in the log must never be given again, so
        nothing more is let in and the range has to be sealed.
        """
        self._state = WindowState.OPEN
        self._close_code = OK
        self._inflight = 0
        self._failed_at: int | None = None
        self.parked: dict[int, tuple[int, W]] = {}
        """Entries to be decided, by base; callers only test whether there are any."""

    @property
    def state(self) -> WindowState:
        return self._state

    @property
    def inflight(self) -> int:
        return self._inflight

    def admit(self, base: int, count: int) -> int:
        """Return OK when the entry is the next of the range and must now be stored, else the code to refuse it with."""
        if base == self.next and self._state == 0 and self._failed_at is None:
            self.next = base + count
            self._inflight += 1
            return OK
        return self._refuse(base)

    def _refuse(self, base: int) -> int:
        if self._state != WindowState.OPEN:
            # While closing it is not certain that the range ends up sealed, but its writer has to stop anyway.
            return self._close_code
        if base < self.committed:
            return ErrorCode.APPEND_TO_COMMITTED_OFFSET
        if self._failed_at is not None:
            return ErrorCode.RS_INTERNAL_SERVER_ERROR
        if base < self.next:
            return ErrorCode.APPEND_TO_PENDING_OFFSET
        return ErrorCode.APPEND_TO_OVERTAKEN_OFFSET

    def commit(self, base: int, count: int) -> int:
        """Note that the entry is durable; return the code to answer it with, or SUSPENDED, after which :meth:`park`
        must be called.
        """
        self._inflight -= 1
        if self._state == 0 and self._failed_at is None:
            if base != self.committed:
                return SUSPENDED
            self.committed = base + count
            return OK
        return self._commit_exceptionally(base, count)

    def _commit_exceptionally(self, base: int, count: int) -> int:
        if self._state == WindowState.CLOSED:
            return self._close_code
        if self._state == WindowState.CLOSING:
            return SUSPENDED
        if self._failed_at is not None and base > self._failed_at:
            self.poisoned = True
            return ErrorCode.RS_INTERNAL_SERVER_ERROR
        if base != self.committed:
            return SUSPENDED
        self.committed = base + count
        self._recover()
        return OK

    def fail(self, base: int) -> None:
        """Note that the entry could not be stored: it never will be, and none after it can be acknowledged."""
        self._inflight -= 1
        if self._failed_at is None or base < self._failed_at:
            self._failed_at = base
        self._recover()

    def _recover(self) -> None:
        """Let entries in again once all those in flight at a failure are accounted for."""
        if self._failed_at is None or self._inflight or self.poisoned or self.parked:
            return
        self.next = self.committed
        self._failed_at = None

    def park(self, base: int, count: int, waiter: W) -> None:
        """Keep ``waiter`` for an entry whose commit was SUSPENDED."""
        self.parked[base] = (count, waiter)

    def take_released(self) -> list[tuple[W, int]]:
        """Return parked entries that are decided now, with their codes, in order of offset."""
        released: list[tuple[W, int]] = []
        if self._state == WindowState.CLOSING:
            return released
        parked = self.parked
        while self.committed in parked and (self._failed_at is None or self.committed < self._failed_at):
            count, waiter = parked.pop(self.committed)
            self.committed += count
            released.append((waiter, OK))
        if self._failed_at is not None:
            lost = sorted(base for base in parked if base > self._failed_at)
            self.poisoned = self.poisoned or bool(lost)
            released += [(parked.pop(base)[1], int(ErrorCode.RS_INTERNAL_SERVER_ERROR)) for base in lost]
            self._recover()
        return released

    def start_closing(self, code: int) -> None:
        """Answer ``code`` to new entries from now on; those in flight stay undecided until :meth:`close` or
        :meth:`reopen`.
        """
        self._state = WindowState.CLOSING
        self._close_code = code

    def close(self, end: int | None = None) -> list[tuple[W, int]]:
        """End the range at ``end`` (the committed offset when None) for good; return the entries parked meanwhile with
        the code of :meth:`start_closing`, which all later ones get too.
        """
        self._state = WindowState.CLOSED
        if end is not None:
            self.committed = min(self.committed, end)
        self.next = self.committed
        released = [(waiter, self._close_code) for _base, (_count, waiter) in sorted(self.parked.items())]
        self.parked.clear()
        return released

    def reopen(self) -> list[tuple[W, int]]:
        """Undo :meth:`start_closing`, since closing failed and left no trace; return the entries parked meanwhile,
        decided as if it had never begun.
        """
        self._state = WindowState.OPEN
        return self.take_released()
