"""Stand-ins for the servers of elastic-stream, with what they do otherwise than ours
(docs/protocols/sbp.md, "Faults of elastic-stream") and what a cluster of the real ones showed.

They are handlers: a client reaches them in this process, or over TCP in their own dialect once ``serve`` was called.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from sbp_back.errors import ErrorCode
from sbp_back.transport.carrier import Carrier, InProcessCarrier
from sbp_back.transport.handler import Handler, Reply
from sbp_back.transport.listener import Listener, ListenerOptions
from sbp_back.wire import model as m
from sbp_back.wire.frame import FRAME_OVERHEAD, MAX_FRAME_LENGTH
from sbp_back.wire.v02 import DialectV02

_NOT_SERVED = m.SystemErrorResponse(m.Status(ErrorCode.UNSUPPORTED_OPERATION))


class Panic(Exception):
    """The server's process is gone."""


class ForeignPlacementDriver:
    """One that leads. DELETE_STREAM leaves the ranges, UPDATE_STREAM makes the stream it does not find, TRIM_STREAM is
    not served, and its name tells nothing."""

    def __init__(self) -> None:
        self.streams: dict[int, m.StreamInfo] = {}
        self.ranges: dict[int, list[m.RangeInfo]] = {}
        self.servers: dict[int, m.RangeServerInfo] = {}
        self.requests: list[m.Request] = []
        self.before: Callable[[m.Request], None] = lambda request: None
        """Called before each request is served."""
        self._next_stream = 0
        self._next_server = -1
        self._turn = 0

    def handle(self, request: m.Request, reply: Reply) -> None:
        if isinstance(request, m.GoAway):
            return
        self.before(request)
        self.requests.append(request)
        reply(self.serve(request))

    def asked(self, kind: type[m.Request]) -> int:
        """Requests of a kind so far."""
        return sum(isinstance(request, kind) for request in self.requests)

    def serve(self, request: m.Request) -> m.Response:
        match request:
            case m.HeartbeatRequest():
                server = request.range_server
                if request.role == m.ClientRole.RANGE_SERVER and server is not None:
                    self.servers[server.server_id] = server
                return m.HeartbeatResponse(request.client_id, request.role, server)
            case m.ReportMetricsRequest():
                return m.ReportMetricsResponse(request.range_server)
            case m.AllocateIdRequest():
                self._next_server += 1
                return m.AllocateIdResponse(id=self._next_server)
            case m.DescribePdRequest():
                return m.DescribePdResponse(nodes=[m.PdNode("pd-default", "", True)])
            case m.CreateStreamRequest():
                made = replace(request.stream, stream_id=self._next_stream)
                self._next_stream += 1
                self.streams[made.stream_id] = made
                return m.StreamResponse(stream=made)
            case m.DescribeStreamRequest():
                found = self.streams.get(request.stream_id)
                return (
                    m.StreamResponse(m.Status(ErrorCode.NOT_FOUND)) if found is None else m.StreamResponse(stream=found)
                )
            case m.DeleteStreamRequest():
                gone = self.streams.pop(request.stream_id, None)
                return (
                    m.StreamResponse(m.Status(ErrorCode.NOT_FOUND)) if gone is None else m.StreamResponse(stream=gone)
                )
            case m.UpdateStreamRequest():
                there = request.stream.stream_id in self.streams
                self.streams[request.stream.stream_id] = request.stream
                return m.StreamResponse(stream=request.stream if there else None)
            case m.ListRangeRequest():
                listed = self.ranges.get(request.stream_id, []) if request.stream_id >= 0 else self._all_ranges()
                if request.server_id >= 0:
                    listed = [one for one in listed if request.server_id in [s.server_id for s in one.servers]]
                elif request.stream_id < 0:
                    listed = []
                # Only numbers of servers are kept, their addresses are those of now.
                here = self.servers
                return m.ListRangeResponse(
                    ranges=[replace(one, servers=[here[server.server_id] for server in one.servers]) for one in listed]
                )
            case m.CreateRangeRequest():
                return self._create_range(request.range)
            case m.SealRangeRequest():
                return self._seal(request)
        return _NOT_SERVED

    def _all_ranges(self) -> list[m.RangeInfo]:
        return [one for ranges in self.ranges.values() for one in ranges]

    def _create_range(self, wanted: m.RangeInfo) -> m.Response:
        stream = self.streams.get(wanted.stream_id)
        if stream is None:
            return m.RangeResponse(m.Status(ErrorCode.NOT_FOUND))
        ranges = self.ranges.setdefault(wanted.stream_id, [])
        last = ranges[-1] if ranges else m.RangeInfo(wanted.stream_id, -1, -1, 0, 0)
        if last.end < 0:
            return m.RangeResponse(m.Status(ErrorCode.CREATE_RANGE_BEFORE_SEAL))
        if wanted.index != last.index + 1 or wanted.start != last.end:
            return m.RangeResponse(m.Status(ErrorCode.BAD_REQUEST))
        if wanted.epoch < last.epoch:
            return m.RangeResponse(m.Status(ErrorCode.EXPIRED_RANGE_EPOCH))
        if not self.servers:
            return m.RangeResponse(m.Status(ErrorCode.PD_NO_AVAILABLE_RS))
        chosen = list(self.servers.values())[self._turn % len(self.servers)]
        self._turn += 1
        made = replace(wanted, end=-1, servers=[chosen], replica_count=stream.replica, ack_count=stream.ack_count)
        ranges.append(made)
        return m.RangeResponse(range=made)

    def _seal(self, request: m.SealRangeRequest) -> m.Response:
        wanted = request.range
        ranges = self.ranges.get(wanted.stream_id, [])
        if request.kind != m.SealKind.PLACEMENT_DRIVER:
            return m.RangeResponse(m.Status(ErrorCode.BAD_REQUEST))
        if wanted.index >= len(ranges):
            return m.RangeResponse(m.Status(ErrorCode.RANGE_NOT_FOUND))
        last = ranges[-1]
        if wanted.index < last.index or last.end >= 0:
            return m.RangeResponse(m.Status(ErrorCode.RANGE_ALREADY_SEALED))
        if wanted.end < last.start:
            return m.RangeResponse(m.Status(ErrorCode.BAD_REQUEST))
        if wanted.epoch < last.epoch:
            return m.RangeResponse(m.Status(ErrorCode.EXPIRED_RANGE_EPOCH))
        ranges[-1] = replace(last, end=wanted.end, epoch=wanted.epoch)
        return m.RangeResponse(range=ranges[-1])


class ForeignRange:
    def __init__(self, info: m.RangeInfo) -> None:
        self.info = replace(info, servers=[])
        self.entries: list[m.Entry] = []
        self.committed: int | None = None
        self.sealed_at = -1

    @property
    def next(self) -> int:
        return self.entries[-1].end_offset if self.entries else self.info.start


class ForeignRangeServer:
    """It reads the byte budget of a fetch from max_wait_ms (0: finds nothing) and never waits; finds nothing from
    inside its last batch; answers nothing at all when the answer would exceed 16 MiB; says 1400 of what it has
    reclaimed; and forgets at a restart what is committed and sealed."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[int, int], ForeignRange] = {}
        self.fetches: list[m.FetchRequest] = []
        self.requests: list[m.Request] = []
        self.dropped = 0
        """Answers that were too long."""
        self.swallows = 0
        """So many of the next appends are stored and not answered."""
        self.broken = False
        """Whether appends are refused."""
        self.silent = 0
        """So many of the next fetches get no answer."""
        self.reclaimed = 0
        """Below this offset, of any range, nothing is left."""

    async def start(self, server_id: int, pd: Carrier) -> None:
        """What it does when its process starts. Raises ``Panic`` where the real one panics."""
        for known in self.ranges.values():
            known.committed = None
            known.sealed_at = -1
        listed = await pd.call(m.ListRangeRequest(server_id=server_id))
        assert isinstance(listed, m.ListRangeResponse)
        for info in listed.ranges:
            described = await pd.call(m.DescribeStreamRequest(info.stream_id))
            if not described.status.ok:
                raise Panic(f"stream {info.stream_id}: {described.status.code}")
            known = self.ranges.setdefault((info.stream_id, info.index), ForeignRange(info))
            known.sealed_at = info.end

    def restart(self) -> None:
        """What was committed is forgotten until the next append; seals, too."""
        for known in self.ranges.values():
            known.committed = None
            known.sealed_at = -1

    def handle(self, request: m.Request, reply: Reply) -> None:
        if isinstance(request, m.GoAway):
            return
        self.requests.append(request)
        answer = self.serve(request)
        if self.swallows and isinstance(answer, m.AppendResponse):
            self.swallows -= 1
            return
        if self.silent and isinstance(answer, m.FetchResponse):
            self.silent -= 1
            return
        if isinstance(answer, m.FetchResponse) and _is_too_long(answer):
            self.dropped += 1
            return
        reply(answer)

    def serve(self, request: m.Request) -> m.Response:
        match request:
            case m.HeartbeatRequest():
                return m.HeartbeatResponse(request.client_id, request.role, request.range_server)
            case m.CreateRangeRequest():
                key = (request.range.stream_id, request.range.index)
                self.ranges.setdefault(key, ForeignRange(request.range))
                return m.RangeResponse(range=request.range)
            case m.AppendRequest():
                return m.AppendResponse(results=[self.append(entry) for entry in request.entries])
            case m.SealRangeRequest():
                wanted = request.range
                known = self.ranges.setdefault((wanted.stream_id, wanted.index), ForeignRange(wanted))
                if known.sealed_at < 0:
                    known.sealed_at = known.info.start if known.committed is None else known.committed
                end = known.sealed_at
                return m.RangeResponse(
                    range=m.RangeInfo(wanted.stream_id, wanted.epoch, wanted.index, wanted.start, end)
                )
            case m.FetchRequest():
                self.fetches.append(request)
                return self.fetch(request)
        return _NOT_SERVED

    def append(self, entry: m.Entry) -> m.AppendResult:
        known = self.ranges.get((entry.stream_id, entry.range_index))
        if self.broken:
            return m.AppendResult(m.Status(ErrorCode.RS_INTERNAL_SERVER_ERROR))
        if known is None:
            return m.AppendResult(m.Status(ErrorCode.RANGE_NOT_FOUND))
        if known.sealed_at >= 0:
            return m.AppendResult(m.Status(ErrorCode.RANGE_ALREADY_SEALED))
        if entry.base_offset < known.next:
            return m.AppendResult(m.Status(ErrorCode.APPEND_TO_COMMITTED_OFFSET))
        if entry.base_offset > known.next:
            return m.AppendResult(m.Status(ErrorCode.APPEND_TO_OVERTAKEN_OFFSET))
        known.entries.append(entry)
        known.committed = entry.end_offset
        return m.AppendResult(m.Status(), 1)

    def fetch(self, request: m.FetchRequest) -> m.FetchResponse:
        known = self.ranges.get((request.range.stream_id, request.range.index))
        if known is None:
            return m.FetchResponse(m.Status(ErrorCode.RANGE_NOT_FOUND))
        nothing = m.FetchResponse(m.Status(ErrorCode.NO_NEW_RECORD))
        if not known.entries or request.offset > known.entries[-1].base_offset:
            return nothing
        first = max((k for k, entry in enumerate(known.entries) if entry.base_offset <= request.offset), default=0)
        found: list[m.Entry] = []
        size = 0
        for entry in known.entries[first:]:
            if entry.base_offset >= request.limit or size >= request.max_wait_ms:
                break
            if entry.end_offset <= self.reclaimed:
                return m.FetchResponse(m.Status(ErrorCode.BAD_REQUEST, "the segment is gone"))
            found.append(entry)
            size += entry.size
        return m.FetchResponse(m.Status(), found) if found else nothing


def _is_too_long(answer: m.FetchResponse) -> bool:
    # What the frame of such an answer holds beside the entries takes some tens of bytes.
    return sum(entry.size for entry in answer.entries) + FRAME_OVERHEAD + 64 > MAX_FRAME_LENGTH


class ForeignCluster:
    """A placement driver and ``servers`` range servers that it knows, reached in this process or, after
    :meth:`serve`, over TCP. ``pd`` may be any handler of a placement driver's requests."""

    def __init__(self, servers: int = 2, pd: Handler | None = None) -> None:
        self.pd = ForeignPlacementDriver()
        self.handler: Handler = self.pd if pd is None else pd
        self.servers = [ForeignRangeServer() for _ in range(servers)]
        self.address = ""
        """Of the placement driver, once it serves."""
        self._listeners: list[Listener] = []

    async def enlist(self) -> None:
        """The range servers report to the placement driver, under addresses that mean something in this process."""
        for server_id in range(len(self.servers)):
            await self._report(m.RangeServerInfo(server_id, f"s{server_id}:1"))

    async def serve(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listens, the placement driver where it is told to; returns its address."""
        for server_id, server in enumerate(self.servers):
            await self._report(m.RangeServerInfo(server_id, await self._listen(server, ListenerOptions(), host, 0)))
        self.address = await self._listen(self.handler, ListenerOptions.placement_driver(), host, port)
        return self.address

    async def _report(self, info: m.RangeServerInfo) -> None:
        await InProcessCarrier(self.handler).call(m.HeartbeatRequest("", m.ClientRole.RANGE_SERVER, info))

    async def _listen(self, handler: Handler, options: ListenerOptions, host: str, port: int) -> str:
        listener = Listener(handler, DialectV02(), host, port, options)
        await listener.start()
        self._listeners.append(listener)
        return f"{host}:{listener.address[1]}"

    async def start_again(self) -> None:
        """Every range server's process ends and starts. Raises ``Panic``."""
        for server_id, server in enumerate(self.servers):
            await server.start(server_id, InProcessCarrier(self.handler))

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.close()
