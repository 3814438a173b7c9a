"""The lane of a stream: the range that takes appends of sbp-v0.1, and how the server gets it.

The server assigns offsets, so all clients of the document share one writer per stream: the server. Its ranges are
marked as such at the placement driver (``document/pd_rules.py``), and the mark decides:

* the stream's last range is open and marked: appends go there, also after a restart;
* it is sealed, or there is none: the server makes the next one, marked;
* it is open and not marked, so a writer of sbp-0.2 has it: appends are refused until SEAL_RANGES takes the range away
  from that writer. An append never does so: its sender may not know of the other writer.

A stream may also have an owner in this process (``Lanes.owner_of``): its appends then go through that owner, and no
range changes hands.

A writer of sbp-0.2 that opens the stream seals our range like any other; everything we have acknowledged lies below its
end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.placement_driver.state import RangeRow
from sbp_back.transport.handler import DEFECT
from sbp_back.wire.model import CreateRangeRequest, RangeInfo, RangeResponse, SealRangeRequest, Status
from sbp_document.server import pd_rules as rules

if TYPE_CHECKING:
    from sbp_back.placement_driver.driver import PlacementDriver
    from sbp_back.range_server.server import RangeServer
    from sbp_back.transport.carrier import Carrier

Ready = Callable[[SbpError | None], None]

logger = logging.getLogger(__name__)

_TRIES = 5
_STOPPED = SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "the server is shutting down")


def error_of(status: Status) -> SbpError:
    return SbpError(status.code, status.message)


class StreamOwner(Protocol):
    """The writer of a stream in this process, for instance a node's partition."""

    def append(self, batch: bytearray, count: int, flags: int, done: Callable[[int, SbpError | None], None]) -> None:
        """Append a record batch of ``count`` records as one entry; the owner writes its base offset into it
        (:func:`~sbp_document.wire.record_batch.set_base_offset`). ``done`` gets that offset, or -1 and the error, once.
        """


OwnerOf = Callable[[int], StreamOwner | None]
"""Returns a stream's owner in this process; None if it has none, so that the lanes write it."""


def nobody(stream_id: int) -> StreamOwner | None:
    return None


class Lanes:
    """The ranges that take appends, by stream. Shared by all listeners of the document's dialect.

    ``pd`` and ``range_server`` are in this process, ``to_range_server`` leads there: an offset is read from the range
    server's window and the entry handed over in one step of the event loop, so no other append can take the offset
    between.
    """

    def __init__(
        self,
        pd: PlacementDriver,
        range_server: RangeServer,
        to_range_server: Carrier,
        barrier: Barrier,
        owner_of: OwnerOf = nobody,
    ) -> None:
        self.pd = pd
        self.barrier = barrier
        self.range_server = range_server
        self.to_range_server = to_range_server
        self.owner_of = owner_of
        self._open: dict[int, int] = {}
        self._waiting: dict[int, list[Ready]] = {}
        self._changing: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()  # the ranges of a stream
        self._tasks = TaskSet()
        self._closed = False

    @property
    def server_id(self) -> int:
        return self.range_server.info.server_id

    def position(self, stream_id: int) -> tuple[int, int]:
        """Return (range index, next offset) for an append at this moment; (-1, -1) when the lane has to be found first,
        or earlier appends still wait for it.
        """
        index = self._open.get(stream_id, -1)
        if index < 0 or stream_id in self._waiting:
            return -1, -1
        offset = self.range_server.next_offset(stream_id, index)
        if offset < 0:
            del self._open[stream_id]
            return -1, -1
        return index, offset

    def forget(self, stream_id: int) -> None:
        """Forget the range, which has failed; the next append looks again."""
        self._open.pop(stream_id, None)

    def when_ready(self, stream_id: int, ready: Ready) -> None:
        """Call ``ready`` once there is a position, or with the error that prevents it."""
        if self._closed:
            ready(_STOPPED)
            return
        waiting = self._waiting.get(stream_id)
        if waiting is not None:
            waiting.append(ready)
            return
        self._waiting[stream_id] = [ready]
        self._tasks.spawn(self._find(stream_id))

    async def _find(self, stream_id: int) -> None:
        # No variable here may keep the exception: its traceback keeps this frame.
        try:
            async with self._changing.setdefault(stream_id, asyncio.Lock()):
                await self._acquire(stream_id)
        except SbpError as refused:
            self._wake(stream_id, refused)
        except Exception as failure:  # noqa: BLE001 - logged and counted there
            self.barrier.caught("looking for a range", failure, stream_id=stream_id)
            self._wake(stream_id, SbpError(DEFECT.code, DEFECT.message))
        else:
            self._wake(stream_id, None)

    def _wake(self, stream_id: int, error: SbpError | None) -> None:
        for ready in self._waiting.pop(stream_id):
            self.barrier.call("append that waited for its range", ready, error)

    async def _acquire(self, stream_id: int) -> None:
        if self.position(stream_id)[0] >= 0:
            return
        for _ in range(_TRIES):
            last = await self._last(stream_id)
            if last is None or not last.is_open:
                made = await self.pd.run(lambda tx: rules.next_range(tx, stream_id, self.server_id))
                if isinstance(made, Status):
                    if made.code == ErrorCode.CREATE_RANGE_BEFORE_SEAL:
                        continue  # another writer was faster: look again
                    raise error_of(made)
                last = made
            elif not last.document:
                message = f"range {last.index} of stream {stream_id} is written by a writer of sbp-0.2"
                message += f" in epoch {last.epoch}: SEAL_RANGES takes the stream from it"
                raise SbpError(ErrorCode.PRECONDITION_FAILED, message)
            await self._adopt(last)
            return
        raise SbpError(ErrorCode.PRECONDITION_FAILED, f"the ranges of stream {stream_id} keep changing")

    async def _last(self, stream_id: int) -> RangeRow | None:
        """Return the last range of a stream we may write. Raises ``SbpError`` 1404, 1498."""
        found = await self.pd.run(lambda tx: rules.tail(tx, stream_id))
        if found.stream is None:
            raise SbpError(ErrorCode.NOT_FOUND, f"there is no stream {stream_id}")
        if found.stream.replica > 1:
            message = f"stream {stream_id} has {found.stream.replica} replicas, this server writes one"
            raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, message)
        return found.last

    async def _adopt(self, row: RangeRow) -> None:
        """Make the open range of ``row`` the lane; create it on the range server if that does not have it yet."""
        if self.server_id not in row.server_ids:
            message = f"range {row.index} of stream {row.stream_id} is on another server"
            raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, message)
        known = self.range_server.state_of(row.stream_id, row.index)
        if known is None:
            await self._ask(CreateRangeRequest(RangeInfo(row.stream_id, row.epoch, row.index, row.start)))
        if self.range_server.next_offset(row.stream_id, row.index) < 0:
            message = f"range {row.index} of stream {row.stream_id} is sealed on its server"
            raise SbpError(ErrorCode.RANGE_ALREADY_SEALED, f"{message}: SEAL_RANGES opens the next one")
        self._open[row.stream_id] = row.index

    async def _ask(self, request: CreateRangeRequest | SealRangeRequest) -> RangeInfo:
        response = await self.to_range_server.call(request)
        if not response.status.ok:
            raise error_of(response.status)
        if not isinstance(response, RangeResponse) or response.range is None:
            raise SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "the range server named no range")
        return response.range

    # --- changes of ranges ------------------------------------------------------------------------------------------

    async def started(self, row: RangeRow) -> None:
        """Begin with a stream that was created with its first range. Raises ``SbpError``."""
        async with self._changing.setdefault(row.stream_id, asyncio.Lock()):
            await self._adopt(row)

    async def next_range(self, stream_id: int, index: int, start: int) -> int:
        """Open the range after the last one, which must be sealed, and return its index. ``index`` and ``start`` are
        what the caller expects it to be, -1 for any. Raises ``SbpError`` 1470, 1400.
        """
        async with self._changing.setdefault(stream_id, asyncio.Lock()):
            last = await self._last(stream_id)
            if last is not None and last.is_open:
                message = f"range {last.index} of stream {stream_id} is still open"
                raise SbpError(ErrorCode.CREATE_RANGE_BEFORE_SEAL, message)
            will_be = (0, 0) if last is None else (last.index + 1, last.end)
            if index not in (-1, will_be[0]) or (start >= 0 and last is not None and start not in (0, will_be[1])):
                message = f"the next range of stream {stream_id} is {will_be[0]} from offset {will_be[1]}"
                raise SbpError(ErrorCode.BAD_REQUEST, message)
            made = await self.pd.run(lambda tx: rules.next_range(tx, stream_id, self.server_id))
            if isinstance(made, Status):
                raise error_of(made)
            await self._adopt(made)
            return made.index

    async def seal(self, stream_id: int, index: int) -> int:
        """Seal range ``index`` if it is the last one, open the next one and return the index of the open range
        (docs/protocols/sbp.md, "Placement driver": repeatable). Raises ``SbpError`` 1462 for a range that does not
        exist.
        """
        async with self._changing.setdefault(stream_id, asyncio.Lock()):
            for _ in range(_TRIES):
                last = await self._last(stream_id)
                if last is None or not 0 <= index <= last.index:
                    raise SbpError(ErrorCode.RANGE_NOT_FOUND, f"stream {stream_id} has no range {index}")
                if last.is_open and index < last.index:
                    return last.index
                made: RangeRow | Status
                if last.is_open:
                    sealed = await self.seal_here(last)
                    made = await self.pd.run(lambda tx, info=sealed: rules.seal_and_next(tx, info, self.server_id))  # type: ignore[misc]
                else:
                    made = await self.pd.run(lambda tx: rules.next_range(tx, stream_id, self.server_id))
                if isinstance(made, RangeRow):
                    self.pd.tell_servers()
                    await self._adopt(made)
                    return made.index
                if made.code not in (ErrorCode.RANGE_ALREADY_SEALED, ErrorCode.CREATE_RANGE_BEFORE_SEAL):
                    raise error_of(made)
            raise SbpError(ErrorCode.PRECONDITION_FAILED, f"the ranges of stream {stream_id} keep changing")

    async def seal_here(self, row: RangeRow) -> RangeInfo:
        """Seal a range on the range server alone, at the end of its durable data; return it as sealed."""
        self.forget(row.stream_id)
        known = self.range_server.state_of(row.stream_id, row.index)
        # Another writer that is taking the stream may have raised the epoch on the server already.
        epoch = row.epoch if known is None else max(row.epoch, known.stored.epoch)
        sealed = await self._ask(SealRangeRequest(RangeInfo(row.stream_id, epoch, row.index, row.start)))
        # The placement driver compares with the range's original start, whatever a trim has left of it.
        return RangeInfo(row.stream_id, epoch, row.index, row.start, sealed.end)

    async def seal_on_server(self, stream_id: int, index: int) -> RangeInfo:
        """Seal a range as a range server of its own serves SEAL_RANGES: end the range, open nothing."""
        async with self._changing.setdefault(stream_id, asyncio.Lock()):
            found = await self.pd.run(lambda tx: tx.get_range(stream_id, index))
            if found is None:
                raise SbpError(ErrorCode.RANGE_NOT_FOUND, f"stream {stream_id} has no range {index}")
            return await self.seal_here(found)

    async def close(self) -> None:
        """Refuse the appends that wait for their range. Idempotent."""
        self._closed = True
        await self._tasks.close()
        # Refuse here rather than in the tasks: a task that is cancelled before its first step never runs.
        for stream_id in list(self._waiting):
            self._wake(stream_id, _STOPPED)
