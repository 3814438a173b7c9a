"""Clients say who they are: SaslHandshake and SaslAuthenticate (KIP-43, KIP-152), with PLAIN and SCRAM (KIP-84).

A login is two or three requests of one connection, so its state is kept there. Whoever fails is told, in words that
do not give away whether there is such a user, and the connection ends (reference/kafka.md, rule 68). Sessions do not
end (KIP-368 is not needed): who it is is asked once for each connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridges.auth import Principal
from bridges.auth.authenticator import AuthenticationBusy
from bridges.auth.scram import MECHANISMS, ScramError, ScramExchange
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
    from kafka_front.context import Context
    from kafka_front.service.core import KafkaService

_PLAIN = "PLAIN"
_NAMES = [_PLAIN, *MECHANISMS]
_LOGIN = "login"
_FRAMED_SINCE = 1
"""Version of SaslHandshake from which on tokens travel in SaslAuthenticate requests, and not between them."""


class _Login:
    """What a connection's client has said so far."""

    __slots__ = ("done", "exchange", "started")

    def __init__(self, exchange: ScramExchange | None) -> None:
        # None with PLAIN, which has one message.
        self.exchange = exchange
        self.started = False
        self.done = False


class Sasl:
    """Handlers of logins."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def handshake(self, ctx: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        """The client chooses a mechanism."""
        code, attributes = ErrorCode.NONE, ctx.connection.attributes
        if _LOGIN in attributes:
            code = ErrorCode.ILLEGAL_SASL_STATE
        elif request.mechanism not in _NAMES:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        elif ctx.version < _FRAMED_SINCE:
            code = ErrorCode.UNSUPPORTED_VERSION
        else:
            scram = request.mechanism != _PLAIN
            attributes[_LOGIN] = _Login(self._authenticator.scram(request.mechanism) if scram else None)
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
            return self._accepted(ctx, login, self._authenticator.logged_in(login.exchange.name), answer)
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

    def _accepted(self, ctx: Context, login: _Login, principal: Principal, answer: bytes) -> SaslAuthenticateResponse:
        login.done = True
        ctx.connection.logged_in(principal)
        return SaslAuthenticateResponse(auth_bytes=answer)

    def _refused(self, ctx: Context) -> Outcome:
        ctx.respond(
            SaslAuthenticateResponse(
                error_code=int(ErrorCode.SASL_AUTHENTICATION_FAILED),
                error_message="Authentication failed: there is no such user, or the password is another one",
            )
        )
        ctx.connection.close("the client is not who it says", client_id=ctx.client_id)
        return DEFERRED


def register(registry: Registry, service: KafkaService) -> None:
    sasl = Sasl(service.node.authenticator)
    registry.register(ApiKey.SASL_HANDSHAKE, sasl.handshake)
    registry.register(ApiKey.SASL_AUTHENTICATE, sasl.authenticate)
