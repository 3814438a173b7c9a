"""The store against a model of it: any sequence of operations, restarts and crashes gives what the model says."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch_kit.errors import StoreError
from sbp_back.range_server.store import StoreOptions
from sbp_back.range_server.store.layout.checkpoint import checkpoint_files
from sbp_back.range_server.store.options import EVACUATE_KEEP
from sbp_back.wire.model import Entry
from tests.depth import examples, timeout
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry, small_options

STREAMS = st.integers(1, 3)


@dataclass
class ModelRange:
    start: int
    epoch: int
    entries: list[Entry] = field(default_factory=list)
    end: int = -1
    low: int = 0

    @property
    def next(self) -> int:
        return self.entries[-1].end_offset if self.entries else self.start

    @property
    def visible(self) -> list[Entry]:
        if 0 <= self.end <= self.low:
            return []
        return [e for e in self.entries if e.end_offset > self.low and (self.end < 0 or e.base_offset < self.end)]


class StoreMachine(RuleBasedStateMachine):
    """One stream has one range at a time (index 0); deletion makes room for a new one under the same name."""

    durability = "os"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.loop = asyncio.new_event_loop()
        self.number = 0
        self.fill = 0
        self.model: dict[int, ModelRange] = {}
        self.options: StoreOptions = small_options(durability=self.durability, evacuate_batch_bytes=9 * KIB)
        self.driver = self.run(self.open())

    async def open(self) -> Driver:
        return Driver(self.directory / str(self.number), self.options)

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(asyncio.ensure_future(awaitable, loop=self.loop), 20))

    def attempt(self, operation: str, *arguments: Any) -> bool:
        async def call() -> bool:
            try:
                await getattr(self.driver, operation)(*arguments)
            except StoreError:
                return False
            return True

        return bool(self.run(call()))

    @initialize()
    def begin(self) -> None:
        for stream in (1, 2):
            self.create(stream, 0, 0)

    @rule(stream=STREAMS, start=st.integers(0, 5), epoch=st.integers(0, 3))
    def create(self, stream: int, start: int, epoch: int) -> None:
        there = self.model.get(stream)
        worked = self.attempt("create", stream, 0, epoch, start)
        if there is None or (not there.entries and there.end < 0 and epoch > there.epoch):
            assert worked
            self.model[stream] = ModelRange(start, epoch, low=start)
        else:
            assert worked == ((there.start, there.epoch) == (start, epoch) and there.end < 0)

    @rule(
        stream=STREAMS,
        counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
        size=st.sampled_from([60, 3000, 12000]),
    )
    def append(self, stream: int, counts: list[int], size: int) -> None:
        there = self.model.get(stream)
        self.fill += 1
        base = there.next if there is not None else 0
        entries = []
        for count in counts:
            entries.append(make_entry(stream, base, count, size, fill=self.fill))
            base += count
        worked = self.attempt("append", *entries)
        assert worked == (there is not None and there.end < 0)
        if worked and there is not None:
            there.entries += entries

    @rule(stream=STREAMS, data=st.data(), older=st.booleans())
    def replace(self, stream: int, data: st.DataObject, older: bool) -> None:
        there = self.model.get(stream)
        limit = 0 if there is None else there.next if there.end < 0 else there.end
        whole = [e for e in there.visible if e.base_offset >= there.low and e.end_offset <= limit] if there else []
        if there is None or not whole:
            return
        first = data.draw(st.integers(0, len(whole) - 1))
        old = whole[first : first + data.draw(st.integers(1, 5))]
        self.fill += 1
        new = []
        at = 0
        while at < len(old):
            many = data.draw(st.integers(1, len(old) - at))
            base, end = old[at].base_offset, old[at + many - 1].end_offset
            new.append(make_entry(stream, base, end - base, data.draw(st.sampled_from([60, 3000])), fill=self.fill))
            at += many
        older = older and there.epoch > 0
        expected = not older
        assert self.attempt("replace", there.epoch - older, old, new) == expected
        if expected:
            at = there.entries.index(old[0])
            there.entries[at : at + len(old)] = new

    @rule(stream=STREAMS, data=st.data(), higher=st.booleans())
    def seal(self, stream: int, data: st.DataObject, higher: bool) -> None:
        there = self.model.get(stream)
        if there is None:
            assert not self.attempt("seal", stream, -1, 0, 9)
            return
        if there.end >= 0:
            assert self.attempt("seal", stream, there.end, 0, there.epoch)
            return
        end = data.draw(st.integers(there.start, there.next))
        epoch = there.epoch + higher
        assert self.attempt("seal", stream, end, 0, epoch)
        there.end = end
        there.epoch = epoch
        there.entries = [e for e in there.entries if e.base_offset < end]

    @rule(stream=STREAMS, data=st.data())
    def trim(self, stream: int, data: st.DataObject) -> None:
        there = self.model.get(stream)
        last = there.next if there is not None else 2
        # Exactly to the end as often as anywhere else.
        offset = data.draw(st.integers(0, last + 3) | st.just(there.end if there and there.end >= 0 else last))
        assert self.attempt("trim", stream, offset)
        if there is not None:
            limit = there.next if there.end < 0 else there.end
            there.low = max(there.low, min(offset, limit))

    @precondition(lambda self: any(there.end >= 0 for there in self.model.values()))
    @rule(stream=STREAMS)
    def delete(self, stream: int) -> None:
        assert self.attempt("delete", stream)
        self.model.pop(stream, None)

    @rule()
    def maintain(self) -> None:
        async def some() -> None:
            for _ in range(5):
                self.driver.store.maintenance.tick()
                await asyncio.sleep(0.001)

        self.run(some())

    @rule()
    def settle(self) -> None:
        """Once maintenance has nothing left to do, the segments without anything in them are gone, and those with
        little."""
        store = self.driver.store
        options = self.options

        def superfluous() -> list[str]:
            sealed = store.log.segments[:-EVACUATE_KEEP]
            few = [s for s in sealed if s.live < options.evacuate_below * s.size]
            dead = [s for s in store.log.segments[:-1] if not s.live]
            return [segment.path.name for segment in (*dead, *few)]

        def expected() -> set[str]:
            return {segment.path.name for segment in store.log.segments}

        async def until_settled() -> None:
            while superfluous() or not self.names() <= expected() | {f"{store.log.active.end:020d}.seg"}:
                store.maintenance.tick()
                await asyncio.sleep(0.001)

        self.run(until_settled())
        assert expected() <= self.names()

    def names(self) -> set[str]:
        return {path.name for path in self.driver.segments()}

    @rule()
    def restart(self) -> None:
        async def again() -> None:
            self.driver.reopen()

        self.run(again())
        assert self.driver.store.stats.recovery_scanned_bytes == 0

    @rule(lose_indexes=st.booleans(), damage_checkpoint=st.booleans())
    def crash(self, lose_indexes: bool, damage_checkpoint: bool) -> None:
        async def again() -> Driver:
            self.driver.crash_copy(self.directory / str(self.number + 1))
            self.driver.close()
            shutil.rmtree(self.driver.path)
            self.number += 1
            if lose_indexes:
                for path in (self.directory / str(self.number) / "wal").glob("*.idx"):
                    path.unlink()
            newest = next(iter(checkpoint_files(self.directory / str(self.number) / "ckpt")), None)
            if damage_checkpoint and newest is not None:
                newest.write_bytes(newest.read_bytes()[1:])
            return await self.open()

        self.driver = self.run(again())

    @invariant()
    def same(self) -> None:
        ranges = self.driver.store.ranges
        assert set(ranges) == {(stream, 0) for stream in self.model}
        for stream, there in self.model.items():
            stored = ranges[stream, 0]
            assert (stored.start, stored.epoch, stored.end) == (there.start, there.epoch, there.end)
            assert stored.min_offset == there.low
            if there.end < 0:
                assert stored.next_offset == there.next
            visible = there.visible
            got = self.run(self.driver.read_all(stream, there.low))
            assert [entry_bytes(e) for e in got] == [entry_bytes(e) for e in visible]
            for entry in visible[:3]:
                bounds = self.driver.store.batch_bounds(stream, 0, entry.base_offset)
                assert bounds == (entry.base_offset, entry.end_offset)
            assert stored.live_bytes == sum(e.size for e in visible)
        log = self.driver.store.log
        assert sum(segment.live for segment in (*log.segments, *log.elsewhere)) == sum(
            r.live_bytes for r in ranges.values()
        )
        assert self.driver.store.stats.maintenance_errors == 0, self.driver.store.stats.last_maintenance_error

    def teardown(self) -> None:
        async def close() -> None:
            self.driver.close()

        self.run(close())
        self.loop.close()
        shutil.rmtree(self.directory)


class FlushingMachine(StoreMachine):
    """The same with flushes, where nothing is ever written on the loop."""

    durability = "fsync"


for machine in (StoreMachine, FlushingMachine):
    machine.TestCase.settings = settings(
        max_examples=examples(30),
        stateful_step_count=40,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
TestStoreMachine = pytest.mark.timeout(timeout(300))(StoreMachine.TestCase)
TestFlushingMachine = pytest.mark.timeout(timeout(300))(FlushingMachine.TestCase)
