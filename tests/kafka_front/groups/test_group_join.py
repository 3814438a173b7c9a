"""JoinGroup: membership, the join phase, generations and leaders."""

from __future__ import annotations

import pytest

from kafka_front.service.groups.classic.requests import Leaver
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.lab import GROUP, REBALANCE_MS, SESSION_MS, Lab

DELAY = 3_000


def test_first_join_waits_the_initial_delay_then_leads_generation_1(lab: Lab) -> None:
    join = lab.join()
    assert lab.state == "PreparingRebalance"
    lab.pass_time(DELAY - 1)
    assert not join.done
    lab.pass_time(1)
    answer = join.answer
    assert answer.error == ErrorCode.NONE
    assert answer.generation == 1
    assert answer.member_id == answer.leader == "client-1"
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert [(m.member_id, m.metadata) for m in answer.members] == [("client-1", b"m")]
    assert lab.state == "CompletingRebalance"


def test_initial_delay_extends_while_members_join_up_to_the_rebalance_timeout(lab: Lab) -> None:
    joins = [lab.join(rebalance_timeout_ms=8_000)]
    for _ in range(4):
        lab.pass_time(1_990)
        joins.append(lab.join(rebalance_timeout_ms=8_000))
        assert not joins[0].done
    lab.pass_time(39)
    assert not joins[0].done  # 7999 ms after the first join
    lab.pass_time(1)
    assert [join.answer.generation for join in joins] == [1] * 5
    assert sum(bool(join.answer.members) for join in joins) == 1


def test_initial_delay_ends_after_one_quiet_period(lab: Lab) -> None:
    first = lab.join()
    lab.pass_time(1_000)
    second = lab.join()
    lab.pass_time(2_000)
    assert not first.done
    lab.pass_time(DELAY)
    assert first.done
    assert second.done


def test_without_delay_the_first_join_is_answered_in_the_next_millisecond() -> None:
    lab = Lab(KafkaGroupSettings(initial_rebalance_delay_ms=0))
    join = lab.join()
    assert lab.coordinator.next_deadline_ms == lab.now + 1
    lab.pass_time(1)
    assert join.answer.generation == 1


def test_v4_and_later_first_get_an_id(lab: Lab) -> None:
    refused = lab.join(require_known_id=True).answer
    assert refused.error == ErrorCode.MEMBER_ID_REQUIRED
    assert refused.member_id == "client-1"
    assert refused.generation == -1
    assert lab.state == "Empty"
    join = lab.join("client-1", require_known_id=True)
    lab.pass_time(DELAY)
    assert join.answer.member_id == "client-1"
    assert not lab.group.pending


def test_static_members_skip_the_id_round(lab: Lab) -> None:
    join = lab.join(require_known_id=True, instance_id="i1")
    lab.pass_time(DELAY)
    assert join.answer.error == ErrorCode.NONE
    assert join.answer.member_id == "i1-1"
    assert join.answer.members[0].instance_id == "i1"


def test_a_pending_id_is_forgotten_after_its_session_timeout(lab: Lab) -> None:
    member_id = lab.join(require_known_id=True).answer.member_id
    lab.pass_time(SESSION_MS)
    assert not lab.group.pending
    assert lab.join(member_id).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_id_holds_up_the_join_phase_until_it_joins(lab: Lab) -> None:
    [leader] = lab.stable()
    pending = lab.join(require_known_id=True).answer.member_id
    rejoin = lab.join(leader)
    assert not rejoin.done
    join = lab.join(pending)
    assert rejoin.answer.generation == join.answer.generation == 2


def test_a_pending_id_holds_up_the_join_phase_until_it_expires(lab: Lab) -> None:
    [leader] = lab.stable()
    lab.join(require_known_id=True)
    lab.pass_time(SESSION_MS - 1)
    assert lab.heartbeat(leader, 1) == ErrorCode.NONE
    rejoin = lab.join(leader)
    assert not rejoin.done
    lab.pass_time(1)
    assert rejoin.answer.generation == 2


def test_a_pending_id_cannot_become_a_static_member(lab: Lab) -> None:
    member_id = lab.join(require_known_id=True).answer.member_id
    assert lab.join(member_id, instance_id="i").error == ErrorCode.UNKNOWN_MEMBER_ID
    assert member_id in lab.group.pending


@pytest.mark.parametrize("timeout", [5_999, 1_800_001, 0, -1])
def test_session_timeout_out_of_bounds(lab: Lab, timeout: int) -> None:
    assert lab.join(session_timeout_ms=timeout).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert GROUP not in lab.coordinator.groups


@pytest.mark.parametrize("timeout", [6_000, 1_800_000])
def test_session_timeout_at_its_bounds(lab: Lab, timeout: int) -> None:
    join = lab.join(session_timeout_ms=timeout)
    lab.pass_time(DELAY)
    assert join.error == ErrorCode.NONE


def test_error_order_of_a_bad_join(lab: Lab) -> None:
    """Group id, then session timeout, then existence of the group, then protocols, then the member."""
    assert lab.join("x", group_id="", session_timeout_ms=1, protocols=()).error == ErrorCode.INVALID_GROUP_ID
    assert lab.join("x", session_timeout_ms=1, protocols=()).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert lab.join("x", protocols=()).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.join(protocols=()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert lab.join(protocol_type="").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert GROUP not in lab.coordinator.groups
    lab.stable()
    assert lab.join("x", protocols=()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert lab.join("x").error == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.join("x", instance_id="nobody").error == ErrorCode.UNKNOWN_MEMBER_ID


def test_refused_joins_say_whom_they_refuse(lab: Lab) -> None:
    assert lab.join("x", session_timeout_ms=1).answer.member_id == "x"
    assert lab.join("x").answer.member_id == "x"
    answer = lab.join("x", group_id="").answer
    assert (answer.member_id, answer.generation, answer.leader) == ("x", -1, "")


def test_members_must_agree_on_the_protocol_type(lab: Lab) -> None:
    lab.stable()
    assert lab.join(protocol_type="connect").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert lab.state == "Stable"


def test_members_must_share_a_protocol(lab: Lab) -> None:
    lab.stable(protocols=(("range", b""), ("sticky", b"")))
    assert lab.join(protocols=(("roundrobin", b""),)).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert lab.state == "Stable"
    lab.join(protocols=(("roundrobin", b""), ("sticky", b"")))
    assert lab.state == "PreparingRebalance"


def test_connect_groups_are_groups_like_others(lab: Lab) -> None:
    join = lab.join(protocol_type="connect", protocols=(("sessioned", b"1"), ("compatible", b"2")))
    lab.pass_time(DELAY)
    assert (join.answer.protocol_type, join.answer.protocol_name) == ("connect", "sessioned")
    assert join.answer.members[0].metadata == b"1"


def test_an_emptied_group_may_change_its_protocol_type(lab: Lab) -> None:
    [leader] = lab.stable()
    lab.leave(leader)
    join = lab.join(protocol_type="connect", protocols=(("sessioned", b""),))
    lab.pass_time(DELAY)
    assert join.answer.protocol_type == "connect"


def test_the_protocol_most_members_prefer_among_the_common_ones_wins(lab: Lab) -> None:
    votes = [("a", "b", "c"), ("b", "a", "x"), ("x", "b", "a"), ("x", "a", "b"), ("b", "a")]
    joins = [lab.join(protocols=tuple((name, f"{n}{name}".encode()) for name in vote)) for n, vote in enumerate(votes)]
    lab.pass_time(DELAY * 2)
    assert {join.answer.protocol_name for join in joins} == {"b"}
    leader = next(join.answer for join in joins if join.answer.members)
    assert [member.metadata for member in leader.members] == [b"0b", b"1b", b"2b", b"3b", b"4b"]


def test_votes_only_count_for_protocols_all_members_know(lab: Lab) -> None:
    joins = [lab.join(protocols=tuple((name, b"") for name in vote)) for vote in [("x", "a"), ("x", "a"), ("a",)]]
    lab.pass_time(DELAY * 2)
    assert {join.answer.protocol_name for join in joins} == {"a"}


def test_only_the_leader_gets_the_members(lab: Lab) -> None:
    joins = [lab.join() for _ in range(3)]
    lab.pass_time(DELAY * 2)
    leaders = [join.answer for join in joins if join.answer.members]
    assert [leader.member_id for leader in leaders] == [joins[0].answer.leader]
    assert [member.member_id for member in leaders[0].members] == [join.answer.member_id for join in joins]


def test_a_new_member_makes_everybody_rejoin(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    join = lab.join()
    assert lab.heartbeat(leader, 1) == lab.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    first = lab.join(leader)
    assert not join.done
    second = lab.join(follower)
    assert [j.answer.generation for j in (join, first, second)] == [2, 2, 2]
    assert {j.answer.leader for j in (join, first, second)} == {leader}
    assert len(first.answer.members) == 3


def test_members_that_do_not_rejoin_in_time_are_out(lab: Lab) -> None:
    leader, follower = lab.stable(2, session_timeout_ms=1_800_000)
    join = lab.join(session_timeout_ms=1_800_000)
    rejoin = lab.join(follower, session_timeout_ms=1_800_000)
    lab.pass_time(REBALANCE_MS - 1)
    assert not join.done
    lab.pass_time(1)
    assert rejoin.answer.leader == follower
    assert {m.member_id for m in rejoin.answer.members} == {follower, join.answer.member_id}
    assert lab.heartbeat(leader, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_counts(lab: Lab) -> None:
    leader, follower = lab.stable(2, session_timeout_ms=1_800_000)
    lab.join(leader, session_timeout_ms=1_800_000, rebalance_timeout_ms=10_000)
    rejoin = lab.join(session_timeout_ms=1_800_000, rebalance_timeout_ms=5_000)
    lab.pass_time(REBALANCE_MS - 1)  # the follower still counts, and it allows this long
    assert not rejoin.done
    lab.pass_time(1)
    assert rejoin.done
    assert follower not in lab.group.members


def test_an_absent_leader_is_replaced(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    assert lab.leave(leader) == [ErrorCode.NONE]
    assert lab.state == "PreparingRebalance"
    answer = lab.join(follower).answer
    assert answer.leader == follower
    assert [member.member_id for member in answer.members] == [follower]


def test_follower_rejoins_unchanged_in_a_stable_group(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    answer = lab.join(follower).answer
    assert (answer.error, answer.generation, answer.leader, answer.members) == (ErrorCode.NONE, 1, leader, ())
    assert not answer.skip_assignment
    assert lab.state == "Stable"
    assert lab.sync(follower, 1).answer.assignment == b"a1"


def test_leader_rejoining_a_stable_group_rebalances_it(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    join = lab.join(leader)
    assert lab.state == "PreparingRebalance"
    assert lab.join(follower).answer.generation == join.answer.generation == 2


def test_changed_metadata_of_a_follower_rebalances(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    join = lab.join(follower, protocols=(("range", b"owned"),))
    assert lab.state == "PreparingRebalance"
    answer = lab.join(leader).answer
    assert [m.metadata for m in answer.members if m.member_id == follower] == [b"owned"]
    assert join.answer.generation == 2


def test_a_changed_order_of_preference_is_a_change(lab: Lab) -> None:
    _, follower = lab.stable(2, protocols=(("a", b""), ("b", b"")))
    lab.join(follower, protocols=(("b", b""), ("a", b"")))
    assert lab.state == "PreparingRebalance"


def test_join_is_repeated_unchanged_during_the_sync_phase(lab: Lab) -> None:
    joins = [lab.join() for _ in range(2)]
    lab.pass_time(DELAY * 2)
    leader, follower = sorted((j.answer for j in joins), key=lambda answer: not answer.members)
    assert lab.join(leader.member_id).answer == leader
    assert lab.join(follower.member_id).answer == follower
    assert lab.state == "CompletingRebalance"


def test_changed_join_during_the_sync_phase_starts_over(lab: Lab) -> None:
    joins = [lab.join() for _ in range(2)]
    lab.pass_time(DELAY * 2)
    leader, follower = sorted((j.answer for j in joins), key=lambda answer: not answer.members)
    waiting = lab.sync(follower.member_id, 1)
    lab.join(leader.member_id, protocols=(("range", b"new"),))
    assert waiting.error == ErrorCode.REBALANCE_IN_PROGRESS
    assert lab.state == "PreparingRebalance"
    lab.join(follower.member_id)
    assert lab.group.generation == 2


def test_a_repeated_join_displaces_the_parked_one_which_is_answered_too(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    first = lab.join(leader)
    again = lab.join(leader)
    assert first.error == ErrorCode.REBALANCE_IN_PROGRESS
    assert not again.done
    lab.join(follower)
    assert again.answer.generation == 2


def test_a_parked_join_keeps_a_known_member_alive(lab: Lab) -> None:
    leader, follower = lab.stable(2, rebalance_timeout_ms=100_000)
    join = lab.join(leader, rebalance_timeout_ms=100_000)
    for _ in range(9):
        lab.pass_time(SESSION_MS - 1)
        assert lab.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert not join.done
    assert lab.join(follower).answer.leader == leader
    assert join.answer.generation == 2


def test_the_first_join_of_a_member_waits_at_most_five_minutes(lab: Lab) -> None:
    [leader] = lab.stable(rebalance_timeout_ms=3_600_000, session_timeout_ms=1_800_000)
    join = lab.join()
    lab.pass_time(5 * 60_000 - 1)
    assert not join.done
    lab.pass_time(1)
    assert join.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert join.answer.member_id == ""
    assert list(lab.group.members) == [leader]


def test_a_full_group_takes_nobody_but_its_members() -> None:
    lab = Lab(KafkaGroupSettings(max_size=2))
    leader, follower = lab.stable(2)
    assert lab.join().error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert lab.state == "Stable"
    assert lab.join(follower).error == ErrorCode.NONE
    rejoin = lab.join(leader)
    newcomer = lab.join()  # in the join phase places go to those who come
    assert lab.join(follower).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert rejoin.answer.generation == newcomer.answer.generation == 2
    assert follower not in lab.group.members


def test_a_lowered_limit_pushes_out_who_rejoins_last() -> None:
    lab = Lab()
    leader, follower, last = lab.stable(3)
    lab.coordinator.settings = KafkaGroupSettings(max_size=2)
    joins = [lab.join(leader), lab.join(follower)]
    assert lab.join(last).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [join.answer.generation for join in joins] == [2, 2]
    assert last not in lab.group.members


def test_a_static_member_gets_its_place_back_in_a_full_group() -> None:
    lab = Lab(KafkaGroupSettings(max_size=1))
    lab.stable(static=True)
    assert lab.join(instance_id="instance0").error == ErrorCode.NONE
    assert lab.join(instance_id="other").error == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_members_leaving_during_the_initial_delay_leave_an_empty_group(lab: Lab) -> None:
    join = lab.join(instance_id="i")
    assert lab.leave(Leaver("", "i")) == [ErrorCode.NONE]
    assert join.error == ErrorCode.UNKNOWN_MEMBER_ID
    lab.pass_time(DELAY)
    assert lab.state == "Empty"
    late = lab.join()
    lab.pass_time(DELAY)
    assert late.error == ErrorCode.NONE
