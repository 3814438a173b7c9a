"""The one writer of a stream in one epoch (docs/protocols/sbp.md, "Writers").

The writer assigns the offsets; range servers only check that nothing is missing. So a batch has its offset the moment
it is appended. After a failure the writer sends the same batch with the same offset again: to the same range or, when
that is given up, to the next one, which starts exactly where the writer had the old one sealed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from anabranch_kit.memory.buffers import Buffer
from sbp_back.client.control import ControlOptions, ask, list_ranges, repeatedly, tell_end
from sbp_back.client.replica import (
    FENCED_CODES,
    HOPELESS_CODES,
    MAX_ENTRY_PAYLOAD,
    Replica,
    RetryOptions,
    TellOptions,
    Way,
)
from sbp_back.errors import ConnectionLost, ErrorCode, FencedError, NoSpace, SbpError
from sbp_back.wire import model as m
from sbp_back.wire.entry import pack_entry

if TYPE_CHECKING:
    from sbp_back.client.client import Client

AppendDone = Callable[[SbpError | None], None]

_BY_FRAMES = "what a frame of SBP holds"
_SEAL_TIMEOUT = 2.0
"""Seconds (half of what ``control`` allows, if that is less) in which the server of a range that is given up may say
where it ends, before the writer decides without it."""


class WriterOptions(Struct):
    """Limits of a writer. ``range_tries``: ranges tried in a row, and ``patience``: seconds, both without any progress,
    after which pending batches are refused. The writer lives on if it can make sure that none of them is part of the
    stream. ``max_payload``: bytes of the largest
    payload that is taken; more than a frame holds only for a range server in this process. ``bounded_by``: why it is
    bounded.
    """

    range_tries: int = 8
    patience: float = 30.0
    retry: RetryOptions = field(default_factory=RetryOptions)
    control: ControlOptions = field(default_factory=ControlOptions)
    tell: TellOptions = field(default_factory=TellOptions)
    max_payload: int = MAX_ENTRY_PAYLOAD
    bounded_by: str = _BY_FRAMES


class StreamWriter:
    """Appends to a stream; made by ``Client.open``.

    ``next_offset`` is given to the next batch. All below ``confirm_offset`` is durable. ``failed``: why the writer is
    of no further use; a ``FencedError`` when another writer has taken the stream.

    Nothing is created before the first append. ``Client.open`` refuses streams with more than one replica: they need
    several :class:`Replica` side by side here, and the A-th largest of their ``confirm``.
    """

    def __init__(
        self, home: Client, stream_id: int, epoch: int, ranges: list[m.RangeInfo], options: WriterOptions
    ) -> None:
        self.stream_id = stream_id
        self.epoch = epoch
        self.ranges = ranges
        self.start_offset = ranges[0].start if ranges else 0
        self.next_offset = ranges[-1].end if ranges else 0
        self.confirm_offset = self.next_offset
        self.failed: SbpError | None = None
        self._home = home
        self._barrier = home.barrier
        self._options = options
        self._max_payload = options.max_payload
        self._bounded_by = options.bounded_by
        self._tells = home.tells
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[m.Entry, AppendDone]] = deque()
        self._index = ranges[-1].index + 1 if ranges else 0  # of the range that is open, or of the next one
        self.replica: Replica | None = None
        self._unsealed: m.RangeInfo | None = None  # a range of ours that was given up and not sealed yet
        self._seal_tried = False  # whether the placement driver may have sealed it on our word
        self._rounds = 0
        self._trouble: SbpError | None = None  # why the last range was given up
        self._since = 0.0  # when there was progress, or nothing to wait for
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.Event | None = None  # of callers that wait until nothing is pending

    def append(self, payload: Buffer, count: int, flags: int, timestamp: int, done: AppendDone) -> int:
        """Append a batch of ``count`` records and return its base offset; ``timestamp`` is in milliseconds.

        ``done(None)`` is called once the batch is durable, ``done(error)`` if it will not be or that is unknown; never
        before this returns, and for all batches in the order of their offsets. After ``NoSpace`` the writer lives on:
        that batch and all after it were not stored, and ``next_offset`` has gone back. Any other error leaves the
        writer usable in the same way, unless it sets ``failed``.

        ``payload`` must not change until ``done``. Raises ``ValueError`` for a count below 1, ``SbpError`` 1413 for a
        payload that is too large, ``struct.error`` for flags beyond int16. No offset is used up then.
        """
        if self.failed is not None:
            self._loop.call_soon(done, self.failed)
            return self.next_offset
        if count < 1:
            raise ValueError(f"a batch of {count} records")
        if len(payload) > self._max_payload:
            message = f"a batch of {len(payload)} bytes exceeds {self._max_payload}, {self._bounded_by}"
            raise SbpError(ErrorCode.PAYLOAD_TOO_LARGE, message)
        base = self.next_offset
        confirmed = self.confirm_offset if self._tells else -1
        entry = pack_entry(self.stream_id, self._index, flags, base, count, timestamp, payload, confirmed)
        if not self._pending:
            self._since = monotonic()
        self._pending.append((entry, done))
        self.next_offset = base + count
        replica = self.replica
        if replica is not None:
            replica.send(entry)
        elif self._task is None:
            self._task = self._loop.create_task(self._establish())
        return base

    @property
    def servers(self) -> frozenset[int]:
        kept = (info for info in self.ranges if info.end < 0 or info.end > self.start_offset)
        return frozenset(server.server_id for info in kept for server in info.servers)

    @property
    def unconfirmed(self) -> int:
        """Return the number of batches that are still undecided."""
        return len(self._pending)

    async def close(self) -> None:
        """Wait until every batch is decided, then append no more. The last range stays open: the next writer to open
        the stream seals it. Idempotent.
        """
        if self._pending:
            if self._idle is None:
                self._idle = asyncio.Event()
            self._idle.clear()
            await self._idle.wait()
        replica = self.replica
        if replica is not None:
            # Readers may not see the last batch yet, and only this writer can tell the server that it is confirmed.
            with contextlib.suppress(ConnectionLost):
                await replica.channel.tell_confirmed()
        if self.failed is None:
            self.fail(SbpError(ErrorCode.PRECONDITION_FAILED, "the writer is closed"))
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def tell(self) -> None:
        """Tell the range server what is confirmed, ahead of whatever is sent after this."""
        replica = self.replica
        if replica is not None:
            replica.channel.tell((replica,))

    # --- from replicas ----------------------------------------------------------------------------------------------

    def progressed(self, now: float) -> None:
        """Take note that the replica's ``confirm`` has grown; ``now`` on the monotonic clock."""
        replica = self.replica
        if replica is None:
            return
        confirm = self.confirm_offset = replica.confirm
        self._rounds = 0
        self._trouble = None
        self._since = now
        pending = self._pending
        while pending and pending[0][0].base_offset < confirm:
            done = pending.popleft()[1]
            try:
                done(None)
            except Exception as error:  # noqa: BLE001 - logged and counted there
                self._barrier.caught("append answer", error)
        if not pending and self._idle is not None:
            self._idle.set()

    def unsent(self, replica: Replica) -> Sequence[m.Entry]:
        """Return the entries of the range from ``replica.confirm`` on, in order."""
        return [entry for entry, _ in self._pending]

    def out_of_space(self, replica: Replica, status: m.Status) -> None:
        """Handle a full disk at the server. Nothing from ``replica.confirm`` on is stored or can still be, and the
        replica has forgotten those entries.
        """
        self._refuse_all(NoSpace(status.message))

    def broken(self, replica: Replica, status: m.Status) -> None:
        """Handle the end of the replica: it was given up (it sends nothing more), the range was fenced, or the server
        refuses the range.
        """
        if status.code in FENCED_CODES:
            self.fail(FencedError(status.code, status.message))
            return
        if status.code in HOPELESS_CODES:
            self.fail(SbpError(status.code, status.message))
            return
        self.replica = None
        self._unsealed = replica.info
        self._rounds += 1
        self._trouble = SbpError(status.code, status.message)
        if self._task is None:
            self._task = self._loop.create_task(self._establish())

    # --- fates ------------------------------------------------------------------------------------------------------

    def fail(self, error: SbpError) -> None:
        """End the writer; pending batches are answered with ``error``."""
        if self.failed is None:
            self.failed = error
        if self.replica is not None:
            self.replica.close()
            self.replica = None
        self._refuse_all(error)

    def _refuse_all(self, error: SbpError) -> None:
        """Refuse the pending batches: none of them is stored, and their offsets are free again."""
        pending, self._pending = self._pending, deque()
        self.next_offset = self.confirm_offset
        # Pop instead of iterating: a callback of the loop that reports progress may have called this, and that loop
        # must not go on with these batches.
        while pending:
            self._barrier.call("append answer", pending.popleft()[1], error)
        if not self._pending and self._idle is not None:
            self._idle.set()

    # --- ranges -----------------------------------------------------------------------------------------------------

    async def _establish(self) -> None:
        """Find a range that takes the pending batches. Runs as a task of its own, at most one at a time."""
        control = self._options.control
        # A range that used up all patience by itself still has to be sealed.
        left = max(self._since + self._options.patience - monotonic(), control.timeout)
        try:
            async with asyncio.timeout(left):
                await self._try_to_establish()
        except TimeoutError:
            self._give_up(self._trouble or ConnectionLost(f"no range for stream {self.stream_id} in time"))
        except Exception as error:  # noqa: BLE001 - logged and counted there
            # How far the task came is unknown, so nothing may be appended behind it. The stream must be opened again.
            self._barrier.caught("finding a range", error)
            message = f"no range for stream {self.stream_id}: unexpected {type(error).__name__}: {error}"
            self.fail(SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, message))
        finally:
            self._task = None
        # A range may have broken at once, while this task was still running.
        if self.replica is None and self._pending and self.failed is None:
            self._task = self._loop.create_task(self._establish())

    async def _try_to_establish(self) -> None:
        tries = 0
        control = self._options.control
        delay = control.delay_first
        if self._rounds > 1:
            await asyncio.sleep(min(control.delay_first * 2 ** min(self._rounds, 16), control.delay_limit))
        while self.failed is None and self._pending:
            try:
                if self._unsealed is not None:
                    await self._seal(self._unsealed)
                    if not self._pending or self.failed is not None:
                        return  # all of it was stored
                tried, failing_s = self._rounds >= self._options.range_tries, monotonic() - self._since
                if self._trouble is not None and (tried or failing_s >= self._options.patience):
                    self._give_up(self._trouble)
                    return
                info = await self._create()
                channel = self._home.channel(info.servers[0])
            except FencedError as error:
                self.fail(error)
                return
            except SbpError as error:
                tries += 1
                if error.code in HOPELESS_CODES:
                    self.fail(error)
                    return
                if tries >= control.tries:
                    self._give_up(error)
                    return
                await asyncio.sleep(delay)
                delay = min(2 * delay, control.delay_limit)
                continue
            await self._start(info, channel)
            return

    def _give_up(self, error: SbpError) -> None:
        self._rounds = 0
        self._trouble = None
        # In a range that is not sealed a batch may still become durable behind our back.
        if self._unsealed is not None:
            self.fail(error)
        else:
            self._refuse_all(error)

    async def _start(self, info: m.RangeInfo, channel: Way) -> None:
        # The first append meets any failure of this again, and the replica handles it.
        with contextlib.suppress(SbpError):
            await ask(channel.carrier, m.CreateRangeRequest(info), m.RangeResponse, self._options.control)
        if self.failed is not None:
            return
        self.ranges = [*(known for known in self.ranges if known.index < info.index), info]
        self._home.ranges_changed(self)
        replica = self.replica = Replica(self, channel, info, self._options.retry)
        self._bound(channel)
        if self._pending and self._pending[0][0].range_index != info.index:
            self._pending = deque((_moved(entry, info.index), done) for entry, done in self._pending)
        for entry, _ in self._pending:
            replica.send(entry)

    def _bound(self, channel: Way) -> None:
        """Lower the largest payload to what the way takes: a range server elsewhere takes less than one in this
        process.
        """
        options = self._options
        self._max_payload, self._bounded_by = options.max_payload, options.bounded_by
        if channel.framed and options.max_payload > MAX_ENTRY_PAYLOAD:
            self._max_payload, self._bounded_by = MAX_ENTRY_PAYLOAD, _BY_FRAMES
            if any(len(entry.payload) > MAX_ENTRY_PAYLOAD for entry, _ in self._pending):
                # These batches were accepted before the limit was known. Those too large fail when they are repeated.
                message = f"what is appended to stream {self.stream_id} has to be split"
                self._refuse_all(SbpError(ErrorCode.PD_NO_AVAILABLE_RS, message))

    async def _create(self) -> m.RangeInfo:
        """Have the placement driver make the next range for this writer. Raises ``SbpError``."""
        wanted = m.RangeInfo(self.stream_id, self.epoch, self._index, self.confirm_offset)
        try:
            response = await ask(self._home.pd, m.CreateRangeRequest(wanted), m.RangeResponse, self._options.control)
            info = response.range
        except SbpError as error:
            if error.code not in (ErrorCode.CREATE_RANGE_BEFORE_SEAL, ErrorCode.BAD_REQUEST):
                raise
            # Either our own earlier try was served and its answer got lost, or another writer was here.
            info = await self._last_range()
            if info is None or (info.epoch, info.index, info.end) != (self.epoch, self._index, -1):
                raise FencedError(error.code, f"another writer has changed stream {self.stream_id}") from error
        if info is None or not info.servers:
            raise SbpError(ErrorCode.PD_NO_AVAILABLE_RS, f"stream {self.stream_id} got a range without a server")
        # Keep the start of the request: a trim may have raised the one in the answer.
        return replace(info, start=wanted.start)

    async def _seal(self, info: m.RangeInfo) -> None:
        """End our own range: where its server says that it ends (the server then takes nothing more), or at what is
        confirmed if the server does not answer. The placement driver makes that end authoritative.

        Readers never saw what the server has beyond it: the server shows only what we told it is confirmed, or what the
        placement driver has promised to keep.
        """
        end = max(await self._end_on_server(info), self.confirm_offset)
        sealed = replace(info, epoch=self.epoch, end=end)
        request = m.SealRangeRequest.decided(sealed)

        async def attempt() -> m.RangeResponse:
            tried, self._seal_tried = self._seal_tried, True
            try:
                return await ask(self._home.pd, request, m.RangeResponse, self._options.control)
            except SbpError as error:
                if error.code == ErrorCode.RANGE_ALREADY_SEALED and not tried:
                    raise FencedError(error.code, error.message) from error
                raise

        try:
            response = await repeatedly(attempt, self._options.control)
            if response.range is not None and response.range.end > end:
                # The server has shown more than we confirmed; the placement driver has promised to keep that.
                sealed = replace(sealed, end=response.range.end)
        except FencedError:
            raise
        except SbpError as error:
            if error.code != ErrorCode.RANGE_ALREADY_SEALED:
                raise
            # An earlier try of ours sealed it, perhaps with another end: that end counts.
            last = await self._last_range()
            ours = last is not None and (last.epoch, last.index) == (self.epoch, info.index)
            if last is None or not ours or last.end < self.confirm_offset:
                raise FencedError(error.code, f"range {info.index} of stream {self.stream_id} was sealed") from error
            sealed = replace(sealed, end=last.end)
        self._seal_tried = False
        self._unsealed = None
        self._index = info.index + 1
        self.ranges = [*(known for known in self.ranges if known.index < info.index), sealed]
        self._home.ranges_changed(self)
        with contextlib.suppress(ConnectionLost):
            tell_end(self._home.channel(info.servers[0]).carrier, sealed, self._options.control)
        self._stored_up_to(sealed.end)

    async def _end_on_server(self, info: m.RangeInfo) -> int:
        """Seal the range on its server and return the end; -1 when the server does not answer, or cannot. Raises
        ``FencedError``.
        """
        asked = m.SealRangeRequest(m.RangeInfo(info.stream_id, self.epoch, info.index, info.start))
        options = self._options
        limits = replace(options.control, timeout=min(_SEAL_TIMEOUT, options.control.timeout / 2))
        try:
            response = await ask(self._home.channel(info.servers[0]).carrier, asked, m.RangeResponse, limits)
        except FencedError:
            raise
        except SbpError:
            return -1
        return -1 if response.range is None else response.range.end

    def _stored_up_to(self, end: int) -> None:
        """Confirm the pending batches below ``end``, where the range was sealed: they are stored after all."""
        if end <= self.confirm_offset:
            return
        self.confirm_offset = end
        self.next_offset = max(self.next_offset, end)
        self._rounds = 0
        self._trouble = None
        self._since = monotonic()
        pending = self._pending
        while pending and pending[0][0].end_offset <= end:
            self._barrier.call("append answer", pending.popleft()[1], None)
        if pending and pending[0][0].base_offset < end:
            message = f"range {self._index - 1} of stream {self.stream_id} ends at {end}, within a batch"
            self.fail(SbpError(ErrorCode.RS_DATA_CORRUPTED, message))
        if not pending and self._idle is not None:
            self._idle.set()

    async def _last_range(self) -> m.RangeInfo | None:
        ranges = await list_ranges(self._home.pd, self.stream_id, self._options.control)
        return ranges[-1] if ranges else None


def _moved(entry: m.Entry, range_index: int) -> m.Entry:
    place = entry.stream_id, range_index, entry.flags, entry.base_offset
    return pack_entry(*place, entry.count, entry.timestamp, entry.payload, entry.confirmed)
