"""Calls of writers about themselves, and for tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pravega_front.wire.controller import message

if TYPE_CHECKING:
    from bridges.auth import Principal
    from pravega_front.controller.core import Controller
    from pravega_front.controller.dispatch import Registry

_Status = message("Status")
_DelegationToken = message("DelegationToken")


def register(registry: Registry, controller: Controller) -> None:
    """Add this module's methods."""

    async def token(request: Any, caller: Principal) -> Any:
        return _DelegationToken(delegationToken=controller.access.token(caller, request))

    async def noted(request: Any, caller: Principal) -> Any:
        # Watermarks are not kept, so what writers say of time has no effect.
        return _Status(status=0)

    registry.call("getDelegationToken", token)
    registry.call("noteTimestampFromWriter", noted)
    registry.call("removeWriter", noted)
