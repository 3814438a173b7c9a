"""Quotas: how much users and clients may do, as Kafka has them (KIP-13, KIP-55, KIP-124, KIP-546, KIP-599,
KIP-612).

An entity is a user, a client id, both together, or an address; instead of a name it may have "whoever has none of his
own". For each key the most particular entity that has it decides, in Kafka's order of precedence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from ipaddress import ip_address
from typing import NamedTuple

DEFAULT = ""
"""Instead of a name: whoever has no quota of his own name. Nobody's name is empty."""

LONGEST_NAME = 255
"""Characters of an entity's names that count; clients whose ids begin with the same ones are one."""


class QuotaKey(Enum):
    """What is limited, by Kafka's names."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


_WHOLE = frozenset({QuotaKey.PRODUCE, QuotaKey.FETCH, QuotaKey.CONNECTION})


class QuotaError(ValueError):
    """What makes no quota; a sentence for whoever asked for it."""


class Entity(NamedTuple):
    """Whom a quota binds; None where that part says nothing, :data:`DEFAULT` for whoever has none of his own name."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


FIELDS = {"client-id": "client_id", "user": "user", "ip": "ip"}
"""Kafka's names of an entity's parts, in the order in which a broker tells them."""


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    """The entity with these parts, by Kafka's names of them; a name of None is the default. Raises QuotaError."""
    if not parts:
        raise QuotaError("a quota is of a user, a client id, both, or an address")
    if unknown := sorted(parts.keys() - FIELDS.keys()):
        raise QuotaError(f"there is no kind of entity {unknown[0][:100]!r}: it is user, client-id or ip")
    if "ip" in parts and len(parts) > 1:
        raise QuotaError("addresses cannot be combined with users and client ids")
    for name in parts.values():
        if name is not None and not 0 < len(name) <= LONGEST_NAME:
            raise QuotaError(f"a name has 1 to {LONGEST_NAME} characters")
    if (ip := parts.get("ip")) is not None:
        try:
            parts = {"ip": str(ip_address(ip))}
        except ValueError:
            raise QuotaError(f"{ip[:100]!r} is no address") from None
    return Entity(**{FIELDS[kind]: DEFAULT if name is None else name for kind, name in parts.items()})


def parts_of(entity: Entity) -> dict[str, str | None]:
    """The parts of an entity by Kafka's names, as :func:`entity_of` takes them."""
    return {kind: name or None for kind, field in FIELDS.items() if (name := getattr(entity, field)) is not None}


def check(entity: Entity, key: str, value: float) -> tuple[QuotaKey, float]:
    """A quota that can be. Raises QuotaError."""
    found = key_of(entity, key)
    if not (value > 0 and math.isfinite(value)) or (found in _WHOLE and value != int(value)):
        raise QuotaError(f"{key} is to be {'a whole' if found in _WHOLE else 'a'} number above 0, not {value}")
    return found, float(value)


def key_of(entity: Entity, key: str) -> QuotaKey:
    """The key that an entity may have. Raises QuotaError."""
    try:
        found = QuotaKey(key)
    except ValueError:
        found = None
    if found is None or (found is QuotaKey.CONNECTION) != (entity.ip is not None):
        raise QuotaError(f"{'addresses have' if entity.ip is not None else 'users and client ids have'} no {key[:100]}")
    return found


class QuotaRules:
    """The quotas that hold."""

    def __init__(self) -> None:
        self._values: dict[QuotaKey, dict[Entity, float]] = {key: {} for key in QuotaKey}
        self._entities: dict[Entity, dict[QuotaKey, float]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def __contains__(self, key: QuotaKey) -> bool:
        return bool(self._values[key])

    def entities(self) -> Iterator[tuple[Entity, Mapping[QuotaKey, float]]]:
        """All of them."""
        return iter(self._entities.items())

    def of(self, entity: Entity) -> Mapping[QuotaKey, float]:
        """What is set for exactly this entity."""
        return self._entities.get(entity, {})

    def put(self, entity: Entity, key: QuotaKey, value: float | None) -> None:
        """Have a quota hold, or none (None)."""
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
        """Whose quota binds a client: the first there is, of Kafka's eight places."""
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
        """Whose quota binds an address."""
        values = self._values[key]
        for entity in (Entity(ip=host), Entity(ip=DEFAULT)):
            if entity in values:
                return entity
        return None

    def value(self, key: QuotaKey, entity: Entity) -> float:
        """The value of a quota there is."""
        return self._values[key][entity]
