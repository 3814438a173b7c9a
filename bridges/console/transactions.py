"""Transactions over HTTP: those that the node's fronts coordinate, by their transactional ids."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial

import structlog
from aiohttp import web

from bridges.auth import Operation
from bridges.catalog.transaction_view import TransactionDirectory, TransactionView
from bridges.console import paging, rows
from bridges.console.access import Access, principal_of
from bridges.console.errors import RequestError
from bridges.console.host import Host
from bridges.console.paging import Page, flag, page_of
from bridges.turns import in_order, sorting

_log = structlog.get_logger("anabranch.console")


_Others = Mapping[tuple[str, str], TransactionView]
"""What other nodes coordinate, by transactional id and front."""


class TransactionHandlers:
    """``/api/transactions`` and what lies below it."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._access = Access(node.authorizer)

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/transactions", self.list)
        app.router.add_get("/api/transactions/{transaction}", self.describe)
        app.router.add_post("/api/transactions/{transaction}/abort", self.abort)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """All transactional ids in alphabetical order, or a page of them (:mod:`bridges.console.paging`). Query:
        ``open``, only those of which something is."""
        only_open = flag(request, "open")
        page = page_of(request, {"name"})
        others = await self._others()
        if page is None:
            return await rows.answer(request, "transactions", self._rows(request, only_open, others))
        names = self._names(request, only_open, page, others)
        found, total = await paging.chosen(names, page, descending=page.descending)
        return await paging.answer("transactions", found, partial(self._told, others=others), page, total)

    async def _others(self) -> _Others:
        return {
            (view.transactional_id, front): view
            for front, directory in self._node.transaction_directories.items()
            for view in await directory.others()
        }

    def _views(self, others: _Others) -> Iterator[tuple[tuple[str, str], TransactionView]]:
        for front, directory in self._node.transaction_directories.items():
            for view in directory.transactions():
                if (view.transactional_id, front) not in others:
                    yield (view.transactional_id, front), view
        yield from others.items()

    def _names(
        self, request: web.Request, only_open: bool, page: Page, others: _Others
    ) -> Iterator[tuple[str, str] | None]:
        for name, view in self._views(others):
            wanted = (view.started_ms is not None or not only_open) and page.finds(name[0])
            shown = wanted and self._access.transaction(request, Operation.DESCRIBE, name[0])
            yield name if shown else None

    def _told(self, one: tuple[str, str], others: _Others) -> Iterator[dict[str, object]]:
        found = others.get(one) or self._node.transaction_directories[one[1]].view(one[0])
        if found is not None:
            yield told(one[1], found, _now_ms())

    def _rows(self, request: web.Request, only_open: bool, others: _Others) -> Iterator[dict[str, object] | None]:
        now_ms = _now_ms()
        names: list[tuple[str, str]] = []
        directories = self._node.transaction_directories
        for name, view in self._views(others):
            if view.started_ms is not None or not only_open:
                names.append(name)
            yield None
        for one in sorting(names):
            if one is None or not self._access.transaction(request, Operation.DESCRIBE, one[0]):
                yield None
                continue
            found = others.get(one) or directories[one[1]].view(one[0])
            yield None if found is None else told(one[1], found, now_ms)

    async def describe(self, request: web.Request) -> web.StreamResponse:
        """One transactional id, and of an open transaction the groups and ``partitions`` that are part of it."""
        name = request.match_info["transaction"]
        self._access.require_transaction(request, Operation.DESCRIBE, name)
        front, _, view = await self._found(name)

        def partitions() -> Iterator[dict[str, object] | None]:
            for topic in sorting([*view.places]):
                if topic is None or not self._access.topic(request, Operation.DESCRIBE, topic):
                    yield None
                    continue
                for partition in sorted(view.places.get(topic, ())):
                    yield {"topic": topic, "partition": partition}

        groups = [one async for one in in_order([*view.groups]) if self._access.group(request, Operation.DESCRIBE, one)]
        head = {**told(front, view, _now_ms()), "groups": groups}
        return await rows.answer(request, "partitions", partitions(), head=head)

    async def abort(self, request: web.Request) -> web.Response:
        """Abort what is open of a transactional id. What it wrote is never shown, and its producer is fenced.

        Answers with the id as it is then: markers that take long are on their way still."""
        name = request.match_info["transaction"]
        self._access.require_transaction(request, Operation.WRITE, name)
        front, directory, before = await self._found(name)
        view = await directory.abort(name)
        _log.warning(
            "a transaction was aborted by an operator",
            transactional_id=name,
            producer_id=before.producer_id,
            user=str(principal_of(request)),
        )
        return web.json_response(told(front, view, _now_ms()))

    async def _found(self, name: str) -> tuple[str, TransactionDirectory, TransactionView]:
        for front, directory in self._node.transaction_directories.items():
            view = await directory.find(name)
            if view is not None:
                return front, directory, view
        raise RequestError(f"there is no transactional id {name!r}", 404)


def told(front: str, view: TransactionView, now_ms: int) -> dict[str, object]:
    """A transactional id in an answer; ``topics`` is how many its open transaction writes to."""
    return {
        "transactional_id": view.transactional_id,
        "front": front,
        "state": view.state,
        "producer_id": view.producer_id,
        "epoch": view.epoch,
        "timeout_ms": view.timeout_ms,
        "started_ms": view.started_ms,
        "open_ms": view.open_ms(now_ms),
        "topics": len(view.places),
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
