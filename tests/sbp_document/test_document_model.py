"""sbp-v0.1 against a model of streams, while requests and answers are lost, the whole backend dies, and writers of
sbp-0.2 take streams over.

The server gives the offsets here and nothing is ever repeated. What must hold: an acknowledged batch is read back at
its offset for ever, unless trimmed or deleted; a batch is in its stream once at most, whole; there is no gap below the
end.
`make thorough` plays many more games.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from sbp_back.embedded import EmbeddedOptions
from sbp_back.errors import ConnectionLost, ErrorCode, SbpError
from sbp_back.range_server.store import StoreOptions
from sbp_back.transport.carrier import Answer
from sbp_back.wire.model import DocumentRequest, DocumentResponse, Response, Status
from sbp_document.wire import messages as m
from sbp_document.wire.record_batch import DocumentRecord, encode_batch, parse_batches
from tests.depth import examples, factor, timeout
from tests.sbp_back.dying import Place, copy_log
from tests.sbp_document.document_lab import Served, start

STREAMS = 3
STORE = StoreOptions(segment_bytes=64 << 10, durability="os", low_water_bytes=0, maintenance_seconds=3600.0)
T = TypeVar("T", bound=DocumentResponse)


class Wire(Place):
    """A way to the document's server, whose answers may come in parts."""

    async def parts(self, request: DocumentRequest) -> list[Response]:
        """What came of the answer; ends short of the last part when the connection was lost."""
        found: list[Response] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def reply(answer: Answer) -> None:
            if isinstance(answer, ConnectionLost):
                done.set_result(None)
                return
            found.append(answer)
            if not isinstance(answer, DocumentResponse) or answer.last:
                done.set_result(None)

        self.submit(request, reply)
        await done
        return found

    async def ask(self, request: DocumentRequest, kind: type[T]) -> T | None:
        """The answer of one part; None when it was lost, or the server died over it."""
        for part in await self.parts(request):
            if isinstance(part, kind):
                assert part.status == Status(), part.status
                return part
        return None


@dataclass
class Stream:
    """The model of one stream. ``sure``: offset -> (batch, number in it); ``end``: all below is there."""

    stream_id: int
    epoch: int = 0
    end: int = 0
    sure: dict[int, tuple[int, int]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    """Records of every batch that was sent, by its number; 0 for an entry of sbp-0.2."""
    places: dict[int, int] = field(default_factory=dict)
    """Where a batch is, once that is known."""
    maybe_trimmed: int = 0

    def found(self, number: int, base: int) -> None:
        """Batch ``number`` was acknowledged or read at ``base``."""
        assert number in self.sizes, "nobody appended this here"
        assert self.places.setdefault(number, base) == base, "a batch has two places"
        for k in range(max(1, self.sizes[number])):
            assert self.sure.setdefault(base + k, (number, k)) == (number, k), f"offset {base + k} was given twice"

    def confirm(self, number: int, base: int) -> None:
        self.found(number, base)
        self.end = max(self.end, base + max(1, self.sizes[number]))


class DocumentMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="document-model-"))
        self.path = self.directory / "0"
        self.lives = 0
        self.loop = asyncio.new_event_loop()
        self.wire = Wire()
        self.embedded: Served
        self.streams: list[Stream] = []
        self.deleted: list[int] = []
        self.serial = 0
        self.run(self._start())
        self.run(self._create(2))  # hypothesis plays many games without one rule or another, and this one is needed

    # --- the world --------------------------------------------------------------------------------------------------

    def run(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(30):
                return await work

        return self.loop.run_until_complete(bounded())

    async def _start(self) -> None:
        listen = {"sbp-v0.1": ("127.0.0.1", 0)}  # the dialect is served where it has a listener, which nobody asks here
        self.embedded = await start(self.path, EmbeddedOptions(store=STORE, listen=listen))
        self.wire.handler = self.embedded.document.server

    async def _stop(self, *, gracefully: bool) -> None:
        if gracefully:
            self.wire.handler = None
            await self.embedded.close()
            self.wire.die()
            return
        self.wire.die()
        self.lives += 1
        source, target = self.path, self.directory / str(self.lives)
        store = self.embedded.store

        def copy(_: object) -> None:
            # What another process would find now. The placement driver stands still meanwhile: nothing it has not
            # decided yet may be found in the store.
            target.mkdir()
            for path in source.iterdir():
                if path.is_file() and not path.name.endswith("-shm"):
                    shutil.copyfile(path, target / path.name)
            store.background_thread.submit(copy_log, source, target).result()

        copied: asyncio.Future[None] = self.loop.create_future()
        self.embedded.placement_driver.state.submit(copy, copied.set_result, copied.set_exception)
        await copied
        await self.embedded.close()
        shutil.rmtree(source)
        self.path = target

    @rule(fates=st.lists(st.sampled_from(["arrives", "arrives", "request lost", "answer lost"]), max_size=6))
    def lose(self, fates: list[str]) -> None:
        self.wire.fates.extend(fates)

    @rule(gracefully=st.booleans())
    def restart(self, gracefully: bool) -> None:
        async def restart() -> None:
            await self._stop(gracefully=gracefully)
            await self._start()

        self.run(restart())

    # --- streams ----------------------------------------------------------------------------------------------------

    # No rule has a precondition: what is possible depends on what threads and the disk did, and hypothesis wants to be
    # offered the same rules when it plays a game again. A rule that makes no sense now does nothing.

    def pick(self, choice: int) -> Stream | None:
        return self.streams[choice % len(self.streams)] if self.streams else None

    @rule(count=st.integers(1, 2))
    def create(self, count: int) -> None:
        self.run(self._create(min(count, STREAMS - len(self.streams))))

    async def _create(self, count: int) -> None:
        wanted = [m.DocumentStream(-1, 1, 0)] * count
        answer = await self.wire.ask(m.CreateStreamsRequest(streams=wanted), m.CreateStreamsResponse)
        for result in answer.results if answer is not None else []:
            assert result.stream is not None, result.status
            assert result.range is not None, result.status
            stream_id = result.stream.stream_id
            assert stream_id not in [*self.deleted, *(one.stream_id for one in self.streams)], "given twice"
            assert (result.range.index, result.range.start, result.range.end) == (0, 0, -1)
            self.streams.append(Stream(stream_id))

    @rule(
        batches=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(0, 2000)), min_size=1, max_size=6),
        turns=st.integers(0, 12),
        dies=st.booleans(),
    )
    def append(self, batches: list[tuple[int, int, int]], turns: int, dies: bool) -> None:
        """One frame with batches for any streams; maybe the server dies on the way."""
        if self.streams:
            chosen = [(self.streams[choice % len(self.streams)], count, size) for choice, count, size in batches]
            self.run(self._append(chosen, turns, dies))

    async def _append(self, batches: list[tuple[Stream, int, int]], turns: int, dies: bool) -> list[Status]:
        items = []
        streams: dict[int, Stream] = {}
        for stream, count, size in batches:
            self.serial += 1
            stream.sizes[self.serial] = count
            streams[self.serial] = stream
            records = [DocumentRecord(b"%d/%d/" % (self.serial, k) + bytes(size)) for k in range(count)]
            items.append(m.AppendItem(stream.stream_id, self.serial, encode_batch(records)))
        answer = asyncio.ensure_future(self.wire.parts(m.AppendBatchRequest(0, items)))
        for _ in range(turns):
            await asyncio.sleep(0)
        if dies:
            await self._stop(gracefully=False)
            await self._start()
        results = [one for part in await answer for one in getattr(part, "results", [])]
        numbers = [one.request_index for one in results]
        assert len(set(numbers)) == len(numbers) <= len(items), "a batch was answered twice"
        assert set(numbers) <= set(streams)
        last: dict[int, int] = {}
        for one in sorted(results, key=lambda result: result.request_index):
            stream = streams[one.request_index]
            assert one.stream_id == stream.stream_id
            if one.status == Status():
                assert one.base_offset > last.get(one.stream_id, -1), "not in the order of the frame"
                last[one.stream_id] = one.base_offset
                stream.confirm(one.request_index, one.base_offset)
            else:
                assert one.status.code != ErrorCode.NOT_FOUND, "a stream is gone"
                assert one.base_offset == -1
        return [one.status for one in results]

    @rule(choice=st.integers(0, 9))
    def seal(self, choice: int) -> None:
        stream = self.pick(choice)
        if stream is not None:
            self.run(self._seal(stream))

    async def _seal(self, stream: Stream) -> bool:
        owners = [m.RangeOwner(None, stream.stream_id)]
        listed = await self.wire.ask(m.ListRangesRequest(owners=owners), m.ListRangesResponse)
        if listed is None:
            return False
        ranges = listed.results[0].ranges
        assert ranges, listed.results[0].status
        assert all(one.end == following.start for one, following in pairwise(ranges)), "a gap"
        wanted = m.SealRangesRequest(ranges=[m.RangeId(stream.stream_id, ranges[-1].index)])
        answer = await self.wire.ask(wanted, m.SealRangesResponse)
        if answer is None:
            return False
        (result,) = answer.results
        opened = result.range
        assert opened is not None, result.status
        assert opened.is_open
        assert opened.start >= stream.end, f"{stream.end} was confirmed, the range was sealed at {opened.start}"
        stream.end = opened.start
        again = await self.wire.ask(wanted, m.SealRangesResponse)
        if again is not None:
            assert again.results[0].range == opened, "asking again has changed something"
        return True

    @rule(choice=st.integers(0, 9), size=st.integers(0, 2000))
    def take(self, choice: int, size: int) -> None:
        """A writer of sbp-0.2 takes the stream: the document may not append until it seals."""
        stream = self.pick(choice)
        if stream is None:
            return

        async def take() -> None:
            assert stream is not None
            stream.epoch += 1
            writer = await self.embedded.client.open(stream.stream_id, stream.epoch)
            assert writer.next_offset >= stream.end
            stream.end = writer.next_offset
            self.serial += 1
            stream.sizes[self.serial] = 0
            done: asyncio.Future[SbpError | None] = self.loop.create_future()
            base = writer.append(b"%d/0/" % self.serial + bytes(size), 1, 0, 5, done.set_result)
            assert await done is None
            stream.confirm(self.serial, base)
            self.wire.fates.clear()
            (status,) = await self._append([(stream, 1, 10)], 0, False)
            assert status.code == ErrorCode.PRECONDITION_FAILED, status

        self.run(take())

    @rule(choices=st.lists(st.integers(0, 9), min_size=1, max_size=3), share=st.floats(0, 1), size=st.integers(1, 9000))
    def fetch(self, choices: list[int], share: float, size: int) -> None:
        """Several streams in one frame."""
        chosen = [stream for choice in choices if (stream := self.pick(choice)) is not None]
        if chosen:
            self.run(self._fetch([(stream, int(share * stream.end)) for stream in chosen], size))

    async def _fetch(self, wanted: list[tuple[Stream, int]], size: int) -> list[int]:
        """Where what was read ends, of each answer that arrived, in any order."""
        items = [m.FetchItem(stream.stream_id, k, offset, size) for k, (stream, offset) in enumerate(wanted)]
        parts = await self.wire.parts(m.FetchBatchRequest(0, 0, items))
        results: list[m.FetchItemResult] = [one for part in parts for one in getattr(part, "results", [])]
        assert len({one.request_index for one in results}) == len(results)
        ends = []
        for one in results:
            stream, offset = wanted[one.request_index]
            if one.status.code == ErrorCode.OFFSET_OUT_OF_RANGE_BOUNDS:
                assert offset < stream.maybe_trimmed, "what was not trimmed is not there"
                continue
            assert one.status.code in (ErrorCode.OK, ErrorCode.NO_NEW_RECORD), one.status
            ends.append(self._read(stream, offset, b"".join(bytes(part) for part in one.parts)))
        return ends

    def _read(self, stream: Stream, offset: int, data: bytes) -> int:
        batches = parse_batches(data)
        if offset < stream.end:
            assert batches, f"nothing at {offset}, below the end {stream.end}"
            assert batches[0].base_offset <= offset < batches[0].end_offset
        position = batches[0].base_offset if batches else offset
        for one in batches:
            assert one.base_offset == position, "a gap"
            position = one.end_offset
            heads = [[int(part) for part in bytes(record.body).split(b"/")[:2]] for record in one.records]
            number = heads[0][0]
            assert heads == [[number, k] for k in range(max(1, stream.sizes.get(number, 0)))], "not the batch as it was"
            assert (one.wrapped >= 0) == (stream.sizes.get(number) == 0)
            stream.found(number, one.base_offset)
        return position

    @rule(choice=st.integers(0, 9), share=st.floats(0, 1))
    def trim(self, choice: int, share: float) -> None:
        stream = self.pick(choice)
        if stream is None:
            return

        async def trim() -> None:
            assert stream is not None
            offset = int(share * stream.end)
            stream.maybe_trimmed = max(stream.maybe_trimmed, offset)
            request = m.TrimStreamsRequest(items=[m.TrimItem(stream.stream_id, offset)])
            answer = await self.wire.ask(request, m.TrimStreamsResponse)
            if answer is not None:
                left = answer.results[0].range
                assert left is not None, answer.results[0].status
                assert offset <= left.start <= stream.maybe_trimmed

        self.run(trim())

    @rule(choice=st.integers(0, 9))
    def delete(self, choice: int) -> None:
        stream = self.pick(choice)
        if stream is None or len(self.streams) < 2:
            return

        async def delete() -> None:
            assert stream is not None
            self.streams.remove(stream)
            request = m.DeleteStreamsRequest(streams=[m.DocumentStream(stream.stream_id)])
            answer = await self.wire.ask(request, m.DeleteStreamsResponse)
            if answer is not None:
                assert answer.results[0].status == Status()
                self.deleted.append(stream.stream_id)

        self.run(delete())

    # --- what must hold ---------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.run(self._settle())
        finally:
            self.run(self._stop(gracefully=True))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.directory)

    async def _settle(self) -> None:
        """With nothing lost any more, every stream takes appends and is read to the end."""
        self.wire.fates.clear()
        await self._stop(gracefully=False)
        await self._start()
        for stream in self.streams:
            assert await self._seal(stream)
            before = stream.end
            assert await self._append([(stream, 2, 10), (stream, 1, 10)], 0, False) == [Status()] * 2
            assert stream.end == before + 3
            position = stream.maybe_trimmed
            while position < stream.end:
                (position,) = await self._fetch([(stream, position)], 5000)
            assert position == stream.end, "there is more than was ever sent"
        request = m.DescribeStreamsRequest(stream_ids=self.deleted)
        answer = await self.wire.ask(request, m.DescribeStreamsResponse)
        assert answer is not None
        assert [one.status.code for one in answer.results] == [ErrorCode.NOT_FOUND] * len(self.deleted)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(timeout(300))]

TestDocumentModel = DocumentMachine.TestCase
TestDocumentModel.settings = settings(
    max_examples=examples(30),
    stateful_step_count=30 if factor() == 1 else 60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
