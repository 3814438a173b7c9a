"""The authorizer that decides by rules."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from bridges.auth import NODE, Operation, Principal, Resource, ResourceKind
from bridges.auth.rules import Rules

_REMEMBERED = 10_000
"""Answers that are cached, about 300 bytes each: clients repeat their operations."""

_LONGEST_REMEMBERED = 255
"""Characters of a cached resource's name: a group's name may be as long as a client likes."""

_log = structlog.get_logger("anabranch.auth")


class RuleAuthorizer:
    """Decides by ``rules``.

    ``supers`` (of the form KIND:NAME) may do everything. ``otherwise`` is the answer where no rule is about a resource.
    ``denied`` is called for every denial except of DESCRIBE: a list silently leaves out what the client may not see.
    """

    def __init__(
        self, rules: Rules, supers: frozenset[str], *, otherwise: bool, denied: Callable[[], None] = lambda: None
    ) -> None:
        self._rules = rules
        self._supers = supers
        self._otherwise = otherwise
        self._denied = denied
        self._known: dict[tuple[Principal, Operation, Resource | ResourceKind], bool] = {}

    def changed(self) -> None:
        """Forget the cached answers. To be called after every change of the rules."""
        self._known.clear()

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        found = self._answer(principal, operation, resource)
        if not found and operation is not Operation.DESCRIBE:
            self._denied()
            _log.warning(
                "denied",
                principal=str(principal),
                host=principal.host,
                operation=operation.name.lower(),
                resource=resource.kind.value,
                name=resource.name,
            )
        return found

    def allows_any(self, principal: Principal, operation: Operation, kind: ResourceKind) -> bool:
        return self._answer(principal, operation, kind)

    def stand_in(self, principal: Principal) -> Principal | None:
        return principal if principal.host in self._rules.hosts else principal.at("")

    def _answer(self, principal: Principal, operation: Operation, about: Resource | ResourceKind) -> bool:
        asked = (principal, operation, about)
        found = self._known.get(asked)
        if found is None:
            verdict = self._verdict(principal, operation, about)
            found = (self._otherwise if verdict is None else verdict) or str(principal) in self._supers
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if not isinstance(about, Resource) or len(about.name) <= _LONGEST_REMEMBERED:
                self._known[asked] = found
        return found

    def _verdict(self, principal: Principal, operation: Operation, about: Resource | ResourceKind) -> bool | None:
        if not isinstance(about, Resource):
            return self._rules.verdict_any(principal, operation, about)
        verdict = self._rules.verdict(principal, operation, about)
        if not verdict and operation is Operation.CREATE and about.kind is ResourceKind.TOPIC:
            # As in Kafka, a principal that may create on the cluster may create any topic.
            verdict = self._rules.verdict(principal, operation, NODE) or verdict
        return verdict
