"""Static members (KIP-345), their replacement (KIP-814), and restarts of the node."""

from __future__ import annotations

from functools import partial

import pytest

from kafka_front.service.groups.classic.requests import Leaver
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.lab import GROUP, REBALANCE_MS, SESSION_MS, Lab, code_of, subscription

DELAY = 3_000


def test_a_restarted_follower_takes_its_place_without_a_rebalance(lab: Lab) -> None:
    leader, follower = lab.stable(2, static=True)
    answer = lab.join(instance_id="instance1").answer
    assert (answer.error, answer.generation, answer.leader, answer.members) == (ErrorCode.NONE, 1, leader, ())
    assert answer.member_id not in (leader, follower)
    assert lab.state == "Stable"
    assert lab.sync(answer.member_id, 1, instance_id="instance1").answer.assignment == b"a1"
    assert lab.heartbeat(follower, 1, "instance1") == ErrorCode.FENCED_INSTANCE_ID
    assert lab.commit(follower, 1, "instance1") == ErrorCode.FENCED_INSTANCE_ID
    assert lab.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restarted_leader_of_v9_is_told_not_to_assign(lab: Lab) -> None:
    _, follower = lab.stable(2, static=True)
    answer = lab.join(instance_id="instance0", can_skip_assignment=True).answer
    assert answer.leader == answer.member_id == lab.group.leader
    assert answer.skip_assignment
    assert [member.member_id for member in answer.members] == [answer.member_id, follower]
    assert lab.sync(answer.member_id, 1, {}).answer.assignment == b"a0"
    assert lab.state == "Stable"


def test_a_restarted_follower_of_v9_is_not_told_to_skip(lab: Lab) -> None:
    lab.stable(2, static=True)
    answer = lab.join(instance_id="instance1", can_skip_assignment=True).answer
    assert not answer.skip_assignment
    assert answer.members == ()


def test_a_restarted_leader_of_an_older_version_sees_the_old_leader(lab: Lab) -> None:
    leader, _ = lab.stable(2, static=True)
    answer = lab.join(instance_id="instance0").answer
    assert (answer.leader, answer.members, answer.skip_assignment) == (leader, (), False)
    assert lab.group.leader == answer.member_id


def test_the_new_id_is_durable_before_its_owner_learns_it(lab: Lab) -> None:
    lab.stable(2, static=True)
    lab.journal.held = True
    join = lab.join(instance_id="instance1")
    assert not join.done
    lab.journal.complete()
    assert join.answer.error == ErrorCode.NONE
    lab.restart()
    assert lab.heartbeat(join.answer.member_id, 1, "instance1") == ErrorCode.NONE


def test_a_replacement_that_cannot_be_stored_is_refused_but_can_be_tried_again(lab: Lab) -> None:
    lab.stable(2, static=True)
    lab.journal.held = True
    join = lab.join(instance_id="instance1")
    lab.journal.complete(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert join.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    lab.journal.held = False
    assert lab.join(instance_id="instance1").error == ErrorCode.NONE


def test_two_replacements_in_a_row_fence_the_first(lab: Lab) -> None:
    lab.stable(2, static=True)
    lab.journal.held = True
    first = lab.join(instance_id="instance1")
    second = lab.join(instance_id="instance1")
    assert first.error == ErrorCode.FENCED_INSTANCE_ID
    lab.journal.complete()
    assert not second.done
    lab.journal.complete()
    assert second.error == ErrorCode.NONE


def test_a_rebalance_takes_over_a_replacement_on_its_way_to_the_disk(lab: Lab) -> None:
    leader, _ = lab.stable(2, static=True)
    lab.journal.held = True
    join = lab.join(instance_id="instance1")
    lab.join(leader, instance_id="instance0")
    assert join.answer.generation == 2
    lab.journal.complete()
    assert lab.state == "CompletingRebalance"


def test_a_replacement_that_changes_the_chosen_protocol_rebalances(lab: Lab) -> None:
    protocols = (("a", b""), ("b", b""))
    leader, _ = lab.stable(2, static=True, protocols=protocols)
    join = lab.join(instance_id="instance1", protocols=(("b", b""),))
    assert not join.done
    assert lab.state == "PreparingRebalance"
    assert lab.join(leader, instance_id="instance0", protocols=protocols).answer.protocol_name == "b"


def test_a_replacement_with_other_metadata_does_not_rebalance(lab: Lab) -> None:
    lab.stable(2, static=True)
    assert lab.join(instance_id="instance1", protocols=(("range", b"other"),)).error == ErrorCode.NONE
    assert lab.state == "Stable"


def test_a_replacement_in_the_sync_phase_rebalances(lab: Lab) -> None:
    joins = [lab.join(instance_id=f"i{n}") for n in range(2)]
    lab.pass_time(DELAY * 2)
    leader, follower = (join.answer.member_id for join in joins)
    waiting = lab.sync(follower, 1, instance_id="i1")
    join = lab.join(instance_id="i1")
    assert waiting.error == ErrorCode.FENCED_INSTANCE_ID
    assert lab.state == "PreparingRebalance"
    lab.join(leader, instance_id="i0")
    assert join.answer.generation == 2


def test_a_replacement_in_the_join_phase_fences_the_parked_join(lab: Lab) -> None:
    leader, follower = lab.stable(2, static=True)
    old = lab.join(follower, instance_id="instance1", protocols=(("range", b"x"),))
    new = lab.join(instance_id="instance1")
    assert old.error == ErrorCode.FENCED_INSTANCE_ID
    assert old.answer.member_id == follower
    lab.join(leader, instance_id="instance0")
    assert new.answer.generation == 2
    assert len(lab.group.members) == 2


def test_joining_with_the_id_of_an_earlier_incarnation_is_fenced(lab: Lab) -> None:
    _, follower = lab.stable(2, static=True)
    lab.join(instance_id="instance1")
    assert lab.join(follower, instance_id="instance1").error == ErrorCode.FENCED_INSTANCE_ID


def test_static_members_time_out_by_session(lab: Lab) -> None:
    leader, follower = lab.stable(2, static=True)
    lab.pass_time(SESSION_MS - 1)
    lab.heartbeat(leader, 1, "instance0")
    lab.pass_time(1)
    assert lab.heartbeat(follower, 1, "instance1") == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.state == "PreparingRebalance"


def test_static_members_survive_a_join_phase_they_missed(lab: Lab) -> None:
    leader, follower = lab.stable(2, static=True, session_timeout_ms=1_800_000)
    join = lab.join(leader, instance_id="instance0", session_timeout_ms=1_800_000)
    lab.pass_time(REBALANCE_MS)
    assert {member.member_id for member in join.answer.members} == {leader, follower}
    lab.sync(leader, 2, {follower: b"F"})
    assert lab.heartbeat(follower, 2, "instance1") == ErrorCode.NONE


def test_a_join_phase_nobody_came_to_goes_on_while_static_members_may_come_back(lab: Lab) -> None:
    _, follower = lab.stable(2, static=True, session_timeout_ms=150_000)
    lab.leave(Leaver("", "instance0"))
    lab.pass_time(REBALANCE_MS)
    assert lab.state == "PreparingRebalance"
    join = lab.join(follower, instance_id="instance1", session_timeout_ms=150_000)
    assert join.answer.leader == follower


def test_a_join_phase_nobody_comes_to_ends_with_the_last_session(lab: Lab) -> None:
    lab.stable(2, static=True, session_timeout_ms=150_000)
    lab.leave(Leaver("", "instance0"))
    lab.pass_time(150_000)
    assert lab.state == "Empty"
    assert lab.coordinator.next_deadline_ms is None


def test_members_of_a_restarted_node_go_on_without_a_rebalance(lab: Lab) -> None:
    protocols = (("range", subscription("t")), ("sticky", subscription("t")))
    leader, follower = lab.stable(2, protocols=protocols)
    lab.restart()
    assert lab.state == "Stable"
    assert lab.heartbeat(leader, 1) == lab.heartbeat(follower, 1) == ErrorCode.NONE
    assert lab.commit(follower, 1) == ErrorCode.NONE
    assert lab.sync(follower, 1).answer.assignment == b"a1"
    assert lab.join(follower, protocols=protocols).answer.leader == leader
    assert lab.group.is_subscribed("t")
    assert not lab.group.is_subscribed("u")
    assert lab.state == "Stable"


def test_members_have_a_full_session_to_report_to_a_restarted_node(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    lab.pass_time(SESSION_MS - 1)
    lab.restart()
    lab.pass_time(SESSION_MS - 1)
    assert lab.heartbeat(leader, 1) == ErrorCode.NONE
    lab.pass_time(1)
    assert lab.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert follower not in lab.group.members


def test_static_members_keep_their_instance_over_a_restart(lab: Lab) -> None:
    lab.stable(2, static=True)
    lab.restart()
    answer = lab.join(instance_id="instance1", can_skip_assignment=True).answer
    assert (answer.error, answer.generation) == (ErrorCode.NONE, 1)
    assert lab.state == "Stable"


def test_an_empty_group_comes_back_with_its_generation(lab: Lab) -> None:
    [member] = lab.stable()
    lab.leave(member)
    since = lab.group.since_ms
    lab.restart()
    assert (lab.state, lab.group.generation, lab.group.since_ms) == ("Empty", 2, since)
    join = lab.join()
    lab.pass_time(DELAY)
    assert join.answer.generation == 3


@pytest.mark.parametrize("generation", [0, 1])
def test_commit_errors_of_unknown_groups_depend_on_the_version(lab: Lab, generation: int) -> None:
    assert lab.commit("x", generation) == ErrorCode.ILLEGAL_GENERATION
    assert lab.commit("x", generation, unknown_group_error=ErrorCode.GROUP_ID_NOT_FOUND) == ErrorCode.GROUP_ID_NOT_FOUND
    assert GROUP not in lab.coordinator.groups


def test_a_commit_from_outside_makes_a_simple_group(lab: Lab) -> None:
    assert lab.commit("", -1) == ErrorCode.NONE
    assert (lab.state, lab.group.protocol_type) == ("Empty", None)
    assert lab.commit("whoever", -1) == ErrorCode.NONE
    assert lab.commit("whoever", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_errors_in_order(lab: Lab) -> None:
    joins = [lab.join(instance_id=f"i{n}") for n in range(2)]
    lab.pass_time(DELAY * 2)
    leader, follower = (join.answer.member_id for join in joins)
    assert lab.commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.commit("x", 9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.commit("x", 9, "i0") == ErrorCode.FENCED_INSTANCE_ID
    assert lab.commit("", -1, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.commit(leader, 9) == ErrorCode.ILLEGAL_GENERATION
    assert lab.commit(leader, -1) == ErrorCode.ILLEGAL_GENERATION
    assert lab.commit(leader, 1, "i0") == ErrorCode.REBALANCE_IN_PROGRESS
    assert lab.commit(leader, 1, "i0", transactional=True) == ErrorCode.NONE
    assert lab.commit("", -1, transactional=True) == ErrorCode.NONE
    lab.sync(leader, 1, {})
    assert lab.commit(leader, 1, "i0") == lab.commit(follower, 1) == ErrorCode.NONE
    lab.join()
    assert lab.commit(leader, 1) == ErrorCode.NONE  # the join phase is when members commit before they lose partitions


def test_only_empty_groups_can_be_deleted(lab: Lab) -> None:
    assert code_of(lab.coordinator.delete, lab.now, GROUP) == ErrorCode.GROUP_ID_NOT_FOUND
    [member] = lab.stable()
    assert code_of(lab.coordinator.delete, lab.now, GROUP) == ErrorCode.NON_EMPTY_GROUP
    lab.leave(member)
    pending = lab.join(require_known_id=True).answer.member_id
    group = lab.group
    assert code_of(lab.coordinator.delete, lab.now, GROUP) == ErrorCode.NONE
    assert group.state.value == "Dead"
    assert lab.coordinator.next_deadline_ms is None
    assert lab.join(pending).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_can_be_deleted_from_empty_and_consumer_groups_only(lab: Lab) -> None:
    check = partial(code_of, lab.coordinator.check_offset_delete)
    assert check(GROUP) == ErrorCode.GROUP_ID_NOT_FOUND
    lab.commit("", -1)
    assert check(GROUP) == ErrorCode.NONE
    assert not lab.group.is_subscribed("t")
    [member] = lab.stable(protocols=(("range", subscription("t")),))
    assert check(GROUP) == ErrorCode.NONE
    assert lab.group.is_subscribed("t")
    assert not lab.group.is_subscribed("u")
    lab.leave(member)
    assert not lab.group.is_subscribed("t")
    lab.stable(protocol_type="connect")
    assert check(GROUP) == ErrorCode.NON_EMPTY_GROUP


def test_all_topics_are_protected_while_subscriptions_cannot_be_read(lab: Lab) -> None:
    lab.stable(protocols=(("range", b"\xff"),))
    assert lab.group.is_subscribed("anything")
