"""Hostility in Pravega's words: appenders that do nothing, blocks without an end, tables that are too large and readers
of them that take nothing, transactions that nobody ends, calls and commands of every kind without a pause."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import grpc
import hostile_frames as frames
from hostile_frames import pravega_commands as raw
from hostile_frames import pravega_segment as segment

from pravega_front.wire import commands as wire
from pravega_front.wire.controller import METHODS, SERVICE, message
from pravega_front.wire.fields import ANY_VERSION, TableEntry, TableKey
from pravega_front.wire.frames import HEAD
from tests.pravega_front.examples import examples

if TYPE_CHECKING:
    from hostile_attacks import Attack, Link

STORE, CONTROLLER = "pravega-segmentstore", "pravega"
SCOPE = "default"
_MIB = 1024 * 1024
_KEEP_ALIVE = raw(wire.KeepAlive())
_LEASE_MS = 10_000
_APPENDERS = 10
"""Appenders of one connection that do nothing."""


def _table(number: int) -> str:
    return f"hostile/giant-{number}_kvtable/0.#epoch.0"


def _writer(attack: Attack) -> bytes:
    return attack.rng.randbytes(16)


async def _set_up(attack: Attack, link: Link, writer: bytes, name: str) -> bool:
    """Say hello and set a writer up; whether both were answered."""
    said = raw(wire.Hello(17, 5), wire.SetupAppend(1, writer, name, ""))
    return await attack.send(link, said) and await _receive(attack, link, 2)


def _event(size: int) -> bytes:
    return struct.pack(">ii", 0, size) + bytes(size)


async def _on_link(attack: Attack, work: Callable[[Link], Awaitable[None]], receive_buffer: int = 0) -> None:
    link = await attack.connect(STORE, receive_buffer)
    if link is not None:
        try:
            await work(link)
        finally:
            link[1].transport.abort()


async def _receive(attack: Attack, link: Link, count: int) -> bool:
    """Read ``count`` answers, whatever they are; False when the connection, or the time, has ended first."""
    try:
        for _ in range(count):
            head = await asyncio.wait_for(link[0].readexactly(HEAD.size), max(attack.left, 0.01))
            await asyncio.wait_for(link[0].readexactly(HEAD.unpack(head)[1]), max(attack.left, 0.01))
            attack.done.answers += 1
    except TimeoutError:
        return False
    except (OSError, asyncio.IncompleteReadError):
        attack.done.closed_by_node += 1
        return False
    return True


async def pravega_idle(attack: Attack) -> None:
    """Connections that set up ten appenders each, some of whom append once, and then do nothing."""

    async def one(number: int) -> None:
        async def work(link: Link) -> None:
            writers, data = [_writer(attack) for _ in range(_APPENDERS)], _event(10)
            appends = number % 3 == 0
            name = segment(frames.BOMBS, 0) if appends else segment(frames.BULK, number % attack.partitions)
            setups = (wire.SetupAppend(1, writer, name, "") for writer in writers)
            said = raw(wire.Hello(17, 5), *setups)
            if not await attack.send(link, said) or not await _receive(attack, link, 1 + _APPENDERS):
                return
            if appends:
                ends = (wire.AppendBlockEnd(writer, len(data), data, 1, 1, 1) for writer in writers)
                if not await attack.send(link, raw(*ends)) or not await _receive(attack, link, _APPENDERS):
                    return
            attack.done.appenders += _APPENDERS
            await attack.linger(link)

        await _on_link(attack, work)

    await attack.each(one, 200)


async def pravega_half_blocks(attack: Attack) -> None:
    """Blocks whose ends never come, with a word now and then; frames that stop in their middle; nested blocks."""

    async def one(number: int) -> None:
        async def work(link: Link) -> None:
            writer = _writer(attack)
            data = _event(_MIB)
            begun = raw(wire.AppendBlock(writer, data))
            kind = number % 4
            if kind == 1:
                begun += HEAD.pack(wire.AppendBlockEnd.code, 9 * _MIB) + writer + bytes(_MIB)
            elif kind == 2:
                begun += raw(wire.ReadSegment(segment(frames.BULK, 0), 0, 8 * _MIB, "", 1)) * 40
            elif kind == 3:
                begun += raw(wire.AppendBlock(writer, data))
            if not await _set_up(attack, link, writer, segment(frames.BOMBS, 0)):
                return
            if not await attack.send(link, begun):
                return
            while kind == 0 and attack.left > 0:
                if not await attack.send(link, _KEEP_ALIVE):
                    return
                await asyncio.sleep(min(1.0, max(attack.left, 0)))
            await attack.linger(link)

        await _on_link(attack, work)

    await attack.each(one, 100)


async def pravega_slow_readers(attack: Attack) -> None:
    """Reads by the hundred of which nothing is taken, and more reads at the ends of segments than may wait there."""

    async def one(number: int) -> None:
        async def work(link: Link) -> None:
            link[1].transport.pause_reading()  # type: ignore[attr-defined]
            places = [segment(frames.BULK, place) for place in range(attack.partitions)]
            if number % 2:
                reads = [wire.ReadSegment(one, 0, 8 * _MIB, "", 1) for one in places]
            else:
                reads = [wire.ReadSegment(segment(frames.BOMBS, 0), 2**62 + place, 8, "", 1) for place in range(2000)]
            if await attack.send(link, raw(*reads)):
                await attack.linger(link)

        await _on_link(attack, work, receive_buffer=4096)

    await attack.each(one, 50)


@lru_cache(maxsize=1)
def _large_entries() -> tuple[bytes, ...]:
    """Entries of tables, of which those that are allowed fill them: all but the head of their commands."""
    values = [TableEntry(b"large-%d" % place, ANY_VERSION, bytes(_MIB - 8192)) for place in range(14)]
    many = [TableEntry(b"small-%d" % place, ANY_VERSION, b"v") for place in range(10_000)]
    return raw(wire.UpdateTableEntries(1, _table(0), "", values)), raw(wire.UpdateTableEntries(1, _table(0), "", many))


@lru_cache(maxsize=1)
def _greedy_reads() -> tuple[bytes, ...]:
    name = _table(0)
    keys = [TableKey(b"small-%d" % place, ANY_VERSION) for place in range(10_000)]
    large = [TableKey(b"large-%d" % place, ANY_VERSION) for place in range(8)]
    most = 2**31 - 1
    return (
        raw(wire.ReadTableEntries(1, name, "", most)) * 100,
        raw(wire.ReadTableKeys(1, name, "", most)) * 100,
        raw(wire.ReadTableEntriesDelta(1, name, "", 0, most)) * 100,
        raw(wire.ReadTable(1, name, "", keys)) * 20,
        raw(wire.ReadTable(1, name, "", large)) * 20,
        raw(wire.GetTableSegmentInfo(1, name, "")) * 1000,
        raw(wire.ReadTable(1, name, "", [TableKey(b"", ANY_VERSION)] * 2_000_000)),
        raw(wire.RemoveTableKeys(1, name, "", [TableKey(b"x", 5)] * 200_000)),
    )


async def pravega_tables(attack: Attack) -> None:
    """One table that is filled with all there is room for, and deleted; readers of it that take nothing, and others
    that never come to an end."""
    fill, reads = _large_entries(), _greedy_reads()
    name = _table(0)

    async def one(number: int) -> None:
        async def fills(link: Link) -> None:
            while attack.left > 0:
                if not await attack.send(link, raw(wire.CreateTableSegment(1, name, "")) + fill[0] + fill[1] * 3):
                    return
                if not await _receive(attack, link, 5):
                    return
                if not await attack.send(link, raw(wire.DeleteTableSegment(1, name, False, ""))):
                    return
                if not await _receive(attack, link, 1):
                    return

        async def takes_nothing(link: Link) -> None:
            link[1].transport.pause_reading()  # type: ignore[attr-defined]
            if await attack.send(link, reads[number % len(reads)]):
                await attack.linger(link)

        async def many_tables(link: Link) -> None:
            made = raw(*(wire.CreateTableSegment(1, _table(number * 1000 + place), "") for place in range(1, 1000)))
            if await attack.send(link, made):
                await _receive(attack, link, 999)

        if number % 8 == 0:
            await _on_link(attack, many_tables if number % 16 == 0 and number else fills)
        else:
            await _on_link(attack, takes_nothing, receive_buffer=4096)

    await attack.each(one, 50)


def _call(channel: grpc.aio.Channel, method: str) -> Any:
    return channel.unary_unary(f"/{SERVICE}/{method}")


def _channel(attack: Attack) -> grpc.aio.Channel:
    host, port = attack.targets[CONTROLLER]
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    return grpc.aio.insecure_channel(f"{host}:{port}", options)


async def _ask(attack: Attack, channel: grpc.aio.Channel, method: str, request: bytes) -> bytes:
    """The answer to a call; none, when it is refused or does not come in time."""
    attack.done.requests += 1
    attack.done.bytes_sent += len(request)
    try:
        answer: bytes = await asyncio.wait_for(_call(channel, method)(request), max(attack.left, 0.01))
    except TimeoutError:
        return b""
    except grpc.aio.AioRpcError as error:
        attack.done.answers += error.code() is not grpc.StatusCode.UNAVAILABLE
        attack.done.refused += error.code() is grpc.StatusCode.UNAVAILABLE
        return b""
    attack.done.answers += 1
    return answer


async def _over_channels(attack: Attack, one: Callable[[grpc.aio.Channel, int], Awaitable[None]], rate: float) -> None:
    channels = [_channel(attack) for _ in range(max(1, min(50, attack.count // 20)))]
    try:
        await attack.each(lambda number: one(channels[number % len(channels)], number), rate)
    finally:
        await asyncio.gather(*(channel.close(None) for channel in channels))


async def pravega_transactions(attack: Attack) -> None:
    """Transactions that begin, are written to and pinged, and never end; some are forgotten at once."""

    async def one(channel: grpc.aio.Channel, number: int) -> None:
        stream = message("StreamInfo")(scope=SCOPE, stream=frames.BOMBS)
        request = message("CreateTxnRequest")(streamInfo=stream, lease=_LEASE_MS)
        answer = await _ask(attack, channel, "createTransaction", request.SerializeToString())
        attack.done.connections += 1
        if not answer or number % 4 == 3:
            return
        found = message("CreateTxnResponse").FromString(answer).txnId
        name = f"{segment(frames.BOMBS, 0)}#transaction.{found.highBits:016x}{found.lowBits:016x}"

        async def work(link: Link) -> None:
            writer, data = _writer(attack), _event(100_000)
            sent = raw(*(wire.AppendBlockEnd(writer, len(data), data, 1, event, 1) for event in range(1, 6)))
            if not await _set_up(attack, link, writer, name) or not await attack.send(link, sent):
                return
            while attack.left > 0:
                ping = message("PingTxnRequest")(streamInfo=stream, txnId=found, lease=_LEASE_MS)
                if not await _ask(attack, channel, "pingTransaction", ping.SerializeToString()):
                    return
                await asyncio.sleep(min(1.0, max(attack.left, 0)))

        await _on_link(attack, work)

    await _over_channels(attack, one, 100)


@lru_cache(maxsize=1)
def _calls() -> tuple[tuple[str, bytes], ...]:
    """Calls that ask for very much, or for nothing that there is."""

    def one(method: str, **fields: Any) -> tuple[str, bytes]:
        return method, message(METHODS[method][0])(**fields).SerializeToString()

    info = {"scope": SCOPE, "stream": frames.BULK}
    long = {"scope": "s" * 100_000, "stream": "x" * 100_000}
    cut = dict.fromkeys(range(30000), 2**62)
    ranges = [{"start": place / 20_000, "end": (place + 1) / 20_000} for place in range(20_000)]
    cuts = [{"streamInfo": info, "cut": dict.fromkeys(range(100), 1)} for _ in range(400)]
    new = {"scope": SCOPE, "stream": "hostile-new"}
    table = {"scope": SCOPE, "kvtName": "hostile", "primaryKeyLength": 8}
    return (
        *((method, message(METHODS[method][0])().SerializeToString()) for method in METHODS),
        *((method, b"\xff" * 1000) for method in METHODS),
        one("createStream", streamInfo=new, scalingPolicy={"minNumSegments": 2**31 - 1}),
        one("createStream", streamInfo=new, scalingPolicy={"minNumSegments": 1000}),
        one("deleteStream", **new),
        one("createStream", streamInfo=long, scalingPolicy={"minNumSegments": 1}),
        one("createStream", streamInfo=new, tags={"tag": ["t" * 100] * 5000}),
        one("updateStream", streamInfo=info, tags={"tag": ["t" * 100] * 5000}),
        one("scale", streamInfo=info, sealedSegments=list(range(50_000))),
        one("scale", streamInfo=info, sealedSegments=[0], newKeyRanges=ranges),
        one("truncateStream", streamInfo=info, cut=cut),
        one("isStreamCutValid", streamInfo=info, cut=cut),
        one("getSegmentsBetween", streamInfo=info, **{"from": cut, "to": cut}),
        one("getSegments", streamInfo=info, timestamp=1),
        one("getSegments", streamInfo=info, timestamp=2**63 - 1),
        one("getCurrentSegments", **info),
        one("getEpochSegments", streamInfo=info, epoch=2**31 - 1),
        one("createReaderGroup", scope=SCOPE, readerGroupName="hostile", startingStreamCuts=cuts),
        one("getReaderGroupConfig", scope=SCOPE, readerGroup="hostile"),
        one("deleteReaderGroup", scope=SCOPE, readerGroup="hostile"),
        one("createKeyValueTable", partitionCount=1000, **table),
        one("createKeyValueTable", partitionCount=2**31 - 1, **table),
        one("deleteKeyValueTable", scope=SCOPE, kvtName="hostile"),
        one("listStreamsInScope", scope={"scope": SCOPE}, continuationToken={"token": "t" * 500_000}),
        one("deleteScopeRecursive", scope="hostile"),
        one("createTransaction", streamInfo=info, lease=2**63 - 1),
        ("createScope", b"\x0a" + bytes(900_000)),
        ("createScope", b"\xff" * 3_000_000),
    )


async def pravega_calls(attack: Attack) -> None:
    """Calls to the controller without a pause, of every kind, most of them nonsense."""
    calls = [one for one in _calls() if one[0] not in _NOT_OF_OTHERS]

    async def one(channel: grpc.aio.Channel, number: int) -> None:
        attack.done.connections += 1
        for turn in range(50):
            if attack.left <= 0:
                return
            method, request = calls[(number * 7 + turn) % len(calls)]
            await _ask(attack, channel, method, request)

    await _over_channels(attack, one, 100)


_NOT_OF_OTHERS = frozenset({"sealStream"})
"""What would end the streams that others are attacked with."""


async def pravega_commands(attack: Attack) -> None:
    """Every command of the wire, hundreds of each behind one another, for segments that there are and others;
    those that go from servers to clients, too."""

    async def one(number: int) -> None:
        writer = _writer(attack)
        name = (segment(frames.BOMBS, 0), f"hostile/made-{number}/0.#epoch.0", "x" * 60_000)[number % 3]
        every = examples(name, writer)
        command = every[number // 3 % len(every)]
        if isinstance(command, wire.SealSegment | wire.TruncateSegment) and number % 3 == 0:
            return  # it would be what they are asked for
        sent = raw(command)
        count = max(1, min(500, 4 * _MIB // len(sent)))

        async def work(link: Link) -> None:
            if number % 3 == 1 and not await attack.send(link, raw(wire.CreateSegment(1, name, 0, 0, ""))):
                return
            if number % 3 == 1 and not await _receive(attack, link, 1):
                return
            if number % 2 and not await _set_up(attack, link, writer, name):
                return
            if await attack.send(link, sent * count):
                await _receive(attack, link, 20)

        await _on_link(attack, work)

    await attack.each(one, 100)


ATTACKS = {
    attack.__name__: attack
    for attack in (
        pravega_idle,
        pravega_half_blocks,
        pravega_slow_readers,
        pravega_tables,
        pravega_transactions,
        pravega_calls,
        pravega_commands,
    )
}
PREPARE: dict[str, Callable[[], object]] = {
    "pravega_tables": lambda: (_large_entries(), _greedy_reads()),
    "pravega_calls": _calls,
}
