"""What all handlers of the YDB front work with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import structlog

from bridges.auth import ANONYMOUS, Operation, Principal, Resource, ResourceKind
from bridges.auth.tokens import TokenError
from bridges.net.grpc_server import Code, GrpcRefusal
from ydb_topic_front.service import paths
from ydb_topic_front.service.forwarding import Forwarding
from ydb_topic_front.service.measures import Measures
from ydb_topic_front.service.paths import PROTOCOL
from ydb_topic_front.service.read.readers import Readers
from ydb_topic_front.service.read.session_states import SessionStates
from ydb_topic_front.service.topics.directories import Directories
from ydb_topic_front.service.topics.store import TopicStore
from ydb_topic_front.settings import YdbSettings
from ydb_topic_front.wire.statuses import Issue, Status, YdbError, unknown_topic

if TYPE_CHECKING:
    from anabranch_kit.net.address import Address
    from bridges.catalog.topic import Topic
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.log.remote.readable import ReadableLog
    from bridges.net.grpc_server import GrpcCall
    from bridges.node.front import NodeServices


AUDIENCE = "ydb"
TICKET = "x-ydb-auth-ticket"
"""The header with a client's token."""
"""What tokens of this front are made for."""
_EXPIRY_MS = 60_000
_MOST_SHOWN = 256
"""Characters of what a client calls itself."""


class Client(NamedTuple):
    """Who is at the other end of a stream, for people: what it says of itself may be anything, or nothing."""

    host: str
    """Its address, as the node sees it."""
    application: str
    """What the application is called."""
    software: str
    """Name and version of its SDK, or at least of its gRPC library."""
    user: str
    """Whose token or certificate it has shown; empty for nobody's."""


class YdbService:
    """The node's parts and this front's own state; one per front, made on the event loop."""

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
        self.topics.on_change.append(lambda topic: self.measures.settings_changed(topic, self.topics.of(topic.name)))
        timeout_s = self.settings.init_timeout_ms / 1000
        self.forwarding = Forwarding(node, timeout_s, self.principal, node.peers, node.owners)
        """To other nodes."""
        self.readers = Readers(self)
        """The sessions that read."""

    @property
    def node_id(self) -> int:
        """What clients are told of this node: numbers begin with 1."""
        return self.node.node_id + 1

    def listening(self, addresses: Mapping[str, Address]) -> None:
        """The listeners are open at ``addresses``, by name."""
        self.addresses = addresses

    def database(self, call: GrpcCall) -> str:
        """The database that a client names with every call, without a slash at the end."""
        return call.header("x-ydb-database").rstrip("/") or self.settings.database

    def name_of(self, call: GrpcCall, path: str) -> str:
        """A topic's path below the database, of an absolute or a relative one. Raises YdbError."""
        return paths.below(path, self.database(call))

    def path_of(self, call: GrpcCall, topic: Topic) -> str:
        """The absolute path of a topic in the client's database."""
        return paths.whole(topic.names.get(PROTOCOL, topic.name), self.database(call))

    def topic_at(self, call: GrpcCall, path: str, operation: Operation) -> Topic:
        """The topic at ``path``, with which the client may do this. Raises YdbError.

        Whether there is one is told only to those who might do this to it.
        """
        below = self.name_of(call, path)
        topic = self.catalog.by_name(PROTOCOL, below)
        name = paths.new_name(below) if topic is None else topic.name
        self.require(call, operation, Resource(ResourceKind.TOPIC, name))
        # A name is taken as soon as somebody begins to make a topic, which can be found when it is there.
        if topic is None or self.catalog.topics.get(topic.name) is not topic:
            raise unknown_topic(path)
        return topic

    async def load(self) -> None:
        """Read what the front keeps."""
        await self.directories.load()
        await self.topics.load()
        await self.readers.coordination.begin()

    def require(
        self, call: GrpcCall, operation: Operation, resource: Resource, principal: Principal | None = None
    ) -> None:
        """Raise YdbError unless the client may do this. ``principal``: who it is, if that was found out already."""
        if not self.node.authorizer.allows(principal or self.principal(call), operation, resource):
            what = f"{resource.kind.value} {resource.name!r}" if resource.name else f"the {resource.kind.value}"
            raise YdbError(
                Status.UNAUTHORIZED, f"access denied: you may not {operation.value} {what}", Issue.ACCESS_DENIED
            )

    def admit(self, call: GrpcCall, size: int) -> None:
        """Have about ``size`` bytes counted until the call is over. Raises YdbError while there is no room."""
        if not call.admits(size):
            raise YdbError(Status.OVERLOADED, "the node is short of memory; try again later")

    def log_of(self, topic: Topic, partition: int) -> PartitionLog:
        """The log of a partition, whether or not it is open. Raises YdbError when there is none, or none any more."""
        log = self.logs.get(topic.name, partition)
        if log is None:
            raise _not_served(topic, partition)
        return log

    def log_to_read(self, topic: Topic, partition: int) -> ReadableLog:
        """The log of a partition for readers, whoever owns it. Raises YdbError when there is none, or none any more."""
        log = self.logs.to_read(topic.name, partition)
        if log is None:
            raise _not_served(topic, partition)
        return log

    def owner_id(self, topic: str, partition: int) -> int:
        """What clients are told of the node that has a partition: as :attr:`node_id` of that one."""
        owner = self.node.owners.owner(self.node.owners.slot_of(topic, partition))
        return self.node_id if owner is None else owner.node_id + 1

    def generation(self, topic: str, partition: int) -> int:
        """What clients are told of who serves a partition: another number after every change, the first is 1."""
        return self.logs.leader_epoch(topic, partition) + 1

    def principal(self, call: GrpcCall) -> Principal:
        """Who calls: by its token, or else by its certificate.

        Raises GrpcRefusal for a client that must say who it is and does not.
        """
        ticket = call.header(TICKET)
        if not ticket and (name := call.certificate_name):
            return Principal(ANONYMOUS.kind, name, call.host)
        return self.identify(ticket, call.listener).at(call.host)

    def identify(self, ticket: str, listener: str) -> Principal:
        """Whose token this is that came by a listener; nobody's if it is empty.

        Raises GrpcRefusal (UNAUTHENTICATED) where clients must have one. Where they need not, tokens that are not the
        node's are taken for none: clients have those of the service that they come from.
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

    def client_of(self, call: GrpcCall, principal: Principal) -> Client:
        """Who calls, for people."""
        software = call.header("x-ydb-sdk-build-info") or call.header("user-agent")
        user = "" if principal.is_anonymous else principal.name
        application = call.header("x-ydb-application-name")
        return Client(call.host, application[:_MOST_SHOWN], software[:_MOST_SHOWN], user)


def _not_served(topic: Topic, partition: int) -> YdbError:
    return YdbError(Status.UNAVAILABLE, f"partition {partition} of {topic.name!r} is not served any more")
