"""ACLs: access rules as Kafka's clients see and change them (KIP-11, KIP-140, KIP-290; docs/protocols/kafka.md, rule
67).

A node without rules answers SECURITY_DISABLED, as a broker without an authorizer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation, ResourceKind
from bridges.auth.rules import InvalidRule, Pattern, Rule, RuleFilter
from bridges.catalog.access_rules import TooManyRules
from kafka_front.dispatch import Registry
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.access_rules import AccessRules
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_ANY = 1
_MATCH = 2
_KINDS = {
    2: ResourceKind.TOPIC,
    3: ResourceKind.GROUP,
    4: ResourceKind.NODE,
    5: ResourceKind.TRANSACTIONAL_ID,
    6: ResourceKind.TOKEN,
    7: ResourceKind.USER,
}
_PATTERNS = {3: Pattern.LITERAL, 4: Pattern.PREFIXED}
_OPERATIONS = {
    2: Operation.ALL,
    3: Operation.READ,
    4: Operation.WRITE,
    5: Operation.CREATE,
    6: Operation.DELETE,
    7: Operation.ALTER,
    8: Operation.DESCRIBE,
    9: Operation.CLUSTER_ACTION,
    10: Operation.DESCRIBE_CONFIGS,
    11: Operation.ALTER_CONFIGS,
    12: Operation.IDEMPOTENT_WRITE,
    13: Operation.CREATE_TOKENS,
    14: Operation.DESCRIBE_TOKENS,
    15: Operation.TWO_PHASE_COMMIT,
}
_ALLOWS = {2: False, 3: True}
_KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_PATTERN_NUMBERS = {pattern: number for number, pattern in _PATTERNS.items()}
_OPERATION_NUMBERS = {operation: number for number, operation in _OPERATIONS.items()}
_ALLOW_NUMBERS = {allow: number for number, allow in _ALLOWS.items()}
_CLUSTER = "kafka-cluster"
"""Kafka's name of its only resource of the kind cluster; ours has none."""

_Creation = m.CreateAclsRequest.AclCreation
_Filter = m.DeleteAclsRequest.DeleteAclsFilter
_Created = m.CreateAclsResponse.AclCreationResult
_Deleted = m.DeleteAclsResponse.DeleteAclsFilterResult
_Match = m.DeleteAclsResponse.DeleteAclsMatchingAcl
_Described = m.DescribeAclsResponse.DescribeAclsResource
_Description = m.DescribeAclsResponse.AclDescription


class Acls:
    """Handlers of the ACL APIs."""

    def __init__(self, service: KafkaService, rules: AccessRules) -> None:
        self._access = service.access
        self._rules = rules

    async def describe(self, ctx: Context, request: m.DescribeAclsRequest) -> m.DescribeAclsResponse:
        """Return the rules that match the request's filter, by resource."""
        self._access.require_node(ctx, Operation.DESCRIBE)
        resources: dict[tuple[ResourceKind, Pattern, str], _Described] = {}
        async for rule in in_turns(await self._rules.find(_filter(request))):
            of = resources.get((rule.kind, rule.pattern, rule.name))
            if of is None:
                of = resources[rule.kind, rule.pattern, rule.name] = _Described(
                    resource_type=_KIND_NUMBERS[rule.kind],
                    resource_name=_resource_name(rule),
                    pattern_type=_PATTERN_NUMBERS[rule.pattern],
                )
            operation, permission = _OPERATION_NUMBERS[rule.operation], _ALLOW_NUMBERS[rule.allow]
            of.acls.append(_Description(rule.principal, rule.host, operation, permission))
        return m.DescribeAclsResponse(resources=list(resources.values()))

    async def create(self, ctx: Context, request: m.CreateAclsRequest) -> m.CreateAclsResponse:
        """Add every valid rule; an invalid one gets an error that says what is wrong."""
        self._access.require_node(ctx, Operation.ALTER)
        results: list[_Created] = []
        rules: list[Rule] = []
        async for one in in_turns(request.creations):
            try:
                rules.append(_rule(one))
                results.append(_Created())
            except KafkaError as error:
                results.append(_Created(error.code, str(error)))
        try:
            await self._rules.add(rules)
        except TooManyRules as error:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, str(error)) from None
        return m.CreateAclsResponse(results=results)

    async def delete(self, ctx: Context, request: m.DeleteAclsRequest) -> m.DeleteAclsResponse:
        """Remove the rules that match any of the filters."""
        self._access.require_node(ctx, Operation.ALTER)
        results: list[_Deleted] = []
        filters: list[RuleFilter] = []
        meant: list[_Deleted] = []
        async for one in in_turns(request.filters):
            try:
                filters.append(_filter(one))
                results.append(_Deleted())
                meant.append(results[-1])
            except KafkaError as error:
                results.append(_Deleted(error.code, str(error)))
        for result, gone in zip(meant, await self._rules.remove(filters), strict=True):
            async for rule in in_turns(gone):
                result.matching_acls.append(
                    _Match(
                        resource_type=_KIND_NUMBERS[rule.kind],
                        resource_name=_resource_name(rule),
                        pattern_type=_PATTERN_NUMBERS[rule.pattern],
                        principal=rule.principal,
                        host=rule.host,
                        operation=_OPERATION_NUMBERS[rule.operation],
                        permission_type=_ALLOW_NUMBERS[rule.allow],
                    )
                )
        return m.DeleteAclsResponse(filter_results=results)


def _rule(one: _Creation) -> Rule:
    """Return the access rule of a creation. Raises KafkaError."""
    try:
        kind, pattern = _KINDS[one.resource_type], _PATTERNS[one.resource_pattern_type]
        operation, allow = _OPERATIONS[one.operation], _ALLOWS[one.permission_type]
    except KeyError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{error} is no type that a rule can have there") from None
    if kind is ResourceKind.NODE and one.resource_name != _CLUSTER:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the only cluster is called {_CLUSTER}")
    name = "" if kind is ResourceKind.NODE else one.resource_name
    try:
        return Rule(kind, pattern, name, one.principal, one.host, operation, allow).check()
    except InvalidRule as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _filter(one: _Filter | m.DescribeAclsRequest) -> RuleFilter:
    """Return the filter of a request. Raises KafkaError."""
    number = one.pattern_type_filter
    try:
        kind = None if one.resource_type_filter == _ANY else _KINDS[one.resource_type_filter]
        pattern = None if number in (_ANY, _MATCH) else _PATTERNS[number]
        operation = None if one.operation == _ANY else _OPERATIONS[one.operation]
        allow = None if one.permission_type == _ANY else _ALLOWS[one.permission_type]
    except KeyError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{error} is no type that a filter can have there") from None
    name = one.resource_name_filter
    if name == _CLUSTER and kind in (None, ResourceKind.NODE):
        kind, name = ResourceKind.NODE, ""
    return RuleFilter(kind, pattern, name, number == _MATCH, one.principal_filter, one.host_filter, operation, allow)


def _resource_name(rule: Rule) -> str:
    return _CLUSTER if rule.kind is ResourceKind.NODE else rule.name


def _refuse(ctx: Context, request: object) -> None:
    raise KafkaError(ErrorCode.SECURITY_DISABLED, "no access rules hold on this node (auth.rules)")


def register(registry: Registry, service: KafkaService) -> None:
    rules = service.node.access_rules
    acls = None if rules is None else Acls(service, rules)
    registry.register(ApiKey.DESCRIBE_ACLS, acls.describe if acls else _refuse)
    registry.register(ApiKey.CREATE_ACLS, acls.create if acls else _refuse)
    registry.register(ApiKey.DELETE_ACLS, acls.delete if acls else _refuse)
