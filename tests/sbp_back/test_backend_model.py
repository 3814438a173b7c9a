"""Client, placement driver, range servers and stores against a model of streams, while requests, answers and whole
processes are lost.

What must hold: an acknowledged batch is read back at its offset for ever, unless trimmed or deleted; below the
confirmed end there is no gap, nothing twice, and nothing that was not appended there; what is deleted stays deleted.
`make thorough` plays many more games.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbp_back.client.client import Client, ClientOptions, StreamWriter
from sbp_back.client.control import ControlOptions
from sbp_back.client.replica import RetryOptions
from sbp_back.client.stream_writer import WriterOptions
from sbp_back.errors import ConnectionLost, ErrorCode, FencedError, SbpError
from sbp_back.placement_driver.pd_service import PlacementDriverService, PlacementDriverSetup, start_placement_driver
from sbp_back.placement_driver.state import Transaction
from sbp_back.range_server.range_server_service import (
    RangeServerService,
    RangeServerSetup,
    open_store,
    start_range_server,
)
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import AnswerTo, Carrier
from sbp_back.wire.model import HeartbeatRequest, RangeServerInfo, ReportMetricsRequest, Request
from tests.depth import examples, factor, timeout
from tests.kit.waiting import until
from tests.sbp_back.dying import Place, copy_log

SERVERS = 2
STREAMS = 3
STORE = StoreOptions(segment_bytes=64 << 10, durability="os", low_water_bytes=0, maintenance_seconds=3600.0)
SPARED = (HeartbeatRequest, ReportMetricsRequest)
"""How often servers report depends on time: a game is played again with the same fates only without them."""


class Wire(Carrier):
    """A carrier to a place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._closed = False

    def submit(self, request: Request, reply: AnswerTo, timeout: float | None = None) -> None:
        if self._closed:
            reply(ConnectionLost("closed"))
        else:
            self._place.submit(request, reply)

    async def close(self) -> None:
        self._closed = True


CONTROL = ControlOptions(timeout=5, tries=4, delay_first=0.0005, delay_limit=0.002)
OPTIONS = ClientOptions(
    CONTROL,
    WriterOptions(range_tries=3, control=CONTROL, retry=RetryOptions(tries=3, delay_first=0.0005, delay_limit=0.002)),
)


@dataclass
class Attempted:
    """A writer and whether it is the newest."""

    writer: StreamWriter
    client: Client
    epoch: int


@dataclass
class Stream:
    """The model of one stream. ``sure``: base -> (count, payload) of what is confirmed; ``end``: all below is."""

    stream_id: int
    epoch: int = 0
    end: int = 0
    sure: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    attempts: dict[int, set[tuple[int, bytes]]] = field(default_factory=dict)
    trimmed: int = 0
    maybe_trimmed: int = 0
    writers: list[Attempted] = field(default_factory=list)

    def confirm(self, base: int, count: int, payload: bytes) -> None:
        known = self.sure.setdefault(base, (count, payload))
        assert known == (count, payload), f"offset {base} was acknowledged for two batches"
        self.end = max(self.end, base + count)


class BackendMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="backend-model-"))
        self.loop = asyncio.new_event_loop()
        self.lives = 0
        self.pd_place = Place(SPARED)
        self.places = [Place(SPARED) for _ in range(SERVERS)]
        self.pd_path = self.directory / "pd-0"
        self.paths = [self.directory / f"rs-{n}-0" for n in range(SERVERS)]
        self.pd: PlacementDriverService | None = None
        self.servers: list[RangeServerService | None] = [None] * SERVERS
        self.server_wires: list[Wire] = []
        self.streams: list[Stream] = []
        self.deleted: list[int] = []
        self.serial = 0
        self.run(self._boot())

    # --- the world --------------------------------------------------------------------------------------------------

    def run(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(30):
                return await work

        return self.loop.run_until_complete(bounded())

    @staticmethod
    def must(condition: bool, message: str) -> None:
        assert condition, message

    async def _boot(self) -> None:
        await self._start_pd()
        for number in range(SERVERS):
            await self._start_server(number)
        await self._reported()

    async def _start_pd(self) -> None:
        self.pd = await start_placement_driver(self.pd_path, PlacementDriverSetup(), self._connect)
        self.pd_place.handler = self.pd.driver

    async def _start_server(self, number: int) -> None:
        store = await open_store(self.paths[number], self.store_options(number))
        wire = Wire(self.pd_place)
        self.server_wires.append(wire)
        setup = RangeServerSetup(heartbeat_seconds=0.01, wait_for_id=True, retry_seconds=0.001)
        # Reached as soon as it exists: what it needs the placement driver for, that may need it, too.
        service = await start_range_server(store, wire, setup)
        self.servers[number] = service
        self.places[service.server.info.server_id].handler = service.server

    def store_options(self, number: int) -> StoreOptions:
        return STORE

    def _connect(self, info: RangeServerInfo) -> Wire:
        return Wire(self.places[info.server_id])

    async def _reported(self) -> None:
        """The placement driver knows of every range server that lives."""
        alive = sum(server is not None for server in self.servers)
        await until(lambda: self.pd is None or len(self.pd.driver.servers.alive()) >= alive)

    def client(self) -> Client:
        return Client(Wire(self.pd_place), self._connect, OPTIONS)

    async def _stop_server(self, number: int, *, gracefully: bool) -> None:
        service = self.servers[number]
        if service is None:
            return
        self.servers[number] = None
        place = self.places[service.server.info.server_id]
        if gracefully:
            place.handler = None
            await service.close()
            place.die()
            return
        place.die()
        self.lives += 1
        target = self.directory / f"rs-{number}-{self.lives}"
        store = service.store
        # What another process would find: the files as they are now, whatever the writer is doing.
        await asyncio.wrap_future(store.background_thread.submit(_copy_store, self.paths[number], target))
        await service.close()
        shutil.rmtree(self.paths[number])
        self.paths[number] = target

    async def _stop_pd(self, *, gracefully: bool) -> None:
        pd = self.pd
        if pd is None:
            return
        self.pd = None
        self.pd_place.die()
        if not gracefully:
            self.lives += 1
            target = self.directory / f"pd-{self.lives}"
            copied: asyncio.Future[None] = self.loop.create_future()
            source = self.pd_path
            # On its own thread, before the commit of whatever is in progress: never half of a transaction.
            pd.driver.state.submit(
                lambda tx: self.copy_state(tx, source, target), copied.set_result, copied.set_exception
            )
            await copied
            self.pd_path = target
        await pd.close()

    def copy_state(self, tx: Transaction, source: Path, target: Path) -> None:
        """What the next process finds; called in a transaction that has done nothing yet."""
        target.mkdir()
        for name in ("pd.sqlite", "pd.sqlite-wal"):
            if (source / name).exists():
                shutil.copyfile(source / name, target / name)

    # --- losses -----------------------------------------------------------------------------------------------------

    @rule(
        where=st.integers(-1, SERVERS - 1),
        fates=st.lists(
            st.sampled_from(["arrives", "arrives", "request lost", "request late", "answer lost"]),
            min_size=1,
            max_size=8,
        ),
    )
    def lose(self, where: int, fates: list[str]) -> None:
        (self.pd_place if where < 0 else self.places[where]).fates.extend(fates)

    @rule(number=st.integers(0, SERVERS - 1), gracefully=st.booleans(), stay=st.booleans())
    def restart_server(self, number: int, gracefully: bool, stay: bool) -> None:
        self.run(self._stop_server(number, gracefully=gracefully))
        if not stay:
            self.start_servers()

    @rule(gracefully=st.booleans())
    def restart_pd(self, gracefully: bool) -> None:
        async def restart() -> None:
            await self._stop_pd(gracefully=gracefully)
            await self._start_pd()
            await self._reported()

        self.run(restart())

    @rule()
    def start_servers(self) -> None:
        async def start() -> None:
            for number, service in enumerate(self.servers):
                if service is None:
                    await self._start_server(number)
            await self._reported()

        self.run(start())

    # --- streams ----------------------------------------------------------------------------------------------------

    # No rule has a precondition: what is possible depends on what threads and the disk did, and hypothesis wants to be
    # offered the same rules when it plays a game again. A rule that makes no sense now does nothing.

    def pick(self, choice: int) -> Stream | None:
        return self.streams[choice % len(self.streams)] if self.streams else None

    @rule()
    def create(self) -> None:
        if len(self.streams) == STREAMS:
            return

        async def create() -> None:
            client = self.client()
            try:
                info = await client.create_stream()
            except SbpError:
                return  # there may be one now that nobody knows of
            finally:
                await client.close()
            assert all(info.stream_id != stream.stream_id for stream in self.streams)
            assert info.stream_id not in self.deleted, "a stream id was given twice"
            self.streams.append(Stream(info.stream_id))

        self.run(create())

    @rule(choice=st.integers(0, 9))
    def open(self, choice: int) -> None:
        stream = self.pick(choice)
        if stream is not None:
            self.run(self._open(stream))

    async def _open(self, stream: Stream) -> Attempted | None:
        stream.epoch += 1
        client = self.client()
        try:
            writer = await client.open(stream.stream_id, stream.epoch)
        except SbpError as error:
            self.must(error.code != ErrorCode.NOT_FOUND, "a stream is gone")
            self.must(not isinstance(error, FencedError), "nobody has a later epoch")
            await client.close()
            return None
        assert writer.next_offset >= stream.end, f"{stream.end} was confirmed, the stream ends at {writer.next_offset}"
        assert writer.start_offset <= stream.maybe_trimmed
        stream.end = writer.next_offset
        stream.writers.append(Attempted(writer, client, stream.epoch))
        return stream.writers[-1]

    @rule(choice=st.integers(0, 9))
    def seal(self, choice: int) -> None:
        """In a later epoch, by somebody who will not write."""
        stream = self.pick(choice)
        if stream is None:
            return

        async def seal() -> None:
            stream.epoch += 1
            client = self.client()
            try:
                end = await client.seal(stream.stream_id, stream.epoch)
            except SbpError as error:
                self.must(error.code != ErrorCode.NOT_FOUND, "a stream is gone")
                self.must(not isinstance(error, FencedError), "nobody has a later epoch")
                return
            finally:
                await client.close()
            assert end >= stream.end, f"{stream.end} was confirmed, the stream was sealed at {end}"
            stream.end = end

        self.run(seal())

    @rule(
        choice=st.integers(0, 9),
        back=st.integers(0, 2),
        sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
        count=st.integers(1, 4),
        turns=st.integers(0, 12),
        victim=st.integers(-2, SERVERS - 1),
    )
    def append(self, choice: int, back: int, sizes: list[int], count: int, turns: int, victim: int) -> None:
        """By the newest writer, or one that it shut out; maybe something dies on the way."""
        stream = self.pick(choice)
        if stream is None or not stream.writers:
            return
        tried = stream.writers[max(0, len(stream.writers) - 1 - back)]
        self.run(self._append(stream, tried, sizes, count, turns, victim))

    async def _append(
        self, stream: Stream, tried: Attempted, sizes: list[int], count: int, turns: int, victim: int
    ) -> None:
        left = len(sizes)
        answers: list[int] = []

        def told(base: int, payload: bytes) -> Callable[[SbpError | None], None]:
            def done(error: SbpError | None) -> None:
                nonlocal left
                left -= 1
                answers.append(base)
                if error is None:
                    stream.confirm(base, count, payload)

            return done

        bases: list[int] = []
        for size in sizes:
            self.serial += 1
            payload = b"%d/" % self.serial + bytes(size)
            base = tried.writer.next_offset
            # Noted before: the answer may come first.
            stream.attempts.setdefault(base, set()).add((count, payload))
            given = tried.writer.append(payload, count, 0, self.serial, told(base, payload))
            assert given == base
            bases.append(base)
        for _ in range(turns):
            await asyncio.sleep(0)
        if victim >= 0:
            await self._stop_server(victim, gracefully=False)
            await self._start_server(victim)
        elif victim == -1:
            await self._stop_pd(gracefully=False)
            await self._start_pd()
        await until(lambda: not left)
        assert answers == bases, "not in order, or not once each"
        await self._reported()

    @rule(choice=st.integers(0, 9), share=st.floats(0, 1), max_bytes=st.integers(1, 20_000))
    def fetch(self, choice: int, share: float, max_bytes: int) -> None:
        stream = self.pick(choice)
        if stream is not None:
            self.run(self._fetch(stream, int(share * stream.end), max_bytes))

    async def _fetch(self, stream: Stream, offset: int, max_bytes: int) -> int | None:
        """Check what is read at ``offset``; returns where it ends, None when it could not be read."""
        client = self.client()
        try:
            entries = await client.fetch_entries(stream.stream_id, offset, max_bytes, limit=stream.end)
        except SbpError as error:
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS:
                self.must(offset < stream.maybe_trimmed, "what was not trimmed is not there")
                return None
            wrong = (ErrorCode.NOT_FOUND, ErrorCode.OFFSET_OVERFLOW, ErrorCode.RS_DATA_CORRUPTED)
            self.must(error.code not in wrong, str(error))
            return None
        finally:
            await client.close()
        if offset >= stream.end:
            assert entries == []
            return offset
        assert entries, f"nothing at {offset}, below the end {stream.end}"
        assert entries[0].base_offset <= offset < entries[0].end_offset
        position = entries[0].base_offset
        for entry in entries:
            assert entry.base_offset == position, "a gap"
            position = entry.end_offset
            found = (entry.count, bytes(entry.payload))
            assert found in stream.attempts.get(entry.base_offset, ()), "nobody appended this here"
            assert stream.sure.setdefault(entry.base_offset, found) == found, "it was something else"
        return position

    @rule(choice=st.integers(0, 9), share=st.floats(0, 1))
    def trim(self, choice: int, share: float) -> None:
        stream = self.pick(choice)
        if stream is None:
            return

        async def trim() -> None:
            offset = int(share * stream.end)
            stream.maybe_trimmed = max(stream.maybe_trimmed, offset)
            client = self.client()
            try:
                start = await client.trim(stream.stream_id, offset)
            except SbpError as error:
                self.must(error.code != ErrorCode.NOT_FOUND, "a stream is gone")
                return
            finally:
                await client.close()
            assert start <= stream.maybe_trimmed
            assert start >= offset
            stream.trimmed = max(stream.trimmed, start)

        self.run(trim())

    @rule(choice=st.integers(0, 9))
    def delete(self, choice: int) -> None:
        stream = self.pick(choice)
        if stream is None or len(self.streams) < 2:
            return

        async def delete() -> None:
            self.streams.remove(stream)
            client = self.client()
            try:
                await client.delete_stream(stream.stream_id)
            except SbpError as error:
                if error.code != ErrorCode.NOT_FOUND:
                    await self._forget(stream)
                    return  # nobody knows whether it is gone
            finally:
                await client.close()
            self.deleted.append(stream.stream_id)
            await self._forget(stream)

        self.run(delete())

    async def _forget(self, stream: Stream) -> None:
        for tried in stream.writers:
            await tried.client.close()
        stream.writers.clear()

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def writers_agree(self) -> None:
        for stream in self.streams:
            for tried in stream.writers:
                assert tried.writer.confirm_offset <= max(stream.end, tried.writer.next_offset)

    def teardown(self) -> None:
        try:
            self.run(self._settle())
        finally:
            self.run(self._end())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.directory)

    async def _settle(self) -> None:
        """With everything whole again, every stream can be opened, written and read to the end."""
        for place in (self.pd_place, *self.places):
            place.fates.clear()
        for number in range(SERVERS):
            await self._stop_server(number, gracefully=False)
        await self._stop_pd(gracefully=False)
        await self._boot()
        for stream in self.streams:
            tried = await self._open(stream)
            assert tried is not None
            before = stream.end
            await self._append(stream, tried, [10, 20], 1, 0, -2)
            if tried.writer.failed is not None:
                # The documented exception: an older writer had no range yet and made the next one.
                tried = await self._open(stream)
                assert tried is not None
                before = stream.end
                await self._append(stream, tried, [10, 20], 1, 0, -2)
            assert stream.end == before + 2, "a whole backend takes appends"
            position: int | None = stream.maybe_trimmed
            while position is not None and position < stream.end:
                position = await self._fetch(stream, position, 5000)
            assert position is not None, "a whole backend answers reads"
        client = self.client()
        for stream_id in self.deleted:
            with pytest.raises(SbpError) as caught:
                await client.describe_stream(stream_id)
            assert caught.value.code == ErrorCode.NOT_FOUND
            assert await client.list_ranges(stream_id) == []
        await client.close()

    async def _end(self) -> None:
        for stream in self.streams:
            await self._forget(stream)
        for number in range(SERVERS):
            await self._stop_server(number, gracefully=True)
        await self._stop_pd(gracefully=True)
        for wire in self.server_wires:
            await wire.close()


def _copy_store(source: Path, target: Path) -> None:
    copy_log(source, target)
    shutil.copyfile(source / "LOCK", target / "LOCK")


pytestmark = [pytest.mark.slow, pytest.mark.timeout(timeout(300))]

TestBackendModel = BackendMachine.TestCase
TestBackendModel.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30 if factor() == 1 else 60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
