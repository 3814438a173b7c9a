"""APPEND on a range server: entries of one request go through their windows into the store, and are answered.

The hot path of the backend. It works per request and per entry without a task, a future or a closure. Writers in this
process take the same path with the entries they have gathered (``local_appends.py``). The states of an
:class:`AppendCall`:

| state | since | what it has | it ends with |
|---|---|---|---|
| arrived | the request is there | ``entries``: all | :meth:`Appends.admit`, which asks each window |
| in the store | entries were let in | these, with their ``states``; refusals of the rest | :meth:`AppendCall.stored` |
| committed | they are durable | the code of each, by its window | :meth:`AppendCall.settle`, at once |
| failed | the store refused any of them | refusals; durable entries are committed | ``_fail``, at once |
| suspended | a window is being closed, or lacks an earlier entry | ``_pending`` | :meth:`AppendCall.decided`, each |
| answered | nothing is pending | | :meth:`AppendCall.answer`, once |

The entries of a request are answered together. Durable entries of local writers are settled with their replicas at
once, without waiting for the others, which become a call of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.errors import DiskFull, StoreError, StoreFailed
from anabranch_kit.run.barrier import Barrier
from sbp_back.errors import NO_SPACE_DETAIL, ErrorCode
from sbp_back.range_server.ranges import RangeState
from sbp_back.range_server.window import OFFSET_LIMIT, OK, SUSPENDED
from sbp_back.transport.handler import Reply
from sbp_back.wire.entry import TELLING_PREFIX_BYTES
from sbp_back.wire.frame import crc32
from sbp_back.wire.model import AppendRequest, AppendResponse, AppendResult, Entry, Status

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store

MAX_ENTRY_BYTES = 16 * 1024 * 1024 - 4096
"""An entry that came in a frame has to fit one together with the header of a FETCH response (docs/protocols/sbp.md,
"Frame")."""

UNKNOWN_BYTES = 1 << 40
"""Arrived bytes when their number does not matter: waiting fetches then look for themselves."""

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

    ``wake`` is called for each range that has waiting fetches and got data, ``on_error`` when the store has failed. The
    counters only grow.
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
        """Serve a request. All entries pass their windows, in order, before the first is stored (docs/protocols/sbp.md,
        "Append window").
        """
        entries = request.entries
        if request.confirmed:
            self._note_confirmed(request.confirmed)
        if not entries:
            reply(AppendResponse())
            return
        most = MAX_ENTRY_BYTES if request.framed else self.most_unframed
        ranges = self._ranges
        states = [ranges.get((entry.stream_id, entry.range_index)) for entry in entries]
        call = AppendCall(self, reply, entries, entries, time.monotonic())
        self.admit(call, states, most)
        if call.entries:
            self._store.append(call.entries, call.stored)
        else:
            call.answer()

    @property
    def most_unframed(self) -> int:
        """Return the bytes of the longest payload that comes without a frame."""
        return self._store.largest_entry - TELLING_PREFIX_BYTES

    def admit(self, call: AppendCall, states: list[RangeState | None], most: int) -> int:
        """Pass the entries of ``call``, of at most ``most`` bytes each, through their windows; ``states``: their
        ranges, where the caller knows them. Return the bytes of the entries to be stored; the call records refusals of
        the others.
        """
        entries = call.asked
        refused: dict[int, AppendResult] = {}
        admitted = call.states
        size = 0
        for entry, state in zip(entries, states, strict=True):
            length = len(entry.payload)
            if (
                state is None
                or entry.count < 1
                or length > most
                or state.window.admit(entry.base_offset, entry.count) != OK
            ):
                # The caller's state may be stale: the range may have been replaced by now.
                state = self._ranges.get((entry.stream_id, entry.range_index))
                result = self._refusal(state, entry, most)
                if state is None or result is not None:
                    refused[len(admitted) + len(refused)] = result or refusal(ErrorCode.RANGE_NOT_FOUND)
                    continue
            # Before anything is stored: readers could otherwise see an entry before we know that its writer confirms.
            if entry.confirmed > state.told:
                state.told = entry.confirmed
            if entry.crc < 0:
                entry.crc = crc32(entry.payload, crc32(entry.prefix))
            size += len(entry.prefix) + length
            admitted.append(state)
        self.requests += 1
        self.entries += len(entries)
        if refused:
            self.failed += 1
            call.refuse(refused)
        return size

    def _note_confirmed(self, confirmed: Sequence[tuple[int, int, int]]) -> None:
        """Note how far a writer knows its ranges to be durable: readers may see that much. Ignored for a range whose
        entries carry no such offset: it would hide data.
        """
        for stream_id, index, offset in confirmed:
            state = self._ranges.get((stream_id, index))
            if state is not None and 0 <= state.told < offset:
                state.told = offset
                if state.waiters:
                    state.arrived += UNKNOWN_BYTES
                    self.barrier.call("waking readers", self.wake, state)

    def _refusal(self, state: RangeState | None, entry: Entry, most: int) -> AppendResult | None:
        """Return why an entry is not let in; None when it is."""
        if entry.count <= 0 or entry.base_offset < 0:
            return refusal(ErrorCode.BAD_REQUEST, f"base offset {entry.base_offset}, {entry.count} records")
        if len(entry.payload) > most:
            return refusal(ErrorCode.PAYLOAD_TOO_LARGE, f"an entry may have {most} bytes")
        if state is None:
            return refusal(ErrorCode.RANGE_NOT_FOUND)
        if entry.base_offset > OFFSET_LIMIT:
            return refusal(ErrorCode.OFFSET_OVERFLOW, "the offset is beyond what a range can hold")
        code = state.window.admit(entry.base_offset, entry.count)
        if code == OK:
            return None
        if code == ErrorCode.APPEND_TO_COMMITTED_OFFSET:
            bounds = self._store.batch_bounds(state.stream_id, state.index, entry.base_offset)
            if bounds is not None and bounds != (entry.base_offset, entry.end_offset):
                # A writer may take 1464 for success. It must not when another batch has the offset.
                return refusal(
                    ErrorCode.BAD_REQUEST,
                    f"the offset lies in the committed batch {bounds[0]}..{bounds[1]}, which is a different one",
                )
        return refusal(code)


class AppendCall(Struct, eq=False):
    """One request between the store and its answer.

    ``asked``: its entries; ``entries``: those that were let in (at ``positions``, unless that is all), and ``states``
    the ranges that let them in, as they were then: entries in flight are settled there, even if the range was replaced
    since. ``refused``: results by position. ``pending``: number of parked entries.
    """

    appends: Appends
    reply: Reply | None
    asked: list[Entry]
    entries: list[Entry]
    started: float
    states: list[RangeState] = []
    positions: list[int] | None = None
    refused: dict[int, AppendResult] | None = None
    pending: int = 0

    def refuse(self, refused: dict[int, AppendResult]) -> None:
        """Record refusals, by the positions of their entries."""
        self.refused = refused
        self.positions = [position for position in range(len(self.asked)) if position not in refused]
        self.entries = [self.asked[position] for position in self.positions]

    def stored(self, error: StoreError | None) -> None:
        """Settle the entries: the store calls this when they are durable (``error`` None), or will not be.

        All entries are committed before any is acknowledged, so a client that hears of a stored batch can read it.
        """
        if error is not None:
            self._fail(error)
            return
        others: list[tuple[int, int]] = []
        waited: list[RangeState] = []
        released: list[tuple[ParkedAppend, int]] = []
        entries = self.entries
        for index, state in enumerate(self.states):
            entry = entries[index]
            window = state.window
            code = window.commit(entry.base_offset, entry.count)
            if code != OK:
                others.append((index, code))
                continue
            if state.waiters:
                # New entries are not visible yet, earlier ones are now; unless the writer never confirms.
                state.arrived += UNKNOWN_BYTES if entry.confirmed >= 0 or window.parked else entry.size
                waited.append(state)
            if window.parked:
                released += window.take_released()
        self.settle(others)
        if released:
            release(released)
        for state in dict.fromkeys(waited) if waited else ():
            self.appends.barrier.call("waking readers", self.appends.wake, state)

    def settle(self, others: list[tuple[int, int]]) -> None:
        """Acknowledge all entries, which are durable, except ``others``: indexes of entries, and their codes."""
        for index, code in others:
            self._settle(index, code)
        if self.pending == 0:
            self.answer()

    def _settle(self, index: int, code: int) -> None:
        if code == SUSPENDED:
            self.pending += 1
            entry = self.entries[index]
            self.states[index].window.park(entry.base_offset, entry.count, (self, self._position(index)))
        elif code != OK:
            self._refuse(self._position(index), refusal(code))

    def _fail(self, error: StoreError) -> None:
        if isinstance(error, StoreFailed):
            self.appends.on_error(error)
        self.appends.failed += 1
        # A writer gives up after a failure, but not for want of room: it must be able to tell them apart.
        detail = NO_SPACE_DETAIL if isinstance(error, DiskFull) else b""
        released: list[tuple[ParkedAppend, int]] = []
        for index, (state, entry) in enumerate(zip(self.states, self.entries, strict=True)):
            # A request larger than a segment is stored in parts, and the error may concern only the later parts.
            if state.stored.next_offset >= entry.end_offset:
                self._settle(index, state.window.commit(entry.base_offset, entry.count))
            else:
                state.window.fail(entry.base_offset)
                self._refuse(self._position(index), refusal(ErrorCode.RS_INTERNAL_SERVER_ERROR, str(error), detail))
            released += state.window.take_released()
        if self.pending == 0:
            self.answer()
        release(released)

    def decided(self, position: int, code: int) -> None:
        """Take the code of a parked entry."""
        if code != OK:
            self._refuse(position, refusal(code))
        self.pending -= 1
        if self.pending == 0:
            self.answer()

    def answer(self) -> None:
        """Answer the request. Results are positional; entries that are stored share one result object."""
        success = AppendResult(Status(), int(time.time() * 1000))
        results = [success] * len(self.asked)
        if self.refused is not None:
            for position, result in self.refused.items():
                results[position] = result
        self.appends.latency_seconds += time.monotonic() - self.started
        # One call answers several requests whose entries became durable together: a failure here must not stop them.
        try:
            self.deliver(AppendResponse(results=results))
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self.appends.barrier.caught("reply", error)

    def deliver(self, response: AppendResponse) -> None:
        if self.reply is not None:
            self.reply(response)

    def _position(self, index: int) -> int:
        return index if self.positions is None else self.positions[index]

    def _refuse(self, position: int, result: AppendResult) -> None:
        if self.refused is None:
            self.refused = {}
        self.refused[position] = result


def release(released: list[tuple[ParkedAppend, int]]) -> None:
    """Tell the requests of parked entries the codes of these."""
    for (call, position), code in released:
        call.decided(position, code)
