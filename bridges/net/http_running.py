"""An aiohttp application that serves the connections of a :class:`bridges.net.http_site.HttpSite`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_SHUTDOWN_S = 2.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Told = Callable[[asyncio.Transport], None]
"""Is told that a request of a connection begins, or ends."""


class _PeersFault(logging.Filter):
    """What is no HTTP, or a peer that does not stay for the answer: for those who debug, in a line, no traceback.

    Nor does the error keep its traceback: aiohttp keeps the error in one of its frames, and with it the connection.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | ConnectionError):
            logger.debug("%s: %s", record.getMessage(), str(error).partition("\n")[0])
            error.__traceback__ = None
            return False
        return record.levelno > logging.DEBUG


logger = logging.getLogger(__name__)
_server_logger = logging.getLogger(f"{__name__}.server")
_server_logger.addFilter(_PeersFault())
_server_logger.setLevel(logging.DEBUG)  # at which aiohttp tells of some of them


class Running:
    """What :func:`run` started."""

    __slots__ = ("_runner", "protocol")

    def __init__(self, runner: web.AppRunner, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._runner = runner
        self.protocol = protocol
        """Makes what serves one more connection."""

    async def stop(self) -> None:
        """Finish requests in progress for a short time, then close everything."""
        await self._runner.cleanup()


async def run(app: web.Application, begins: Told, ends: Told, handler_cancellation: bool) -> Running:
    """Have ``app``, which must not be running, serve; ``begins`` and ``ends`` are told of requests."""

    @web.middleware
    async def in_progress(request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            return await handler(request)
        begins(transport)
        try:
            return await handler(request)
        except web.HTTPException as refused:
            # Not raised further: the request that is refused keeps it, as a path that there is not, and it its frames.
            refused.__traceback__ = None
            return _told(refused)
        finally:
            ends(transport)

    app.middlewares.insert(0, in_progress)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_server_logger,
        handler_cancellation=handler_cancellation,
        shutdown_timeout=_SHUTDOWN_S,
    )
    await runner.setup()
    assert runner.server is not None, "set up above"
    return Running(runner, runner.server)


def _told(refused: web.HTTPException) -> web.Response:
    """The answer that an exception is."""
    return web.Response(status=refused.status, reason=refused.reason, headers=refused.headers, body=refused.body)
