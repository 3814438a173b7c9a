"""A server of logins, as tests of tokens need one: its keys, the tokens that it signs, and where it publishes keys."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER = "https://logins.test"
AUDIENCE = "anabranch"


class Logins:
    """Signs tokens with the key that it made last; the older ones stay in its set until they are taken back."""

    def __init__(self, algorithm: str = "ES256") -> None:
        self.keys: dict[str, Any] = {}
        self.algorithm = algorithm
        self.turn(algorithm)

    def turn(self, algorithm: str = "ES256") -> str:
        """Have a new key; gives its name."""
        self.algorithm = algorithm
        key: Any
        if algorithm.startswith("ES"):
            curve = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}[algorithm]
            key = ec.generate_private_key(curve())
        elif algorithm == "EdDSA":
            key = ed25519.Ed25519PrivateKey.generate()
        else:
            key = rsa.generate_private_key(65537, 2048)
        self.latest = f"key-{len(self.keys)}"
        self.keys[self.latest] = algorithm, key
        return self.latest

    def published(self) -> dict[str, Any]:
        """The set of its public keys."""
        return {"keys": [self._public(name, *key) for name, key in self.keys.items()]}

    def text(self) -> str:
        """The same, as it is written."""
        return json.dumps(self.published())

    def _public(self, name: str, algorithm: str, key: Any) -> dict[str, Any]:
        kind = jwt.get_algorithm_by_name(algorithm)
        return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": name, "use": "sig", "alg": algorithm}

    def token(self, name: str, *, seconds: float = 600, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token of somebody; a claim of None is left out."""
        now = time.time()
        content = {"sub": name, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + seconds, **claims}
        algorithm, key = self.keys[self.latest]
        content = {claim: value for claim, value in content.items() if value is not None}
        return jwt.encode(content, key, algorithm, headers={"kid": self.latest, **(headers or {})})
