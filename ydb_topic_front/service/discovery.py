"""Where the nodes of a database are: of this one, the address that clients are to use. And who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        address = service.node.advertised(call.listener) or service.addresses[call.listener]
        endpoint = result.endpoints.add(address=address.host, port=address.port, node_id=service.node_id)
        # Clients drop endpoints that say otherwise than the scheme they were given.
        endpoint.ssl = service.node.tls(call.listener) is not None
        return result

    async def who_am_i(request: Any, call: GrpcCall) -> Any:
        return _WhoAmIResult(user=service.principal(call).name)

    registry.call("ListEndpoints", list_endpoints)
    registry.call("WhoAmI", who_am_i)
