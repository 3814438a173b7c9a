"""Requests of sbp-v0.1 about streams and ranges, served element by element of their batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from anabranch_kit.run.turns import gathered, in_turns
from sbp_back.client.control import ControlOptions, ask_repeatedly
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.wire import model as w
from sbp_document.server import pd_rules as rules
from sbp_document.server.lanes import Lanes
from sbp_document.wire import messages as m

if TYPE_CHECKING:
    from sbp_back.client.client import Client

I = TypeVar("I")  # noqa: E741 - an item, as O is its outcome
O = TypeVar("O")  # noqa: E741
A = TypeVar("A", bound=w.DocumentResponse)

_OPTIONS = ControlOptions()
MAX_LISTED = 100_000
"""Ranges in one answer; about what a frame holds."""


async def each(items: Iterable[I], work: Callable[[I], Awaitable[O]], failed: Callable[[I, w.Status], O]) -> list[O]:
    """Run ``work`` for all items, a bounded number side by side; an item whose work raises ``SbpError`` gets ``failed``
    as its result.
    """

    async def outcome(item: I) -> O:
        try:
            return await work(item)
        except SbpError as error:
            return failed(item, w.Status(error.code, error.message))

    return await gathered(outcome(item) for item in items)


async def _all(
    request: m.ControlRequest[A],
    items: Iterable[I],
    work: Callable[[I], Awaitable[O]],
    failed: Callable[[I, w.Status], O],
) -> A:
    """Return the answer to ``request``: the outcome of :func:`each` for the elements of its batch."""
    make: Callable[..., Any] = request.answer
    return cast("A", make(results=await each(items, work, failed)))


class Controls:
    """Serves one listener. Its clients are told ``address`` as the range server's, so that they come back to a listener
    of the same dialect (docs/protocols/sbp.md, "Dialects").
    """

    def __init__(self, lanes: Lanes, client: Client, address: Callable[[], str]) -> None:
        self._lanes = lanes
        self._client = client
        self._address = address

    async def handle(self, request: w.DocumentRequest) -> w.DocumentResponse:
        """Serve a request. Raises ``SbpError`` when it is refused as a whole."""
        match request:
            case m.CreateStreamsRequest():
                return await _all(request, request.streams, self._create_stream, _stream_failed)
            case m.DeleteStreamsRequest():
                return await _all(request, request.streams, self._delete_stream, _stream_failed)
            case m.UpdateStreamsRequest():
                return await _all(request, request.streams, self._update_stream, _stream_failed)
            case m.DescribeStreamsRequest():
                return await _all(request, request.stream_ids, self._describe_stream, _stream_failed)
            case m.TrimStreamsRequest():
                return await _all(request, request.items, self._trim_stream, _stream_failed)
            case m.ListRangesRequest():
                return m.ListRangesResponse(results=await self._list_all(request.owners))
            case m.DescribeRangesRequest():
                return await _all(request, request.ranges, self._describe_range, _range_failed)
            case m.SealRangesRequest():
                return await _all(request, request.ranges, self._seal_range, _range_failed)
            case m.SyncRangesRequest():
                return await _all(request, request.items, self._sync_ranges, _sync_failed)
            case m.NextRangeRequest():
                try:
                    return await self._next_range(request)
                except SbpError as error:
                    return m.NextRangeResponse(w.Status(error.code, error.message))
            case _:
                raise SbpError(ErrorCode.UNSUPPORTED_OPERATION, f"{type(request).__name__} is not served")

    async def seal_on_server(self, request: m.SealRangesRequest) -> m.SealRangesResponse:
        """Serve SEAL_RANGES as a range server without a placement driver does: answer with the sealed range."""

        async def seal(wanted: m.RangeId) -> m.RangeItemResult:
            sealed = await self._lanes.seal_on_server(wanted.stream_id, wanted.index)
            sealed.servers = [self._lanes.range_server.info]
            return m.RangeItemResult(wanted.stream_id, self._describe(sealed))

        return await _all(request, request.ranges, seal, _range_failed)

    # --- streams ----------------------------------------------------------------------------------------------------

    async def _create_stream(self, wanted: m.DocumentStream) -> m.StreamItemResult:
        self._check_replicas(wanted)
        info = wanted.as_info()
        server_id = self._lanes.server_id
        response, row = await self._lanes.pd.run(lambda tx: rules.create_stream(tx, info, server_id))
        if response.stream is None or row is None:
            return m.StreamItemResult(status=response.status)
        await self._lanes.started(row)
        first = await self._range(row.stream_id, row.index)
        return m.StreamItemResult(m.DocumentStream.from_info(response.stream), range=first)

    def _check_replicas(self, wanted: m.DocumentStream) -> None:
        if wanted.replica_nums > 1:
            message = f"{wanted.replica_nums} range servers are needed, this is one"
            raise SbpError(ErrorCode.PD_NO_AVAILABLE_RS, message)

    async def _delete_stream(self, wanted: m.DocumentStream) -> m.StreamItemResult:
        stream_id = wanted.stream_id
        deleted = await self._client.describe_stream(stream_id)
        await self._client.delete_stream(stream_id)
        self._lanes.forget(stream_id)
        return m.StreamItemResult(m.DocumentStream.from_info(deleted))

    async def _update_stream(self, wanted: m.DocumentStream) -> m.StreamItemResult:
        self._check_replicas(wanted)
        request = w.UpdateStreamRequest(wanted.as_info())
        response = await ask_repeatedly(self._client.pd, request, w.StreamResponse, _OPTIONS)
        return m.StreamItemResult(None if response.stream is None else m.DocumentStream.from_info(response.stream))

    async def _describe_stream(self, stream_id: int) -> m.StreamItemResult:
        return m.StreamItemResult(m.DocumentStream.from_info(await self._client.describe_stream(stream_id)))

    async def _trim_stream(self, item: m.TrimItem) -> m.StreamItemResult:
        trimmed = await self._client.describe_stream(item.stream_id)
        await self._client.trim(item.stream_id, item.offset)
        left = await self._ranges(item.stream_id)
        return m.StreamItemResult(m.DocumentStream.from_info(trimmed), range=left[0] if left else None)

    # --- ranges -----------------------------------------------------------------------------------------------------

    async def _list_all(self, owners: list[m.RangeOwner]) -> list[m.ListItemResult]:
        """List ranges, in all no more than a frame holds: a request may ask many times for the same ones."""
        listed = 0

        async def listing(owner: m.RangeOwner) -> m.ListItemResult:
            nonlocal listed
            if listed <= MAX_LISTED:
                result = await self._list_ranges(owner)
                listed += len(result.ranges)
            if listed > MAX_LISTED:
                raise SbpError(ErrorCode.PAYLOAD_TOO_LARGE, f"more than {MAX_LISTED} ranges in one answer")
            return result

        # One after the other, so that no list is made for which there is no room left.
        return [
            result
            for owner in owners
            for result in await each([owner], listing, lambda owner, status: m.ListItemResult(owner, [], status))
        ]

    async def _list_ranges(self, owner: m.RangeOwner) -> m.ListItemResult:
        server = owner.range_server
        if owner.stream_id < 0 and (server is None or server.server_id < 0):
            raise SbpError(ErrorCode.BAD_REQUEST, "whose ranges are to be listed: a stream's or a range server's?")
        if owner.stream_id >= 0:
            ranges = await self._ranges(owner.stream_id)
            if not ranges:
                await self._client.describe_stream(owner.stream_id)  # 1404 if that is why
            if server is not None and server.server_id >= 0:
                ranges = [one for one in ranges if server.server_id in _server_ids(one)]
            return m.ListItemResult(owner, ranges)
        assert server is not None
        request = w.ListRangeRequest(server_id=server.server_id)
        response = await ask_repeatedly(self._client.pd, request, w.ListRangeResponse, _OPTIONS)
        ranges = [self._describe(known) async for known in in_turns(response.ranges[: MAX_LISTED + 1])]
        return m.ListItemResult(owner, ranges)

    async def _describe_range(self, wanted: m.RangeId) -> m.RangeItemResult:
        return m.RangeItemResult(wanted.stream_id, await self._range(wanted.stream_id, wanted.index))

    async def _seal_range(self, wanted: m.RangeId) -> m.RangeItemResult:
        index = await self._lanes.seal(wanted.stream_id, wanted.index)
        return m.RangeItemResult(wanted.stream_id, await self._range(wanted.stream_id, index))

    async def _next_range(self, request: m.NextRangeRequest) -> m.NextRangeResponse:
        wanted = request.range
        index = await self._lanes.next_range(wanted.stream_id, wanted.index, wanted.start)
        return m.NextRangeResponse(range=await self._range(wanted.stream_id, index))

    async def _sync_ranges(self, item: m.StreamRanges) -> m.SyncItemResult:
        """Make ranges known early. The placement driver says what the ranges are; the request only which of them
        matter.
        """
        known = {info.index: info for info in await self._client.list_ranges(item.stream_id)}
        if not known:
            await self._client.describe_stream(item.stream_id)
        for wanted in item.ranges:
            info = known.get(wanted.index)
            if info is None:
                raise SbpError(ErrorCode.RANGE_NOT_FOUND, f"stream {item.stream_id} has no range {wanted.index}")
            if all(server.server_id != self._lanes.server_id for server in info.servers):
                raise SbpError(ErrorCode.PRECONDITION_FAILED, f"range {info.index} is not placed on this server")
            if self._lanes.range_server.state_of(item.stream_id, info.index) is None:
                await self._create_here(info)
        return m.SyncItemResult(item.stream_id, [self._describe(known[wanted.index]) for wanted in item.ranges])

    async def _create_here(self, info: w.RangeInfo) -> None:
        opened = w.RangeInfo(info.stream_id, info.epoch, info.index, info.start)
        await ask_repeatedly(self._lanes.to_range_server, w.CreateRangeRequest(opened), w.RangeResponse, _OPTIONS)
        if info.end >= 0:
            sealed = w.SealRangeRequest.decided(info)
            await ask_repeatedly(self._lanes.to_range_server, sealed, w.RangeResponse, _OPTIONS)

    async def _ranges(self, stream_id: int) -> list[m.DocumentRange]:
        return [self._describe(known) for known in await self._client.list_ranges(stream_id)]

    async def _range(self, stream_id: int, index: int) -> m.DocumentRange:
        for known in await self._client.list_ranges(stream_id):
            if known.index == index:
                return self._describe(known)
        raise SbpError(ErrorCode.RANGE_NOT_FOUND, f"stream {stream_id} has no range {index}")

    def _describe(self, known: w.RangeInfo) -> m.DocumentRange:
        """Describe a range for the clients of this listener."""
        following = known.end
        if following < 0:
            state = self._lanes.range_server.state_of(known.stream_id, known.index)
            following = known.start if state is None else max(known.start, state.confirm_offset)
        own = self._lanes.server_id
        servers = [
            m.Replica(
                w.RangeServerInfo(server.server_id, self._address()) if server.server_id == own else server,
                position == 0,
            )
            for position, server in enumerate(known.servers)
        ]
        return m.DocumentRange(known.stream_id, known.index, known.start, known.end, following, servers)


def _server_ids(told: m.DocumentRange) -> set[int]:
    return {replica.server.server_id for replica in told.servers if replica.server is not None}


def _stream_failed(_item: object, status: w.Status) -> m.StreamItemResult:
    return m.StreamItemResult(status=status)


def _sync_failed(item: m.StreamRanges, status: w.Status) -> m.SyncItemResult:
    return m.SyncItemResult(item.stream_id, [], status)


def _range_failed(item: m.RangeId, status: w.Status) -> m.RangeItemResult:
    return m.RangeItemResult(item.stream_id, None, status)
