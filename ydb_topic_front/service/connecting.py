"""Calls of SDKs that connect: the nodes of a database, the caller's name, logins, and sessions of the table service.

* ListEndpoints leaves out a node that is about to stop unless it is the only one, so clients move to the others in
  time.
* Login exchanges a name and password for a token, which clients send with every call as ``x-ydb-auth-ticket``.
* Sessions of the table service are stubs. The old SDK for Node.js opens them when it connects, never uses them, and
  fails on the first error (docs/protocols/ydb.md, "Old Node.js SDK"). The node keeps no state of a session, and a
  session allows no operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bridges.auth.authenticator import AuthenticationBusy
from bridges.cluster.members import State
from ydb_topic_front.service.core import AUDIENCE
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.statuses import Issue, Status, YdbError

if TYPE_CHECKING:
    from bridges.net.grpc_server import GrpcCall
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService

_Result = messages["Ydb.Discovery.ListEndpointsResult"]
_WhoAmIResult = messages["Ydb.Discovery.WhoAmIResult"]
_LoginResult = messages["Ydb.Auth.LoginResult"]
_CreateResult = messages["Ydb.Table.CreateSessionResult"]
_KeepAliveResult = messages["Ydb.Table.KeepAliveResult"]

_SERVICES = frozenset({"auth", "discovery", "query_service", "scheme", "table_service", "topic"})
"""Services of every endpoint, by YDB's names."""
EVERYBODY = "all-users@well-known"
"""YDB's group of all users that have logged in: the only group that users have here."""

TOKEN_SECONDS = 12 * 3600
"""Lifetime of a token, the same as YDB's. SDKs renew it in time."""


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's methods."""
    authenticator = service.node.authenticator

    async def list_endpoints(request: Any, call: GrpcCall) -> Any:
        result = _Result()
        if not _SERVICES.issuperset(request.service):
            return result
        own = service.node.advertised(call.listener) or service.addresses[call.listener]
        # Clients drop endpoints whose ``ssl`` differs from their URL's scheme. All nodes are configured alike.
        ssl = service.node.tls(call.listener) is not None
        members = service.node.owners.nodes
        for member in [one for one in members if one.state is State.UP] or members:
            told = member.address(call.listener, own.host)
            if told is not None:
                address = own if member.node_id == service.node.node_id else told
                endpoint = result.endpoints.add(address=address.host, port=address.port, node_id=member.node_id + 1)
                endpoint.ssl, endpoint.location = ssl, member.rack
        if not result.endpoints:
            result.endpoints.add(address=own.host, port=own.port, node_id=service.node_id, ssl=ssl)
        for endpoint in result.endpoints:
            endpoint.service.extend(sorted(_SERVICES))
        result.self_location = service.node.rack
        return result

    async def who_am_i(request: Any, call: GrpcCall) -> Any:
        principal = service.principal(call)
        groups = [EVERYBODY] if request.include_groups and not principal.is_anonymous else []
        return _WhoAmIResult(user=principal.name, groups=groups)

    registry.call("ListEndpoints", list_endpoints)
    registry.call("WhoAmI", who_am_i)

    async def login(request: Any, call: GrpcCall) -> Any:
        try:
            principal = await authenticator.verify(request.user, request.password, call.host)
        except AuthenticationBusy as error:
            raise YdbError(Status.OVERLOADED, str(error)) from error
        if principal is None:
            # One message for both cases, so that it does not reveal which users exist.
            raise YdbError(Status.UNAUTHORIZED, "the user does not exist or has another password", Issue.ACCESS_DENIED)
        return _LoginResult(token=authenticator.issue(principal, TOKEN_SECONDS, AUDIENCE))

    registry.call("Login", login)

    async def create_session(request: Any, call: GrpcCall) -> Any:
        return _CreateResult(session_id=f"ydb://session/3?node_id={service.node_id}&id={uuid4().hex}")

    async def keep_alive(request: Any, call: GrpcCall) -> Any:
        return _KeepAliveResult(session_status=_KeepAliveResult.SESSION_STATUS_READY)

    async def delete_session(request: Any, call: GrpcCall) -> None:
        return None

    registry.call("CreateSession", create_session)
    registry.call("KeepAlive", keep_alive)
    registry.call("DeleteSession", delete_session)
