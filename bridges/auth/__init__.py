"""Principals, operations, resources, and the authorizer that decides who may do what.

A front asks the node's :class:`Authorizer` before it touches a topic, a group or the node. Every front uses the words
of this module, whatever its protocol calls them. With ``auth.rules``, rules decide (:mod:`bridges.auth.rules`);
otherwise everybody may do everything.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    import asyncio


class Principal(Struct, frozen=True):
    """The client that speaks on a connection.

    ``kind`` says what ``name`` is the name of, for instance ``User``. ``host`` is the client's address as the node sees
    it, empty if unknown.
    """

    kind: str
    name: str
    host: str = ""

    def at(self, host: str) -> Principal:
        """Return the same principal, speaking from ``host``."""
        return Principal(self.kind, self.name, host)

    @property
    def is_anonymous(self) -> bool:
        """Return whether the client has not logged in."""
        return self.name == ANONYMOUS.name and self.kind == ANONYMOUS.kind

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""A client that has not logged in."""

_LONGEST_NAME = 256


def principal_named(name: object) -> Principal | None:
    """Return the user whom somebody else has authenticated under a name; None if no user may have it."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        return None
    return None if name == ANONYMOUS.name else Principal(ANONYMOUS.kind, name)


def read_certificate(transport: asyncio.BaseTransport) -> Principal:
    """Return the principal that a client's certificate names: the last common name of its subject.

    Return ANONYMOUS without a certificate, or if the subject has no common name.
    """
    tls = transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert() if tls is not None else None  # set only if the listener's authority has signed it
    names = [value for part in (certificate or {}).get("subject", ()) for kind, value in part if kind == "commonName"]
    return Principal(ANONYMOUS.kind, names[-1]) if names else ANONYMOUS


class Operation(Enum):
    """An action on a resource, named as in Kafka's ACLs, which cover those of the other protocols."""

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
    """Occurs in rules only; no front asks for it."""


class ResourceKind(Enum):
    """The kind of thing that an operation acts on."""

    TOPIC = "topic"
    GROUP = "group"
    NODE = "node"
    TRANSACTIONAL_ID = "transactional id"
    TOKEN = "token"
    USER = "user"


class Resource(NamedTuple):
    """A thing that operations act on. The node is the only resource of its kind, so its name is empty."""

    kind: ResourceKind
    name: str = ""


NODE = Resource(ResourceKind.NODE)


class Authorizer(Protocol):
    """Decides whether a principal may perform an operation.

    Called on the event loop for every operation, so it must answer from memory, without blocking.
    """

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Return whether ``principal`` may perform ``operation`` on ``resource``."""
        ...

    def allows_any(self, principal: Principal, operation: Operation, kind: ResourceKind) -> bool:
        """Return whether ``principal`` may perform ``operation`` on at least one possible resource of the kind.

        The resource need not exist.
        """
        ...

    def stand_in(self, principal: Principal) -> Principal | None:
        """Return a principal with the same rights that represents as many principals as possible.

        Return None where everybody may do everything.
        """
        ...


class Everybody:
    """The authorizer that allows everything."""

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return True

    def allows_any(self, principal: Principal, operation: Operation, kind: ResourceKind) -> bool:
        return True

    def stand_in(self, principal: Principal) -> Principal | None:
        return None
