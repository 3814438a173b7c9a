"""SCRAM (RFC 5802, RFC 7677): login without sending the password, and the keys that the server keeps of a user."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from msgspec import Struct

MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism -> hash function. Without channel binding."""

ITERATIONS = 16384
"""Iterations of new keys: the most that Kafka's own tools allow. A thief of the file tries passwords 100 times faster
than with scrypt; therefore a user gets SCRAM keys only on request.
"""

_SALT_BYTES = 16
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_KAFKA_SALTS = 2**130
"""Kafka's tools write a number below that with these digits."""
_MOST_SHAPES = 100


class Shape(NamedTuple):
    """The visible properties of a user's SCRAM keys.

    ``text``: the salt consists of digits and letters, as Kafka's tools make it.
    """

    iterations: int = ITERATIONS
    salt_bytes: int = _SALT_BYTES
    text: bool = False

    def salt(self, secret: bytes, name: bytes) -> bytes:
        """Return a salt that looks like a real user's; always the same for a name."""
        digest = hmac.digest(secret, name, "sha256")
        stream = digest + hashlib.shake_256(digest).digest(self.salt_bytes)
        if not self.text:
            return stream[: self.salt_bytes]
        least, end = 36 ** (self.salt_bytes - 1), 36**self.salt_bytes
        if least < _KAFKA_SALTS < end:
            end = _KAFKA_SALTS
        number = least + int.from_bytes(stream, "big") % (end - least)
        salt = bytearray()
        while number:
            number, digit = divmod(number, 36)
            salt.append(_DIGITS[digit])
        return bytes(salt[::-1])


def shapes_of(users: Iterable[Mapping[str, ScramKeys]]) -> dict[str, dict[Shape, int]]:
    """Return the most frequent shapes of users' keys, by mechanism, with the number of users that have each."""
    found: dict[str, Counter[Shape]] = {mechanism: Counter() for mechanism in MECHANISMS}
    for scram in users:
        for mechanism, keys in scram.items():
            text = not keys.salt.strip(_DIGITS)
            found[mechanism][Shape(keys.iterations, len(keys.salt), text)] += 1
    return {mechanism: dict(counted.most_common(_MOST_SHAPES)) for mechanism, counted in found.items()}


class ScramKeys(Struct, frozen=True):
    """The keys that a server keeps of a password for one mechanism."""

    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def from_password(cls, password: str, mechanism: str, iterations: int = ITERATIONS) -> Self:
        """Derive keys from a new password. Too slow for the event loop."""
        salt = os.urandom(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password.encode(), salt, iterations)
        return cls.from_salted(mechanism, salt, iterations, salted)

    @classmethod
    def from_salted(cls, mechanism: str, salt: bytes, iterations: int, salted: bytes) -> Self:
        """Derive keys from a password that the client has salted, as in KIP-554."""
        name = MECHANISMS[mechanism]
        client_key = hmac.digest(salted, b"Client Key", name)
        stored_key = hashlib.new(name, client_key).digest()
        return cls(mechanism, salt, iterations, stored_key, hmac.digest(salted, b"Server Key", name))

    def to_json(self) -> dict[str, Any]:
        """Return the keys as stored in the file of users."""
        return {
            "iterations": self.iterations,
            "salt": b64encode(self.salt).decode(),
            "stored_key": b64encode(self.stored_key).decode(),
            "server_key": b64encode(self.server_key).decode(),
        }

    @classmethod
    def from_json(cls, mechanism: str, value: Any) -> Self:
        """Read keys of the file of users. Raises ValueError, TypeError or KeyError."""
        size = hashlib.new(MECHANISMS[mechanism]).digest_size
        salt, stored_key, server_key = (
            b64decode(value[key], validate=True) for key in ("salt", "stored_key", "server_key")
        )
        if len(stored_key) != size or len(server_key) != size:
            raise ValueError(f"keys of {mechanism} have {size} bytes")
        return cls(mechanism, salt, int(value["iterations"]), stored_key, server_key)


class ScramError(Exception):
    """The exchange failed: a wrong password, an unknown user, or malformed SCRAM. The client must not learn which."""


class ScramExchange:
    """The server's side of one login: :meth:`first`, then :meth:`final`. Without I/O, and quick.

    ``find`` returns the keys of a name, None for an unknown name; ``find_token`` does so for the id of a delegation
    token. An unknown name is answered all the same, so that clients cannot find out which names exist: each name and
    mechanism gets its own salt of one of the users' ``shapes``, the same each time while the users stay the same. So
    ``secret`` must survive restarts, and be equal on all nodes with the same users.
    """

    __slots__ = (
        "_find",
        "_find_token",
        "_first",
        "_nonce",
        "_secret",
        "_shapes",
        "by_token",
        "keys",
        "mechanism",
        "name",
    )

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str], ScramKeys | None],
        secret: bytes,
        shapes: Mapping[Shape, int] = MappingProxyType({}),
        find_token: Callable[[str], ScramKeys | None] | None = None,
    ) -> None:
        self.name = ""
        self.by_token = False
        """Whether the name is the id of a delegation token (KIP-48)."""
        self.mechanism = mechanism
        self.keys: ScramKeys | None = None
        """The user's keys at the time of :meth:`first`; None for an unknown name."""
        self._find = find
        self._find_token = find_token
        self._secret = secret
        self._shapes = shapes
        self._first = b""
        self._nonce = b""

    def first(self, message: bytes) -> bytes:
        """Answer the client's first message. Raises ScramError."""
        header, _, bare = message.partition(b",,")  # an authorization identity would stand between the commas
        fields = bare.split(b",")
        if header != b"n" or len(fields) < 2 or fields[0][:2] != b"n=" or fields[1][:2] != b"r=" or not fields[1][2:]:
            raise ScramError("this is no first message of SCRAM without channel binding")
        try:
            self.name = fields[0][2:].decode().replace("=2C", ",").replace("=3D", "=")
        except UnicodeDecodeError:
            raise ScramError("the name is not UTF-8") from None
        self.by_token = self._find_token is not None and b"tokenauth=true" in fields[2:]
        find = self._find_token if self.by_token else self._find
        self.keys = None if find is None else find(self.name)
        if self.keys is None:
            name = f"{self.mechanism}\0{self.name}".encode()
            shape = self._choose(name)
            salt, iterations = shape.salt(self._secret, name), shape.iterations
        else:
            salt, iterations = self.keys.salt, self.keys.iterations
        self._nonce = fields[1][2:] + b64encode(os.urandom(18))
        answer = b"r=%b,s=%b,i=%d" % (self._nonce, b64encode(salt), iterations)
        self._first = bare + b"," + answer
        return answer

    def _choose(self, name: bytes) -> Shape:
        """Draw a shape with the frequency that it has among users, by weighted rendezvous hashing.

        When users come or go, few names get another shape.
        """

        def rank(shape: Shape) -> float:
            drawn = int.from_bytes(hmac.digest(self._secret, name + repr(shape).encode(), "sha256")[:8], "big")
            return math.log((drawn + 1) / 2**64) / self._shapes[shape]

        return max(self._shapes, key=rank, default=Shape())

    def final(self, message: bytes) -> bytes:
        """Answer the client's last message, which proves that it knows the password. Raises ScramError."""
        without_proof, _, proof = message.rpartition(b",p=")
        fields = without_proof.split(b",")
        if len(fields) < 2 or fields[0] != b"c=biws" or fields[1] != b"r=" + self._nonce:
            raise ScramError("this is no last message of this exchange")
        keys = self.keys
        if keys is None:
            raise ScramError(f"unknown user, or one without {self.mechanism} keys")
        name = MECHANISMS[self.mechanism]
        signed = self._first + b"," + without_proof
        signature = hmac.digest(keys.stored_key, signed, name)
        try:
            given = b64decode(proof, validate=True)
        except ValueError:
            given = b""
        client_key = bytes(a ^ b for a, b in zip(given, signature, strict=False))
        if len(given) != len(signature) or not hmac.compare_digest(
            hashlib.new(name, client_key).digest(), keys.stored_key
        ):
            raise ScramError("the password is wrong")
        return b"v=" + b64encode(hmac.digest(keys.server_key, signed, name))
