"""Access rules over HTTP: list, add, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from bridges.auth import Operation, ResourceKind
from bridges.auth.rules import ANY, InvalidRule, Pattern, Rule, RuleFilter
from bridges.console import paging
from bridges.console.handlers import Handlers
from bridges.http import rows
from bridges.http.bodies import json_object
from bridges.http.errors import RequestError

if TYPE_CHECKING:
    from bridges.catalog.access_rules import AccessRules

_FIELDS = {"resource", "pattern", "name", "principal", "host", "operation", "allow"}
_Word = TypeVar("_Word", ResourceKind, Pattern, Operation)


class AccessRuleHandlers(Handlers):
    """Handlers of ``/api/acls``. Changing rules needs ALTER on the node, seeing them DESCRIBE."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/acls", self.list)
        app.router.add_post("/api/acls", self.add)
        app.router.add_post("/api/acls/remove", self.remove)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """List the rules that match the query, all or a page of them (:mod:`bridges.console.paging`).

        Query: any of a rule's fields; ``about``, with ``resource``: the rules about the resource of that name. A page's
        search looks at resource, name, principal and operation.
        """
        self._access.require_node(request, Operation.DESCRIBE)
        fields = {name: value for name, value in request.query.items() if name not in paging.FIELDS}
        found = await self._rules().find(_filter(fields))
        return await paging.listed(request, "acls", found, _name, _as_json)

    async def add(self, request: web.Request) -> web.StreamResponse:
        """Add a rule. Body: its fields; the defaults of pattern, host and allow are ``literal``, ``*`` and true."""
        self._access.require_node(request, Operation.ALTER)
        rule = _rule(await json_object(request, _FIELDS))
        await self._rules().add([rule])
        return await rows.answer(request, "acls", [_as_json(rule)], status=201)

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """Remove the rules that match all given fields, and return them. Body: any of a rule's fields."""
        self._access.require_node(request, Operation.ALTER)
        fields = await json_object(request, _FIELDS)
        if not fields:
            raise RequestError("say which rules: at least one field")
        gone = await self._rules().remove([_filter(fields)])
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


def _rule(fields: dict[str, Any]) -> Rule:
    """Build a rule from the fields of a body. Raises RequestError."""
    kind = _word(ResourceKind, fields.get("resource"), "resource")
    allow = fields.get("allow", True)
    if not isinstance(allow, bool):
        raise RequestError("allow is to be true or false")
    try:
        return Rule(
            kind,
            _word(Pattern, fields.get("pattern", Pattern.LITERAL.value), "pattern"),
            _text(fields, "name", ""),
            _text(fields, "principal", ""),
            _text(fields, "host", ANY),
            _word(Operation, fields.get("operation"), "operation"),
            allow,
        ).check()
    except InvalidRule as error:
        raise RequestError(str(error)) from None


def _filter(fields: dict[str, Any]) -> RuleFilter:
    """Build a filter from the fields of a query or body. Raises RequestError."""
    about = fields.pop("about", None)
    if unknown := sorted(fields.keys() - _FIELDS):
        raise RequestError(f"unknown field {unknown[0]!r}; there are about, {', '.join(sorted(_FIELDS))}")
    given = fields.get("allow")
    allow = {"true": True, "false": False}.get(str(given).lower())
    if given is not None and allow is None:
        raise RequestError("allow is to be true or false")
    return RuleFilter(
        kind=_word(ResourceKind, fields["resource"], "resource") if "resource" in fields else None,
        pattern=_word(Pattern, fields["pattern"], "pattern") if "pattern" in fields else None,
        name=fields.get("name") if about is None else about,
        matching=about is not None,
        principal=fields.get("principal"),
        host=fields.get("host"),
        operation=_word(Operation, fields["operation"], "operation") if "operation" in fields else None,
        allow=allow,
    )


def _word(kind: type[_Word], given: Any, field: str) -> _Word:
    words = {one.name.lower() if kind is Operation else one.value: one for one in kind}
    found = words.get(given.replace("-", "_") if kind is Operation else given) if isinstance(given, str) else None
    if found is None:
        raise RequestError(f"{field} is to be one of {', '.join(words)}")
    return found


def _text(fields: dict[str, Any], field: str, default: str) -> str:
    text = fields.get(field, default)
    if not isinstance(text, str):
        raise RequestError(f"{field} is to be text")
    return text
