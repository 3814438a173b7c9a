"""The document's dialect as a handler: placement driver and range server behind one port.

The document has one server serve both kinds of frames; only SEAL_RANGES means something different to each. Here it has
the placement driver's meaning (seal and open the next range); :class:`RangeServerSide` gives it the other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from sbp_back.document.appends import Appends
from sbp_back.document.controls import Controls
from sbp_back.document.fetches import Fetches
from sbp_back.document.lanes import Lanes
from sbp_back.document.messages import AppendBatchRequest, FetchBatchRequest, SealRangesRequest
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.handler import Reply
from sbp_back.model import (
    AllocateIdRequest,
    DescribePdRequest,
    DescribePdResponse,
    DocumentRequest,
    DocumentResponse,
    GoAway,
    HeartbeatRequest,
    PdNode,
    PingRequest,
    ReportMetricsRequest,
    Request,
    Response,
    Status,
    SystemErrorResponse,
)

if TYPE_CHECKING:
    from sbp_back.carrier import Carrier
    from sbp_back.client import Client
    from sbp_back.placement_driver.driver import PlacementDriver
    from sbp_back.range_server.server import RangeServer

logger = logging.getLogger(__name__)


class DocumentServer:
    """Serves listeners of one dialect; ``lanes`` are shared by all. ``client`` and ``to_range_server`` lead to the
    placement driver and the range server of this process. ``pd_addr`` and ``range_server_addr``, "host:port", are what
    clients are told of the two: known once the listeners are bound.
    """

    def __init__(
        self,
        lanes: Lanes,
        client: Client,
        pd: PlacementDriver,
        range_server: RangeServer,
        to_range_server: Carrier,
    ) -> None:
        self.pd_addr = ""
        self.range_server_addr = ""
        self._pd = pd
        self._appends = Appends(lanes, to_range_server)
        self._fetches = Fetches(client)
        self._controls = Controls(lanes, client, pd, range_server, to_range_server, lambda: self.range_server_addr)
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, request: Request, reply: Reply) -> None:
        match request:
            case AppendBatchRequest():
                self._appends.handle(request, reply)
            case FetchBatchRequest():
                self._fetches.handle(request, reply)
            case DocumentRequest():
                self._start(self._controls.handle(request), reply)
            case PingRequest() | HeartbeatRequest() | AllocateIdRequest() | ReportMetricsRequest() | GoAway():
                self._pd.handle(request, reply)
            case DescribePdRequest():
                self._pd.handle(request, lambda response: reply(self._with_address(response)))
            case _:
                message = f"{type(request).__name__} is not of the document's dialect"
                reply(SystemErrorResponse(Status(ErrorCode.UNSUPPORTED_OPERATION, message)))

    def seal_on_server(self, request: SealRangesRequest, reply: Reply) -> None:
        """The range server's SEAL_RANGES."""
        self._start(self._controls.seal_on_server(request), reply)

    @property
    def waiting_fetches(self) -> int:
        """FETCH requests that are not answered in full."""
        return self._fetches.waiting

    def stop_waiting(self) -> None:
        """Answer waiting fetches with nothing, so that connections can drain."""
        self._fetches.stop_waiting()

    async def close(self) -> None:
        """Answer what is under way as failed. Idempotent."""
        self.stop_waiting()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _with_address(self, response: Response) -> Response:
        if isinstance(response, DescribePdResponse):
            # The address of another dialect would be of no use here.
            nodes = [PdNode(node.name, self.pd_addr, node.is_leader) for node in response.nodes]
            return DescribePdResponse(response.status, nodes)
        return response

    def _start(self, work: Awaitable[DocumentResponse], reply: Reply) -> None:
        task = asyncio.ensure_future(self._serve(work, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, work: Awaitable[DocumentResponse], reply: Reply) -> None:
        try:
            response: Response = await work
        except SbpError as error:
            response = SystemErrorResponse(Status(error.code, error.message))
        except asyncio.CancelledError:
            reply(SystemErrorResponse(Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "the server is shutting down")))
            raise
        except Exception:
            logger.exception("a request of sbp-v0.1 failed unexpectedly")
            status = Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "unexpected error, see the server's log")
            response = SystemErrorResponse(status)
        reply(response)


class RangeServerSide:
    """The same server as its range servers appear to a client that knows them and the placement driver apart."""

    def __init__(self, server: DocumentServer) -> None:
        self._server = server

    def handle(self, request: Request, reply: Reply) -> None:
        if isinstance(request, SealRangesRequest):
            self._server.seal_on_server(request, reply)
        else:
            self._server.handle(request, reply)
