"""Logins of clients: SaslHandshake and SaslAuthenticate (KIP-43, KIP-152), with PLAIN, SCRAM (KIP-84), OAUTHBEARER
(KIP-255) and GSSAPI (KIP-12).

A login is two or three requests of one connection, so the connection keeps its state. A failed login is answered in
words that do not reveal whether the user exists, and ends the connection (docs/protocols/kafka.md, rule 68).

If logins last for a limited time (KIP-368), or the client showed a token or a ticket, which expire, the answer says how
long. The
client authenticates again in time by the same two requests: as the same user by the same mechanism, or the connection
ends. The connection ends at once when its user is removed or gets another password. SCRAM also accepts a delegation
token's id and HMAC for name and password (KIP-48); removing the token ends the connection.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from bridges.auth import Principal
from bridges.auth.authenticator import AuthenticationBusy
from bridges.auth.external import kerberos
from bridges.auth.external.kerberos import KerberosError, KerberosExchange
from bridges.auth.scram import MECHANISMS, ScramError, ScramExchange
from bridges.auth.sessions import ENDED, Session
from bridges.auth.tokens import TokenError
from kafka_front.context import DEFERRED, NO_RESPONSE, Outcome
from kafka_front.dispatch import Registry
from kafka_front.service import oauth_bearer
from kafka_front.wire import messages as m
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode

if TYPE_CHECKING:
    from bridges.auth.authenticator import Authenticator
    from kafka_front.context import Client, Context
    from kafka_front.service.core import KafkaService
    from kafka_front.service.delegation import DelegationTokens

_PLAIN = "PLAIN"
_LOGIN = "login"
_FRAMED_SINCE = 1
"""First version of SaslHandshake with which tokens travel in SaslAuthenticate requests, not unframed between them."""


class _Login:
    """The state of a connection's login."""

    __slots__ = ("before", "by_token", "done", "ends", "exchange", "mechanism", "principal", "session", "started")

    def __init__(
        self, mechanism: str, exchange: ScramExchange | KerberosExchange | None, before: _Login | None
    ) -> None:
        self.mechanism = mechanism
        # None for mechanisms of one message.
        self.exchange = exchange
        # The login that was in force until now.
        self.before = before
        self.started = False
        self.done = False
        self.ends = False
        # Whether the login in force is by a delegation token: until this one is done, the one before.
        self.by_token: bool = before is not None and before.by_token
        self.principal: Principal | None = None
        self.session: Session | None = None if before is None else before.session


class Sasl:
    """Handlers of logins, which last for ``seconds``; 0: as long as their connections."""

    def __init__(self, authenticator: Authenticator, tokens: DelegationTokens, seconds: float) -> None:
        self._authenticator = authenticator
        self._tokens = tokens
        self._seconds = seconds
        self._names = [_PLAIN, *MECHANISMS]
        if authenticator.takes_oauth:
            self._names.append(oauth_bearer.MECHANISM)
        if authenticator.takes_tickets:
            self._names.append(kerberos.MECHANISM)

    def handshake(self, ctx: Context, request: m.SaslHandshakeRequest) -> m.SaslHandshakeResponse:
        """Choose the client's mechanism."""
        code, attributes = ErrorCode.NONE, ctx.connection.attributes
        before: _Login | None = attributes.get(_LOGIN)
        if before is not None and not (before.done and before.ends):
            code = ErrorCode.ILLEGAL_SASL_STATE
        elif request.mechanism not in self._names:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        elif ctx.version < _FRAMED_SINCE:
            code = ErrorCode.UNSUPPORTED_VERSION
        else:
            mechanism = request.mechanism
            exchange: ScramExchange | KerberosExchange | None = None
            if mechanism in MECHANISMS:
                find_token = partial(self._tokens.find_keys, mechanism)
                exchange = self._authenticator.scram(mechanism, find_token)
            elif mechanism == kerberos.MECHANISM:
                exchange = self._authenticator.kerberos()
            attributes[_LOGIN] = _Login(mechanism, exchange, before)
        return m.SaslHandshakeResponse(error_code=code, mechanisms=list(self._names))

    async def authenticate(
        self, ctx: Context, request: m.SaslAuthenticateRequest
    ) -> m.SaslAuthenticateResponse | Outcome:
        """Take a message of the client's mechanism: the login ends, or goes on with the next message."""
        login = ctx.connection.attributes.get(_LOGIN)
        if not isinstance(login, _Login) or login.done:
            return m.SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="there is no login to go on with"
            )
        message = bytes(request.auth_bytes)
        try:
            if login.mechanism == oauth_bearer.MECHANISM:
                return self._bearer(ctx, login, message)
            if isinstance(login.exchange, KerberosExchange):
                return await self._ticket(ctx, login, login.exchange, message)
            if login.exchange is None:
                principal = await self._plain(message, ctx.connection.peer[0])
                return self._refused(ctx) if principal is None else self._accepted(ctx, login, principal, b"")
            if not login.started:
                login.started = True
                return m.SaslAuthenticateResponse(auth_bytes=await self._first(login.exchange, message))
            answer = login.exchange.final(message)
            if login.exchange.by_token:
                return self._delegated(ctx, login, login.exchange.name, answer)
            return self._accepted(ctx, login, self._authenticator.proved(login.exchange), answer)
        except ScramError:
            self._authenticator.refused()
            return self._refused(ctx)
        except KerberosError as error:
            self._authenticator.refused()
            return self._refused(ctx, f"Authentication failed: {error}")
        except AuthenticationBusy as error:
            # No answer of the protocol says "busy". Clients retry after a connection that just ends.
            ctx.respond(NO_RESPONSE)
            ctx.connection.close(str(error), client_id=ctx.client_id)
            return DEFERRED

    async def _first(self, exchange: ScramExchange, message: bytes) -> bytes:
        answer = exchange.first(message)
        if not exchange.by_token or exchange.keys is not None:
            return answer
        await self._tokens.derive_keys(exchange.mechanism, exchange.name)
        return exchange.first(message)

    def _delegated(
        self, ctx: Context, login: _Login, token_id: str, answer: bytes
    ) -> m.SaslAuthenticateResponse | Outcome:
        """Accept the bearer of a delegation token, as its owner."""
        token = self._tokens.find(token_id)
        if token is None:
            raise ScramError("the token has expired meanwhile")
        self._authenticator.succeeded += 1
        find = partial(self._tokens.find_owner, token_id)
        return self._accepted(ctx, login, token.owner, answer, token.expires_ms / 1000, find)

    def _bearer(self, ctx: Context, login: _Login, message: bytes) -> m.SaslAuthenticateResponse | Outcome:
        """Check the token. An invalid one is answered first; the login fails when the client has acknowledged that."""
        if login.started:
            return self._refused(ctx, "Authentication failed: the token is not valid")
        try:
            text, acting_for = oauth_bearer.token_of(message)
            token = self._authenticator.bearer(text)
            if acting_for and acting_for != token.principal.name:
                raise TokenError("nobody may act for somebody else")
        except (oauth_bearer.BadFirstMessage, TokenError):
            self._authenticator.refused()
            login.started = True
            return m.SaslAuthenticateResponse(auth_bytes=oauth_bearer.REFUSED)
        return self._accepted(ctx, login, token.principal, b"", token.expires)

    async def _ticket(
        self, ctx: Context, login: _Login, exchange: KerberosExchange, message: bytes
    ) -> m.SaslAuthenticateResponse | Outcome:
        """Take the next message of a login with a ticket, for whose time the login lasts at most."""
        answer = await exchange.step(message)
        if exchange.principal is None:
            return m.SaslAuthenticateResponse(auth_bytes=answer)
        self._authenticator.succeeded += 1
        return self._accepted(ctx, login, exchange.principal, answer, time.time() + exchange.seconds)

    async def _plain(self, message: bytes, source: str) -> Principal | None:
        """Return the principal of a message of PLAIN (RFC 4616); None if it proves none."""
        acting_for, _, rest = message.partition(b"\0")
        name, _, password = rest.partition(b"\0")
        try:
            if not name or (acting_for and acting_for != name):
                raise ValueError("nobody may act for somebody else")
            return await self._authenticator.verify(name.decode(), password.decode(), source)
        except ValueError:
            self._authenticator.refused()
            return None

    def _accepted(
        self,
        ctx: Context,
        login: _Login,
        principal: Principal,
        answer: bytes,
        expires: float = math.inf,
        find: Callable[[], object] | None = None,
    ) -> m.SaslAuthenticateResponse | Outcome:
        """Accept a login by a credential that ``expires`` (s since 1970), while ``find`` returns the same value."""
        before, connection, exchange = login.before, ctx.connection, login.exchange
        seconds = self._seconds or math.inf
        # Without the allowance for the issuer's clock: the client has a new token before that.
        seconds = min(seconds, max(0.001, expires - time.time()))
        if before is not None and (before.mechanism, before.principal) != (login.mechanism, principal):
            return self._refused(ctx, "Authentication failed: this is not who it was, or not by the same mechanism")
        if not connection.closed:
            login.done, login.principal, login.before = True, principal, None
            login.by_token = isinstance(exchange, ScramExchange) and exchange.by_token
            login.ends = seconds < math.inf
            self._begin(connection, login, principal, find)
            login.exchange = None
            connection.logged_in(principal, monotonic() + seconds)
        return m.SaslAuthenticateResponse(
            auth_bytes=answer, session_lifetime_ms=int(seconds * 1000) if seconds < math.inf else 0
        )

    def _begin(
        self, connection: Client, login: _Login, principal: Principal, find: Callable[[], object] | None
    ) -> None:
        sessions, attributes = self._authenticator.sessions, connection.attributes
        if login.session is None:
            connection.on_close(lambda: sessions.end(attributes[_LOGIN].session))
        sessions.end(login.session)
        mechanism = "" if login.mechanism == _PLAIN else login.mechanism
        login.session = sessions.begin(principal, lambda: connection.close(ENDED, user=str(principal)), mechanism, find)

    def _refused(
        self,
        ctx: Context,
        message: str = "Authentication failed: there is no such user, or the password is another one",
    ) -> Outcome:
        ctx.respond(m.SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message))
        ctx.connection.close("the client is not who it says", client_id=ctx.client_id)
        return DEFERRED


def is_by_token(connection: Client) -> bool:
    """Return whether a client has logged in with a delegation token."""
    login = connection.attributes.get(_LOGIN)
    return isinstance(login, _Login) and login.by_token


def register(registry: Registry, service: KafkaService) -> None:
    sasl = Sasl(service.node.authenticator, service.tokens, service.settings.sasl_max_reauth_ms / 1000)
    registry.register(ApiKey.SASL_HANDSHAKE, sasl.handshake)
    registry.register(ApiKey.SASL_AUTHENTICATE, sasl.authenticate)
