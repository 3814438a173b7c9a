"""Reconciliation of a server that was down with what the placement driver decided meanwhile.

The placement driver is the authority on which streams exist, how far they are trimmed and where ranges end. Data is
destroyed only on its explicit word that a stream was deleted or trimmed; a placement driver that has merely never heard
of a stream (it lost its state, or it is another one) destroys nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from sbp_back.errors import ErrorCode, SbpError
from sbp_back.range_server.ranges import RangeTable
from sbp_back.wire import model as m

if TYPE_CHECKING:
    from sbp_back.transport.carrier import Carrier

logger = logging.getLogger(__name__)

_CONCURRENCY = 256
"""Streams asked for at the same time: a placement driver reads them together."""


class Reconciled(Struct):
    """Counts of changes; ``unknown`` are streams the placement driver has never heard of, left alone."""

    deleted: int = 0
    trimmed: int = 0
    sealed: int = 0
    unknown: int = 0


async def reconcile(
    table: RangeTable,
    server_id: int,
    pd: Carrier,
    call: Callable[[m.Request], Awaitable[m.Response]],
    streams: Iterable[int] | None = None,
) -> Reconciled:
    """Reconcile the ranges of ``table``. ``call`` serves a request on the server itself; ``streams``: those to
    reconcile, None for all.

    Raises ``SbpError`` when the placement driver or the store cannot be asked; what was done until then stays done and
    the rest can be repeated.
    """
    done = Reconciled()
    stream_ids = iter(table.stream_ids() if streams is None else streams)
    failures: list[SbpError] = []

    async def work() -> None:
        try:
            for stream_id in stream_ids:
                if failures:
                    break
                await _reconcile_stream(table, server_id, stream_id, pd, call, done)
        except SbpError as error:
            failures.append(error)

    # Asking for one stream after the other would delay the start of a server with many streams by seconds.
    await asyncio.gather(*(work() for _ in range(_CONCURRENCY)))
    if failures:
        raise failures[0]
    return done


async def _reconcile_stream(
    table: RangeTable,
    server_id: int,
    stream_id: int,
    pd: Carrier,
    call: Callable[[m.Request], Awaitable[m.Response]],
    done: Reconciled,
) -> None:
    listed = _checked(await pd.call(m.ListRangeRequest(stream_id=stream_id)))
    if isinstance(listed, m.ListRangeResponse) and listed.ranges:
        here = [known for known in listed.ranges if any(server.server_id == server_id for server in known.servers)]
        await _apply(table, stream_id, listed.ranges[0].start, here, call, done)
        return
    described = await pd.call(m.DescribeStreamRequest(stream_id))
    if described.status.code != ErrorCode.NOT_FOUND:
        _checked(described)
    elif described.status.detail == m.DELETED_DETAIL:
        _checked(await call(m.DeleteStreamRequest(stream_id)))
        done.deleted += 1
        return
    done.unknown += 1
    logger.warning("the placement driver knows no ranges of stream %d, which has data here: kept", stream_id)


async def _apply(
    table: RangeTable,
    stream_id: int,
    smallest: int,
    ranges: list[m.RangeInfo],
    call: Callable[[m.Request], Awaitable[m.Response]],
    done: Reconciled,
) -> None:
    newest = max((state.index for state in table.of_stream(stream_id)), default=-1)
    for known in ranges:
        state = table.by_key.get((stream_id, known.index))
        if known.end < 0 or (state is None and known.index <= newest):
            continue  # a range that was trimmed away here is not created again
        if state is None or not state.sealed or state.stored.end > known.end or state.waiters:
            # The epoch does not matter: the placement driver never changes an end that it has given.
            _checked(await call(m.SealRangeRequest.decided(known)))
            done.sealed += 1
        else:
            state.decide(known.end)
    states = table.of_stream(stream_id)
    if states and states[0].stored.min_offset < min(smallest, states[-1].confirm_offset):
        _checked(await call(m.TrimStreamRequest(stream_id, smallest)))
        done.trimmed += 1


def _checked(response: m.Response) -> m.Response:
    status = response.status
    if not status.ok:
        raise SbpError(status.code, status.message)
    return response
