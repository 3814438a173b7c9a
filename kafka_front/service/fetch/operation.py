"""One Fetch request from its arrival: it is answered at once or waits for enough bytes (docs/protocols/kafka.md, rules
41-46).

A waiting request is one object: a waiter of its partitions' logs and of its connection's timer. It has no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from anabranch_kit.memory.budget import Kind
from anabranch_kit.run.turns import portions
from bridges.errors import LogError
from bridges.log.partition.partition_log import PartitionLog, Phase
from kafka_front.context import DEFERRED, Outcome
from kafka_front.service.fetch.partitions import Partitions, Slot
from kafka_front.service.fetch.places import Key, Places
from kafka_front.service.fetch.reading import Reading
from kafka_front.service.fetch.sessions import FetchedPartition, FetchSession
from kafka_front.service.log_errors import code_of
from kafka_front.wire.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from anabranch_kit.memory.budget import Account
    from kafka_front.context import Context

SLOT_BYTES = 512
"""Bytes of memory that a partition of a waiting request takes (measured)."""
_UNCOUNTED_BYTES = 4 * 1024
"""Bytes not counted in the budget: a few partitions take no more than any connection does."""
_FEW_BYTES = 64 * 1024
"""Bytes up to which a request may always wait."""


class FetchOperation(Reading):
    """One Fetch request, from its arrival to its response."""

    __slots__ = (
        "_account",
        "_allowed",
        "_answered",
        "_counted",
        "_missing",
        "_sure",
        "_unopened",
        "_waited",
        "_waits",
    )

    def __init__(
        self,
        owner: Partitions,
        ctx: Context,
        request: FetchRequest,
        session: FetchSession | None,
        slots: list[Slot],
        places: Places | None = None,
    ) -> None:
        super().__init__(owner, ctx, request, session, slots, places)
        self._waits = False
        # Bytes that are missing before it is answered.
        self._missing = 0
        # The authorizer's decisions by topic: it is asked once for each.
        self._allowed: dict[str, bool] = {}
        self._unopened = 0
        # If False, the node first checks that it still owns its logs: their ends could be outdated.
        self._sure = owner.is_sure
        self._waited: list[PartitionLog] = []
        # The budget's account of the partitions, if they are many and the request has to wait.
        self._account: Account | None = None
        self._counted = 0
        # Done when a request that did not wait is answered.
        self._answered: asyncio.Future[None] | None = None

    def start(self) -> FetchResponse | Outcome:
        """Begin; return the response if it is known at once."""
        try:
            for slot in self._slots:
                self._find(slot)
            return self._begin()
        except BaseException:
            self.cancel()
            raise

    async def start_in_turns(self, partitions: Iterable[tuple[Key, FetchedPartition]]) -> FetchResponse | Outcome:
        """Begin with very many partitions, in turns with other work; returns after the answer, unless the request
        waits."""
        try:
            async for some in portions(partitions):
                for key, asked in some:
                    slot = Slot(key, asked)
                    self._slots.append(slot)
                    self._find(slot)
            outcome = self._begin()
            if outcome is DEFERRED and not self._counted and not self._finished:
                # The room for a long request is held until this returns. The request has ended already if the
                # connection is gone.
                self._answered = asyncio.get_running_loop().create_future()
                await self._answered
            return outcome
        except BaseException:
            self.cancel()
            raise

    def _find(self, slot: Slot) -> None:
        self._owner.resolve(slot, self._ctx, self._allowed)
        if slot.log is not None and (slot.log.phase is not Phase.OPEN or not self._sure):
            self._unopened += 1

    def _begin(self) -> FetchResponse | Outcome:
        if self._unopened and self._holds():
            for slot in self._slots:
                if slot.log is not None and not (self._sure and slot.log.is_open):
                    slot.log.when_open(partial(self._guarded, self._opened, slot))
        else:
            if self._unopened:
                for slot in self._slots:
                    if slot.log is not None:
                        slot.log.ensure_opening()  # the client retries
            self._wait_or_read()
        self._running = False
        return self.response if self.response is not None else DEFERRED

    def _opened(self, slot: Slot, error: LogError | None) -> None:
        if error is not None:
            slot.refuse(code_of(error))
        self._unopened -= 1
        if self._unopened == 0 and not self._finished:
            self._wait_or_read()

    def _wait_or_read(self) -> None:
        enough = self._has_enough()
        wait_ms = min(self._request.max_wait_ms, self._owner.max_wait_ms)
        if enough or wait_ms <= 0 or not self._holds():
            self._start_reading()
            return
        # Kept apart from the slots: a slot that is refused while the request waits drops its log.
        self._waited = [slot.log for slot in self._slots if slot.log is not None]
        self._waits = True
        for log in self._waited:
            log.add_waiter(self)
        connection = self._ctx.connection
        connection.patience.wait(wait_ms / 1000, self._time_is_up)
        connection.on_close(self.cancel)

    def _has_enough(self) -> bool:
        """Return whether the request must be answered: a partition has an error, or min_bytes are there. Stops counting
        then.

        A partition that does not exist is no reason to answer at once, unless there is nothing else to wait for: its
        error goes out with the rest (Kafka does the same), else a consumer of a deleted topic would ask without pause.
        """
        missing = self._request.min_bytes
        waits = bool(self._places)
        for slot in self._slots:
            log = slot.log
            if log is None:
                if slot.unknown:
                    continue
                return True
            waits = True
            code = self._owner.position_error(slot.asked, log)
            if code is not None:
                slot.refuse(code)
                return True
            if self._owner.nearer(self._ctx, self._request, log) >= 0:
                return True
            offset = slot.asked.fetch_offset
            missing -= log.available(offset, missing if missing > 0 else 1, self._limit(log, offset))
            if missing <= 0 and self._request.min_bytes > 0:
                return True
        self._missing = missing
        return missing <= 0 or not waits

    def log_moved(self, log: PartitionLog) -> None:
        """Look again when a log moves (see :class:`bridges.log.partition.partition_log.Waiter`)."""
        if not self._finished:
            self._guarded(self._moved, log)

    def _moved(self, log: PartitionLog) -> None:
        if not log.is_open or self._has_enough():
            self._stop_waiting()
            self._start_reading()

    def stirred(self, key: Key) -> None:
        """Add a partition of the session that had no news before and whose log has moved."""
        if self._waits and self._session is not None:
            self._guarded(self._join, Slot(key, self._session.partitions[key]))

    def _join(self, slot: Slot) -> None:
        self._slots.append(slot)
        self._owner.resolve(slot, self._ctx, self._allowed)
        log = slot.log
        if log is None or not log.is_open or self._adds_enough(slot, log) or not self._holds():
            self._stop_waiting()
            self._start_reading()
        else:
            self._waited.append(log)
            log.add_waiter(self)

    def _adds_enough(self, slot: Slot, log: PartitionLog) -> bool:
        """Return whether one more partition ends the wait."""
        offset = slot.asked.fetch_offset
        if self._owner.position_error(slot.asked, log) is not None:
            return True
        if self._owner.nearer(self._ctx, self._request, log) >= 0:
            return True
        self._missing -= log.available(offset, max(self._missing, 1), self._limit(log, offset))
        return self._missing <= 0

    def _holds(self) -> bool:
        """Count the memory of the request's partitions while it waits. Return False if they are many and the budget has
        no room: the request must then be answered at once, with or without data."""
        size = len(self._slots) * SLOT_BYTES
        more = size - self._counted
        if more <= _UNCOUNTED_BYTES:
            return True
        account = self._account
        if account is None:
            account = self._account = self._ctx.connection.account.another()
        if size <= _FEW_BYTES:
            account.take(Kind.REQUESTS, more)
        elif not account.admit(Kind.REQUESTS, more):
            return False
        self._counted = size
        return True

    def _release(self) -> None:
        super()._release()
        account, self._account = self._account, None
        if account is not None:
            account.give(Kind.REQUESTS, self._counted)
            account.close()
            self._counted = 0
        answered = self._answered
        if answered is not None and not answered.done():
            answered.set_result(None)

    def _time_is_up(self) -> None:
        self._guarded(self._answer_with_what_there_is)

    def _answer_with_what_there_is(self) -> None:
        self._stop_waiting()
        self._start_reading()

    def _stop_waiting(self) -> None:
        if not self._waits:
            return
        self._waits = False
        for log in self._waited:
            log.remove_waiter(self)
        self._ctx.connection.patience.end()
        self._ctx.connection.forget_on_close(self.cancel)

    def cancel(self) -> None:
        """End the request without an answer: the connection is gone."""
        self._end()
        self._stop_waiting()
        self._ctx.connection.forget_on_close(self.cancel)
        self._release()
