"""Access rules over HTTP: list, add, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from aiohttp import web
from msgspec import Meta, Struct

from bridges.auth import Operation, ResourceKind
from bridges.auth.rules import ANY, InvalidRule, Pattern, Rule, RuleFilter
from bridges.console import paging
from bridges.console.handlers import Handlers, route
from bridges.console.paging import ListQuery
from bridges.http import rows
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.catalog.access_rules import AccessRules

_Word = TypeVar("_Word", ResourceKind, Pattern, Operation)


class NewRule(Struct, frozen=True, kw_only=True):
    """A rule to add."""

    resource: str
    pattern: str = Pattern.LITERAL.value
    name: str = ""
    principal: str = ""
    host: str = ANY
    operation: str
    allow: bool = True


class Matching(Struct, frozen=True, kw_only=True):
    """Fields that rules must have."""

    resource: str | None = None
    pattern: str | None = None
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    allow: bool | None = None


class RuleQuery(Matching, frozen=True, kw_only=True):
    """Query for access rules: by their fields, or by the resource that they are about."""

    about: Annotated[str, Meta(description="Rules about the resource with this name; needs resource.")] | None = None


class AccessRuleHandlers(Handlers):
    """Handlers of ``/api/acls``."""

    @route("GET /api/acls", "Rules of who may do what", Operation.DESCRIBE, query=(RuleQuery, ListQuery))
    async def list(self, request: web.Request, query: RuleQuery, asked: ListQuery) -> web.StreamResponse:
        """List the rules that match the query, all or a page of them (:mod:`bridges.console.paging`).

        A page's search looks at resource, name, principal and operation.
        """
        found = await self._rules().find(_filter(query, query.about))
        return await paging.listed(request, asked.page, "acls", found, _name, _as_json)

    @route("POST /api/acls", "Add a rule", Operation.ALTER, body=NewRule, status=201)
    async def add(self, request: web.Request, body: NewRule) -> web.StreamResponse:
        rule = _rule(body)
        await self._rules().add([rule])
        return await rows.answer(request, "acls", [_as_json(rule)], status=201)

    @route("POST /api/acls/remove", "Remove the rules that agree with all of this", Operation.ALTER, body=Matching)
    async def remove(self, request: web.Request, body: Matching) -> web.StreamResponse:
        if body == Matching():
            raise RequestError("say which rules: at least one field")
        gone = await self._rules().remove([_filter(body)])
        return await rows.answer(request, "acls", map(_as_json, gone[0]))

    def _rules(self) -> AccessRules:
        if self._node.access_rules is None:
            raise RequestError("no access rules hold on this node: auth.rules is off", 409)
        return self._node.access_rules


def _name(rule: Rule) -> str:
    return f"{rule.kind.value} {rule.name} {rule.principal} {rule.operation.name.lower()}"


def _as_json(rule: Rule) -> dict[str, object]:
    return {
        "resource": rule.kind.value,
        "pattern": rule.pattern.value,
        "name": rule.name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.name.lower(),
        "allow": rule.allow,
    }


def _rule(given: NewRule) -> Rule:
    """Build a rule. Raises RequestError."""
    kind, operation = _word(ResourceKind, given.resource, "resource"), _word(Operation, given.operation, "operation")
    pattern = _word(Pattern, given.pattern, "pattern")
    try:
        return Rule(kind, pattern, given.name, given.principal, given.host, operation, given.allow).check()
    except InvalidRule as error:
        raise RequestError(str(error)) from None


def _filter(given: Matching, about: str | None = None) -> RuleFilter:
    """Build a filter. Raises RequestError."""
    return RuleFilter(
        kind=None if given.resource is None else _word(ResourceKind, given.resource, "resource"),
        pattern=None if given.pattern is None else _word(Pattern, given.pattern, "pattern"),
        name=given.name if about is None else about,
        matching=about is not None,
        principal=given.principal,
        host=given.host,
        operation=None if given.operation is None else _word(Operation, given.operation, "operation"),
        allow=given.allow,
    )


def _word(kind: type[_Word], given: str, field: str) -> _Word:
    words = {one.name.lower() if kind is Operation else one.value: one for one in kind}
    found = words.get(given.replace("-", "_") if kind is Operation else given)
    if found is None:
        raise RequestError(f"{field} is to be one of {', '.join(words)}")
    return found
