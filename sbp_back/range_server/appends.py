"""APPEND on a range server: entries of one request through their windows, into the store, and their answer.

The hot path of the backend. Its work is done per request and per entry without a task, a future or a closure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sbp_back.barrier import Barrier
from sbp_back.errors import NO_SPACE_DETAIL, DiskFull, ErrorCode, StoreError, StoreFailed
from sbp_back.range_server.ranges import RangeState
from sbp_back.range_server.window import OFFSET_LIMIT, OK, SUSPENDED
from sbp_back.transport.handler import Reply
from sbp_back.wire.entry import TELLING_PREFIX_BYTES
from sbp_back.wire.model import AppendRequest, AppendResponse, AppendResult, Entry, Status

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store

MAX_ENTRY_BYTES = 16 * 1024 * 1024 - 4096
"""An entry that came in a frame has to fit one together with the header of a FETCH response (reference/sbp.md, section
1.1)."""

UNKNOWN_BYTES = 1 << 40
"""Counted as arrived when it is not worth knowing how much did: waiting fetches then look for themselves."""

ParkedAppend = tuple["AppendCall", int]
"""A request whose answer waits for one of its entries, and the position of that entry."""

_MESSAGES = {
    ErrorCode.RANGE_NOT_FOUND: "there is no such range here",
    ErrorCode.RANGE_ALREADY_SEALED: "the range is sealed",
    ErrorCode.APPEND_TO_COMMITTED_OFFSET: "the offset is already committed",
    ErrorCode.APPEND_TO_PENDING_OFFSET: "the offset is being written",
    ErrorCode.APPEND_TO_OVERTAKEN_OFFSET: "an entry before this one is missing",
    ErrorCode.RS_INTERNAL_SERVER_ERROR: "an earlier append of the range failed",
}


def refusal(code: int, message: str = "", detail: bytes = b"") -> AppendResult:
    return AppendResult(Status(code, message or _MESSAGES.get(ErrorCode(code), ""), detail))


class Appends:
    """Takes APPEND requests; owned by the range server, which shares its ranges with it.

    ``wake`` is called for each range that has waiting fetches and got data, ``on_error`` when the store has failed.
    The counters only grow.
    """

    __slots__ = ("_ranges", "_store", "barrier", "entries", "failed", "latency_seconds", "on_error", "requests", "wake")

    def __init__(
        self,
        ranges: Mapping[tuple[int, int], RangeState],
        store: Store,
        wake: Callable[[RangeState], None],
        on_error: Callable[[StoreError], None],
        barrier: Barrier,
    ) -> None:
        self.barrier = barrier
        self._ranges = ranges
        self._store = store
        self.wake = wake
        self.on_error = on_error
        self.requests = 0
        self.entries = 0
        self.failed = 0
        self.latency_seconds = 0.0

    def handle(self, request: AppendRequest, reply: Reply) -> None:
        """All entries pass their windows, in order, before the first is stored (reference/sbp.md, section 2.2)."""
        entries = request.entries
        if request.confirmed:
            self._told(request.confirmed)
        if not entries:
            reply(AppendResponse())
            return
        most = MAX_ENTRY_BYTES if request.framed else self.most_unframed
        accepted, states, positions, refused = self.admit(entries, most)
        call = AppendCall(self, reply, len(entries), accepted, states, positions, refused)
        if accepted:
            self._store.append(accepted, call.stored)
        else:
            call.answer()

    @property
    def most_unframed(self) -> int:
        """Bytes of the longest payload that comes in no frame."""
        return self._store.largest_entry - TELLING_PREFIX_BYTES

    def admit(
        self, entries: list[Entry], most: int, states: list[RangeState] | None = None
    ) -> tuple[list[Entry], list[RangeState], list[int] | None, dict[int, AppendResult] | None]:
        """Let ``entries`` of at most ``most`` bytes through their windows: (those to be stored, their ranges, their
        positions, the refusals of the others by position); without the last two when there are no others.
        ``states``: of the first entries, if these were let in already."""
        ranges = self._ranges
        states = [] if states is None else states
        refused: dict[int, AppendResult] | None = None
        for position in range(len(states), len(entries)):
            entry = entries[position]
            state = ranges.get((entry.stream_id, entry.range_index))
            if (
                state is not None
                and entry.count > 0
                and len(entry.payload) <= most
                and state.window.admit(entry.base_offset, entry.count) == OK
            ):
                # Before anything is stored, or an entry could be shown before it is known that its writer tells.
                if entry.confirmed > state.told:
                    state.told = entry.confirmed
                states.append(state)
                continue
            if refused is None:
                refused = {}
            refused[position] = self._refuse(state, entry, most)
        self.requests += 1
        self.entries += len(entries)
        if refused is None:
            return entries, states, None, None
        self.failed += 1
        positions = [position for position in range(len(entries)) if position not in refused]
        return [entries[position] for position in positions], states, positions, refused

    def _told(self, confirmed: Sequence[tuple[int, int, int]]) -> None:
        """A writer says how far it knows its ranges to be durable: that much may be shown to anybody. Of a range whose
        entries say nothing of the kind it is not believed: it would hide what is there."""
        for stream_id, index, offset in confirmed:
            state = self._ranges.get((stream_id, index))
            if state is not None and 0 <= state.told < offset:
                state.told = offset
                if state.waiters:
                    state.arrived += UNKNOWN_BYTES
                    self.barrier.call("waking readers", self.wake, state)

    def _refuse(self, state: RangeState | None, entry: Entry, most: int) -> AppendResult:
        if entry.count <= 0 or entry.base_offset < 0:
            return refusal(ErrorCode.BAD_REQUEST, f"base offset {entry.base_offset}, {entry.count} records")
        if len(entry.payload) > most:
            return refusal(ErrorCode.PAYLOAD_TOO_LARGE, f"an entry may have {most} bytes")
        if state is None:
            return refusal(ErrorCode.RANGE_NOT_FOUND)
        if entry.base_offset > OFFSET_LIMIT:
            return refusal(ErrorCode.OFFSET_OVERFLOW, "the offset is beyond what a range can hold")
        # Nothing was let in, so asking again gives the same answer as the first time.
        code = state.window.admit(entry.base_offset, entry.count)
        if code == ErrorCode.APPEND_TO_COMMITTED_OFFSET:
            bounds = self._store.batch_bounds(state.stream_id, state.index, entry.base_offset)
            if bounds is not None and bounds != (entry.base_offset, entry.end_offset):
                # A writer may take 1464 for success; it must not when what is there is another batch.
                return refusal(
                    ErrorCode.BAD_REQUEST,
                    f"the offset lies in the committed batch {bounds[0]}..{bounds[1]}, which is a different one",
                )
        return refusal(code)


class AppendCall:
    """One request between the store and its answer."""

    __slots__ = (
        "_appends",
        "_entries",
        "_pending",
        "_positions",
        "_refused",
        "_reply",
        "_started",
        "_states",
        "_total",
    )

    def __init__(
        self,
        appends: Appends,
        reply: Reply,
        total: int,
        entries: list[Entry],
        states: list[RangeState],
        positions: list[int] | None,
        refused: dict[int, AppendResult] | None,
    ) -> None:
        self._appends = appends
        self._reply = reply
        self._total = total
        self._entries = entries
        self._states = states
        self._positions = positions
        self._refused = refused
        self._pending = 0
        self._started = time.monotonic()

    def stored(self, error: StoreError | None) -> None:
        """What the store calls when the entries are durable, or are not going to be."""
        if error is not None:
            self._fail(error)
            return
        self.stored_from(0)

    def stored_from(self, first: int, code: int | None = None) -> None:
        """The entries are durable. Those before the one at ``first`` are committed already, and that one with ``code``,
        if it is given."""
        waited: list[RangeState] = []
        released: list[tuple[ParkedAppend, int]] = []
        for index in range(first, len(self._entries)):
            state, entry = self._states[index], self._entries[index]
            window = state.window
            if code is None:
                code = window.commit(entry.base_offset, entry.count)
            if code == OK:
                if state.waiters:
                    # What may be shown now was stored before, unless the writer tells nothing.
                    state.arrived += entry.size if entry.confirmed < 0 else UNKNOWN_BYTES
                    waited.append(state)
                if window.parked:
                    released += window.take_released()
                    if state.waiters:
                        state.arrived += UNKNOWN_BYTES
            elif code == SUSPENDED:
                self._pending += 1
                window.park(entry.base_offset, entry.count, (self, self._position(index)))
            else:
                self._refuse(self._position(index), refusal(code))
            code = None
        if self._pending == 0:
            self.answer()
        if released:
            release(released)
        for state in dict.fromkeys(waited):
            self._appends.barrier.call("waking readers", self._appends.wake, state)

    def _fail(self, error: StoreError) -> None:
        if isinstance(error, StoreFailed):
            self._appends.on_error(error)
        self._appends.failed += 1
        # A writer gives up after a failure, but not for want of room: it must be able to tell them apart.
        detail = NO_SPACE_DETAIL if isinstance(error, DiskFull) else b""
        released: list[tuple[ParkedAppend, int]] = []
        for index, (state, entry) in enumerate(zip(self._states, self._entries, strict=True)):
            # A request larger than a segment is stored in parts, and the error may concern the later ones only.
            if state.stored.next_offset >= entry.end_offset:
                code = state.window.commit(entry.base_offset, entry.count)
                if code == SUSPENDED:
                    self._pending += 1
                    state.window.park(entry.base_offset, entry.count, (self, self._position(index)))
                elif code != OK:
                    self._refuse(self._position(index), refusal(code))
            else:
                state.window.fail(entry.base_offset)
                self._refuse(self._position(index), refusal(ErrorCode.RS_INTERNAL_SERVER_ERROR, str(error), detail))
            released += state.window.take_released()
        if self._pending == 0:
            self.answer()
        release(released)

    def decided(self, position: int, code: int) -> None:
        """A parked entry has its code."""
        if code != OK:
            self._refuse(position, refusal(code))
        self._pending -= 1
        if self._pending == 0:
            self.answer()

    def answer(self) -> None:
        """Results are positional; entries that are stored share one result object."""
        success = AppendResult(Status(), int(time.time() * 1000))
        results = [success] * self._total
        if self._refused is not None:
            for position, result in self._refused.items():
                results[position] = result
        self._appends.latency_seconds += time.monotonic() - self._started
        # In one go with this others are answered, whose entries became durable at the same moment.
        try:
            self._reply(AppendResponse(results=results))
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self._appends.barrier.caught("reply", error)

    def _position(self, index: int) -> int:
        return index if self._positions is None else self._positions[index]

    def _refuse(self, position: int, result: AppendResult) -> None:
        if self._refused is None:
            self._refused = {}
        self._refused[position] = result


def release(released: list[tuple[ParkedAppend, int]]) -> None:
    """Tell the requests of entries that were parked what became of them."""
    for (call, position), code in released:
        call.decided(position, code)
