"""The ACL APIs of a node without an authorizer: each answers SECURITY_DISABLED (reference/kafka.md, rule 67)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_front.dispatch import Registry
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService


def _refuse(ctx: Context, request: object) -> None:
    raise KafkaError(ErrorCode.SECURITY_DISABLED, "no authorizer is configured on this node")


def register(registry: Registry, service: KafkaService) -> None:
    for key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS):
        registry.register(key, _refuse)
