"""The placement driver as a handler of requests.

Requests that concern streams and ranges become transactions (``rules.py``); liveness and metrics of range servers
stay in memory. Behaviour: reference/sbp.md, sections 2.4 and 2.8.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.handler import Reply
from sbp_back.identity import pd_name
from sbp_back.model import (
    AllocateIdRequest,
    AppendRequest,
    ClientRole,
    CreateRangeRequest,
    CreateStreamRequest,
    DeleteStreamRequest,
    DescribePdRequest,
    DescribePdResponse,
    DescribeStreamRequest,
    DocumentRequest,
    FetchRequest,
    GoAway,
    HeartbeatRequest,
    HeartbeatResponse,
    ListRangeRequest,
    PdNode,
    PingRequest,
    PingResponse,
    RangeInfo,
    RangeServerInfo,
    RangeServerMetrics,
    ReportMetricsRequest,
    ReportMetricsResponse,
    Request,
    Response,
    SealRangeRequest,
    Status,
    StreamResponse,
    SystemErrorResponse,
    TrimStreamRequest,
    UpdateStreamRequest,
)
from sbp_back.placement_driver import rules
from sbp_back.placement_driver.servers import Servers
from sbp_back.placement_driver.session import PdSession
from sbp_back.placement_driver.state import PdState, StateError, Transaction

if TYPE_CHECKING:
    from sbp_back.carrier import Carrier

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)
T = TypeVar("T")


@dataclass(slots=True)
class PlacementDriverOptions:
    """``alive_seconds``: a range server that was silent for longer gets no new ranges (100 s upstream). ``name``: None
    for the one that tells the identity of the state. ``server_timeout``: seconds a range server has to answer before
    somebody who waits for that is told so."""

    name: str | None = None
    advertise_addr: str = ""
    alive_seconds: float = 100.0
    server_timeout: float = 3.0


class PlacementDriver:
    """Serves every request that is a placement driver's; others answer SystemError 1498.

    ``connect`` gives a carrier to a range server; whoever passes it keeps and closes the carriers. With it the driver
    itself deletes the data of deleted streams, on each server as soon as that server is heard; without it servers
    find out when they start.
    """

    def __init__(
        self,
        state: PdState,
        options: PlacementDriverOptions | None = None,
        *,
        connect: Callable[[RangeServerInfo], Carrier] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._state = state
        self._options = options or PlacementDriverOptions()
        self._connect = connect
        self._servers = Servers(self._options.alive_seconds, clock, rng or random.Random())
        # Servers whose queue of deletions is being worked off right now.
        self._deleting: set[int] = set()
        self._closed = False

    @property
    def identity(self) -> str:
        """Whose streams are served here: 22 characters that are the state's for its life."""
        return self._state.identity

    @property
    def name(self) -> str:
        return pd_name(self.identity) if self._options.name is None else self._options.name

    @property
    def advertise_addr(self) -> str:
        return self._options.advertise_addr

    @advertise_addr.setter
    def advertise_addr(self, address: str) -> None:
        """Known only after the listener is bound when its port was chosen by the system."""
        self._options.advertise_addr = address

    def alive_servers(self) -> list[int]:
        return self._servers.alive()

    def session(self) -> PdSession:
        """For a connection of a listener (:class:`~sbp_back.handler.HasSessions`)."""
        return PdSession(self)

    def server_joined(self, server_id: int) -> None:
        """A range server reports over one more connection."""
        self._servers.joined(server_id)

    def server_left(self, server_id: int) -> None:
        """A connection that a range server reported over has ended."""
        self._servers.left(server_id)

    def handle(self, request: Request, reply: Reply) -> None:
        match request:
            case HeartbeatRequest():
                self._heartbeat(request, reply)
            case ListRangeRequest():
                self._transact(lambda tx: rules.list_ranges(tx, request), reply)
            case CreateRangeRequest():
                chosen = self._candidates()
                self._transact(lambda tx: rules.create_range(tx, request, chosen), reply)
            case SealRangeRequest():
                self._transact(lambda tx: rules.seal_range(tx, request), reply)
            case CreateStreamRequest():
                self._transact(lambda tx: rules.create_stream(tx, request.stream), reply)
            case DescribeStreamRequest():
                self._transact(lambda tx: rules.describe_stream(tx, request.stream_id), reply)
            case UpdateStreamRequest():
                self._transact(lambda tx: rules.update_stream(tx, request.stream), reply)
            case DeleteStreamRequest():
                self._transact(lambda tx: rules.delete_stream(tx, request.stream_id), partial(self._deleted, reply))
            case TrimStreamRequest():
                self._trim(request, reply)
            case AllocateIdRequest():
                self._transact(rules.allocate_id, reply)
            case ReportMetricsRequest():
                self._report_metrics(request, reply)
            case DescribePdRequest():
                reply(DescribePdResponse(nodes=[PdNode(self.name, self._options.advertise_addr, True)]))
            case PingRequest():
                reply(PingResponse(request.header, request.payload))
            case GoAway():
                pass
            case AppendRequest() | FetchRequest() | DocumentRequest():
                reply(
                    SystemErrorResponse(
                        Status(
                            ErrorCode.UNSUPPORTED_OPERATION,
                            f"{type(request).__name__} is not for a placement driver",
                        )
                    )
                )

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """The result of a transaction, for rules that no request stands for. Raises ``SbpError`` 1500."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def failed(error: StateError) -> None:
            if not future.done():
                future.set_exception(SbpError(ErrorCode.PD_INTERNAL_SERVER_ERROR, str(error)))

        self._state.submit(work, done, failed)
        return await future

    async def close(self) -> None:
        """Answer what was received, then close the state. Idempotent."""
        self._closed = True
        await self._state.close()

    def _transact(self, work: Callable[[Transaction], R], reply: Callable[[R | SystemErrorResponse], None]) -> None:
        self._state.submit(work, reply, partial(_fail, reply))

    def _candidates(self) -> list[int]:
        """All living servers, each the better of two drawn among those left: the first R get the range."""
        return self._servers.choose(len(self._servers.alive())) or []

    # --- trims ------------------------------------------------------------------------------------------------------

    def _trim(self, request: TrimStreamRequest, reply: Reply) -> None:
        """An offset within an open range is first put to the range's servers, which trim as far as they have data."""

        def trimmed(result: rules.Trimmed) -> None:
            if result.ask is None:
                reply(result.response)
            else:
                self._ask_how_far(request, result.ask, reply)

        self._state.submit(
            lambda tx: rules.trim_stream(tx, request.stream_id, request.min_offset), trimmed, partial(_fail, reply)
        )

    def _ask_how_far(self, request: TrimStreamRequest, opened: RangeInfo, reply: Reply) -> None:
        reached = request.min_offset
        silent: str | None = None
        waiting = len(opened.servers)

        def answered(server: RangeServerInfo, answer: Response | ConnectionLost) -> None:
            nonlocal reached, silent, waiting
            waiting -= 1
            code = answer.code if isinstance(answer, ConnectionLost) else answer.status.code
            if isinstance(answer, StreamResponse) and answer.status.ok:
                told = answer.range
                ours = told is not None and told.index == opened.index
                reached = min(reached, told.start if told is not None and ours else opened.start)
            elif code != ErrorCode.UNSUPPORTED_OPERATION:
                # 1498: a foreign server that cannot trim tells nothing, so its clients have to know what they do.
                reason = answer if isinstance(answer, ConnectionLost) else answer.status
                silent = f"range server {server.server_id}: {reason}"
            if waiting:
                return
            if silent is not None:
                message = f"how far range {opened.index} of stream {opened.stream_id} goes is not known: {silent}"
                reply(StreamResponse(Status(ErrorCode.PD_INTERNAL_SERVER_ERROR, message)))
                return
            how_far = rules.Reached(opened.index, reached)
            self._state.submit(
                lambda tx: rules.trim_stream(tx, request.stream_id, request.min_offset, how_far),
                lambda result: reply(result.response),
                partial(_fail, reply),
            )

        for server in list(opened.servers):
            try:
                if self._connect is None:
                    raise ValueError("there is no way to it")
                carrier = self._connect(server)
            except ValueError as error:
                answered(server, ConnectionLost(str(error)))
                continue
            carrier.submit(request, partial(answered, server), self._options.server_timeout)

    # --- range servers ----------------------------------------------------------------------------------------------

    def _heartbeat(self, request: HeartbeatRequest, reply: Reply) -> None:
        response = HeartbeatResponse(request.client_id, request.role, request.range_server)
        server = request.range_server
        if request.role != ClientRole.RANGE_SERVER or server is None:
            reply(response)
        else:
            self._heard(server, None, response, reply)

    def _report_metrics(self, request: ReportMetricsRequest, reply: Reply) -> None:
        self._heard(request.range_server, request.metrics, ReportMetricsResponse(request.range_server), reply)

    def _heard(
        self,
        server: RangeServerInfo,
        metrics: RangeServerMetrics | None,
        response: HeartbeatResponse | ReportMetricsResponse,
        reply: Reply,
    ) -> None:
        error = rules.server_id_error(server.server_id)
        if error is not None:
            response.status = error
            reply(response)
            return
        # Answered only once the address is stored: a range placed on the server must find it.
        if self._servers.heard(server, metrics):

            def remember(tx: Transaction) -> Response:
                tx.claim_server_id(server.server_id)
                tx.put_server(server)
                return response

            self._transact(remember, reply)
        else:
            reply(response)
        self._push_deletions(server.server_id)

    # --- deletion of data -------------------------------------------------------------------------------------------

    def _deleted(self, reply: Reply, response: StreamResponse | SystemErrorResponse) -> None:
        reply(response)
        if response.status.ok:
            for server_id in self._servers.alive():
                self._push_deletions(server_id)

    def _push_deletions(self, server_id: int) -> None:
        """Work off the server's queue, one pass at a time; what fails stays queued for its next sign of life."""
        if self._connect is None or self._closed or server_id in self._deleting:
            return
        self._deleting.add(server_id)
        self._state.submit(
            lambda tx: tx.deletions_of_server(server_id),
            partial(self._send_deletions, server_id),
            lambda _error: self._deleting.discard(server_id),
        )

    def _send_deletions(self, server_id: int, stream_ids: list[int]) -> None:
        server = self._servers.info(server_id)
        if not stream_ids or server is None or self._connect is None or self._closed:
            self._deleting.discard(server_id)
            return
        try:
            carrier = self._connect(server)
        except ValueError as error:
            self._deleting.discard(server_id)
            logger.warning("range server %d cannot be told of deleted streams: %s", server_id, error)
            return
        open_calls = len(stream_ids)

        def answered(stream_id: int, response: Response | ConnectionLost) -> None:
            nonlocal open_calls
            open_calls -= 1
            if open_calls == 0:
                self._deleting.discard(server_id)
            if isinstance(response, ConnectionLost):
                return
            status = response.status
            if status.ok or status.code in (ErrorCode.NOT_FOUND, ErrorCode.UNSUPPORTED_OPERATION):
                # 1498: a foreign server that cannot delete reclaims by size alone; asking again would not help.
                self._state.submit(lambda tx: tx.drop_deletion(server_id, stream_id), _nothing, _log_state_error)
            else:
                logger.warning(
                    "range server %d did not delete stream %d, asked again later: %s", server_id, stream_id, status
                )

        for stream_id in stream_ids:
            carrier.submit(DeleteStreamRequest(stream_id), partial(answered, stream_id))


def _fail(reply: Callable[[SystemErrorResponse], None], error: StateError) -> None:
    reply(SystemErrorResponse(Status(ErrorCode.PD_INTERNAL_SERVER_ERROR, str(error))))


def _nothing(_result: None) -> None:
    pass


def _log_state_error(error: StateError) -> None:
    logger.warning("placement driver: %s", error)
