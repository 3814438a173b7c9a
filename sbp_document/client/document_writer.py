"""A writer of one stream on a backend that speaks only the document.

The server assigns the offsets, any number of writers may append, and a batch that is sent twice is stored twice. So the
writer has one batch of a stream in flight at a time; appends meanwhile travel together in the next one, as one batch
that is stored whole or not at all. When an answer is lost, the writer seals the range, which decides the batch in
flight, and reads the data that has come since: if the batch is not there, it is sent again. Offsets show when another
writer has appended between two batches of ours; the writer's home hears of it before the next batch is settled.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from msgspec import Struct

from anabranch_kit.memory.buffers import Buffer
from sbp_back.client.replica import MAX_ENTRY_PAYLOAD
from sbp_back.errors import ErrorCode, NoSpace, SbpError
from sbp_back.wire.model import Entry
from sbp_document.wire.wrapped import Payload, token_of, wrap, wrapped_bytes

if TYPE_CHECKING:
    from sbp_document.client.streams import DocumentStreams

AppendDone = Callable[[SbpError | None], None]

MERGE_BYTES = 1024 * 1024
"""Batches of one stream are merged up to so many bytes."""
_TAKES = 3
_DELAY_FIRST = 0.05
_DELAY_LIMIT = 1.0

_TAKEN_CODES = frozenset(
    {int(ErrorCode.RANGE_ALREADY_SEALED), int(ErrorCode.RANGE_NOT_FOUND), int(ErrorCode.PRECONDITION_FAILED)}
)
"""The stream's range takes no appends of the document: SEAL_RANGES opens one that does."""
_REFUSED_CODES = frozenset(
    {
        int(ErrorCode.BAD_REQUEST),
        int(ErrorCode.PAYLOAD_TOO_LARGE),
        int(ErrorCode.TOO_MANY_REQUESTS),
        int(ErrorCode.UNSUPPORTED_OPERATION),
        *_TAKEN_CODES,
    }
)
"""Codes that show that a batch was not stored."""


class _Append(Struct):
    payload: Payload
    flags: int
    done: AppendDone


class DocumentWriter:
    """Appends to a stream; made by ``DocumentStreams.open``.

    ``next_offset``: what the next batch gets unless another writer comes between. All below ``confirm_offset`` is
    durable. ``failed``: why the writer is of no further use; the stream can be opened anew then. ``patience``: seconds
    from a batch's first sending until an unreachable server makes the writer fail.
    """

    def __init__(
        self, home: DocumentStreams, stream_id: int, epoch: int, start_offset: int, next_offset: int, patience: float
    ) -> None:
        self.stream_id = stream_id
        self.epoch = epoch
        self.start_offset = start_offset
        self.next_offset = next_offset
        self.confirm_offset = next_offset
        self.failed: SbpError | None = None
        self._loop = asyncio.get_running_loop()
        self.appended_at = self._loop.time()
        """Time of the last append, or of opening the stream, on the loop's clock."""
        self._home = home
        self._barrier = home.barrier
        self._queue: deque[_Append] = deque()
        self._under_way: list[_Append] = []
        self._batch: Buffer = b""
        self._name = uuid.uuid4().hex
        self._sent = 0
        self._patience = patience
        self._deadline = 0.0
        self._takes = 0
        self._scheduled = False
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()  # set whenever nothing is pending any more

    @property
    def servers(self) -> frozenset[int]:
        """Return no servers: the document does not say which ones store a stream."""
        return frozenset()

    def append(self, payload: Buffer, count: int, flags: int, timestamp: int, done: AppendDone) -> int:
        """Append a batch of ``count`` records and return the base offset it is expected to get; ``timestamp`` in ms.

        ``done(None)`` is called once the batch is durable, ``done(error)`` if it will not be or that is unknown; never
        before this returns, and for all batches in the order of their offsets. When another writer came between,
        ``DocumentStreams.overtaken`` is called before: the batches in flight have moved up by as many offsets. After an
        error that leaves ``failed`` unset, that batch and all after it were not stored and ``next_offset`` has gone
        back.

        ``payload`` must not change until ``done``. Raises ``ValueError`` for a count below 1, ``SbpError`` 1413 for a
        payload no frame can carry.
        """
        if self.failed is not None:
            self._loop.call_soon(done, self.failed)
            return self.next_offset
        if count < 1:
            raise ValueError(f"a batch of {count} records")
        size = wrapped_bytes(payload, count)
        if size > MAX_ENTRY_PAYLOAD:
            message = f"a batch of {len(payload)} bytes with {count} records takes {size} bytes, of {MAX_ENTRY_PAYLOAD}"
            raise SbpError(ErrorCode.PAYLOAD_TOO_LARGE, message)
        base = self.next_offset
        self.next_offset = base + count
        self.appended_at = self._loop.time()
        self._queue.append(_Append(Payload(payload, count, timestamp), flags, done))
        self._schedule()
        return base

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing of ours is in flight, and the writer has not failed."""
        return self.failed is None and not self._under_way and not self._queue

    def note_foreign(self, entries: list[Entry]) -> None:
        """Note ``entries`` that another writer seems to have appended. Ignored while a batch of ours is in flight,
        whose offset will show it, or if they are not the next ones.
        """
        if self.is_quiet and entries and entries[0].base_offset == self.confirm_offset:
            self._overtaken(entries)

    async def close(self) -> None:
        """Wait until every batch is decided, then append no more. Idempotent."""
        if self._queue or self._under_way:
            self._idle.clear()
            await self._idle.wait()
        if self.failed is None:
            self.fail(SbpError(ErrorCode.PRECONDITION_FAILED, "the writer is closed"))
        if self._task is not None:
            await asyncio.wait([self._task])

    def fail(self, error: SbpError) -> None:
        """Append nothing more; the outcome of batches in flight is unknown."""
        if self.failed is None:
            self.failed = error
            self._end_all(error)

    # --- one batch after the other ----------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and not self._under_way and self._queue:
            self._scheduled = True
            self._loop.call_soon(self._send_next)

    def _send_next(self) -> None:
        if not self._barrier.call("sending a batch", self._send):
            self.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "unexpected error, see the log"))

    def _send(self) -> None:
        self._scheduled = False
        if self._under_way or not self._queue:
            return
        flags = self._queue[0].flags
        room = MERGE_BYTES
        taken = self._under_way
        while self._queue and self._queue[0].flags == flags:
            room -= wrapped_bytes(self._queue[0].payload.data, self._queue[0].payload.count)
            if taken and room < 0:
                break
            taken.append(self._queue.popleft())
        self._sent += 1
        self._batch = wrap(self.stream_id, flags, [one.payload for one in taken], self._token)
        self._takes = 0
        self._deadline = self._loop.time() + self._patience
        self._home.append(self.stream_id, self._batch, self._answered)

    def _answered(self, outcome: int | SbpError) -> None:
        if self.failed is not None:
            return
        if isinstance(outcome, SbpError):
            self._not_stored(outcome)
        elif outcome == self.confirm_offset:
            self._settle()
        elif outcome > self.confirm_offset:
            self._start(self._catch_up(outcome))
        else:
            message = f"offset {outcome} of stream {self.stream_id} was given twice"
            self.fail(SbpError(ErrorCode.RS_DATA_CORRUPTED, message))

    def _not_stored(self, error: SbpError) -> None:
        """Handle an error for the batch in flight: take the range and send again, refuse all, fail, or find out whether
        the batch was stored after all.
        """
        if error.code in _TAKEN_CODES and self._takes < _TAKES:
            self._takes += 1
            self._start(self._take())
        elif isinstance(error, NoSpace) or error.code in _REFUSED_CODES:
            self._refuse(error)
        elif error.code == ErrorCode.NOT_FOUND or self._loop.time() >= self._deadline:
            self.fail(error)
        else:
            self._start(self._find_out(error))

    @property
    def _token(self) -> str:
        return f"{self._name}-{self._sent}"

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._task = self._loop.create_task(self._guard(work))

    async def _guard(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except SbpError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            # The fate of the batch in flight is unknown: the stream must be opened again.
            self._barrier.caught("writer of the document", error)
            self.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, f"unexpected {type(error).__name__}: {error}"))

    async def _take(self) -> None:
        await self._home.take(self.stream_id)
        if self.failed is None:
            self._home.append(self.stream_id, self._batch, self._answered)

    async def _catch_up(self, base: int) -> None:
        """Read another writer's entries below ``base``: readers of this stream must hear of them before they hear of
        ours.
        """
        entries = await self._home.between(self.stream_id, self.confirm_offset, base)
        if self.failed is None:
            self._overtaken(entries)
        if self.failed is None:
            self._settle()

    async def _find_out(self, error: SbpError) -> None:
        """Find out whether the batch in flight, whose answer was lost with ``error``, was stored; send it again if
        not.
        """
        entries = await self._since_confirmed(error)
        if self.failed is not None:
            return
        ours = next((index for index, entry in enumerate(entries) if token_of(entry) == self._token), len(entries))
        self._overtaken(entries[:ours])
        if self.failed is not None:
            return
        if ours == len(entries):
            self._home.append(self.stream_id, self._batch, self._answered)
            return
        self._settle()
        self._overtaken(entries[ours + 1 :])

    async def _since_confirmed(self, error: SbpError) -> list[Entry]:
        """Seal the range and return the entries behind what is confirmed; nothing more comes there. Raises ``error``
        when the server stays unreachable, another ``SbpError`` when the stream is gone.
        """
        delay = _DELAY_FIRST
        while True:
            try:
                end = await self._home.take(self.stream_id)
                return await self._home.between(self.stream_id, self.confirm_offset, end)
            except SbpError as refused:
                if refused.code == ErrorCode.NOT_FOUND or self.failed is not None:
                    raise
            if self._loop.time() + delay >= self._deadline:
                raise error
            await asyncio.sleep(delay)
            delay = min(2 * delay, _DELAY_LIMIT)

    def _overtaken(self, entries: list[Entry]) -> None:
        if entries:
            self.next_offset += entries[-1].end_offset - self.confirm_offset
            self.confirm_offset = entries[-1].end_offset
            if not self._barrier.call("following a stream", self._home.overtaken, self.stream_id, entries):
                # A reader that missed it would have wrong offsets and producers: the stream must be opened again.
                message = f"stream {self.stream_id} was overtaken, and not everybody could be told"
                self.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, message))

    def _settle(self) -> None:
        stored, self._under_way = self._under_way, []
        self._batch = b""
        self.confirm_offset += sum(one.payload.count for one in stored)
        self._schedule()
        for one in stored:
            self._barrier.call("append answer", one.done, None)
        self._tell_idle()

    def _refuse(self, error: SbpError) -> None:
        """Refuse all pending batches: none is stored. The writer lives on."""
        self.next_offset = self.confirm_offset
        self._end_all(error)

    def _end_all(self, error: SbpError) -> None:
        ended = [*self._under_way, *self._queue]
        self._under_way = []
        self._queue.clear()
        self._batch = b""
        for one in ended:
            self._barrier.call("append answer", one.done, error)
        self._tell_idle()

    def _tell_idle(self) -> None:
        if not self._queue and not self._under_way:
            self._idle.set()
