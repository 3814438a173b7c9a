"""FindCoordinator, DescribeGroups, ListGroups, DeleteGroups (docs/protocols/kafka.md, rules 49, 60 and 61)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation
from bridges.catalog.views.groups import GroupView, Place
from bridges.errors import LogError
from kafka_front.dispatch import Registry
from kafka_front.service.access import NO_OPERATIONS
from kafka_front.service.brokers import GROUP, TRANSACTION
from kafka_front.service.groups.classic.embedded import PROTOCOL_TYPE, encode_assignment
from kafka_front.service.groups.classic.group import Group, GroupState
from kafka_front.service.groups.consumer.group import ConsumerGroup
from kafka_front.service.groups.group_service import GroupService
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.brokers import Brokers

_log = structlog.get_logger("anabranch.kafka.groups")

_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_BATCHED_FIND_SINCE = 4
_UNKNOWN_GROUP_SINCE = 6

_Coordinator = m.FindCoordinatorResponse.Coordinator
_Described = m.DescribeGroupsResponse.DescribedGroup
_DescribedMember = m.DescribeGroupsResponse.DescribedGroupMember


class GroupAdmin:
    """Handlers of the requests about whole groups."""

    def __init__(self, service: GroupService, brokers: Brokers) -> None:
        self._service = service
        self._brokers = brokers

    async def find_coordinator(self, ctx: Context, request: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
        """Answer FindCoordinator: groups and transactional ids are spread over the nodes (a single node has all)."""
        error: int
        message: str | None
        error, message, kind = ErrorCode.NONE, None, GROUP
        allowed, refused = self._service.access.group, ErrorCode.GROUP_AUTHORIZATION_FAILED
        if request.key_type == _TRANSACTION_KEY:
            allowed, refused = self._service.access.transaction, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            kind = TRANSACTION
        elif request.key_type != _GROUP_KEY:
            error, message = ErrorCode.INVALID_REQUEST, f"there is no coordinator for keys of type {request.key_type}"

        def find_coordinator(key: str) -> tuple[int, str, int, int, str | None]:
            if error:
                return -1, "", -1, error, message
            if not allowed(ctx, Operation.DESCRIBE, key):
                return -1, "", -1, refused, None
            broker = self._brokers.coordinator(kind, key, ctx.connection)
            if broker is None:
                return -1, "", -1, ErrorCode.COORDINATOR_NOT_AVAILABLE, None
            return broker.node_id, broker.host, broker.port, ErrorCode.NONE, None

        if ctx.version >= _BATCHED_FIND_SINCE:
            response = m.FindCoordinatorResponse()
            async for key in in_turns(request.coordinator_keys):
                response.coordinators.append(_Coordinator(key, *find_coordinator(key)))
            return response
        node_id, host, port, error, message = find_coordinator(request.key)
        return m.FindCoordinatorResponse(error_code=error, error_message=message, node_id=node_id, host=host, port=port)

    async def describe(self, ctx: Context, request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
        """Answer DescribeGroups: each group once, however often it is named."""
        access, asked = self._service.access, request.include_authorized_operations
        response = m.DescribeGroupsResponse()
        async for group_id in in_turns(dict.fromkeys(request.groups)):
            if not access.group(ctx, Operation.DESCRIBE, group_id):
                response.groups.append(_Described(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=group_id))
                continue
            operations = access.group_operations(ctx, group_id) if asked else NO_OPERATIONS
            group, other = self._service.find(group_id), self._service.read_elsewhere(group_id)
            if other is not None:
                response.groups.append(_describe_foreign(other, operations))
            else:
                response.groups.append(self._described(ctx.version, group_id, group, operations))
        return response

    def _described(
        self, version: int, group_id: str, group: Group | ConsumerGroup | None, operations: int
    ) -> _Described:
        if not isinstance(group, Group):
            missing = version >= _UNKNOWN_GROUP_SINCE
            why = "not found" if group is None else "is not a classic group"
            return _Described(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND if missing else ErrorCode.NONE,
                error_message=f"Group {group_id} {why}." if missing else None,
                group_id=group_id,
                group_state=GroupState.DEAD.value,
                authorized_operations=operations,
            )
        # The group's protocol, and with it the metadata to show, is undecided during a rebalance; the last assignment
        # is shown nevertheless.
        stable = group.state is GroupState.STABLE
        name = group.protocol_name or ""
        return _Described(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=name if stable else "",
            members=[
                _DescribedMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.protocols.get(name, b"") if stable else b"",
                    member.assignment,
                )
                for member in group.members.values()
            ],
            authorized_operations=operations,
        )

    async def list(self, ctx: Context, request: m.ListGroupsRequest) -> m.ListGroupsResponse:
        """Answer ListGroups, with the filters of KIP-518 and KIP-848; neither regards letter case."""
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        access = self._service.access
        every = access.node(ctx, Operation.DESCRIBE)
        response = m.ListGroupsResponse()
        async for group_id in self._service.group_ids():
            if not (every or access.group(ctx, Operation.DESCRIBE, group_id)):
                continue
            group = self._service.summary(group_id)
            if (not states or group.state.lower() in states) and (not types or group.kind in types):
                response.groups.append(
                    m.ListGroupsResponse.ListedGroup(group.group_id, group.protocol_type, group.state, group.kind)
                )
        return response

    async def delete(self, ctx: Context, request: m.DeleteGroupsRequest) -> m.DeleteGroupsResponse:
        """Answer DeleteGroups once nothing of the groups is left on disk."""
        results = []
        async for group_id in in_turns(dict.fromkeys(request.groups_names)):
            result = m.DeleteGroupsResponse.DeletableGroupResult(group_id)
            results.append(result)
            try:
                self._service.access.require_group(ctx, Operation.DELETE, group_id)
                await self._service.forget(group_id)
            except KafkaError as refused:
                result.error_code, result.error_message = refused.code, refused.message
            except LogError as failure:
                _log.warning("group not deleted", group=group_id, error=str(failure))
                result.error_code, result.error_message = ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)
        return m.DeleteGroupsResponse(results=results)


def _describe_foreign(other: GroupView, operations: int) -> _Described:
    """Return the description, as Kafka's tools know it, of a group that is read through another protocol."""
    return _Described(
        group_id=other.summary.group_id,
        group_state=other.summary.state,
        protocol_type=PROTOCOL_TYPE,
        protocol_data=other.protocol,
        members=[
            _DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                f"/{member.client_host.lstrip('/')}",
                b"",
                _assignment(member.partitions or ()),
            )
            for member in other.members
        ],
        authorized_operations=operations,
    )


def _assignment(places: Iterable[Place]) -> bytes:
    partitions: dict[str, list[int]] = {}
    for topic, number in places:
        partitions.setdefault(topic, []).append(number)
    return encode_assignment(0, partitions)


def register(registry: Registry, service: GroupService, brokers: Brokers) -> None:
    """Serve keys 10, 15, 16 and 42."""
    admin = GroupAdmin(service, brokers)
    registry.register(ApiKey.FIND_COORDINATOR, admin.find_coordinator)
    registry.register(ApiKey.DESCRIBE_GROUPS, admin.describe)
    registry.register(ApiKey.LIST_GROUPS, admin.list)
    registry.register(ApiKey.DELETE_GROUPS, admin.delete)
