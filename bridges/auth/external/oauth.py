"""Tokens of an external issuer, with which users of a single sign-on log in (RFC 7519, RFC 9068; KIP-255, KIP-768).

An authorization server signs such a token; the node knows its public keys (:mod:`.jwks`). Accepted are only
asymmetric signatures, of tokens made for this node that have not expired. Kafka clients present them with OAUTHBEARER;
every protocol that accepts the node's tokens accepts these too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from anabranch_kit.run.barrier import Barrier
from bridges.auth import principal_named
from bridges.auth.external.jwks import KeySet
from bridges.auth.tokens import KeysError, Token, TokenError, TokenExpired

LONGEST_TOKEN = 32 * 1024
"""Characters. Longer tokens are refused unread. A user's groups make tokens long."""

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class OAuthOptions(Struct, frozen=True):
    """Settings of an external issuer. Times are in seconds.

    ``keys``: file or URL of a key set (JWKS). ``issuer``, ``audience``: required values of these claims; empty: any
    value. ``claim``: the claim that holds the user's name.
    """

    keys: str
    issuer: str = ""
    audience: str = ""
    claim: str = "sub"
    skew_seconds: int = 30
    refresh_seconds: int = 3600


class OAuth:
    """The checker of an external issuer's tokens. Belongs to the event loop. ``clock`` returns seconds since 1970."""

    def __init__(self, options: OAuthOptions, clock: Callable[[], float], barrier: Barrier) -> None:
        self._options = options
        self._clock = clock
        self._keys = KeySet(options.keys, options.refresh_seconds, time.monotonic, barrier)

    async def load(self) -> None:
        """Read the keys.

        Raises KeysError if neither issuer nor audience is set, as tokens made for others would be accepted; if PyJWT is
        missing; and if the keys cannot be read.
        """
        if not self._options.issuer and not self._options.audience:
            raise KeysError(
                "with auth.oauth_keys say in auth.oauth_audience for whom tokens are made, or by whom in "
                "auth.oauth_issuer: keys of a server of logins sign tokens for all that it serves"
            )
        try:
            import jwt  # noqa: F401 - a missing package is reported at the start
        except ImportError:
            raise KeysError("auth.oauth_keys needs PyJWT: pip install 'anabranch[oauth]'") from None
        await self._keys.load()

    async def refresh(self) -> None:
        """Read the keys again if that is due; does not wait for the issuer's server."""
        await self._keys.refresh()

    def close(self) -> None:
        """Cancel the request in flight."""
        self._keys.close()

    def check(self, token: str) -> Token:
        """Return the content of a token. Raises TokenExpired; TokenError for any other reason why it is not valid."""
        import jwt

        options = self._options
        if len(token) > LONGEST_TOKEN or not token.isascii():
            raise TokenError("this is no token")
        try:
            named = jwt.get_unverified_header(token).get("kid")
            key = self._keys.find(named)
            if key is None:
                raise TokenError("the token was signed with a key that is not known here")
            # Expiry is checked below with this node's clock, so that both kinds of tokens end by the same clock.
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
        principal = principal_named(claims.get(options.claim))
        if principal is None:
            raise TokenError(f"the token has no name of a user as {options.claim}")
        return Token(principal, expires, {}, credential=None)
