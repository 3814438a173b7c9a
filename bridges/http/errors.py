"""Errors as HTTP answers: a JSON object with ``error`` (a sentence) and ``kind`` (its class)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from bridges.catalog.access_rules import TooManyRules
from bridges.catalog.client_quotas import TooManyQuotas
from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.topics.names import InvalidTopicName
from bridges.catalog.topics.topic import InvalidPartitions, NameCollision, TopicExists, TopicNotFound
from bridges.catalog.views.transactions import NothingToAbort, TransactionNotFound
from bridges.errors import (
    BatchInvalid,
    BatchTooLarge,
    CannotMove,
    ImportFenced,
    LogDeleted,
    LogError,
    OffsetOutOfRange,
    StillReadable,
    StorageFull,
    TopicImporting,
    TopicInternal,
)
from bridges.http.site import BodyStalled

_log = structlog.get_logger("anabranch.console")


class BadLine(LogError):
    """A line is not a record; the message says why."""


_STATUS: tuple[tuple[type[LogError], int], ...] = (
    (TopicNotFound, 404),
    (LogDeleted, 404),
    (TopicExists, 409),
    (NameCollision, 409),
    (StillReadable, 409),
    (TopicImporting, 409),
    (TopicInternal, 409),
    (ImportFenced, 409),
    (InvalidTopicName, 400),
    (InvalidPartitions, 400),
    (InvalidConfig, 400),
    (BadLine, 400),
    (BatchInvalid, 400),
    (BatchTooLarge, 413),
    (OffsetOutOfRange, 416),
    (TooManyRules, 409),
    (TooManyQuotas, 409),
    (TransactionNotFound, 404),
    (NothingToAbort, 409),
    (CannotMove, 409),
    (StorageFull, 507),
)


class RequestError(Exception):
    """The request itself is wrong. ``status`` is the answer's, ``extra`` goes into its body."""

    def __init__(self, message: str, status: int = 400, **extra: object) -> None:
        super().__init__(message)
        self.status = status
        self.extra = extra


def status_of(error: LogError) -> int:
    """Return the HTTP status for an error of the log or the catalog."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 503


def error_body(error: Exception, **extra: object) -> dict[str, object]:
    return {"error": str(error), "kind": type(error).__name__, **extra}


def error_response(error: Exception, status: int, **extra: object) -> web.Response:
    return web.json_response(error_body(error, **extra), status=status)


@web.middleware
async def errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every error into a JSON answer; log unexpected ones and answer them with 500."""
    try:
        return await handler(request)
    except RequestError as error:
        return error_response(error, error.status, **error.extra)
    except LogError as error:
        return error_response(error, status_of(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        error.__traceback__ = None  # the refused request may keep the exception, and that its frames
        return error_response(RequestError(error.reason), error.status)
    except BodyStalled as error:
        return error_response(error, 408)
    except web.RequestPayloadError as error:
        return error_response(RequestError(f"the body is not what its head says: {error}"), 400)
    except ConnectionError:
        raise  # the client has gone, so no answer can be sent
    except Exception:  # noqa: BLE001 - logged, and answered with 500
        _log.exception("request failed", method=request.method, path=request.path)
        return web.json_response({"error": "unexpected failure; see the node's log", "kind": "Internal"}, status=500)
