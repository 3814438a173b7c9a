"""Requests to servers whose answer a caller awaits: checked, and repeated where a repetition does no harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from msgspec import Struct

from sbp_back.errors import ConnectionLost, ErrorCode, FencedError, SbpError
from sbp_back.transport.carrier import Carrier
from sbp_back.wire.model import ListRangeRequest, ListRangeResponse, RangeInfo, Request, Response, SealRangeRequest

A = TypeVar("A")
T = TypeVar("T", bound=Response)

TRANSIENT_CODES = frozenset(
    {
        int(ErrorCode.TOO_MANY_REQUESTS),
        int(ErrorCode.PD_INTERNAL_SERVER_ERROR),
        int(ErrorCode.PD_NO_AVAILABLE_RS),
        int(ErrorCode.PD_NOT_LEADER),
        int(ErrorCode.RS_INTERNAL_SERVER_ERROR),
    }
)
"""Refusals that may not recur when the request is repeated."""


class ControlOptions(Struct):
    """Seconds. ``timeout``: of one try; ``delay_first``, ``delay_limit``: pause before the next, doubled each time."""

    timeout: float = 10.0
    tries: int = 5
    delay_first: float = 0.05
    delay_limit: float = 1.0


def error_of(response: Response) -> SbpError:
    """Return the failure that a response reports, as an exception."""
    status = response.status
    if status.code == ErrorCode.EXPIRED_RANGE_EPOCH:
        return FencedError(status.code, status.message)
    return SbpError(status.code, status.message)


async def ask(carrier: Carrier, request: Request, kind: type[T], options: ControlOptions) -> T:
    """Return the good answer to ``request``, tried once. Raises ``SbpError``, ``FencedError`` for code 1471."""
    response = await carrier.call(request, options.timeout)
    if not response.status.ok:
        raise error_of(response)
    if not isinstance(response, kind):
        raise SbpError(ErrorCode.DECODE, f"{type(response).__name__} is no answer to {type(request).__name__}")
    return response


async def ask_repeatedly(carrier: Carrier, request: Request, kind: type[T], options: ControlOptions) -> T:
    """Ask as :func:`ask` does, repeated as :func:`repeatedly` does: for requests that may be served more than once."""
    return await repeatedly(lambda: ask(carrier, request, kind, options), options)


async def repeatedly(attempt: Callable[[], Awaitable[A]], options: ControlOptions) -> A:
    """Call ``attempt``, which must be harmless to repeat, until it succeeds, fails for good or was made
    ``options.tries`` times; return its result. Raises ``SbpError``.
    """
    delay = options.delay_first
    for _ in range(options.tries - 1):
        try:
            return await attempt()
        except ConnectionLost:
            pass
        except SbpError as error:
            if error.code not in TRANSIENT_CODES:
                raise
        await asyncio.sleep(delay)
        delay = min(2 * delay, options.delay_limit)
    return await attempt()


@asynccontextmanager
async def opening(stream_id: int, seconds: float) -> AsyncIterator[None]:
    """Raise ``ConnectionLost`` when opening a stream takes longer than ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ConnectionLost(f"stream {stream_id} could not be opened in {seconds:g} s") from None


def tell_end(carrier: Carrier, sealed: RangeInfo, options: ControlOptions) -> None:
    """Tell a range server where the placement driver has ended a range, without waiting for the answer. The placement
    driver does so too, and repeats it, but later.
    """
    carrier.submit(SealRangeRequest.decided(sealed), _ignore, options.timeout)


def _ignore(answer: object) -> None:
    pass


async def list_ranges(pd: Carrier, stream_id: int, options: ControlOptions) -> list[RangeInfo]:
    """Return the ranges of a stream as the placement driver knows them, in order. Raises ``SbpError``."""
    response = await ask_repeatedly(pd, ListRangeRequest(stream_id=stream_id), ListRangeResponse, options)
    return sorted(response.ranges, key=lambda known: known.index)
