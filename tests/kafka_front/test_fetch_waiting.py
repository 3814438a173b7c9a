"""When a Fetch waits and when it answers, and that it lets go of its partitions however the wait ends."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.run.barrier import Barrier
from bridges.auth import ANONYMOUS, Everybody
from bridges.auth.quotas import QuotaRules
from bridges.clients import Clients, Description
from bridges.cluster.alone import Alone
from bridges.formats import FormatId, Translator
from bridges.formats.codecs.compression import Compression
from bridges.formats.kafka import TRANSACTIONAL, encode, parse_header
from bridges.formats.producer import InTransaction
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch, PartitionLog, Phase
from bridges.metrics import FrontMetrics
from bridges.net.quotas import Quotas
from kafka_front.context import DEFERRED
from kafka_front.service.access import Access
from kafka_front.service.brokers import Brokers
from kafka_front.service.fetch import partitions as fetch_partitions
from kafka_front.service.fetch.patience import Patience
from kafka_front.service.fetch.read_ahead import ReadAhead
from kafka_front.service.fetch.requests import Fetch
from kafka_front.service.fetch.sessions import FetchSessions
from kafka_front.wire.errors import ErrorCode
from kafka_front.wire.messages import FetchRequest, FetchResponse
from sbp_back.wire.entry import pack_entry
from sbp_document.wire.record_batch import FORMAT_FLAG, DocumentRecord, encode_batch
from tests.bridges.log.log_lab import World, batch, settle
from tests.kit.waiting import until


class Loop:
    """Remembers timers instead of waiting for them."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return 0.0

    def call_later(self, seconds: float, call: Any, *args: Any) -> Any:
        self.timers.append((seconds, call, args))
        return SimpleNamespace(cancel=lambda: None)


class Lab:
    """A Fetch handler over one partition, ``t-0``, of a backend that does what the test says."""

    def __init__(self) -> None:
        self.world = World()
        self.loop = Loop()
        self.answers: list[FetchResponse] = []
        self.crashes = 0
        self.budget = MemoryBudget(16 << 20, lambda call: None)
        self.written: list[Any] = []
        """What is to be called when long answers are written."""

        self.rooms: list[int] = []
        """What requests asked room for, in the bytes of requests."""

    def room(self, worth: int) -> Any:
        self.rooms.append(worth)
        return nullcontext()

    def write(self, response: FetchResponse, then: Any) -> None:
        self.answers.append(response)
        self.written.append(then)

    async def start(self) -> PartitionLog:
        log = await self.world.boot()
        self.service: Any = SimpleNamespace(
            logs=self.world.logs,
            catalog=SimpleNamespace(topics={}, by_id={}),
            node_id=0,
            node=SimpleNamespace(quotas=Quotas(QuotaRules(), 1, Barrier())),
            rack=None,
            brokers=Brokers(0, None, Alone(0, AsyncMock())),
            access=Access(Everybody()),
            fetch_sessions=FetchSessions(10),
            translator=Translator(1 << 20),
            loop=self.loop,
            fetch_max_bytes=1 << 20,
            fetch_max_wait_ms=300_000,
            metrics=FrontMetrics("kafka"),
        )
        self.fetch = Fetch(self.service)
        return log

    def connection(self, on_close: Any = lambda _: None) -> Any:
        account = self.budget.account(lambda: None)
        return SimpleNamespace(
            principal=ANONYMOUS,
            client=Clients(self.budget).enter("kafka", "kafka", ("", 0), Description, lambda reason: None),
            on_close=on_close,
            forget_on_close=lambda _: None,
            account=account,
            ahead=ReadAhead(account),
            patience=Patience(self.loop),  # type: ignore[arg-type]
            read_ahead=1 << 20,
        )

    def ask(
        self, request: FetchRequest, version: int = 11, on_close: Any = lambda _: None, connection: Any = None
    ) -> Any:
        def crashed() -> None:
            self.crashes += 1

        connection = connection or self.connection(on_close)
        ctx: Any = SimpleNamespace(
            version=version,
            connection=connection,
            respond=self.answers.append,
            respond_off_loop=self.write,
            room=self.room,
            crashed=crashed,
        )
        return self.fetch.handle(ctx, request)

    def fill(self, batches: int) -> None:
        log = self.world.logs.get("t", 0)
        assert log is not None
        for _ in range(batches):
            log.append(batch(), self.world.done)
        self.world.writer.acknowledge(batches)


@pytest.fixture
async def lab() -> Lab:
    lab = Lab()
    lab.log = await lab.start()  # type: ignore[attr-defined]
    return lab


def request(*places: tuple[str, int], wait_ms: int = 60_000, min_bytes: int = 1, **more: Any) -> FetchRequest:
    topics = [
        FetchRequest.FetchTopic(
            topic=topic,
            partitions=[FetchRequest.FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)],
        )
        for topic, offset in places
    ]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=1 << 20, topics=topics, **more)


def errors(response: FetchResponse) -> dict[str, int]:
    return {topic.topic: topic.partitions[0].error_code for topic in response.responses}


async def test_a_partition_trimmed_past_the_position_keeps_no_waiter(lab: Lab) -> None:
    log = lab.world.logs.get("t", 0)
    assert log is not None
    lab.fill(2)
    assert lab.ask(request(("t", 0), min_bytes=1 << 20)) is DEFERRED
    assert len(log.waiters.waiting) == 1
    await log.trim(1)
    await settle()
    (answer,) = lab.answers
    assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert not log.waiters.waiting


async def test_an_unknown_topic_does_not_end_the_wait_for_another_and_is_told_with_it(lab: Lab) -> None:
    assert lab.ask(request(("gone", 0), ("t", 0))) is DEFERRED
    lab.fill(1)
    await settle()
    (answer,) = lab.answers
    assert errors(answer) == {"gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t": 0}
    assert answer.responses[1].partitions[0].records


async def test_an_unknown_topic_is_told_when_the_wait_ends(lab: Lab) -> None:
    assert lab.ask(request(("t", 0), ("gone", 0), wait_ms=500)) is DEFERRED
    ((seconds, call, args),) = lab.loop.timers
    assert seconds == 0.5
    call(*args)
    assert errors(lab.answers[0]) == {"t": 0, "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_unknown_topics_alone_are_answered_at_once(lab: Lab) -> None:
    answer = lab.ask(request(("gone", 0), ("lost", 0)))
    assert set(errors(answer).values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert isinstance(lab.ask(FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=[])), FetchResponse)


async def test_a_session_with_an_unknown_topic_waits_and_tells_of_it_in_every_answer(lab: Lab) -> None:
    first = request(("t", 0), ("gone", 0), wait_ms=0, session_epoch=0)
    answer = lab.ask(first)
    assert answer.session_id
    assert errors(answer)["gone"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for epoch in (1, 2):
        again = FetchRequest(
            session_id=answer.session_id, session_epoch=epoch, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20
        )
        assert lab.ask(again) is DEFERRED
        _, call, args = lab.loop.timers.pop()
        call(*args)
        assert errors(lab.answers.pop()) == {"gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_an_offset_out_of_range_still_ends_the_wait(lab: Lab) -> None:
    answer = lab.ask(request(("gone", 0), ("t", 99)))
    assert errors(answer)["t"] == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_no_fetch_waits_longer_than_the_node_allows(lab: Lab) -> None:
    assert lab.ask(request(("t", 0), wait_ms=2**31 - 1)) is DEFERRED
    assert [seconds for seconds, _, _ in lab.loop.timers] == [300.0]


@pytest.mark.parametrize("version", [4, 9, 10, 12])
async def test_zstd_is_served_to_every_version(lab: Lab, version: int) -> None:
    payload = bytearray(encode([Record(None, b"x" * 500)]))
    payload[22] = Compression.ZSTD  # of its attributes; nobody looks further
    log = lab.world.logs.get("t", 0)
    assert log is not None
    log.append(Batch(memoryview(payload), 1, int(FormatId.KAFKA)), lab.world.done)
    lab.world.writer.acknowledge(1)
    answer = lab.ask(request(("t", 0)), version)
    assert errors(answer) == {"t": 0}
    assert b"".join(answer.responses[0].partitions[0].records) == payload


@pytest.mark.parametrize("bad", [b"", b"short", bytes(100)])
@pytest.mark.parametrize("flags", [int(FormatId.KAFKA), 9])
async def test_good_batches_before_a_bad_one_are_served_and_the_bad_one_is_told_at_its_offset(
    lab: Lab, bad: bytes, flags: int
) -> None:
    lab.fill(3)
    backend = lab.world.backend
    backend.entries.append(pack_entry(1, 0, flags, 3, 1, 0, bad))
    backend.end = 4
    log = await lab.world.boot()  # with nothing in memory
    lab.service.logs = lab.world.logs
    lab.fetch = Fetch(lab.service)
    assert log.high_watermark == 4
    good = lab.ask(request(("t", 0)))
    assert errors(good) == {"t": 0}
    assert len(good.responses[0].partitions[0].records) == 3
    assert errors(lab.ask(request(("t", 3)))) == {"t": ErrorCode.INVALID_RECORD}
    assert lab.crashes == 0


async def test_an_exception_while_waiting_costs_its_own_fetch_only(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    log = lab.world.logs.get("t", 0)
    assert log is not None
    assert lab.ask(request(("t", 0))) is DEFERRED
    assert lab.ask(request(("t", 0))) is DEFERRED
    payloads = lab.fetch.partitions.payloads
    calls = 0

    def raising(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise IndexError("a defect")
        return payloads(*args)

    monkeypatch.setattr(lab.fetch.partitions, "payloads", raising)
    lab.fill(1)
    await settle()
    assert lab.crashes == 1
    assert len(lab.answers) == 1
    assert not log.waiters.waiting


async def test_an_exception_in_a_read_that_comes_later_answers_its_request(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.fill(1)
    log = await lab.world.boot()
    lab.service.logs = lab.world.logs
    lab.fetch = Fetch(lab.service)
    reads: list[Any] = []
    monkeypatch.setattr(lab.world.backend, "fetch", lambda *args, **more: reads.append(args[3]))
    assert lab.ask(request(("t", 0))) is DEFERRED

    def raising(*args: Any) -> Any:
        raise IndexError("a defect")

    monkeypatch.setattr(lab.fetch.partitions, "payloads", raising)
    reads.pop()(list(lab.world.backend.entries))
    assert lab.crashes == 1
    assert lab.answers == []
    assert log.is_open
    await asyncio.sleep(0)


# --- batches of other protocols -------------------------------------------------------------------------------------


def store_document(lab: Lab, count: int) -> None:
    """A batch of a client of sbp-v0.1, behind what is there."""
    log = lab.world.logs.get("t", 0)
    assert log is not None
    payload = encode_batch([DocumentRecord(b"%d" % number) for number in range(count)])
    log.append(Batch(payload, count, int(FORMAT_FLAG)), lab.world.done)
    lab.world.writer.acknowledge(1)


async def test_a_long_batch_of_another_protocol_is_translated_off_the_loop(lab: Lab) -> None:
    store_document(lab, 1000)
    lab.fill(1)
    assert lab.ask(request(("t", 0))) is DEFERRED
    await until(lambda: lab.answers)
    (partition,) = lab.answers[0].responses[0].partitions
    assert partition.error_code == 0
    assert [parse_header(part).record_count for part in partition.records] == [1000, 1]
    assert lab.service.translator.works.steps >= 10
    assert isinstance(lab.ask(request(("t", 0))), FetchResponse), "the next reader gets it at once"


async def test_a_long_batch_behind_others_is_left_to_the_next_request(lab: Lab) -> None:
    lab.fill(1)
    store_document(lab, 1000)
    answer = lab.ask(request(("t", 0)))
    assert [parse_header(part).record_count for part in answer.responses[0].partitions[0].records] == [1]


async def test_no_more_is_translated_for_one_request_than_a_turn_of_the_loop_may_take(lab: Lab) -> None:
    for _ in range(20):
        store_document(lab, 100)
    answer = lab.ask(request(("t", 0)))
    assert len(answer.responses[0].partitions[0].records) == 1 + 4
    assert len(lab.ask(request(("t", 0))).responses[0].partitions[0].records) == 5 + 4, "what was told is remembered"


async def test_a_bad_batch_of_another_protocol_is_an_error_at_its_place(lab: Lab) -> None:
    log = lab.world.logs.get("t", 0)
    assert log is not None
    payload = encode_batch([DocumentRecord(b"x")] * 1000)
    log.append(Batch(payload, 1001, int(FORMAT_FLAG)), lab.world.done)
    lab.world.writer.acknowledge(1)
    assert lab.ask(request(("t", 0))) is DEFERRED
    await until(lambda: lab.answers)
    assert errors(lab.answers[0]) == {"t": int(ErrorCode.INVALID_RECORD)}


def many(count: int) -> FetchRequest:
    """A partition that has nothing, and as many that do not exist."""
    return request(("t", 0), *((f"gone-{number}", 0) for number in range(count)))


@pytest.mark.parametrize("ends", ["with data", "with its time", "with its connection"])
async def test_what_a_fetch_of_many_partitions_takes_is_counted_while_it_waits(lab: Lab, ends: str) -> None:
    left: list[Any] = []
    assert lab.ask(request(("t", 0)), on_close=left.append) is DEFERRED
    left.pop()()
    assert lab.budget.held == 0
    assert lab.ask(many(299), on_close=left.append) is DEFERRED
    assert lab.budget.held == 300 * 512
    match ends:
        case "with data":
            lab.fill(1)
            await settle()
        case "with its time":
            lab.loop.timers[-1][1]()
        case _:
            left[-1]()
    assert lab.budget.held == 0
    assert len(lab.answers) == (ends != "with its connection")


async def test_a_fetch_of_many_partitions_that_memory_has_no_room_for_does_not_wait(lab: Lab) -> None:
    log = lab.world.logs.get("t", 0)
    assert log is not None
    other = lab.budget.account(lambda: None)
    other.take(Kind.REQUESTS, lab.budget.total)
    answer = lab.ask(many(299))
    assert isinstance(answer, FetchResponse)
    assert [code for name, code in errors(answer).items() if name == "t"] == [0]
    assert not log.waiters.waiting
    assert lab.budget.held == lab.budget.total
    assert lab.ask(many(99)) is DEFERRED  # nobody is refused for so little
    other.give(Kind.REQUESTS, lab.budget.total)
    assert lab.ask(many(299)) is DEFERRED
    assert lab.budget.held == 400 * 512


async def test_a_fetch_of_many_partitions_waits_for_none_to_be_opened_without_room_in_memory(lab: Lab) -> None:
    log = lab.world.logs.get("t", 0)
    assert log is not None
    log.phase = Phase.CLOSED
    other = lab.budget.account(lambda: None)
    other.take(Kind.REQUESTS, lab.budget.total)
    answer = lab.ask(many(299))
    assert isinstance(answer, FetchResponse)
    assert errors(answer)["t"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.phase is not Phase.CLOSED


@pytest.mark.parametrize("kind", ["alone", "of a session"])
async def test_a_fetch_of_very_many_partitions_is_worked_on_in_turns(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Steps between two turns of the loop are counted, not timed: none looks at more partitions than a turn may."""
    most, many = 10, 100
    lab.fetch.partitions.at_once = most
    queued: deque[tuple[Any, tuple[Any, ...]]] = deque()
    lab.loop.call_soon = lambda call, *args: queued.append((call, args))  # type: ignore[attr-defined]
    looked_at = [0]
    refuse = fetch_partitions.Slot.refuse

    def counted(self: Any, code: ErrorCode) -> None:
        looked_at[0] += 1
        refuse(self, code)

    monkeypatch.setattr(fetch_partitions.Slot, "refuse", counted)
    lab.fill(1)
    asked = request(("t", 0), *((f"gone-{number}", 0) for number in range(many)))
    asked.session_epoch = {"alone": -1, "of a session": 0}[kind]
    handling = asyncio.ensure_future(lab.ask(asked))
    await until(lambda: queued)
    steps = 0
    while queued:
        call, args = queued.popleft()
        call(*args)
        steps += 1
    assert looked_at[0] == many
    assert steps >= 2 * (many // most - 1), "reading and telling take so many turns"
    (answer,) = lab.answers
    assert len(answer.responses) == many + 1
    assert answer.responses[0].partitions[0].records
    assert (answer.session_id != 0) == (kind == "of a session")
    assert lab.budget.held > 0, "what was read"
    assert not handling.done(), "all that is made of it is here"
    lab.written.pop()()
    assert await handling is DEFERRED
    assert lab.budget.held == 0


async def test_what_a_fetch_of_very_many_partitions_has_waited_with_counts_until_its_answer_is_written(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.loop.call_soon = asyncio.get_running_loop().call_soon  # type: ignore[attr-defined]
    lab.fetch.partitions.at_once = 100
    handled = lab.ask(many(299))
    assert await handled is DEFERRED
    assert lab.budget.held == 300 * 512
    lab.fill(1)
    await until(lambda: lab.written)
    assert lab.budget.held > 300 * 512
    lab.written.pop()()
    assert lab.budget.held == 0


async def test_a_short_request_for_the_very_many_partitions_of_its_session_has_room_like_a_long_one(lab: Lab) -> None:
    lab.loop.call_soon = asyncio.get_running_loop().call_soon  # type: ignore[attr-defined]
    lab.fetch.partitions.at_once = 100
    first = many(299)
    first.session_epoch, first.max_wait_ms = 0, 0
    handling = asyncio.ensure_future(lab.ask(first))
    await until(lambda: lab.written)
    lab.written.pop()()
    await handling
    lab.rooms.clear()
    second = FetchRequest(max_wait_ms=60_000, min_bytes=1, session_id=lab.answers[0].session_id, session_epoch=1)
    assert await lab.ask(second) is DEFERRED
    assert lab.rooms == [299 * 16], "of all that are not told"


async def test_a_fetch_in_turns_ends_with_its_connection(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.fetch.partitions.at_once = 10
    queued: deque[tuple[Any, tuple[Any, ...]]] = deque()
    lab.loop.call_soon = lambda call, *args: queued.append((call, args))  # type: ignore[attr-defined]
    ended: list[Any] = []
    lab.fill(1)
    handled = lab.ask(request(("t", 0), *((f"gone-{number}", 0) for number in range(50))), on_close=ended.append)
    handling = asyncio.ensure_future(handled)
    await until(lambda: queued)
    call, args = queued.popleft()
    ended[-1]()
    assert await handling is DEFERRED
    call(*args)
    assert not queued
    assert not lab.answers


async def test_a_fetch_in_turns_whose_connection_has_gone_before_is_over(lab: Lab) -> None:
    lab.loop.call_soon = asyncio.get_running_loop().call_soon  # type: ignore[attr-defined]
    lab.fetch.partitions.at_once = 10
    lab.fill(1)
    async with asyncio.timeout(20):
        assert await lab.ask(many(50), on_close=lambda cancel: cancel()) is DEFERRED
    assert not lab.answers


@pytest.mark.parametrize("level", [0, 1])
async def test_a_reader_of_committed_data_gets_nothing_whose_fate_was_trimmed_while_it_was_read(level: int) -> None:
    lab = Lab()
    log = await lab.start()
    log.append(transactional(7), lab.world.done)
    log.append_marker(7, 0, False, lab.world.done)
    log.append(batch(), lab.world.done)
    lab.world.writer.acknowledge(3)
    log.tail.clear()
    backend: Any = lab.world.backend
    fetch_now, held = backend.fetch, deque[Any]()
    backend.fetch = lambda *args, **limit: held.append(lambda: fetch_now(*args, **limit))
    assert lab.ask(request(("t", 0), isolation_level=level)) is DEFERRED
    await log.trim(2)
    held.popleft()()
    (answer,) = lab.answers
    data = answer.responses[0].partitions[0]
    if level:
        assert (data.error_code, data.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
    else:
        assert (data.error_code, len(data.records)) == (0, 3)


async def test_a_reader_of_committed_data_is_not_woken_by_what_is_not(lab: Lab) -> None:
    log = lab.world.logs.get("t", 0)
    assert log is not None
    assert lab.ask(request(("t", 0), isolation_level=1)) is DEFERRED
    log.append(transactional(7), lab.world.done)
    log.append(batch(), lab.world.done)
    lab.world.writer.acknowledge(2)
    await settle()
    assert not lab.answers
    log.append_marker(7, 0, True, lab.world.done)
    lab.world.writer.acknowledge(1)
    await settle()
    (answer,) = lab.answers
    data = answer.responses[0].partitions[0]
    assert (data.high_watermark, data.last_stable_offset, len(data.records)) == (3, 3, 3)
    assert data.aborted_transactions == []


def transactional(producer: int) -> Batch:
    records = [Record(None, b"x", timestamp=5)]
    payload = encode(records, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0)
    return Batch(payload, 1, int(FormatId.KAFKA), 5, transaction=InTransaction(producer, 0))
