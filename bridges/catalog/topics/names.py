"""Topic names in each protocol. The canonical name is Kafka's; the others are derived unless given.

Pravega: ``scope/stream`` is ``scope.stream`` (a name without a dot lies in the scope ``default``). YDB: the path below
the database, with ``/`` for ``.``. A topic whose name breaks a protocol's rules is not offered in that protocol.
"""

from __future__ import annotations

import re
from typing import Protocol

from bridges.errors import LogError

MAX_NAME = 249
RESERVED = frozenset({"__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"})
"""Topics in which a Kafka broker keeps its own state: tools that read them would misread a user's topic."""
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PRAVEGA_PART = re.compile(r"[A-Za-z0-9.-]{1,250}")


class InvalidTopicName(LogError):
    """The name breaks the rules for topic names."""


class Names(Protocol):
    """Topic names of a protocol whose front brings rules of its own (docs/fronts.md)."""

    def derived(self, name: str) -> str | None:
        """Return the protocol's name for the topic with the canonical name ``name``; None if it has none and is not
        offered there. The answer must never change."""

    def canonical(self, own: str) -> str:
        """Return the canonical name of a topic that is made as ``own``. Either :meth:`derived` must lead back to
        ``own``, or ``own`` must be given to the catalog as well. Raises InvalidTopicName."""


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicName unless ``name`` is a legal topic name (docs/protocols/kafka.md, rule 16)."""
    if not name:
        raise InvalidTopicName("a topic needs a name")
    if name in (".", ".."):
        raise InvalidTopicName(f"a topic cannot be called {name!r}")
    if len(name) > MAX_NAME:
        raise InvalidTopicName(f"a topic name has at most {MAX_NAME} characters, this one has {len(name)}")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicName(f"{name!r} has other characters than ASCII letters, digits, '.', '_' and '-'")


def collision_key(name: str) -> str:
    """Return a key that two topics cannot share: metric names do not distinguish '.' from '_' (rule 16)."""
    return name.replace(".", "_")


def derived_names(name: str) -> dict[str, str]:
    """Return the names of a topic in protocols that have rules of their own, by protocol."""
    names: dict[str, str] = {}
    scope, dot, stream = name.partition(".")
    if not dot:
        scope, stream = "default", name
    if _PRAVEGA_PART.fullmatch(scope) and _PRAVEGA_PART.fullmatch(stream):
        names["pravega"] = f"{scope}/{stream}"
    path = name.split(".")
    if all(path):
        names["ydb"] = "/".join(path)
    return names


def canonical_name(protocol: str, name: str) -> str:
    """Return the canonical name of a topic that is created as ``name`` in ``protocol`` (``pravega`` or ``ydb``).

    For most names :func:`derived_names` leads back to ``name``. It does not for a name with dots where the protocol has
    slashes: then ``name`` has to be given to the catalog as well, which refuses it if the canonical name is taken.
    Raises InvalidTopicName.
    """
    if protocol == "pravega":
        scope, slash, stream = name.partition("/")
        if not (scope and slash and stream) or "/" in stream:
            raise InvalidTopicName(f"{name!r} is not scope/stream")
        canonical = stream if scope == "default" and "." not in stream else f"{scope}.{stream}"
    elif protocol == "ydb":
        if not all(name.split("/")):
            raise InvalidTopicName(f"{name!r} is no path: a part of it is empty")
        canonical = name.replace("/", ".")
    else:
        raise ValueError(f"protocol {protocol!r} has no names of its own")
    check_topic_name(canonical)
    return canonical
