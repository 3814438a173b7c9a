"""Quotas of users, client ids and addresses, as Kafka's clients see and change them (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_kit.run.turns import in_turns
from bridges.auth import Operation
from bridges.auth.quotas import NO_MIX, QuotaError, check, entity_of, key_of, parts_of
from bridges.catalog.client_quotas import Change, TooManyQuotas
from kafka_front.dispatch import Registry
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.client_quotas import ClientQuotas
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_EXACT, _DEFAULT, _ANY = range(3)
_ENTITIES = ("user", "client-id", "ip")
_MOST_PARTS = 16
"""Most parts of an entity in a request; beyond that the whole request fails, not the entity alone."""

_Told = m.DescribeClientQuotasResponse.EntryData
_ToldPart = m.DescribeClientQuotasResponse.EntityData
_ToldValue = m.DescribeClientQuotasResponse.ValueData
_Altered = m.AlterClientQuotasResponse.EntryData
_AlteredPart = m.AlterClientQuotasResponse.EntityData


class ClientQuotaHandlers:
    """Handlers of the quota APIs."""

    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas

    async def describe(self, ctx: Context, request: m.DescribeClientQuotasRequest) -> m.DescribeClientQuotasResponse:
        """Return the quotas that match the filter. No match is an empty list, not null, on which the Java client fails
        (rule 10)."""
        code, text = _wrong(request.components)
        if code:
            return m.DescribeClientQuotasResponse(error_code=code, error_message=text, entries=None)
        parts = {one.entity_type: one.match for one in request.components if one.match_type != _ANY}
        kinds = [one.entity_type for one in request.components if one.match_type == _ANY]
        entries: list[_Told] = []
        async for entity, values in in_turns(await self._quotas.find(parts, kinds, exactly=request.strict)):
            told = [_ToldPart(kind, name) for kind, name in parts_of(entity).items()]
            entries.append(_Told(told, [_ToldValue(key.value, value) for key, value in values.items()]))
        return m.DescribeClientQuotasResponse(error_message="", entries=entries)

    async def alter(self, ctx: Context, request: m.AlterClientQuotasRequest) -> m.AlterClientQuotasResponse:
        """Apply every entity's valid changes; an invalid one gets an error that says what is wrong."""
        changes: list[Change] = []
        results: list[_Altered] = []
        async for entry in in_turns(request.entries):
            if len(entry.entity) > _MOST_PARTS:
                text = f"an entity of {len(entry.entity)} parts: one has at most {_MOST_PARTS}"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            parts = sorted(entry.entity, key=lambda one: one.entity_type)
            result = _Altered(entity=[_AlteredPart(one.entity_type, one.entity_name) for one in parts])
            results.append(result)
            try:
                changes += _changes(entry)
            except QuotaError as error:
                result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, str(error)
        if not request.validate_only:
            try:
                await self._quotas.alter(changes)
            except TooManyQuotas as error:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, str(error)) from None
        return m.AlterClientQuotasResponse(entries=results)


def _changes(entry: m.AlterClientQuotasRequest.EntryData) -> list[Change]:
    """Return the changes of an entry. Raises QuotaError."""
    parts = {one.entity_type: one.entity_name for one in entry.entity}
    if len(parts) < len(entry.entity):
        raise QuotaError("a kind of entity is named twice")
    entity = entity_of(parts)
    changes: list[Change] = []
    for op in entry.ops:
        if op.remove:
            changes.append((entity, key_of(entity, op.key), None))
        else:
            changes.append((entity, *check(entity, op.key, op.value)))
    return changes


def _wrong(components: list[m.DescribeClientQuotasRequest.ComponentData]) -> tuple[ErrorCode, str]:
    """Return the code and text of the first error in a filter, in the order in which a broker checks; NONE without
    one."""
    seen: set[str] = set()
    for one in components:
        kind = one.entity_type
        if kind in seen:
            return ErrorCode.INVALID_REQUEST, f"entity type {kind} occurs twice in the filter"
        if kind not in _ENTITIES:
            return ErrorCode.UNSUPPORTED_VERSION, f"entity type {kind[:100]!r} is unknown"
        seen.add(kind)
        if one.match_type not in (_EXACT, _DEFAULT, _ANY):
            return ErrorCode.INVALID_REQUEST, f"match type {one.match_type} is unknown"
        if (one.match_type == _EXACT) != (one.match is not None):
            return ErrorCode.INVALID_REQUEST, "a name is needed to match exactly, and else is none"
    if "ip" in seen and len(seen) > 1:
        return ErrorCode.INVALID_REQUEST, f"Invalid entity filter component combination: {NO_MIX}"
    return ErrorCode.NONE, ""


def register(registry: Registry, service: KafkaService) -> None:
    of_node = service.access.of_node
    handlers = ClientQuotaHandlers(service.node.client_quotas)
    registry.register(ApiKey.DESCRIBE_CLIENT_QUOTAS, of_node(Operation.DESCRIBE_CONFIGS, handlers.describe))
    registry.register(ApiKey.ALTER_CLIENT_QUOTAS, of_node(Operation.ALTER_CONFIGS, handlers.alter))
