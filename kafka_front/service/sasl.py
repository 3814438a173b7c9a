"""Clients say who they are: SaslHandshake and SaslAuthenticate (KIP-43, KIP-152), with PLAIN and SCRAM (KIP-84).

A login is two or three requests of one connection, so its state is kept there. Whoever fails is told, in words that
do not give away whether there is such a user, and the connection ends (reference/kafka.md, rule 68).

Where logins last for a time only (KIP-368) a client is told for how long, and says again in time who it is, by the same
two requests: the same user with the same mechanism, or the connection ends. It ends at once when its user is removed or
gets another password, so that a new one has to say who it is.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING

from bridges.auth import Principal
from bridges.auth.authenticator import AuthenticationBusy
from bridges.auth.scram import MECHANISMS, ScramError, ScramExchange
from bridges.auth.sessions import ENDED, Session
from kafka_front.context import DEFERRED, NO_RESPONSE, Outcome
from kafka_front.dispatch import Registry
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from bridges.auth.authenticator import Authenticator
    from kafka_front.context import Client, Context
    from kafka_front.service.core import KafkaService

_PLAIN = "PLAIN"
_NAMES = [_PLAIN, *MECHANISMS]
_LOGIN = "login"
_FRAMED_SINCE = 1
"""Version of SaslHandshake from which on tokens travel in SaslAuthenticate requests, and not between them."""


class _Login:
    """What a connection's client has said so far."""

    __slots__ = ("before", "done", "exchange", "mechanism", "principal", "session", "started")

    def __init__(self, mechanism: str, exchange: ScramExchange | None, before: _Login | None) -> None:
        self.mechanism = mechanism
        # None with PLAIN, which has one message.
        self.exchange = exchange
        # By which it was known until now.
        self.before = before
        self.started = False
        self.done = False
        self.principal: Principal | None = None
        self.session: Session | None = None if before is None else before.session


class Sasl:
    """Handlers of logins, which last for ``seconds``; 0: as long as their connections."""

    def __init__(self, authenticator: Authenticator, seconds: float) -> None:
        self._authenticator = authenticator
        self._seconds = seconds

    def handshake(self, ctx: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        """The client chooses a mechanism."""
        code, attributes = ErrorCode.NONE, ctx.connection.attributes
        before: _Login | None = attributes.get(_LOGIN)
        if before is not None and not (before.done and self._seconds):
            code = ErrorCode.ILLEGAL_SASL_STATE
        elif request.mechanism not in _NAMES:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        elif ctx.version < _FRAMED_SINCE:
            code = ErrorCode.UNSUPPORTED_VERSION
        else:
            scram = request.mechanism != _PLAIN
            exchange = self._authenticator.scram(request.mechanism) if scram else None
            attributes[_LOGIN] = _Login(request.mechanism, exchange, before)
        return SaslHandshakeResponse(error_code=int(code), mechanisms=list(_NAMES))

    async def authenticate(self, ctx: Context, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse | Outcome:
        """The client proves who it is, or goes on doing so."""
        login = ctx.connection.attributes.get(_LOGIN)
        if not isinstance(login, _Login) or login.done:
            return SaslAuthenticateResponse(
                error_code=int(ErrorCode.ILLEGAL_SASL_STATE), error_message="there is no login to go on with"
            )
        message = bytes(request.auth_bytes)
        try:
            if login.exchange is None:
                principal = await self._plain(message, ctx.connection.peer[0])
                return self._refused(ctx) if principal is None else self._accepted(ctx, login, principal, b"")
            if not login.started:
                login.started = True
                return SaslAuthenticateResponse(auth_bytes=login.exchange.first(message))
            answer = login.exchange.final(message)
            return self._accepted(ctx, login, self._authenticator.proved(login.exchange), answer)
        except ScramError:
            self._authenticator.refused()
            return self._refused(ctx)
        except AuthenticationBusy as error:
            # No answer says so; of a connection that ends clients believe that it may be different the next time.
            ctx.respond(NO_RESPONSE)
            ctx.connection.close(str(error), client_id=ctx.client_id)
            return DEFERRED

    async def _plain(self, message: bytes, source: str) -> Principal | None:
        """Who the message of PLAIN (RFC 4616) is from; None if that is not so."""
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
        self, ctx: Context, login: _Login, principal: Principal, answer: bytes
    ) -> SaslAuthenticateResponse | Outcome:
        before, connection = login.before, ctx.connection
        if before is not None and (before.mechanism, before.principal) != (login.mechanism, principal):
            return self._refused(ctx, "Authentication failed: this is not who it was, or not by the same mechanism")
        if not connection.closed:
            login.done, login.principal, login.before = True, principal, None
            self._begin(connection, login, principal, "" if login.exchange is None else login.mechanism)
            login.exchange = None
            connection.logged_in(principal, monotonic() + self._seconds if self._seconds else math.inf)
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=int(self._seconds * 1000))

    def _begin(self, connection: Client, login: _Login, principal: Principal, mechanism: str) -> None:
        sessions, attributes = self._authenticator.sessions, connection.attributes
        if login.session is None:
            connection.on_close(lambda: sessions.end(attributes[_LOGIN].session))
        sessions.end(login.session)
        login.session = sessions.begin(principal, lambda: connection.close(ENDED, user=str(principal)), mechanism)

    def _refused(
        self,
        ctx: Context,
        message: str = "Authentication failed: there is no such user, or the password is another one",
    ) -> Outcome:
        ctx.respond(
            SaslAuthenticateResponse(error_code=int(ErrorCode.SASL_AUTHENTICATION_FAILED), error_message=message)
        )
        ctx.connection.close("the client is not who it says", client_id=ctx.client_id)
        return DEFERRED


def register(registry: Registry, service: KafkaService) -> None:
    sasl = Sasl(service.node.authenticator, service.settings.sasl_max_reauth_ms / 1000)
    registry.register(ApiKey.SASL_HANDSHAKE, sasl.handshake)
    registry.register(ApiKey.SASL_AUTHENTICATE, sasl.authenticate)
