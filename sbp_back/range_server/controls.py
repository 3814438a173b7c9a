"""Requests that change which ranges a server has: CREATE_RANGE, SEAL_RANGE, TRIM_STREAM, DELETE_STREAM.

Each is durable in the store before it is answered (docs/protocols/sbp.md, "Ranges of a server"). Requests for one
stream are served one after the other, so each is decided on the finished result of the one before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, TypeVarTuple

from anabranch_kit.errors import StoreError, StoreFailed
from anabranch_kit.run.barrier import Barrier
from sbp_back.errors import ErrorCode
from sbp_back.range_server.appends import UNKNOWN_BYTES, release
from sbp_back.range_server.fetches import Fetches
from sbp_back.range_server.ranges import RangeState, RangeTable
from sbp_back.range_server.window import OFFSET_LIMIT
from sbp_back.transport.handler import DEFECT
from sbp_back.wire import model as m

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class _Queues:
    """Queues that run the operations of one stream one at a time, in order; those of different streams side by side."""

    def __init__(self, loop: asyncio.AbstractEventLoop, barrier: Barrier) -> None:
        self._loop = loop
        self.barrier = barrier
        self._waiting: dict[int, deque[Callable[[], None]]] = {}

    def enter(self, stream_id: int, operation: Callable[[], None]) -> None:
        """Run ``operation`` in its turn; it has to end in exactly one call of :meth:`leave`."""
        queue = self._waiting.get(stream_id)
        if queue is None:
            self._waiting[stream_id] = deque()
            operation()
        else:
            queue.append(operation)

    def leave(self, stream_id: int) -> None:
        queue = self._waiting[stream_id]
        if queue:
            # Through the loop: a long queue of operations that finish at once would otherwise nest as deep.
            self._loop.call_soon(queue.popleft())
        else:
            del self._waiting[stream_id]


class _Turn(Generic[R]):
    """The turn of one request at its stream: it ends with the answer, even if an exception occurs. ``refused`` makes an
    answer of a status.
    """

    __slots__ = ("_queues", "_refused", "_reply", "_stream_id")

    def __init__(
        self, queues: _Queues, stream_id: int, reply: Callable[[R], None], refused: Callable[[m.Status], R]
    ) -> None:
        self._queues = queues
        self._stream_id = stream_id
        self._reply: Callable[[R], None] | None = reply
        self._refused = refused

    def take(self, operation: Callable[[], None]) -> None:
        """Run ``operation`` in its turn; it has to end in one call of this object."""
        self._queues.enter(self._stream_id, lambda: self._run(operation))

    def then(self, stored: Callable[[StoreError | None], None]) -> Callable[[StoreError | None], None]:
        """Wrap ``stored`` as a callback for the store."""

        def done(error: StoreError | None) -> None:
            self._run(stored, error)

        return done

    def _run(self, step: Callable[[*Ts], None], *args: *Ts) -> None:
        if not self._queues.barrier.call("change of ranges", step, *args):
            self(self._refused(DEFECT))

    def __call__(self, response: R) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            self._queues.leave(self._stream_id)
            self._queues.barrier.call("reply", reply, response)


class Controls:
    """Takes these requests; owned by the range server, which shares its ranges with it. ``on_error`` is called when the
    store has failed.
    """

    def __init__(
        self,
        table: RangeTable,
        store: Store,
        fetches: Fetches,
        loop: asyncio.AbstractEventLoop,
        on_error: Callable[[StoreError], None],
        barrier: Barrier,
    ) -> None:
        self._table = table
        self._store = store
        self._fetches = fetches
        self._on_error = on_error
        self._queues = _Queues(loop, barrier)

    def create_range(self, request: m.CreateRangeRequest, reply: Callable[[m.RangeResponse], None]) -> None:
        turn = _Turn(self._queues, request.range.stream_id, reply, m.RangeResponse)
        turn.take(lambda: self._create(request, turn))

    def seal_range(self, request: m.SealRangeRequest, reply: Callable[[m.RangeResponse], None]) -> None:
        turn = _Turn(self._queues, request.range.stream_id, reply, m.RangeResponse)
        turn.take(lambda: self._seal(request, turn))

    def trim_stream(self, request: m.TrimStreamRequest, reply: Callable[[m.StreamResponse], None]) -> None:
        turn = _Turn(self._queues, request.stream_id, reply, m.StreamResponse)
        turn.take(lambda: self._trim(request, turn))

    def delete_stream(self, request: m.DeleteStreamRequest, reply: Callable[[m.StreamResponse], None]) -> None:
        turn = _Turn(self._queues, request.stream_id, reply, m.StreamResponse)
        turn.take(lambda: self._delete(request, turn))

    def _failure(self, error: StoreError) -> m.Status:
        if isinstance(error, StoreFailed):
            self._on_error(error)
        return m.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, str(error))

    # --- create -----------------------------------------------------------------------------------------------------

    def _create(self, request: m.CreateRangeRequest, answer: _Turn[m.RangeResponse]) -> None:
        wanted = request.range
        if min(wanted.stream_id, wanted.index, wanted.start, wanted.epoch) < 0 or wanted.start > OFFSET_LIMIT:
            answer(_bad_range("a new range needs a stream, an index, an epoch and a start"))
            return
        if wanted.end >= 0:
            answer(_bad_range("a range is created open"))
            return
        state = self._table.by_key.get((wanted.stream_id, wanted.index))
        if state is None:
            self._store_range(wanted.stream_id, wanted.index, wanted.epoch, wanted.start, answer, self._answer_range)
        elif (wanted.start, wanted.epoch) == (state.stored.start, state.stored.epoch):
            self._answer_range(state, answer)
        elif wanted.start == state.stored.start and wanted.epoch > state.stored.epoch and self._is_unused(state):
            # A writer that created the range and died before its first append leaves it to the next one.
            self._store_range(wanted.stream_id, wanted.index, wanted.epoch, wanted.start, answer, self._answer_range)
        else:
            has = f"the range exists with start {state.stored.start} and epoch {state.stored.epoch}"
            answer(_bad_range(f"{has}, not with {wanted.start} and {wanted.epoch}", state))

    @staticmethod
    def _is_unused(state: RangeState) -> bool:
        return state.writable and state.window.next == state.stored.start

    @staticmethod
    def _answer_range(state: RangeState, answer: _Turn[m.RangeResponse]) -> None:
        answer(m.RangeResponse(range=state.info()))

    def _store_range(
        self,
        stream_id: int,
        index: int,
        epoch: int,
        start: int,
        answer: _Turn[m.RangeResponse],
        then: Callable[[RangeState, _Turn[m.RangeResponse]], None],
    ) -> None:
        def stored(error: StoreError | None) -> None:
            if error is not None:
                answer(m.RangeResponse(self._failure(error)))
                return
            state = self._table.by_key.get((stream_id, index))
            if state is None:
                state = RangeState(self._store.ranges[stream_id, index])
                self._table.add(state)
            else:
                state.stored = self._store.ranges[stream_id, index]
            then(state, answer)

        self._store.create_range(stream_id, index, epoch, start, answer.then(stored))

    # --- seal -------------------------------------------------------------------------------------------------------

    def _seal(self, request: m.SealRangeRequest, answer: _Turn[m.RangeResponse]) -> None:
        wanted = request.range
        state = self._table.by_key.get((wanted.stream_id, wanted.index))
        if state is None:
            if min(wanted.stream_id, wanted.index, wanted.start, wanted.epoch) < 0 or wanted.start > OFFSET_LIMIT:
                message = f"no range {wanted.index} of stream {wanted.stream_id} here"
                message += ", and too little said of it to create and seal it"
                answer(m.RangeResponse(m.Status(ErrorCode.RANGE_NOT_FOUND, message)))
                return

            # The request to create the range never arrived. Create and seal it now: a late request could otherwise
            # still open it for a writer that is to be fenced.
            def seal_created(created: RangeState, answer_range: _Turn[m.RangeResponse]) -> None:
                self._seal_state(created, request, answer_range)

            self._store_range(wanted.stream_id, wanted.index, wanted.epoch, wanted.start, answer, seal_created)
            return
        self._seal_state(state, request, answer)

    def _seal_state(self, state: RangeState, request: m.SealRangeRequest, answer: _Turn[m.RangeResponse]) -> None:
        epoch, wanted_end = request.range.epoch, request.range.end
        stored_range = state.stored
        # With an end and of this kind it is the placement driver's decision, which no epoch overrules.
        decision = request.kind == m.SealKind.PLACEMENT_DRIVER and wanted_end >= 0
        if decision:
            epoch = max(epoch, stored_range.epoch)
        if epoch < stored_range.epoch:
            message = f"epoch {epoch} is older than the range's {stored_range.epoch}"
            answer(m.RangeResponse(m.Status(ErrorCode.EXPIRED_RANGE_EPOCH, message), state.info()))
            return
        if state.decided and state.sealed:
            self._answer_range(state, answer)
            return
        if 0 <= wanted_end < stored_range.start:
            answer(_bad_range(f"the range starts at {stored_range.start}, it cannot end at {wanted_end}"))
            return
        confirmed = state.confirm_offset
        end = confirmed if wanted_end < 0 else min(wanted_end, confirmed)
        if end == stored_range.end:
            if decision:
                state.decide(wanted_end)
                self._fetches.wake_all(state)
            self._answer_range(state, answer)
            return
        was_sealed = state.sealed
        if not was_sealed:
            state.window.start_closing(ErrorCode.RANGE_ALREADY_SEALED)

        def stored(error: StoreError | None) -> None:
            if error is not None:
                if not was_sealed:
                    self._reopen(state)
                answer(m.RangeResponse(self._failure(error), state.info()))
                return
            if not was_sealed:
                release(state.window.close(end))
            if decision:
                state.decide(wanted_end)
            self._fetches.wake_all(state)
            self._answer_range(state, answer)

        try:
            self._store.seal_range(state.stream_id, state.index, epoch, end, answer.then(stored))
        except Exception:
            if not was_sealed:
                self._reopen(state)
            raise

    def _reopen(self, state: RangeState) -> None:
        release(state.window.reopen())
        state.arrived += UNKNOWN_BYTES
        self._fetches.wake(state)

    # --- trim and delete --------------------------------------------------------------------------------------------

    def _trim(self, request: m.TrimStreamRequest, answer: _Turn[m.StreamResponse]) -> None:
        if request.min_offset < 0:
            answer(m.StreamResponse(m.Status(ErrorCode.BAD_REQUEST, f"negative trim offset {request.min_offset}")))
            return
        states = self._table.of_stream(request.stream_id)
        # Uncommitted entries cannot be trimmed: their appends are still to be answered.
        min_offset = min(request.min_offset, max((state.confirm_offset for state in states), default=0))
        if all(min_offset <= state.stored.min_offset for state in states):
            answer(self._trimmed(request.stream_id))
            return

        def stored(error: StoreError | None) -> None:
            if error is not None:
                answer(m.StreamResponse(self._failure(error)))
                return
            for state in states:
                if state.stored.dropped:
                    self._table.remove(state)
                self._fetches.wake_all(state)
            answer(self._trimmed(request.stream_id))

        self._store.trim_stream(request.stream_id, min_offset, answer.then(stored))

    def _trimmed(self, stream_id: int) -> m.StreamResponse:
        states = self._table.of_stream(stream_id)
        return m.StreamResponse(stream=m.StreamInfo(stream_id), range=states[0].info() if states else None)

    def _delete(self, request: m.DeleteStreamRequest, answer: _Turn[m.StreamResponse]) -> None:
        stream_id = request.stream_id
        states = self._table.of_stream(stream_id)
        if not states:
            answer(m.StreamResponse(stream=m.StreamInfo(stream_id)))
            return
        open_states = [state for state in states if state.writable]
        for state in open_states:
            state.window.start_closing(ErrorCode.RANGE_NOT_FOUND)

        def stored(error: StoreError | None) -> None:
            if error is not None:
                for state in open_states:
                    self._reopen(state)
                answer(m.StreamResponse(self._failure(error)))
                return
            for state in states:
                self._table.remove(state)
            for state in open_states:
                release(state.window.close())
            for state in states:
                self._fetches.wake_all(state)
            answer(m.StreamResponse(stream=m.StreamInfo(stream_id)))

        try:
            self._store.delete_stream(stream_id, answer.then(stored))
        except Exception:
            for state in open_states:
                self._reopen(state)
            raise


def _bad_range(message: str, state: RangeState | None = None) -> m.RangeResponse:
    return m.RangeResponse(m.Status(ErrorCode.BAD_REQUEST, message), None if state is None else state.info())
