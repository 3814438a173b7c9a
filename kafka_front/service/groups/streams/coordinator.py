"""The coordinator of streams groups (KIP-1071)."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from functools import partial

from msgspec.structs import replace

from anabranch_kit.run.sliced import Sliced
from kafka_front.service.groups.classic.group import Group
from kafka_front.service.groups.consumer.assignors import Targets
from kafka_front.service.groups.consumer.group import NOTHING, ConsumerMember, MemberState
from kafka_front.service.groups.consumer.requests import Encode, HeartbeatCallback, HeartbeatReply
from kafka_front.service.groups.heartbeats import SAYS_TOO_MUCH, HeartbeatCoordinator, Timer
from kafka_front.service.groups.streams.assignor import AssignedSubtopology, assign
from kafka_front.service.groups.streams.group import StreamsGroup
from kafka_front.service.groups.streams.requests import StreamsHeartbeat, StreamsReply
from kafka_front.service.groups.streams.snapshot import encode_streams
from kafka_front.service.groups.streams.topology import Plan, Topology, plan
from kafka_front.wire.errors import ErrorCode, KafkaError


class StreamsCoordinator(HeartbeatCoordinator[StreamsGroup, StreamsHeartbeat]):
    """The streams groups in one directory."""

    kind = "streams"

    @property
    def groups(self) -> MutableMapping[str, StreamsGroup]:
        return self._directory.streams

    def plan(self, topology: Topology) -> Plan:
        """Return what a topology means with the topics that exist now."""
        return plan(topology, self._topics.find)

    def _heartbeat(self, now_ms: int, request: StreamsHeartbeat, reply: HeartbeatCallback) -> None:
        super()._heartbeat(now_ms, request, reply)
        group = self.groups.get(request.group_id)
        if request.stops_all and group is not None and group.members:
            group.stopped_by = request.member_id

    def _find_fault(self, request: StreamsHeartbeat) -> str:
        if request.epoch != 0:
            return "" if request.topology is None else "Topology can only be provided when (re-)joining."
        if request.owned:
            return "ActiveTasks, StandbyTasks and WarmupTasks must be empty when (re-)joining."
        return "" if request.topology is not None else "Topology must be non-null when (re-)joining."

    def _make_group(self, now_ms: int, request: StreamsHeartbeat, classic: Group | None) -> StreamsGroup:
        if classic is not None and classic.members:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a streams group.")
        return StreamsGroup(request.group_id, now_ms, assignor="sticky")

    def _member(self, now_ms: int, group: StreamsGroup, request: StreamsHeartbeat) -> ConsumerMember:
        if request.topology is not None:
            self._check_topology(group, request.topology, request.member_id)
        is_first = not group.members
        member = super()._member(now_ms, group, request)
        if is_first:
            group.stopped_by = None
            own = self._configured(group.group_id, "streams.initial.rebalance.delay.ms")
            delay_ms = self._settings.initial_rebalance_delay_ms if own is None else own
            if delay_ms:
                self._timers.set((Timer.FIRST, group.group_id, ""), now_ms, delay_ms)
        return member

    def _check_topology(self, group: StreamsGroup, topology: Topology, member_id: str) -> None:
        """Raise KafkaError unless the group has this topology or a newer one, or may take it."""
        if not _replaces(topology, group.topology):
            return
        if group.topology is not None and group.members.keys() - {member_id}:
            text = "Topology updates are not supported yet: stop all members of the application first"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if group.said_bytes + topology.said_bytes > self._settings.max_bytes:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, SAYS_TOO_MUCH)

    def _subscribe(self, group: StreamsGroup, member: ConsumerMember, request: StreamsHeartbeat) -> None:
        topology = request.topology
        if topology is not None and _replaces(topology, group.topology):
            group.takes(topology)
            self._bump(group)
        before = member.process
        process = replace(
            before,
            process_id=before.process_id if request.process_id is None else request.process_id,
            endpoint=before.endpoint if request.endpoint is None else request.endpoint,
            tags=before.tags if request.tags is None else request.tags,
            topology_epoch=before.topology_epoch if topology is None else topology.epoch,
        )
        if process.process_id != before.process_id and before.process_id:
            if request.epoch != 0:
                text = f"member {member.member_id!r} has moved to another process: it must join again"
                raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
            # It has lost its tasks, and gets them anew: members of its new process may have copies of them.
            group.hold(member, MemberState.STABLE, member.epoch, NOTHING, NOTHING)
        if group.runs_in(member, process):
            self._bump(group)

    def _reply(
        self, group: StreamsGroup, member: ConsumerMember, request: StreamsHeartbeat, answer: HeartbeatReply
    ) -> StreamsReply:
        if answer.assignment is not None and member.process.endpoint is not None:
            group.endpoints_epoch += 1
        return StreamsReply(
            member_id=answer.member_id,
            epoch=answer.epoch,
            interval_ms=answer.interval_ms,
            assignment=answer.assignment,
            statuses=group.statuses(member),
            endpoints_epoch=group.endpoints_epoch,
            endpoints=None if request.endpoints_epoch == group.endpoints_epoch else group.endpoints(),
        )

    # --- target assignments --------------------------------------------------------------------------------------

    def _look_up(self, group: StreamsGroup) -> str | None:
        if group.topology is None:
            return None
        group.plan = self.plan(group.topology)
        names = group.topology.names()
        self._read(group, {name: found for name in names if (found := self._topics.find(name)) is not None})
        return group.digest({})

    def _refresh(self, group: StreamsGroup) -> None:
        super()._refresh(group)
        standbys = self._configured(group.group_id, "streams.num.standby.replicas") or 0
        if standbys != group.standbys:
            group.standbys = standbys
            self._bump(group)

    def _assign(self, group: StreamsGroup) -> None:
        if self._timers.get((Timer.FIRST, group.group_id, "")) is None:
            super()._assign(group)

    def _over(self, now_ms: int, kind: Timer, group_id: str, member_id: str) -> None:
        super()._over(now_ms, kind, group_id, member_id)
        if kind is Timer.FIRST and (group := self.groups.get(group_id)) is not None:
            self._assign(group)

    def _begin(self, group: StreamsGroup) -> Callable[[], Sliced[Targets]]:
        subtopologies: Sequence[AssignedSubtopology] = ()
        if group.topology is not None and group.plan.status is None:
            tasks = group.plan.tasks
            subtopologies = [
                AssignedSubtopology(one.subtopology_id, tasks[one.subtopology_id], bool(one.changelogs))
                for one in group.topology.subtopologies
            ]
        members = [(one.member_id, one.process.process_id, one.target) for one in group.members.values()]
        return partial(assign, members, subtopologies, group.standbys)

    def _encode(self, group: StreamsGroup) -> Encode:
        return partial(encode_streams, group)


def _replaces(topology: Topology, known: Topology | None) -> bool:
    return known is None or (topology != known and topology.epoch >= known.epoch)
