"""Questions to the node's authorizer, asked where a Kafka broker looks at ACLs, with the error codes of a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch_kit.run.turns import in_turns
from bridges.auth import NODE, Authorizer, Operation, Principal, Resource, ResourceKind
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafka_front.context import Context

T = TypeVar("T")


@lru_cache(maxsize=1000)
def _topic(name: str) -> Resource:
    # Cached: called for every partition of every Fetch, while the names are few.
    return Resource(ResourceKind.TOPIC, name)


# KIP-430: the number of each operation is its bit in the fields of authorized operations.
_BITS = {
    Operation.READ: 1 << 3,
    Operation.WRITE: 1 << 4,
    Operation.CREATE: 1 << 5,
    Operation.DELETE: 1 << 6,
    Operation.ALTER: 1 << 7,
    Operation.DESCRIBE: 1 << 8,
    Operation.CLUSTER_ACTION: 1 << 9,
    Operation.DESCRIBE_CONFIGS: 1 << 10,
    Operation.ALTER_CONFIGS: 1 << 11,
    Operation.IDEMPOTENT_WRITE: 1 << 12,
}
_OF_GROUPS = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_OF_TOPICS = tuple(one for one in _BITS if one not in (Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE))
_OF_NODES = tuple(one for one in _BITS if one not in (Operation.READ, Operation.WRITE, Operation.DELETE))

NO_OPERATIONS = -(2**31)
"""Value of the fields of authorized operations that stands for "not asked for"."""


class Access:
    """The authorizer in Kafka's terms. The principal is that of the request's connection."""

    __slots__ = ("_allows", "_allows_any", "_stand_in")

    def __init__(self, authorizer: Authorizer) -> None:
        self._allows = authorizer.allows
        self._allows_any = authorizer.allows_any
        self._stand_in = authorizer.stand_in

    def topic(self, ctx: Context, operation: Operation, name: str) -> bool:
        """Return whether the client may do this to the topic."""
        return self._allows(ctx.connection.principal, operation, _topic(name))

    async def require_topics(self, ctx: Context, operation: Operation, names: Iterable[str]) -> None:
        """Raise KafkaError, without their names, unless the client may do this to all topics."""
        async for name in in_turns(names):
            if not self.topic(ctx, operation, name):
                text = f"you may not {operation.value} a topic that this is about"
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)

    def any_topic(self, ctx: Context, operation: Operation) -> bool:
        """Return whether the client may do this to at least one topic."""
        return self._allows_any(ctx.connection.principal, operation, ResourceKind.TOPIC)

    def viewer(self, ctx: Context) -> Principal | None:
        """Return a principal that may describe the same topics as the client, for :meth:`shows`; None where everybody
        may describe all topics."""
        return self._stand_in(ctx.connection.principal)

    def shows(self, viewer: Principal, topic: str) -> bool:
        """Return whether the viewer may describe the topic."""
        return self._allows(viewer, Operation.DESCRIBE, Resource(ResourceKind.TOPIC, topic))

    def group(self, ctx: Context, operation: Operation, name: str) -> bool:
        """Return whether the client may do this to the group."""
        return self._allows(ctx.connection.principal, operation, Resource(ResourceKind.GROUP, name))

    def transaction(self, ctx: Context, operation: Operation, name: str) -> bool:
        """Return whether the client may do this to the transactional id."""
        return self._allows(ctx.connection.principal, operation, Resource(ResourceKind.TRANSACTIONAL_ID, name))

    def node(self, ctx: Context, operation: Operation) -> bool:
        """Return whether the client may do this to the node, which Kafka calls the cluster."""
        return self._allows(ctx.connection.principal, operation, NODE)

    def tokens_of(self, ctx: Context, operation: Operation, owner: Principal) -> bool:
        """Return whether the client may do this to the delegation tokens of ``owner`` (KIP-373)."""
        return self._allows(ctx.connection.principal, operation, Resource(ResourceKind.USER, str(owner)))

    def token(self, ctx: Context, operation: Operation, token_id: str) -> bool:
        """Return whether the client may do this to the delegation token."""
        return self._allows(ctx.connection.principal, operation, Resource(ResourceKind.TOKEN, token_id))

    def topic_operations(self, ctx: Context, name: str) -> int:
        """Return the client's operations on the topic, as the bits of KIP-430."""
        return self._operations(ctx, _OF_TOPICS, _topic(name))

    def group_operations(self, ctx: Context, name: str) -> int:
        """Return the client's operations on the group, as the bits of KIP-430."""
        return self._operations(ctx, _OF_GROUPS, Resource(ResourceKind.GROUP, name))

    def node_operations(self, ctx: Context) -> int:
        """Return the client's operations on the node, as the bits of KIP-430; 0 for a client that may not describe the
        node."""
        return self._operations(ctx, _OF_NODES, NODE) if self.node(ctx, Operation.DESCRIBE) else 0

    def _operations(self, ctx: Context, operations: Iterable[Operation], resource: Resource) -> int:
        principal = ctx.connection.principal
        return sum(_BITS[one] for one in operations if self._allows(principal, one, resource))

    def require_topic(self, ctx: Context, operation: Operation, name: str) -> None:
        """Raise KafkaError unless the client may do this to the topic."""
        if not self.topic(ctx, operation, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"you may not {operation.value} topic {name!r}")

    def require_group(self, ctx: Context, operation: Operation, name: str) -> None:
        """Raise KafkaError unless the client may do this to the group."""
        if not self.group(ctx, operation, name):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"you may not {operation.value} group {name!r}")

    def require_transaction(self, ctx: Context, operation: Operation, name: str) -> None:
        """Raise KafkaError unless the client may do this to the transactional id."""
        if not self.transaction(ctx, operation, name):
            text = f"you may not {operation.value} transactional id {name!r}"
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)

    def require_node(self, ctx: Context, operation: Operation) -> None:
        """Raise KafkaError unless the client may do this to the node."""
        if not self.node(ctx, operation):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"you may not {operation.value} the cluster")

    def of_group(self, operation: Operation, handler: Callable[[Context, Any], T]) -> Callable[[Context, Any], T]:
        """Return a handler that authorizes the client for the group named by ``group_id``, then calls ``handler``."""

        def guarded(ctx: Context, request: Any) -> T:
            self.require_group(ctx, operation, request.group_id)
            return handler(ctx, request)

        return guarded

    def of_node(self, operation: Operation, handler: Callable[[Context, Any], T]) -> Callable[[Context, Any], T]:
        """Return a handler that authorizes the client for the node, then calls ``handler``."""

        def guarded(ctx: Context, request: Any) -> T:
            self.require_node(ctx, operation)
            return handler(ctx, request)

        return guarded
