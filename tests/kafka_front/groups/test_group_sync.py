"""SyncGroup, Heartbeat, LeaveGroup and the ends of sessions."""

from __future__ import annotations

import pytest

from kafka_front.service.groups.classic.group import JoinReply
from kafka_front.service.groups.classic.requests import JoinRequest, Leaver, SyncRequest
from kafka_front.service.groups.classic.snapshot import decode_snapshot
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.lab import GROUP, REBALANCE_MS, SESSION_MS, Lab, code_of

DELAY = 3_000


def joined(lab: Lab, count: int, **fields: object) -> list[str]:
    """Members of a group that waits for its leader's assignment; the leader first."""
    joins = [lab.join(**fields) for _ in range(count)]
    lab.pass_time(DELAY * 2)
    answers: list[JoinReply] = sorted((join.answer for join in joins), key=lambda answer: not answer.members)
    return [answer.member_id for answer in answers]


def test_followers_wait_for_the_leaders_assignment(lab: Lab) -> None:
    leader, follower = joined(lab, 2)
    waiting = lab.sync(follower, 1)
    assert not waiting.done
    answer = lab.sync(leader, 1, {leader: b"L", follower: b"F"}).answer
    assert (answer.error, answer.assignment, answer.protocol_type, answer.protocol_name) == (
        0,
        b"L",
        "consumer",
        "range",
    )
    assert waiting.answer.assignment == b"F"
    assert lab.state == "Stable"


def test_a_member_the_leader_forgot_gets_an_empty_assignment(lab: Lab) -> None:
    leader, follower = joined(lab, 2)
    lab.sync(leader, 1, {leader: b"L", "stranger": b"S"})
    assert lab.sync(follower, 1).answer.assignment == b""


def test_sync_can_be_repeated_in_a_stable_group(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    assert [lab.sync(follower, 1).answer.assignment for _ in range(2)] == [b"a1", b"a1"]
    assert lab.sync(leader, 1, {leader: b"other"}).answer.assignment == b"a0"


def test_nobody_sees_an_assignment_before_it_is_durable(lab: Lab) -> None:
    leader, follower = joined(lab, 2)
    lab.journal.held = True
    syncs = [lab.sync(leader, 1, {leader: b"L"}), lab.sync(follower, 1)]
    assert lab.state == "CompletingRebalance"
    assert not any(sync.done for sync in syncs)
    lab.journal.complete()
    assert lab.state == "Stable"
    assert [sync.answer.assignment for sync in syncs] == [b"L", b""]


def test_an_assignment_that_cannot_be_stored_is_withdrawn(lab: Lab) -> None:
    leader, follower = joined(lab, 2)
    lab.journal.held = True
    syncs = [lab.sync(leader, 1, {leader: b"L"}), lab.sync(follower, 1)]
    lab.journal.complete(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert [sync.error for sync in syncs] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert lab.state == "PreparingRebalance"
    assert not lab.journal.stored


def test_a_rebalance_overtakes_an_assignment_on_its_way_to_the_disk(lab: Lab) -> None:
    leader, follower = joined(lab, 2)
    lab.journal.held = True
    syncs = [lab.sync(leader, 1, {leader: b"L"}), lab.sync(follower, 1)]
    join = lab.join()
    assert [sync.error for sync in syncs] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    lab.journal.complete()
    assert lab.state == "PreparingRebalance"
    lab.join(leader)
    lab.join(follower)
    assert join.answer.generation == 2
    assert all(member.assignment == b"" for member in lab.group.members.values())


def test_the_leaders_assignment_is_stored_once_however_often_it_is_sent(lab: Lab) -> None:
    leader, _ = joined(lab, 2)
    lab.journal.held = True
    first = lab.sync(leader, 1, {leader: b"1"})
    second = lab.sync(leader, 1, {leader: b"2"})
    assert first.error == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(lab.journal.waiting) == 1
    lab.journal.complete()
    assert second.answer.assignment == b"1"


def test_error_order_of_a_bad_sync(lab: Lab) -> None:
    def error(member_id: str, generation: int, **fields: object) -> int:
        return lab.sync(member_id, generation, **fields).error

    assert error("x", 1, group_id="") == ErrorCode.INVALID_GROUP_ID
    assert error("x", 1) == ErrorCode.UNKNOWN_MEMBER_ID  # no such group
    lab.join(require_known_id=True)
    assert error("client-1", 0) == ErrorCode.UNKNOWN_MEMBER_ID  # empty group
    lab.pass_time(SESSION_MS)
    [member] = lab.stable(static=True)
    assert error("x", 9, protocol_type="y") == ErrorCode.UNKNOWN_MEMBER_ID
    assert error("x", 9, instance_id="instance0", protocol_type="y") == ErrorCode.FENCED_INSTANCE_ID
    assert error(member, 9, instance_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert error(member, 9, protocol_type="y") == ErrorCode.ILLEGAL_GENERATION
    assert error(member, 1, protocol_type="connect") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(member, 1, protocol_name="sticky") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(member, 1, protocol_type="consumer", protocol_name="range") == ErrorCode.NONE
    lab.join()
    assert error(member, 1, protocol_name="sticky") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(member, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_never_sync_are_removed_and_the_rest_rebalances(lab: Lab) -> None:
    leader, follower = joined(lab, 2, session_timeout_ms=1_800_000)
    lab.sync(leader, 1, {})
    assert lab.state == "Stable"
    lab.pass_time(REBALANCE_MS - 1)
    assert lab.heartbeat(leader, 1) == ErrorCode.NONE
    lab.pass_time(1)
    assert lab.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert follower not in lab.group.members


def test_an_absent_leader_in_the_sync_phase_is_removed_and_followers_rejoin(lab: Lab) -> None:
    leader, follower = joined(lab, 2, session_timeout_ms=1_800_000)
    waiting = lab.sync(follower, 1)
    lab.pass_time(REBALANCE_MS)
    assert waiting.error == ErrorCode.REBALANCE_IN_PROGRESS
    assert leader not in lab.group.members
    assert lab.join(follower, session_timeout_ms=1_800_000).answer.leader == follower


def test_a_parked_sync_keeps_a_member_alive(lab: Lab) -> None:
    leader, follower = joined(lab, 2)
    waiting = lab.sync(follower, 1)
    for _ in range(4):
        lab.pass_time(SESSION_MS - 1)
        assert lab.heartbeat(leader, 1) == ErrorCode.NONE
    lab.sync(leader, 1, {follower: b"F"})
    assert waiting.answer.assignment == b"F"
    lab.pass_time(SESSION_MS - 1)
    assert lab.heartbeat(follower, 1) == ErrorCode.NONE


def test_a_withdrawn_sync_starts_a_new_session(lab: Lab) -> None:
    leader, follower = joined(lab, 2)
    waiting = lab.sync(follower, 1)
    lab.pass_time(SESSION_MS - 1)
    assert lab.heartbeat(leader, 1) == ErrorCode.NONE
    lab.pass_time(2)  # the follower's session has run out by now
    lab.join()
    assert waiting.error == ErrorCode.REBALANCE_IN_PROGRESS
    lab.pass_time(SESSION_MS - 1)
    assert lab.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    lab.pass_time(SESSION_MS)
    assert lab.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_keep_a_session_and_silence_ends_it(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    for _ in range(5):
        lab.pass_time(SESSION_MS - 1)
        assert lab.heartbeat(leader, 1) == lab.heartbeat(follower, 1) == ErrorCode.NONE
    lab.pass_time(SESSION_MS - 1)
    lab.heartbeat(leader, 1)
    lab.pass_time(1)
    assert lab.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert lab.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("sign", ["join", "sync", "commit"])
def test_other_signs_of_life_keep_a_session_too(lab: Lab, sign: str) -> None:
    leader, follower = lab.stable(2)
    for _ in range(3):
        lab.pass_time(SESSION_MS - 1)
        lab.heartbeat(leader, 1)
        if sign == "join":
            assert lab.join(follower).error == ErrorCode.NONE
        elif sign == "sync":
            assert lab.sync(follower, 1).error == ErrorCode.NONE
        else:
            assert lab.commit(follower, 1) == ErrorCode.NONE
    assert lab.state == "Stable"


def test_a_commit_keeps_a_session_during_the_join_phase(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    lab.join(leader)
    lab.pass_time(SESSION_MS - 1)
    assert lab.commit(follower, 1) == ErrorCode.NONE
    lab.pass_time(SESSION_MS - 1)
    assert lab.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_heartbeat_errors_in_order(lab: Lab) -> None:
    assert code_of(lab.coordinator.heartbeat, lab.now, "", "x", None, 0) == ErrorCode.INVALID_GROUP_ID
    assert lab.heartbeat("x", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    [member] = lab.stable(static=True)
    assert lab.heartbeat("x", 9, "instance0") == ErrorCode.FENCED_INSTANCE_ID
    assert lab.heartbeat("x", 9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.heartbeat(member, 9, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.heartbeat(member, 2) == ErrorCode.ILLEGAL_GENERATION
    assert lab.heartbeat(member, 1, "instance0") == ErrorCode.NONE


def test_heartbeat_between_join_and_sync_is_fine(lab: Lab) -> None:
    [member] = joined(lab, 1)
    assert lab.heartbeat(member, 1) == ErrorCode.NONE


def test_leaving_rebalances_at_once(lab: Lab) -> None:
    leader, follower = lab.stable(2)
    assert lab.leave(follower) == [ErrorCode.NONE]
    assert lab.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.join(leader).answer.generation == 2


def test_the_last_one_to_leave_empties_the_group_durably(lab: Lab) -> None:
    [member] = lab.stable()
    lab.leave(member)
    assert lab.state == "Empty"
    assert lab.group.generation == 2
    stored = decode_snapshot(lab.journal.stored[GROUP])
    assert stored is not None
    assert (stored.generation, stored.members, stored.protocol_type) == (2, (), "consumer")


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_the_last_one_to_leave_is_told_when_that_is_stored(lab: Lab, error: int) -> None:
    [member] = lab.stable()
    lab.journal.held = True
    leaving = lab.begin_leave(member)
    assert lab.state == "Empty"
    assert not leaving.done
    lab.journal.complete(error)
    assert leaving.answer == [ErrorCode.NONE]


def test_others_are_told_at_once_that_they_have_left(lab: Lab) -> None:
    _, follower = lab.stable(2)
    lab.journal.held = True
    assert lab.leave(follower) == [ErrorCode.NONE]
    assert not lab.journal.waiting


def test_leave_errors_are_one_per_member(lab: Lab) -> None:
    answers: list[tuple[int, list[int]]] = []
    lab.coordinator.leave(lab.now, "", [Leaver("x")], lambda error, errors: answers.append((error, errors)))
    assert answers == [(ErrorCode.INVALID_GROUP_ID, [])]
    assert lab.leave("x", "y") == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    ids = lab.stable(3, static=True)
    errors = lab.leave(
        Leaver("x"),
        Leaver("x", "instance1"),
        Leaver(ids[1], "nobody"),
        Leaver("", "nobody"),
        Leaver("", None),
        Leaver("", "instance1"),
        Leaver(ids[2], "instance2"),
    )
    assert errors == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert list(lab.group.members) == [ids[0]]


def test_a_leave_of_nobody_changes_nothing(lab: Lab) -> None:
    lab.stable(2)
    lab.leave("x")
    assert lab.state == "Stable"


def test_a_pending_id_can_leave_without_a_rebalance(lab: Lab) -> None:
    lab.stable()
    pending = lab.join(require_known_id=True).answer.member_id
    assert lab.leave(pending) == [ErrorCode.NONE]
    assert lab.state == "Stable"
    assert lab.join(pending).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leaving_pending_id_lets_the_join_phase_end(lab: Lab) -> None:
    [leader] = lab.stable()
    pending = lab.join(require_known_id=True).answer.member_id
    join = lab.join(leader)
    assert not join.done
    lab.leave(pending)
    assert join.answer.generation == 2


def test_a_leaving_member_gets_its_parked_requests_answered(lab: Lab) -> None:
    leader, follower = joined(lab, 2)
    sync = lab.sync(follower, 1)
    lab.leave(follower)
    assert sync.error == ErrorCode.UNKNOWN_MEMBER_ID
    join = lab.join()
    lab.leave(leader)
    assert join.answer.generation == 2


def test_resigning_answers_everything_that_is_parked(lab: Lab) -> None:
    leader, follower = joined(lab, 2)
    sync = lab.sync(follower, 1)
    other = lab.join(group_id="other")
    lab.coordinator.resign()
    assert (sync.error, other.error) == (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR)
    assert leader in lab.group.members


def test_answers_come_after_the_group_has_settled(lab: Lab) -> None:
    """An answer may bring in that client's next request at once, inside the callback."""
    answers: list[int] = []
    lab.stable()

    def then_sync(answer: JoinReply) -> None:
        request = SyncRequest(GROUP, answer.member_id, None, answer.generation, assignments=((answer.member_id, b"z"),))
        lab.coordinator.sync(lab.now, request, lambda reply: answers.append(reply.error))

    leader = lab.group.leader or ""
    request = JoinRequest(GROUP, leader, None, "c", "h", SESSION_MS, REBALANCE_MS, "consumer", (("range", b"changed"),))
    lab.coordinator.join(lab.now, request, then_sync)
    assert answers == [ErrorCode.NONE]
    assert lab.state == "Stable"
