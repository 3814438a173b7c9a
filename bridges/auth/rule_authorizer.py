"""The authorizer of a node whose clients may do what rules allow."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from bridges.auth import NODE, Operation, Principal, Resource, ResourceKind
from bridges.auth.rules import Rules

_REMEMBERED = 10_000
"""Answers that are kept, about 300 bytes each: what a client does it does again."""

_LONGEST_REMEMBERED = 255
"""Characters of a name: those of groups may be as long as a client likes."""

_log = structlog.get_logger("anabranch.auth")


class RuleAuthorizer:
    """Decides by ``rules``. ``supers`` (of the form KIND:NAME) may do everything; ``otherwise`` is the answer where no
    rule is about a resource. ``denied`` is called for every denial, but for those to describe: whatever lists things
    leaves out what may not be seen."""

    def __init__(
        self, rules: Rules, supers: frozenset[str], *, otherwise: bool, denied: Callable[[], None] = lambda: None
    ) -> None:
        self._rules = rules
        self._supers = supers
        self._otherwise = otherwise
        self._denied = denied
        self._known: dict[tuple[Principal, Operation, Resource | ResourceKind], bool] = {}

    def changed(self) -> None:
        """To be called after every change of the rules."""
        self._known.clear()

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        asked = (principal, operation, resource)
        found = self._known.get(asked)
        if found is None:
            verdict = self._rules.verdict(principal, operation, resource)
            if not verdict and operation is Operation.CREATE and resource.kind is ResourceKind.TOPIC:
                # Kafka's rule: who may create on the cluster may create any topic.
                verdict = self._rules.verdict(principal, operation, NODE) or verdict
            found = self._remember(asked, self._otherwise if verdict is None else verdict)
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
        asked = (principal, operation, kind)
        found = self._known.get(asked)
        if found is None:
            verdict = self._rules.verdict_any(principal, operation, kind)
            found = self._remember(asked, self._otherwise if verdict is None else verdict)
        return found

    def _remember(self, asked: tuple[Principal, Operation, Resource | ResourceKind], answer: bool) -> bool:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        answer = answer or str(asked[0]) in self._supers
        if not isinstance(asked[2], Resource) or len(asked[2].name) <= _LONGEST_REMEMBERED:
            self._known[asked] = answer
        return answer
