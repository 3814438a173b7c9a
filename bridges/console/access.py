"""Who asks over HTTP: HTTP Basic (RFC 7617), a token of the node's (RFC 6750) or a certificate; and what it may do: the
node's authorizer."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from bridges.auth import ANONYMOUS, NODE, Operation, Principal, Resource, ResourceKind
from bridges.auth.authenticator import AuthenticationBusy
from bridges.auth.certified import certified
from bridges.auth.tokens import TokenError
from bridges.console.errors import RequestError, error_response
from bridges.net.http_site import HEALTH

if TYPE_CHECKING:
    from bridges.auth import Authorizer
    from bridges.auth.authenticator import Authenticator

_PRINCIPAL = web.RequestKey("principal", Principal)
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="anabranch", charset="UTF-8"'}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Doorkeeper:
    """Lets requests in. ``listener`` tells the name of the one that a request came by. ``open_health``: those for
    health and metrics need not say from whom they are. ``audience``: what the tokens are for that are taken here;
    empty: none are."""

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
        """Find out from whom the request is; 401 where that must be said and is not, or is not true."""
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
        # Whoever follows a topic does so for as long as he likes, but not longer than he may.
        sessions, transport = self._authenticator.sessions, request.transport
        session = sessions.begin(principal, lambda: None if transport is None else transport.abort())
        try:
            return await handler(request)
        finally:
            sessions.end(session)

    def _is_required(self, request: web.Request) -> bool:
        listener = self._listener(request)
        # Of who has gone meanwhile it is not known by which it came.
        return not listener or self._authenticator.required_at(listener)

    async def _principal(self, request: web.Request) -> Principal | None:
        """From whom the request is; None if it says what is not so."""
        given = request.headers.get("Authorization")
        if given is None:
            return ANONYMOUS if request.transport is None else certified(request.transport)
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
    """From whom a request is that was let in."""
    return request[_PRINCIPAL]


class Access:
    """Asks the node's authorizer in the name of whoever a request is from."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._allows = authorizer.allows

    def topic(self, request: web.Request, operation: Operation, name: str) -> bool:
        """Whether this may be done to a topic."""
        return self._allows(request[_PRINCIPAL], operation, Resource(ResourceKind.TOPIC, name))

    def group(self, request: web.Request, operation: Operation, name: str) -> bool:
        """Whether this may be done to a group."""
        return self._allows(request[_PRINCIPAL], operation, Resource(ResourceKind.GROUP, name))

    def transaction(self, request: web.Request, operation: Operation, name: str) -> bool:
        """Whether this may be done to a transactional id."""
        return self._allows(request[_PRINCIPAL], operation, Resource(ResourceKind.TRANSACTIONAL_ID, name))

    def node(self, request: web.Request, operation: Operation) -> bool:
        """Whether this may be done to the node."""
        return self._allows(request[_PRINCIPAL], operation, NODE)

    def require_topic(self, request: web.Request, operation: Operation, name: str) -> None:
        """Raise RequestError unless this may be done to a topic, whether or not there is one."""
        if not self.topic(request, operation, name):
            raise RequestError(f"you may not {operation.value} topic {name!r}", 403)

    def require_group(self, request: web.Request, operation: Operation, name: str) -> None:
        """Raise RequestError unless this may be done to a group, whether or not there is one."""
        if not self.group(request, operation, name):
            raise RequestError(f"you may not {operation.value} group {name!r}", 403)

    def require_transaction(self, request: web.Request, operation: Operation, name: str) -> None:
        """Raise RequestError unless this may be done to a transactional id, whether or not there is one."""
        if not self.transaction(request, operation, name):
            raise RequestError(f"you may not {operation.value} transactional id {name!r}", 403)

    def require_node(self, request: web.Request, operation: Operation) -> None:
        """Raise RequestError unless this may be done to the node."""
        if not self.node(request, operation):
            raise RequestError(f"you may not {operation.value} the node", 403)
