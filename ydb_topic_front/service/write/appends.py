"""What one session of StreamWrite has on its way to its partition's log: handed over, or waiting for that.

Small requests that come while earlier ones are being made durable are handed over when most of these are answered: to
answer takes the time in which as many more come, and the last answers that in which the log makes the next durable.
Those whose numbers go on rising are then one batch, since a batch costs as much as the messages of some hundred
requests: a client that sends ahead gets batches nearly as large as what it sends ahead, one that waits for each answer
gets each of its requests written at once. Each request is answered by itself all the same. Those that are too large to
share a batch wait for no answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.deadlines import Alarm
from anabranch_kit.run.turns import worked_off
from bridges.formats.ydb import first_created_ms
from ydb_topic_front.session.write_batches import Batches, Held, joined, together
from ydb_topic_front.session.write_request import MAX_BATCH_BYTES

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import Account
    from bridges.errors import LogError
    from bridges.log.interfaces import Appended, Batch
    from bridges.log.partition.partition_log import PartitionLog
    from ydb_topic_front.session.write_queue import Request
    from ydb_topic_front.session.write_request import Part, WriteParts

_HELD_BYTES = 256 * 1024
"""Requests of so many bytes together are worth being handed over to the log while others are being made durable."""
_LAST_PART = 4
"""Of what was made durable together, one part in so many is answered while the next is being made durable."""
_PATIENCE_S = 0.1
"""Answers that the client does not take hold up what it has sent for no longer than this."""


class WriteAppends:
    """The requests of one session that the log has not decided. Call :meth:`begin` first.

    ``may_append`` tells whether nothing was refused yet: what comes behind that must not get into the log without it.
    ``failed`` is called with what the log refuses, ``moved`` whenever something is decided, and ``left`` when all is
    after :meth:`close`.
    """

    def __init__(
        self,
        account: Account,
        may_append: Callable[[], bool],
        failed: Callable[[LogError], None],
        moved: Callable[[], None],
        left: Callable[[], None],
    ) -> None:
        self._account = account
        self._may_append = may_append
        self._failed = failed
        self._moved = moved
        self._left = left
        self._log: PartitionLog | None = None
        self._batches = Batches(b"", b"")
        self._written: Callable[[int, int, int], None] = _ignore
        self._held: list[Held] = []
        self._held_bytes = 0
        self._closed = False
        self._settled = asyncio.Event()
        self._settled.set()
        self.in_flight = 0
        """Requests that the log has not decided."""
        self._owed = 0  # decided, and not answered
        self._few = 0  # so many of these are answered while the next are being made durable
        self._loop = asyncio.get_running_loop()
        self._overdue = Alarm(self._loop, self._hand_over_overdue)

    def begin(self, log: PartitionLog, batches: Batches, written: Callable[[int, int, int], None]) -> None:
        """Append to ``log`` what ``batches`` makes of requests. ``written`` is called with the messages of each batch
        that became durable, the bytes of their requests, and when the first of them was created (-1: unknown)."""
        self._log, self._batches, self._written = log, batches, written

    async def settled(self) -> None:
        """Return when the fate of everything that was handed to the log is decided."""
        await self._settled.wait()

    def close(self) -> None:
        """Nobody waits for answers any more: requests give back what they hold as soon as the log has decided."""
        self._closed = True
        self._overdue.cancel()
        if not self.in_flight:
            self._leave()

    def _leave(self) -> None:
        """All is decided after the end, and nobody is to be told any more: whom that would be is let go of. The session
        knows this and is known by it, and both would stay until the collector comes, which a node has come seldom."""
        self._left()
        del self._may_append, self._failed, self._moved, self._left, self._written, self._overdue

    # --- handing over -----------------------------------------------------------------------------------------------

    async def take(self, request: Request, found: WriteParts) -> None:
        """Have a request appended, now or with others."""
        part = found.parts[0]
        if len(found.parts) > 1 or len(part.messages) > MAX_BATCH_BYTES:
            self.hand_over_held()
            await self._append_parts(request, found)
            return
        latest = Held(request, part, found.codec)
        self._held.append(latest)
        self._held_bytes += request.size
        if self._held_bytes >= _HELD_BYTES or (not self.in_flight and (not latest.shares or self._owed <= self._few)):
            self.hand_over_held()
        elif len(self._held) == 1:
            self._overdue.set(self._loop.time() + _PATIENCE_S)

    def answered(self) -> None:
        """A request that was decided is being answered."""
        self._owed -= 1
        if self._owed <= self._few:
            self._hand_over_waiting()

    def _hand_over_overdue(self, now: float) -> None:
        # Perhaps what is held came later than what the alarm was set for: then it goes a little early.
        self._hand_over_waiting()
        if self._held:  # others are with the log
            self._overdue.set(now + _PATIENCE_S)

    def _hand_over_waiting(self) -> None:
        if self._held and not self.in_flight and self._may_append():
            self.hand_over_held()

    def hand_over_held(self) -> None:
        """Hand over to the log what waits for it."""
        held, self._held, self._held_bytes = self._held, [], 0
        for these in together(held):
            requests = [one.request for one in these]
            self._begin(requests)
            try:
                part = these[0].part if len(these) == 1 else joined([one.part for one in these])
                self._append(requests, 0, part, self._batches.batch(part, these[0].codec))
            finally:
                self._decided(requests)

    async def _append_parts(self, request: Request, found: WriteParts) -> None:
        # What is copied for the log is there besides the bytes that came.
        self._account.take(Kind.REQUESTS, request.size)
        self._begin([request])
        try:
            for index, part in enumerate(found.parts):
                await asyncio.sleep(0)  # to copy one of them is work for a turn
                if len(part.messages) <= MAX_BATCH_BYTES:
                    self._append([request], index, part, self._batches.batch(part, found.codec))
                    continue
                batch = await worked_off(self._batches.in_slices(part, found.codec))
                self._append([request], index, part, batch)
        finally:
            self._account.give(Kind.REQUESTS, request.size)
            self._decided([request])

    def _begin(self, requests: Sequence[Request]) -> None:
        self._settled.clear()
        self.in_flight += len(requests)
        now = time.monotonic()
        for request in requests:
            request.undecided = 1
            request.handed = now

    def _append(self, requests: Sequence[Request], index: int, part: Part, batch: Batch) -> None:
        """Hand over ``batch``, which ``part`` became: the parts ``index`` of these requests."""
        if self._may_append():
            assert self._log is not None
            for request in requests:
                request.undecided += 1
            created = first_created_ms(part.messages)
            self._log.append(batch, partial(self._stored, requests, index, created))

    # --- what becomes of it -----------------------------------------------------------------------------------------

    def _stored(
        self, requests: Sequence[Request], index: int, created_ms: int, appended: Appended, error: LogError | None
    ) -> None:
        """The log's answer for one batch."""
        if error is not None:
            self._failed(error)
        else:
            place = size = 0
            for request in requests:
                place += request.stored_part(index, appended, place)
                size += request.size // len(request.parts)
            if not appended.duplicate:
                self._written(appended.end - appended.base, size, created_ms)
        self._decided(requests)

    def _decided(self, requests: Sequence[Request]) -> None:
        now = time.monotonic()
        for request in requests:
            request.undecided -= 1
            if request.undecided:
                continue
            request.stored = now
            if self._closed:
                self._account.give(Kind.REQUESTS, request.cost)
            self.in_flight -= 1
            self._owed += 1
        self._moved()
        if not self.in_flight:
            self._few = self._owed // _LAST_PART
            if self._held and not self._held[-1].shares and self._may_append():
                self.hand_over_held()
                return
            self._settled.set()
            if self._closed:
                self._leave()


def _ignore(messages: int, size: int, created_ms: int) -> None:
    pass
