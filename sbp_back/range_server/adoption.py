"""Take-over of another range server's ranges, whose log of objects the store here adopts (docs/cluster.md,
"Taking over a log").

Three repeatable steps: the store fences the other log, reads it to its end, and records the adoption in its own log;
the placement driver writes down the new owner of the ranges and where open ones have ended; then the ranges are brought
in line with decisions of the placement driver that the other server had not heard of. A server that dies in the middle
goes on at its next start, or its own adopter does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from anabranch_kit.errors import StoreError
from anabranch_kit.run.turns import in_turns
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.range_server.ranges import RangeState, RangeTable
from sbp_back.range_server.reconcile import reconcile
from sbp_back.wire import model as m

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store
    from sbp_back.transport.carrier import Carrier

logger = logging.getLogger(__name__)

_ENDS_PER_REQUEST = 2500
"""Ends in one request: 20 bytes each, and its header has at most 64 KiB."""

Ends = Sequence[tuple[int, int, int]]
"""(stream, range, end)."""


class AdoptionRefused(SbpError):
    """Refusal of an adoption. ``adopted_by``: the range server that has adopted the other one instead; -1: unknown, or
    nobody has.
    """

    def __init__(self, message: str, adopted_by: int) -> None:
        super().__init__(ErrorCode.BAD_REQUEST, message)
        self.adopted_by = adopted_by


class Adoptions:
    """Adoptions by range server ``server_id`` with ``store``; ``call`` serves a request on it."""

    def __init__(
        self,
        table: RangeTable,
        store: Store,
        server_id: int,
        call: Callable[[m.Request], Awaitable[m.Response]],
    ) -> None:
        self._table = table
        self._store = store
        self._server_id = server_id
        self._call = call
        self._one_at_a_time = asyncio.Lock()

    async def adopt(self, server_id: int, pd: Carrier) -> None:
        async with self._one_at_a_time:
            if server_id in self._store.adopted:
                for known in self._store.adopted:
                    await self._go_on(known, pd)
                await reconcile(self._table, self._server_id, pd, self._call)
                return
            before = set(self._store.adopted)
            try:
                taken = await self._store.adopt(server_id)
            except StoreError as error:
                raise AdoptionRefused(str(error), getattr(error, "server_id", -1)) from error
            async for stored in in_turns(taken):
                if stored.key not in self._table.by_key and not stored.dropped:
                    self._table.add(RangeState(stored))
            # Of each stream only the last range can be open.
            last = {stored.stream_id: stored for stored in sorted(taken, key=lambda one: one.key)}
            ends = [(*one.key, one.end) for one in last.values()]
            for other in self._store.adopted:  # a server that has adopted others comes before them
                if other not in before:
                    await self._write_down(other, ends, pd)
            await reconcile(self._table, self._server_id, pd, self._call, last)

    async def go_on(self, pd: Carrier) -> None:
        """Report all adoptions of the store to the placement driver. Raises ``SbpError``."""
        async with self._one_at_a_time:
            for server_id in self._store.adopted:
                try:
                    await self._go_on(server_id, pd)
                except AdoptionRefused as error:
                    logger.error("range server %d: %s", self._server_id, error.message)

    async def _go_on(self, server_id: int, pd: Carrier) -> None:
        listed = await pd.call(m.ListRangeRequest(server_id=server_id))
        if not isinstance(listed, m.ListRangeResponse) or not listed.status.ok:
            raise SbpError(listed.status.code, listed.status.message)
        ends = []
        for known in listed.ranges:
            state = self._table.by_key.get((known.stream_id, known.index))
            if known.end < 0 and state is not None:
                ends.append((known.stream_id, known.index, state.confirm_offset))
        await self._write_down(server_id, ends, pd)

    async def _write_down(self, server_id: int, ends: Ends, pd: Carrier) -> None:
        for first in range(0, max(1, len(ends)), _ENDS_PER_REQUEST):
            some = ends[first : first + _ENDS_PER_REQUEST]
            is_last = first + _ENDS_PER_REQUEST >= len(ends)
            answer = await pd.call(m.AdoptServerRequest(server_id, self._server_id, some, is_last))
            if answer.status.ok:
                continue
            if isinstance(answer, m.AdoptServerResponse):
                raise AdoptionRefused(answer.status.message, answer.server_id)
            raise SbpError(answer.status.code, answer.status.message)


def refusal(error: SbpError) -> m.AdoptServerResponse:
    """Return the answer to a refused request over the wire."""
    by = error.adopted_by if isinstance(error, AdoptionRefused) else -1
    return m.AdoptServerResponse(m.Status(error.code, error.message), by)
