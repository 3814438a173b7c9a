"""A store under the power-loss simulator, which runs one step at a time, so that the same seed makes the same record;
and a model of what it has promised."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from random import Random
from typing import Any

from anabranch_kit.disk.files import Files
from anabranch_kit.errors import DiskFull, StoreError
from sbp_back.range_server.store import Store, StoreOptions
from sbp_back.wire.entry import parse_entry
from sbp_back.wire.model import Entry
from tests.sbp_back.range_server.store.power_loss import (
    Disk,
    Image,
    RecordingCalls,
    Step,
    objects_after,
    steps_of,
    write_image,
)
from tests.sbp_back.range_server.store.store_harness import KIB, entry_bytes, make_entry, small_options

Operation = tuple[Any, ...]
"""``append entries``, ``create stream index epoch start``, ``seal stream index end epoch``, ``trim stream offset``,
``delete stream``, ``replace epoch old new`` with entries."""
State = tuple[Any, ...]
"""Everything a reader can see of a store; comparable."""


class Violation(Exception):
    """A promise is broken."""


@dataclasses.dataclass
class _Range:
    start: int
    epoch: int
    end: int = -1
    low: int = 0
    entries: list[tuple[int, int, bytes]] = dataclasses.field(default_factory=list)

    @property
    def next(self) -> int:
        return self.entries[-1][1] if self.entries else self.start

    def seen(self) -> State:
        entries: tuple[bytes, ...] = ()
        if self.end < 0 or self.low < self.end:
            entries = tuple(b for base, end, b in self.entries if end > self.low and (self.end < 0 or base < self.end))
        return self.start, self.epoch, self.end, self.low, self.next if self.end < 0 else -1, entries


class World:
    """What the store has to be after a sequence of operations."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[int, int], _Range] = {}
        self._trimmed: dict[int, int] = {}

    def copy(self) -> World:
        world = World()
        world._trimmed = dict(self._trimmed)
        for key, there in self.ranges.items():
            world.ranges[key] = dataclasses.replace(there, entries=list(there.entries))
        return world

    def seen(self) -> State:
        return tuple((key, there.seen()) for key, there in sorted(self.ranges.items()))

    def of_stream(self, stream: int) -> list[tuple[int, _Range]]:
        return [(index, there) for (owner, index), there in sorted(self.ranges.items()) if owner == stream]

    def apply(self, operation: Operation) -> None:
        match operation:
            case ("append", *entries):
                for entry in entries:
                    there = self.ranges[entry.stream_id, entry.range_index]
                    there.entries.append((entry.base_offset, entry.end_offset, entry_bytes(entry)))
            case ("create", stream, index, epoch, start):
                self.ranges[stream, index] = _Range(start, epoch, low=start)
            case ("seal", stream, index, end, epoch):
                there = self.ranges[stream, index]
                there.end, there.epoch = end, epoch
                there.entries = [entry for entry in there.entries if entry[0] < end]
            case ("replace", _epoch, old, new):
                there = self.ranges[old[0].stream_id, old[0].range_index]
                at = next(n for n, one in enumerate(there.entries) if one[0] == old[0].base_offset)
                there.entries[at : at + len(old)] = [(e.base_offset, e.end_offset, entry_bytes(e)) for e in new]
            case ("trim", stream, offset):
                self._trim(stream, offset)
            case ("delete", stream):
                for index, _there in self.of_stream(stream):
                    del self.ranges[stream, index]
                self._trimmed.pop(stream, None)
            case _:
                raise AssertionError(operation)

    def _trim(self, stream: int, offset: int) -> None:
        trimmed = self._trimmed[stream] = max(self._trimmed.get(stream, 0), offset)
        ranges = self.of_stream(stream)
        for _index, there in ranges:
            if there.start <= offset:
                there.low = max(there.low, min(offset, there.next if there.end < 0 else there.end))
        for index, there in ranges[:-1]:
            if there.end < 0 or there.low < there.end or there.end > trimmed:
                break
            del self.ranges[stream, index]


def observe(store: Store) -> State:
    """What is in a store. Raises ``Violation`` when something of it cannot be read."""
    found = []
    for key, stored in sorted(store.ranges.items()):
        entries: list[Entry] = []

        def got(result: list[Entry] | StoreError, entries: list[Entry] = entries) -> None:
            if isinstance(result, list):
                entries += result

        at = stored.min_offset
        while at < stored.visible_end:
            before = len(entries)
            store.read(*key, at, -1, 1 << 20, got)
            store.inbox.drain()
            if len(entries) == before:
                raise Violation(f"{stored} cannot be read at {at}")
            at = entries[-1].end_offset
        following = stored.next_offset if stored.end < 0 else -1
        seen = tuple(entry_bytes(entry) for entry in entries)
        found.append((key, (stored.start, stored.epoch, stored.end, stored.min_offset, following, seen)))
    return tuple(found)


class Jobs:
    """In place of the background thread: does its work when it is told to."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def shutdown(self) -> None:
        while self.waiting:
            self.waiting.popleft()()


class _NoThread:
    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class _GatedQueue:
    """The log thread gets nothing until :meth:`release`, and then all of it at once."""

    def __init__(self) -> None:
        self._held: list[object] = []
        self._open: deque[object] = deque()
        self._changed = threading.Condition()
        self.direct = False

    def put(self, item: object) -> None:
        self._held.append(item)
        if self.direct:
            self.release()

    def release(self) -> None:
        with self._changed:
            self._open += self._held
            self._held.clear()
            self._changed.notify()

    def qsize(self) -> int:
        return len(self._open)

    def empty(self) -> bool:
        return not self._open

    def get(self) -> object:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._open))
            return self._open.popleft()

    def get_nowait(self) -> object:
        with self._changed:
            if not self._open:
                raise Empty
            return self._open.popleft()


def rig_options(files: RecordingCalls, durability: str) -> StoreOptions:
    return small_options(
        files=Files(files),
        durability=durability,
        cluster_id="simulated",
        evacuate_batch_bytes=9 * KIB,
        allocate_step_bytes=16 * KIB,
        zero_ahead_bytes=32 * KIB,
    )


class Rig:
    """A store in ``files.root / PLACE``. ``chain`` holds the states a loss of power may leave: the first has been
    promised, the others have been asked for in this order. It is in the record as ``mark``."""

    PLACE = "deep/er/store"
    DURABILITIES = ("fsync", "os")
    """With which the next start may be made."""

    def __init__(self, files: RecordingCalls) -> None:
        self.files = files
        self.chain: list[World] = [World()]
        self.durability = "fsync"
        self.opened = False
        self._marked: list[State] = []
        self.waiting: list[deque[Callable[[], None]]] = []
        """What threads have to do that are played here."""

    @property
    def world(self) -> World:
        return self.chain[-1]

    @classmethod
    def matters(cls, step: Step) -> bool:
        """Whether it is looked at more closely what a loss of power shortly after this leaves."""
        return False

    @classmethod
    def spoiled(cls, image: Image, rng: Random) -> Image:
        """What a disk may do besides to something that can be had elsewhere."""
        return image

    def mark(self) -> None:
        self.files.mark(tuple(world.seen() for world in self.chain), self.opened)

    def open(self, durability: str) -> None:
        """Raises ``Violation`` when what is there is none of the states it may have."""
        self.durability = durability
        try:
            self.store = self._open_store(self.files.root / self.PLACE, rig_options(self.files, durability))
        except (StoreError, OSError) as error:
            raise Violation(f"not opened: {error}") from error
        self._take_threads()
        try:
            self._compare()
        except Violation:
            self.kill()
            raise

    def _open_store(self, path: Path, options: StoreOptions) -> Store:
        return Store.open(path, options)

    def _take_threads(self) -> None:
        jobs = Jobs()
        self.store.background_thread = jobs  # type: ignore[assignment]
        self.waiting = [jobs.waiting]
        self.store.preparer._thread = _NoThread()  # type: ignore[assignment]
        self.queue = _GatedQueue()
        self.store.writer.queue = self.queue  # type: ignore[assignment]

    def _compare(self) -> None:
        seen = observe(self.store)
        found = next((world for world in reversed(self.chain) if world.seen() == seen), None)
        if found is None:
            raise Violation(difference(seen, [world.seen() for world in self.chain]))
        if self.opened and self.store.server_id != 7:
            raise Violation(f"the server id is {self.store.server_id}")
        # Whatever a reader can see now has to stay.
        self.chain = [found]
        self.store.assign_server_id(7)
        self.opened = True
        self.mark()

    def start(self) -> None:
        self.store.start(asyncio.get_running_loop())

    async def do(self, *operations: Operation) -> None:
        """Submit operations at once, which makes one group of them as a rule, and wait for the answers."""
        left = len(operations)
        refused: list[StoreError] = []
        lasting: list[World] = []
        for operation in operations:
            world = self.world.copy()
            world.apply(operation)
            self.chain.append(world)
            if operation[0] == "seal":
                lasting.append(world)
        self.mark()

        def done(error: StoreError | None, world: World) -> None:
            nonlocal left
            left -= 1
            refused.extend([error] if error is not None and self.store.failed is None else [])
            # An end that was answered, and so all before it, survives whatever the durability.
            if error is None and (self.durability == "fsync" or world in lasting):
                while self.chain[0] is not world:
                    del self.chain[0]
                self.mark()

        for operation, world in zip(operations, self.chain[-left:], strict=True):
            self._submit(operation, lambda error, world=world: done(error, world))
        while left or self.store.in_flight:
            self.queue.release()
            await asyncio.sleep(0.0002)
            if left and operations[0][0] == "replace":
                await self.work(1)  # an evacuation that is under way comes first
        assert not refused, refused

    async def do_without_room(self, append: Operation) -> None:
        """An append that is refused for want of space, and must not have happened whatever comes then."""
        self.chain.append(self.world.copy())
        self.world.apply(append)
        self.mark()
        answered: list[StoreError | None] = []
        self.files.fault = "enospc"
        self._submit(append, answered.append)
        while not answered:
            self.queue.release()
            await asyncio.sleep(0.0002)
        assert isinstance(answered[0], DiskFull), answered
        del self.chain[1:]
        self.mark()
        self.store.maintenance.tick()  # there is room again
        await self.work()

    def _submit(self, operation: Operation, done: Callable[[StoreError | None], None]) -> None:
        store = self.store
        match operation:
            case ("append", *entries):
                store.append(entries, done)
            case ("create", *arguments):
                store.create_range(*arguments, done)
            case ("seal", stream, index, end, epoch):
                store.seal_range(stream, index, epoch, end, done)
            case ("replace", *arguments):
                store.replace(*arguments, done)
            case ("trim", *arguments):
                store.trim_stream(*arguments, done)
            case ("delete", stream):
                store.delete_stream(stream, done)

    async def work(self, jobs: int = 1000) -> None:
        """Let the background do so many of its jobs, and what comes of them."""
        while True:
            while self.store.in_flight:
                self.queue.release()
                await asyncio.sleep(0.0002)
            waiting = [queue for queue in self.waiting if queue]
            if not waiting or not jobs:
                return
            jobs -= 1
            waiting[jobs % len(waiting)].popleft()()
            self.store.inbox.drain()
            self.between_jobs()

    def between_jobs(self) -> None:
        """What may come whenever a thread has done something."""

    async def begin(self, rng: Random) -> None:
        """Let the background begin with what it has to do."""
        await self.work(rng.randint(1, 2))

    async def go_on(self) -> None:
        """Let happen what the next start has to do besides."""

    def prepare(self) -> None:
        """Let the thread that stays ahead of the writer do what there is to be done."""
        while self.store.preparer.has_work():
            self.store.preparer.prepare()

    def close(self) -> None:
        """Stop in an orderly way: everything that was answered stays from now on, also without flushes before."""
        self.queue.direct = True
        self.store.close()
        if not self.files.dead and self.store.failed is None:
            self.chain = [self.world]
        self.mark()

    def kill(self) -> None:
        """The process dies; the kernel lives."""
        self.files.dead = True
        self.close()
        self.files.dead = False


def difference(seen: State, allowed: list[State]) -> str:
    """The first thing in which a state differs from the last one that was allowed."""
    here, there = dict(seen), dict(allowed[-1])
    for key in sorted(here.keys() | there.keys()):
        if here.get(key) != there.get(key):
            return (
                f"range {key} is {_short(here.get(key))}, not {_short(there.get(key))}; {len(allowed)} states allowed"
            )
    return "the same"


def _short(seen: Any) -> str:
    return "absent" if seen is None else f"{seen[:5]} with {len(seen[5])} entries"


class Workload:
    """Random operations that keep all maintenance busy: streams of different speed, trims, seals, deletions."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._fill = 0
        self.uniform = False
        """Small appends to one stream only: every group is as large as every other."""

    def operations(self, world: World, count: int) -> list[Operation]:
        world = world.copy()
        found: list[Operation] = []
        for _ in range(count):
            operation = self._operation(world)
            if operation[0] == "replace" and found:
                break  # what it replaces has to be there
            world.apply(operation)
            found.append(operation)
            if operation[0] in ("delete", "replace"):
                break  # what follows has to wait for the answer
        return found

    def _operation(self, world: World) -> Operation:
        rng = self._rng
        stream = 1 if self.uniform else rng.choice((1, 1, 1, 2, 2, 2, 3, 3, 4))
        ranges = world.of_stream(stream)
        if not ranges:
            return "create", stream, rng.randint(0, 1), rng.randint(0, 2), rng.randint(0, 3)
        index, last = ranges[-1]
        if last.end >= 0:
            return "create", stream, index + 1, last.epoch, last.end
        kind = 1.0 if self.uniform else rng.random()
        if kind < 0.1:
            return "trim", stream, rng.randint(last.low, last.next)
        if kind < 0.14:
            return "seal", stream, index, rng.randint(max(last.start, last.next - 9), last.next), last.epoch + 1
        if kind < 0.16 and stream != 4:
            return "delete", stream
        if 0.16 <= kind < 0.3:
            replacement = self._replacement(world, stream)
            if replacement is not None:
                return replacement
        base = last.next
        entries = []
        size = 300 if stream == 4 or self.uniform else rng.choice((200, 3000, 3000, 9000))
        for _ in range(rng.choice((1, 1, 2))):
            self._fill += 1
            entries.append(make_entry(stream, base, rng.randint(1, 5), size, index, fill=self._fill))
            base = entries[-1].end_offset
        return "append", *entries

    def _replacement(self, world: World, stream: int) -> Operation | None:
        """Some neighbours by fewer, or by others."""
        rng = self._rng
        ranges = world.of_stream(stream)
        index, there = rng.choice(ranges)
        limit = there.next if there.end < 0 else there.end
        seen = [body for base, end, body in there.entries if base >= there.low and end <= limit and body]
        if not seen:
            return None
        first = rng.randrange(len(seen))
        old = [parse_entry(memoryview(body)) for body in seen[first : first + rng.randint(1, 4)]]
        new = []
        at = 0
        while at < len(old):
            many = rng.randint(1, len(old) - at)
            base, end = old[at].base_offset, old[at + many - 1].end_offset
            self._fill += 1
            new.append(make_entry(stream, base, end - base, rng.choice((60, 200, 3000)), index, fill=self._fill))
            at += many
        return "replace", max(one.epoch for _, one in ranges), old, new


Life = tuple[str, str, int]
"""Durability, how it ends, and rounds of operations. Ends are ``stop``, ``kill``, ``killed`` and ``eio`` (both in the
middle of a write, see ``RecordingCalls.fault``), and two that are kills as well: ``uniform`` after operations of one
size, ``enospc`` after such and appends that found no room in between."""


async def record(files: RecordingCalls, rng: Random, plan: list[Life], make: type[Rig] = Rig) -> None:
    """What a store does in some lives, one after the other."""
    rig = make(files)
    workload = Workload(rng)
    rig.mark()
    for durability, ending, rounds in plan:
        rig.open(durability)
        rig.start()
        workload.uniform = ending in ("uniform", "enospc")
        for _ in range(rounds):
            count = 1 if workload.uniform else rng.choice((1, 1, 2, 4))
            await rig.do(*workload.operations(rig.world, count))
            if ending == "enospc":
                (operation,) = workload.operations(rig.world, 1)
                if operation[0] == "append":
                    await rig.do_without_room(operation)
            what = rng.random()
            if what < 0.5:
                rig.prepare()
            if what < 0.2:
                await rig.begin(rng)
            elif what < 0.5:
                rig.store.maintenance.tick()
                await rig.work()
        if ending in ("killed", "eio"):
            files.fault = ending
            await rig.do(*workload.operations(rig.world, 2))
        if ending == "stop":
            rig.close()
        else:
            rig.kill()


async def check(
    steps: list[Step], image: Image, broken: frozenset[str], root: Path, rng: Random, make: type[Rig] = Rig
) -> None:
    """Start a store from what a loss of power after ``steps`` left; let it go on, and take its power as well, every
    other time.

    Raises ``Violation``.
    """
    chain, opened = next(step[1:] for step in reversed(steps) if step[0] == "mark")
    root.mkdir()
    before = objects_after(steps, {})
    image = make.spoiled(image, rng)
    write_image(image, root)
    files = RecordingCalls(root)
    files.adopt(image)
    files.objects = dict(before)
    rig = make(files)
    rig.chain = [_Seen(state) for state in chain]  # type: ignore[misc]
    rig.opened = opened  # type: ignore[assignment]
    rig.open(rng.choice(make.DURABILITIES))
    if rng.random() < 0.5:
        rig.kill()
        return
    rig.chain = [_world(rig.store)]
    rig.start()
    reached = len(files.steps)
    for operation in _afterwards(rig.world, rng):
        await rig.do(operation)
    await rig.go_on()
    cut = rng.choice((len(files.steps), rng.randint(reached, len(files.steps))))
    rig.kill()
    disk = Disk(broken)
    reached_steps = files.steps[:cut]
    for step in (*steps_of(image), *reached_steps):
        disk.apply(step)
    again, _ = next(step[1:] for step in reversed(reached_steps) if step[0] == "mark")
    _word, second = next(iter(disk.images(rng, 1)))
    if rng.random() < 0.7:
        second = disk.image(rng, rng.choice(("none", "sectors", "torn", "all")), rng.choice(("none", "some", "all")))
    write_image(second, root / "again")
    files = RecordingCalls(root / "again")
    files.adopt(second)
    files.objects = objects_after(reached_steps, before)
    rig = make(files)
    rig.chain = [_Seen(state) for state in again]  # type: ignore[misc]
    rig.opened = True
    rig.open("fsync")
    rig.kill()


class _Seen(World):
    """A state without the means to go on from it."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state

    def seen(self) -> State:
        return self._state


def _world(store: Store) -> World:
    """A world that is like a store is: entries before the smallest offset are nobody's business."""
    world = World()
    for key, (start, epoch, end, low, following, entries) in observe(store):
        there = _Range(start, epoch, end, low)
        at = low
        for body in entries:
            bounds = store.batch_bounds(*key, at)
            assert bounds is not None
            there.entries.append((*bounds, body))
            at = bounds[1]
        if not entries and following > start:
            there.entries.append((following, following, b""))  # trimmed as far as it goes
        world.ranges[key] = there
    world._trimmed = {stream: stored.min_offset for stream, stored in store.streams.items()}
    return world


def _afterwards(world: World, rng: Random) -> list[Operation]:
    operations: list[Operation] = []
    for key, there in sorted(world.ranges.items()):
        if there.end < 0 and rng.random() < 0.5:
            # As large as others were: what was cut off must not fit behind it.
            operations.append(("append", make_entry(key[0], there.next, 1, rng.choice((200, 3000, 9000)), key[1])))
    operations.append(("create", 9, 0, 0, 0))
    return operations
