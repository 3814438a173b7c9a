"""Authentication of HTTP requests, by HTTP Basic (RFC 7617), a token (RFC 6750) or a certificate, and their
authorization.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from bridges.auth import ANONYMOUS, NODE, Operation, Principal, Resource, ResourceKind, read_certificate
from bridges.auth.authenticator import AuthenticationBusy
from bridges.auth.tokens import TokenError
from bridges.http.errors import RequestError, error_response
from bridges.http.site import HEALTH

if TYPE_CHECKING:
    from bridges.auth import Authorizer
    from bridges.auth.authenticator import Authenticator

_PRINCIPAL = web.RequestKey("principal", Principal)
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="anabranch", charset="UTF-8"'}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Doorkeeper:
    """Authenticates requests.

    ``listener`` returns the name of the listener on which a request arrived. With ``open_health``, requests for health
    and metrics need no login. ``audience``: the audience of the node's tokens that are accepted; empty: none are.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        listener: Callable[[web.Request], str],
        *,
        open_health: bool,
        audience: str = "",
    ) -> None:
        self._authenticator = authenticator
        self._listener = listener
        self._audience = audience
        self._open = HEALTH if open_health else frozenset[str]()

    @web.middleware
    async def let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Find the principal of a request; answer 401 for wrong credentials, and for missing ones where a login is
        required.
        """
        try:
            principal = await self._principal(request)
        except AuthenticationBusy as error:
            return error_response(error, 503)
        if principal is None:
            response = error_response(RequestError("name and password do not belong together"), 401)
            response.headers.update(_CHALLENGE)
            return response
        if principal.is_anonymous and self._is_required(request) and request.path not in self._open:
            response = error_response(RequestError("say who you are, with name and password"), 401)
            response.headers.update(_CHALLENGE)
            return response
        request[_PRINCIPAL] = principal.at(request.remote or "")
        if "Authorization" not in request.headers:
            return await handler(request)
        # A stream that follows a topic has no time limit, but must end when the client's credential becomes invalid.
        sessions, transport = self._authenticator.sessions, request.transport
        session = sessions.begin(principal, lambda: None if transport is None else transport.abort())
        try:
            return await handler(request)
        finally:
            sessions.end(session)

    def _is_required(self, request: web.Request) -> bool:
        listener = self._listener(request)
        # The listener of a connection that has ended is unknown, so a login is required.
        return not listener or self._authenticator.required_at(listener)

    async def _principal(self, request: web.Request) -> Principal | None:
        """Return the principal of a request, None if its credentials are wrong. Raises AuthenticationBusy."""
        given = request.headers.get("Authorization")
        if given is None:
            return ANONYMOUS if request.transport is None else read_certificate(request.transport)
        scheme, _, encoded = given.partition(" ")
        if scheme.lower() == "bearer" and (self._audience or self._authenticator.takes_oauth):
            try:
                return self._authenticator.check(encoded.strip(), self._audience).principal
            except TokenError:
                return None
        try:
            name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
        if scheme.lower() != "basic" or not colon:
            return None
        return await self._authenticator.verify(name, password, request.remote or "")


def principal_of(request: web.Request) -> Principal:
    return request[_PRINCIPAL]


class Access:
    """Asks the node's authorizer what the principal of a request may do with a topic, group, transactional id or node.

    The methods named ``require`` raise RequestError unless that is allowed, whether or not the thing exists.
    """

    def __init__(self, authorizer: Authorizer) -> None:
        self._allows = authorizer.allows
        self._authorizer = authorizer

    def topic(self, request: web.Request, operation: Operation, name: str) -> bool:
        return self._allows(request[_PRINCIPAL], operation, Resource(ResourceKind.TOPIC, name))

    def group(self, request: web.Request, operation: Operation, name: str) -> bool:
        return self._allows(request[_PRINCIPAL], operation, Resource(ResourceKind.GROUP, name))

    def transaction(self, request: web.Request, operation: Operation, name: str) -> bool:
        return self._allows(request[_PRINCIPAL], operation, Resource(ResourceKind.TRANSACTIONAL_ID, name))

    def everything(self, request: web.Request) -> bool:
        """Return whether everybody may do everything."""
        return self._authorizer.stand_in(request[_PRINCIPAL]) is None

    def node(self, request: web.Request, operation: Operation) -> bool:
        return self._allows(request[_PRINCIPAL], operation, NODE)

    def require_topic(self, request: web.Request, operation: Operation, name: str) -> None:
        if not self.topic(request, operation, name):
            raise RequestError(f"you may not {operation.value} topic {name!r}", 403)

    def require_group(self, request: web.Request, operation: Operation, name: str) -> None:
        if not self.group(request, operation, name):
            raise RequestError(f"you may not {operation.value} group {name!r}", 403)

    def require_transaction(self, request: web.Request, operation: Operation, name: str) -> None:
        if not self.transaction(request, operation, name):
            raise RequestError(f"you may not {operation.value} transactional id {name!r}", 403)

    def require_node(self, request: web.Request, operation: Operation) -> None:
        if not self.node(request, operation):
            raise RequestError(f"you may not {operation.value} the node", 403)
