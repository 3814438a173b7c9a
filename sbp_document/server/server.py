"""The document's dialect as a handler: placement driver and range server behind one port.

In the document one server serves both kinds of frames; only SEAL_RANGES means something different to each. Here it has
the placement driver's meaning (seal and open the next range); :class:`RangeServerSide` gives it the other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from anabranch_kit.run.deadlines import Deadlines
from sbp_back.errors import ErrorCode
from sbp_back.transport.handler import Answers, Reply
from sbp_back.wire import model as w
from sbp_document.server.appends import Appends
from sbp_document.server.controls import Controls
from sbp_document.server.fetches import Fetches
from sbp_document.server.lanes import Lanes
from sbp_document.timeouts import TimedReply
from sbp_document.wire import messages as m
from sbp_document.wire.messages import AppendBatchRequest, FetchBatchRequest, SealRangesRequest

if TYPE_CHECKING:
    from sbp_back.client.client import Client


class DocumentServer:
    """Serves listeners of one dialect; all share ``lanes``, ``client`` is one of the same servers. ``pd_addr`` and
    ``range_server_addr``, "host:port", are the addresses that clients are told: known once the listeners are bound.
    """

    def __init__(self, lanes: Lanes, client: Client) -> None:
        self.pd_addr = ""
        self.range_server_addr = ""
        self._pd = lanes.pd
        self._range_server = lanes.range_server
        self._appends = Appends(lanes)
        self._fetches = Fetches(client)
        self._controls = Controls(lanes, client, lambda: self.range_server_addr)
        self._loop = asyncio.get_running_loop()
        self._deadlines: Deadlines[TimedReply] = Deadlines(self._loop, TimedReply.expire, client.barrier)
        self._answers = Answers(client.barrier)

    def handle(self, request: w.Request, reply: Reply) -> None:
        match request:
            case AppendBatchRequest():
                self._appends.handle(request, reply)
            case FetchBatchRequest():
                self._fetches.handle(request, reply)
            case w.DocumentRequest():
                self._answers.give(self._timed(request, reply), self._controls.handle(request))
            case w.AllocateIdRequest():
                self._pd.handle(request, self._timed(request, reply))
            case w.PingRequest() | w.GoAway():
                self._pd.handle(request, reply)
            case w.HeartbeatRequest() | w.ReportMetricsRequest():
                self._report(request, reply)
            case w.DescribePdRequest():
                self._pd.handle(request, lambda response: reply(self._with_address(response)))
            case _:
                message = f"{type(request).__name__} is not of the document's dialect"
                reply(w.SystemErrorResponse.from_code(ErrorCode.UNSUPPORTED_OPERATION, message))

    def seal_on_server(self, request: SealRangesRequest, reply: Reply) -> None:
        """Serve the range server's SEAL_RANGES."""
        self._answers.give(self._timed(request, reply), self._controls.seal_on_server(request))

    @property
    def waiting_fetches(self) -> int:
        """Return the number of FETCH requests that are not answered in full."""
        return self._fetches.waiting

    @property
    def late_append_bytes(self) -> int:
        """Return the bytes of batches in flight whose requests were answered already, because their time was up."""
        return self._appends.late_bytes

    def stop_waiting(self) -> None:
        """Answer waiting fetches with nothing, so that connections can drain."""
        self._fetches.stop_waiting()

    async def close(self) -> None:
        """Answer requests in flight as failed. Idempotent."""
        self.stop_waiting()
        await self._answers.close()

    def _report(self, request: w.HeartbeatRequest | w.ReportMetricsRequest, reply: Reply) -> None:
        """Take a sign of life of a range server. Ours keeps its address, which is of another dialect, whatever a client
        of this listener reports for it.
        """
        own, said = self._range_server.info, request.range_server
        if said is None or said.server_id != own.server_id:
            self._pd.handle(request, reply)
            return

        def echo(response: w.Response) -> None:
            if isinstance(response, w.HeartbeatResponse | w.ReportMetricsResponse):
                response.range_server = said
            reply(response)

        self._pd.handle(replace(request, range_server=own), echo)

    def _with_address(self, response: w.Response) -> w.Response:
        if isinstance(response, w.DescribePdResponse):
            # Clients of this listener need its own address, not that of another dialect.
            nodes = [w.PdNode(node.name, self.pd_addr, node.is_leader) for node in response.nodes]
            return w.DescribePdResponse(response.status, nodes)
        return response

    def _timed(self, request: w.DocumentRequest | w.AllocateIdRequest, reply: Reply) -> Reply:
        """Return ``reply``, with the request's time limit if it has one."""
        late: Callable[[w.Status], w.Response]
        if isinstance(request, w.AllocateIdRequest):
            late = w.AllocateIdResponse
        elif isinstance(request, m.ControlRequest):
            late = partial(m.refusal, request)
        else:
            return reply
        if request.timeout_ms <= 0:
            return reply
        timed = TimedReply(reply, request.timeout_ms, late, self._deadlines)
        self._deadlines.add(timed, self._loop.time() + request.timeout_ms / 1000)
        return timed


class RangeServerSide:
    """The same server in the role of a range server, for a client that tells range servers from the placement
    driver.
    """

    def __init__(self, server: DocumentServer) -> None:
        self._server = server

    def handle(self, request: w.Request, reply: Reply) -> None:
        if isinstance(request, SealRangesRequest):
            self._server.seal_on_server(request, reply)
        else:
            self._server.handle(request, reply)
