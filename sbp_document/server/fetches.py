"""FETCH of sbp-v0.1: several streams in one frame, each answered as soon as it has a result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.memory.buffers import Buffer
from anabranch_kit.run.turns import Turns
from sbp_back.errors import ErrorCode, Reclaimed, SbpError
from sbp_back.transport.handler import DEFECT, Reply
from sbp_back.wire.model import DescribeStreamRequest, Entry, Status
from sbp_back.wire.room import Room
from sbp_document.errors import RECLAIMED_DETAIL
from sbp_document.server.parts import Parts
from sbp_document.wire.messages import (
    FetchBatchRequest,
    FetchBatchResponse,
    FetchItem,
    FetchItemResult,
    fetch_bytes,
)
from sbp_document.wire.wrapped import as_batch

if TYPE_CHECKING:
    from sbp_back.client.client import Client
    from sbp_back.transport.carrier import Answer

_MAX_WAIT_MS = 5 * 60 * 1000
_FRAME_BYTES = 15 * 1024 * 1024
"""Results share a frame up to so many bytes; the rest of 16 MiB is for a single longer batch."""
_RESULT_BYTES = 128
"""Bytes of a result in the frame's header, besides its message."""


class Fetches:
    """Takes FETCH requests of the document. ``client`` finds the range of an offset and waits for data."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.barrier = client.barrier
        self._waiting: set[_Call] = set()
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Return the number of requests that are not answered in full."""
        return len(self._waiting)

    def handle(self, request: FetchBatchRequest, reply: Reply) -> None:
        call = _Call(self, request, reply)
        if request.items:
            self._waiting.add(call)
        wait = 0 if self._stopping else max(0, min(request.max_wait_ms, _MAX_WAIT_MS))
        if request.items:
            self._start_on(call, iter(enumerate(call.items)), max(1, request.min_bytes), wait)
        else:
            call.flush()

    def _start_on(self, call: _Call, items: Iterator[tuple[int, FetchItem]], min_bytes: int, wait: int) -> None:
        """Start a request's fetches in turns: it may ask for thousands of streams."""
        turns = Turns()
        for position, item in items:
            if call in self._waiting:  # otherwise it was given up
                self._start(call, position, item, min_bytes, wait)
            if turns.is_over:
                asyncio.get_running_loop().call_soon(self._start_on, call, items, min_bytes, wait)
                return

    def _start(self, call: _Call, position: int, item: FetchItem, min_bytes: int, wait: int) -> None:
        def fetch() -> None:
            self._client.fetch(
                item.stream_id,
                item.offset,
                fetch_bytes(item.max_bytes),
                partial(call.fetched, position),
                min_bytes=min_bytes,
                max_wait_ms=wait,
                room=call.room,
            )

        if self._client.known_ranges(item.stream_id):
            fetch()
            return

        # Check that the stream exists: the client would wait for its first range until the time is up.
        def described(answer: Answer) -> None:
            if isinstance(answer, SbpError):
                call.fetched(position, answer)
            elif not answer.status.ok:
                call.fetched(position, SbpError(answer.status.code, answer.status.message))
            else:
                fetch()

        def shielded(answer: Answer) -> None:
            if not self.barrier.call("fetch", described, answer):
                call.fetched(position, SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "unexpected error, see the log"))

        self._client.pd.submit(DescribeStreamRequest(item.stream_id), shielded)

    def finished(self, call: _Call) -> None:
        self._waiting.discard(call)

    def stop_waiting(self) -> None:
        """Answer every waiting fetch with nothing, and let no request wait any more: the server shuts down."""
        self._stopping = True
        for call in list(self._waiting):
            call.give_up()


class _Call(Parts[FetchItemResult]):
    """One request."""

    __slots__ = ("_fetches", "_missing", "_request", "_size")

    def __init__(self, fetches: Fetches, request: FetchBatchRequest, reply: Reply) -> None:
        super().__init__(reply)
        self._fetches = fetches
        self._request = request
        self._missing = set(range(len(request.items)))
        self._size = 0

    @property
    def items(self) -> list[FetchItem]:
        return self._request.items

    @property
    def room(self) -> Room | None:
        return self._request.room

    def fetched(self, position: int, answer: list[Entry] | SbpError) -> None:
        if position not in self._missing:
            return  # given up
        item = self._request.items[position]
        result = FetchItemResult(item.stream_id, item.request_index)
        if isinstance(answer, SbpError):
            detail = RECLAIMED_DETAIL if isinstance(answer, Reclaimed) else b""
            result.status = Status(answer.code, answer.message, detail)
        elif not answer:
            result.status = Status(ErrorCode.NO_NEW_RECORD)
        else:
            if not self._fetches.barrier.call("writing a batch", _fill, result, answer):
                result = FetchItemResult(item.stream_id, item.request_index, DEFECT)
            if self.room is not None:
                # The result has other bytes than the entries: without the store's prefix, or with a batch around them.
                self.room.settle(0, result.size - sum(entry.size for entry in answer))
        size = result.size + _RESULT_BYTES + 2 * len(result.status.message)
        if self._results and self._size + size > _FRAME_BYTES:
            self.flush()
        self._missing.discard(position)
        self._size += size
        self.tell(result, last=not self._missing)

    def give_up(self) -> None:
        for position in sorted(self._missing):
            self.fetched(position, [])

    def flush(self) -> None:
        results, self._results = self._results, []
        self._size = 0
        if not self._missing:
            self._fetches.finished(self)
        self._fetches.barrier.call("reply", self._reply, FetchBatchResponse(last=not self._missing, results=results))


def _fill(result: FetchItemResult, entries: list[Entry]) -> None:
    """Fill a result with at least one batch, and more as far as a frame holds. A fetch that goes on into the stream's
    next range reads at least one batch from there, however long that is.
    """
    parts: list[Buffer] = []
    size = count = 0
    for entry in entries:
        made = as_batch(entry)
        size += sum(len(part) for part in made)
        if count and size > _FRAME_BYTES:
            break
        parts += made
        count += 1
    result.parts = parts
    result.batch_count = count
