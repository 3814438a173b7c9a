"""Users of a node in tests, whose passwords are their names, how they log in, and rules for them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.users import User, change

_CHEAP = Cost(16, 1, 1)


def with_users(data: Path, names: Iterable[str]) -> None:
    """Have a data directory with users, made if it is not there."""
    data.mkdir(parents=True, exist_ok=True)
    users = {name: User(name, PasswordHash.from_password(name, _CHEAP), {}) for name in names}
    change(data / "users.json", lambda known: known.update(users))


def login(bootstrap: str, user: str) -> dict[str, Any]:
    """Of a client of Kafka."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": user,
    }


def basic(user: str) -> str:
    """The header of a request over HTTP."""
    return "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode()


def rule(
    name: str,
    principal: str,
    operation: AclOperation,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, "*", operation, permission)


def ruled(admin: AdminClient, made: AclBinding, seconds: float) -> None:
    """Return when a rule holds where it was made."""
    admin.create_acls([made])[made].result(seconds)
