"""Reporter that tells the placement driver, every few seconds, that a range server lives, its load, and its new objects
of ranges.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sbp_back.errors import ConnectionLost, ErrorCode
from sbp_back.wire import model as m

if TYPE_CHECKING:
    from sbp_back.transport.carrier import Carrier

logger = logging.getLogger(__name__)


_MOST_OBJECTS = 100
"""Most objects reported at once."""
_SETTLED = frozenset(
    map(
        int,
        (
            ErrorCode.OK,
            ErrorCode.BAD_REQUEST,
            ErrorCode.NOT_FOUND,
            ErrorCode.RANGE_NOT_FOUND,
            ErrorCode.UNSUPPORTED_OPERATION,
        ),
    )
)


class Reporter:
    """Sends HEARTBEAT and REPORT_METRICS every ``interval`` seconds (3 s in elastic-stream).

    ``metrics`` gets the seconds since its last call and returns the figures of that time; ``untold`` returns objects to
    report, each once.
    """

    def __init__(
        self,
        pd: Carrier,
        info: m.RangeServerInfo,
        metrics: Callable[[float], m.RangeServerMetrics],
        interval: float,
        loop: asyncio.AbstractEventLoop,
        untold: Callable[[int], list[m.ObjectInfo]] = lambda _most: [],
    ) -> None:
        self._untold = untold
        self._again: list[m.ObjectInfo] = []
        """Objects that the placement driver has not confirmed."""
        self._pd = pd
        self._info = info
        self._metrics = metrics
        self._interval = interval
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._reported = loop.time()
        self._unheard = False

    async def announce(self) -> bool:
        """Send the first report and start sending the others; return True when the placement driver took it."""
        try:
            response = await self._pd.call(self._heartbeat(), timeout=self._interval)
            metrics = await self._pd.call(self._report(), timeout=self._interval)
        except ConnectionLost as error:
            self._note(error)
            accepted = False
        else:
            accepted = response.status.ok and metrics.status.ok
        self._timer = self._loop.call_later(self._interval, self._tick)
        return accepted

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _heartbeat(self) -> m.HeartbeatRequest:
        return m.HeartbeatRequest(f"range-server-{self._info.server_id}", m.ClientRole.RANGE_SERVER, self._info)

    def _report(self) -> m.ReportMetricsRequest:
        now = self._loop.time()
        seconds, self._reported = now - self._reported, now
        return m.ReportMetricsRequest(self._info, self._metrics(seconds))

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._tick)
        self._pd.submit(self._heartbeat(), self._note, self._interval)
        self._pd.submit(self._report(), self._note, self._interval)
        known, self._again = self._again, []
        for one in known + self._untold(_MOST_OBJECTS - len(known)):
            self._pd.submit(m.CommitObjectRequest(one), partial(self._keep_if_unknown, one), self._interval)

    def _keep_if_unknown(self, what: m.ObjectInfo, response: m.Response | ConnectionLost) -> None:
        # A refusal is final for streams and ranges that are gone, and from placement drivers without this request.
        if isinstance(response, ConnectionLost) or response.status.code not in _SETTLED:
            self._again.append(what)

    def _note(self, response: m.Response | ConnectionLost) -> None:
        """Log a change for the worse or the better once, not every few seconds."""
        failed = isinstance(response, ConnectionLost) or not response.status.ok
        if failed and not self._unheard:
            logger.warning("range server %d cannot report to the placement driver: %s", self._info.server_id, response)
        elif self._unheard and not failed:
            logger.info("range server %d reports to the placement driver again", self._info.server_id)
        self._unheard = failed
