"""Readers beside writers, while messages are lost on single ways, servers pause and restart, and writers give up.

What must hold: what any reader was shown at an offset is what every later reader finds there, for ever; every
acknowledged append stays; nothing is shown that was not appended there. With everything whole again a reader that
followed from the start sees all of it. `make thorough` plays many more games.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from sbp_back.client.client import Client, StreamWriter
from sbp_back.client.replica import TellOptions
from sbp_back.errors import ErrorCode, SbpError
from sbp_back.range_server.fetches import FetchLimits
from sbp_back.wire import model as m
from tests.depth import examples, factor, timeout
from tests.sbp_back.truth_lab import PD, Link, World

SERVERS = 2
FETCH = FetchLimits(settle_seconds=0.002, hold_seconds=0.01)
ENDS = ["writer", "reader", "pd", "rs0", "rs1"]


class Ways:
    """Fates of one way: what is listed happens to the next requests, then all arrive, or none."""

    def __init__(self, fates: list[str], then: str, only: tuple[type, ...]) -> None:
        self._fates = list(fates)
        self._then = then
        self._only = only

    def __call__(self, request: m.Request) -> str:
        if isinstance(request, (m.HeartbeatRequest, m.ReportMetricsRequest)):
            return "arrives"  # how often they come depends on time
        if self._only and not isinstance(request, self._only):
            return "arrives"
        return self._fates.pop(0) if self._fates else self._then


def cut_off_after_appending(request: m.Request) -> str:
    return "answer lost" if isinstance(request, m.AppendRequest) else "request lost"


class ReadersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="readers-model-"))
        self.loop = asyncio.new_event_loop()
        self.world = World(self.directory, FETCH)
        self.epoch = 0
        self.serial = 0
        self.writers: list[tuple[StreamWriter, Client]] = []
        self.readers: list[tuple[Client, int]] = []  # with where each reads on
        self.attempts: dict[int, set[bytes]] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.shown: dict[int, bytes] = {}
        self.run(self._boot())

    def run(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(30):
                return await work

        return self.loop.run_until_complete(bounded())

    async def _boot(self) -> None:
        await self.world.start(SERVERS)
        self.stream_id = (await self.world.client("writer").create_stream()).stream_id
        for _ in range(2):
            self.readers.append((self.world.client("reader"), 0))
        await self._open()

    # --- losses -----------------------------------------------------------------------------------------------------

    @rule(
        who=st.sampled_from(ENDS),
        where=st.integers(PD, SERVERS - 1),
        fates=st.lists(st.sampled_from(["arrives", "request lost", "answer lost"]), max_size=8),
        then=st.sampled_from(["arrives", "arrives", "request lost", "answer lost"]),
        only=st.sampled_from([(), (m.AppendRequest,), (m.SealRangeRequest,)]),
    )
    def lose(self, who: str, where: int, fates: list[str], then: str, only: tuple[type, ...]) -> None:
        self.world.fates[who, where] = Ways(fates, then, only)

    @rule(who=st.sampled_from(ENDS))
    def mend(self, who: str) -> None:
        for way in [way for way in self.world.fates if way[0] == who]:
            del self.world.fates[way]

    @rule(number=st.integers(0, SERVERS - 1))
    def restart_server(self, number: int) -> None:
        async def restart() -> None:
            await self.world.stop_server(number)
            await self.world.start_server(number)

        self.run(restart())

    @rule()
    def restart_pd(self) -> None:
        async def restart() -> None:
            await self.world.stop_pd()
            await self.world.start_pd()
            await self.world.reported(SERVERS)

        self.run(restart())

    # --- writers ----------------------------------------------------------------------------------------------------

    @rule(tells=st.booleans())
    def open(self, tells: bool) -> None:
        self.run(self._open(tells=tells))

    async def _open(self, *, tells: bool = True) -> None:
        """``tells``: whether the writer says in time what is confirmed, beyond what its next batches say."""
        self.epoch += 1
        tell = TellOptions(delay=0.001 if tells else 3600, again=0.001)
        client = self.world.client("writer", range_tries=2, tell=tell)
        try:
            writer = await client.open(self.stream_id, self.epoch)
        except SbpError:
            return
        assert writer.next_offset >= max((offset + 1 for offset in self.acknowledged | self.shown), default=0)
        self.writers.append((writer, client))

    @rule(
        back=st.sampled_from([0, 0, 0, 1]),
        count=st.integers(1, 4),
        turns=st.sampled_from([-1, -1, 0, 3, 6]),
        cut=st.sampled_from(["", "", "answers to appends", "all but appends"]),
    )
    def append(self, back: int, count: int, turns: int, cut: str) -> None:
        """By the newest writer, or one before; with answers lost from some moment on (-1: before), and after that all
        else, too, if it is to be so."""
        if self.writers:
            writer = self.writers[max(0, len(self.writers) - 1 - back)][0]
            self.run(self._append(writer, count, turns, cut))

    @rule(count=st.integers(1, 3), cut=st.sampled_from(["answers to appends", "all but appends"]), whole=st.booleans())
    def append_twice(self, count: int, cut: str, whole: bool) -> None:
        """First into silence, then with the way to the servers mended: what was refused is overwritten. ``whole``:
        nothing else is lost meanwhile."""
        if self.writers:
            if whole:
                self.world.fates.clear()
            writer = self.writers[-1][0]
            self.run(self._append(writer, count, -1, cut))
            self.run(self._append(writer, count, -1, ""))

    def _cut(self, cut: str) -> None:
        for number in range(SERVERS):
            way = ("writer", number)
            self.world.fates.pop(way, None)
            if cut == "answers to appends":
                self.world.fates[way] = Ways([], "answer lost", (m.AppendRequest,))
            elif cut:
                self.world.fates[way] = cut_off_after_appending

    async def _append(self, writer: StreamWriter, count: int, turns: int, cut: str) -> None:
        left = count
        if turns < 0 or not cut:
            self._cut(cut)

        def told(base: int, payload: bytes) -> Callable[[SbpError | None], None]:
            def done(error: SbpError | None) -> None:
                nonlocal left
                left -= 1
                if error is None:
                    assert self.acknowledged.setdefault(base, payload) == payload, "acknowledged twice"
                    assert self.shown.get(base, payload) == payload, "readers were shown something else"

            return done

        for _ in range(count):
            self.serial += 1
            payload = b"%d" % self.serial
            base = writer.next_offset
            self.attempts.setdefault(base, set()).add(payload)
            assert writer.append(payload, 1, 0, self.serial, told(base, payload)) == base
        for _ in range(turns):
            await asyncio.sleep(0)
        if cut:
            self._cut(cut)
        # Readers look while it is undecided.
        while left:
            for position in range(len(self.readers)):
                await self._read(position)
            await asyncio.sleep(0.0005)

    # --- readers ----------------------------------------------------------------------------------------------------

    @rule(position=st.integers(0, 1))
    def read(self, position: int) -> None:
        self.run(self._read(position))

    @rule(position=st.integers(0, 1))
    def read_again_from_the_start(self, position: int) -> None:
        client, _ = self.readers[position]
        self.readers[position] = (client, 0)
        self.run(self._read(position))

    @rule(number=st.integers(0, SERVERS - 1), index=st.integers(0, 3), offset=st.integers(0, 8))
    def read_raw(self, number: int, index: int, offset: int) -> None:
        """From a server that is asked for an open range by somebody who knows nothing."""
        self.run(self._read_raw(number, index, offset))

    async def _read_raw(self, number: int, index: int, offset: int) -> None:
        link = Link(self.world, "reader", number)
        try:
            answer = await link.call(m.FetchRequest(m.RangeInfo(self.stream_id, 0, index, 0), offset, max_bytes=1000))
        except SbpError:
            return
        if isinstance(answer, m.FetchResponse):
            for entry in answer.entries:
                self._saw(entry.base_offset, bytes(entry.payload))

    async def _read(self, position: int) -> bool:
        client, offset = self.readers[position]
        try:
            entries = await client.fetch_entries(self.stream_id, offset, 1000)
        except SbpError as error:
            final = (ErrorCode.OFFSET_OVERFLOW, ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS, ErrorCode.RS_DATA_CORRUPTED)
            if error.code in final:
                raise AssertionError(f"a reader stands where the stream does not go: {error}") from error
            return False
        for entry in entries:
            self._saw(entry.base_offset, bytes(entry.payload))
            offset = entry.end_offset
        self.readers[position] = (client, offset)
        return bool(entries)

    def _saw(self, offset: int, payload: bytes) -> None:
        assert payload in self.attempts.get(offset, ()), "nobody appended this here"
        assert self.shown.setdefault(offset, payload) == payload, f"at {offset} was something else"
        assert self.acknowledged.get(offset, payload) == payload, f"at {offset} something else was acknowledged"

    # --- the end ----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.run(self._settle())
        finally:
            self.run(self.world.stop())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.directory)

    async def _settle(self) -> None:
        self.world.fates.clear()
        before = dict(self.shown)
        # Those who followed go on; nobody has to open the stream for that, dead writers or not.
        while self.shown.keys() < self.acknowledged.keys() | self.shown.keys():
            for position in range(len(self.readers)):
                await self._read(position)
            await asyncio.sleep(0.0005)
        for _ in range(3):
            await self._open()
            writer = self.writers[-1][0]
            await self._append(writer, 1, 0, "")
            if writer.failed is None:
                break  # else an older writer had no range yet and made the next one: the documented exception
        newcomer = self.world.client("newcomer")
        found: dict[int, bytes] = {}
        while entries := await newcomer.fetch_entries(self.stream_id, len(found), 1 << 20):
            found |= {entry.base_offset: bytes(entry.payload) for entry in entries}
        assert list(found) == list(range(len(found))), "a gap"
        assert before.items() <= found.items(), "what was shown is there for ever"
        assert self.acknowledged.items() <= found.items(), "what was acknowledged is there for ever"
        for position in range(len(self.readers)):
            while self.readers[position][1] < len(found):
                await self._read(position)
                await asyncio.sleep(0.0005)
        assert self.shown == found


pytestmark = [pytest.mark.slow, pytest.mark.timeout(timeout(300))]

TestReadersModel = ReadersMachine.TestCase
TestReadersModel.settings = settings(
    max_examples=examples(40),
    stateful_step_count=25 if factor() == 1 else 60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
