"""State and helpers shared by all handlers of the YDB front."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from bridges.auth import ANONYMOUS, Operation, Principal, Resource, ResourceKind
from bridges.auth.tokens import TokenError
from bridges.clients import Description
from bridges.net.grpc_server import Code, GrpcRefusal
from ydb_topic_front.service import paths
from ydb_topic_front.service.forwarding import Forwarding
from ydb_topic_front.service.measures import Measures
from ydb_topic_front.service.paths import PROTOCOL
from ydb_topic_front.service.read.readers import Readers
from ydb_topic_front.service.read.session_states import SessionStates
from ydb_topic_front.service.topics.directories import Directories
from ydb_topic_front.service.topics.store import TopicStore
from ydb_topic_front.service.transactions.coordinator import Transactions
from ydb_topic_front.settings import YdbSettings
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, unknown_topic

if TYPE_CHECKING:
    from anabranch_kit.net.address import Address
    from bridges.catalog.topics.topic import Topic
    from bridges.clients import Client
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.remote.readable import ReadableLog
    from bridges.net.grpc_server import GrpcCall, GrpcStream
    from bridges.node.front import NodeServices


AUDIENCE = "ydb"
"""Audience of this front's tokens."""
TICKET = "x-ydb-auth-ticket"
"""Header with a client's token."""
_EXPIRY_MS = 60_000


class YdbService:
    """The node's services and this front's own state. One per front, created on the event loop."""

    def __init__(self, node: NodeServices) -> None:
        self.node = node
        self.settings = node.section(YdbSettings)
        self.catalog = node.catalog
        self.logs = node.logs
        self.loop = asyncio.get_running_loop()
        self.log = structlog.get_logger("anabranch.ydb")
        self.addresses: Mapping[str, Address] = {}
        self.directories = Directories(node.catalog, node.db)
        self.topics = TopicStore(node.catalog, node.db, self.directories, node.barrier)
        self.states = SessionStates(node.budget)
        self.measures = Measures(node.budget)
        node.every(_EXPIRY_MS, self.measures.expire, "expiry of what is measured of YDB's topics")
        self.topics.on_change.append(
            lambda topic: self.measures.settings_changed(topic, self.topics.get_settings(topic.name))
        )
        timeout_s = self.settings.init_timeout_ms / 1000
        self.forwarding = Forwarding(node, timeout_s, self.principal, node.peers, node.owners)
        """Forwarding of streams and calls to other nodes."""
        self.readers = Readers(self)
        """All read sessions."""
        self.transactions = Transactions(self)

    @property
    def node_id(self) -> int:
        """Return this node's id as clients see it. YDB's node ids begin with 1, the cluster's with 0."""
        return self.node.node_id + 1

    def listening(self, addresses: Mapping[str, Address]) -> None:
        """Note the ``addresses`` of the open listeners, by name."""
        self.addresses = addresses

    def database(self, call: GrpcCall) -> str:
        """Return the database that a call names in its headers, else the configured one, without a slash at its end."""
        return call.header("x-ydb-database").rstrip("/") or self.settings.database

    def name_of(self, call: GrpcCall, path: str) -> str:
        """Return a topic's path below the database; ``path`` may be absolute or relative. Raises YdbError."""
        return paths.below(path, self.database(call))

    def path_of(self, call: GrpcCall, topic: Topic) -> str:
        """Return the absolute path of a topic in the client's database."""
        return paths.whole(topic.names.get(PROTOCOL, topic.name), self.database(call))

    def topic_at(self, call: GrpcCall, path: str, operation: Operation) -> Topic:
        """Return the topic at ``path`` after checking that the client may do ``operation`` with it. Raises YdbError.

        The check comes first, so that only clients with the right learn whether the topic exists.
        """
        below = self.name_of(call, path)
        topic = self.catalog.by_name(PROTOCOL, below)
        name = paths.new_name(below) if topic is None else topic.name
        self.require(call, operation, Resource(ResourceKind.TOPIC, name))
        # The catalog reserves a name when a creation begins, and lists the topic when it is durable.
        if topic is None or self.catalog.topics.get(topic.name) is not topic:
            raise unknown_topic(path)
        return topic

    async def load(self) -> None:
        """Read the front's tables into memory."""
        await self.directories.load()
        await self.topics.load()
        await self.readers.coordination.begin()
        await self.transactions.begin()

    async def close(self) -> None:
        """Stop following changes, and end background work."""
        await self.transactions.close()
        self.readers.close()
        await self.readers.coordination.close()
        await self.topics.close()

    def require(
        self, call: GrpcCall, operation: Operation, resource: Resource, principal: Principal | None = None
    ) -> None:
        """Raise YdbError unless the client may do ``operation``. ``principal``: the client's, if the caller already has
        it."""
        if not self.node.authorizer.allows(principal or self.principal(call), operation, resource):
            what = f"{resource.kind.value} {resource.name!r}" if resource.name else f"the {resource.kind.value}"
            raise YdbError(
                Status.UNAUTHORIZED, f"access denied: you may not {operation.value} {what}", Issue.ACCESS_DENIED
            )

    def admit(self, call: GrpcCall, size: int) -> None:
        """Count about ``size`` bytes in the memory budget until the call ends. Raises YdbError while the budget has no
        room."""
        if not call.admits(size):
            raise YdbError(Status.OVERLOADED, "limits.connections_memory_bytes is exhausted: retry later")

    def log_of(self, topic: Topic, partition: int) -> PartitionLog:
        """Return the log of a partition, open or not. Raises YdbError when the partition does not exist or no longer
        does."""
        log = self.logs.get(topic.name, partition)
        if log is None:
            raise _not_served(topic, partition)
        return log

    def log_to_read(self, topic: Topic, partition: int) -> ReadableLog:
        """Return a partition's log for reading, whichever node owns it. Raises YdbError when the partition does not
        exist or no longer does."""
        log = self.logs.to_read(topic.name, partition)
        if log is None:
            raise _not_served(topic, partition)
        return log

    def owner_id(self, topic: str, partition: int) -> int:
        """Return the :attr:`node_id` that clients see for the owner of a partition; this node's when the partition has
        no owner."""
        owner = self.node.owners.owner(self.node.owners.slot_of(topic, partition))
        return self.node_id if owner is None else owner.node_id + 1

    def is_owned(self, topic: str, partition: int) -> bool:
        """Return whether a partition has an owner, as far as this node knows."""
        return self.node.owners.owner(self.node.owners.slot_of(topic, partition)) is not None

    def generation(self, topic: str, partition: int) -> int:
        """Return a partition's generation as clients see it: 1 at first, and another number after every change of
        owner."""
        return self.logs.leader_epoch(topic, partition) + 1

    def principal(self, call: GrpcCall) -> Principal:
        """Return the client's principal, from its token or else from its certificate.

        Raises GrpcRefusal when the listener requires authentication and the client has none.
        """
        ticket = call.header(TICKET)
        if not ticket and (name := call.certificate_name):
            return Principal(ANONYMOUS.kind, name, call.host)
        return self.identify(ticket, call.listener).at(call.host)

    def identify(self, ticket: str, listener: str) -> Principal:
        """Return the principal of a token that came by ``listener``; ANONYMOUS for an empty token.

        Raises GrpcRefusal (UNAUTHENTICATED) where the listener requires a valid token. Elsewhere an invalid token
        counts as none: clients often still send the token of the service that they migrate from.
        """
        authenticator = self.node.authenticator
        try:
            if ticket:
                return authenticator.check(ticket, AUDIENCE).principal
            if authenticator.required_at(listener):
                raise TokenError("there is no token; get one with Login")
        except TokenError as error:
            if authenticator.required_at(listener):
                raise GrpcRefusal(Code.UNAUTHENTICATED, str(error)) from None
        return ANONYMOUS

    def enter(self, stream: GrpcStream, describe: Callable[[], Description], end: Callable[[YdbError], None]) -> Client:
        """Add a stream's client to those of the node; ``end`` ends the stream."""
        return self.node.clients.enter(
            self.node.metrics.name,
            stream.listener,
            stream.address,
            describe,
            lambda reason: end(YdbError(Status.UNAVAILABLE, reason)),
        )


def describe_client(call: GrpcCall, name: str, principal: Principal) -> Description:
    """Describe a stream's client for operators: by ``name``, or by that of its application, and by its SDK, or its
    gRPC library."""
    software = call.header("x-ydb-sdk-build-info") or call.header("user-agent")
    user = "" if principal.is_anonymous else principal.name
    return Description(name or call.header("x-ydb-application-name"), software, user)


def _not_served(topic: Topic, partition: int) -> YdbError:
    return YdbError(Status.UNAVAILABLE, f"partition {partition} of {topic.name!r} is not served any more")
