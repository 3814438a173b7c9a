"""What is kept of a password: a hash that is slow to make (scrypt, RFC 7914), with the cost it was made at."""

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
"""Bytes of UTF-8; a longer one is nobody's."""


class Cost(Struct, frozen=True):
    """scrypt's parameters: ``128 * n * r`` bytes of memory, and time that grows with ``n * r * p``."""

    n: int
    r: int
    p: int

    def __post_init__(self) -> None:
        """Raises ValueError for what scrypt does not take, or what nobody would wait for."""
        bad = self.n < 2 or self.n & (self.n - 1) or self.r < 1 or self.p < 1
        if bad or 128 * self.n * self.r > _MEMORY_BOUND or self.n * self.r * self.p > _WORK_BOUND:
            raise ValueError(f"scrypt cannot be asked for n={self.n}, r={self.r}, p={self.p}")


COST = Cost(n=2**14, r=8, p=5)
"""Of new hashes: 16 MiB and about 0.3 s of a processor, one of the settings that OWASP names for scrypt."""


class PasswordHash(Struct, frozen=True):
    """A password that can be recognised, not read."""

    cost: Cost
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: str, cost: Cost = COST) -> Self:
        """Hash a new password. Takes as long as the cost says, so not for the event loop."""
        salt = os.urandom(_SALT_BYTES)
        return cls(cost, salt, _scrypt(password.encode(), salt, cost))

    @classmethod
    def of_nobody(cls, cost: Cost = COST) -> Self:
        """One that no password has, and that takes as long to compare as others of its cost."""
        return cls(cost, os.urandom(_SALT_BYTES), os.urandom(_HASH_BYTES))

    def matches(self, password: str) -> bool:
        """Whether it is the password. Takes as long as the cost says, so not for the event loop."""
        return hmac.compare_digest(_scrypt(password.encode(), self.salt, self.cost), self.digest)

    @property
    def fingerprint(self) -> str:
        """Differs between passwords, and tells nothing about them."""
        return hashlib.sha256(self.salt + self.digest).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """For the file."""
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
        """From the file. Raises ValueError, TypeError or KeyError."""
        cost = Cost(int(value["n"]), int(value["r"]), int(value["p"]))
        digest = b64decode(value["hash"], validate=True)
        if len(digest) != _HASH_BYTES:
            raise ValueError(f"a hash has {_HASH_BYTES} bytes, not {len(digest)}")
        return cls(cost, b64decode(value["salt"], validate=True), digest)


def _scrypt(password: bytes, salt: bytes, cost: Cost) -> bytes:
    memory = 128 * cost.r * (cost.n + cost.p + 2) + 1024 * 1024
    return hashlib.scrypt(password, salt=salt, n=cost.n, r=cost.r, p=cost.p, maxmem=memory, dklen=_HASH_BYTES)
