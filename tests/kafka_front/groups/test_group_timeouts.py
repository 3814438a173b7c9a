"""Timeouts that clients send are claims: none may make the coordinator spin, hang, or wait without a bound."""

from __future__ import annotations

import pytest

from kafka_front.service.groups.classic.coordinator import Coordinator
from kafka_front.service.groups.classic.snapshot import GroupSnapshot, MemberSnapshot
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.lab import GROUP, Lab, bounded_groups, code_of

LARGEST = 2**31 - 1


def stable_pair(lab: Lab, rebalance_ms: int) -> tuple[str, str]:
    """A stable group of a static member with ``rebalance_ms`` and a dynamic one; their ids."""
    static = lab.join(instance_id="i", rebalance_timeout_ms=rebalance_ms)
    dynamic = lab.join()
    lab.pass_time(lab.settings.initial_rebalance_delay_ms * 2)
    one, other = static.answer.member_id, dynamic.answer.member_id
    generation = static.answer.generation
    lab.sync(one, generation, {one: b"1", other: b"2"})
    lab.sync(other, generation)
    assert lab.state == "Stable"
    return one, other


@pytest.mark.parametrize("rebalance_ms", [0, -1, -(2**31), 1])
def test_static_members_without_a_rebalance_timeout_do_not_make_time_stand_still(lab: Lab, rebalance_ms: int) -> None:
    static, dynamic = stable_pair(lab, rebalance_ms)

    assert lab.leave(dynamic) == [ErrorCode.NONE]
    lab.pass_time(9_000)

    # The static member stays away, for no longer than its session; nothing is to be done meanwhile.
    assert lab.state == "PreparingRebalance"
    assert static in lab.group.members
    assert lab.steps <= 4
    lab.pass_time(1_000)
    assert lab.state == "Empty"


def test_a_static_member_that_returns_waits_for_the_others_no_longer_than_the_rebalance_timeout(lab: Lab) -> None:
    ids = lab.stable(2, static=True, session_timeout_ms=120_000)
    rejoined = lab.join(ids[0], instance_id=lab.group.members[ids[0]].instance_id, protocols=(("range", b"new"),))
    lab.pass_time(60_000)
    assert rejoined.error == ErrorCode.NONE  # the other one did not come, and stays in the group
    assert set(lab.group.members) == set(ids)

    lab.sync(ids[0], rejoined.answer.generation, {})
    assert lab.state == "CompletingRebalance" or lab.state == "Stable"


def test_when_nobody_came_the_first_who_returns_starts_the_wait_for_the_others(lab: Lab) -> None:
    lab.settings = KafkaGroupSettings()
    static = [lab.join(instance_id=name, session_timeout_ms=600_000, rebalance_timeout_ms=5_000) for name in ("a", "b")]
    dynamic = lab.join(rebalance_timeout_ms=5_000)
    lab.pass_time(6_000)
    generation = dynamic.answer.generation
    members = [join.answer.member_id for join in (*static, dynamic)]
    for member_id in members:
        lab.sync(member_id, generation, dict.fromkeys(members, b"x"))
    lab.leave(members[2])
    lab.pass_time(100_000)
    assert lab.state == "PreparingRebalance"
    assert lab.coordinator.next_deadline_ms is not None

    returned = lab.join(members[0], instance_id="a", session_timeout_ms=600_000, rebalance_timeout_ms=5_000)
    lab.pass_time(4_999)
    assert not returned.done
    lab.pass_time(1)
    assert returned.error == ErrorCode.NONE
    assert returned.answer.leader == members[0]


def test_the_longest_rebalance_timeout_is_bounded_by_the_setting() -> None:
    lab = Lab(bounded_groups(max_rebalance_timeout_ms=90_000))
    leader, follower = lab.stable(2, rebalance_timeout_ms=LARGEST)
    assert lab.group.rebalance_timeout_ms == 90_000
    generation = lab.group.generation
    rejoined = lab.join(leader, rebalance_timeout_ms=LARGEST)
    for _ in range(18):
        assert not rejoined.done
        assert lab.heartbeat(follower, generation) == ErrorCode.REBALANCE_IN_PROGRESS
        lab.pass_time(5_000)
    assert rejoined.error == ErrorCode.NONE
    assert follower not in lab.group.members


@pytest.mark.parametrize("session_ms", [0, -1, -(2**31), 5_999, 1_800_001, LARGEST])
def test_session_timeouts_out_of_range_are_refused_for_every_kind_of_member(lab: Lab, session_ms: int) -> None:
    for fields in ({}, {"instance_id": "i"}, {"require_known_id": True}, {"member_id": "x"}):
        assert lab.join(session_timeout_ms=session_ms, **fields).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert GROUP not in lab.coordinator.groups


@pytest.mark.parametrize("stored", [-(2**31), 0, LARGEST])
def test_timeouts_that_a_former_version_stored_are_bounded_too(lab: Lab, stored: int) -> None:
    member = MemberSnapshot("m", "i", "c", "/h", stored, stored, (("range", b""),), b"")
    lab.coordinator.restore(lab.now, GROUP, GroupSnapshot(3, "consumer", "range", "m", lab.now, (member,)))
    deadline = lab.coordinator.next_deadline_ms
    assert deadline is not None
    assert lab.now + 6_000 <= deadline <= lab.now + 1_800_000
    assert 1 <= lab.group.rebalance_timeout_ms <= lab.settings.max_rebalance_timeout_ms


def test_a_first_rebalance_that_need_not_wait_ends_in_the_next_millisecond() -> None:
    lab = Lab(KafkaGroupSettings(initial_rebalance_delay_ms=0))
    joined = [lab.join(rebalance_timeout_ms=0) for _ in range(3)]
    assert lab.coordinator.next_deadline_ms == lab.now + 1
    lab.pass_time(1)
    assert [join.error for join in joined] == [ErrorCode.NONE] * 3
    assert {join.answer.generation for join in joined} == {1}


def test_a_step_that_raises_costs_its_group_a_second_and_others_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.stable()
    other = lab.join(group_id="other")
    lab.pass_time(3_000)
    assert other.error == ErrorCode.NONE
    raised: list[str] = []
    over = Coordinator._session_over

    def faulty(self: Coordinator, now_ms: int, group: object, member_id: str) -> None:
        if group is lab.group and not raised:
            raised.append(member_id)
            raise RuntimeError("a defect")
        over(self, now_ms, group, member_id)  # type: ignore[arg-type]

    monkeypatch.setattr(Coordinator, "_session_over", faulty)
    lab.pass_time(300_000)
    assert raised
    assert lab.state == "Empty"
    assert not lab.coordinator.groups["other"].members


def test_an_answer_that_raises_costs_nobody_else_an_answer(lab: Lab) -> None:
    first = lab.join(instance_id="a")
    lab.group.members[next(iter(lab.group.members))].join = lambda answer: 1 / 0  # type: ignore[assignment]
    second = lab.join(instance_id="b")
    lab.pass_time(6_000)
    assert not first.done
    assert second.error == ErrorCode.NONE


# --- memory ----------------------------------------------------------------------------------------------------------


def test_members_of_a_group_cannot_say_more_of_themselves_than_it_may_keep() -> None:
    lab = Lab(KafkaGroupSettings(max_bytes=1_000))
    big, small = (("range", b"x" * 600),), (("range", b"x" * 300),)
    one = lab.join(protocols=big)
    assert lab.join(protocols=big).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    two = lab.join(protocols=small, instance_id="i")
    lab.pass_time(6_000)
    assert (one.error, two.error) == (ErrorCode.NONE, ErrorCode.NONE)
    assert lab.group.metadata_bytes == 910

    # What a member said before does not count against what it says now, whether it names its id or its instance.
    again = lab.join(protocols=(("range", b"x" * 390),), instance_id="i")
    assert not again.done
    assert lab.group.metadata_bytes == 1_000
    assert lab.join(one.answer.member_id, protocols=(("range", b"x" * 601),)).error == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_leader_cannot_assign_more_than_a_group_may_keep() -> None:
    lab = Lab(KafkaGroupSettings(max_bytes=1_000))
    joins = [lab.join(), lab.join()]
    lab.pass_time(6_000)
    ids = sorted((j.answer.member_id for j in joins), key=lambda one: one != joins[0].answer.leader)
    waiting = lab.sync(ids[1], 1)
    assert lab.sync(ids[0], 1, {ids[1]: b"x" * 1_000}).error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert waiting.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert lab.state == "PreparingRebalance"

    again = [lab.join(member_id) for member_id in ids]
    assert [join.error for join in again] == [ErrorCode.NONE] * 2
    assert lab.sync(ids[0], 2, {ids[1]: b"x" * 900}).error == ErrorCode.NONE
    assert lab.state == "Stable"


def test_what_a_group_keeps_is_counted_down_as_its_members_go(lab: Lab) -> None:
    ids = lab.stable(3)
    assert lab.group.metadata_bytes == 3 * 6
    lab.leave(*ids)
    assert lab.group.metadata_bytes == 0


def test_groups_that_nobody_had_before_are_bounded_in_number() -> None:
    lab = Lab(bounded_groups(max_groups=2))
    assert lab.commit("", -1) == ErrorCode.NONE
    assert not lab.join(group_id="second").done
    assert lab.join(group_id="third").error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert code_of(lab.coordinator.check_commit, lab.now, "third", "", None, -1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not lab.join().done, "who is in a group that exists goes on"
    lab.pass_time(600_000)
    assert code_of(lab.coordinator.delete, lab.now, "second") == ErrorCode.NONE
    assert not lab.join(group_id="third").done


def test_ids_that_nobody_uses_are_bounded_in_number() -> None:
    lab = Lab(KafkaGroupSettings(max_size=3))
    given = [lab.join(require_known_id=True) for _ in range(4)]
    assert [join.error for join in given] == [ErrorCode.MEMBER_ID_REQUIRED] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert len(lab.group.pending) == 3
    assert not lab.join(given[0].answer.member_id).done
    assert lab.join(require_known_id=True).error == ErrorCode.MEMBER_ID_REQUIRED
    lab.pass_time(10_000)
    assert lab.group.pending == set()
