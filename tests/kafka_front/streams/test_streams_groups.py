"""The coordinator of streams groups as a state machine."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from kafka_front.service.groups.consumer.group import ConsumerMember, Process
from kafka_front.service.groups.consumer.requests import HeartbeatRequest
from kafka_front.service.groups.streams.group import Role, StreamsGroup, tasks_key
from kafka_front.service.groups.streams.requests import StreamsHeartbeat
from kafka_front.service.groups.streams.topology import Status
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.consumer_lab import GROUP, REBALANCE_MS
from tests.kafka_front.groups.lab import code_of
from tests.kafka_front.streams.streams_lab import COPY, COUNT, StreamsLab, Worker, settle


@pytest.fixture
def lab() -> StreamsLab:
    lab = StreamsLab(KafkaGroupSettings(initial_rebalance_delay_ms=0))
    lab.topics.make("in", 6)
    lab.topics.make("changes", 6)
    return lab


def everything(*workers: Worker, role: Role = Role.ACTIVE) -> Counter[tuple[str, int]]:
    return Counter(task for worker in workers for task in worker.runs(role))


def test_tasks_go_from_one_member_to_the_next_only_when_it_has_stopped_them(lab: StreamsLab) -> None:
    a, b = Worker(lab, "a"), Worker(lab, "b")
    a.ask()
    assert len(a.runs()) == 6
    b.ask()
    assert b.runs() == set()
    had = a.owned
    a.ask()  # is told to stop three
    assert len(a.runs()) == 3
    b.ask()
    assert b.runs() == set(), "nothing is free before its owner has said so"
    a.ask(owned=had)
    b.ask()
    assert b.runs() == set()
    settle(a, b)
    assert everything(a, b) == Counter(("0", number) for number in range(6))
    assert lab.streams_group.state.value == "Stable"


def test_the_first_members_are_awaited_before_tasks_are_assigned() -> None:
    lab = StreamsLab(KafkaGroupSettings(initial_rebalance_delay_ms=3_000))
    lab.topics.make("in", 6)
    a, b = Worker(lab, "a"), Worker(lab, "b")
    a.ask()
    lab.pass_time(2_000)
    b.ask()
    assert a.waiting is not None
    lab.pass_time(1_000)
    a.ask()
    b.ask()
    assert [len(one.runs()) for one in (a, b)] == [3, 3]


def test_a_commit_under_way_counts_while_the_member_enters_the_next_epoch(lab: StreamsLab) -> None:
    a, b = Worker(lab, "a"), Worker(lab, "b")
    settle(a)
    settle(a, b)
    group = lab.streams_group
    before = group.members["a"].previous_epoch
    kept, lost = (sorted(number for _, number in one.runs())[0] for one in (a, b))

    def code(epoch: int, *partitions: int) -> int:
        places = {("in", number) for number in partitions}
        return code_of(lab.streams.check_commit, group, "a", None, epoch, places, transactional=True)

    assert code(a.epoch, kept) == code(before, kept) == ErrorCode.NONE
    assert code(before, kept, lost) == code(before - 1, kept) == ErrorCode.STALE_MEMBER_EPOCH


def test_a_member_that_says_nothing_loses_its_tasks(lab: StreamsLab) -> None:
    a, b = Worker(lab, "a"), Worker(lab, "b")
    settle(a, b)
    lab.pass_time(44_000)
    b.ask()
    lab.pass_time(2_000)
    b.ask()
    assert len(b.runs()) == 6
    a.ask()
    assert a.last.error == ErrorCode.UNKNOWN_MEMBER_ID
    settle(a, b)
    assert everything(a, b) == Counter(("0", number) for number in range(6))


def test_a_member_that_does_not_stop_its_tasks_is_removed(lab: StreamsLab) -> None:
    a, b = Worker(lab, "a"), Worker(lab, "b")
    a.ask()
    had = a.owned
    b.ask()
    a.ask()
    for _ in range(3):
        lab.pass_time(REBALANCE_MS // 2)
        a.ask(owned=had)
        b.ask()
    assert len(b.runs()) == 6


def test_a_task_has_one_role_in_a_process_at_a_time(lab: StreamsLab) -> None:
    lab.configured[GROUP, "streams.num.standby.replicas"] = 1
    a, b = Worker(lab, "a", COUNT), Worker(lab, "b", COUNT)
    settle(a, b)
    assert everything(a, b) == everything(a, b, role=Role.STANDBY) == Counter(("0", n) for n in range(6))
    assert not a.runs() & a.runs(Role.STANDBY)


def test_a_process_takes_a_task_in_another_role_when_it_has_stopped_it_in_the_former() -> None:
    group = StreamsGroup(GROUP, 0, epoch=2, target_epoch=2)
    active, standby = ({tasks_key(role, "0"): frozenset({7})} for role in (Role.ACTIVE, Role.STANDBY))
    first = ConsumerMember("a", epoch=1, assigned=active, process=Process("p"))
    second = ConsumerMember("b", epoch=1, target=standby, process=Process("p"))
    group.add(first)
    group.add(second)
    group.reconcile(first, active)
    group.reconcile(second, {})
    assert (first.revoking, second.assigned) == (active, {})
    group.reconcile(first, {})
    group.reconcile(second, {})
    assert second.assigned == standby


def test_a_changed_number_of_standby_tasks_makes_a_rebalance(lab: StreamsLab) -> None:
    a, b = Worker(lab, "a", COUNT), Worker(lab, "b", COUNT)
    settle(a, b)
    assert not everything(a, b, role=Role.STANDBY)
    lab.configured[GROUP, "streams.num.standby.replicas"] = 1
    settle(a, b)
    assert len(everything(a, b, role=Role.STANDBY)) == 6


def test_members_are_told_what_is_wrong_with_topics_until_it_is_mended(lab: StreamsLab) -> None:
    lab.topics.delete("in")
    a = Worker(lab, "a")
    a.ask()
    assert a.statuses == [(Status.MISSING_SOURCE_TOPICS, "Source topics in are missing.")]
    assert (a.runs(), lab.streams_group.state.value) == (set(), "NotReady")
    lab.topics.make("in", 2)
    settle(a)
    assert (a.statuses, len(a.runs())) == ([], 2)


def test_an_application_of_another_version_waits_until_the_former_has_ended(lab: StreamsLab) -> None:
    settle(old := Worker(lab, "a", replace(COPY, epoch=1)))
    stale = Worker(lab, "b", COPY)
    stale.ask()
    assert stale.statuses[0][0] == Status.STALE_TOPOLOGY
    other = Worker(lab, "c", replace(COUNT, epoch=1))
    other.ask()
    assert other.last.error == ErrorCode.INVALID_REQUEST
    assert lab.streams_group.members.keys() == {"a", "b"}, "nobody is left behind who was refused"
    for worker in (old, stale):
        lab.ask(replace(_leave(worker), epoch=-1))
    other.ask()
    assert len(other.runs()) == 6


def _leave(worker: Worker) -> StreamsHeartbeat:
    return StreamsHeartbeat(GROUP, worker.member_id, -1, worker.fields.get("instance_id"))


def test_one_member_shuts_all_others_down(lab: StreamsLab) -> None:
    a, b = Worker(lab, "a"), Worker(lab, "b")
    settle(a, b)
    a.ask(stops_all=True)
    b.ask()
    assert [code for code, _ in b.statuses] == [Status.SHUTDOWN_APPLICATION]
    for worker in (a, b):
        lab.ask(_leave(worker))
    again = Worker(lab, "d")
    settle(again)
    assert again.statuses == []


def test_members_learn_where_to_ask_for_state(lab: StreamsLab) -> None:
    a, b = Worker(lab, "a", endpoint=("one", 1)), Worker(lab, "b", endpoint=("two", 2))
    settle(a, b)
    reply = b.last
    b.ask(endpoints_epoch=lab.streams_group.endpoints_epoch)
    assert b.last.endpoints is None
    b.ask()
    assert b.last.endpoints is not None
    found = {endpoint: dict(active) for endpoint, active, _ in b.last.endpoints}
    assert {endpoint: set(by_topic["in"]) for endpoint, by_topic in found.items()} == {
        ("one", 1): {number for _, number in a.runs()},
        ("two", 2): {number for _, number in b.runs()},
    }, reply


def test_a_static_member_takes_its_tasks_up_again(lab: StreamsLab) -> None:
    a, b = Worker(lab, "a", instance_id="one"), Worker(lab, "b", instance_id="two")
    settle(a, b)
    had = a.runs()
    lab.ask(replace(_leave(a), epoch=-2))
    settle(b)
    assert not b.runs() & had
    again = Worker(lab, "c", instance_id="one", process_id="another")
    settle(again, b)
    assert again.runs() == had
    a.ask()
    assert a.last.error == ErrorCode.FENCED_INSTANCE_ID


def test_a_node_that_starts_again_knows_the_group(lab: StreamsLab) -> None:
    lab.configured[GROUP, "streams.num.standby.replicas"] = 1
    a, b = Worker(lab, "a", COUNT, tags=(("zone", "z"),)), Worker(lab, "b", COUNT, endpoint=("two", 2))
    settle(a, b)
    before, epoch = lab.streams_group, lab.streams_group.epoch
    lab.start()
    settle(a, b)
    group = lab.streams_group
    assert group is not before
    assert (group.epoch, group.topology, group.standbys) == (epoch, before.topology, 1)
    assert group.said_bytes == before.said_bytes
    for member_id, member in before.members.items():
        now = group.members[member_id]
        assert (now.process, now.assigned, now.target) == (member.process, member.assigned, member.target)


def test_names_of_groups_of_other_kinds_are_refused_unless_those_are_empty(lab: StreamsLab) -> None:
    settle(a := Worker(lab, "a"))
    assert lab.join("x", "in").error == ErrorCode.GROUP_ID_NOT_FOUND
    lab.ask(_leave(a))
    lab.streams.make_way(GROUP)  # a member of a classic group joins
    assert lab.join("x", "in").error == ErrorCode.NONE
    a.ask()
    assert a.last.error == ErrorCode.GROUP_ID_NOT_FOUND
    lab.send(HeartbeatRequest(GROUP, "x", -1))


def test_a_member_that_would_make_the_group_too_large_is_refused() -> None:
    lab = StreamsLab(KafkaGroupSettings(initial_rebalance_delay_ms=0, max_bytes=2_000))
    lab.topics.make("in", 1)
    settle(a := Worker(lab, "a"))
    large = Worker(lab, "b", tags=(("zone", "z" * 3_000),))
    large.ask()
    assert large.last.error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert lab.streams_group.members.keys() == {"a"}
    settle(a)
    assert a.runs() == {("0", 0)}
