"""Authentication and authorization of Pravega's clients: credentials of calls, delegation tokens of commands
(docs/protocols/pravega.md, "Credentials").

The controller issues tokens, each for one stream, with the right to read it, or to read and write it. The node signs
them, so the segment store verifies them without asking the controller.
"""

from __future__ import annotations

import base64
import binascii
import time
from typing import TYPE_CHECKING, Any

from bridges.auth import ANONYMOUS, Operation, Principal, Resource, ResourceKind
from bridges.auth.authenticator import AuthenticationBusy
from bridges.auth.tokens import Token, TokenError, TokenExpired
from bridges.catalog.topics.names import InvalidTopicName, canonical_name
from bridges.net.grpc_server import Code, GrpcRefusal
from pravega_front.names import TABLE

if TYPE_CHECKING:
    from bridges.net.grpc_server import GrpcCall
    from bridges.node.front import NodeServices

AUDIENCE = "pravega-segmentstore"
_CALLS = "pravega"
_READ = "READ"
_UPDATE = "READ_UPDATE"


class Refused(Exception):
    """Refusal of a command by its token; ``expired`` if the token was valid before."""

    def __init__(self, message: str, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired


class Access:
    """Checks of every call and command of a client."""

    def __init__(self, node: NodeServices, token_seconds: int) -> None:
        self._node = node
        self._seconds = token_seconds
        self._required_at = node.authenticator.required_at
        self.sessions = node.authenticator.sessions

    # --- calls -----------------------------------------------------------------------------------------------------

    async def caller(self, call: GrpcCall) -> Principal:
        """Return the caller's principal. Raises GrpcRefusal (UNAUTHENTICATED, UNAVAILABLE)."""
        if not self._required_at(call.listener):
            return ANONYMOUS.at(call.host)
        method, _, credentials = call.header("authorization").partition(" ")
        found: Principal | None = None
        if method.lower() == "basic":
            try:
                name, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
                found = await self._node.authenticator.verify(name, password, call.host)
            except (binascii.Error, UnicodeDecodeError):
                found = None
            except AuthenticationBusy as error:
                raise GrpcRefusal(Code.UNAVAILABLE, str(error)) from error
        elif method.lower() == "bearer":
            try:
                found = self._node.authenticator.check(credentials, _CALLS).principal
            except TokenError:
                found = None
        if found is None:
            raise GrpcRefusal(Code.UNAUTHENTICATED, "the name or the password is wrong")
        return found.at(call.host)

    def allow(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        """Raise GrpcRefusal (PERMISSION_DENIED) unless the principal may do ``operation``."""
        if not self.may(principal, operation, resource):
            raise GrpcRefusal(
                Code.PERMISSION_DENIED, f"{principal} may not {operation.value} {resource.name or 'the node'}"
            )

    def may(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Return whether the principal may do ``operation``."""
        return self._node.authorizer.allows(principal, operation, resource)

    def topic(self, scope: str, stream: str) -> Resource:
        """Return a stream as the authorizer's resource."""
        name = f"{scope}/{stream}"
        found = self._node.catalog.by_name("pravega", name)
        if found is not None:
            return Resource(ResourceKind.TOPIC, found.name)
        try:
            return Resource(ResourceKind.TOPIC, canonical_name("pravega", name))
        except InvalidTopicName:
            return Resource(ResourceKind.TOPIC, name)

    def token(self, principal: Principal, info: Any) -> str:
        """Issue a token for a stream: to read and write it if the principal may, else to read it. Empty for an
        anonymous principal."""
        if principal.is_anonymous:
            return ""
        resource = self.topic(info.scope, info.stream)
        may = self._node.authorizer.allows
        rights = _UPDATE if may(principal, Operation.WRITE, resource) else _READ
        if rights == _READ:
            self.allow(principal, Operation.READ, resource)
        claims = {_claim(info.scope, info.stream): rights}
        return self._node.authenticator.issue(principal, self._seconds, AUDIENCE, claims)

    # --- commands --------------------------------------------------------------------------------------------------

    def check(self, listener: str, host: str, token: str, segment: str, update: bool) -> tuple[Principal, float | None]:
        """Check a command on a segment from ``host``. Returns the token's principal and when it expires (wall clock,
        s); an anonymous principal and None at a listener without authentication.

        Raises Refused.
        """
        if not self._required_at(listener):
            scope, stream = _stream_of(segment)
            nobody = ANONYMOUS.at(host)
            self._check_rules(nobody, scope, stream, segment, update)
            return nobody, None
        try:
            found = self._node.authenticator.check(token, AUDIENCE)
        except TokenExpired as error:
            raise Refused(str(error), True) from error
        except TokenError as error:
            raise Refused(str(error)) from error
        self._check_claims(found, host, segment, update)
        return found.principal.at(host), found.expires

    def _check_claims(self, token: Token, host: str, segment: str, update: bool) -> None:
        scope, stream = _stream_of(segment)
        if (name := stream.removesuffix(TABLE)) != stream and _claim(scope, stream) not in token.claims:
            stream = name  # clients request tokens for a table's name, without the suffix of its segments
        rights = token.claims.get(_claim(scope, stream))
        if rights != _UPDATE and (update or rights != _READ):
            raise Refused(f"the token was not made for {segment}")
        self._check_rules(token.principal.at(host), scope, stream, segment, update)

    def _check_rules(self, principal: Principal, scope: str, stream: str, segment: str, update: bool) -> None:
        operation = Operation.WRITE if update else Operation.READ
        if not self._node.authorizer.allows(principal, operation, self.topic(scope, stream)):
            raise Refused(f"{principal} may not {operation.value} {segment}")

    @staticmethod
    def expired(until: float | None) -> bool:
        """Return whether a token that was checked before has expired since."""
        return until is not None and until <= time.time()


def _stream_of(segment: str) -> tuple[str, str]:
    """Return scope and stream of a segment's name."""
    scope, _, rest = segment.partition("/")
    return scope, rest.partition("/")[0]


def _claim(scope: str, stream: str) -> str:
    """Return the key under which a token holds the rights to a stream or table."""
    return f"prn::/scope:{scope}/stream:{stream}"
