"""What a reader was shown at an offset is what every reader finds there, for ever (docs/sbp.md, "What readers see")."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sbp_back.client.client import Client
from sbp_back.client.replica import TellOptions
from sbp_back.errors import FencedError, SbpError
from sbp_back.range_server.fetches import FetchLimits
from sbp_back.range_server.ranges import RangeState
from sbp_back.wire.model import AppendRequest, FetchRequest, RangeInfo, Request, SealRangeRequest
from tests.kit.waiting import until, until_asked
from tests.sbp_back.truth_lab import PD, World, answer_lost, request_lost, world
from tests.sbp_document.document_lab import write


def answers_to_appends_lost(request: Request) -> str:
    return "answer lost" if isinstance(request, AppendRequest) else "arrives"


def cut_off_after_appending(request: Request) -> str:
    return "answer lost" if isinstance(request, AppendRequest) else "request lost"


def seals_held(request: Request) -> str:
    return "held" if isinstance(request, SealRangeRequest) else "arrives"


class Watcher:
    """A reader that follows a stream, and what it has been shown."""

    def __init__(self, client: Client, stream_id: int) -> None:
        self.shown: dict[int, bytes] = {}
        self._task = asyncio.ensure_future(self._watch(client, stream_id))

    async def _watch(self, client: Client, stream_id: int) -> None:
        async for entry in client.watch(stream_id, 0, wait_ms=60_000):
            self.shown[entry.base_offset] = bytes(entry.payload)

    async def has(self, offset: int) -> bytes:
        async with asyncio.timeout(20):
            while offset not in self.shown:
                assert not self._task.done(), self._task
                await asyncio.sleep(0.001)
        return self.shown[offset]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def everything(world: World, stream_id: int) -> dict[int, bytes]:
    """What a reader finds that has never looked before."""
    client = world.client("newcomer")
    found = await client.fetch_entries(stream_id, 0, 1 << 20)
    return {entry.base_offset: bytes(entry.payload) for entry in found}


def range_here(world: World, stream_id: int, index: int = 0) -> RangeState:
    state = world.servers[0].server.state_of(stream_id, index)
    assert state is not None
    return state


async def is_durable(world: World, stream_id: int, offset: int) -> None:
    await until(lambda: range_here(world, stream_id).window.committed > offset)


async def test_what_a_writer_disowns_was_never_shown_and_its_successor_is(tmp_path: Path) -> None:
    async with world(tmp_path) as backend:
        client = backend.client("writer", range_tries=1)
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        assert await write(writer, b"first") == 0
        watcher = Watcher(backend.client("reader"), stream_id)
        assert await watcher.has(0) == b"first"
        # X becomes durable, its writer never hears of it and cannot reach the server.
        backend.fates["writer", 0] = answer_lost
        disowned = write(writer, b"X")
        await is_durable(backend, stream_id, 1)
        with pytest.raises(SbpError):
            await disowned
        assert writer.failed is None, "it lives on"
        assert writer.next_offset == 1
        del backend.fates["writer", 0]
        assert await write(writer, b"Y") == 1
        assert await watcher.has(1) == b"Y"
        assert await everything(backend, stream_id) == watcher.shown == {0: b"first", 1: b"Y"}
        await watcher.stop()


async def test_where_the_server_can_be_asked_it_says_what_of_the_writers_is_stored(tmp_path: Path) -> None:
    async with world(tmp_path) as backend:
        client = backend.client("writer", range_tries=1)
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        await write(writer, b"first")
        backend.fates["writer", 0] = answers_to_appends_lost
        unheard = [write(writer, payload) for payload in (b"X", b"Y", b"Z")]
        assert [await one for one in unheard] == [1, 2, 3], "nothing is refused that is stored"
        assert [(known.start, known.end) for known in writer.ranges] == [(0, 4)]
        del backend.fates["writer", 0]
        assert await write(writer, b"last") == 4
        assert await everything(backend, stream_id) == {0: b"first", 1: b"X", 2: b"Y", 3: b"Z", 4: b"last"}


async def test_what_the_placement_driver_promised_to_readers_its_writer_cannot_disown(tmp_path: Path) -> None:
    """The writer is silent for so long that readers ask for what is durable."""
    async with world(tmp_path, fetch=FetchLimits(settle_seconds=0.01)) as backend:
        client = backend.client("writer", range_tries=1)
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        await write(writer, b"first")
        watcher = Watcher(backend.client("reader"), stream_id)
        backend.fates["writer", 0] = cut_off_after_appending
        backend.fates["writer", PD] = seals_held
        unheard = write(writer, b"X")
        assert await watcher.has(1) == b"X"
        del backend.fates["writer", PD]
        backend.release()
        assert await unheard == 1, "it learns where its range ends"
        del backend.fates["writer", 0]
        assert await write(writer, b"Y") == 2
        assert await watcher.has(2) == b"Y"
        assert await everything(backend, stream_id) == watcher.shown == {0: b"first", 1: b"X", 2: b"Y"}
        await watcher.stop()


async def test_a_seal_is_told_to_its_server_until_that_has_confirmed_it(tmp_path: Path) -> None:
    async with world(tmp_path) as backend:
        client = backend.client("writer", range_tries=1)
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        await write(writer, b"first")
        backend.fates["writer", 0] = cut_off_after_appending
        backend.fates["pd", 0] = request_lost
        disowned = write(writer, b"X")
        with pytest.raises(SbpError):
            await disowned
        assert range_here(backend, stream_id).confirm_offset == 2, "it does not know yet"
        await backend.stop_pd()
        await backend.start_pd()
        await backend.reported(1)
        del backend.fates["pd", 0]
        await until(lambda: range_here(backend, stream_id).decided)
        assert range_here(backend, stream_id).stored.end == 1
        while await backend.pd.driver.run(lambda tx: tx.news_of_server(0, 10)):
            pass  # the server's confirmation is on its way
        await backend.stop_server(0)
        await backend.start_server(0)
        assert range_here(backend, stream_id).stored.end == 1
        assert await everything(backend, stream_id) == {0: b"first"}


async def test_a_server_that_returns_shows_nothing_that_was_disowned_meanwhile(tmp_path: Path) -> None:
    """Not even while it cannot ask the placement driver."""
    async with world(tmp_path, servers=2, fetch=FetchLimits(hold_seconds=0.02)) as backend:
        client = backend.client("writer", range_tries=3)
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        await write(writer, b"first")
        home = writer.ranges[0].servers[0].server_id
        backend.fates["writer", home] = answer_lost
        state = backend.servers[home].server.state_of(stream_id, 0)
        assert state is not None
        appended = write(writer, b"X")
        assert await appended == 1
        await backend.stop_server(home)
        backend.fates[f"rs{home}", PD] = request_lost
        await backend.start_server(home)
        raw = backend.connect("reader", writer.ranges[0].servers[0])
        answer = await raw.call(FetchRequest(RangeInfo(stream_id, 1, 0, 0), 0, max_bytes=1000))
        shown = {entry.base_offset: bytes(entry.payload) for entry in getattr(answer, "entries")}  # noqa: B009
        assert shown.items() <= {0: b"first", 1: b"X"}.items()
        assert 0 not in shown or state.told >= 1
        del backend.fates[f"rs{home}", PD], backend.fates["writer", home]
        await write(writer, b"Y")
        assert await everything(backend, stream_id) == {0: b"first", 1: b"X", 2: b"Y"}


async def test_a_reader_of_a_dead_range_goes_on_in_the_next(tmp_path: Path) -> None:
    """Its server never hears that the range was sealed, and answers readers all the same."""
    async with world(tmp_path, servers=2) as backend:
        client = backend.client("writer")
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        await write(writer, b"first")
        home = writer.ranges[0].servers[0].server_id
        watcher = Watcher(backend.client("reader"), stream_id)
        poller = backend.client("poller")
        assert await watcher.has(0) == b"first"
        assert len(await poller.fetch_entries(stream_id, 0, 1000)) == 1
        for who in ("writer", "pd"):
            backend.fates[who, home] = request_lost
        # Long polls at the dead range are the case: the server is cut off from all but readers.
        backend.fates[f"rs{home}", PD] = request_lost
        await until(lambda: backend.servers[home].server.waiting_fetches > 0)
        assert await write(writer, b"elsewhere") == 1
        assert await watcher.has(1) == b"elsewhere"
        found = await until_asked(lambda: poller.fetch_entries(stream_id, 1, 1000))
        assert [bytes(entry.payload) for entry in found] == [b"elsewhere"]
        assert not range_is_sealed(backend, home, stream_id)
        await watcher.stop()


def range_is_sealed(world: World, number: int, stream_id: int) -> bool:
    state = world.servers[number].server.state_of(stream_id, 0)
    assert state is not None
    return state.sealed


async def test_an_acknowledged_batch_is_shown_whether_its_writer_lives_or_not(tmp_path: Path) -> None:
    never = TellOptions(delay=3600)
    async with world(tmp_path, fetch=FetchLimits(settle_seconds=0.01)) as backend:
        client = backend.client("writer", tell=never)
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        await write(writer, b"first")
        assert range_here(backend, stream_id).shown_offset == 0, "nobody has told the server"
        assert await everything(backend, stream_id) == {0: b"first"}, "by the placement driver's promise"
        await write(writer, b"second")
        assert range_here(backend, stream_id).shown_offset == 1
        await writer.close()
        assert range_here(backend, stream_id).shown_offset == 2, "whoever closes says so"
        # Neither told nor promised: the server is restarted before anybody looks.
        writer = await client.open(stream_id, 2)
        await write(writer, b"third")
        backend.fates["writer", 0] = request_lost
        await backend.stop_server(0)
        await backend.start_server(0)
        assert await everything(backend, stream_id) == {0: b"first", 1: b"second", 2: b"third"}


async def test_a_writer_says_again_what_was_not_heard(tmp_path: Path) -> None:
    async with world(tmp_path, fetch=FetchLimits(settle_seconds=3600)) as backend:
        client = backend.client("writer", tell=TellOptions(delay=0.001, again=0.001))
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        lost: list[Request] = []

        def tellings_lost(request: Request) -> str:
            if isinstance(request, AppendRequest) and request.confirmed:
                lost.append(request)
                return "request lost"
            return "arrives"

        backend.fates["writer", 0] = tellings_lost
        await write(writer, b"first")
        await until(lambda: len(lost) > 3)
        assert range_here(backend, stream_id).shown_offset == 0
        del backend.fates["writer", 0]
        await until(lambda: range_here(backend, stream_id).shown_offset == 1)


async def test_a_later_epoch_on_the_server_does_not_overrule_the_placement_driver(tmp_path: Path) -> None:
    """A second writer seals the range on its server and is cut off; the first ends it at the placement driver."""
    async with world(tmp_path) as backend:
        client = backend.client("writer", range_tries=1)
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        await write(writer, b"first")
        backend.fates["writer", 0] = cut_off_after_appending
        backend.fates["writer", PD] = seals_held
        disowned = write(writer, b"X")
        await until(lambda: len(backend.held) > 0)

        def no_seals(request: Request) -> str:
            return "request lost" if isinstance(request, SealRangeRequest) else "arrives"

        backend.fates["second", PD] = no_seals
        with pytest.raises(SbpError):
            await backend.client("second").open(stream_id, 2)
        assert (range_here(backend, stream_id).stored.end, range_here(backend, stream_id).stored.epoch) == (2, 2)
        del backend.fates["writer", PD]
        backend.release()
        with pytest.raises(SbpError):
            await disowned
        del backend.fates["second", PD], backend.fates["writer", 0]
        await until(lambda: range_here(backend, stream_id).decided)
        assert range_here(backend, stream_id).stored.end == 1
        later = await backend.client("second").open(stream_id, 3)
        assert later.next_offset == 1
        assert await write(later, b"Y") == 1
        assert await everything(backend, stream_id) == {0: b"first", 1: b"Y"}


async def test_a_seal_by_somebody_else_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Not even one of the same epoch, that ends the range where the writer would."""
    async with world(tmp_path) as backend:
        client = backend.client("writer")
        stream_id = (await client.create_stream()).stream_id
        writer = await client.open(stream_id, 1)
        await write(writer, b"first")
        backend.fates["writer", 0] = request_lost
        assert await backend.client("other").seal(stream_id, 1) == 1
        with pytest.raises(FencedError):
            await write(writer, b"late")
        assert isinstance(writer.failed, FencedError)
        assert await everything(backend, stream_id) == {0: b"first"}
