"""Quotas over HTTP: list, set, remove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from bridges.auth import Operation
from bridges.auth.quotas import Entity, QuotaError, QuotaKey, check, entity_of, key_of, parts_of
from bridges.catalog.client_quotas import Change
from bridges.console import paging
from bridges.console.handlers import Handlers, route
from bridges.console.paging import ListQuery
from bridges.http import rows
from bridges.http.errors import RequestError

_Quota = tuple[Entity, Mapping[QuotaKey, float]]
_Parts = Annotated[dict[str, str | None], Meta(description="user, client-id, both, or ip; null is the default")]


class NewQuotas(Struct, frozen=True):
    """Quotas to set."""

    entity: _Parts
    values: dict[str, Annotated[float, Meta(gt=-1e300, lt=1e300)]]


class OldQuotas(Struct, frozen=True):
    """Quotas to remove: those named, or all."""

    entity: _Parts
    keys: list[str] = []


class QuotaHandlers(Handlers):
    """Handlers of ``/api/quotas``."""

    @route("GET /api/quotas", "Quotas", Operation.DESCRIBE_CONFIGS, query=ListQuery)
    async def list(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """List all quotas, or a page of them (:mod:`bridges.console.paging`)."""
        found = await self._node.client_quotas.find({})
        return await paging.listed(request, query.page, "quotas", found, _name, _as_json)

    @route("POST /api/quotas", "Set quotas", Operation.ALTER_CONFIGS, body=NewQuotas)
    async def set(self, request: web.Request, body: NewQuotas) -> web.StreamResponse:
        try:
            entity = entity_of(body.entity)
            changes = [(entity, *check(entity, key, value)) for key, value in body.values.items()]
        except QuotaError as error:
            raise RequestError(str(error)) from None
        return await self._change(request, entity, changes)

    @route("POST /api/quotas/remove", "Remove quotas", Operation.ALTER_CONFIGS, body=OldQuotas)
    async def remove(self, request: web.Request, body: OldQuotas) -> web.StreamResponse:
        try:
            entity = entity_of(body.entity)
            limits = self._node.client_quotas.rules.find_limits(entity)
            gone = [key_of(entity, key) for key in body.keys] or list(limits)
        except QuotaError as error:
            raise RequestError(str(error)) from None
        return await self._change(request, entity, [(entity, key, None) for key in gone])

    async def _change(self, request: web.Request, entity: Entity, changes: Sequence[Change]) -> web.StreamResponse:
        quotas = self._node.client_quotas
        await quotas.alter(changes)
        return await rows.answer(request, "quotas", [_as_json((entity, quotas.rules.find_limits(entity)))])


def _name(one: _Quota) -> str:
    return " ".join(f"{kind} {name or ''}" for kind, name in parts_of(one[0]).items())


def _as_json(one: _Quota) -> dict[str, object]:
    return {"entity": parts_of(one[0]), "values": {key.value: value for key, value in one[1].items()}}
