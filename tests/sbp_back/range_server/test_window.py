"""The append window against a model that keeps every entry it ever let in, and nothing clever."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbp_back.errors import ErrorCode
from sbp_back.range_server.window import OK, SUSPENDED, AppendWindow, WindowState
from tests.depth import examples

SEALED = int(ErrorCode.RANGE_ALREADY_SEALED)
LOST = int(ErrorCode.RS_INTERNAL_SERVER_ERROR)


@dataclass
class Sent:
    """An entry the window let in. ``stored``: what the store said (None: nothing yet). ``code``: what its writer was
    told (None: nothing yet)."""

    base: int
    count: int
    stored: bool | None = None
    code: int | None = None

    @property
    def end(self) -> int:
        return self.base + self.count


class WindowMachine(RuleBasedStateMachine):
    @initialize(start=st.integers(0, 5))
    def begin(self, start: int) -> None:
        self.start = start
        self.window: AppendWindow[Sent] = AppendWindow(start)
        self.sent: list[Sent] = []
        self.closed_at: int | None = None

    # --- what the model knows ---------------------------------------------------------------------------------------

    def acked_end(self) -> int:
        """End of the prefix that was acknowledged."""
        return max((s.end for s in self.sent if s.code == OK), default=self.start)

    def open_entries(self) -> list[Sent]:
        return [s for s in self.sent if s.stored is None]

    def settle(self, sent: Sent, code: int) -> None:
        assert sent.code is None, "an entry is decided once"
        sent.code = code

    def release(self, released: list[tuple[Sent, int]]) -> None:
        assert [s.base for s, _ in released if _ == OK] == sorted(s.base for s, _ in released if _ == OK)
        for sent, code in released:
            self.settle(sent, code)

    # --- rules ------------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def append_next(self, count: int) -> None:
        code = self.window.admit(self.window.next, count)
        if code == OK:
            assert self.window.state == WindowState.OPEN
            self.sent.append(Sent(self.window.next - count, count))
        elif self.window.state == WindowState.OPEN:
            # The one reason to refuse the right base: a failed entry whose consequences are still open.
            assert code == LOST
            assert self.window.poisoned or any(s.stored is False for s in self.sent)
        else:
            assert code == SEALED

    @rule(distance=st.integers(-8, 8).filter(bool), count=st.integers(1, 3))
    def append_elsewhere(self, distance: int, count: int) -> None:
        base = self.window.next + distance
        before = (self.window.next, self.window.committed, self.window.inflight)
        code = self.window.admit(base, count)
        assert (self.window.next, self.window.committed, self.window.inflight) == before
        if self.window.state != WindowState.OPEN:
            assert code == SEALED
        elif base < self.acked_end():
            assert code == ErrorCode.APPEND_TO_COMMITTED_OFFSET
        elif code != LOST:
            expected = ErrorCode.APPEND_TO_PENDING_OFFSET if distance < 0 else ErrorCode.APPEND_TO_OVERTAKEN_OFFSET
            assert code == expected

    @precondition(lambda self: self.open_entries())
    @rule(data=st.data())
    def store_one(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.open_entries()))
        sent.stored = True
        code = self.window.commit(sent.base, sent.count)
        if code == SUSPENDED:
            self.window.park(sent.base, sent.count, sent)
        else:
            self.settle(sent, code)
        self.release(self.window.take_released())

    @precondition(lambda self: self.open_entries())
    @rule(data=st.data())
    def fail_one(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.open_entries()))
        sent.stored = False
        self.window.fail(sent.base)
        self.settle(sent, LOST)
        self.release(self.window.take_released())

    @precondition(lambda self: self.window.state == WindowState.OPEN)
    @rule()
    def start_closing(self) -> None:
        self.window.start_closing(SEALED)
        self.closed_at = self.window.committed

    @precondition(lambda self: self.window.state == WindowState.CLOSING)
    @rule()
    def close(self) -> None:
        self.release(self.window.close())
        assert self.window.committed == self.closed_at

    @precondition(lambda self: self.window.state == WindowState.CLOSING)
    @rule()
    def reopen(self) -> None:
        self.closed_at = None
        self.release(self.window.reopen())

    # --- what must always hold --------------------------------------------------------------------------------------

    @invariant()
    def acknowledged_is_a_durable_prefix(self) -> None:
        acked = sorted((s for s in self.sent if s.code == OK), key=lambda s: s.base)
        position = self.start
        for sent in acked:
            assert sent.base == position, "acknowledged entries leave no gap and do not overlap"
            assert sent.stored is True
            position = sent.end
        assert self.window.committed == position

    @invariant()
    def nothing_is_acknowledged_from_the_seal_on(self) -> None:
        if self.closed_at is not None:
            assert self.acked_end() == self.closed_at

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """An entry that is stored but undecided has an open predecessor, or the seal is being written."""
        if self.window.state == WindowState.CLOSING:
            return
        for sent in self.sent:
            if sent.stored and sent.code is None:
                assert any(s.base < sent.base for s in self.open_entries())
        if not self.open_entries():
            assert all(s.code is not None for s in self.sent)
            assert self.window.inflight == 0

    @invariant()
    def a_window_that_is_at_rest_takes_the_next_entry(self) -> None:
        if self.window.state == WindowState.OPEN and not self.open_entries() and not self.window.poisoned:
            assert self.window.next == self.window.committed

    @invariant()
    def no_place_in_the_log_is_given_twice(self) -> None:
        """A stored entry that was not acknowledged must never share its offsets with one stored later."""
        durable = sorted((s.base, s.end) for s in self.sent if s.stored)
        for (_, end), (base, _) in pairwise(durable):
            assert end <= base


WindowMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestWindow = WindowMachine.TestCase


def test_the_common_case_in_order() -> None:
    window: AppendWindow[None] = AppendWindow(10)
    assert window.admit(10, 2) == OK
    assert window.admit(12, 1) == OK
    assert window.admit(11, 1) == ErrorCode.APPEND_TO_PENDING_OFFSET
    assert window.commit(10, 2) == OK
    assert window.admit(11, 1) == ErrorCode.APPEND_TO_COMMITTED_OFFSET
    assert window.admit(20, 1) == ErrorCode.APPEND_TO_OVERTAKEN_OFFSET
    assert window.commit(12, 1) == OK
    assert (window.committed, window.next) == (13, 13)


def test_an_entry_that_overtakes_waits_for_its_predecessors() -> None:
    window: AppendWindow[str] = AppendWindow(0)
    for base in range(3):
        window.admit(base, 1)
    for base in (2, 1):
        assert window.commit(base, 1) == SUSPENDED
        window.park(base, 1, f"w{base}")
        assert window.take_released() == []
    assert window.commit(0, 1) == OK
    assert window.take_released() == [("w1", OK), ("w2", OK)]


def test_a_failed_entry_takes_its_successors_along_and_poisons_the_range_if_one_was_stored() -> None:
    window: AppendWindow[None] = AppendWindow(0)
    for base in range(3):
        window.admit(base, 1)
    window.fail(0)
    assert window.admit(3, 1) == LOST
    window.fail(1)
    assert window.commit(2, 1) == LOST
    assert window.poisoned
    assert window.admit(0, 1) == LOST


def test_after_a_failure_without_consequences_writing_goes_on() -> None:
    window: AppendWindow[None] = AppendWindow(0)
    window.admit(0, 1)
    window.admit(1, 1)
    window.fail(0)
    assert window.admit(0, 1) == LOST, "the second entry may still become durable"
    window.fail(1)
    assert window.admit(0, 1) == OK
