"""The range server as a handler of requests.

Appends, fetches and changes of ranges each have a module; this one dispatches, reports, and handles the store's
failure. Behaviour: docs/protocols/sbp.md, "Append window" and "Ranges of a server".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct, field

from anabranch_kit.errors import StoreError
from anabranch_kit.run.awaited import awaited
from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.turns import Turns
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.range_server.adoption import Adoptions, refusal
from sbp_back.range_server.appends import Appends
from sbp_back.range_server.controls import Controls
from sbp_back.range_server.fetches import Fetches, FetchLimits
from sbp_back.range_server.load import LoadMeter
from sbp_back.range_server.local_appends import LocalAppends
from sbp_back.range_server.ranges import RangeState, RangeTable
from sbp_back.range_server.reconcile import reconcile
from sbp_back.range_server.reporter import Reporter
from sbp_back.transport.handler import NO_TICKETS, Answers, Reply
from sbp_back.wire import model as m
from sbp_back.wire.identity import range_server_name

if TYPE_CHECKING:
    from sbp_back.range_server.store import Store
    from sbp_back.transport.carrier import Carrier

logger = logging.getLogger(__name__)

_SETTLE_SECONDS = 5.0
"""Seconds for the placement driver to promise that a range will not end below the data that readers see."""


class RangeServerOptions(Struct):
    """Options of a range server. ``server_id`` comes from the placement driver's ALLOCATE_ID; ``advertise_addr`` is
    where clients connect to (host:port), empty while there is no listener.
    """

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
        barrier: Barrier | None = None,
    ) -> None:
        self._store = store
        self._barrier = barrier = barrier or Barrier()
        self._options = options
        self._loop = loop
        self._on_failed = on_failed
        self._refusal: m.Status | None = None
        self._pd: Carrier | None = None
        self._reporter: Reporter | None = None
        self._load = LoadMeter()
        self._table = RangeTable()
        for stored in store.ranges.values():
            self._table.add(RangeState(stored))
        self._fetches = Fetches(self._table.by_key, store, options.fetch, loop, barrier)
        self._appends = Appends(self._table.by_key, store, self._fetches.wake, self._store_failed, barrier)
        self.local = LocalAppends(self._appends, self._table.by_key, store, loop)
        """Appends of writers in this process."""
        self._adoptions = Adoptions(self._table, store, options.server_id, self._call)
        self._tasks = Answers(barrier)
        self._controls = Controls(self._table, store, self._fetches, self._store_failed, barrier)
        store.on_failed = self._store_failed
        if store.failed is not None:
            # The store failed before there was a server to report it to.
            loop.call_soon(self._store_failed, store.failed)

    @property
    def info(self) -> m.RangeServerInfo:
        return m.RangeServerInfo(self._options.server_id, self._options.advertise_addr)

    @property
    def advertise_addr(self) -> str:
        return self._options.advertise_addr

    @advertise_addr.setter
    def advertise_addr(self, address: str) -> None:
        """Set the advertised address, before :meth:`start`, when it is known only once a listener is bound."""
        self._options.advertise_addr = address

    @property
    def failure(self) -> m.Status | None:
        """Return why every request is refused; None while they are served."""
        return self._refusal

    def handle(self, request: m.Request, reply: Reply) -> None:
        if self._refusal is not None:
            if type(request) is not m.GoAway:
                reply(m.SystemErrorResponse(self._refusal))
            return
        kind = type(request)
        if kind is m.AppendRequest:
            self._appends.handle(request, reply)  # type: ignore[arg-type]
        elif kind is m.FetchRequest:
            self._fetches.handle(request, reply)  # type: ignore[arg-type]
        else:
            self._handle_other(request, reply)

    def _handle_other(self, request: m.Request, reply: Reply) -> None:
        match request:
            case m.HeartbeatRequest():
                reply(m.HeartbeatResponse(request.client_id, request.role, request.range_server))
            case m.PingRequest():
                reply(m.PingResponse(request.header, request.payload))
            case m.CreateRangeRequest() | m.SealRangeRequest() | m.TrimStreamRequest() | m.DeleteStreamRequest():
                self._controls.handle(request, reply)
            case m.ListRangeRequest():
                self._list(request, reply)
            case m.AdoptServerRequest():
                self._tasks.give(reply, self._adopt(request.server_id))
            case m.DescribePdRequest():
                name = range_server_name(self._options.server_id, self._store.placement_driver)
                reply(m.DescribePdResponse(nodes=[m.PdNode(name, self._options.advertise_addr, False)]))
            case m.GoAway():
                pass
            case m.ShowTicketRequest():
                reply(m.SystemErrorResponse(NO_TICKETS))
            case _:
                message = f"{type(request).__name__} is served by the placement driver, this is a range server"
                reply(m.SystemErrorResponse.from_code(ErrorCode.UNSUPPORTED_OPERATION, message))

    def _list(self, request: m.ListRangeRequest, reply: Reply) -> None:
        stream_ids: list[int] = []
        if request.server_id in (-1, self._options.server_id):
            if request.stream_id >= 0:
                stream_ids = [request.stream_id]
            elif request.server_id >= 0:
                stream_ids = self._table.stream_ids()
        self._list_on(iter(stream_ids), [], reply)

    def _list_on(self, stream_ids: Iterator[int], found: list[m.RangeInfo], reply: Reply) -> None:
        """List the ranges of streams in turns: a server may have a hundred thousand ranges."""
        turns = Turns()
        for stream_id in stream_ids:
            found += [state.info() for state in self._table.of_stream(stream_id)]
            if turns.is_over:
                self._loop.call_soon(self._list_on, stream_ids, found, reply)
                return
        reply(m.ListRangeResponse(ranges=found))

    def next_offset(self, stream_id: int, index: int) -> int:
        """Return the base of the only entry an open range lets in now; -1 when the range takes none or is not here."""
        state = self._table.by_key.get((stream_id, index))
        return state.window.next if state is not None and state.writable else -1

    def state_of(self, stream_id: int, index: int) -> RangeState | None:
        """Return the state of a range, for reading only; None if it is not here."""
        return self._table.by_key.get((stream_id, index))

    @property
    def waiting_fetches(self) -> int:
        """Return the number of fetches that wait for data right now."""
        return self._fetches.waiting

    def metrics(self, seconds: float) -> m.RangeServerMetrics:
        """Return the load since the last call, ``seconds`` ago; for the placement driver."""
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
        untold = self._store.untold_objects
        self._reporter = Reporter(pd, self.info, self.metrics, self._options.heartbeat_seconds, self._loop, untold)
        await self._reporter.announce()
        if not await self._reconcile(pd):
            self._tasks.spawn(self._reconcile_later(pd))

    def _settle(self, state: RangeState, then: Callable[[], None]) -> None:
        """Ask the placement driver to promise that the range will not end below what is durable of it here, so that
        readers may see it; see :data:`~sbp_back.range_server.fetches.Settle`.
        """
        if state.asking is not None:
            state.asking.append(then)
            return
        pd = self._pd
        if pd is None or self._refusal is not None:
            then()
            return
        state.asking = [then]
        end = state.confirm_offset

        def answered(answer: m.Response | ConnectionLost) -> None:
            if isinstance(answer, m.RangeResponse):
                if answer.status.ok:
                    state.told = max(state.told, end)
                    self._fetches.wake_all(state)
                elif answer.status.code == ErrorCode.RANGE_ALREADY_SEALED and answer.range is not None:
                    self._controls.handle(m.SealRangeRequest.decided(answer.range), lambda _: release_waiting())
                    return
            release_waiting()

        def release_waiting() -> None:
            asking, state.asking = state.asking, None
            for one in asking or ():
                self._barrier.call("fetch that waited for the placement driver", one)

        def flushed(error: StoreError | None) -> None:
            if error is not None:
                release_waiting()
                return
            at_least = m.RangeInfo(state.stream_id, state.stored.epoch, state.index, state.stored.start, end)
            pd.submit(m.SealRangeRequest(at_least, m.SealKind.AT_LEAST), answered, _SETTLE_SECONDS)

        # The placement driver's promise is durable, so the data that it promises has to be durable first.
        self._store.flush(flushed)

    async def adopt(self, server_id: int) -> None:
        """Take over the log of another range server, which acknowledges nothing more, and serve its ranges.

        It may be repeated. Raises ``AdoptionRefused`` (there is no such log in the objects; or another server has it,
        and it says which) and other ``SbpError`` (the placement driver could not be asked: a repetition, or the next
        start, does the rest).
        """
        if self._pd is None or self._refusal is not None:
            raise SbpError(ErrorCode.RS_INTERNAL_SERVER_ERROR, "this range server is not serving")
        await self._adoptions.adopt(server_id, self._pd)

    async def _adopt(self, server_id: int) -> m.AdoptServerResponse:
        try:
            await self.adopt(server_id)
        except SbpError as error:
            return refusal(error)
        return m.AdoptServerResponse(server_id=self._options.server_id)

    async def _reconcile(self, pd: Carrier) -> bool:
        try:
            await self._adoptions.go_on(pd)
            done = await reconcile(self._table, self._options.server_id, pd, self._call)
        except SbpError as error:
            logger.warning(
                "range server %d cannot reconcile its ranges, and tries again: %s",
                self.info.server_id,
                error,
            )
            return False
        logger.info("range server %d has reconciled its ranges: %s", self.info.server_id, done)
        return True

    async def _reconcile_later(self, pd: Carrier) -> None:
        while True:
            await asyncio.sleep(self._options.heartbeat_seconds)
            try:
                if await self._reconcile(pd):
                    return
            except Exception as error:  # noqa: BLE001 - logged and counted; tried again as after any other failure
                self._barrier.caught("catching up with the placement driver", error)

    def _call(self, request: m.Request) -> Awaitable[m.Response]:
        return awaited(lambda settle: self.handle(request, settle))

    def stop_waiting(self) -> None:
        """Answer waiting fetches now and let none wait any more, so that connections can drain; all else is served."""
        self._fetches.stop_waiting()

    async def close(self) -> None:
        """Stop reporting and answer all waiters; the store's owner closes the store next. Idempotent."""
        if self._reporter is not None:
            self._reporter.stop()
        await self._tasks.close()
        if self._refusal is None:
            self._refuse(m.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, "the range server is shutting down"))
        self._fetches.abort(m.Status(ErrorCode.NO_NEW_RECORD))
        self.local.close()

    def _refuse(self, status: m.Status) -> None:
        """Refuse all requests from now on."""
        self._refusal = self.local.refusal = status

    def _store_failed(self, error: StoreError) -> None:
        if self._refusal is not None:
            return
        logger.critical("range server %d stops serving, its store failed: %s", self.info.server_id, error)
        refusal = m.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR, f"the store failed: {error}")
        self._refuse(refusal)
        self._fetches.abort(refusal)
        if self._on_failed is not None:
            self._on_failed(error)
