"""KIP-848's coordinator, step by step: fences, static members, timeouts, assignors, groups that change their kind."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_kit.run.sliced import at_once
from kafka_front.service.groups.classic.embedded import assigned_partitions
from kafka_front.service.groups.classic.group import JoinReply, SyncReply
from kafka_front.service.groups.classic.requests import JoinRequest, SyncRequest
from kafka_front.service.groups.classic.snapshot import SnapshotError
from kafka_front.service.groups.consumer.assignors import AssignedMember, ranges, uniform
from kafka_front.service.groups.consumer.group import Partitions
from kafka_front.service.groups.consumer.requests import HeartbeatRequest
from kafka_front.service.groups.consumer.snapshot import decode_group
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups.consumer_lab import GROUP, REBALANCE_MS, SETTINGS, ConsumerLab, Reader
from tests.kafka_front.groups.lab import (
    Pending,
    assignment,
    bounded_groups,
    code_of,
    subscription,
)

SESSION_MS = SETTINGS.consumer_session_timeout_ms


def count_of(partitions: Partitions) -> int:
    """How many partitions these are."""
    return sum(len(numbers) for numbers in partitions.values())


@pytest.fixture
def lab() -> ConsumerLab:
    lab = ConsumerLab()
    lab.topics.make("t", 4)
    return lab


def share(lab: ConsumerLab, *ids: str) -> dict[str, Partitions]:
    """What members have after all have reported often enough."""
    readers = [Reader(lab, member_id, frozenset({"t"})) for member_id in ids]
    for _ in range(6):
        for reader in readers:
            reader.beat()
    assert lab.state == "Stable"
    return {reader.member_id: reader.owned for reader in readers}


# --- requests that come to nothing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": {bytes(16): frozenset({0})}}, ErrorCode.INVALID_REQUEST),
        ({"topics": None}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_requests_that_make_no_sense_make_no_group(lab: ConsumerLab, fields: dict[str, Any], error: int) -> None:
    whole = {
        "group_id": GROUP,
        "member_id": "a",
        "epoch": 0,
        "rebalance_timeout_ms": 1,
        "topics": frozenset({"t"}),
        "owned": {},
    }
    answer = lab.send(HeartbeatRequest(**{**whole, **fields})).answer
    assert (answer.error, bool(answer.message)) == (error, True)
    assert not lab.directory.consumer
    assert not lab.journal.stored


def test_who_is_not_where_it_says_it_is_must_join_again(lab: ConsumerLab) -> None:
    owned = share(lab, "a")["a"]
    epoch = lab.group.epoch
    assert lab.beat("b", epoch).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.beat("a", epoch + 1, owned=owned).error == ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.beat("a", epoch, owned=owned).error == ErrorCode.NONE
    lab.join("b", "t")
    told = lab.beat("a", epoch)
    assert told.epoch == epoch
    assert told.assignment is not None
    moved = lab.beat("a", epoch, owned=told.assignment)
    assert moved.epoch > epoch
    # It repeats what it did not hear the answer of, and is told everything again; but not if it has more than it may.
    again = lab.beat("a", epoch, owned=told.assignment)
    assert (again.error, again.epoch, again.assignment) == (ErrorCode.NONE, moved.epoch, told.assignment)
    assert lab.beat("a", epoch, owned=owned).error == ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.beat("a", epoch).error == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_full_group_takes_nobody_else(lab: ConsumerLab) -> None:
    lab.settings = KafkaGroupSettings(max_size=1)
    lab.start()
    assert lab.join("a", "t", instance_id="i").error == ErrorCode.NONE
    assert lab.join("b", "t").error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert lab.beat("a", -2, instance_id="i").error == ErrorCode.NONE
    assert lab.join("c", "t", instance_id="i").error == ErrorCode.NONE


def test_what_members_say_of_themselves_is_bounded(lab: ConsumerLab) -> None:
    lab.settings = KafkaGroupSettings(max_bytes=2_000)
    lab.start()
    many = [f"topic{number}" for number in range(40)]
    assert lab.join("a", *many).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not lab.directory.consumer
    assert lab.join("a", *many[:10]).error == ErrorCode.NONE
    assert lab.join("b", *many[:21]).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert lab.beat("a", lab.group.epoch, topics=frozenset(many)).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(lab.group.names) == 10
    assert lab.group.said_bytes == sum(member.said_bytes for member in lab.group.members.values())


def test_what_groups_hold_of_partitions_is_bounded(lab: ConsumerLab) -> None:
    lab.settings = bounded_groups(max_consumer_partitions=5)
    lab.start()
    lab.topics.make("u", 2)
    assert lab.join("a", "t").error == ErrorCode.NONE
    assert lab.join("b", "t", "u").error == ErrorCode.NONE
    assert lab.coordinator.partitions == 6
    assert lab.join("c", "t").error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert lab.beat("b", -1).error == ErrorCode.NONE
    lab.beat("a", 1)
    assert lab.coordinator.partitions == 4
    assert lab.join("c", "t").error == ErrorCode.NONE
    for member in ("a", "c"):
        lab.beat(member, -1)
    assert lab.coordinator.partitions == 0


# --- members that come and go ----------------------------------------------------------------------------------------


def test_positions_are_those_of_members_in_their_epoch(lab: ConsumerLab) -> None:
    share(lab, "a")
    epoch = lab.group.epoch
    check = partial(code_of, lab.coordinator.check_commit)
    assert check(lab.group, "a", None, epoch) == ErrorCode.NONE
    assert check(lab.group, "a", None, epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert check(lab.group, "x", None, epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert check(lab.group, "", None, -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert check(lab.group, "", None, -1, transactional=True) == ErrorCode.NONE
    fetch = partial(code_of, lab.coordinator.check_fetch)
    assert fetch(lab.group, None, -1) == fetch(lab.group, "a", epoch) == ErrorCode.NONE
    assert fetch(lab.group, "a", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(lab.group, "x", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    lab.beat("a", -1)
    assert check(lab.group, "", None, -1) == ErrorCode.NONE
    assert lab.state == "Empty"


def test_a_session_ends_and_others_take_over(lab: ConsumerLab) -> None:
    share(lab, "a", "b")
    lab.pass_time(SESSION_MS - 1)
    lab.beat("b", lab.group.members["b"].epoch)
    lab.pass_time(1)
    assert set(lab.group.members) == {"b"}
    assert count_of(lab.beat("b", lab.group.members["b"].epoch).assignment or {}) == 4


def test_a_group_has_the_times_it_is_configured_with(lab: ConsumerLab) -> None:
    assert lab.join("a", "t").interval_ms == SETTINGS.consumer_heartbeat_interval_ms
    lab.configured = {
        (GROUP, "consumer.heartbeat.interval.ms"): 7_000,
        (GROUP, "consumer.session.timeout.ms"): SESSION_MS * 2,
        ("another", "consumer.session.timeout.ms"): 1,
    }
    # Its session is as long as it was told until it reports; then both count.
    assert lab.beat("a", 1).interval_ms == 7_000
    lab.pass_time(SESSION_MS * 2 - 1)
    assert set(lab.group.members) == {"a"}
    lab.pass_time(1)
    assert not lab.group.members
    lab.join("b", "t")
    lab.start()  # restored members, too
    lab.pass_time(SESSION_MS * 2 - 1)
    assert set(lab.group.members) == {"b"}
    lab.configured.clear()
    assert lab.beat("b", lab.group.members["b"].epoch).interval_ms == SETTINGS.consumer_heartbeat_interval_ms
    lab.pass_time(SESSION_MS)
    assert not lab.group.members


def test_who_does_not_give_back_in_time_is_out(lab: ConsumerLab) -> None:
    share(lab, "a")
    lab.join("b", "t")
    epoch = lab.group.members["a"].epoch
    assert lab.beat("a", epoch).epoch == epoch
    for _ in range(3):
        lab.pass_time(REBALANCE_MS // 4)
        assert lab.beat("a", epoch).error == ErrorCode.NONE
    lab.pass_time(REBALANCE_MS // 4)
    assert lab.beat("a", epoch).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert count_of(lab.beat("b", lab.group.members["b"].epoch).assignment or {}) == 4


def test_a_static_member_keeps_its_place(lab: ConsumerLab) -> None:
    lab.join("a", "t", instance_id="i")
    lab.join("other", "t")
    owned = lab.beat("a", 1, instance_id="i").assignment or {}
    lab.beat("a", 1, instance_id="i", owned=owned)
    epoch = lab.group.epoch
    assert lab.beat("a", epoch).error == ErrorCode.NONE  # librdkafka names its instance only as it joins and leaves
    assert lab.join("b", "t", instance_id="i").error == ErrorCode.UNRELEASED_INSTANCE_ID
    assert lab.beat("a", -2, instance_id="i").error == ErrorCode.NONE
    lab.start()  # also over a restart of the node
    back = lab.join("b", "t", instance_id="i")
    assert (back.error, back.epoch, back.assignment) == (ErrorCode.NONE, epoch, owned)
    assert lab.group.epoch == epoch
    assert lab.beat("a", epoch, instance_id="i").error == ErrorCode.FENCED_INSTANCE_ID
    assert lab.beat("b", -2, instance_id="i").error == ErrorCode.NONE
    lab.pass_time(SESSION_MS - 1)
    lab.beat("other", lab.group.members["other"].epoch)
    lab.pass_time(1)
    assert set(lab.group.members) == {"other"}


def test_nothing_is_told_before_it_is_durable(lab: ConsumerLab) -> None:
    lab.journal.held = True
    joining = lab.send(HeartbeatRequest(GROUP, "a", 0, rebalance_timeout_ms=1, topics=frozenset({"t"}), owned={}))
    assert not joining.done
    lab.journal.complete(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert joining.answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = lab.send(HeartbeatRequest(GROUP, "a", 0, rebalance_timeout_ms=1, topics=frozenset({"t"}), owned={}))
    assert not again.done
    lab.journal.complete()
    assert count_of(again.answer.assignment or {}) == 4
    assert not lab.journal.waiting
    assert lab.beat("a", again.answer.epoch).assignment is None  # nothing to store for that


def test_joins_wait_for_a_computation_that_others_make_obsolete(lab: ConsumerLab) -> None:
    lab.slow = []
    asked = [
        lab.send(HeartbeatRequest(GROUP, name, 0, rebalance_timeout_ms=1, topics=frozenset({"t"}), owned={}))
        for name in ("a", "b", "c")
    ]
    assert (len(lab.slow), lab.state) == (1, "Assigning")
    lab.slow.pop()()
    assert [one.done for one in asked] == [True, False, False]
    lab.slow.pop()()
    assert all(one.done for one in asked)
    assert not lab.slow


def test_what_is_stored_and_unreadable_is_refused() -> None:
    assert decode_group("g", b"kafka classic group\n{}", lambda ms: ms) is None
    for blob in (b"kafka consumer group\n", b"kafka consumer group\n{}", b'kafka consumer group\n{"version":9}'):
        with pytest.raises(SnapshotError):
            decode_group("g", blob, lambda ms: ms)


# --- assignors -------------------------------------------------------------------------------------------------------

TOPICS = [bytes([number]) * 16 for number in range(4)]


@st.composite
def _groups(draw: st.DrawFn) -> tuple[list[AssignedMember], dict[bytes, int]]:
    topics = {topic: draw(st.integers(0, 9)) for topic in TOPICS}
    count = draw(st.integers(1, 7))
    owners = {(topic, n): draw(st.integers(-1, count - 1)) for topic in TOPICS for n in range(10)}
    members = []
    for index in range(count):
        before: dict[bytes, frozenset[int]] = {}
        for (topic, number), owner in owners.items():
            if owner == index:
                before[topic] = before.get(topic, frozenset()) | {number}
        reads = draw(st.frozensets(st.sampled_from(TOPICS)))
        members.append(AssignedMember(f"m{index}", draw(st.none() | st.just(f"i{index}")), reads, before))
    return members, topics


@given(_groups())
def test_every_partition_goes_to_one_reader_of_its_topic(group: tuple[list[AssignedMember], dict[bytes, int]]) -> None:
    members, topics = group
    for assignor in (uniform, ranges):
        targets = at_once(assignor(members, topics))
        assert targets.keys() == {member.member_id for member in members}
        given_away = [(t, n) for target in targets.values() for t, numbers in target.items() for n in numbers]
        assert len(given_away) == len(set(given_away))
        read = frozenset().union(*(member.topics for member in members))
        assert set(given_away) == {(topic, n) for topic, count in topics.items() if topic in read for n in range(count)}
        for member in members:
            assert targets[member.member_id].keys() <= member.topics


@given(_groups())
def test_uniform_is_even_and_moves_no_more_than_it_must(group: tuple[list[AssignedMember], dict[bytes, int]]) -> None:
    mixed, topics = group
    everything = frozenset(TOPICS)
    members = [AssignedMember(one.member_id, None, everything, one.target) for one in mixed]
    targets = at_once(uniform(members, topics))
    sizes = [count_of(target) for target in targets.values()]
    assert max(sizes) - min(sizes) <= 1
    kept = {
        one.member_id: {t: f for t, n in one.target.items() if (f := frozenset(x for x in n if x < topics[t]))}
        for one in members
    }
    stayed = sum(
        len(numbers & targets[who].get(t, frozenset())) for who, had in kept.items() for t, numbers in had.items()
    )
    share_of_one, more = divmod(sum(topics.values()), len(members))
    had = sorted((count_of(had) for had in kept.values()), reverse=True)
    possible = sum(min(count, share_of_one + (index < more)) for index, count in enumerate(had))
    assert stayed == possible
    settled = [AssignedMember(one.member_id, None, everything, targets[one.member_id]) for one in members]
    assert at_once(uniform(settled, topics)) == targets


def test_range_gives_equal_numbers_of_like_topics_to_the_same_member() -> None:
    topics = {TOPICS[0]: 7, TOPICS[1]: 7}
    members = [AssignedMember(f"m{n}", None, frozenset(topics), {}) for n in range(3)]
    targets = at_once(ranges(members, topics))
    assert [sorted(targets[f"m{n}"][TOPICS[0]]) for n in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    for target in targets.values():
        assert target[TOPICS[0]] == target[TOPICS[1]]


def test_what_most_members_ask_for_is_how_partitions_are_shared(lab: ConsumerLab) -> None:
    lab.join("a", "t")
    assert lab.group.assignor == "uniform"
    lab.join("b", "t", assignor="range")
    assert lab.group.assignor == "range"


# --- groups that change their kind -----------------------------------------------------------------------------------


class Mixed:
    """A classic group that a member of the new protocol joins."""

    def __init__(self, lab: ConsumerLab, *, owned: bool) -> None:
        self.lab = lab
        self.owned = owned
        """Whether members say what they have, as cooperative ones do."""

    def join(self, member_id: str = "", has: list[int] | None = None, **fields: Any) -> JoinReply:
        """Through whoever decides, until the answer is there."""
        reads = subscription("t")
        if self.owned and has is not None:
            reads = b"\0\1" + reads[2:] + assignment({"t": has})[2:-4]
        request = JoinRequest(
            GROUP, member_id, None, "c", "/h", 10_000, REBALANCE_MS, "consumer", (("range", reads), ("sticky", reads))
        )
        for name, value in fields.items():
            request = JoinRequest(**{**{f: getattr(request, f) for f in request.__struct_fields__}, name: value})
        pending: Pending[JoinReply] = Pending()
        self.decides.join(self.lab.now, request, pending)
        if not pending.done:
            self.lab.pass_time(self.lab.settings.initial_rebalance_delay_ms)
        return pending.answer

    def sync(self, joined: JoinReply, given: dict[str, bytes] | None = None) -> list[int] | int:
        pending: Pending[SyncReply] = Pending()
        request = SyncRequest(
            GROUP, joined.member_id, None, joined.generation, assignments=tuple((given or {}).items())
        )
        self.decides.sync(self.lab.now, request, pending)
        if pending.answer.error:
            return pending.answer.error
        return sorted(assigned_partitions(pending.answer.assignment).get("t", []))

    def heartbeat(self, joined: JoinReply) -> int:
        return self.decides.heartbeat(self.lab.now, GROUP, joined.member_id, None, joined.generation)

    @property
    def decides(self) -> Any:
        return self.lab.classic_members if GROUP in self.lab.directory.consumer else self.lab.classic


@pytest.mark.parametrize("owned", [False, True], ids=["eager", "cooperative"])
def test_a_classic_group_is_upgraded_and_goes_back(lab: ConsumerLab, owned: bool) -> None:
    mixed = Mixed(lab, owned=owned)
    old = mixed.join()
    assert mixed.sync(old, {old.member_id: assignment({"t": [0, 1, 2, 3, 9]})}) == [0, 1, 2, 3, 9]
    new = Reader(lab, "new", frozenset({"t"}))
    new.beat()
    assert lab.directory.classic == {}
    assert (new.epoch > old.generation, count_of(new.owned)) == (True, 0)
    assert code_of(mixed.heartbeat, old) == ErrorCode.REBALANCE_IN_PROGRESS
    has = [0, 1, 2, 3] if owned else []
    again = mixed.join(old.member_id, has)
    keeps = mixed.sync(again)
    assert isinstance(keeps, list)
    if owned:
        # It is told of less than it has, and joins once more when it has given the rest back.
        assert (again.generation, len(keeps)) == (old.generation, 2)
        assert code_of(mixed.heartbeat, again) == ErrorCode.REBALANCE_IN_PROGRESS
        again = mixed.join(old.member_id, keeps)
        assert mixed.sync(again) == keeps
    assert code_of(mixed.heartbeat, again) == ErrorCode.NONE
    new.beat()
    assert (count_of(new.owned), len(keeps), lab.state) == (2, 2, "Stable")
    lab.start()  # stored, mixed as it is
    assert code_of(mixed.heartbeat, again) == ErrorCode.NONE
    assert (
        code_of(lab.coordinator.check_commit, lab.group, old.member_id, None, again.generation - 1)
        == ErrorCode.ILLEGAL_GENERATION
    )
    new.leave()
    assert lab.directory.consumer == {}
    back = lab.directory.classic[GROUP]
    assert (set(back.members), back.generation) == ({old.member_id}, again.generation)
    assert assigned_partitions(back.members[old.member_id].assignment) == {"t": keeps}
    assert code_of(mixed.heartbeat, again) == ErrorCode.REBALANCE_IN_PROGRESS
    lab.start()
    assert set(lab.directory.classic[GROUP].members) == {old.member_id}


@pytest.mark.parametrize("version", ["skips the assignment", "older"])
def test_a_static_member_that_comes_back_as_a_classic_one_causes_no_rebalance(lab: ConsumerLab, version: str) -> None:
    mixed = Mixed(lab, owned=False)
    old = mixed.join()
    mixed.sync(old, {old.member_id: assignment({"t": [0, 1]})})
    new = Reader(lab, "new", frozenset({"t"}), instance_id="i")
    new.beat()
    assert code_of(mixed.heartbeat, old) == ErrorCode.REBALANCE_IN_PROGRESS
    again = mixed.join(old.member_id, [])
    keeps = mixed.sync(again)
    new.beat()
    assert (lab.state, count_of(new.owned)) == ("Stable", 2)
    lab.beat("new", -2, instance_id="i")
    back = mixed.join(instance_id="i", can_skip_assignment=version != "older")
    group = lab.directory.classic[GROUP]
    if version == "older":
        # Named leader, it would assign anew; without a leader nobody would notice new partitions.
        assert (back.error, group.state.name) == (ErrorCode.REBALANCE_IN_PROGRESS, "PREPARING_REBALANCE")
        return
    assert (back.error, back.generation, group.state.name) == (ErrorCode.NONE, again.generation, "STABLE")
    assert (back.leader, back.skip_assignment, len(back.members)) == (back.member_id, True, 2)
    has = mixed.sync(back)
    assert isinstance(has, list)
    assert isinstance(keeps, list)
    assert sorted(has + keeps) == [0, 1, 2, 3]
    assert code_of(mixed.heartbeat, again) == ErrorCode.NONE
    lab.start()  # stored with its leader
    assert (lab.directory.classic[GROUP].leader, code_of(mixed.heartbeat, again)) == (back.member_id, ErrorCode.NONE)


def test_the_last_of_the_new_protocol_is_answered_when_the_classic_group_is_stored(lab: ConsumerLab) -> None:
    mixed = Mixed(lab, owned=False)
    old = mixed.join()
    mixed.sync(old, {})
    new = Reader(lab, "new", frozenset({"t"}))
    new.beat()
    lab.journal.held = True
    leaving = lab.send(HeartbeatRequest(GROUP, "new", -1))
    assert set(lab.directory.classic) == {GROUP}
    assert not leaving.done
    lab.journal.complete()
    assert leaving.answer.error == ErrorCode.NONE


def test_a_classic_member_that_does_not_come_back_is_out(lab: ConsumerLab) -> None:
    mixed = Mixed(lab, owned=False)
    old = mixed.join()
    mixed.sync(old, {})
    new = Reader(lab, "new", frozenset({"t"}))
    new.beat()
    assert code_of(mixed.heartbeat, old) == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(4):
        lab.pass_time(REBALANCE_MS // 4)
        new.beat()
        if GROUP in lab.directory.consumer and old.member_id in lab.group.members:
            code_of(mixed.heartbeat, old)
    assert set(lab.group.members) == {"new"}


def test_requests_of_classic_members_are_fenced(lab: ConsumerLab) -> None:
    mixed = Mixed(lab, owned=False)
    share(lab, "new")
    asked = mixed.join(require_known_id=True)
    assert (asked.error, set(lab.group.members)) == (ErrorCode.MEMBER_ID_REQUIRED, {"new"})
    joined = mixed.join(asked.member_id)
    assert (joined.error, joined.protocol_name, joined.leader) == (ErrorCode.NONE, "range", "")
    assert mixed.join(protocol_type="connect").error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert mixed.join(protocols=()).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert mixed.join(protocols=(("other", subscription("t")),)).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert mixed.join(protocols=(("range", b"\0"),)).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert mixed.join(joined.member_id, protocols=()).member_id == "", "as a broker refuses"
    assert mixed.join(session_timeout_ms=1).error == ErrorCode.INVALID_SESSION_TIMEOUT
    assert mixed.sync(JoinReply("x", generation=1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert mixed.sync(JoinReply("new", generation=lab.group.members["new"].epoch)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert mixed.sync(JoinReply(joined.member_id, generation=99)) == ErrorCode.ILLEGAL_GENERATION
    assert code_of(mixed.heartbeat, JoinReply(joined.member_id, generation=99)) == ErrorCode.ILLEGAL_GENERATION
    assert code_of(mixed.heartbeat, JoinReply("new", generation=99)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert mixed.sync(JoinReply("new", generation=99)) == ErrorCode.UNKNOWN_MEMBER_ID
    lab.settings = KafkaGroupSettings(max_size=2)
    lab.start()
    assert mixed.join("third").error == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_that_is_none_of_consumers_is_not_upgraded(lab: ConsumerLab) -> None:
    mixed = Mixed(lab, owned=False)
    worker = mixed.join(protocol_type="connect")
    mixed.sync(worker, {})
    assert lab.join("new", "t").error == ErrorCode.GROUP_ID_NOT_FOUND
    assert code_of(mixed.heartbeat, worker) == ErrorCode.NONE


def test_a_group_whose_assignor_gives_data_of_its_own_is_not_upgraded(lab: ConsumerLab) -> None:
    mixed = Mixed(lab, owned=False)
    old = mixed.join(protocols=(("stream", subscription("t")),))
    streams = assignment({"t": [0, 1]})[:-4] + b"\0\0\0\1d"
    assert mixed.sync(old, {old.member_id: streams}) == [0, 1]
    refused = lab.join("new", "t")
    assert (refused.error, refused.message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {GROUP} to consumer group because an unsupported custom assignor is in use. "
        "Please refer to the documentation or switch to a default assignor before re-attempting the upgrade.",
    )
    assert code_of(mixed.heartbeat, old) == ErrorCode.NONE
    assert lab.directory.classic[GROUP].members[old.member_id].assignment == streams


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_data_that_a_standard_assignor_sends_along_does_not_keep_a_group_classic(
    lab: ConsumerLab, strategy: str
) -> None:
    """librdkafka's leader returns what a member knows of the last generation, with its partitions."""
    mixed = Mixed(lab, owned=False)
    old = mixed.join(protocols=((strategy, subscription("t")),))
    assert mixed.sync(old, {old.member_id: assignment({"t": [0, 1]})[:-4] + b"\0\0\0\1d"}) == [0, 1]
    assert lab.join("new", "t").error == ErrorCode.NONE
    assert code_of(mixed.heartbeat, old) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("policy", ["bidirectional", "upgrade", "downgrade", "disabled"])
def test_groups_change_their_kind_as_the_policy_lets_them(lab: ConsumerLab, policy: Any) -> None:
    mixed = Mixed(lab, owned=False)
    old = mixed.join()
    mixed.sync(old, {old.member_id: assignment({"t": [0]})})
    lab.settings = KafkaGroupSettings(consumer_migration_policy=policy)
    lab.start()
    joined = lab.join("new", "t")
    if policy in ("downgrade", "disabled"):
        assert (joined.error, code_of(mixed.heartbeat, old)) == (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NONE)
        return
    assert joined.error == ErrorCode.NONE
    assert lab.send(HeartbeatRequest(GROUP, "new", -1)).answer.error == ErrorCode.NONE
    assert (GROUP in lab.directory.classic) is (policy == "bidirectional")
    assert lab.send(HeartbeatRequest(GROUP, "new", 7)).answer.error in (
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
    assert (GROUP in lab.directory.classic) is (policy == "bidirectional")  # also when somebody is refused
    again = mixed.join(old.member_id)
    assert again.error == ErrorCode.NONE
    if policy == "upgrade":
        assert mixed.sync(again) == [0, 1, 2, 3]
        assert code_of(mixed.heartbeat, again) == ErrorCode.NONE


def test_a_refused_member_leaves_the_group_what_it_was(lab: ConsumerLab) -> None:
    lab.settings = KafkaGroupSettings(max_bytes=1_000)
    lab.start()
    mixed = Mixed(lab, owned=False)
    old = mixed.join(instance_id="i")
    mixed.sync(old, {old.member_id: assignment({"t": [0]})})
    assert lab.join("new", "t", instance_id="i").error == ErrorCode.UNRELEASED_INSTANCE_ID
    assert code_of(mixed.heartbeat, old) == ErrorCode.NONE
    assert lab.join("new", "t", *(f"topic{number}" for number in range(13))).error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert GROUP in lab.directory.classic
    assert code_of(mixed.heartbeat, old) == ErrorCode.REBALANCE_IN_PROGRESS
    assert set(lab.directory.classic[GROUP].members) == {old.member_id}


def test_two_members_with_the_same_partition_keep_it_once(lab: ConsumerLab) -> None:
    mixed = Mixed(lab, owned=False)
    metadata = (("range", subscription("t")), ("sticky", subscription("t")))
    request = JoinRequest(GROUP, "", None, "c", "/h", 10_000, REBALANCE_MS, "consumer", metadata)
    one: Pending[JoinReply] = Pending()
    two: Pending[JoinReply] = Pending()
    lab.classic.join(lab.now, request, one)
    lab.classic.join(lab.now, request, two)
    lab.pass_time(2 * lab.settings.initial_rebalance_delay_ms)
    both = {joined.answer.member_id: assignment({"t": [0, 1], "gone": [0]}) for joined in (one, two)}
    assert mixed.sync(one.answer, both) == [0, 1]
    assert lab.join("new", "t").error == ErrorCode.NONE
    assert [count_of(lab.group.members[member].assigned) for member in both] == [2, 0]
