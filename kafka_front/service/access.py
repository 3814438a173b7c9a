"""Whom the node's authorizer lets do what, asked where a Kafka broker looks at ACLs, with the codes it answers then."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from bridges.auth import ANONYMOUS, NODE, Authorizer, Operation, Principal, Resource, ResourceKind
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.session import Context

T = TypeVar("T")


_NOBODY = ANONYMOUS.name


@lru_cache(maxsize=1000)
def _topic(name: str) -> Resource:
    # Asked for every partition of every Fetch, while the names are few.
    return Resource(ResourceKind.TOPIC, name)


def _principal(ctx: Context) -> Principal:
    name = ctx.connection.principal
    return ANONYMOUS if name == _NOBODY else Principal(ANONYMOUS.kind, name)


class Access:
    """Asks the authorizer in Kafka's words. The principal is that of the request's connection."""

    __slots__ = ("_allows",)

    def __init__(self, authorizer: Authorizer) -> None:
        self._allows = authorizer.allows

    def topic(self, ctx: Context, operation: Operation, name: str) -> bool:
        """May the client do this to the topic?"""
        return self._allows(_principal(ctx), operation, _topic(name))

    def group(self, ctx: Context, operation: Operation, name: str) -> bool:
        """May the client do this to the group?"""
        return self._allows(_principal(ctx), operation, Resource(ResourceKind.GROUP, name))

    def node(self, ctx: Context, operation: Operation) -> bool:
        """May the client do this to the node, which is what Kafka calls the cluster?"""
        return self._allows(_principal(ctx), operation, NODE)

    def require_topic(self, ctx: Context, operation: Operation, name: str) -> None:
        """Raise KafkaError unless the client may do this to the topic."""
        if not self.topic(ctx, operation, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"you may not {operation.value} topic {name!r}")

    def require_group(self, ctx: Context, operation: Operation, name: str) -> None:
        """Raise KafkaError unless the client may do this to the group."""
        if not self.group(ctx, operation, name):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"you may not {operation.value} group {name!r}")

    def require_node(self, ctx: Context, operation: Operation) -> None:
        """Raise KafkaError unless the client may do this to the node."""
        if not self.node(ctx, operation):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"you may not {operation.value} the cluster")

    def of_group(self, operation: Operation, handler: Callable[[Context, Any], T]) -> Callable[[Context, Any], T]:
        """A handler of requests about one group, named by ``group_id``, that asks first."""

        def guarded(ctx: Context, request: Any) -> T:
            self.require_group(ctx, operation, request.group_id)
            return handler(ctx, request)

        return guarded

    def of_node(self, operation: Operation, handler: Callable[[Context, Any], T]) -> Callable[[Context, Any], T]:
        """A handler of requests about the cluster as a whole that asks first."""

        def guarded(ctx: Context, request: Any) -> T:
            self.require_node(ctx, operation)
            return handler(ctx, request)

        return guarded
