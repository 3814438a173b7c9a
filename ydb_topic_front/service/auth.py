"""Login: exchanges a name and password for a token, which clients send with every call as ``x-ydb-auth-ticket``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridges.auth.authenticator import AuthenticationBusy
from ydb_topic_front.service.core import AUDIENCE
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.statuses import Issue, Status, YdbError

if TYPE_CHECKING:
    from bridges.net.grpc_server import GrpcCall
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService

_Result = messages["Ydb.Auth.LoginResult"]

TOKEN_SECONDS = 12 * 3600
"""Lifetime of a token, the same as YDB's. SDKs renew it in time."""


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's methods."""
    authenticator = service.node.authenticator

    async def login(request: Any, call: GrpcCall) -> Any:
        try:
            principal = await authenticator.verify(request.user, request.password, call.host)
        except AuthenticationBusy as error:
            raise YdbError(Status.OVERLOADED, str(error)) from error
        if principal is None:
            # One message for both cases, so that it does not reveal which users exist.
            raise YdbError(Status.UNAUTHORIZED, "the user does not exist or has another password", Issue.ACCESS_DENIED)
        return _Result(token=authenticator.issue(principal, TOKEN_SECONDS, AUDIENCE))

    registry.call("Login", login)
