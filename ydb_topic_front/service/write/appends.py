"""Requests of one StreamWrite session that wait to be handed to the log, or are in flight there.

Small requests that arrive while earlier ones are being made durable wait together. They are handed over when all of the
earlier ones are durable and three quarters of these are answered. Sending the answers takes time in which more requests
arrive; the last quarter is answered while the log makes the next batch durable.

Waiting requests with rising sequence numbers share one batch, since a batch costs as much as the messages of some
hundred requests. So a client that sends ahead gets batches nearly as large as what it sends ahead, and the requests of
a client that waits for each answer are written at once. Each request still gets its own answer. A request too large to
share a batch does not wait for answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.deadlines import Alarm
from anabranch_kit.run.turns import in_turns, worked_off
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

HELD_BYTES = 256 * 1024
"""Waiting requests with this many bytes are handed over even while others are in flight."""
_LAST_PART = 4
"""One in so many of the requests made durable together is answered while the next batch is in flight."""
PATIENCE_S = 0.1
"""Longest time that requests wait for answers to be sent, for a client that does not take its answers."""


class WriteAppends:
    """Requests of one session that the log has not decided. Call :meth:`begin` first.

    ``may_append`` returns False once anything was refused: later requests must not get into the log without it.
    ``failed`` is called with the log's error, ``moved`` whenever a request is decided, and ``left`` when all are
    decided after :meth:`close`.
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
        """Requests handed over that the log has not decided."""
        self._owed = 0  # decided, and not answered
        self._few = 0  # hand over the next requests when no more than this are owed
        self._loop = asyncio.get_running_loop()
        self._overdue = Alarm(self._loop, self._hand_over_overdue)

    def begin(self, log: PartitionLog, batches: Batches, written: Callable[[int, int, int], None]) -> None:
        """Set the ``log`` and the encoder of its ``batches``. ``written`` is called for each batch that became durable,
        with its number of messages, the bytes of its requests, and the time its first message was created (-1:
        unknown)."""
        self._log, self._batches, self._written = log, batches, written

    async def await_decided(self) -> None:
        """Wait until the log has decided everything that was handed to it."""
        await self._settled.wait()

    def close(self) -> None:
        """Return the memory of requests as soon as the log has decided them, since nobody waits for answers any
        more."""
        self._closed = True
        self._overdue.cancel()
        if not self.in_flight:
            self._leave()

    def _leave(self) -> None:
        """Report that all is decided, and drop the callbacks. They form a reference cycle with the session, which would
        stay in memory until the garbage collector runs, and that is rare in a node."""
        self._left()
        del self._may_append, self._failed, self._moved, self._left, self._written, self._overdue

    # --- handing over -----------------------------------------------------------------------------------------------

    async def take(self, request: Request, found: WriteParts) -> None:
        """Append a request, at once or together with others."""
        part = found.parts[0]
        if len(found.parts) > 1 or len(part.messages) > MAX_BATCH_BYTES:
            self.hand_over_held()
            await self._append_parts(request, found)
            return
        latest = Held(request, part, found.codec)
        self._held.append(latest)
        self._held_bytes += request.size
        if self._held_bytes >= HELD_BYTES or (not self.in_flight and (not latest.shares or self._owed <= self._few)):
            self.hand_over_held()
        elif len(self._held) == 1:
            self._overdue.set(self._loop.time() + PATIENCE_S)

    def note_answer(self) -> None:
        """Note that a decided request is being answered."""
        self._owed -= 1
        if self._owed <= self._few:
            self._hand_over_waiting()

    def _hand_over_overdue(self, now: float) -> None:
        # The alarm may have been set for earlier requests; those held now then go a little early.
        self._hand_over_waiting()
        if self._held:  # others are in flight
            self._overdue.set(now + PATIENCE_S)

    def _hand_over_waiting(self) -> None:
        if self._held and not self.in_flight and self._may_append():
            self.hand_over_held()

    def hand_over_held(self) -> None:
        """Hand the waiting requests to the log."""
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
        # The copy for the log exists besides the received bytes.
        self._account.take(Kind.REQUESTS, request.size)
        self._begin([request])
        try:
            async for index, part in in_turns(enumerate(found.parts)):
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
        """Append ``batch``, encoded from ``part``, which is part number ``index`` of each of ``requests``."""
        if self._may_append():
            assert self._log is not None
            for request in requests:
                request.undecided += 1
            created = first_created_ms(part.messages)
            self._log.append(batch, partial(self._stored, requests, index, created))

    # --- results of the log -----------------------------------------------------------------------------------------

    def _stored(
        self, requests: Sequence[Request], index: int, created_ms: int, appended: Appended, error: LogError | None
    ) -> None:
        """Handle the log's answer for one batch."""
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
