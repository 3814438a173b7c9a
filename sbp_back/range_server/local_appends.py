"""Appends of writers in this process: entries through their windows into the store, with no messages in between.

The windows decide as they do for everybody (reference/sbp.md, section 2.2); what is left out is what carries requests.
What the writers have appended in one cycle of the event loop goes into the store as it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from sbp_back.client.replica import Replica, answered, settle
from sbp_back.cycle import cycle_of
from sbp_back.deadlines import Alarm
from sbp_back.errors import ConnectionLost
from sbp_back.range_server.appends import UNKNOWN_BYTES, AppendCall, Appends
from sbp_back.range_server.ranges import RangeState
from sbp_back.transport.handler import DEFECT
from sbp_back.wire.model import AppendResult, Entry, Status, SystemErrorResponse

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store

_MOST_BYTES = 2 * 1024 * 1024
_MOST_ENTRIES = 64
"""The store is given so much as one: it may write a part while the answers to another are dealt with."""

Items = list[tuple[Replica, Entry]]


class LocalAppends:
    """Owned by the range server. ``refusal``: why it serves nobody any more."""

    def __init__(
        self,
        appends: Appends,
        ranges: Mapping[tuple[int, int], RangeState],
        store: Store,
        loop: asyncio.AbstractEventLoop,
        refusal: Callable[[], Status | None],
    ) -> None:
        self.timeout = 20.0
        """Seconds after which writers are told that the store has not answered."""
        self._appends = appends
        self._barrier = appends.barrier
        self._ranges = ranges
        self._store = store
        self._loop = loop
        self._gather = cycle_of(loop).gather
        self._refusal = refusal
        self._items: Items = []
        self._bytes = 0
        self._full: list[Items] = []
        self._scheduled = False
        self._under_way: dict[LocalCall, float] = {}
        """With the time at which its writers give it up; in order."""
        self._alarm = Alarm(loop, self._expire)

    def push(self, replica: Replica, entry: Entry) -> None:
        """See :class:`sbp_back.client.local_channel.LocalServer`."""
        items = self._items
        size = len(entry.payload)
        if self._bytes + size > _MOST_BYTES or len(items) == _MOST_ENTRIES:
            if items:
                self._full.append(items)
                items = self._items = []
            self._bytes = 0
        self._bytes += size
        items.append((replica, entry))
        if not self._scheduled:
            self._scheduled = True
            self._gather(self._flush)

    def confirmed(self, replicas: Iterable[Replica]) -> None:
        """See :class:`sbp_back.client.local_channel.LocalServer`."""
        for replica in replicas:
            if replica.confirm <= replica.told or replica.ended:
                continue
            replica.told = replica.confirm
            state = self._ranges.get((replica.info.stream_id, replica.info.index))
            # Of a range whose entries do not say what is confirmed nothing of the kind is believed.
            if state is not None and 0 <= state.told < replica.confirm:
                state.told = replica.confirm
                if state.waiters:
                    state.arrived += UNKNOWN_BYTES
                    self._barrier.call("waking readers", self._appends.wake, state)

    def _flush(self) -> None:
        """Give the store what was gathered; what is little it writes at once."""
        self._scheduled = False
        lists, self._full = self._full, []
        lists.append(self._items)
        self._items = []
        self._bytes = 0
        for items in lists:
            self._append(items)
        self._store.write_gathered()

    def _append(self, items: Items) -> None:
        refusal = self._refusal()
        if refusal is not None:
            answered(items, SystemErrorResponse(refusal))
            return
        entries = [entry for _, entry in items]
        call: LocalCall | None = None
        try:
            call = LocalCall(self, items, *self._appends.admit(entries, self._appends.most_unframed))
            deadline = self._loop.time() + self.timeout
            self._under_way[call] = deadline
            self._alarm.set(deadline)
            call.start(self._store)
        except Exception as error:  # noqa: BLE001 - logged and counted; the writers find out what is stored
            self._barrier.caught("append", error)
            if call is None or self.settled(call):
                answered(items, SystemErrorResponse(DEFECT))

    def settled(self, call: LocalCall) -> bool:
        """Its writers are about to be answered; False when they were already."""
        return self._under_way.pop(call, None) is not None

    def _expire(self, now: float) -> None:
        late = [call for call, deadline in self._under_way.items() if deadline <= now]
        for call in late:
            del self._under_way[call]
        if self._under_way:
            self._alarm.set(next(iter(self._under_way.values())))
        for call in late:
            answered(call.items, ConnectionLost("no answer in time"))

    def close(self) -> None:
        """Nothing more comes, and nobody waits."""
        self._alarm.cancel()


class LocalCall(AppendCall):
    """Entries between the store and their replicas."""

    __slots__ = ("_local", "items")

    def __init__(
        self,
        local: LocalAppends,
        items: Items,
        entries: list[Entry],
        states: list[RangeState],
        positions: list[int] | None,
        refused: dict[int, AppendResult] | None,
    ) -> None:
        super().__init__(local._appends, partial(answered, items), len(items), entries, states, positions, refused)
        self._local = local
        self.items = items

    def start(self, store: Store) -> None:
        """Have the store take what the windows let in."""
        if self._entries:
            store.append(self._entries, self.stored, gathered=True)
        else:
            self.answer()

    def answer(self) -> None:
        """Tells the replicas, and that all of it may be shown: whoever hears from a writer finds it there."""
        if not self._local.settled(self):
            return
        if self._refused:
            super().answer()
            return
        self._count_latency()
        touched: dict[Replica, None] = {}
        for (replica, entry), state in zip(self.items, self._states, strict=True):
            replica.outstanding -= 1
            end = entry.base_offset + entry.count
            if end > replica.confirm:
                replica.confirm = end
            if 0 <= state.told < end and not replica.ended:
                state.told = replica.told = end
            touched[replica] = None
        settle(touched)
