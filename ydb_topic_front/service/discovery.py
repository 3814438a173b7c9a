"""ListEndpoints and WhoAmI: the nodes of a database with the addresses for clients, and the caller's name.

ListEndpoints leaves out a node that is about to stop unless it is the only one, so clients move to the others in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridges.cluster.members import State
from ydb_topic_front.wire.messages import messages

if TYPE_CHECKING:
    from bridges.net.grpc_server import GrpcCall
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService

_Result = messages["Ydb.Discovery.ListEndpointsResult"]
_WhoAmIResult = messages["Ydb.Discovery.WhoAmIResult"]


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's methods."""

    async def list_endpoints(request: Any, call: GrpcCall) -> Any:
        result = _Result()
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
        result.self_location = service.node.rack
        return result

    async def who_am_i(request: Any, call: GrpcCall) -> Any:
        return _WhoAmIResult(user=service.principal(call).name)

    registry.call("ListEndpoints", list_endpoints)
    registry.call("WhoAmI", who_am_i)
