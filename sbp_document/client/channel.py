"""The way to one range server of the document: all requests of one turn of the event loop share few frames.

APPEND carries batches of many streams, FETCH asks for many streams at once; the server answers each element by itself,
in any order and any frame (document, sections APPEND and FETCH).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.run.barrier import Barrier
from sbp_back.errors import NO_SPACE_DETAIL, ConnectionLost, DecodeError, ErrorCode, NoSpace, SbpError
from sbp_back.transport.carrier import Answer, Carrier
from sbp_back.wire.model import DocumentResponse, Entry, Status
from sbp_document.errors import DocumentError
from sbp_document.timeouts import milliseconds
from sbp_document.wire.messages import (
    AppendBatchRequest,
    AppendBatchResponse,
    AppendItem,
    AppendItemResult,
    FetchBatchRequest,
    FetchBatchResponse,
    FetchItem,
    FetchItemResult,
)
from sbp_document.wire.wrapped import entries_of

AppendDone = Callable[[int | SbpError], None]
"""Called with the base offset or an error, exactly once."""
FetchDone = Callable[[list[Entry] | SbpError], None]

FRAME_BYTES = 2 * 1024 * 1024
"""Batches share an APPEND frame up to so many bytes: the server stores one frame while it receives the next."""
_FRAME_ITEMS = 4096


def error_of(status: Status) -> SbpError:
    """Return an element's status as an exception."""
    return NoSpace(status.message) if status.detail == NO_SPACE_DETAIL else DocumentError(status)


class DocumentChannel:
    """Sends appends and fetches through ``carrier``, which it closes; timeouts in seconds, of each request."""

    def __init__(self, carrier: Carrier, append_timeout: float, fetch_timeout: float, barrier: Barrier) -> None:
        self.carrier = carrier
        self._barrier = barrier
        self._append_timeout = append_timeout
        self._fetch_timeout = fetch_timeout
        self._loop = asyncio.get_running_loop()
        self._appends: list[tuple[AppendItem, AppendDone]] = []
        self._fetches: list[tuple[FetchItem, FetchDone]] = []

    def append(self, stream_id: int, batch: Buffer, done: AppendDone) -> None:
        """Append a record batch. Batches of one stream are stored in the order of these calls, but the failure of one
        does not keep the next from being stored.
        """
        self._schedule()
        self._appends.append((AppendItem(stream_id, 0, batch), done))

    def fetch(self, stream_id: int, offset: int, max_bytes: int, done: FetchDone) -> None:
        """Fetch batches from the one that contains ``offset`` on, as entries (:func:`~.wrapped.entries_of`)."""
        self._schedule()
        self._fetches.append((FetchItem(stream_id, 0, offset, max_bytes), done))

    async def watch(self, wanted: list[tuple[int, int]], wait: float) -> AsyncIterator[tuple[int, list[Entry]]]:
        """Wait up to ``wait`` seconds for data behind each of the (stream, offset) pairs; yield the index in ``wanted``
        and the entries, as they arrive. An error ends it.
        """
        items = [FetchItem(stream_id, index, offset, 1) for index, (stream_id, offset) in enumerate(wanted)]
        parts: asyncio.Queue[Answer] = asyncio.Queue()
        request = FetchBatchRequest(milliseconds(wait), 1, items)
        self.carrier.submit(request, parts.put_nowait, wait + self._fetch_timeout)
        while isinstance(part := await parts.get(), FetchBatchResponse) and part.status.ok:
            for result in part.results:
                found = _decode(result)
                if isinstance(found, list) and found and 0 <= result.request_index < len(wanted):
                    yield result.request_index, found
            if part.last:
                return

    async def close(self) -> None:
        """Close the carrier; waiting requests are answered with ``ConnectionLost``."""
        self._flush()
        await self.carrier.close()

    def _schedule(self) -> None:
        if not self._appends and not self._fetches:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        appends, self._appends = self._appends, []
        fetches, self._fetches = self._fetches, []
        frame: list[tuple[AppendItem, AppendDone]] = []
        size = 0
        for item, done in appends:
            if frame and (size + len(item.batch) > FRAME_BYTES or len(frame) >= _FRAME_ITEMS):
                self._send(frame)
                frame, size = [], 0
            frame.append((item, done))
            size += len(item.batch)
        if frame:
            self._send(frame)
        for start in range(0, len(fetches), _FRAME_ITEMS):
            self._ask(fetches[start : start + _FRAME_ITEMS])

    def _send(self, appends: list[tuple[AppendItem, AppendDone]]) -> None:
        request = AppendBatchRequest(milliseconds(self._append_timeout), _numbered(appends))
        reply = partial(self._answered, AppendBatchResponse, _stored, dict(enumerate(done for _, done in appends)))
        self.carrier.submit(request, reply, self._append_timeout)

    def _ask(self, fetches: list[tuple[FetchItem, FetchDone]]) -> None:
        request = FetchBatchRequest(0, 0, _numbered(fetches))
        reply = partial(self._answered, FetchBatchResponse, _decode, dict(enumerate(done for _, done in fetches)))
        self.carrier.submit(request, reply, self._fetch_timeout)

    def _answered(
        self,
        kind: type[AppendBatchResponse] | type[FetchBatchResponse],
        outcome: Callable[[Any], object],
        waiting: dict[int, Callable[[Any], None]],
        answer: Answer,
    ) -> None:
        """Take a part of an answer, the last one, or the error in its place: call those in ``waiting``, by request
        index, with ``outcome`` of their result.
        """
        if isinstance(answer, kind) and answer.status.ok:
            for result in answer.results:
                done = waiting.pop(result.request_index, None)
                if done is not None:
                    self._barrier.call("answer of an element", self._tell, done, outcome, result)
            if not answer.last:
                return
        error = _failure(answer)
        left = list(waiting.values())
        waiting.clear()
        for done in left:
            self._barrier.call("answer of an element", done, error)

    def _tell(self, done: Callable[[Any], None], outcome: Callable[[Any], object], result: Any) -> None:
        try:
            found = outcome(result)
        except Exception as error:  # noqa: BLE001 - logged and counted there
            self._barrier.caught("reading an element of an answer", error)
            found = SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "unexpected error, see the log")
        done(found)


I = TypeVar("I", AppendItem, FetchItem)  # noqa: E741 - an item


def _numbered(asked: list[tuple[I, Any]]) -> list[I]:
    """Return the items of a request; its answer refers to them by their places."""
    items = [item for item, _ in asked]
    for index, item in enumerate(items):
        item.request_index = index
    return items


def _stored(result: AppendItemResult) -> int | SbpError:
    return result.base_offset if result.status.ok else error_of(result.status)


def _decode(result: FetchItemResult) -> list[Entry] | SbpError:
    if result.status.code == ErrorCode.NO_NEW_RECORD:
        return []
    if not result.status.ok:
        return error_of(result.status)
    data = result.parts[0] if len(result.parts) == 1 else b"".join(result.parts)
    try:
        return entries_of(data, result.stream_id)
    except DecodeError as error:
        return SbpError(ErrorCode.RS_DATA_CORRUPTED, f"stream {result.stream_id} holds malformed batches: {error}")


def _failure(answer: Answer) -> SbpError:
    """Return why elements of a fully answered request have no answer."""
    if isinstance(answer, ConnectionLost):
        return answer
    if not answer.status.ok:
        return error_of(answer.status)
    kind = "nothing of it" if isinstance(answer, DocumentResponse) else type(answer).__name__
    return ConnectionLost(f"the server's answer to a request says {kind}")
