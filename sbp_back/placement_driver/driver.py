"""The placement driver as a handler of requests.

Requests that concern streams and ranges become transactions (``rules.py``); liveness and metrics of range servers
stay in memory. Behaviour: docs/protocols/sbp.md, "Placement driver".
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.task_set import TaskSet
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.placement_driver import rules
from sbp_back.placement_driver.servers import Servers
from sbp_back.placement_driver.state import PdState, StateError, Transaction
from sbp_back.transport.handler import NO_TICKETS, Answers, Reply
from sbp_back.wire import model as m
from sbp_back.wire.identity import pd_name

if TYPE_CHECKING:
    from sbp_back.transport.carrier import Carrier

logger = logging.getLogger(__name__)

_MOST_NEWS = 1000
"""Most deletions, and most other news, that a server is told in one pass."""

_SETTLED = frozenset(
    {
        int(ErrorCode.BAD_REQUEST),
        int(ErrorCode.NOT_FOUND),
        int(ErrorCode.RANGE_NOT_FOUND),
        int(ErrorCode.UNSUPPORTED_OPERATION),
    }
)
"""Refusals that a server would repeat for the same news."""

News = m.DeleteStreamRequest | m.SealRangeRequest | m.TrimStreamRequest
"""A fact that a range server has to know, as the request that tells it."""

R = TypeVar("R", bound=m.Response)
T = TypeVar("T")

_SERVER_TIMEOUT = 3.0
"""Seconds a range server has to answer before a request that waits for it fails."""


class PlacementDriverOptions(Struct):
    """Options of a placement driver. ``alive_seconds``: a range server that was silent for longer gets no new ranges
    (100 s upstream). ``name``: None for the name that carries the identity of the state."""

    name: str | None = None
    advertise_addr: str = ""
    alive_seconds: float = 100.0


class PlacementDriver:
    """Serves every request that is a placement driver's; others answer SystemError 1498.

    ``connect`` gives a carrier to a range server; the caller keeps and closes the carriers. With it the driver itself
    tells each server which streams were deleted or trimmed and where its ranges end, at once and then whenever it hears
    from that server, until the server has confirmed. Without it servers learn this when they start, and open ranges
    cannot be trimmed.
    """

    def __init__(
        self,
        state: PdState,
        options: PlacementDriverOptions | None = None,
        *,
        connect: Callable[[m.RangeServerInfo], Carrier] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        barrier: Barrier | None = None,
    ) -> None:
        self._barrier = barrier or Barrier()
        self.state = state
        self._options = options or PlacementDriverOptions()
        self._connect = connect
        self.servers = Servers(self._options.alive_seconds, clock, rng or random.Random())
        # Servers that are being told their queue, and whether it may have grown since they were sent it.
        self._telling: dict[int, bool] = {}
        self._news = TaskSet()
        self._answers = Answers(self._barrier)
        self._closed = False

    @property
    def identity(self) -> str:
        """Return the identity of the state whose streams are served here: 22 characters that never change."""
        return self.state.identity

    @property
    def name(self) -> str:
        return pd_name(self.identity) if self._options.name is None else self._options.name

    @property
    def advertise_addr(self) -> str:
        return self._options.advertise_addr

    @advertise_addr.setter
    def advertise_addr(self, address: str) -> None:
        """Set the advertised address. It is known only after the listener is bound when the system chose its port."""
        self._options.advertise_addr = address

    def session(self) -> PdSession:
        """Return a session for a connection of a listener (:class:`~sbp_back.transport.handler.HasSessions`)."""
        return PdSession(self)

    def handle(self, request: m.Request, reply: Reply) -> None:
        match request:
            case m.HeartbeatRequest():
                self._heartbeat(request, reply)
            case m.ListRangeRequest():
                self._transact(lambda tx: rules.list_ranges(tx, request), reply, request.stream_id)
            case m.CreateRangeRequest():
                # All living servers, each the better of two drawn from the rest; the first R of them get the range.
                chosen = self.servers.choose(len(self.servers.open())) or []
                # May use the disk's reserve, as a seal does: without a new range nobody can open, and so read, a stream
                # that was written to on a full disk.
                made = request.range.stream_id
                self._transact(lambda tx: rules.create_range(tx, request, chosen), reply, made, frees=True)
            case m.SealRangeRequest(kind=m.SealKind.AT_LEAST):
                kept = self.run(lambda tx: rules.promise(tx, request.range, held=False))
                self._answers.give(reply, self._promise(request.range, kept))
            case m.SealRangeRequest():
                sealed = partial(self._sealed, reply)
                self._transact(lambda tx: rules.seal_range(tx, request), sealed, request.range.stream_id, frees=True)
            case m.CreateStreamRequest():
                self._transact(lambda tx: rules.create_stream(tx, request.stream), reply)
            case m.DescribeStreamRequest():
                self._transact(lambda tx: rules.describe_stream(tx, request.stream_id), reply, request.stream_id)
            case m.UpdateStreamRequest():
                self._transact(lambda tx: rules.update_stream(tx, request.stream), reply)
            case m.DeleteStreamRequest():
                deleted = partial(self._deleted, reply)
                gone = request.stream_id
                self._transact(lambda tx: rules.delete_stream(tx, gone), deleted, gone, frees=True)
            case m.TrimStreamRequest():
                self._answers.give(reply, self._trim(request, self._cut(request)))
            case m.AllocateIdRequest():
                self._transact(rules.allocate_id, reply)
            case m.AdoptServerRequest():
                self._transact(lambda tx: rules.adopt_server(tx, request), partial(self._adopted, request, reply))
            case m.CommitObjectRequest():
                self._transact(lambda tx: rules.commit_object(tx, request.object), reply, request.object.stream_id)
            case m.ReportMetricsRequest():
                server = request.range_server
                self._note_report(server, request.metrics, m.ReportMetricsResponse(server), reply)
            case m.DescribePdRequest():
                reply(m.DescribePdResponse(nodes=[m.PdNode(self.name, self._options.advertise_addr, True)]))
            case m.PingRequest():
                reply(m.PingResponse(request.header, request.payload))
            case m.GoAway():
                pass
            case m.ShowTicketRequest():
                reply(m.SystemErrorResponse(NO_TICKETS))
            case m.AppendRequest() | m.FetchRequest() | m.DocumentRequest():
                message = f"{type(request).__name__} is not for a placement driver"
                reply(m.SystemErrorResponse.from_code(ErrorCode.UNSUPPORTED_OPERATION, message))

    def run(self, work: Callable[[Transaction], T], stream_id: int = -1, *, frees: bool = False) -> Awaitable[T]:
        """Submit ``work`` to the state at once, and return its result, for rules that have no request. Raises
        ``SbpError`` 1500.
        """
        return awaited(
            lambda settle: self.state.submit(
                work,
                settle,
                lambda error: settle(SbpError(ErrorCode.PD_INTERNAL_SERVER_ERROR, str(error))),
                stream_id=stream_id,
                frees=frees,
            )
        )

    async def close(self) -> None:
        """Answer what was received, then close the state. Idempotent."""
        self._closed = True
        await self._news.close()
        await self._answers.drain()
        await self.state.close()

    def _transact(
        self,
        work: Callable[[Transaction], R],
        reply: Callable[[R | m.SystemErrorResponse], None],
        stream_id: int = -1,
        *,
        frees: bool = False,
    ) -> None:
        self.state.submit(work, reply, partial(_fail, reply), stream_id=stream_id, frees=frees)

    # --- trims ------------------------------------------------------------------------------------------------------

    def _cut(self, request: m.TrimStreamRequest, reached: rules.Reached | None = None) -> Awaitable[rules.Trimmed]:
        return self.run(
            lambda tx: rules.trim_stream(tx, request.stream_id, request.min_offset, reached),
            stream_id=request.stream_id,
            frees=True,
        )

    async def _trim(self, request: m.TrimStreamRequest, first: Awaitable[rules.Trimmed]) -> m.StreamResponse:
        """Trim a stream. If the offset lies within an open range, its servers are asked first and trim as far as they
        have data.
        """
        trimmed = await first
        if (opened := trimmed.ask) is not None:
            reached = request.min_offset
            for asking in self._ask_servers(opened, request):
                server, answer = await asking
                if isinstance(answer, m.StreamResponse) and answer.status.ok:
                    told = answer.range
                    ours = told is not None and told.index == opened.index
                    reached = min(reached, told.start if told is not None and ours else opened.start)
                elif isinstance(answer, ConnectionLost) or answer.status.code != ErrorCode.UNSUPPORTED_OPERATION:
                    # 1498: a foreign server that cannot trim says nothing of its data, so its clients have to know.
                    reason = answer if isinstance(answer, ConnectionLost) else answer.status
                    unknown = f"how far range {opened.index} of stream {opened.stream_id} goes is not known"
                    message = f"{unknown}: range server {server.server_id}: {reason}"
                    return m.StreamResponse(m.Status(ErrorCode.PD_INTERNAL_SERVER_ERROR, message))
            trimmed = await self._cut(request, rules.Reached(opened.index, reached))
        self.tell_servers()
        return trimmed.response

    def _ask_servers(
        self, opened: m.RangeInfo, request: m.Request
    ) -> Iterable[Awaitable[tuple[m.RangeServerInfo, m.Response | ConnectionLost]]]:
        """Ask all servers of a range at the same time; return their answers as they come."""

        async def ask(server: m.RangeServerInfo) -> tuple[m.RangeServerInfo, m.Response | ConnectionLost]:
            try:
                if self._connect is None:
                    raise ValueError("there is no way to it")
                return server, await _call(self._connect(server), request)
            except ConnectionLost as error:
                return server, error
            except ValueError as error:
                return server, ConnectionLost(str(error))

        return asyncio.as_completed([ask(server) for server in opened.servers])

    # --- promises ---------------------------------------------------------------------------------------------------

    async def _promise(self, wanted: m.RangeInfo, first: Awaitable[m.RangeResponse | m.RangeInfo]) -> m.RangeResponse:
        """Promise that an open range will not end below an offset, once a server of the range has shown that it has the
        data below it.
        """
        result = await first
        if isinstance(result, m.RangeInfo):
            if not await self._is_held(result, wanted.end):
                where = f"range {result.index} of stream {result.stream_id}"
                message = f"no server of {where} has shown to have {wanted.end - 1}"
                return m.RangeResponse(m.Status(ErrorCode.PD_INTERNAL_SERVER_ERROR, message), result)
            result = await self.run(lambda tx: rules.promise(tx, wanted, held=True))
        assert isinstance(result, m.RangeResponse)
        return result

    async def _is_held(self, opened: m.RangeInfo, end: int) -> bool:
        """Return whether one of the range's servers has the last offset below ``end``."""
        for asking in self._ask_servers(opened, m.FetchRequest(opened, end - 1, limit=end, max_bytes=1)):
            _, answer = await asking
            entries = answer.entries if isinstance(answer, m.FetchResponse) else []
            if any(entry.base_offset < end <= entry.end_offset for entry in entries):
                return True
        return False

    # --- range servers ----------------------------------------------------------------------------------------------

    def _heartbeat(self, request: m.HeartbeatRequest, reply: Reply) -> None:
        response = m.HeartbeatResponse(request.client_id, request.role, request.range_server)
        server = request.range_server
        if request.role != m.ClientRole.RANGE_SERVER or server is None:
            reply(response)
        else:
            self._note_report(server, None, response, reply)

    def _note_report(
        self,
        server: m.RangeServerInfo,
        metrics: m.RangeServerMetrics | None,
        response: m.HeartbeatResponse | m.ReportMetricsResponse,
        reply: Reply,
    ) -> None:
        error = rules.server_id_error(server.server_id)
        if error is not None:
            response.status = error
            reply(response)
            return
        # The answer waits until the address is stored: a range placed on the server must find it.
        if self.servers.note_report(server, metrics):

            def remember(tx: Transaction) -> m.Response:
                by = tx.adopted_servers().get(server.server_id)
                if by is not None:
                    message = f"what range server {server.server_id} had was adopted by range server {by}"
                    response.status = rules.bad_request(message)
                    return response
                tx.claim_server_id(server.server_id)
                tx.put_server(server)
                return response

            self._transact(remember, reply)
        else:
            reply(response)
        self._tell_server(server.server_id)

    # --- what range servers have to know ----------------------------------------------------------------------------

    def _deleted(self, reply: Reply, response: m.StreamResponse | m.SystemErrorResponse) -> None:
        reply(response)
        if response.status.ok:
            self.tell_servers()

    def _adopted(
        self, request: m.AdoptServerRequest, reply: Reply, response: m.AdoptServerResponse | m.SystemErrorResponse
    ) -> None:
        if response.status.ok and request.last:
            self.servers.forget(request.server_id)
            self._tell_server(request.by)
        reply(response)

    def _sealed(self, reply: Reply, response: m.RangeResponse | m.SystemErrorResponse) -> None:
        reply(response)
        if isinstance(response, m.RangeResponse) and response.status.ok:
            self.tell_servers(server.server_id for server in (response.range.servers if response.range else ()))

    def tell_servers(self, server_ids: Iterable[int] | None = None) -> None:
        """Tell the living range servers (or those named) what they have not confirmed to know: which streams are gone,
        where ranges end, how far streams are trimmed. What fails stays queued for their next sign of life.
        """
        for server_id in list(self.servers.alive() if server_ids is None else server_ids):
            self._tell_server(server_id)

    def _tell_server(self, server_id: int) -> None:
        if self._connect is None or self._closed:
            return
        if server_id in self._telling:
            self._telling[server_id] = True
        else:
            self._telling[server_id] = False  # here: a second call of this turn finds it
            self._news.spawn(self._tell_news(server_id, self._connect))

    async def _tell_news(self, server_id: int, connect: Callable[[m.RangeServerInfo], Carrier]) -> None:
        """Send the server its queue, and once more where it has taken all and the queue has grown."""
        again = True
        try:
            while again:
                self._telling[server_id] = False
                again = await self._send_news(server_id, connect) and self._telling[server_id]
        except (SbpError, ValueError) as error:
            logger.warning("range server %d cannot be told what was decided: %s", server_id, error)
        except Exception as error:  # noqa: BLE001 - logged and counted; the queue is tried again at the next sign of life
            self._barrier.caught("telling a range server what was decided", error)
        finally:
            del self._telling[server_id]

    async def _send_news(self, server_id: int, connect: Callable[[m.RangeServerInfo], Carrier]) -> bool:
        """Send the server its queue, and forget what it knows then; return whether that is all."""

        def queued(tx: Transaction) -> list[News]:
            first = tx.deletions_of_server(server_id, _MOST_NEWS)
            deletions = [m.DeleteStreamRequest(stream_id) for stream_id in first]
            return [*deletions, *rules.news(tx, server_id, _MOST_NEWS)]

        requests = await self.run(queued)
        server = self.servers.info(server_id)
        if not requests or server is None:
            return True
        if len(requests) >= _MOST_NEWS:
            self._telling[server_id] = True
        carrier = connect(server)
        answers = await asyncio.gather(*(_call(carrier, request) for request in requests), return_exceptions=True)
        known = []
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, ConnectionLost):
                    self._barrier.caught("telling a range server what was decided", answer)
            elif _is_known(server_id, request, answer):
                known.append(request)

        def forget(tx: Transaction) -> None:
            for request in known:
                match request:
                    case m.DeleteStreamRequest():
                        tx.drop_deletion(server_id, request.stream_id)
                    case m.SealRangeRequest():
                        tx.drop_news(server_id, request.range.stream_id, request.range.index)
                    case m.TrimStreamRequest():
                        stream = tx.get_stream(request.stream_id)
                        if stream is None or stream.trim_offset <= request.min_offset:
                            tx.drop_news(server_id, request.stream_id, -1)

        await self.run(forget, frees=True)
        return len(known) == len(requests)


def _call(carrier: Carrier, request: m.Request) -> Awaitable[m.Response]:
    """Send a request at once. The result raises ``ConnectionLost``."""
    return awaited(lambda settle: carrier.submit(request, settle, _SERVER_TIMEOUT))


def _is_known(server_id: int, request: News, response: m.Response) -> bool:
    """Return whether the server now knows what ``request`` tells, or will never accept it, so that repeating would not
    help.
    """
    status = response.status
    if isinstance(request, m.SealRangeRequest) and isinstance(response, m.RangeResponse) and response.range is not None:
        told = request.range
        if status.ok and 0 <= (end := response.range.end) < told.end:
            message = "range server %d has range %d of stream %d up to %d, it was sealed at %d"
            logger.error(message, server_id, told.index, told.stream_id, end, told.end)
    # 1498: a foreign server that cannot delete or trim reclaims by size alone; asking again would not help.
    if status.ok or status.code in _SETTLED:
        return True
    logger.warning("range server %d does not take %s, asked again later: %s", server_id, request, status)
    return False


def _fail(reply: Callable[[m.SystemErrorResponse], None], error: StateError) -> None:
    reply(m.SystemErrorResponse.from_code(ErrorCode.PD_INTERNAL_SERVER_ERROR, str(error)))


class PdSession:
    """One connection, which remembers the range servers that have reported over it: its end may mean that they have
    ended. A process that dies takes its connections along at once, long before ``alive_seconds`` of silence have
    passed.
    """

    __slots__ = ("_driver", "_servers")

    def __init__(self, driver: PlacementDriver) -> None:
        self._driver = driver
        self._servers: set[int] = set()

    def handle(self, request: m.Request, reply: Reply) -> None:
        self._driver.handle(request, reply)
        server = None
        if isinstance(request, m.ReportMetricsRequest) or (
            isinstance(request, m.HeartbeatRequest) and request.role == m.ClientRole.RANGE_SERVER
        ):
            server = request.range_server  # a sign of life of it
        if server is not None and server.server_id not in self._servers:
            self._servers.add(server.server_id)
            self._driver.servers.note_connection(server.server_id)

    def ended(self) -> None:
        servers, self._servers = self._servers, set()
        for server_id in servers:
            self._driver.servers.note_disconnection(server_id)
