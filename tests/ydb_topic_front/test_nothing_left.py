"""Streams and calls that have ended, however they did, go at once and not when the collector finds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from anabranch_kit.net.sockets import Sockets, close
from bridges.log.partition.partition_log import PartitionLog
from bridges.net.grpc_server import Code, GrpcServer
from bridges.node.assembly import Node
from tests.grpc_left_behind import Client, calls_over, cancel, not_grpcs, rest
from tests.kit.waiting import until
from tests.left_behind import left_behind
from tests.ydb_topic_front.service.test_read_lineage import node
from ydb_topic_front.front import YdbFront
from ydb_topic_front.service.core import YdbService
from ydb_topic_front.service.read.stream import ReadStream
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.statuses import Status

__all__ = ["node"]

PATH = {kind: METHODS[kind].path for kind in ("StreamWrite", "StreamRead", "StreamDirectRead")}
MEBIBYTE = 1 << 20
ONE = {"write_request": {"messages": [{"seq_no": 1, "data": b"x"}], "codec": 1}}
LARGE = {"write_request": {"messages": [{"seq_no": 1, "data": bytes(MEBIBYTE)}], "codec": 1}}
WRITE = {"init_request": {"path": "t"}}
PRODUCE = {"init_request": {"path": "t", "producer_id": "p"}}
READ = {"init_request": {"topics_read_settings": [{"path": "t"}], "consumer": "c"}}
DIRECT = {"init_request": {"topics_read_settings": [{"path": "t"}], "consumer": "c", "session_id": "c_1_x"}}
READ_DIRECT = {"init_request": READ["init_request"] | {"direct_read": True}}
READ_MUCH = {"init_request": {"topics_read_settings": [{"path": "much", "partition_ids": [0]}]}}
CREDIT = {"read_request": {"bytes_size": 1 << 40}}
STARTED = {"start_partition_session_response": {"partition_session_id": 1}}
COMMIT = {
    "commit_offset_request": {
        "commit_offsets": [{"partition_session_id": 1, "offsets": [{"start": 0, "end": 1}]}],
    }
}
TOKEN = {"update_token_request": {"token": "no token"}}
NONSENSE = b"\xff" * 1000

End = Callable[[], Awaitable[None]]
Said = dict[str, Any] | bytes | int
"""A message, or how many answers come before the next."""


class Ends:
    """Ways in which streams and calls end."""

    def __init__(self, node: Node, client: Client) -> None:
        self.node = node
        self.client = client
        (front,) = node.fronts
        assert isinstance(front, YdbFront)
        assert front.server is not None
        assert front.server.server is not None
        assert front.server.service is not None
        self.server: GrpcServer = front.server.server
        self.service: YdbService = front.server.service

    async def begun(self, kind: str, *script: Said, channel: Any = None) -> Any:
        """A stream in which this was said, and as often answered as the numbers between say."""
        stream = self.client.stream(PATH[kind], channel)
        request = messages[METHODS[kind].request]
        answer = messages[METHODS[kind].response]
        for one in script:
            if isinstance(one, int):
                for _ in range(one):
                    assert answer.FromString(await stream.read()).status == Status.SUCCESS
            else:
                await stream.write(one if isinstance(one, bytes) else request(**one).SerializeToString())
        return stream

    def ends(self, kind: str, *script: Said) -> End:
        """The client says that this was all."""

        async def end() -> None:
            stream = await self.begun(kind, *script)
            await stream.done_writing()
            await rest(stream)

        return end

    def refused(self, kind: str, *script: Said) -> End:
        """The node does not put up with the last that is said."""

        async def end() -> None:
            await rest(await self.begun(kind, *script))

        return end

    def gone(self, kind: str, *script: Said) -> End:
        """The client cancels it."""

        async def end() -> None:
            await until(lambda: not self.server.streams)
            stream = await self.begun(kind, *script)
            await until(lambda: bool(self.server.streams))
            await cancel(stream)

        return end

    def cut(self, kind: str, *script: Said) -> End:
        """Its connection is."""
        ports = frozenset({self.node.addresses["ydb"].port})

        async def end() -> None:
            before = Sockets().to(ports)
            channel = self.client.another()
            stream = await self.begun(kind, *script, channel=channel)
            for peer, arrived in Sockets().to(ports).items():
                assert peer in before or close(arrived.number, peer)
            await rest(stream)
            await channel.close()

        return end

    def without_a_token(self, kind: str, *script: Said, then: dict[str, Any] | None = None) -> End:
        """The client must say from now on who it is, and does not."""

        async def end() -> None:
            await until(lambda: not self.server.streams)
            stream = await self.begun(kind, *script) if script else None
            self.node.authenticator.required = True
            try:
                if stream is None:
                    stream = await self.begun(kind)
                if then is not None:
                    await stream.write(messages[METHODS[kind].request](**then).SerializeToString())
                await rest(stream)
            finally:
                self.node.authenticator.required = False

        return end

    def too_late(self, kind: str) -> End:
        """It does not say in time what it wants."""

        async def end() -> None:
            await until(lambda: not self.server.streams)
            forwarding = self.service.forwarding
            before, forwarding.init_timeout_s = forwarding.init_timeout_s, 0.001
            try:
                await rest(await self.begun(kind))
            finally:
                forwarding.init_timeout_s = before

        return end

    def drained(self, kind: str, *script: Said) -> End:
        """The node stops."""

        async def end() -> None:
            stream = await self.begun(kind, *script)
            for one in self.server.streams:
                one.drain()
            await rest(stream)

        return end

    async def another_producer(self) -> None:
        stream = await self.begun("StreamWrite", PRODUCE, 1)
        other = await self.begun("StreamWrite", PRODUCE, 1)
        await rest(stream)
        await cancel(other)

    async def takes_nothing(self) -> None:
        channel = self.client.another()
        stream = await self.begun("StreamRead", READ_MUCH, 2, CREDIT, STARTED, channel=channel)
        assert self.service.readers is not None
        (session,) = self.service.readers.by_id.values()
        assert isinstance(session, ReadStream)
        await until(lambda session=session: session.writing_since > 0)  # type: ignore[misc]
        session.cut_if_stuck(float("inf"))
        del session
        await until(lambda: not self.server.streams)
        await cancel(stream)
        await channel.close()

    async def reads_directly(self) -> None:
        """A session and its data: the client of the session goes first."""
        session = await self.begun("StreamRead", READ_DIRECT, 2, CREDIT, STARTED)
        assert self.service.readers is not None
        (session_id,) = self.service.readers.by_id
        start = {"partition_session_id": 1, "generation": self.service.generation("t", 0)}
        data = await self.begun(
            "StreamDirectRead",
            {"init_request": DIRECT["init_request"] | {"session_id": session_id}},
            1,
            {"start_direct_read_partition_session_request": start},
            2,
        )
        await cancel(session)
        await until(lambda: not self.server.streams)
        await cancel(data)

    def asks(self, name: str, code: Code = Code.OK, **fields: Any) -> End:
        """A call that is answered."""
        raw = messages[METHODS[name].request](**fields).SerializeToString()
        return lambda: self.client.ask(METHODS[name].path, raw, code)

    async def no_token_in_a_call(self) -> None:
        self.node.authenticator.required = True
        try:
            await self.asks("DescribeTopic", Code.UNAUTHENTICATED, path="t")()
        finally:
            self.node.authenticator.required = False

    async def cancelled_call(self) -> None:
        raw = messages[METHODS["CommitOffset"].request](path="t", consumer="c").SerializeToString()
        whole = PartitionLog.ready
        waiting: list[PartitionLog] = []

        async def never(log: PartitionLog) -> None:
            waiting.append(log)
            await self.node_stops()

        PartitionLog.ready = never  # type: ignore[method-assign]
        try:
            call = self.client.call(METHODS["CommitOffset"].path, raw)
            await until(lambda: bool(waiting))
            await cancel(call)
        finally:
            PartitionLog.ready = whole  # type: ignore[method-assign]

    async def node_stops(self) -> None:
        await until(lambda: False)


async def test_nothing_is_left_of_streams_and_calls(node: Node) -> None:
    async with Client(str(node.addresses["ydb"]), ("x-ydb-database", "/local")) as client:
        ends = Ends(node, client)
        await ends.asks("CreateTopic", path="t", consumers=[{"name": "c"}])()
        await ends.asks("CreateTopic", path="much")()
        await ends.ends("StreamWrite", WRITE, ONE, 2)()
        much = {"init_request": {"path": "much"}}
        await ends.ends("StreamWrite", much, *[LARGE] * 8, 9)()
        create = METHODS["CreateTopic"].path
        found = await left_behind(
            {
                "a writer has written": ends.ends("StreamWrite", WRITE, ONE, 2),
                "a producer has written": ends.ends("StreamWrite", PRODUCE, ONE, 2),
                "a writer says nothing": ends.gone("StreamWrite"),
                "a writer goes": ends.gone("StreamWrite", WRITE, ONE, 2),
                "a writer goes before it is answered": ends.gone("StreamWrite", WRITE, 1, ONE, ONE, ONE),
                "a writer is cut off": ends.cut("StreamWrite", WRITE, ONE, 2),
                "a writer begins with nonsense": ends.refused("StreamWrite", NONSENSE),
                "a writer does not begin": ends.refused("StreamWrite", ONE),
                "a writer writes nowhere": ends.refused("StreamWrite", {"init_request": {"path": "nowhere"}}),
                "a writer writes nonsense": ends.refused("StreamWrite", WRITE, 1, NONSENSE),
                "a writer may not begin": ends.without_a_token("StreamWrite"),
                "a writer has no token any more": ends.without_a_token("StreamWrite", WRITE, 1, then=TOKEN),
                "a writer takes its time": ends.too_late("StreamWrite"),
                "a producer comes again": ends.another_producer,
                "a writer of a node that stops": ends.drained("StreamWrite", WRITE, ONE, 2),
                "a reader has read": ends.ends("StreamRead", READ, 2, CREDIT, STARTED, 1, COMMIT),
                "a reader says nothing": ends.gone("StreamRead"),
                "a reader goes": ends.gone("StreamRead", READ, 2, CREDIT, STARTED, 1),
                "a reader is cut off": ends.cut("StreamRead", READ, 2),
                "a reader begins with nonsense": ends.refused("StreamRead", NONSENSE),
                "a reader does not begin": ends.refused("StreamRead", CREDIT),
                "a reader says nonsense": ends.refused("StreamRead", READ, 2, NONSENSE),
                "a reader may not begin": ends.without_a_token("StreamRead"),
                "a reader has no token any more": ends.without_a_token("StreamRead", READ, 2, then=TOKEN),
                "a reader takes its time": ends.too_late("StreamRead"),
                "a reader takes nothing": ends.takes_nothing,
                "a reader of a node that stops": ends.drained("StreamRead", READ, 2),
                "a reader of data says nothing": ends.gone("StreamDirectRead"),
                "a reader of data has no session": ends.refused("StreamDirectRead", DIRECT),
                "a reader of data": ends.reads_directly,
                "a call": ends.asks("ListEndpoints", database="/local"),
                "a call that takes memory": ends.asks("DescribeTopic", path="t", include_stats=True),
                "a call about nothing": ends.asks("DescribeTopic", path="nowhere"),
                "a call of nonsense": lambda: client.ask(create, NONSENSE),
                "a long call": lambda: client.ask(create, bytes(MEBIBYTE)),
                "a call without a token": ends.no_token_in_a_call,
                "a call that is cancelled": ends.cancelled_call,
            },
            lambda: calls_over(ends.asks("WhoAmI")),
        )
        assert not_grpcs(found) == {}
