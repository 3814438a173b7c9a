"""A look-up of topics that other nodes have just created, before a request that names them is handled.

A node hears of others' topics within milliseconds, but a client may be faster. Some clients report an unknown topic to
their users at once, so the node asks the database before it says so. Produce asks by itself, since its requests keep
their order; clients repeat their Fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from anabranch_kit.run.turns import in_turns
from kafka_front.wire.apis import ApiKey

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.dispatch import Handler, Registry
    from kafka_front.service.core import KafkaService

_TOPIC: Final = 2
"""Kafka's number of the resource type topic."""

Names = Callable[[Any], Iterator["str | bytes"]]
"""Returns names, or ids, of the topics of a request."""


def _topics(request: Any) -> Iterator[str | bytes]:
    return (one.name or getattr(one, "topic_id", "") for one in request.topics or ())


def _deleted(request: Any) -> Iterator[str | bytes]:
    yield from _topics(request)
    yield from request.topic_names


def _resources(request: Any) -> Iterator[str | bytes]:
    return (one.resource_name for one in request.resources if one.resource_type == _TOPIC)


NAMES: Mapping[ApiKey, Names] = {
    ApiKey.METADATA: _topics,
    ApiKey.LIST_OFFSETS: _topics,
    ApiKey.OFFSET_COMMIT: _topics,
    ApiKey.OFFSET_DELETE: _topics,
    ApiKey.TXN_OFFSET_COMMIT: _topics,
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda request: (one.name for one in request.v3_and_below_topics),
    ApiKey.DELETE_RECORDS: _topics,
    ApiKey.DELETE_TOPICS: _deleted,
    ApiKey.CREATE_PARTITIONS: _topics,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _topics,
    ApiKey.DESCRIBE_CONFIGS: _resources,
    ApiKey.ALTER_CONFIGS: _resources,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _resources,
}


def hear_first(registry: Registry, service: KafkaService) -> None:
    """Wrap the handlers of requests that name topics: in a cluster, an unknown topic is looked up in the database
    first."""
    if service.node.db.changes.shared:
        for key, names in NAMES.items():
            registry.handlers[key] = _hearing(registry.handlers[key], names, service)


def _hearing(handler: Handler, names: Names, service: KafkaService) -> Handler:
    changes, catalog = service.node.db.changes, service.catalog

    async def handle(ctx: Context, request: Any) -> Any:
        async for name in in_turns(names(request)):
            known = name in catalog.by_id if isinstance(name, bytes) else name in catalog.topics
            if not known:
                await changes.latest()
                break
        answer = handler(ctx, request)
        return await answer if asyncio.iscoroutine(answer) else answer

    return handle
