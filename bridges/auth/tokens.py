"""Signed tokens: JSON Web Tokens (RFC 7519) in compact form, HS256, and the keys that sign them.

A client gets a token when it logs in, and shows it afterwards. The token says whose it is, what it is for and when it
ends; only a holder of the key can make one. Keys are replaced now and then: an old key is accepted until the last token
that it signed has ended.
"""

from __future__ import annotations

import binascii
import hmac
import json
import os
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from bridges.auth import Principal
from bridges.auth.private_file import changing, write_private

LONGEST_TOKEN = 8192
"""Characters. Longer tokens are refused unread."""

_VERSION = 1
_KEY_BYTES = 32
_RESERVED = frozenset({"sub", "kind", "aud", "iat", "exp", "usr"})


class TokenError(Exception):
    """A token is not valid; the message is a sentence for its owner."""


class TokenExpired(TokenError):
    """A token was valid and has expired: the client should get a new one."""


class KeysError(Exception):
    """The file of keys cannot be used; the message is a sentence for the operator."""


class Token(Struct, frozen=True):
    """The content of a valid token. ``expires`` is in seconds since 1970; ``claims`` are those that its issuer has
    added.
    """

    principal: Principal
    expires: int
    claims: Mapping[str, Any]
    credential: str | None
    """Fingerprint of the password that the principal had when the token was issued; None if it has no password."""


class Key(Struct, frozen=True):
    """A signing key. ``until``: the time (s) when all tokens that it signed have ended; None while it has no
    successor.
    """

    id: str
    secret: bytes
    made: int
    until: int | None


class TokenKeys:
    """Keys as read from a file; the last one signs. Made by :func:`load_keys`.

    ``salts`` is a secret stored beside them that never changes: SCRAM salts of unknown names are derived from it.
    """

    __slots__ = ("_by_id", "_signing", "salts")

    def __init__(self, keys: list[Key], salts: bytes) -> None:
        self._by_id = {key.id: key for key in keys}
        self._signing = keys[-1]
        self.salts = salts

    def sign(
        self,
        principal: Principal,
        audience: str,
        now: int,
        seconds: int,
        claims: Mapping[str, Any],
        credential: str | None,
    ) -> str:
        """Return a token that ends ``seconds`` from ``now``. Raises ValueError for a reserved name in ``claims``."""
        if taken := sorted(_RESERVED & claims.keys()):
            raise ValueError(f"the claim {taken[0]!r} is the token's own")
        content = {**claims, "sub": principal.name, "aud": audience, "iat": now, "exp": now + seconds}
        if principal.kind != "User":
            content["kind"] = principal.kind
        if credential is not None:
            content["usr"] = credential
        key = self._signing
        text = f"{_encode({'alg': 'HS256', 'typ': 'JWT', 'kid': key.id})}.{_encode(content)}"
        return f"{text}.{_base64(hmac.digest(key.secret, text.encode(), 'sha256'))}"

    def has_signed(self, token: str) -> bool:
        """Return whether a token's header names one of these keys. A malformed token counts as ours."""
        header = token[:LONGEST_TOKEN].partition(".")[0]
        try:
            return str(_decode(header).get("kid")) in self._by_id
        except TokenError:
            return True

    def read(self, token: str, audience: str, now: int) -> Token:
        """Return the content of a token for ``audience`` that is valid now. Raises TokenError, TokenExpired."""
        text, _, signature = token.rpartition(".")
        header, dot, content = text.partition(".")
        if len(token) > LONGEST_TOKEN or not dot or not token.isascii():
            raise TokenError("this is no token of ours")
        head = _decode(header)
        key = self._by_id.get(str(head.get("kid")))
        if key is None or head.get("alg") != "HS256" or (key.until is not None and key.until <= now):
            raise TokenError("the token was not made here, or very long ago")
        if not hmac.compare_digest(hmac.digest(key.secret, text.encode(), "sha256"), _bytes(signature)):
            raise TokenError("the token's signature is wrong")
        # From here on the token is ours, so all claims are present.
        claims = _decode(content)
        if claims.pop("aud") != audience:
            raise TokenError("the token was made for something else")
        expires = int(claims.pop("exp"))
        if expires <= now:
            raise TokenExpired("the token has expired")
        del claims["iat"]
        principal = Principal(claims.pop("kind", "User"), claims.pop("sub"))
        return Token(principal, expires, claims, credential=claims.pop("usr", None))


def load_keys(path: Path, now: int, key_seconds: int, token_seconds: int, *, make: bool = True) -> TokenKeys:
    """Read the keys of a file; with ``make``, create the file if it is missing. Raises KeysError.

    A last key older than ``key_seconds`` gets a successor. The old key stays accepted for ``token_seconds``, the
    longest life of a token.
    """
    try:
        keys, salts = _read(path)
        if not keys and not make:
            raise KeysError(f"{path} is gone")
        if _is_due(keys, now, key_seconds):
            with changing(path):
                keys, salts = _read(path)  # another process may have replaced the key meanwhile
                if _is_due(keys, now, key_seconds):
                    keys = _with_successor(keys, now, token_seconds)
                    salts = salts or _salts(keys)
                    write_private(path, _written(keys, salts))
        return TokenKeys(keys, salts)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror or error}") from None


def _is_due(keys: list[Key], now: int, key_seconds: int) -> bool:
    return not keys or keys[-1].made + key_seconds <= now


def _with_successor(keys: list[Key], now: int, token_seconds: int) -> list[Key]:
    kept = [
        key if key.until is not None else Key(key.id, key.secret, key.made, now + token_seconds)
        for key in keys
        if key.until is None or key.until > now
    ]
    return [*kept, Key(os.urandom(8).hex(), os.urandom(_KEY_BYTES), now, None)]


def _salts(keys: list[Key]) -> bytes:
    return hmac.digest(keys[0].secret, b"salts of names that nobody has", "sha256")


def _read(path: Path) -> tuple[list[Key], bytes]:
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != _VERSION:
            raise KeysError(f"{path} was written by another release: its version is {document['version']!r}")
        keys = [
            Key(str(one["id"]), b64decode(one["key"], validate=True), int(one["made"]), _until(one["until"]))
            for one in document["keys"]
        ]
        # A file of an earlier release has no salts and gets them with the next key. Until then they derive from its
        # first key.
        salts = b64decode(document.get("salts", ""), validate=True) or (_salts(keys) if keys else b"")
    except FileNotFoundError:
        return [], b""
    except (ValueError, TypeError, KeyError) as error:
        raise KeysError(f"{path} is no file of keys: {error!r}") from None
    if any(len(key.secret) < _KEY_BYTES for key in keys):
        raise KeysError(f"{path} has a key of less than {_KEY_BYTES} bytes")
    return keys, salts


def _until(value: Any) -> int | None:
    return None if value is None else int(value)


def _written(keys: list[Key], salts: bytes) -> bytes:
    documents = [
        {"id": key.id, "key": b64encode(key.secret).decode(), "made": key.made, "until": key.until} for key in keys
    ]
    document = {"version": _VERSION, "keys": documents, "salts": b64encode(salts).decode()}
    return json.dumps(document, indent=2).encode() + b"\n"


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))
    except (binascii.Error, ValueError):
        raise TokenError("this is no token of ours") from None


def _encode(content: Mapping[str, Any]) -> str:
    return _base64(json.dumps(content, separators=(",", ":")).encode())


def _decode(text: str) -> dict[str, Any]:
    try:
        content = json.loads(_bytes(text))
    except (ValueError, RecursionError):
        raise TokenError("this is no token of ours") from None
    if not isinstance(content, dict):
        raise TokenError("this is no token of ours")
    return content
