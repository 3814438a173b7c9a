"""Requests that change which ranges a server has: CREATE_RANGE, SEAL_RANGE, TRIM_STREAM, DELETE_STREAM.

Each is durable in the store before it is answered (docs/protocols/sbp.md, "Ranges of a server"). Requests for one
stream are served one after the other, so each is decided on the finished result of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from anabranch_kit.errors import StoreError, StoreFailed
from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.barrier import Barrier
from sbp_back.errors import ErrorCode
from sbp_back.range_server.appends import UNKNOWN_BYTES, release
from sbp_back.range_server.fetches import Fetches
from sbp_back.range_server.ranges import RangeState, RangeTable
from sbp_back.range_server.window import OFFSET_LIMIT
from sbp_back.transport.handler import Answers
from sbp_back.wire import model as m

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store

Change = m.CreateRangeRequest | m.SealRangeRequest | m.TrimStreamRequest | m.DeleteStreamRequest
Outcome = m.RangeResponse | m.StreamResponse


class Controls:
    """Takes these requests; owned by the range server, which shares its ranges with it. ``on_error`` is called when the
    store has failed.

    A request is never given up: a window that is being closed opens again only if the store has refused the change.
    """

    def __init__(
        self,
        table: RangeTable,
        store: Store,
        fetches: Fetches,
        on_error: Callable[[StoreError], None],
        barrier: Barrier,
    ) -> None:
        self._table = table
        self._store = store
        self._fetches = fetches
        self._on_error = on_error
        self._changing: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()  # the ranges of a stream
        self._answers = Answers(barrier)

    def handle(self, request: Change, reply: Callable[[Outcome | m.SystemErrorResponse], None]) -> None:
        self._answers.give(reply, self._serve(request))

    async def _serve(self, request: Change) -> Outcome:
        named = request.range if isinstance(request, m.CreateRangeRequest | m.SealRangeRequest) else request
        async with self._changing.setdefault(named.stream_id, asyncio.Lock()):
            try:
                match request:
                    case m.CreateRangeRequest():
                        return await self._create(request.range)
                    case m.SealRangeRequest():
                        return await self._seal(request)
                    case m.TrimStreamRequest():
                        return await self._trim(request)
                    case m.DeleteStreamRequest():
                        return await self._delete(request.stream_id)
            except StoreError as error:
                if isinstance(error, StoreFailed):
                    self._on_error(error)
                kind = m.RangeResponse if isinstance(named, m.RangeInfo) else m.StreamResponse
                return kind(m.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, str(error)))

    async def _create(self, wanted: m.RangeInfo) -> m.RangeResponse:
        if _is_vague(wanted):
            return _bad_range("a new range needs a stream, an index, an epoch and a start")
        if wanted.end >= 0:
            return _bad_range("a range is created open")
        state = self._table.by_key.get((wanted.stream_id, wanted.index))
        if state is None:
            state = await self._store_range(wanted)
        elif (wanted.start, wanted.epoch) != (state.stored.start, state.stored.epoch):
            # A writer that created the range and died before its first append leaves it to the next one.
            unused = state.writable and state.window.next == state.stored.start
            if wanted.start != state.stored.start or wanted.epoch < state.stored.epoch or not unused:
                has = f"the range exists with start {state.stored.start} and epoch {state.stored.epoch}"
                return _bad_range(f"{has}, not with {wanted.start} and {wanted.epoch}", state)
            state = await self._store_range(wanted)
        return m.RangeResponse(range=state.info())

    async def _store_range(self, wanted: m.RangeInfo) -> RangeState:
        key = wanted.stream_id, wanted.index
        await awaited(partial(self._store.create_range, *key, wanted.epoch, wanted.start))
        state = self._table.by_key.get(key)
        if state is None:
            state = RangeState(self._store.ranges[key])
            self._table.add(state)
        else:
            state.stored = self._store.ranges[key]
        return state

    async def _seal(self, request: m.SealRangeRequest) -> m.RangeResponse:
        wanted = request.range
        state = self._table.by_key.get((wanted.stream_id, wanted.index))
        if state is None:
            if _is_vague(wanted):
                message = f"no range {wanted.index} of stream {wanted.stream_id} here"
                message += ", and too little said of it to create and seal it"
                return m.RangeResponse(m.Status(ErrorCode.RANGE_NOT_FOUND, message))
            # The request to create the range never arrived. Create and seal it now: a late request could otherwise
            # still open it for a writer that is to be fenced.
            state = await self._store_range(wanted)
        epoch, stored = wanted.epoch, state.stored
        # With an end and of this kind it is the placement driver's decision, which no epoch overrules.
        decision = request.kind == m.SealKind.PLACEMENT_DRIVER and wanted.end >= 0
        if decision:
            epoch = max(epoch, stored.epoch)
        if epoch < stored.epoch:
            message = f"epoch {epoch} is older than the range's {stored.epoch}"
            return m.RangeResponse(m.Status(ErrorCode.EXPIRED_RANGE_EPOCH, message), state.info())
        if state.decided and state.sealed:
            return m.RangeResponse(range=state.info())
        if 0 <= wanted.end < stored.start:
            return _bad_range(f"the range starts at {stored.start}, it cannot end at {wanted.end}")
        confirmed = state.confirm_offset
        end = confirmed if wanted.end < 0 else min(wanted.end, confirmed)
        changes = end != stored.end
        if changes:
            await self._end_range(state, epoch, end)
        if decision:
            state.decide(wanted.end)
        if changes or decision:
            self._fetches.wake_all(state)
        return m.RangeResponse(range=state.info())

    async def _end_range(self, state: RangeState, epoch: int, end: int) -> None:
        was_sealed = state.sealed
        if not was_sealed:
            state.window.start_closing(ErrorCode.RANGE_ALREADY_SEALED)
        try:
            await awaited(partial(self._store.seal_range, state.stream_id, state.index, epoch, end))
        except Exception:
            if not was_sealed:
                self._reopen(state)
            raise
        if not was_sealed:
            release(state.window.close(end))

    def _reopen(self, state: RangeState) -> None:
        release(state.window.reopen())
        state.arrived += UNKNOWN_BYTES
        self._fetches.wake(state)

    async def _trim(self, request: m.TrimStreamRequest) -> m.StreamResponse:
        stream_id = request.stream_id
        if request.min_offset < 0:
            return m.StreamResponse(m.Status(ErrorCode.BAD_REQUEST, f"negative trim offset {request.min_offset}"))
        states = self._table.of_stream(stream_id)
        # Uncommitted entries cannot be trimmed: their appends are still to be answered.
        min_offset = min(request.min_offset, max((state.confirm_offset for state in states), default=0))
        if any(min_offset > state.stored.min_offset for state in states):
            await awaited(partial(self._store.trim_stream, stream_id, min_offset))
            for state in states:
                if state.stored.dropped:
                    self._table.remove(state)
                self._fetches.wake_all(state)
            states = self._table.of_stream(stream_id)
        return m.StreamResponse(stream=m.StreamInfo(stream_id), range=states[0].info() if states else None)

    async def _delete(self, stream_id: int) -> m.StreamResponse:
        states = self._table.of_stream(stream_id)
        open_states = [state for state in states if state.writable]
        for state in open_states:
            state.window.start_closing(ErrorCode.RANGE_NOT_FOUND)
        if states:
            try:
                await awaited(partial(self._store.delete_stream, stream_id))
            except Exception:
                for state in open_states:
                    self._reopen(state)
                raise
        for state in states:
            self._table.remove(state)
        for state in open_states:
            release(state.window.close())
        for state in states:
            self._fetches.wake_all(state)
        return m.StreamResponse(stream=m.StreamInfo(stream_id))


def _is_vague(wanted: m.RangeInfo) -> bool:
    """Return whether a request says too little of a range to create it."""
    return min(wanted.stream_id, wanted.index, wanted.start, wanted.epoch) < 0 or wanted.start > OFFSET_LIMIT


def _bad_range(message: str, state: RangeState | None = None) -> m.RangeResponse:
    return m.RangeResponse(m.Status(ErrorCode.BAD_REQUEST, message), None if state is None else state.info())
