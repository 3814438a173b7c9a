"""Hostility in YDB's words: streams that do nothing, or never take what they asked for, bombs, nonsense."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import grpc
import hostile_frames as frames
import zstandard

from bridges.formats.protobuf import put_bytes
from tests.half_messages import HalfMessage
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS

if TYPE_CHECKING:
    from hostile_attacks import Attack

LISTENER = "ydb"
CONSUMER = "hostile"
_DATABASE = [("x-ydb-database", "/local")]
_STREAMS_OF_A_CHANNEL = 500
_WriteFromClient = messages["Ydb.Topic.StreamWriteMessage.FromClient"]
_ReadFromClient = messages["Ydb.Topic.StreamReadMessage.FromClient"]

Stream = Any


class Channels:
    """Connections of their own, each for some hundred streams."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._open: list[grpc.aio.Channel] = []

    def of(self, number: int) -> grpc.aio.Channel:
        """The connection of the numbered stream."""
        while len(self._open) <= number // _STREAMS_OF_A_CHANNEL:
            host, port = self._attack.targets[LISTENER]
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
            self._open.append(grpc.aio.insecure_channel(f"{host}:{port}", options))
        return self._open[number // _STREAMS_OF_A_CHANNEL]

    async def close(self) -> None:
        await asyncio.gather(*(one.close(None) for one in self._open))


@asynccontextmanager
async def _stream(attack: Attack, channels: Channels, number: int, kind: str) -> AsyncIterator[Stream]:
    """A stream, cancelled at the end; what gRPC says of it then is no failure of the attack."""
    stream = channels.of(number).stream_stream(METHODS[kind].path)(metadata=_DATABASE)
    try:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            yield stream
    finally:
        stream.cancel()


async def _send(attack: Attack, stream: Stream, message: Any) -> None:
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    await asyncio.wait_for(stream.write(raw), max(attack.left, 0.01))
    attack.done.requests += 1
    attack.done.bytes_sent += len(raw)


async def _answer(attack: Attack, stream: Stream) -> None:
    raw = await asyncio.wait_for(stream.read(), min(5.0, max(attack.left, 0.01)))
    if raw is grpc.aio.EOF:
        attack.done.closed_by_node += 1
    else:
        attack.done.answers += 1


async def _each(attack: Attack, one: Callable[[Channels, int], Awaitable[None]], per_second: float) -> None:
    channels = Channels(attack)
    try:
        await attack.each(lambda number: one(channels, number), per_second)
    finally:
        await channels.close()


async def ydb_idle(attack: Attack) -> None:
    """Streams that begin, or not even that, and then do nothing; readers that never give a credit."""

    async def one(channels: Channels, number: int) -> None:
        reads = number % 2
        async with _stream(attack, channels, number, "StreamRead" if reads else "StreamWrite") as stream:
            if number % 3:
                if reads:
                    init = {"topics_read_settings": [{"path": frames.BULK}], "consumer": CONSUMER}
                    await _send(attack, stream, _ReadFromClient(init_request=init))
                else:
                    init = {"path": frames.BULK, "producer_id": f"idle-{number}"}
                    await _send(attack, stream, _WriteFromClient(init_request=init))
                await _answer(attack, stream)
            attack.done.connections += 1
            await asyncio.sleep(max(attack.left, 0))

    await _each(attack, one, 1000)


async def ydb_slow_readers(attack: Attack) -> None:
    """Credits without end, and then not one message is taken."""

    async def one(channels: Channels, number: int) -> None:
        async with _stream(attack, channels, number * _STREAMS_OF_A_CHANNEL, "StreamRead") as stream:
            partitions = list(range(attack.partitions))
            settings = [{"path": frames.BULK, "partition_ids": partitions}]
            await _send(attack, stream, _ReadFromClient(init_request={"topics_read_settings": settings}))
            await _send(attack, stream, _ReadFromClient(read_request={"bytes_size": 2**62}))
            attack.done.connections += 1
            for session in range(1, attack.partitions + 1):
                start = {"partition_session_id": session, "read_offset": 0}
                await _send(attack, stream, _ReadFromClient(start_partition_session_response=start))
            await asyncio.sleep(max(attack.left, 0))

    await _each(attack, one, 50)


@lru_cache(maxsize=1)
def bombs() -> tuple[tuple[int, bytes], ...]:
    """Codec and body of messages that are small and large at once, or cut short."""
    zeros = bytes(64 * 1024 * 1024)
    packed, frame = gzip.compress(zeros, 9), zstandard.compress(zeros, 9)
    return (
        (2, packed),
        (4, frame),
        (2, packed * 40),  # members one behind the other: gigabytes
        (2, packed[:-20]),
        (4, frame[:-3]),
        (3, b"\x89LZO\x00\r\n\x1a\n" + bytes(64)),
        (3, b"\xff" * 1000),
        (10_007, b"whatever"),
    )


async def ydb_bombs(attack: Attack) -> None:
    """Messages that inflate to very much, then a Fetch of Kafka's that makes the node look into them."""
    every = bombs()

    async def one(channels: Channels, number: int) -> None:
        codec, body = every[number % len(every)]
        attack.done.connections += 1
        async with _stream(attack, channels, number, "StreamWrite") as stream:
            await _send(attack, stream, _WriteFromClient(init_request={"path": frames.BOMBS}))
            await _answer(attack, stream)
            data = [{"seq_no": place, "data": body, "uncompressed_size": 2**62} for place in range(1, 4)]
            await _send(attack, stream, _WriteFromClient(write_request={"messages": data, "codec": codec}))
            await _answer(attack, stream)
        link = await attack.connect("kafka")
        if link is not None:
            if await attack.send(link, frames.fetch(frames.BOMBS, 1, max_bytes=1 << 20)):
                await attack.answer(link)
            link[1].transport.abort()

    await _each(attack, one, 20)


@lru_cache(maxsize=1)
def nonsense() -> tuple[tuple[str, bytes], ...]:
    """Messages of streams that are not as they should be, each behind a correct beginning."""
    message = {"seq_no": 1, "data": b"x"}
    items = [{"key": f"k{number}", "value": b"v"} for number in range(100_000)]
    written = (
        {"messages": [{"seq_no": 0, "data": b"x"}], "codec": 1},
        {"messages": [message], "codec": 0},
        {"messages": [message], "codec": 77},
        {"messages": [message, message], "codec": 1},
        {"messages": [], "codec": 1},
        {"messages": [{**message, "metadata_items": [{"key": "k", "value": bytes(5000)}]}], "codec": 1},
        {"messages": [{**message, "metadata_items": items}], "codec": 1},
        {"messages": [{**message, "metadata_items": [{}] * 400_000}], "codec": 1},
        {"messages": [{"seq_no": place} for place in range(1, 200_001)], "codec": 1},
        {"messages": [message], "codec": 1, "tx": {"id": "t", "session": "s"}},
    )
    raws = [_WriteFromClient(write_request=one).SerializeToString() for one in written]
    fields = b"\xa0\x01\x00" * 200_000  # that nobody knows, in one message
    inner, whole = bytearray(), bytearray()
    put_bytes(inner, 0x0A, fields)
    put_bytes(whole, 0x12, inner)
    raws.append(bytes(whole))
    raws += [b"\xff" * 1000, b"\x12\xff\xff\xff\xff\x0f", b"\x12\x02\x0a" * 1000, bytes(100_000)]
    settings = [{"path": f"t{number}"} for number in range(100_000)]
    ranges = [{"start": start, "end": start + 1} for start in range(0, 200_000, 2)]
    read = (
        {"init_request": {"topics_read_settings": settings, "consumer": CONSUMER}},
        {"commit_offset_request": {"commit_offsets": [{"partition_session_id": 1, "offsets": ranges}]}},
        {"read_request": {"bytes_size": -(2**63)}},
        {"partition_session_status_request": {"partition_session_id": 2**63 - 1}},
    )
    return (
        *(("StreamWrite", raw) for raw in raws),
        *(("StreamRead", _ReadFromClient(**one).SerializeToString()) for one in read),
    )


@lru_cache(maxsize=1)
def calls() -> tuple[tuple[str, bytes], ...]:
    """Calls that name very many things, or none that makes sense."""

    def raw(kind: str, **fields: Any) -> tuple[str, bytes]:
        return kind, messages[METHODS[kind].request](**fields).SerializeToString()

    return (
        raw("CreateTopic", path="h", attributes={f"k{number}": "v" for number in range(100_000)}),
        raw("CreateTopic", path="h", consumers=[{"name": f"c{number}"} for number in range(50_000)]),
        raw("CreateTopic", path="h", partitioning_settings={"min_active_partitions": 2**62}),
        raw("AlterTopic", path=frames.BULK, drop_consumers=[str(number) for number in range(50_000)]),
        raw("DescribeTopic", path="/" * 100_000),
        raw("DescribeTopic", path=frames.BULK, include_stats=True, include_location=True),
        raw("MakeDirectory", path="a/" * 500),
        raw("ListDirectory", path="/local"),
        raw("Login", user="u" * 100_000, password="p" * 100_000),
        ("CreateTopic", b"\xff" * 3_000_000),
    )


async def ydb_nonsense(attack: Attack) -> None:
    """What the protocol does not allow, in streams and calls."""
    streams, unary = nonsense(), calls()

    async def one(channels: Channels, number: int) -> None:
        attack.done.connections += 1
        if number % 2:
            kind, raw = unary[number // 2 % len(unary)]
            with suppress(grpc.aio.AioRpcError, TimeoutError):
                call = channels.of(number).unary_unary(METHODS[kind].path)(raw, metadata=_DATABASE)
                await asyncio.wait_for(call, 30)
                attack.done.answers += 1
            attack.done.requests += 1
            return
        kind, raw = streams[number // 2 % len(streams)]
        async with _stream(attack, channels, number, kind) as stream:
            if kind == "StreamWrite":
                await _send(attack, stream, _WriteFromClient(init_request={"path": frames.BOMBS, "producer_id": "h"}))
            else:
                init = {"topics_read_settings": [{"path": frames.BOMBS, "partition_ids": [0]}]}
                await _send(attack, stream, _ReadFromClient(init_request=init))
            await _answer(attack, stream)
            await _send(attack, stream, raw)
            await _answer(attack, stream)

    await _each(attack, one, 50)


async def ydb_half_messages(attack: Attack) -> None:
    """Nearly all of the largest message there may be, of streams and of calls, and then nothing more."""
    host, port = attack.targets[LISTENER]

    async def one(number: int) -> None:
        path = METHODS["StreamWrite" if number % 2 else "CreateTopic"].path
        with suppress(OSError, TimeoutError):
            async with HalfMessage(host, port, path, **{"x-ydb-database": "/local"}) as half:
                attack.done.connections += 1
                with suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(max(attack.left, 0.01)):
                        await half.send(60_000_000, 59_000_000)
                        attack.done.bytes_sent += 59_000_000
                        await half.ended.wait()
                attack.done.closed_by_node += half.ended.is_set()

    await attack.each(one, 20)


_EVERY = (ydb_idle, ydb_slow_readers, ydb_bombs, ydb_nonsense, ydb_half_messages)
ATTACKS = {attack.__name__: attack for attack in _EVERY}
PREPARE = {"ydb_bombs": bombs, "ydb_nonsense": lambda: (nonsense(), calls())}
