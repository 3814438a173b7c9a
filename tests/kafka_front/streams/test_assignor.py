"""Who gets which task."""

from __future__ import annotations

import random
from collections import Counter

from anabranch_kit.run.sliced import at_once
from kafka_front.service.groups.consumer.assignors import Targets
from kafka_front.service.groups.consumer.group import NOTHING
from kafka_front.service.groups.streams.assignor import AssignedSubtopology, Task, assign
from kafka_front.service.groups.streams.group import Role, tasks_of

COUNT = AssignedSubtopology("count", 8, True)
COPY = AssignedSubtopology("copy", 4, False)
NOBODY: Targets = {}


def given(
    members: dict[str, str], *subtopologies: AssignedSubtopology, standbys: int = 0, before: Targets = NOBODY
) -> Targets:
    """Targets of ``members``, by id and process."""
    rows = [(member, process, before.get(member, NOTHING)) for member, process in members.items()]
    return at_once(assign(rows, subtopologies, standbys))


def tasks(targets: Targets, member: str, role: Role = Role.ACTIVE) -> set[Task]:
    return {(one, number) for one, numbers in tasks_of(targets[member], role) for number in numbers}


def test_each_task_is_active_once_and_all_members_have_as_many() -> None:
    targets = given({"a": "p", "b": "p", "c": "q", "d": "r"}, COUNT, COPY)
    every = Counter(task for member in targets for task in tasks(targets, member))
    assert every == Counter([("count", n) for n in range(8)] + [("copy", n) for n in range(4)])
    assert [len(tasks(targets, member)) for member in targets] == [3, 3, 3, 3]
    assert {len([one for one in tasks(targets, member) if one[0] == "count"]) for member in targets} == {2}


def test_standby_tasks_are_of_tasks_with_state_in_another_process() -> None:
    members = {"a": "p", "b": "p", "c": "q"}
    targets = given(members, COUNT, COPY, standbys=2)
    for member, process in members.items():
        others = {task for one, at in members.items() if at == process for task in tasks(targets, one)}
        assert not tasks(targets, member, Role.STANDBY) & others
    copies = Counter(task for member in targets for task in tasks(targets, member, Role.STANDBY))
    assert copies == Counter(("count", n) for n in range(8))  # there is no third process


def test_tasks_stay_and_a_copy_becomes_active_when_its_owner_is_gone() -> None:
    members = {"a": "p", "b": "q", "c": "r"}
    first = given(members, COUNT, standbys=1)
    assert given(members, COUNT, standbys=1, before=first) == first
    del members["a"]
    second = given(members, COUNT, standbys=1, before=first)
    restored = 0
    for member in members:
        assert tasks(first, member) <= tasks(second, member)
        restored += len(tasks(second, member) - tasks(first, member) - tasks(first, member, Role.STANDBY))
    assert restored <= 1, "for the sake of balance only"


def test_a_new_member_takes_its_part_from_all_others() -> None:
    first = given({"a": "p", "b": "q"}, COUNT)
    second = given({"a": "p", "b": "q", "c": "r"}, COUNT, before=first)
    assert sorted(len(tasks(second, member)) for member in second) == [2, 3, 3]
    for member in ("a", "b"):
        assert tasks(second, member) <= tasks(first, member)


def test_members_that_come_and_go_have_one_more_task_than_others_at_most() -> None:
    chosen = random.Random(3)
    members: dict[str, str] = {"m": "p0"}
    before: Targets = {}
    for step in range(200):
        if len(members) > 1 and chosen.random() < 0.5:
            del members[chosen.choice(list(members))]
        else:
            members[f"m{step}"] = f"p{chosen.randrange(5)}"
        standbys = chosen.randrange(3)
        before = given(members, COUNT, COPY, standbys=standbys, before=before)
        every = Counter(task for member in before for task in tasks(before, member))
        assert set(every.values()) == {1}
        assert len(every) == 12
        for process in set(members.values()):
            held = [
                task
                for member, at in members.items()
                if at == process
                for role in Role
                for task in tasks(before, member, role)
            ]
            assert len(held) == len(set(held))
        copies = min(standbys, len(set(members.values())) - 1) * 8
        assert sum(len(tasks(before, member, Role.STANDBY)) for member in before) == copies
        active = [len(tasks(before, member)) for member in before]
        if len(set(members.values())) == len(members):
            assert max(active) - min(active) <= 2
