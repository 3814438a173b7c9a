"""Health and metrics over HTTP for a process that is no node and has no console."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from bridges.net.address import Address
from bridges.net.http_site import HttpSite

_CONNECTIONS = 200
_REQUEST_S = 60.0


class Patient(Protocol):
    """What is asked how it is."""

    @property
    def failure(self) -> str | None:
        """Why it cannot go on; None while it can."""

    @property
    def is_serving(self) -> bool:
        """Whether clients are welcome now."""


class HealthServer:
    """``/healthz``, ``/readyz`` and ``/metrics``, answered as a node answers them (docs/operations.md)."""

    def __init__(self, patient: Patient, render: Callable[[], Awaitable[bytes]]) -> None:
        self._patient = patient
        self._render = render
        self._site = HttpSite(most_connections=_CONNECTIONS, request_seconds=_REQUEST_S)

    async def start(self, address: Address) -> Address:
        """Listen; returns the real address. Raises OSError."""
        app = web.Application()
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        return await self._site.start(app, address)

    async def stop(self) -> None:
        """Close everything. Idempotent."""
        await self._site.stop()

    async def _health(self, request: web.Request) -> web.Response:
        failure = self._patient.failure
        return web.json_response(
            {"healthy": failure is None, "failure": failure}, status=200 if failure is None else 503
        )

    async def _ready(self, request: web.Request) -> web.Response:
        ready = self._patient.failure is None and self._patient.is_serving
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=await self._render(), headers={"Content-Type": CONTENT_TYPE_LATEST})
