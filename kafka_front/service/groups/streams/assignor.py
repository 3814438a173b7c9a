"""The assignor of tasks: "sticky" as in Apache Kafka 4.4, and sliced work, since clients choose the number of tasks.

Active tasks with state come first, then those without, then standby tasks. A task stays with the member that has it, or
goes to one with a copy of its state, as long as no member gets more than its part; what is left goes to the process
with the fewest tasks per member, and there to the member with the fewest. A process has a task once.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from msgspec import Struct, field

from anabranch_kit.run.sliced import Sliced
from kafka_front.service.groups.consumer.assignors import Targets
from kafka_front.service.groups.consumer.group import Partitions
from kafka_front.service.groups.streams.group import Role, tasks_key, tasks_of

_SLICE = 2_000
"""Tasks in one step of the sliced work."""

Task = tuple[str, int]
"""Subtopology and number."""


class AssignedSubtopology(Struct, frozen=True):
    """A subtopology as the assignor sees it."""

    subtopology_id: str
    tasks: int
    has_state: bool


class _Member(Struct):
    process: _Process
    active: set[Task] = field(default_factory=set)
    standby: set[Task] = field(default_factory=set)

    @property
    def load(self) -> int:
        return len(self.active) + len(self.standby)


class _Process(Struct):
    members: list[_Member] = field(default_factory=list)
    tasks: set[Task] = field(default_factory=set)

    @property
    def load(self) -> float:
        return len(self.tasks) / len(self.members)

    def take(self, member: _Member, task: Task, role: Role) -> None:
        self.tasks.add(task)
        (member.active if role is Role.ACTIVE else member.standby).add(task)


class _Quota(Struct):
    """The tasks that each member may keep: as many as are left for each member that has not its part yet."""

    left: int
    members: int

    @property
    def each(self) -> int:
        return -(-self.left // self.members) if self.members else 0

    def note(self, member: _Member) -> None:
        """Take a member out of the count once it has its part."""
        if self.members and member.load >= self.each:
            self.left, self.members = self.left - member.load, self.members - 1


def assign(
    members: Sequence[tuple[str, str, Partitions]], subtopologies: Sequence[AssignedSubtopology], standbys: int
) -> Sliced[Targets]:
    """Assign the tasks of ``subtopologies`` to ``members``: id, process and previous target of each."""
    processes: dict[str, _Process] = {}
    found: dict[str, _Member] = {}
    actives: dict[Task, list[_Member]] = {}
    copies: dict[Task, list[_Member]] = {}
    steps = 0
    for member_id, process_id, target in sorted(members, key=lambda one: one[0]):
        process = processes.setdefault(process_id, _Process())
        member = found[member_id] = _Member(process)
        process.members.append(member)
        for roles, held in (((Role.ACTIVE,), actives), ((Role.STANDBY, Role.WARMUP), copies)):
            for subtopology, numbers in tasks_of(target, *roles):
                for number in numbers:
                    held.setdefault((subtopology, number), []).append(member)
                steps += len(numbers)
        if steps >= _SLICE:
            steps = 0
            yield None
    state = [one for one in subtopologies if one.has_state]
    free = [one for one in subtopologies if not one.has_state]
    stateful, stateless = (yield from _tasks(state)), (yield from _tasks(free))
    with_state = yield from _hand_out(stateful, Role.ACTIVE, [actives, copies], found, processes, 0)
    yield from _hand_out(stateless, Role.ACTIVE, [actives, copies], found, processes, with_state)
    everything = sum(one.tasks for one in subtopologies)
    for _ in range(min(standbys, len(processes) - 1)):
        everything = yield from _hand_out(stateful, Role.STANDBY, [actives, copies], found, processes, everything)
    targets: Targets = {}
    for member_id, _, target in members:
        now: dict[bytes, set[int]] = {}
        for role, tasks in ((Role.ACTIVE, found[member_id].active), (Role.STANDBY, found[member_id].standby)):
            for subtopology, number in tasks:
                now.setdefault(tasks_key(role, subtopology), set()).add(number)
            steps += len(tasks)
        frozen = {key: frozenset(numbers) for key, numbers in now.items()}
        targets[member_id] = target if frozen == target else frozen
        if steps >= _SLICE:
            steps = 0
            yield None
    return targets


def _tasks(subtopologies: Sequence[AssignedSubtopology]) -> Sliced[list[Task]]:
    """Return the tasks in the order of their numbers: those of one number belong together, because topics that are
    joined are processed at one place."""
    by_size = sorted(subtopologies, key=lambda one: (-one.tasks, one.subtopology_id))
    found: list[Task] = []
    for number in range(by_size[0].tasks if by_size else 0):
        for one in by_size:
            if one.tasks <= number:
                break
            found.append((one.subtopology_id, number))
            if len(found) % _SLICE == 0:
                yield None
    return found


def _hand_out(
    tasks: list[Task],
    role: Role,
    held: Sequence[dict[Task, list[_Member]]],
    members: dict[str, _Member],
    processes: dict[str, _Process],
    before: int,
) -> Sliced[int]:
    """Give each task to a member whose process does not have it, to those in ``held`` first, if there is one; return
    the number of tasks that there should be then, ``before`` among them."""
    total = before + len(tasks)
    quota = _Quota(total, len(members))
    for member in sorted(members.values(), key=lambda one: -one.load):
        quota.note(member)
    steps = 0
    for where in held:
        rest: list[Task] = []
        for task in tasks:
            able = [one for one in where.get(task, ()) if task not in one.process.tasks and one.load < quota.each]
            if able:
                chosen = min(able, key=lambda one: (one.process.load, one.load))
                chosen.process.take(chosen, task, role)
                quota.note(chosen)
            else:
                rest.append(task)
            steps += 1
            if steps % _SLICE == 0:
                yield None
        tasks = rest
    heap = [(process.load, index, process) for index, process in enumerate(processes.values())]
    loads = [[(member.load, index, member) for index, member in enumerate(process.members)] for _, _, process in heap]
    heapify(heap)
    for load in loads:
        heapify(load)
    left: dict[str, list[Task]] = {}
    for task in tasks:
        left.setdefault(task[0], []).append(task)
    for task in (task for subtopology in sorted(left) for task in left[subtopology]):
        passed = []
        while heap:
            _, index, process = heappop(heap)
            if task not in process.tasks:
                _, number, member = heappop(loads[index])
                process.take(member, task, role)
                heappush(loads[index], (member.load, number, member))
                passed.append((process.load, index, process))
                break
            passed.append((process.load, index, process))
        for entry in passed:
            heappush(heap, entry)
        steps += len(passed)
        if steps >= _SLICE:
            steps = 0
            yield None
    return total
