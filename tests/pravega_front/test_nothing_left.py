"""Connections to the segment store, and commands, that have ended, however they did, go at once and not when the
collector finds them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from bridges.node.assembly import Node
from bridges.node.settings.config import load
from pravega_front.front import PravegaFront
from pravega_front.server import SegmentStore
from pravega_front.wire import commands as wire
from pravega_front.wire.fields import ANY_VERSION, NO_VERSION, TableEntry, TableKey
from pravega_front.wire.frames import HEAD, decode, encode
from tests.left_behind import End, Link, left_of_connections, linked

SEGMENT = "default/t/0.#epoch.0"
NOWHERE = "default/nowhere/0.#epoch.0"
TABLE = "default/t_kvtable/0.#epoch.0"
EVENT = struct.pack(">ii", 0, 10) + bytes(10)
FAR = 2**40
NUMBERS = itertools.count(1)
ENTRIES = [TableEntry(b"key-%d" % number, ANY_VERSION, b"v") for number in range(300)]
KEYS = [TableKey(entry.key, ANY_VERSION) for entry in ENTRIES]


def raw(*commands: wire.Command) -> bytes:
    return b"".join(bytes(part) for command in commands for part in encode(command))


HELLO = raw(wire.Hello(17, 5))


async def answer(link: Link) -> wire.Command:
    head = await link.exactly(HEAD.size)
    _, size = HEAD.unpack(head)
    return decode(head + await link.exactly(size))


def sends(data: bytes, answers: int = 0) -> End:
    """Says hello, sends ``data`` and goes when so many answers to it have come."""

    async def end(link: Link) -> None:
        await link.send(HELLO + data)
        for _ in range(1 + answers):
            await answer(link)
        link.reset()

    return end


def is_cut(data: bytes) -> End:
    """Sends what the server does not put up with."""

    async def end(link: Link) -> None:
        await link.send(HELLO + data)
        await link.closed()

    return end


def appends(writer: bytes, *numbers: int) -> bytes:
    return raw(*(wire.AppendBlockEnd(writer, len(EVENT), EVENT, 1, number, number) for number in numbers))


async def set_up(link: Link, writer: bytes, segment: str = SEGMENT) -> None:
    await link.send(HELLO + raw(wire.SetupAppend(1, writer, segment, "")))
    assert [type(await answer(link)) for _ in range(2)] == [wire.Hello, wire.AppendSetup]


def writer() -> bytes:
    return next(NUMBERS).to_bytes(16)


async def appended(link: Link) -> None:
    name = writer()
    await set_up(link, name)
    await link.send(appends(name, 1))
    assert isinstance(await answer(link), wire.DataAppended)
    link.reset()


async def not_acknowledged(link: Link) -> None:
    name = writer()
    await set_up(link, name)
    await link.send(appends(name, *range(1, 20)))
    link.reset()


async def within_a_block(link: Link) -> None:
    name = writer()
    await set_up(link, name)
    await link.send(raw(wire.AppendBlock(name, EVENT)))
    await link.send(HEAD.pack(wire.AppendBlockEnd.code, 1 << 20) + bytes(100_000))
    link.reset()


async def block_within_a_block(link: Link) -> None:
    name = writer()
    await set_up(link, name)
    await link.send(raw(wire.AppendBlock(name, EVENT), wire.AppendBlock(name, EVENT)))
    await link.closed()


async def at_another_end(link: Link) -> None:
    name = writer()
    await set_up(link, name)
    await link.send(raw(wire.ConditionalAppend(name, 1, FAR, EVENT, 1)))
    assert isinstance(await answer(link), wire.ConditionalCheckFailed)
    link.reset()


async def behind_another_of_the_same_name(link: Link) -> None:
    name = writer()
    async with linked(link.address) as other:
        for one in (link, other):
            await set_up(one, name)
        await other.send(appends(name, 5))
        assert isinstance(await answer(other), wire.DataAppended)
        await link.send(appends(name, 3))
        assert isinstance(await answer(link), wire.InvalidEventNumber)
        await link.closed()


ENDS: dict[str, End] = {
    "nothing is said": sends(b""),
    "an answer has come": sends(raw(wire.KeepAlive()), 1),
    "within a frame": sends(raw(wire.KeepAlive()) + HEAD.pack(wire.KeepAlive.code, 100) + bytes(50), 1),
    "a frame of no length": is_cut(HEAD.pack(wire.KeepAlive.code, -5)),
    "a version nobody speaks": is_cut(raw(wire.Hello(99, 90))),
    "a command nobody knows": is_cut(HEAD.pack(9999, 4) + bytes(4)),
    "a command that is none": is_cut(HEAD.pack(wire.ReadSegment.code, 4) + b"\xff" * 4),
    "a long command that is none": is_cut(HEAD.pack(wire.UpdateTableEntries.code, 100_000) + b"\xff" * 100_000),
    "a command to clients": is_cut(raw(wire.SegmentCreated(1, SEGMENT))),
    "a writer that was not set up": is_cut(appends(bytes(16), 1)),
    "appended": appended,
    "before what was appended is durable": not_acknowledged,
    "within a block": within_a_block,
    "a block within a block": block_within_a_block,
    "an append at another end": at_another_end,
    "an append behind another of the same name": behind_another_of_the_same_name,
    "while reads wait": sends(raw(*(wire.ReadSegment(SEGMENT, FAR, 8, "", 1) for _ in range(9)), wire.KeepAlive()), 1),
    "while commands are carried out": sends(raw(wire.ReadTable(1, TABLE, "", KEYS)) * 9),
    "while a table changes": sends(raw(wire.UpdateTableEntries(1, TABLE, "", ENTRIES)) * 2),
    "a table is read": sends(raw(wire.ReadTableEntries(1, TABLE, "", 1000)), 1),
    "a segment that is nowhere": sends(
        raw(wire.ReadSegment(NOWHERE, 0, 8, "", 1), wire.SealSegment(2, NOWHERE, "")), 2
    ),
    "a table that is nowhere": sends(raw(wire.ReadTable(1, "default/x_kvtable/0.#epoch.0", "", KEYS)), 1),
    "another version": sends(raw(wire.UpdateTableEntries(1, TABLE, "", [TableEntry(b"key-1", 1 << 50, b"")])), 1),
    "a key that is there": sends(
        raw(wire.UpdateTableEntries(1, TABLE, "", [TableEntry(b"key-1", NO_VERSION, b"")])), 1
    ),
    "a key that is too long": sends(raw(wire.UpdateTableEntries(1, TABLE, "", [TableEntry(bytes(9000), 0, b"")])), 1),
}


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Node]:
    given = {
        "data_dir": str(directory / "data"),
        "listen.pravega": "off",
        "listen.pravega-segmentstore": "127.0.0.1:0",
        **{f"listen.{name}": "off" for name in ("console", "sbp-pd", "sbp-range-server")},
        "sbp.segment_bytes": "4MiB",
        "sbp.low_water_bytes": "1MiB",
    }
    node = Node(load(given, environ={}, directory=directory).settings, fronts=[PravegaFront])
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def store_of(node: Node) -> SegmentStore:
    (front,) = node.fronts
    assert isinstance(front, PravegaFront)
    assert front.server is not None
    _, store = front.server.doors
    assert isinstance(store, SegmentStore)
    return store


async def test_nothing_is_left_of_a_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        address = node.addresses["pravega-segmentstore"]
        place = (address.host, address.port)
        async with linked(place) as link:
            await link.send(HELLO)
            assert isinstance(await answer(link), wire.Hello)
            for made in (
                wire.CreateSegment(1, SEGMENT, 0, 0, ""),
                wire.CreateTableSegment(2, TABLE, ""),
                wire.UpdateTableEntries(3, TABLE, "", ENTRIES),
            ):
                await link.send(raw(made))
                assert isinstance(await answer(link), wire.SegmentCreated | wire.TableEntriesUpdated)
        assert await left_of_connections(store_of(node), place, ENDS) == {}


async def test_a_connection_keeps_no_writers_of_deleted_segments(tmp_path: Path) -> None:
    """A client sets up a writer for each segment of each transaction, on connections that live as long as it does."""
    async with serving(tmp_path) as node:
        address = node.addresses["pravega-segmentstore"]
        async with linked((address.host, address.port)) as link:
            await link.send(HELLO + raw(wire.CreateSegment(1, SEGMENT, 0, 0, "")))
            assert [type(await answer(link)) for _ in range(2)] == [wire.Hello, wire.SegmentCreated]
            kept = writer()
            await link.send(raw(wire.SetupAppend(1, kept, SEGMENT, "")))
            assert isinstance(await answer(link), wire.AppendSetup)
            for _ in range(200):
                await link.send(raw(wire.CreateTransientSegment(1, writer(), SEGMENT, "")))
                made = await answer(link)
                assert isinstance(made, wire.SegmentCreated)
                for command in (
                    wire.SetupAppend(1, writer(), made.segment, ""),
                    wire.DeleteSegment(1, made.segment, ""),
                ):
                    await link.send(raw(command))
                    assert isinstance(await answer(link), wire.AppendSetup | wire.SegmentDeleted)
            (connection,) = store_of(node).connections
            assert len(cast("Any", connection).appends.writers) <= 128
            await link.send(appends(kept, 1))
            assert isinstance(await answer(link), wire.DataAppended)
