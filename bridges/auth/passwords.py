"""Password hashes: scrypt (RFC 7914), slow to compute, stored with their cost."""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from typing import Any, Self

from msgspec import Struct

_SALT_BYTES = 16
_HASH_BYTES = 32
_MEMORY_BOUND = 256 * 1024 * 1024
_WORK_BOUND = 1 << 26

LONGEST_PASSWORD = 1024
"""Bytes of UTF-8. No user has a longer password."""


class Cost(Struct, frozen=True):
    """Parameters of scrypt: ``128 * n * r`` bytes of memory, and time that grows with ``n * r * p``."""

    n: int
    r: int
    p: int

    def __post_init__(self) -> None:
        """Raise ValueError for parameters that scrypt refuses, or that take too much memory or time."""
        bad = self.n < 2 or self.n & (self.n - 1) or self.r < 1 or self.p < 1
        if bad or 128 * self.n * self.r > _MEMORY_BOUND or self.n * self.r * self.p > _WORK_BOUND:
            raise ValueError(f"scrypt cannot be asked for n={self.n}, r={self.r}, p={self.p}")


COST = Cost(n=2**14, r=8, p=5)
"""Cost of new hashes: 16 MiB and about 0.3 s of a processor, one of the settings that OWASP names for scrypt."""


class PasswordHash(Struct, frozen=True):
    """A hash that recognises a password but does not reveal it."""

    cost: Cost
    salt: bytes
    digest: bytes

    @classmethod
    def from_password(cls, password: str, cost: Cost = COST) -> Self:
        """Hash a new password. Too slow for the event loop: takes as long as the cost says."""
        salt = os.urandom(_SALT_BYTES)
        return cls(cost, salt, _scrypt(password.encode(), salt, cost))

    @classmethod
    def of_nobody(cls, cost: Cost = COST) -> Self:
        """Return a hash that no password matches. Comparing it takes as long as any other of its cost."""
        return cls(cost, os.urandom(_SALT_BYTES), os.urandom(_HASH_BYTES))

    def matches(self, password: str) -> bool:
        """Return whether ``password`` has this hash. Too slow for the event loop: takes as long as the cost says."""
        return hmac.compare_digest(_scrypt(password.encode(), self.salt, self.cost), self.digest)

    @property
    def fingerprint(self) -> str:
        """Return a value that differs between passwords and reveals nothing about them."""
        return hashlib.sha256(self.salt + self.digest).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the hash as stored in the file of users."""
        cost = self.cost
        return {
            "n": cost.n,
            "r": cost.r,
            "p": cost.p,
            "salt": b64encode(self.salt).decode(),
            "hash": b64encode(self.digest).decode(),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read a hash of the file of users. Raises ValueError, TypeError or KeyError."""
        cost = Cost(int(value["n"]), int(value["r"]), int(value["p"]))
        digest = b64decode(value["hash"], validate=True)
        if len(digest) != _HASH_BYTES:
            raise ValueError(f"a hash has {_HASH_BYTES} bytes, not {len(digest)}")
        return cls(cost, b64decode(value["salt"], validate=True), digest)


def _scrypt(password: bytes, salt: bytes, cost: Cost) -> bytes:
    memory = 128 * cost.r * (cost.n + cost.p + 2) + 1024 * 1024
    return hashlib.scrypt(password, salt=salt, n=cost.n, r=cost.r, p=cost.p, maxmem=memory, dklen=_HASH_BYTES)
