"""APPEND of sbp-v0.1: many streams in one frame, offsets given in order of arrival, answers as they come."""

from __future__ import annotations

import asyncio
import time

from sbp_back.carrier import Answer, Carrier
from sbp_back.document.batch import FORMAT_FLAG, count_records, set_base_offset
from sbp_back.document.lanes import Lanes
from sbp_back.document.messages import AppendBatchRequest, AppendBatchResponse, AppendItem, AppendItemResult
from sbp_back.entry import pack_entry
from sbp_back.errors import NO_SPACE_DETAIL, DecodeError, ErrorCode, NoSpace, SbpError
from sbp_back.handler import Reply
from sbp_back.model import AppendRequest, AppendResponse, Entry, Status
from sbp_back.replica import MAX_ENTRY_PAYLOAD


class Appends:
    """Takes APPEND requests of the document."""

    def __init__(self, lanes: Lanes, to_range_server: Carrier) -> None:
        self._lanes = lanes
        self._carrier = to_range_server

    def handle(self, request: AppendBatchRequest, reply: Reply) -> None:
        """Whatever can be is handed over before this returns, in the order of the request: that is the order of
        offsets, and of arrival."""
        call = _Call(len(request.items), reply)
        entries: list[Entry] = []
        items: list[AppendItem] = []
        upcoming: dict[int, tuple[int, int]] = {}
        for item in request.items:
            try:
                count = _count(item)
            except SbpError as error:
                call.refuse(item, error)
                continue
            owner = self._lanes.owner_of(item.stream_id)
            if owner is not None:
                owner.append(bytearray(item.batch), count, FORMAT_FLAG, _Owned(call, item))
                continue
            index, offset = upcoming.get(item.stream_id) or self._lanes.position(item.stream_id)
            if index < 0:
                self._lanes.when_ready(item.stream_id, _Delayed(self, call, item, count))
                continue
            upcoming[item.stream_id] = (index, offset + count)
            items.append(item)
            entries.append(_entry(item, index, offset, count))
        if entries:
            self._submit(call, items, entries)
        if not request.items:
            call.flush()

    def append_one(self, call: _Call, item: AppendItem, count: int) -> None:
        """The lane was found: append what had to wait for it."""
        index, offset = self._lanes.position(item.stream_id)
        if index < 0:  # lost again, to an append before this one that found the range sealed
            call.refuse(item, SbpError(ErrorCode.RANGE_ALREADY_SEALED, "the range was sealed a moment ago"))
            return
        self._submit(call, [item], [_entry(item, index, offset, count)])

    def _submit(self, call: _Call, items: list[AppendItem], entries: list[Entry]) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, AppendResponse) and answer.status.ok and len(answer.results) == len(items):
                for item, entry, result in zip(items, entries, answer.results, strict=True):
                    if not result.status.ok:
                        self._lanes.forget(item.stream_id)
                    base = entry.base_offset if result.status.ok else -1
                    call.add(
                        AppendItemResult(item.stream_id, item.request_index, base, result.timestamp_ms, result.status)
                    )
                return
            status = Status(answer.code, answer.message) if isinstance(answer, SbpError) else answer.status
            for item in items:
                self._lanes.forget(item.stream_id)
                call.refuse(item, SbpError(status.code, status.message))

        self._carrier.submit(AppendRequest(0, entries), answered)


def _count(item: AppendItem) -> int:
    if len(item.batch) > MAX_ENTRY_PAYLOAD:
        message = f"a record batch of {len(item.batch)} bytes exceeds {MAX_ENTRY_PAYLOAD}"
        raise SbpError(ErrorCode.PAYLOAD_TOO_LARGE, message)
    try:
        return count_records(item.batch)
    except DecodeError as error:
        raise SbpError(ErrorCode.BAD_REQUEST, str(error)) from error


def _entry(item: AppendItem, index: int, offset: int, count: int) -> Entry:
    # A copy: the bytes of a received frame are not ours to change, nor are a caller's in this process.
    batch = bytearray(item.batch)
    set_base_offset(batch, offset)
    return pack_entry(item.stream_id, index, FORMAT_FLAG, offset, count, _now_ms(), batch)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Delayed:
    """An append that waits for its lane."""

    __slots__ = ("_appends", "_call", "_count", "_item")

    def __init__(self, appends: Appends, call: _Call, item: AppendItem, count: int) -> None:
        self._appends = appends
        self._call = call
        self._item = item
        self._count = count

    def __call__(self, error: SbpError | None) -> None:
        if error is not None:
            self._call.refuse(self._item, error)
        else:
            self._appends.append_one(self._call, self._item, self._count)


class _Owned:
    """An append that somebody else in this process carries out."""

    __slots__ = ("_call", "_item")

    def __init__(self, call: _Call, item: AppendItem) -> None:
        self._call = call
        self._item = item

    def __call__(self, base_offset: int, error: SbpError | None) -> None:
        item = self._item
        if error is not None:
            self._call.refuse(item, error)
        else:
            self._call.add(AppendItemResult(item.stream_id, item.request_index, base_offset, _now_ms()))


class _Call:
    """One request. Results that come in one turn of the event loop share a frame; the last frame says so."""

    __slots__ = ("_missing", "_reply", "_results", "_scheduled")

    def __init__(self, total: int, reply: Reply) -> None:
        self._missing = total
        self._reply = reply
        self._results: list[AppendItemResult] = []
        self._scheduled = False

    def refuse(self, item: AppendItem, error: SbpError) -> None:
        # A writer gives up after a failure, but not for want of room: it must be able to tell them apart.
        detail = NO_SPACE_DETAIL if isinstance(error, NoSpace) else b""
        status = Status(error.code, error.message, detail)
        self.add(AppendItemResult(item.stream_id, item.request_index, -1, 0, status))

    def add(self, result: AppendItemResult) -> None:
        self._results.append(result)
        self._missing -= 1
        if self._missing == 0:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._scheduled = False
        if self._results:
            self.flush()

    def flush(self) -> None:
        results, self._results = self._results, []
        self._reply(AppendBatchResponse(last=self._missing == 0, results=results))
