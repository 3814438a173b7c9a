"""Appends of writers in this process: entries through their windows into the store, with no messages in between.

The windows decide as they do for everybody (reference/sbp.md, section 2.2); what is left out is what carries requests.
What the writers have appended in one cycle of the event loop goes into the store as it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from sbp_back.client.replica import Replica, answered, settle
from sbp_back.cycle import cycle_of
from sbp_back.deadlines import Alarm
from sbp_back.errors import ConnectionLost, StoreError
from sbp_back.range_server.appends import UNKNOWN_BYTES, AppendCall, Appends, ParkedAppend, release
from sbp_back.range_server.ranges import RangeState
from sbp_back.range_server.window import OK
from sbp_back.transport.handler import DEFECT
from sbp_back.wire.frame import crc32
from sbp_back.wire.model import Entry, Status, SystemErrorResponse

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store
    from sbp_back.transport.carrier import Answer

_MOST_BYTES = 2 * 1024 * 1024
_MOST_ENTRIES = 64
"""The store is given so much as one: it may write a part while the answers to another are dealt with."""

Items = list[tuple[Replica, Entry]]


class LocalAppends:
    """Owned by the range server, which sets ``refusal`` when it serves nobody any more."""

    def __init__(
        self,
        appends: Appends,
        ranges: Mapping[tuple[int, int], RangeState],
        store: Store,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.refusal: Status | None = None
        self.timeout = 20.0
        """Seconds after which writers are told that the store has not answered."""
        self.appends = appends
        self._barrier = appends.barrier
        self._ranges = ranges
        self._store = store
        self._gather = cycle_of(loop).gather
        self._items: Items = []
        self._bytes = 0
        self._full: list[Items] = []
        self._under_way: dict[LocalCall, float] = {}
        """With the time at which its writers give it up; in order."""
        self._alarm = Alarm(loop, self._expire)
        self._time = loop.time

    def push(self, replica: Replica, entry: Entry) -> None:
        """See :class:`sbp_back.client.local_channel.LocalServer`."""
        items = self._items
        if not items and not self._full:
            self._gather(self._flush)
        items.append((replica, entry))
        size = self._bytes + len(entry.payload)
        if size < _MOST_BYTES and len(items) < _MOST_ENTRIES:
            self._bytes = size
        else:
            self._full.append(items)
            self._items = []
            self._bytes = 0

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
                    self._barrier.call("waking readers", self.appends.wake, state)

    def _flush(self) -> None:
        """Give the store what was gathered; what is little it writes at once."""
        items, self._items = self._items, []
        self._bytes = 0
        if self._full:
            full, self._full = self._full, []
            for earlier in full:
                self._append(earlier)
        if items:
            self._append(items)
        self._store.write_gathered()

    def _append(self, items: Items) -> None:
        if self.refusal is not None:
            answered(items, SystemErrorResponse(self.refusal))
            return
        call = LocalCall(self, items)
        try:
            self._under_way[call] = deadline = self._time() + self.timeout
            self._alarm.set(deadline)
            self._admit(call, items)
        except Exception as error:  # noqa: BLE001 - logged and counted; the writers find out what is stored
            self._barrier.caught("append", error)
            if self.settled(call):
                answered(items, SystemErrorResponse(DEFECT))

    def _admit(self, call: LocalCall, items: Items) -> None:
        """Through the windows, and into the store."""
        appends = self.appends
        most = appends.most_unframed
        entries: list[Entry] = []
        states = call.states
        size = 0
        for replica, entry in items:
            state: RangeState | None = replica.place
            if state is None:
                state = replica.place = self._ranges.get((entry.stream_id, entry.range_index))
            length = len(entry.payload)
            if (
                state is None
                or entry.count < 1
                or length > most
                or state.window.admit(entry.base_offset, entry.count) != OK
            ):
                self._admit_rest(call, items)
                return
            # Before anything is stored, or an entry could be shown before it is known that its writer tells.
            if entry.confirmed > state.told:
                state.told = entry.confirmed
            if entry.crc < 0:
                entry.crc = crc32(entry.payload, crc32(entry.prefix))
            size += len(entry.prefix) + length
            entries.append(entry)
            states.append(state)
        appends.requests += 1
        appends.entries += len(entries)
        self._store.append_gathered(entries, size, call.stored)

    def _admit_rest(self, call: LocalCall, items: Items) -> None:
        """Who comes behind those that were let in is refused: the way of requests, which has a word for each."""
        entries = [entry for _, entry in items]
        for replica, _ in items:
            replica.place = None  # perhaps the range is another by now
        admitted = self.appends.admit(entries, self.appends.most_unframed, call.states)
        slow = AppendCall(self.appends, call.answer, len(items), *admitted)
        if admitted[0]:
            self._store.append(admitted[0], slow.stored, gathered=True)
        else:
            slow.answer()

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


class LocalCall:
    """Entries between the store and their replicas. ``states``: of the ranges that let them in, as they were then: what
    is in flight is settled there, whatever a replica has found out since."""

    __slots__ = ("_local", "_started", "items", "states")

    def __init__(self, local: LocalAppends, items: Items) -> None:
        self._local = local
        self._started = monotonic()
        self.items = items
        self.states: list[RangeState] = []

    def answer(self, answer: Answer) -> None:
        """What has become of all entries, in the words of a server elsewhere."""
        if self._local.settled(self):
            answered(self.items, answer)

    def stored(self, error: StoreError | None) -> None:
        """What the store calls when the entries are durable, or are not going to be.

        Replicas hear of them only when all are looked at, and with them everybody: who hears from a writer that its
        batch is stored finds it there.
        """
        items = self.items
        if error is not None or not self._local.settled(self):
            self._from(0, self.answer).stored(error)
            return
        appends = self._local.appends
        waited: list[RangeState] = []
        released: list[tuple[ParkedAppend, int]] = []
        touched: list[Replica] = []
        last: Replica | None = None
        rest: tuple[int, int] | None = None
        for number, ((replica, entry), state) in enumerate(zip(items, self.states, strict=True)):
            window = state.window
            base, count = entry.base_offset, entry.count
            code = window.commit(base, count)
            if code != OK:
                rest = number, code
                break
            if window.parked:
                released += window.take_released()
            if state.waiters:
                state.arrived += UNKNOWN_BYTES
                waited.append(state)
            end = base + count
            replica.outstanding -= 1
            if end > replica.confirm:
                replica.confirm = end
            if 0 <= state.told < end and not replica.ended:
                state.told = replica.told = end
            if replica is not last:
                touched.append(replica)
                last = replica
        appends.latency_seconds += monotonic() - self._started
        settle(touched)
        if rest is not None:
            number, code = rest
            self._from(number, partial(answered, items[number:])).stored_from(0, code)
        if released:
            release(released)
        for state in dict.fromkeys(waited):
            appends.barrier.call("waking readers", appends.wake, state)

    def _from(self, first: int, reply: Callable[[Answer], None]) -> AppendCall:
        """The entries from ``first`` on, for the way of requests."""
        entries = [entry for _, entry in self.items[first:]]
        return AppendCall(self._local.appends, reply, len(entries), entries, self.states[first:], None, None)
