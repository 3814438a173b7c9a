"""An aiohttp application that serves the connections of a :class:`bridges.http.site.HttpSite`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_SHUTDOWN_S = 2.0
_READ_BYTES = 32 * 1024
"""Half of the bytes of a body that are buffered for its reader before receiving pauses. The memory budget does not
count them, but the number of connections is bounded.
"""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Begins = Callable[[asyncio.Transport, web.Request], bool]
"""Called when a request of a connection begins; returns whether there is room for it."""
Refusal = Callable[[web.Request], str | None]
"""Returns why a request is refused, None if it is not."""
Ends = Callable[[asyncio.Transport], None]
"""Called when a request of a connection has ended."""


class _PeersFault(logging.Filter):
    """A log filter for errors of peers: bytes that are no HTTP, or a client that leaves early. One debug line, no
    traceback.

    It also clears the error's traceback: aiohttp keeps the error in one of its frames, and with it the connection.
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
_server_logger.setLevel(logging.DEBUG)  # the level at which aiohttp logs some of these errors


class Running:
    """A running application, as :func:`run` returns it."""

    __slots__ = ("_runner", "protocol")

    def __init__(self, runner: web.AppRunner, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._runner = runner
        self.protocol = protocol
        """Returns the protocol of one more connection."""

    async def stop(self) -> None:
        """Finish requests in progress for a short time, then close everything."""
        await self._runner.cleanup()


async def run(
    app: web.Application, refusal: Refusal, begins: Begins, ends: Ends, handler_cancellation: bool
) -> Running:
    """Serve requests with ``app``, which must not be running, and refuse those for which ``refusal`` gives a reason.

    ``begins`` and ``ends`` are called around each request.
    """

    @web.middleware
    async def in_progress(request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            return await handler(request)
        has_room = begins(transport, request)
        try:
            if not has_room:
                full = _refused("as many clients as may be served at the same time are, try again", 503)
                full.force_close()
                return full
            reason = refusal(request)
            if reason is not None:
                return _refused(reason, 403)
            return await handler(request)
        except web.HTTPException as refused:
            # Not re-raised: the refused request, for instance of an unknown path, would keep the exception, and that
            # its frames.
            refused.__traceback__ = None
            return _as_response(refused)
        finally:
            ends(transport)

    app.middlewares.insert(0, in_progress)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_server_logger,
        handler_cancellation=handler_cancellation,
        shutdown_timeout=_SHUTDOWN_S,
        read_bufsize=_READ_BYTES,
    )
    await runner.setup()
    assert runner.server is not None, "set up above"
    return Running(runner, runner.server)


def _refused(reason: str, status: int) -> web.Response:
    return web.json_response({"error": reason, "kind": "RequestError"}, status=status)


def _as_response(refused: web.HTTPException) -> web.Response:
    return web.Response(status=refused.status, reason=refused.reason, headers=refused.headers, body=refused.body)
