"""Calls of writers about themselves, and requests for tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anabranch_kit.run import clock
from bridges.auth import Operation
from bridges.net.grpc_server import Code, GrpcRefusal
from pravega_front.wire.controller import message

if TYPE_CHECKING:
    from bridges.auth import Principal
    from pravega_front.controller.core import Controller
    from pravega_front.controller.dispatch import Registry

_Status = message("Status")
_DelegationToken = message("DelegationToken")
_LONGEST_NAME = 1000


def register(registry: Registry, controller: Controller) -> None:
    """Add this module's methods."""

    async def token(request: Any, caller: Principal) -> Any:
        return _DelegationToken(delegationToken=controller.access.token(caller, request))

    async def noted(request: Any, caller: Principal) -> Any:
        info, writer = request.position.streamInfo, request.writer
        controller.access.allow(caller, Operation.WRITE, controller.access.topic(info.scope, info.stream))
        if len(writer) > _LONGEST_NAME:
            raise GrpcRefusal(
                Code.INVALID_ARGUMENT, f"the writer's name has {len(writer)} characters, above {_LONGEST_NAME}"
            )
        topic = controller.streams.get(info)
        now_ms = clock.now_ms()
        position = dict(request.position.cut)
        return _Status(status=await controller.watermarks.note(topic, writer, request.timestamp, position, now_ms))

    async def removed(request: Any, caller: Principal) -> Any:
        info = request.stream
        controller.access.allow(caller, Operation.WRITE, controller.access.topic(info.scope, info.stream))
        topic = controller.streams.find(info.scope, info.stream)
        if topic is not None:  # a deleted stream or an unknown writer is no error: there is nothing to remove
            await controller.watermarks.remove(topic, request.writer)
        return _Status(status=0)

    registry.call("getDelegationToken", token)
    registry.call("noteTimestampFromWriter", noted)
    registry.call("removeWriter", removed)
