"""Quotas over HTTP: list, set, remove."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from bridges.auth import Operation
from bridges.auth.quotas import FIELDS, Entity, QuotaError, QuotaKey, check, entity_of, key_of, parts_of
from bridges.console import paging
from bridges.console.handlers import Handlers
from bridges.http import rows
from bridges.http.bodies import json_object
from bridges.http.errors import RequestError

_Quota = tuple[Entity, Mapping[QuotaKey, float]]


class QuotaHandlers(Handlers):
    """Handlers of ``/api/quotas``. Seeing quotas needs DESCRIBE_CONFIGS on the node, changing them ALTER_CONFIGS."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/quotas", self.list)
        app.router.add_post("/api/quotas", self.set)
        app.router.add_post("/api/quotas/remove", self.remove)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """List all quotas, or a page of them (:mod:`bridges.console.paging`)."""
        self._access.require_node(request, Operation.DESCRIBE_CONFIGS)
        return await paging.listed(request, "quotas", await self._node.client_quotas.find({}), _name, _as_json)

    async def set(self, request: web.Request) -> web.StreamResponse:
        """Set quotas of an entity.

        Body: ``entity``, an object with ``user``, ``client-id``, both, or ``ip`` (null: the default); ``values``, an
        object of quotas.
        """
        self._access.require_node(request, Operation.ALTER_CONFIGS)
        body = await json_object(request, {"entity", "values"})
        values = body.get("values")
        if not isinstance(values, dict) or not all(_is_number(one) for one in values.values()):
            raise RequestError("values is to be an object of numbers")
        try:
            entity = _entity(body)
            changes = [(entity, *check(entity, key, value)) for key, value in values.items()]
        except QuotaError as error:
            raise RequestError(str(error)) from None
        await self._node.client_quotas.alter(changes)
        return await rows.answer(
            request, "quotas", [_as_json((entity, self._node.client_quotas.rules.find_limits(entity)))]
        )

    async def remove(self, request: web.Request) -> web.StreamResponse:
        """Remove quotas of an entity. Body: ``entity``; ``keys``, a list of quotas (default: all)."""
        self._access.require_node(request, Operation.ALTER_CONFIGS)
        body = await json_object(request, {"entity", "keys"})
        keys = body.get("keys", [])
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise RequestError("keys is to be a list of names")
        try:
            entity = _entity(body)
            gone = [key_of(entity, key) for key in keys] or list(self._node.client_quotas.rules.find_limits(entity))
        except QuotaError as error:
            raise RequestError(str(error)) from None
        await self._node.client_quotas.alter([(entity, key, None) for key in gone])
        return await rows.answer(
            request, "quotas", [_as_json((entity, self._node.client_quotas.rules.find_limits(entity)))]
        )


def _entity(body: dict[str, Any]) -> Entity:
    parts = body.get("entity")
    if not isinstance(parts, dict) or not all(one is None or isinstance(one, str) for one in parts.values()):
        raise RequestError(f"entity is to be an object of names: {', '.join(FIELDS)}")
    return entity_of(parts)


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < 1e300


def _name(one: _Quota) -> str:
    return " ".join(f"{kind} {name or ''}" for kind, name in parts_of(one[0]).items())


def _as_json(one: _Quota) -> dict[str, object]:
    return {"entity": parts_of(one[0]), "values": {key.value: value for key, value in one[1].items()}}
