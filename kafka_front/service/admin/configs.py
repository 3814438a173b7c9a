"""DescribeConfigs, ListConfigResources and the requests that alter configuration (docs/protocols/kafka.md, rules 65 and
66).

KIP-133, 226, 339, 1142.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from anabranch_kit.run.turns import by_name, in_turns, portions
from bridges.auth import Operation
from bridges.catalog.config_types import ConfigDef, ConfigSource, ConfigType, ConfigValue, InvalidConfig
from bridges.catalog.topics import config as topic_config
from bridges.catalog.topics.config import TOPIC_DEFAULTS, validate_node_changes
from bridges.catalog.topics.names import check_topic_name
from bridges.errors import LogError
from kafka_front import node_config
from kafka_front.dispatch import Registry
from kafka_front.node_config import EVERY_BROKER
from kafka_front.service.admin import loggers
from kafka_front.service.admin.own_configs import OwnConfigs
from kafka_front.service.log_errors import failure_of
from kafka_front.service.once import Once, repeated
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

Changes = dict[str, str | None]
_Resource = TypeVar(
    "_Resource", m.AlterConfigsRequest.AlterConfigsResource, m.IncrementalAlterConfigsRequest.AlterConfigsResource
)
_Altered = TypeVar(
    "_Altered",
    m.AlterConfigsResponse.AlterConfigsResourceResponse,
    m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
)
"""New values by key; None takes the key's own value away."""
_MOST_CONFIGS = 1_000
_MOST_CHARACTERS = 64 * 1024
"""Most characters in the names and values that a request gives one resource."""


class Resource(IntEnum):
    """Kafka's numbers of resource types that have a configuration."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Change(IntEnum):
    """Kafka's numbers of incremental changes."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_Row = m.DescribeConfigsResponse.DescribeConfigsResourceResult
_DescribeResult = m.DescribeConfigsResponse.DescribeConfigsResult


class Configs:
    """Handlers of requests about configuration."""

    def __init__(self, service: KafkaService) -> None:
        self._service = service
        self._catalog = service.catalog
        self._access = service.access
        self._named: Mapping[int, OwnConfigs] = {
            Resource.GROUP: service.group_configs,
            Resource.CLIENT_METRICS: service.client_metrics,
        }
        self._brokers = service.broker_configs

    # --- describing -------------------------------------------------------------------------------------------------

    async def describe(self, ctx: Context, request: m.DescribeConfigsRequest) -> m.DescribeConfigsResponse:
        results = []
        once = Once()
        async for resource in in_turns(request.resources):
            result = _DescribeResult(
                error_message="",  # not null: clients of this answer need not expect it
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            results.append(result)
            try:
                once.name((resource.resource_type, resource.resource_name))
                self._check(ctx, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
                values = self._values(resource.resource_type, resource.resource_name)
            except (KafkaError, LogError) as error:
                result.error_code, result.error_message = failure_of(ctx.key, error)
            else:
                wanted: set[str] = set()
                async for some in portions(resource.configuration_keys or ()):
                    wanted.update(some)
                result.configs = [
                    _row(value, request.include_synonyms, request.include_documentation)
                    for value in values
                    if not wanted or value.name in wanted
                ]
                once.rows(len(result.configs) * (4 if request.include_synonyms else 1))
        return m.DescribeConfigsResponse(results=results)

    def _values(self, kind: int, name: str) -> Iterable[ConfigValue]:
        catalog = self._catalog
        node, static = catalog.node_config, catalog.options.static
        if kind == Resource.TOPIC:
            check_topic_name(name)
            own = catalog.topic(name).config
            return [topic_config.resolve(key, own, node, static) for key in topic_config.TOPIC_CONFIGS]
        every = self._brokers.own_values(EVERY_BROKER)
        if kind == Resource.BROKER and name == "":
            # The default of all brokers holds only values that were set while running.
            return [
                ConfigValue(
                    node_config.NODE_CONFIGS[key],
                    value,
                    ConfigSource.DYNAMIC_DEFAULT,
                    [(key, value, ConfigSource.DYNAMIC_DEFAULT)],
                )
                for key, value in sorted({**topic_config.cluster_defaults(node, static), **node, **every}.items())
            ]
        if kind in self._named:
            return self._named[kind].values(name)
        self._check_broker(kind, name)
        if kind == Resource.BROKER_LOGGER:
            return loggers.describe()
        own = {**node, **self._brokers.own_values(name)}
        found = [node_config.resolve(key, own, static, every) for key in node_config.NODE_CONFIGS]
        return found + [one for one in self._brokers.values(name) if one.name in node_config.KERBEROS]

    def _check(self, ctx: Context, operation: Operation, kind: int, name: str) -> None:
        """Raise KafkaError unless the client may do this to the resource."""
        if kind == Resource.TOPIC:
            self._access.require_topic(ctx, operation, name)
        elif kind == Resource.GROUP:
            self._access.require_group(ctx, operation, name)
        else:
            self._access.require_node(ctx, operation)

    def _check_broker(self, kind: int, name: str) -> None:
        """Raise KafkaError unless the resource is this node."""
        if kind not in (Resource.BROKER, Resource.BROKER_LOGGER):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no configuration here")
        if name != str(self._service.node_id):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"this is node {self._service.node_id}, not {name!r}")

    async def resources(self, ctx: Context, request: m.ListConfigResourcesRequest) -> m.ListConfigResourcesResponse:
        """Return the resources that have a configuration to describe (ListConfigResources); of groups only those that
        have set one.

        Version 0 asks for client metrics alone (KIP-1142).
        """
        kinds = set(request.resource_types) if ctx.version else {int(Resource.CLIENT_METRICS)}
        if not kinds and ctx.version:
            kinds = {int(kind) for kind in Resource}
        if kinds - {int(kind) for kind in Resource}:
            return m.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        row = m.ListConfigResourcesResponse.ConfigResource
        node_id = str(self._service.node_id)
        found = [row(node_id, kind) for kind in (Resource.BROKER_LOGGER, Resource.BROKER) if kind in kinds]
        for kind in kinds & self._named.keys():
            async for name in in_turns(list(self._named[kind])):
                found.append(row(name, kind))
        if Resource.TOPIC in kinds:
            async for name in in_turns(list(self._catalog.topics)):
                found.append(row(name, Resource.TOPIC))
        return m.ListConfigResourcesResponse(config_resources=found)

    # --- changing ---------------------------------------------------------------------------------------------------

    async def alter(self, ctx: Context, request: m.AlterConfigsRequest) -> m.AlterConfigsResponse:
        """Replace all of a resource's own values (the older request, which kafkajs and librdkafka still use)."""

        def changes(one: m.AlterConfigsRequest.AlterConfigsResource) -> Changes:
            if one.resource_type == Resource.BROKER_LOGGER:
                text = (
                    f"AlterConfigs is deprecated and does not support the resource type {Resource.BROKER_LOGGER.name}"
                )
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            changed: Changes = dict.fromkeys(self._own(one.resource_type, one.resource_name))
            for config in one.configs:
                changed[config.name] = _required(config.name, config.value)
            return changed

        kind = m.AlterConfigsResponse.AlterConfigsResourceResponse
        results = await self._alter_each(ctx, request.resources, changes, kind, request.validate_only)
        return m.AlterConfigsResponse(responses=results)

    async def incremental_alter(
        self, ctx: Context, request: m.IncrementalAlterConfigsRequest
    ) -> m.IncrementalAlterConfigsResponse:
        kind = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
        results = await self._alter_each(ctx, request.resources, self._changes, kind, request.validate_only)
        return m.IncrementalAlterConfigsResponse(responses=results)

    async def _alter_each(
        self,
        ctx: Context,
        resources: Sequence[_Resource],
        changes: Callable[[_Resource], Changes],
        kind: type[_Altered],
        validate_only: bool,
    ) -> list[_Altered]:
        """Change each resource by ``changes``, its requested values by key. An error that ``changes`` raises becomes
        the resource's result."""
        _, twice = await by_name(resources, lambda one: (one.resource_type, one.resource_name))
        results: list[_Altered] = []
        async for one in in_turns(resources):
            result = kind(resource_type=one.resource_type, resource_name=one.resource_name)
            results.append(result)
            try:
                if (one.resource_type, one.resource_name) in twice:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the resource occurs twice in the request")
                self._check(ctx, Operation.ALTER_CONFIGS, one.resource_type, one.resource_name)
                _check_length(one.configs)
                await self._apply(one.resource_type, one.resource_name, changes(one), validate_only)
            except (KafkaError, LogError) as error:
                result.error_code, result.error_message = failure_of(ctx.key, error)
        return results

    def _changes(self, resource: m.IncrementalAlterConfigsRequest.AlterConfigsResource) -> Changes:
        """Return the changes that a list of operations makes. Raises KafkaError, LogError."""
        if names := repeated(config.name for config in resource.configs):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"configuration {min(map(str, names))!r} occurs twice")
        self._own(resource.resource_type, resource.resource_name)  # the resource must exist, even without changes
        changes: Changes = {}
        for config in resource.configs:
            name, operation = config.name, config.config_operation
            if operation == Change.DELETE:
                changes[name] = None
            elif operation == Change.SET:
                changes[name] = _required(name, config.value)
            elif operation in (Change.APPEND, Change.SUBTRACT):
                value = _required(name, config.value)
                changes[name] = self._edited(resource.resource_type, resource.resource_name, name, operation, value)
            else:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"operation {operation} is unknown")
        return changes

    def _edited(self, kind: int, resource: str, name: str, operation: int, value: str) -> str:
        """Return a list with elements added or removed; a key that the resource does not set starts from its
        default."""
        if kind == Resource.BROKER_LOGGER:
            text = f"{Change(operation).name} operation is not allowed for the {Resource.BROKER_LOGGER.name} resource"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        definition = self._definition(kind, name)
        if definition.type is not ConfigType.LIST:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is not a list")
        current = next(
            one.value for one in self._values(kind, resource or str(self._service.node_id)) if one.name == name
        )
        items: list[str] = definition.parse(current) if current else []
        given = [part.strip() for part in value.split(",") if part.strip()]
        if operation == Change.APPEND:
            items = items + [item for item in given if item not in items]
        else:
            items = [item for item in items if item not in given]
        return ",".join(items)

    def _own(self, kind: int, name: str) -> Iterable[str]:
        """Return the keys that the resource sets itself. Raises KafkaError, LogError if there is no such resource."""
        if kind == Resource.TOPIC:
            check_topic_name(name)
            return list(self._catalog.topic(name).config)
        if kind == Resource.BROKER_LOGGER:
            self._check_broker(kind, name)
            return []
        if kind in self._named:
            return list(self._named[kind].own_values(name))
        if kind != Resource.BROKER or name != "":
            self._check_broker(kind, name)
        return [*self._catalog.node_config, *self._brokers.own_values(name or EVERY_BROKER)]

    async def _apply(self, kind: int, name: str, changes: Changes, validate_only: bool) -> None:
        catalog = self._catalog
        if kind == Resource.TOPIC:
            catalog.check_config(name, changes)
            if not validate_only and changes:
                await catalog.set_config(name, changes)
            return
        if kind in self._named:
            named = self._named[kind]
            stored = named.checked(name, changes)
            if not validate_only and stored:
                await named.change(name, stored)
            return
        if kind == Resource.BROKER_LOGGER:
            loggers.change(changes, validate_only)
            return
        told, throttles = changes, node_config.THROTTLES
        changes = {key: value for key, value in told.items() if value is not None or key not in throttles}
        of_node = node_config.CHANGED if name else node_config.DYNAMIC
        kept = {key: changes.pop(key) for key in list(changes) if key in of_node}
        if kept:
            kept = self._brokers.checked(name or EVERY_BROKER, kept)
        if slowed := sorted(changes.keys() & throttles):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{slowed[0]}: nothing is copied here that it could slow down")
        if fixed := sorted(changes.keys() - TOPIC_DEFAULTS.keys()):
            text = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{text}; nodes read them from their settings as they start")
        validate_node_changes(changes)
        if validate_only:
            return
        if changes:
            await catalog.set_node_config(changes)
        if kept:
            await self._brokers.change(name or EVERY_BROKER, kept)

    def _definition(self, kind: int, name: str) -> ConfigDef:
        named = self._named.get(kind)
        table = topic_config.TOPIC_CONFIGS if kind == Resource.TOPIC else node_config.EVERY
        definition = (table if named is None else named.definitions).get(name)
        if definition is None:
            raise InvalidConfig(f"{name!r} is not a configuration of this resource")
        return definition


def _check_length(
    configs: Sequence[m.AlterConfigsRequest.AlterableConfig | m.IncrementalAlterConfigsRequest.AlterableConfig],
) -> None:
    """Raise KafkaError for more configurations than any resource has: the rest of the work takes time for each, and for
    each character."""
    if len(configs) > _MOST_CONFIGS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no resource has {_MOST_CONFIGS} configurations")
    if sum(len(one.name) + len(one.value or "") for one in configs) > _MOST_CHARACTERS:
        text = f"the configurations of a resource are longer than {_MOST_CHARACTERS} characters"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _required(name: str, value: str | None) -> str:
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"configuration {name!r} has no value")
    return value


def _row(value: ConfigValue, synonyms: bool, documentation: bool) -> _Row:
    definition = value.definition
    hidden = definition.sensitive
    row = _Row(
        name=value.name,
        value=None if hidden else value.value,
        read_only=value.read_only,
        config_source=int(value.source),
        is_sensitive=hidden,
        config_type=int(definition.type),
        documentation=definition.doc if documentation else None,
    )
    if synonyms:
        row.synonyms = [
            m.DescribeConfigsResponse.DescribeConfigsSynonym(name, None if hidden else text, int(source))
            for name, text, source in value.synonyms
        ]
    return row


def register(registry: Registry, service: KafkaService) -> None:
    configs = Configs(service)
    registry.register(ApiKey.DESCRIBE_CONFIGS, configs.describe)
    registry.register(ApiKey.ALTER_CONFIGS, configs.alter)
    registry.register(ApiKey.INCREMENTAL_ALTER_CONFIGS, configs.incremental_alter)
    listed = service.access.of_node(Operation.DESCRIBE_CONFIGS, configs.resources)
    registry.register(ApiKey.LIST_CONFIG_RESOURCES, listed)
