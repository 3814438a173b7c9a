"""Tokens of somebody else, by which users of a single sign-on say who they are (RFC 7519, RFC 9068; KIP-255, KIP-768).

Such a token is signed by a server of logins, whose public keys are known here (:mod:`bridges.auth.jwks`). Taken are
signatures with a private key only, of tokens that were made for this node and have not ended. Kafka's clients show
them with OAUTHBEARER; whatever protocol takes a token takes these too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from anabranch_kit.run.barrier import Barrier
from bridges.auth import ANONYMOUS, Principal
from bridges.auth.jwks import KeySet
from bridges.auth.tokens import KeysError, Token, TokenError, TokenExpired

LONGEST_TOKEN = 32 * 1024
"""Characters; nothing longer is looked at. Groups of a user make them long."""

_LONGEST_NAME = 256
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class OAuthOptions(Struct, frozen=True):
    """``keys``: file or URL of a key set (JWKS). ``issuer`` and ``audience``: what tokens must say; empty: anything.
    ``claim``: which claim has the user's name. Times in seconds."""

    keys: str
    issuer: str = ""
    audience: str = ""
    claim: str = "sub"
    skew_seconds: int = 30
    refresh_seconds: int = 3600


class OAuth:
    """Checks tokens. Belongs to the event loop. ``clock`` tells seconds since 1970."""

    def __init__(self, options: OAuthOptions, clock: Callable[[], float], barrier: Barrier) -> None:
        self._options = options
        self._clock = clock
        self._keys = KeySet(options.keys, options.refresh_seconds, time.monotonic, barrier)

    async def load(self) -> None:
        """Read the keys. Raises KeysError where tokens of anybody would be taken, or nothing can be checked."""
        if not self._options.issuer and not self._options.audience:
            raise KeysError(
                "with auth.oauth_keys say in auth.oauth_audience for whom tokens are made, or by whom in "
                "auth.oauth_issuer: keys of a server of logins sign tokens for all that it serves"
            )
        try:
            import jwt  # noqa: F401 - what is missing is told at the start
        except ImportError:
            raise KeysError("auth.oauth_keys needs PyJWT: pip install 'anabranch[oauth]'") from None
        await self._keys.load()

    async def refresh(self) -> None:
        """Read the keys again if that is due; does not wait for others' servers."""
        await self._keys.refresh()

    def close(self) -> None:
        """Ask for keys no more."""
        self._keys.close()

    def check(self, token: str) -> Token:
        """What a token says. Raises TokenExpired, or TokenError for any other reason why it is not valid."""
        import jwt

        options = self._options
        if len(token) > LONGEST_TOKEN or not token.isascii():
            raise TokenError("this is no token")
        try:
            named = jwt.get_unverified_header(token).get("kid")
            key = self._keys.find(named)
            if key is None:
                raise TokenError("the token was signed with a key that is not known here")
            # The clock is this node's own, so that both kinds of tokens end by the same one.
            claims = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=options.audience or None,
                issuer=options.issuer or None,
                options={
                    "require": ["exp", *(["iss"] if options.issuer else [])],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,
                    "verify_jti": False,
                    "verify_aud": bool(options.audience),
                },
            )
            expires, begins = int(claims["exp"]), int(claims.get("nbf", 0))
        except TokenError:
            raise
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise TokenError(f"the token is not valid: {error}") from None
        now = self._clock()
        if expires + options.skew_seconds <= now:
            raise TokenExpired("the token has expired")
        if begins - options.skew_seconds > now:
            raise TokenError("the token is not valid yet")
        return Token(Principal(ANONYMOUS.kind, self._name(claims)), expires, {}, credential=None)

    def _name(self, claims: dict[str, Any]) -> str:
        name = claims.get(self._options.claim)
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise TokenError(f"the token has no name of a user as {self._options.claim}")
        if name == ANONYMOUS.name:
            raise TokenError(f"{name} is nobody's name")
        return name
