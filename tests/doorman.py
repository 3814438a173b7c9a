"""An authorizer that keeps some topics and groups from everybody."""

from __future__ import annotations

from bridges.auth import NODE, Operation, Principal, Resource, ResourceKind


class Doorman:
    """Denies everything that is done to what is called ``shut...``, whatever lies in front of it; and what is done to
    the node itself when it is told so."""

    def __init__(self) -> None:
        self.node_is_open = True

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return self.node_is_open if resource == NODE else "shut" not in resource.name

    def allows_any(self, principal: Principal, operation: Operation, kind: ResourceKind) -> bool:
        return False

    def stand_in(self, principal: Principal) -> Principal | None:
        return principal
