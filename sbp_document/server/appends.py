"""APPEND of sbp-v0.1: many streams in one frame, offsets assigned in order of arrival, answers as they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from functools import partial

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.deadlines import Deadlines
from anabranch_kit.run.turns import Turns
from sbp_back.client.replica import MAX_ENTRY_PAYLOAD
from sbp_back.errors import NO_SPACE_DETAIL, DecodeError, ErrorCode, NoSpace, SbpError
from sbp_back.transport.carrier import Answer
from sbp_back.transport.handler import DEFECT, Reply
from sbp_back.wire.entry import pack_entry
from sbp_back.wire.model import AppendRequest, AppendResponse, Entry, Status
from sbp_document.server.lanes import Lanes, StreamOwner
from sbp_document.server.parts import Parts
from sbp_document.timeouts import too_late
from sbp_document.wire.messages import AppendBatchRequest, AppendBatchResponse, AppendItem, AppendItemResult
from sbp_document.wire.record_batch import FORMAT_FLAG, counting_records, set_base_offset

MAX_LATE_BYTES = 64 * 1024 * 1024
"""Most bytes of batches in flight whose time was up, and which no longer count as unanswered on their connection. Past
it nothing more is taken: otherwise impatient clients would fill the memory behind a slow disk.
"""
_MAX_RESULTS = 16 * 1024
"""Most results in one frame: with their messages they must fit the header."""


class Appends:
    """Takes APPEND requests of the document."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.barrier = lanes.barrier
        self._loop = asyncio.get_running_loop()
        self.deadlines: Deadlines[_Call] = Deadlines(self._loop, _Call.expire, lanes.barrier)
        self._working: deque[tuple[_Call, Generator[None, None, None]]] = deque()
        self.late_bytes = 0
        """Bytes of batches whose time was up and that are still in flight."""

    def handle(self, request: AppendBatchRequest, reply: Reply) -> None:
        """Hand over the items, in the order of the request: that is the order of offsets, and of arrival. The rest of a
        request with very many batches or records follows in later turns, before anything that arrives later.
        """
        call = _Call(self, request, reply)
        if not request.items:
            call.flush()
            return
        if self.late_bytes > MAX_LATE_BYTES:
            call.refuse_all(SbpError(ErrorCode.TOO_MANY_REQUESTS, f"{self.late_bytes} bytes are late already"))
            return
        if request.timeout_ms > 0:
            self.deadlines.add(call, self._loop.time() + request.timeout_ms / 1000)
        work = self._work(call, request.items)
        if self._working or not self._go_on(call, work):
            self._working.append((call, work))
            if len(self._working) == 1:
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Go on with the request that has more work than one turn of the loop should take; later requests wait."""
        working = self._working
        while working and self._go_on(*working[0]):
            working.popleft()
        if working:
            self._loop.call_soon(self._turn)

    def _go_on(self, call: _Call, work: Generator[None, None, None]) -> bool:
        """Run the next step of ``work``; return whether it has ended."""
        try:
            next(work)
        except StopIteration:
            return True
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self.barrier.caught("append", error)
            call.refuse_all(SbpError(DEFECT.code, DEFECT.message))
            return True
        return False

    def _work(self, call: _Call, items: list[AppendItem]) -> Generator[None, None, None]:
        """Hand over the items in order, and yield whenever it has been busy for long."""
        entries: list[Entry] = []
        positions: list[int] = []
        upcoming: dict[int, tuple[int, int]] = {}

        def submit() -> None:
            # Hand over before other requests have their turn, which may append to the same streams.
            if entries:
                self._submit(call, positions[:], entries[:])
                entries.clear()
                positions.clear()
            upcoming.clear()

        turns = Turns()
        for position, item in enumerate(items):
            if turns.is_over:
                submit()
                yield
                turns = Turns()
            if call.item(position) is None:
                continue  # its time was up
            try:
                counting = _counting(item)
                while True:
                    next(counting)
                    submit()
                    yield
            except StopIteration as end:
                count = int(end.value)
            except SbpError as error:
                call.refuse(position, error)
                continue
            if call.item(position) is None:
                continue
            owner = self._lanes.owner_of(item.stream_id)
            if owner is not None:
                _append_to(owner, item, count, partial(call.owned, position), self.barrier)
                continue
            index, offset = upcoming.get(item.stream_id) or self._lanes.position(item.stream_id)
            if index < 0:
                self._lanes.when_ready(item.stream_id, partial(self._append_late, call, position, count))
                continue
            upcoming[item.stream_id] = (index, offset + count)
            positions.append(position)
            entries.append(_entry(item, index, offset, count))
        submit()

    def _append_late(self, call: _Call, position: int, count: int, error: SbpError | None) -> None:
        """Append the items that had to wait for their lane, or refuse them with ``error``."""
        item = call.item(position)
        if error is not None or item is None:
            # Too late: the item is no longer valid, and its bytes belong to its sender again.
            call.refuse(position, error or SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "too late"))
            return
        index, offset = self._lanes.position(item.stream_id)
        if index < 0:  # lost again to an earlier append, which found the range sealed
            call.refuse(position, SbpError(ErrorCode.RANGE_ALREADY_SEALED, "the range was sealed a moment ago"))
            return
        self._submit(call, [position], [_entry(item, index, offset, count)])

    def _submit(self, call: _Call, positions: list[int], entries: list[Entry]) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, AppendResponse) and answer.status.ok and len(answer.results) == len(entries):
                for position, entry, result in zip(positions, entries, answer.results, strict=True):
                    if result.status.ok:
                        call.add(position, entry.base_offset, result.timestamp_ms, result.status)
                    else:
                        self._lanes.forget(entry.stream_id)
                        call.add(position, -1, result.timestamp_ms, result.status)
                return
            status = Status(answer.code, answer.message) if isinstance(answer, SbpError) else answer.status
            if status.ok:  # an empty answer would mean success for every batch
                status = Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "the range server's answer does not fit the append")
            for position, entry in zip(positions, entries, strict=True):
                self._lanes.forget(entry.stream_id)
                call.add(position, -1, 0, status)

        self._lanes.to_range_server.submit(AppendRequest(0, entries), answered)


def _append_to(
    owner: StreamOwner, item: AppendItem, count: int, done: Callable[[int, SbpError | None], None], barrier: Barrier
) -> None:
    try:
        owner.append(bytearray(item.batch), count, FORMAT_FLAG, done)
    except SbpError as error:
        done(-1, error)
    except Exception as error:  # noqa: BLE001 - logged and counted there
        # A defect of the owner must not fail the other batches of the request.
        barrier.caught("owner of a stream", error)
        done(-1, SbpError(DEFECT.code, DEFECT.message))


def _counting(item: AppendItem) -> Generator[None, None, int]:
    """Count the records, with :func:`counting_records`. Raises ``SbpError``."""
    if len(item.batch) > MAX_ENTRY_PAYLOAD:
        message = f"a record batch of {len(item.batch)} bytes exceeds {MAX_ENTRY_PAYLOAD}"
        raise SbpError(ErrorCode.PAYLOAD_TOO_LARGE, message)
    try:
        return (yield from counting_records(item.batch))
    except DecodeError as error:
        raise SbpError(ErrorCode.BAD_REQUEST, str(error)) from error


def _entry(item: AppendItem, index: int, offset: int, count: int) -> Entry:
    # Copy: we may not change the bytes of a received frame, nor those of a caller in this process.
    batch = bytearray(item.batch)
    set_base_offset(batch, offset)
    return pack_entry(item.stream_id, index, FORMAT_FLAG, offset, count, now_ms(), batch)


class _Call(Parts[AppendItemResult]):
    """One request; its items are known by their positions. When the time is up, items that are not stored are answered
    as unknown; their later outcome only matters for the count of ``Appends.late_bytes``.
    """

    __slots__ = ("_appends", "_late", "_timeout_ms", "_waiting")

    def __init__(self, appends: Appends, request: AppendBatchRequest, reply: Reply) -> None:
        super().__init__(reply)
        self._appends = appends
        self._timeout_ms = request.timeout_ms
        self._waiting = dict(enumerate(request.items))
        self._late: dict[int, int] = {}  # bytes of each item that was answered before its outcome was known

    def item(self, position: int) -> AppendItem | None:
        """Return an item that is not answered yet; None if it is."""
        return self._waiting.get(position)

    def refuse(self, position: int, error: SbpError) -> None:
        # A writer gives up after a failure, but not for want of room: it must be able to tell them apart.
        detail = NO_SPACE_DETAIL if isinstance(error, NoSpace) else b""
        self.add(position, -1, 0, Status(error.code, error.message, detail))

    def owned(self, position: int, base_offset: int, error: SbpError | None) -> None:
        """Take the outcome of an item that a stream's owner in this process has appended, or has not."""
        if error is not None:
            self.refuse(position, error)
        else:
            self.add(position, base_offset, now_ms(), Status())

    def refuse_all(self, error: SbpError) -> None:
        for position in list(self._waiting):
            self.refuse(position, error)

    def add(self, position: int, base_offset: int, append_time_ms: int, status: Status) -> None:
        item = self._waiting.pop(position, None)
        if item is None:
            self._appends.late_bytes -= self._late.pop(position, 0)
            return
        result = AppendItemResult(item.stream_id, item.request_index, base_offset, append_time_ms, status)
        self.tell(result, last=not self._waiting)

    def expire(self) -> None:
        self._late = {position: len(item.batch) for position, item in self._waiting.items()}
        self._appends.late_bytes += sum(self._late.values())
        status = too_late(self._timeout_ms)
        for position in list(self._late):
            self.add(position, -1, 0, status)

    def flush(self) -> None:
        results, self._results = self._results, []
        if not self._waiting:
            self._appends.deadlines.remove(self)
        while len(results) > _MAX_RESULTS:
            self._appends.barrier.call(
                "reply", self._reply, AppendBatchResponse(last=False, results=results[:_MAX_RESULTS])
            )
            results = results[_MAX_RESULTS:]
        self._appends.barrier.call("reply", self._reply, AppendBatchResponse(last=not self._waiting, results=results))
