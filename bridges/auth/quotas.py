"""Quotas: limits on users, client ids and addresses, as in Kafka (KIP-13, KIP-55, KIP-124, KIP-546, KIP-599, KIP-612).

An entity is a user, a client id, both together, or an address. Instead of a name it may have the default, which binds
all that have no quota under their own name. For each key the most specific entity decides, in Kafka's order of
precedence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from ipaddress import ip_address
from typing import NamedTuple

DEFAULT = ""
"""Stands for a name in an entity: binds everybody without a quota under their own name. No real name is empty."""

NO_MIX = "addresses cannot be combined with users and client ids"
LONGEST_NAME = 255
"""Characters of a name that count; clients whose ids agree in these share a quota."""


class QuotaKey(Enum):
    """The limited quantity, by Kafka's name."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


_WHOLE = frozenset({QuotaKey.PRODUCE, QuotaKey.FETCH, QuotaKey.CONNECTION})


class QuotaError(ValueError):
    """The quota is invalid; the message is a sentence for the client."""


class Entity(NamedTuple):
    """The clients that a quota binds.

    A field is None if the quota does not depend on it, :data:`DEFAULT` for all without a quota under their own name.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


FIELDS = {"client-id": "client_id", "user": "user", "ip": "ip"}
"""Kafka's names of an entity's parts, in the order in which a broker lists them."""


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    """Return the entity with these parts, by Kafka's names of them. A value of None is the default. Raises
    QuotaError.
    """
    if not parts:
        raise QuotaError("a quota is of a user, a client id, both, or an address")
    if unknown := sorted(parts.keys() - FIELDS.keys()):
        raise QuotaError(f"there is no kind of entity {unknown[0][:100]!r}: it is user, client-id or ip")
    if "ip" in parts and len(parts) > 1:
        raise QuotaError(f"Invalid quota entity combination: {NO_MIX}")
    for name in parts.values():
        if name is not None and not 0 < len(name) <= LONGEST_NAME:
            raise QuotaError(f"a name has 1 to {LONGEST_NAME} characters")
    if (ip := parts.get("ip")) is not None:
        try:
            parts = {"ip": str(ip_address(ip))}
        except ValueError:
            raise QuotaError(f"{ip[:100]!r} is not a valid IP address") from None
    return Entity(**{FIELDS[kind]: DEFAULT if name is None else name for kind, name in parts.items()})


def parts_of(entity: Entity) -> dict[str, str | None]:
    """Return the parts of an entity by Kafka's names, as :func:`entity_of` takes them."""
    return {kind: name or None for kind, field in FIELDS.items() if (name := getattr(entity, field)) is not None}


def check(entity: Entity, key: str, value: float) -> tuple[QuotaKey, float]:
    """Return the key and value of a quota if it is valid. Raises QuotaError."""
    found = key_of(entity, key)
    if not (value > 0 and math.isfinite(value)) or (found in _WHOLE and value != int(value)):
        raise QuotaError(f"{key} is to be {'a whole' if found in _WHOLE else 'a'} number above 0, not {value}")
    return found, float(value)


def key_of(entity: Entity, key: str) -> QuotaKey:
    """Return the key with this name if the entity may have it. Raises QuotaError."""
    try:
        found = QuotaKey(key)
    except ValueError:
        found = None
    if found is None or (found is QuotaKey.CONNECTION) != (entity.ip is not None):
        raise QuotaError(f"{'addresses have' if entity.ip is not None else 'users and client ids have'} no {key[:100]}")
    return found


class QuotaRules:
    """The quotas in force."""

    def __init__(self) -> None:
        self._values: dict[QuotaKey, dict[Entity, float]] = {key: {} for key in QuotaKey}
        self._entities: dict[Entity, dict[QuotaKey, float]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def __contains__(self, key: QuotaKey) -> bool:
        return bool(self._values[key])

    def entities(self) -> Iterator[tuple[Entity, Mapping[QuotaKey, float]]]:
        """Yield every entity with its quotas."""
        return iter(self._entities.items())

    def find_limits(self, entity: Entity) -> Mapping[QuotaKey, float]:
        """Return the quotas set for exactly this entity."""
        return self._entities.get(entity, {})

    def put(self, entity: Entity, key: QuotaKey, value: float | None) -> None:
        """Set a quota; None removes it."""
        if value is not None:
            self._values[key][entity] = value
            self._entities.setdefault(entity, {})[key] = value
            return
        self._values[key].pop(entity, None)
        found = self._entities.get(entity)
        if found is not None:
            found.pop(key, None)
            if not found:
                del self._entities[entity]

    def decides(self, key: QuotaKey, user: str, client_id: str) -> Entity | None:
        """Return the entity whose quota binds a client: the first of Kafka's eight in order of precedence. None: no
        quota.
        """
        values = self._values[key]
        for entity in (
            Entity(user, client_id),
            Entity(user, DEFAULT),
            Entity(user),
            Entity(DEFAULT, client_id),
            Entity(DEFAULT, DEFAULT),
            Entity(DEFAULT),
            Entity(None, client_id),
            Entity(None, DEFAULT),
        ):
            if entity in values:
                return entity
        return None

    def decides_at(self, key: QuotaKey, host: str) -> Entity | None:
        """Return the entity whose quota binds an address, None without a quota."""
        values = self._values[key]
        for entity in (Entity(ip=host), Entity(ip=DEFAULT)):
            if entity in values:
                return entity
        return None

    def value(self, key: QuotaKey, entity: Entity) -> float:
        return self._values[key][entity]
