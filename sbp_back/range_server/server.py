"""The range server as a handler of requests: what is where.

Appends, fetches and changes of ranges each have a module; this one dispatches, reports and fails. Behaviour:
reference/sbp.md, sections 2.2, 2.3 and 2.7.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbp_back.barrier import DEFECTS, guarded
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError, StoreError
from sbp_back.range_server.appends import Appends
from sbp_back.range_server.controls import Controls
from sbp_back.range_server.fetches import Fetches, FetchLimits
from sbp_back.range_server.load import LoadMeter
from sbp_back.range_server.ranges import RangeState, RangeTable
from sbp_back.range_server.reconcile import reconcile
from sbp_back.range_server.reporter import Reporter
from sbp_back.transport.handler import Reply
from sbp_back.wire.identity import range_server_name
from sbp_back.wire.model import (
    AppendRequest,
    CreateRangeRequest,
    DeleteStreamRequest,
    DescribePdRequest,
    DescribePdResponse,
    FetchRequest,
    GoAway,
    HeartbeatRequest,
    HeartbeatResponse,
    ListRangeRequest,
    ListRangeResponse,
    PdNode,
    PingRequest,
    PingResponse,
    RangeInfo,
    RangeResponse,
    RangeServerInfo,
    RangeServerMetrics,
    Request,
    Response,
    SealKind,
    SealRangeRequest,
    Status,
    SystemErrorResponse,
    TrimStreamRequest,
)

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store
    from sbp_back.transport.carrier import Carrier

logger = logging.getLogger(__name__)

_LISTED_IN_A_TURN = 500

_SETTLE_SECONDS = 5.0
"""For the placement driver to promise that a range will not end below what is shown of it."""


@dataclass(slots=True)
class RangeServerOptions:
    """``server_id`` comes from the placement driver's ALLOCATE_ID; ``advertise_addr`` is where clients connect to
    (host:port), empty while there is no listener."""

    server_id: int = -1
    advertise_addr: str = ""
    heartbeat_seconds: float = 3.0
    fetch: FetchLimits = field(default_factory=FetchLimits)


class RangeServer:
    """Serves ranges of ``store``, which is open and started. ``on_failed`` is called once if the store fails: nothing
    can be acknowledged any more and the process should stop."""

    def __init__(
        self,
        store: Store,
        options: RangeServerOptions,
        loop: asyncio.AbstractEventLoop,
        *,
        on_failed: Callable[[StoreError], None] | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._loop = loop
        self._on_failed = on_failed
        self._refusal: Status | None = None
        self._pd: Carrier | None = None
        self._reporter: Reporter | None = None
        self._reconciling: asyncio.Task[None] | None = None
        self._load = LoadMeter()
        self._table = RangeTable()
        for stored in store.ranges.values():
            self._table.add(RangeState(stored))
        self._fetches = Fetches(self._table.by_key, store, options.fetch, loop)
        self._appends = Appends(self._table.by_key, store, self._fetches.wake, self._store_failed)
        self._controls = Controls(self._table, store, self._fetches, loop, self._store_failed)
        store.on_failed = self._store_failed
        if store.failed is not None:
            # It failed while nobody was there to be told.
            loop.call_soon(self._store_failed, store.failed)

    @property
    def info(self) -> RangeServerInfo:
        return RangeServerInfo(self._options.server_id, self._options.advertise_addr)

    @property
    def advertise_addr(self) -> str:
        return self._options.advertise_addr

    @advertise_addr.setter
    def advertise_addr(self, address: str) -> None:
        """To be set before :meth:`start`, when the address is known only once a listener is bound."""
        self._options.advertise_addr = address

    @property
    def failure(self) -> Status | None:
        """Why every request is refused; None while they are served."""
        return self._refusal

    def handle(self, request: Request, reply: Reply) -> None:
        if self._refusal is not None:
            if type(request) is not GoAway:
                reply(SystemErrorResponse(self._refusal))
            return
        kind = type(request)
        if kind is AppendRequest:
            self._appends.handle(request, reply)  # type: ignore[arg-type]
        elif kind is FetchRequest:
            self._fetches.handle(request, reply)  # type: ignore[arg-type]
        else:
            self._handle_other(request, reply)

    def _handle_other(self, request: Request, reply: Reply) -> None:
        match request:
            case HeartbeatRequest():
                reply(HeartbeatResponse(request.client_id, request.role, request.range_server))
            case PingRequest():
                reply(PingResponse(request.header, request.payload))
            case CreateRangeRequest():
                self._controls.create_range(request, reply)
            case SealRangeRequest():
                self._controls.seal_range(request, reply)
            case TrimStreamRequest():
                self._controls.trim_stream(request, reply)
            case DeleteStreamRequest():
                self._controls.delete_stream(request, reply)
            case ListRangeRequest():
                self._list(request, reply)
            case DescribePdRequest():
                name = range_server_name(self._options.server_id, self._store.placement_driver)
                reply(DescribePdResponse(nodes=[PdNode(name, self._options.advertise_addr, False)]))
            case GoAway():
                pass
            case _:
                reply(
                    SystemErrorResponse(
                        Status(
                            ErrorCode.UNSUPPORTED_OPERATION,
                            f"{type(request).__name__} is served by the placement driver, this is a range server",
                        )
                    )
                )

    def _list(self, request: ListRangeRequest, reply: Reply) -> None:
        stream_ids: list[int] = []
        if request.server_id in (-1, self._options.server_id):
            if request.stream_id >= 0:
                stream_ids = [request.stream_id]
            elif request.server_id >= 0:
                stream_ids = self._table.stream_ids()
        self._list_on(stream_ids, 0, [], reply)

    def _list_on(self, stream_ids: list[int], first: int, found: list[RangeInfo], reply: Reply) -> None:
        """A server may have a hundred thousand ranges: so many streams in a turn of the loop."""
        after = first + _LISTED_IN_A_TURN
        for stream_id in stream_ids[first:after]:
            found += [state.info() for state in self._table.of_stream(stream_id)]
        if after < len(stream_ids):
            self._loop.call_soon(self._list_on, stream_ids, after, found, reply)
        else:
            reply(ListRangeResponse(ranges=found))

    def next_offset(self, stream_id: int, index: int) -> int:
        """The base of the only entry an open range lets in now; -1 when the range takes none or is not here."""
        state = self._table.by_key.get((stream_id, index))
        return state.window.next if state is not None and state.writable else -1

    def state_of(self, stream_id: int, index: int) -> RangeState | None:
        """What is known here of a range, to be looked at only."""
        return self._table.by_key.get((stream_id, index))

    @property
    def waiting_fetches(self) -> int:
        """Long polls that wait for data right now."""
        return self._fetches.waiting

    def metrics(self, seconds: float) -> RangeServerMetrics:
        """The load of the ``seconds`` since this was last asked; for the placement driver."""
        self._table.remove_dropped()
        ranges = self._table.by_key.values()
        return self._load.measure(seconds, self._store.stats, self._appends, self._fetches, ranges)

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self, pd: Carrier) -> None:
        """Report to the placement driver from now on, and catch up with what it decided while we were down.

        A placement driver that cannot be reached delays nothing: catching up is then tried again in the background.
        """
        self._pd = pd
        self._fetches.settle = self._settle
        self._reporter = Reporter(pd, self.info, self.metrics, self._options.heartbeat_seconds, self._loop)
        await self._reporter.announce()
        if not await self._reconcile(pd):
            self._reconciling = self._loop.create_task(self._reconcile_later(pd))

    def _settle(self, state: RangeState, then: Callable[[], None]) -> None:
        """See :data:`~sbp_back.range_server.fetches.Settle`: asks that the range may not end below what is durable of
        it here, so that it may be shown to anybody."""
        if state.asking is not None:
            state.asking.append(then)
            return
        pd = self._pd
        if pd is None or self._refusal is not None:
            then()
            return
        state.asking = [then]
        end = state.confirm_offset

        def answered(answer: Response | ConnectionLost) -> None:
            if isinstance(answer, RangeResponse):
                if answer.status.ok:
                    state.told = max(state.told, end)
                    self._fetches.wake_all(state)
                elif answer.status.code == ErrorCode.RANGE_ALREADY_SEALED and answer.range is not None:
                    decided = SealRangeRequest(answer.range, SealKind.PLACEMENT_DRIVER)
                    self._controls.seal_range(decided, lambda _: settled())
                    return
            settled()

        def settled() -> None:
            asking, state.asking = state.asking, None
            for one in asking or ():
                guarded("a fetch that waited for the placement driver", one)

        at_least = RangeInfo(state.stream_id, state.stored.epoch, state.index, state.stored.start, end)
        pd.submit(SealRangeRequest(at_least, SealKind.AT_LEAST), answered, _SETTLE_SECONDS)

    async def _reconcile(self, pd: Carrier) -> bool:
        try:
            done = await reconcile(self._table, pd, self._call)
        except SbpError as error:
            logger.warning("range server %d is not in line with the placement driver: %s", self.info.server_id, error)
            return False
        logger.info("range server %d is in line with the placement driver: %s", self.info.server_id, done)
        return True

    async def _reconcile_later(self, pd: Carrier) -> None:
        while True:
            await asyncio.sleep(self._options.heartbeat_seconds)
            try:
                if await self._reconcile(pd):
                    return
            except Exception:  # noqa: BLE001 - logged and counted; tried again as after any other failure
                DEFECTS.caught("catching up with the placement driver")

    def _call(self, request: Request) -> Awaitable[Response]:
        future: asyncio.Future[Response] = self._loop.create_future()

        def reply(response: Response) -> None:
            if not future.done():
                future.set_result(response)

        self.handle(request, reply)
        return future

    def stop_waiting(self) -> None:
        """Answer long polls now and let none wait any more, so that connections can drain; all else is served."""
        self._fetches.stop_waiting()

    async def close(self) -> None:
        """Stop reporting and answer what waits; the store is left to its owner, who closes it next. Idempotent."""
        if self._reporter is not None:
            self._reporter.stop()
        if self._reconciling is not None:
            self._reconciling.cancel()
            await asyncio.wait([self._reconciling])
            self._reconciling = None
        if self._refusal is None:
            self._refusal = Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "the range server is shutting down")
        self._fetches.abort(Status(ErrorCode.NO_NEW_RECORD))

    def _store_failed(self, error: StoreError) -> None:
        if self._refusal is not None:
            return
        logger.critical("range server %d stops serving, its store failed: %s", self.info.server_id, error)
        self._refusal = Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, f"the store failed: {error}")
        self._fetches.abort(self._refusal)
        if self._on_failed is not None:
            self._on_failed(error)
