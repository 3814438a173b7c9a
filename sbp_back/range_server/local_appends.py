"""Appends of writers in this process: entries go through their windows into the store, with no messages in between.

The windows decide as they do for all writers (docs/protocols/sbp.md, "Append window"); only the transport of requests
is left out. All appends of one cycle of the event loop go into the store as it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from anabranch_kit.run.cycle import cycle_of
from anabranch_kit.run.deadlines import Alarm
from sbp_back.client.replica import Replica, answered, settle
from sbp_back.errors import ConnectionLost
from sbp_back.range_server.appends import UNKNOWN_BYTES, AppendCall, Appends
from sbp_back.range_server.ranges import RangeState
from sbp_back.transport.handler import DEFECT
from sbp_back.wire.model import AppendResponse, Entry, Status, SystemErrorResponse

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store

_MOST_BYTES = 2 * 1024 * 1024
_MOST_ENTRIES = 64
"""Most entries that the store gets as one call: it may write one call while the answers to another are handled."""

Items = list[tuple[Replica, Entry]]


class LocalAppends:
    """Takes the appends of local writers. Owned by the range server, which sets ``refusal`` when it serves nobody any
    more.
    """

    def __init__(
        self,
        appends: Appends,
        ranges: Mapping[tuple[int, int], RangeState],
        store: Store,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.refusal: Status | None = None
        self.timeout = 20.0
        """Seconds after which writers hear that the store has not answered."""
        self.appends = appends
        self._barrier = appends.barrier
        self._ranges = ranges
        self._store = store
        self._gather = cycle_of(loop).gather
        self._call = self.new_call()
        self._bytes = 0
        self._full: list[LocalCall] = []
        self.under_way: dict[LocalCall, float] = {}
        """Calls in flight, each with the time at which its writers give it up; in order."""
        self._alarm = Alarm(loop, self._expire)
        self._time = loop.time

    def push(self, replica: Replica, entry: Entry) -> None:
        call = self._call
        entries = call.asked
        if not entries and not self._full:
            self._gather(self._flush)
        entries.append(entry)
        call.replicas.append(replica)
        call.places.append(replica.place)
        size = self._bytes + len(entry.payload)
        if size < _MOST_BYTES and len(entries) < _MOST_ENTRIES:
            self._bytes = size
        else:
            self._full.append(call)
            self._call = self.new_call()
            self._bytes = 0

    def new_call(self) -> LocalCall:
        entries: list[Entry] = []
        return LocalCall(self.appends, None, entries, entries, 0.0, local=self, replicas=[], places=[])

    def confirmed(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            if replica.confirm <= replica.told or replica.ended:
                continue
            replica.told = replica.confirm
            state = self._ranges.get((replica.info.stream_id, replica.info.index))
            # Ignored for a range whose entries carry no confirmed offset: it would hide data.
            if state is not None and 0 <= state.told < replica.confirm:
                state.told = replica.confirm
                if state.waiters:
                    state.arrived += UNKNOWN_BYTES
                    self._barrier.call("waking readers", self.appends.wake, state)

    def _flush(self) -> None:
        """Give the gathered entries to the store, which writes a small amount at once."""
        call, self._call = self._call, self.new_call()
        self._bytes = 0
        if self._full:
            full, self._full = self._full, []
            for earlier in full:
                self._append(earlier)
        if call.asked:
            self._append(call)
        self._store.write_gathered()

    def _append(self, call: LocalCall) -> None:
        if self._store.behind:
            for one in call.by_stream():
                self._submit(one)
        else:
            self._submit(call)

    def _submit(self, call: LocalCall) -> None:
        if self.refusal is not None:
            answered(call.items, SystemErrorResponse(self.refusal))
            return
        appends = self.appends
        call.started = monotonic()
        try:
            self.under_way[call] = deadline = self._time() + self.timeout
            self._alarm.set(deadline)
            size = appends.admit(call, call.places, appends.most_unframed)
            if call.states != call.places:
                call.remember()
            if call.entries:
                self._store.append_gathered(call.entries, size, call.stored)
            else:
                call.answer()
        except Exception as error:  # noqa: BLE001 - logged and counted; the writers find out what is stored
            self._barrier.caught("append", error)
            if self.end_call(call):
                answered(call.items, SystemErrorResponse(DEFECT))

    def end_call(self, call: LocalCall) -> bool:
        """Note that the call's writers are about to be answered; return False when they were already."""
        return self.under_way.pop(call, None) is not None

    def _expire(self, now: float) -> None:
        late = [call for call, deadline in self.under_way.items() if deadline <= now]
        for call in late:
            del self.under_way[call]
        if self.under_way:
            self._alarm.set(next(iter(self.under_way.values())))
        for call in late:
            answered(call.items, ConnectionLost("no answer in time"))

    def close(self) -> None:
        """Take nothing more, and answer nobody."""
        self._alarm.cancel()


class LocalCall(AppendCall, kw_only=True):
    """Entries of local writers, each with its replica and the range state that the replica remembers. Each stored entry
    is settled with its replica at once, without waiting for the others.
    """

    local: LocalAppends
    replicas: list[Replica]
    places: list[RangeState | None]

    @property
    def items(self) -> Items:
        return list(zip(self.replicas, self.asked, strict=True))

    def by_stream(self) -> list[LocalCall]:
        """Split a call that has not begun into one call for each stream, so that none waits for another."""
        calls: dict[int, LocalCall] = {}
        for replica, entry, place in zip(self.replicas, self.asked, self.places, strict=True):
            call = calls.get(entry.stream_id)
            if call is None:
                call = calls[entry.stream_id] = self.local.new_call()
            call.asked.append(entry)
            call.replicas.append(replica)
            call.places.append(place)
        return list(calls.values())

    def remember(self) -> None:
        """Update the range states that the replicas remember, which were stale; forget them if an entry was refused,
        since its range may have changed again.
        """
        known = self.positions is None
        for number, replica in enumerate(self.replicas):
            replica.place = self.states[number] if known else None

    def deliver(self, response: AppendResponse) -> None:
        if self.local.end_call(self):
            answered(self.items, response)

    def settle(self, others: list[tuple[int, int]]) -> None:
        """Tell replicas of their stored entries, so that readers see them; ``others`` are answered as those of
        requests.
        """
        if self.refused is not None or self.local.under_way.pop(self, None) is None:
            AppendCall.settle(self, others)
            return
        replicas, entries, states = self.replicas, self.asked, self.states
        rest: AppendCall | None = None
        if others:
            left = [number for number, _ in others]
            kept = [number for number in range(len(entries)) if number not in left]
            behind = [entries[number] for number in left]
            reply = partial(answered, [(replicas[number], entries[number]) for number in left])
            rest = AppendCall(self.appends, reply, behind, behind, self.started, [states[number] for number in left])
            replicas = [replicas[number] for number in kept]
            entries = [entries[number] for number in kept]
            states = [states[number] for number in kept]
        touched: list[Replica] = []
        last: Replica | None = None
        for replica, entry, state in zip(replicas, entries, states, strict=True):
            end = entry.base_offset + entry.count
            replica.outstanding -= 1
            if end > replica.confirm:
                replica.confirm = end
            if 0 <= state.told < end and not replica.ended:
                state.told = replica.told = end
            if replica is not last:
                touched.append(replica)
                last = replica
        self.appends.latency_seconds += monotonic() - self.started
        settle(touched)
        if rest is not None:
            rest.settle([(number, code) for number, (_, code) in enumerate(others)])
