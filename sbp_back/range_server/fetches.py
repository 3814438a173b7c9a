"""FETCH on a range server, with long poll (docs/protocols/sbp.md, "Ranges of a server").

A fetch that finds too little becomes a waiter: an object on its range and in the table of deadlines, without a task or
a timer of its own. After every change of the range it is evaluated from the start again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.errors import StoreCorrupt, StoreError
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.deadlines import Deadlines
from sbp_back.errors import ErrorCode
from sbp_back.range_server.ranges import NOT_LOOKED_UP, RangeState
from sbp_back.range_server.window import OFFSET_LIMIT
from sbp_back.transport.handler import DEFECT, Reply
from sbp_back.wire.model import Entry, FetchRequest, FetchResponse, ObjectMetadata, Status

if TYPE_CHECKING:
    import asyncio

    from sbp_back.range_server.store import Store

MAX_FETCH_BYTES = 16 * 1024 * 1024 - 4096
"""Leaves room for the header of the response in a frame (docs/protocols/sbp.md, "Frame")."""


_MOST_OBJECTS = 100
"""Most objects in one answer."""

Settle = Callable[[RangeState, Callable[[], None]], None]
"""Asks the placement driver to decide that the data of a range here is part of its stream; calls back with or without
its answer.
"""


class FetchLimits(Struct):
    """Limits of fetches. ``default_bytes`` serves a request that names no ``max_bytes``; ``max_wait_ms`` caps the wait
    of a request; past ``max_waiting`` waiting requests a further one is answered at once. ``settle_seconds``: in which
    a writer has to confirm durable data that a reader waits for, before the placement driver is asked.
    ``hold_seconds``: for which a fetch that does not wait for data is held at most, until readers may see what was
    durable when it came.
    """

    default_bytes: int = 1024 * 1024
    max_wait_ms: int = 5 * 60 * 1000
    max_waiting: int = 100_000
    settle_seconds: float = 1.0
    hold_seconds: float = 3.0


class Fetches:
    """Takes FETCH requests; owned by the range server, which shares its ranges with it. ``settle``: None as long as
    there is no placement driver to ask.
    """

    __slots__ = (
        "_deadlines",
        "_limits",
        "_loop",
        "_ranges",
        "_stopping",
        "_store",
        "barrier",
        "failed",
        "requests",
        "settle",
    )

    def __init__(
        self,
        ranges: Mapping[tuple[int, int], RangeState],
        store: Store,
        limits: FetchLimits,
        loop: asyncio.AbstractEventLoop,
        barrier: Barrier,
    ) -> None:
        self.barrier = barrier
        self._ranges = ranges
        self._store = store
        self._limits = limits
        self._loop = loop
        self._deadlines: Deadlines[Fetch] = Deadlines(loop, Fetch.expire, barrier)
        self._stopping = False
        self.settle: Settle | None = None
        self.requests = 0
        self.failed = 0

    @property
    def waiting(self) -> int:
        return len(self._deadlines)

    def handle(self, request: FetchRequest, reply: Reply) -> None:
        self.requests += 1
        Fetch(self, request, reply).evaluate()

    def wake(self, state: RangeState) -> None:
        """Evaluate the waiting fetches that the new data may be enough for."""
        waiters, state.waiters = state.waiters, {}
        arrived, state.arrived = state.arrived, 0
        ready = []
        for fetch in waiters:
            fetch.missing -= arrived
            if fetch.missing <= 0:
                ready.append(fetch)
            else:
                state.waiters[fetch] = None
        for fetch in ready:
            self._deadlines.remove(fetch)
            fetch.evaluate()

    def wake_all(self, state: RangeState) -> None:
        """Evaluate all waiting fetches: the range was sealed or deleted, or its writer rejected."""
        waiters, state.waiters = state.waiters, {}
        state.arrived = 0
        for fetch in waiters:
            self._deadlines.remove(fetch)
            fetch.evaluate()

    def hidden(self, state: RangeState) -> None:
        """Note that a fetch waits for data that is durable but not confirmed. Its writer usually confirms it soon; if
        not, the placement driver is asked.
        """
        if self.settle is None or state.checking:
            return
        state.checking = True
        self._loop.call_later(self._limits.settle_seconds, self._check, state, state.told)

    def _check(self, state: RangeState, told: int) -> None:
        state.checking = False
        if self._stopping or self.settle is None or state.stored.dropped or state.shown_offset >= state.confirm_offset:
            return
        if state.told == told:
            self.settle(state, lambda: None)
        elif state.waiters:
            self.hidden(state)

    def stop_waiting(self) -> None:
        """Answer every waiting fetch with what there is, and let no fetch wait any more: the server shuts down."""
        self._stopping = True
        for fetch in self._deadlines.clear():
            fetch.expire()

    def abort(self, status: Status) -> None:
        """Answer every waiting fetch with ``status``."""
        for state in self._ranges.values():
            state.waiters = {}
        for fetch in self._deadlines.clear():
            fetch.answer(status)


class Fetch:
    """One request. ``missing``: bytes that have to arrive before it is worth evaluating again."""

    __slots__ = (
        "_deadline",
        "_fetches",
        "_held",
        "_limit",
        "_reply",
        "_request",
        "_reserved",
        "_state",
        "_wait_ms",
        "_watched",
        "missing",
    )

    _reply: Reply | None

    def __init__(self, fetches: Fetches, request: FetchRequest, reply: Reply) -> None:
        self._fetches = fetches
        self._request = request
        self._reply = reply
        self._state: RangeState | None = None
        self._limit = 0
        self._wait_ms = max(0, min(request.max_wait_ms, fetches._limits.max_wait_ms))  # below 0: time is up
        self._deadline = 0.0
        self._held = -1  # offset that a fetch is held for although it does not wait for data
        self._reserved = 0  # for the bytes that the store is reading
        self._watched = False
        self.missing = 0

    def answer(
        self, status: Status, entries: list[Entry] | None = None, objects: list[ObjectMetadata] | None = None
    ) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            try:
                reply(FetchResponse(status, entries or [], objects=objects or []))
            except Exception as error:  # noqa: BLE001 - logged and counted there
                self._fetches.barrier.caught("reply", error)

    def _refuse(self, code: ErrorCode, message: str) -> None:
        self._fetches.failed += 1
        self.answer(Status(code, message))

    def evaluate(self) -> None:
        """Answer, wait, or have the store read, as the range is now. Never raises: other fetches are evaluated next."""
        self._guard(self._evaluate)

    def _guard(self, step: Callable[..., None], *args: object) -> None:
        try:
            step(*args)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self._fetches.barrier.caught("fetch", error)
            self._leave()
            self.answer(DEFECT)

    def _abandoned(self) -> None:
        """End the fetch: the requester no longer waits for the answer."""
        self._leave()
        self.answer(Status(ErrorCode.NO_NEW_RECORD))

    def _leave(self) -> None:
        """Stop waiting."""
        if self._state is not None:
            self._state.waiters.pop(self, None)
        self._fetches._deadlines.remove(self)

    def _evaluate(self) -> None:
        request = self._request
        wanted = request.range
        if request.room is not None and request.room.gone:
            self.answer(Status(ErrorCode.NO_NEW_RECORD))
            return
        state = self._fetches._ranges.get((wanted.stream_id, wanted.index))
        self._state = state
        if state is None or state.stored.dropped:
            self._refuse(ErrorCode.RANGE_NOT_FOUND, f"no range {wanted.index} of stream {wanted.stream_id} here")
            return
        offset = request.offset
        stored = state.stored
        if offset < stored.min_offset:
            self._refuse(
                ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, f"offset {offset} is below the first one, {stored.min_offset}"
            )
        elif 0 <= stored.end <= offset:
            self._refuse(
                ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, f"offset {offset} is not below the range's end, {stored.end}"
            )
        elif offset > state.window.next and stored.end < 0:
            self._refuse(ErrorCode.OFFSET_OVERFLOW, f"offset {offset} is beyond the next one, {state.window.next}")
        else:
            if state.told == NOT_LOOKED_UP and offset < state.confirm_offset and self._bound(state) < 0:
                self._look_up(state)
                return
            limit = self._bound(state)
            if request.max_bytes == 0:
                found = self._fetches._store.range_objects(*stored.key, offset, limit, _MOST_OBJECTS)
                self.answer(Status(), objects=found)
            elif offset < limit:
                self._limit = limit
                self._read_from(state, offset)
            elif self._knows_limit and request.limit <= offset:
                # More data would not be below the limit either.
                self.answer(Status(ErrorCode.NO_NEW_RECORD))
            else:
                hidden = limit < state.confirm_offset
                if hidden:
                    self._fetches.hidden(state)
                if not self._wait(state, max(1, request.min_bytes), hold=hidden):
                    self.answer(Status(ErrorCode.NO_NEW_RECORD))

    def _read_from(self, state: RangeState, offset: int) -> None:
        size = self._max_bytes()
        room = self._request.room
        if room is not None:
            # At least one entry is read, however long it is.
            least = max(1, state.stored.bytes_at(offset))
            most = max(size, least)
            size = self._reserved = room.reserve(most, least)
            if not size:
                room.wait(most, least, self.evaluate)
                return
        received = partial(self._guard, self._received)
        self._fetches._store.read(state.stream_id, state.index, offset, self._limit, size, received)

    def _settle(self, used: int, entries: int = 0) -> None:
        """Count ``used`` of the reserved bytes as part of the answer."""
        reserved, self._reserved = self._reserved, 0
        if self._request.room is not None:
            self._request.room.settle(reserved, used, entries)

    @property
    def _knows_limit(self) -> bool:
        # A client that must give a limit but has none gives the largest number.
        return 0 <= self._request.limit < OFFSET_LIMIT

    def _bound(self, state: RangeState) -> int:
        """Return the offset up to which this request may see the range; below 0 when that has to be looked up."""
        if self._knows_limit:
            return min(self._request.limit, state.confirm_offset)
        return state.shown_offset

    def _confirmed(self, state: RangeState) -> int:
        """Return the offset up to which it might see the range if the writer had confirmed everything durable."""
        return min(self._request.limit, state.confirm_offset) if self._knows_limit else state.confirm_offset

    def _look_up(self, state: RangeState) -> None:
        """Read how far the writer has confirmed a range that is older than this process: the range's last entry says
        so.
        """
        stored = state.stored
        end = state.confirm_offset
        offset = max(end - 1, stored.min_offset)

        def learned(entries: list[Entry] | StoreError) -> None:
            if isinstance(entries, StoreError):
                self._read_failed(entries)
                return
            if state.told == NOT_LOOKED_UP:
                # Without an entry everything is trimmed away, so nothing can be shown.
                state.told = entries[-1].confirmed if entries else end
            settle = self._fetches.settle
            if settle is not None and state.shown_offset < state.confirm_offset:
                # The writer may have gone, so ask the placement driver for the rest.
                settle(state, self.evaluate)
            else:
                self.evaluate()

        found = partial(self._guard, learned)
        if offset >= end:
            found([])
        else:
            self._fetches._store.read(state.stream_id, state.index, offset, end, 1, found)

    def _max_bytes(self) -> int:
        wanted = self._request.max_bytes
        return min(wanted, MAX_FETCH_BYTES) if wanted > 0 else self._fetches._limits.default_bytes

    def _received(self, result: list[Entry] | StoreError) -> None:
        state = self._state
        request = self._request
        if isinstance(result, StoreError):
            self._settle(0)
            self._read_failed(result)
            return
        if request.room is not None:
            self._settle(sum(entry.size for entry in result), len(result))
        if not result:
            # Sealed to a lower end while the store was reading.
            self.answer(Status(ErrorCode.NO_NEW_RECORD))
            return
        if self._wait_ms == 0 and state is not None and self._bound(state) < self._confirmed(state):
            size = sum(entry.size for entry in result)
            last = result[-1].end_offset >= self._limit
            if last and size < self._max_bytes() and self._wait(state, 1, hold=True):
                self._settle(-size)
                return
        if self._wait_ms > 0 and request.min_bytes > 1 and state is not None and not state.sealed:
            size = 0
            for entry in result:
                size += entry.size
            # Had max_bytes cut the answer short, there would be more below the limit: then it is full enough.
            whole = bool(result) and result[-1].end_offset >= self._limit
            final = self._knows_limit and request.limit <= self._limit
            if whole and size < min(request.min_bytes, self._max_bytes()) and not final:
                if self._bound(state) > self._limit:
                    self._settle(-size)
                    self.evaluate()  # more was committed while the store was reading
                    return
                if self._wait(state, request.min_bytes - size):
                    self._settle(-size)
                    return
        self.answer(Status(), result)

    def _read_failed(self, error: StoreError) -> None:
        state = self._state
        if state is not None and (state.stored.dropped or self._request.offset < state.stored.min_offset):
            self.evaluate()  # trimmed or deleted while the store was reading: report that, not a missing file
            return
        corrupt = isinstance(error, StoreCorrupt)
        self._refuse(ErrorCode.RS_DATA_CORRUPTED if corrupt else ErrorCode.RS_INTERNAL_SERVER_ERROR, str(error))

    def _wait(self, state: RangeState, missing: int, *, hold: bool = False) -> bool:
        """Wait for ``missing`` bytes, if the request has time left and there are not too many waiters already.
        ``hold``: if it has no time left, wait until its writer has confirmed what is durable now.
        """
        fetches = self._fetches
        if fetches._stopping or self._wait_ms < 0 or fetches.waiting >= fetches._limits.max_waiting:
            return False
        if self._wait_ms == 0:
            if not hold or fetches.settle is None or 0 <= self._held <= state.shown_offset:
                return False
            if self._held < 0:
                self._held = state.confirm_offset
                self._deadline = fetches._loop.time() + fetches._limits.hold_seconds
            fetches.hidden(state)
        if self._deadline == 0.0:
            self._deadline = fetches._loop.time() + self._wait_ms / 1000
        if self._request.room is not None and not self._watched:
            self._watched = True
            self._request.room.watch(self._abandoned)
        if not state.waiters:
            state.arrived = 0
        # Bytes that arrived since the range's last wake-up came before this request, so they do not count for it.
        self.missing = missing + state.arrived
        state.waiters[self] = None
        fetches._deadlines.add(self, self._deadline)
        return True

    def expire(self) -> None:
        """Answer with what there is: the deadline passed."""
        if self._state is not None:
            self._state.waiters.pop(self, None)
        self._wait_ms = -1
        self.evaluate()
