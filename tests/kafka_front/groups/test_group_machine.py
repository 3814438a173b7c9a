"""Any order of requests, time, lost disks and restarts keeps the promises of a group coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafka_front.service.groups.classic.group import GroupState, JoinReply, SyncReply, bytes_of
from kafka_front.service.groups.classic.requests import JoinRequest, Leaver, SyncRequest
from kafka_front.settings import KafkaGroupSettings
from kafka_front.wire.errors import ErrorCode
from tests.depth import examples
from tests.kafka_front.groups.lab import GROUP, Lab, Pending, code_of

METADATA = st.sampled_from([(("a", b"1"),), (("a", b"1"), ("b", b"2")), (("b", b"2"), ("a", b"1")), (("a", b"3"),)])
LARGEST = 2**31 - 1
SESSIONS = st.one_of(
    st.sampled_from([6_000, 10_000, 45_000, 1_800_000]),
    st.sampled_from([6_000, 10_000, 0, -1, 1, 5_999, 1_800_001, LARGEST, -LARGEST - 1]),
)
REBALANCES = st.one_of(
    st.sampled_from([5_000, 60_000]), st.sampled_from([0, -1, 1, LARGEST, -LARGEST - 1]), st.integers(-2, 300_000)
)
INSTANCES = st.sampled_from([None, None, None, "i1", "i2"])
CLIENTS = st.integers(0, 5)


@dataclass
class Client:
    """What one client believes; it may be wrong, as real ones are after time-outs."""

    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    synced: bool = False
    members: tuple[str, ...] = ()
    join: Pending[JoinReply] | None = None
    sync: Pending[SyncReply] | None = None
    # Requests whose connection the client gave up; they must be answered all the same.
    abandoned: list[Pending[JoinReply] | Pending[SyncReply]] = field(default_factory=list)


class GroupMachine(RuleBasedStateMachine):
    """One group with six clients against the coordinator."""

    @initialize(
        delay=st.sampled_from([0, 3_000]),
        size=st.sampled_from([2, 4, 100]),
        max_bytes=st.sampled_from([5, 9, 10_000]),
        held=st.booleans(),
    )
    def start(self, delay: int, size: int, max_bytes: int, held: bool) -> None:
        self.lab = Lab(KafkaGroupSettings(initial_rebalance_delay_ms=delay, max_size=size, max_bytes=max_bytes))
        self.lab.journal.held = held
        self.clients = [Client() for _ in range(6)]
        self.generations: list[int] = [0]
        self.assigned: dict[int, dict[str, bytes]] = {}
        self.counter = 0
        self.leaving: list[Pending[list[int]]] = []

    # --- clients -------------------------------------------------------------------------------------------------

    @rule(
        index=CLIENTS,
        protocols=METADATA,
        instance_id=INSTANCES,
        known=st.booleans(),
        skip=st.booleans(),
        session=SESSIONS,
        rebalance=REBALANCES,
        fresh=st.booleans(),
    )
    def join(
        self,
        index: int,
        protocols: tuple[tuple[str, bytes], ...],
        instance_id: str | None,
        known: bool,
        skip: bool,
        session: int,
        rebalance: int,
        fresh: bool,
    ) -> None:
        client = self.clients[index]
        self._give_up(client)
        if fresh:
            client.member_id = ""
            client.instance_id = instance_id
        self._send_join(client, index, protocols, session, rebalance, known, skip)

    @rule(index=CLIENTS, stale=st.integers(0, 5))
    def sync(self, index: int, stale: int) -> None:
        client = self.clients[index]
        if client.join is not None:
            return  # a client sends SyncGroup only after its JoinGroup was answered
        self._give_up(client)
        pending: Pending[SyncReply] = Pending()
        client.sync = pending
        generation = client.generation - (not stale)
        assignments: tuple[tuple[str, bytes], ...] = ()
        if client.leads:
            self.counter += 1
            assignments = tuple((member, b"%d:%d" % (generation, self.counter)) for member in client.members[1:])
        self.lab.requests += 1
        self.lab.coordinator.sync(
            self.lab.now,
            SyncRequest(GROUP, client.member_id, client.instance_id, generation, None, None, assignments),
            pending,
        )

    @rule(index=CLIENTS)
    def heartbeat(self, index: int) -> None:
        client = self.clients[index]
        group = self.lab.coordinator.groups.get(GROUP)
        error = self.lab.heartbeat(client.member_id, client.generation, client.instance_id)
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            assert group is not None
            assert client.member_id in group.members
            assert client.generation == group.generation
            assert (error != ErrorCode.NONE) == (group.state is GroupState.PREPARING_REBALANCE)

    @rule(index=CLIENTS, by_instance=st.booleans())
    def leave(self, index: int, by_instance: bool) -> None:
        client = self.clients[index]
        member_id = "" if by_instance else client.member_id
        leaving = self.lab.begin_leave(Leaver(member_id, client.instance_id))
        group = self.lab.coordinator.groups.get(GROUP)
        if not leaving.done:
            self.leaving.append(leaving)
            assert group is not None
            assert not group.members
        elif leaving.answer == [ErrorCode.NONE] and group is not None:
            assert member_id not in group.members
            assert member_id not in group.pending
            assert by_instance is False or client.instance_id not in group.static_members

    @rule(index=CLIENTS, outside=st.booleans())
    def commit(self, index: int, outside: bool) -> None:
        client = self.clients[index]
        group = self.lab.coordinator.groups.get(GROUP)
        if outside:
            error = self.lab.commit("", -1)
            assert (error == ErrorCode.NONE) == (group is None or group.state is GroupState.EMPTY)
        elif self.lab.commit(client.member_id, client.generation, client.instance_id) == ErrorCode.NONE:
            assert self.lab.state != "CompletingRebalance"

    @rule(count=st.integers(1, 6), rounds=st.integers(1, 6), protocols=METADATA, rebalance=st.just(60_000) | REBALANCES)
    def cooperate(self, count: int, rounds: int, protocols: tuple[tuple[str, bytes], ...], rebalance: int) -> None:
        """Some clients do what real ones do next; without this, random requests hardly ever meet in a stable group."""
        for _ in range(rounds):
            for index in range(count):
                self._next_step(index, protocols, rebalance)
            self.lab.pass_time(1_000)

    # --- world ---------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 2_999, 3_000, 5_000, 6_000, 10_000, 60_000, 300_000, 100_000_000]))
    def time(self, ms: int) -> None:
        self.lab.pass_time(ms)

    @precondition(lambda self: self.lab.journal.waiting)
    @rule(error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]))
    def journal_answers(self, error: int) -> None:
        self.lab.journal.complete(error)

    @rule()
    def delete(self) -> None:
        group = self.lab.coordinator.groups.get(GROUP)
        error = code_of(self.lab.coordinator.delete, self.lab.now, GROUP)
        if error == ErrorCode.NONE:
            assert group is not None
            assert not group.members
            self.lab.journal.stored.pop(GROUP, None)
            self.generations = [0]
            self.assigned.clear()

    @rule()
    def restart(self) -> None:
        self.lab.coordinator.resign()
        self.lab.journal.waiting.clear()
        self.leaving.clear()  # their connections are gone
        self.lab.restart()
        group = self.lab.coordinator.groups.get(GROUP)
        self.generations = [group.generation if group else 0]
        for client in self.clients:
            self._read(client)
            assert client.join is None
            assert client.sync is None
            assert all(pending.done for pending in client.abandoned)
        self.assigned.clear()

    # --- promises ------------------------------------------------------------------------------------------------

    @invariant()
    def answers_are_read(self) -> None:
        for client in self.clients:
            self._read(client)

    @invariant()
    def every_unanswered_request_is_parked_exactly_once(self) -> None:
        waiting = {
            id(pending)
            for client in self.clients
            for pending in (client.join, client.sync, *client.abandoned)
            if pending is not None and not pending.done
        }
        parked = [
            id(reply)
            for group in self.lab.coordinator.groups.values()
            for member in group.members.values()
            for reply in (member.join, member.sync)
            if reply is not None
        ]
        assert len(parked) == len(set(parked))
        assert set(parked) == waiting

    @invariant()
    def generation_never_goes_back(self) -> None:
        group = self.lab.coordinator.groups.get(GROUP)
        if group is not None:
            assert group.generation >= self.generations[-1]
            self.generations.append(group.generation)

    @invariant()
    def state_and_members_fit(self) -> None:
        group = self.lab.coordinator.groups.get(GROUP)
        if group is None:
            return
        assert group.state is not GroupState.DEAD
        assert not group.pending & set(group.members)
        assert group.pending_sync <= set(group.members)
        assert group.static_members == {
            m.instance_id: m.member_id for m in group.members.values() if m.instance_id is not None
        }
        assert all(key == member.member_id for key, member in group.members.items())
        assert group.metadata_bytes == sum(bytes_of(member.protocols.items()) for member in group.members.values())
        assert group.metadata_bytes <= self.lab.settings.max_bytes
        assert group.waiting == sum(member.join is not None for member in group.members.values())
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.leader in group.members
            assert group.choose_protocol()
            assert all(group.protocol_name in member.protocols for member in group.members.values())
        if group.state is GroupState.EMPTY:
            assert not group.members
            assert group.leader is None
        if group.members and group.state is GroupState.PREPARING_REBALANCE:
            assert group.leader in group.members

    @invariant()
    def somebody_is_always_on_the_clock(self) -> None:
        """No member, no pending id and no phase can stay for ever without its client doing something."""
        coordinator = self.lab.coordinator
        group = coordinator.groups.get(GROUP)
        if group is None:
            return
        keys = {(key[0].name, key[2]) for key in coordinator.timers._at}
        for member in group.members.values():
            assert ("SESSION", member.member_id) in keys or member.keeps_session
        for member_id in group.pending:
            assert ("SESSION", member_id) in keys
        if group.state is GroupState.PREPARING_REBALANCE:
            # Where nobody waits, the sessions of the members and pending ids end the phase.
            assert ("JOIN", "") in keys or not group.waiting
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert ("SYNC", "") in keys or group.saving_generation == group.generation
        if group.state in (GroupState.EMPTY, GroupState.STABLE):
            assert ("JOIN", "") not in keys
        sessions = {member for kind, member in keys if kind == "SESSION"}
        assert sessions <= set(group.members) | group.pending

    @invariant()
    def nothing_due_is_left_undone(self) -> None:
        self.lab.advance()

    @invariant()
    def time_is_not_spent_spinning(self) -> None:
        """Deadlines follow from what clients do: there cannot be many more of them than requests."""
        assert self.lab.steps <= 20 * self.lab.requests + 20

    @invariant()
    def stable_members_have_what_the_leader_gave(self) -> None:
        group = self.lab.coordinator.groups.get(GROUP)
        if group is None or group.state is not GroupState.STABLE:
            return
        seen = {member.assignment for member in group.members.values() if member.assignment}
        # One sync of one leader makes all assignments of a generation: they carry its mark or are empty.
        assert len(seen) <= 1
        for mark in seen:
            assert mark.startswith(b"%d:" % group.generation)
        static = {m.instance_id: m.assignment for m in group.members.values() if m.instance_id}
        before = self.assigned.setdefault(group.generation, static)  # type: ignore[arg-type]
        for instance_id, assignment in static.items():
            assert before.get(instance_id or "", assignment) == assignment

    def teardown(self) -> None:
        if not hasattr(self, "lab"):
            return
        # Silence: whatever is parked is answered and the group empties itself.
        journal = self.lab.journal
        journal.held = False
        while journal.waiting:
            journal.complete()
        for _ in range(4):
            self.lab.pass_time(3_600_000)
        group = self.lab.coordinator.groups.get(GROUP)
        assert group is None or (group.state is GroupState.EMPTY and not group.pending)
        assert self.lab.coordinator.next_deadline_ms is None
        assert all(pending.done for pending in self.leaving)
        for client in self.clients:
            for pending in (client.join, client.sync, *client.abandoned):
                assert pending is None or pending.done

    # --- helpers -------------------------------------------------------------------------------------------------

    def _next_step(self, index: int, protocols: tuple[tuple[str, bytes], ...], rebalance: int) -> None:
        client = self.clients[index]
        self._read(client)
        if client.join is not None or client.sync is not None:
            return
        if not client.member_id or client.generation < 0:
            self._send_join(client, index, protocols, 45_000, rebalance)
        elif not client.synced:
            self.sync(index, 1)
        else:
            error = self.lab.heartbeat(client.member_id, client.generation, client.instance_id)
            if error == ErrorCode.REBALANCE_IN_PROGRESS:
                self._send_join(client, index, protocols, 45_000, rebalance)
            elif error:
                client.member_id = ""
        self._read(client)

    def _send_join(
        self,
        client: Client,
        index: int,
        protocols: tuple[tuple[str, bytes], ...],
        session: int,
        rebalance: int,
        known: bool = True,
        skip: bool = True,
    ) -> None:
        client.synced = False
        pending: Pending[JoinReply] = Pending()
        client.join = pending
        request = JoinRequest(
            GROUP,
            client.member_id,
            client.instance_id,
            f"client{index}",
            "/h",
            session,
            rebalance,
            "consumer",
            protocols,
            known,
            skip,
        )
        self.lab.requests += 1
        self.lab.coordinator.join(self.lab.now, request, pending)
        if not self.lab.settings.min_session_timeout_ms <= session <= self.lab.settings.max_session_timeout_ms:
            assert pending.error == ErrorCode.INVALID_SESSION_TIMEOUT

    def _give_up(self, client: Client) -> None:
        for pending in (client.join, client.sync):
            if pending is not None:
                client.abandoned.append(pending)
        client.join = client.sync = None

    def _read(self, client: Client) -> None:
        join, sync = client.join, client.sync
        if join is not None and join.done:
            client.join = None
            answer = join.answer
            client.leads = False
            if answer.error == ErrorCode.NONE:
                client.member_id = answer.member_id
                client.generation = answer.generation
                client.leads = bool(answer.members) and not answer.skip_assignment
                client.members = tuple(member.member_id for member in answer.members)
                assert answer.leader
                if answer.members:
                    assert answer.leader == answer.member_id
                    assert answer.member_id in client.members
            elif answer.error == ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = answer.member_id
            elif answer.error in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                ErrorCode.FENCED_INSTANCE_ID,
            ):
                client.member_id, client.generation = "", -1
            else:
                client.generation = -1
                assert answer.error in (
                    ErrorCode.INVALID_SESSION_TIMEOUT,
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    ErrorCode.NOT_COORDINATOR,
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                )
        if sync is not None and sync.done:
            client.sync = None
            client.synced = sync.error == ErrorCode.NONE
            if sync.error not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
                client.member_id, client.generation = "", -1
            elif sync.error:
                client.generation = -1


GroupMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
TestGroupMachine = GroupMachine.TestCase
