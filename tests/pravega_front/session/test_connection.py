"""What a connection to the segment store holds while commands are carried out, and what it takes of others' time."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from anabranch_kit.memory.budget import MemoryBudget
from anabranch_kit.run.barrier import Barrier
from bridges.auth import ANONYMOUS
from bridges.auth.quotas import QuotaRules
from bridges.clients import Clients
from bridges.metrics import FrontMetrics
from bridges.net.quotas import Quotas
from pravega_front.server import SegmentStore
from pravega_front.session.connection import Connection
from pravega_front.settings import PravegaSettings
from pravega_front.wire import commands as wire
from pravega_front.wire.frames import encode
from tests.kit.waiting import until

MIB = 1024 * 1024


def raw(command: wire.Command) -> bytes:
    return b"".join(encode(command))


class Lab(SegmentStore):
    """A segment store without segments, whose SegmentPolicy is answered when it is told to be; ``begun`` counts what
    each turn of the event loop began."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        budget = MemoryBudget(16 * MIB, loop.call_soon)
        node = SimpleNamespace(
            metrics=FrontMetrics("pravega"),
            budget=budget,
            barrier=Barrier(),
            quotas=Quotas(QuotaRules(), 1, Barrier()),
            clients=Clients(budget),
        )
        access = SimpleNamespace(check=lambda listener, host, token, segment, update: (ANONYMOUS, None))
        nothing: Any = SimpleNamespace()
        segments: Any = SimpleNamespace(owners=SimpleNamespace(is_stopping=False))
        super().__init__(cast(Any, node), PravegaSettings(), segments, nothing, cast(Any, access))
        self.handlers[wire.UpdateSegmentPolicy] = self.hold
        self.held = 0
        self.go_on = asyncio.Event()
        self.turn_number = 0
        self.begun: Counter[int] = Counter()

    async def hold(self, connection: Connection, request: Any) -> wire.Command:
        self.held += 1
        await self.go_on.wait()
        return wire.SegmentPolicyUpdated(request.request_id, "")

    def connection(self, listener: str, advertised: tuple[str, int] | None) -> Connection:
        return Counted(self, listener, advertised)

    def count_turns(self) -> None:
        self.turn_number += 1
        self.loop.call_soon(self.count_turns)


class Counted(Connection):
    def _start(self, frame: bytes | bytearray, arrived: float) -> None:
        lab = cast(Lab, self.server)
        lab.begun[lab.turn_number] += 1
        super()._start(frame, arrived)


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    lab = Lab()
    yield lab
    lab.go_on.set()
    await lab.close()


async def test_what_is_carried_out_is_counted_when_its_client_has_gone_as_well(lab: Lab) -> None:
    host, port = await lab.listen("x", "127.0.0.1", 0)
    for place in range(1, 5):
        _, writer = await asyncio.open_connection(host, port)
        for name in ("short", "x" * 60_000):  # which is read in a thread
            writer.write(raw(wire.UpdateSegmentPolicy(1, name, 0, 0, "")))
        await until(lambda place=place: lab.held == 2 * place)  # type: ignore[misc]
        writer.close()
        await until(lambda: not lab.connections)
        assert lab.budget.held > 60_000 * place
    lab.go_on.set()
    await until(lambda: not lab.budget.held)


async def test_a_command_counts_with_more_than_its_frame_while_it_is_carried_out(lab: Lab) -> None:
    host, port = await lab.listen("x", "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(raw(wire.UpdateSegmentPolicy(1, "", 0, 0, "")) * 20)
    await until(lambda: lab.held == 20)
    assert lab.budget.held > 20 * 2000
    lab.go_on.set()
    await reader.readexactly(20 * len(raw(wire.SegmentPolicyUpdated(1, ""))))
    await until(lambda: not lab.budget.held)
    writer.close()


async def test_thousands_of_small_commands_that_come_together_are_begun_in_many_turns(lab: Lab) -> None:
    host, port = await lab.listen("x", "127.0.0.1", 0)
    lab.loop.call_soon(lab.count_turns)
    links = [await asyncio.open_connection(host, port) for _ in range(3)]
    said = raw(wire.KeepAlive()) * 4000
    for _, writer in links:
        writer.write(said)
    for reader, writer in links:
        assert await reader.readexactly(len(said)) == said
        writer.close()
    assert sum(lab.begun.values()) == 12_000
    assert max(lab.begun.values()) < 1000, "2 MiB of work, of which a command is 4 KiB"


async def test_reads_that_wait_are_left_out_when_their_client_has_closed_and_changes_are_not(lab: Lab) -> None:
    reads = changes = 0

    async def read(connection: Connection, request: Any) -> None:
        nonlocal reads
        reads += 1

    async def change(connection: Connection, request: Any) -> None:
        nonlocal changes
        changes += 1

    lab.handlers[wire.GetTableSegmentInfo] = read
    lab.handlers[wire.DeleteTableSegment] = change
    host, port = await lab.listen("x", "127.0.0.1", 0)
    client = socket.create_connection((host, port))
    await until(lambda: len(lab.connections) == 1)
    # Nothing of it is looked at before the client has closed: this is one turn of the loop.
    said = raw(wire.GetTableSegmentInfo(1, "table", "")) * 99 + raw(wire.DeleteTableSegment(1, "table", False, ""))
    client.sendall(said * 20)
    client.close()
    await until(lambda: not lab.connections)
    assert changes == 20
    assert reads < 1000, "those of the first turns"
    assert not lab.budget.held


async def test_the_end_of_a_client_is_noticed_while_nothing_more_is_read(lab: Lab) -> None:
    """What is carried out for it takes long, and more waits behind."""
    heard: list[bool] = []

    async def read(connection: Connection, request: Any) -> None:
        await lab.go_on.wait()
        heard.append(not connection.unheard)

    lab.handlers[wire.GetTableSegmentInfo] = read
    host, port = await lab.listen("x", "127.0.0.1", 0)
    client = socket.create_connection((host, port))
    client.sendall(raw(wire.GetTableSegmentInfo(1, "table", "")) * 2000)
    await until(lambda: any(one.unread_socket >= 0 for one in lab.connections))
    (connection,) = cast("list[Connection]", list(lab.connections))
    assert not connection.unheard
    client.close()
    await until(lambda: connection.unheard)
    assert connection in lab.connections, "it was not read"
    lab.go_on.set()
    await until(lambda: not lab.connections)
    assert not any(heard)
    assert len(heard) < 100, "only those that had begun"


async def test_who_waits_for_a_segment_to_be_counted_does_so_no_longer_than_its_client(lab: Lab) -> None:
    """What another protocol wrote may have to be decompressed, which takes long."""
    waiting = 0

    class Uncounted:
        is_counted = False
        loose = True

        async def length(self) -> int:
            nonlocal waiting
            waiting += 1
            try:
                await lab.go_on.wait()
            finally:
                waiting -= 1
            return 0

    async def here(name: str) -> Uncounted:
        return Uncounted()

    lab.segments = cast(Any, SimpleNamespace(here=here, is_mark=lambda name: False, owners=lab.segments.owners))
    host, port = await lab.listen("x", "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(host, port)
    writer.write(raw(wire.SetupAppend(1, bytes(16), "scope/stream/0", "")))
    writer.write(raw(wire.ReadSegment("scope/stream/0", 0, 100, "", 1)) * 10)
    await until(lambda: waiting == 11)
    writer.close()
    await until(lambda: not waiting)
    await until(lambda: not lab.budget.held)
    assert not lab.go_on.is_set()
