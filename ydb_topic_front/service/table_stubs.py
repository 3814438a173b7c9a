"""Stubs of the table service's sessions for SDKs that open one and never use it.

The old SDK for Node.js opens sessions when it connects and fails on the first error (docs/protocols/ydb.md, "Old
Node.js SDK"). The node keeps no state of a session, and a session allows no operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ydb_topic_front.wire.messages import messages

if TYPE_CHECKING:
    from bridges.net.grpc_server import GrpcCall
    from ydb_topic_front.dispatch import Registry
    from ydb_topic_front.service.core import YdbService

_CreateResult = messages["Ydb.Table.CreateSessionResult"]
_KeepAliveResult = messages["Ydb.Table.KeepAliveResult"]


def register(registry: Registry, service: YdbService) -> None:
    """Add this module's methods."""

    async def create(request: Any, call: GrpcCall) -> Any:
        return _CreateResult(session_id=f"ydb://session/3?node_id={service.node_id}&id={uuid4().hex}")

    async def keep_alive(request: Any, call: GrpcCall) -> Any:
        return _KeepAliveResult(session_status=_KeepAliveResult.SESSION_STATUS_READY)

    async def delete(request: Any, call: GrpcCall) -> None:
        return None

    registry.call("CreateSession", create)
    registry.call("KeepAlive", keep_alive)
    registry.call("DeleteSession", delete)
