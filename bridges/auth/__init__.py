"""Who a client is, and who decides what it may do.

A front asks the node's :class:`Authorizer` before it does anything with a topic, a group or the node, with the words
of this module whatever its protocol calls them. With ``auth.rules`` rules decide (:mod:`bridges.auth.rules`);
otherwise everybody may do everything.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from msgspec import Struct


class Principal(Struct, frozen=True):
    """Who speaks on a connection: ``kind`` says how ``name`` is to be understood, for instance ``User``; ``host`` is
    the address it speaks from, as the node sees it, empty where that is not known."""

    kind: str
    name: str
    host: str = ""

    def at(self, host: str) -> Principal:
        """The same one, speaking from ``host``."""
        return Principal(self.kind, self.name, host)

    @property
    def is_anonymous(self) -> bool:
        """Whether it has not said who it is."""
        return self.name == ANONYMOUS.name and self.kind == ANONYMOUS.kind

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""Whoever has not said who it is."""


class Operation(Enum):
    """What can be done to a resource. Names are those that Kafka's ACLs have, which cover the other protocols'."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    DESCRIBE_CONFIGS = "describe configs"
    ALTER_CONFIGS = "alter configs"
    IDEMPOTENT_WRITE = "write idempotently to"
    CLUSTER_ACTION = "act as a node of"
    CREATE_TOKENS = "create tokens of"
    DESCRIBE_TOKENS = "describe tokens of"
    TWO_PHASE_COMMIT = "prepare commits of"
    ALL = "do everything to"
    """Of rules only: nobody asks for it."""


class ResourceKind(Enum):
    """What an operation is about; its name goes with it."""

    TOPIC = "topic"
    GROUP = "group"
    NODE = "node"
    TRANSACTIONAL_ID = "transactional id"
    TOKEN = "token"
    USER = "user"


class Resource(NamedTuple):
    """Something that operations are about. Of a node there is one, so its name is empty."""

    kind: ResourceKind
    name: str = ""


NODE = Resource(ResourceKind.NODE)


class Authorizer(Protocol):
    """Decides. Called on the event loop for every operation, so it answers at once, from memory."""

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Whether ``principal`` may do this."""
        ...

    def allows_any(self, principal: Principal, operation: Operation, kind: ResourceKind) -> bool:
        """Whether ``principal`` may do this to at least one resource of the kind, whether or not there is one."""
        ...

    def stand_in(self, principal: Principal) -> Principal | None:
        """A principal that may do the same, and stands for as many others as it can; None where all may do all."""
        ...


class Everybody:
    """Lets everybody do everything."""

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return True

    def allows_any(self, principal: Principal, operation: Operation, kind: ResourceKind) -> bool:
        return True

    def stand_in(self, principal: Principal) -> Principal | None:
        return None
