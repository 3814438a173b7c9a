"""Dead letters of share groups (KIP-1191): which records get one, what it says, and that none is lost with a node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bridges.errors import LogUnavailable
from bridges.formats import FORMATS, FormatId, decode
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch
from kafka_front.service.groups.share import dead_letters
from kafka_front.service.groups.share.partition import Ack, AckType, Letter, RecordState, SharePartition
from kafka_front.wire import messages as m
from tests.kafka_front.node_lab import append, log_of
from tests.kafka_front.share.test_requests import ACCEPT, FAST, GAP, GROUP, REJECT, RELEASE, Lab, lab, share_of
from tests.kit.waiting import until

TOPIC = "dlq.t"
TWICE = {"kafka.group.share_delivery_count_limit": "2"}


async def bury_to(made: Lab, topic: str = TOPIC, *, make: bool = True, partitions: int = 1) -> None:
    """Let the group begin at the first record, and have its dead letters in ``topic``."""
    await made.earliest()
    await made.configure("errors.deadletterqueue.topic.name", topic)
    if make and topic not in made.node.catalog.topics:
        await made.node.catalog.create_topic(topic, partitions, {"errors.deadletterqueue.group.enable": "true"})


async def letters(made: Lab, count: int, topic: str = TOPIC, partition: int = 0) -> list[Record]:
    """Return the letters in a topic, when there are as many."""
    await until(lambda: topic in made.node.catalog.topics)
    log = log_of(made.node, topic, partition)
    await log.ready()
    await until(lambda: log.high_watermark >= count)
    return [record for batch in await log.read_batches(0, 1 << 20) for record in decode(batch)]


def told(record: Record) -> tuple[str, int, str]:
    """Offset, deliveries and reason of a letter of the topic t."""
    headers = {name: (value or b"").decode() for name, value in record.headers}
    assert list(headers) == [
        "__dlq.errors.topic",
        "__dlq.errors.partition",
        "__dlq.errors.offset",
        "__dlq.errors.group",
        "__dlq.errors.delivery.count",
        "__dlq.errors.message",
    ]
    assert (headers["__dlq.errors.topic"], headers["__dlq.errors.partition"]) == ("t", "0")
    assert headers["__dlq.errors.group"] == GROUP
    return headers["__dlq.errors.offset"], int(headers["__dlq.errors.delivery.count"]), headers["__dlq.errors.message"]


async def finished(made: Lab, start: int) -> None:
    """Return when nothing below ``start`` is delivered again."""
    while not any(place.start >= start for place in await share_of(made).places(GROUP)):
        await asyncio.sleep(0)


@pytest.mark.parametrize("copies", [False, True])
async def test_rejected_records_and_those_delivered_too_often_get_letters(tmp_path: Path, copies: bool) -> None:
    async with lab(tmp_path, TWICE, records=5) as made:
        await bury_to(made)
        await made.configure("errors.deadletterqueue.copy.record.enable", str(copies).lower())
        member = await made.member()
        assert len(await member.acquire()) == 5
        assert await member.acknowledge(0, 4, REJECT, ACCEPT, GAP, RELEASE, RELEASE) == 0
        assert await member.acquire() == [(3, 3, 2), (4, 4, 2)]
        assert await member.acknowledge(3, 4, RELEASE, REJECT) == 0
        found = await letters(made, 3)
        assert [told(one) for one in found] == [
            ("0", 1, "Offset rejected by client."),
            ("3", 2, "Offset delivery count exceeded the threshold."),
            ("4", 2, "Offset rejected by client."),
        ]
        assert [(one.key, one.value) for one in found] == [(None, b"%d" % n if copies else None) for n in (0, 3, 4)]
        await finished(made, 5)
        assert await member.acquire() == []
        (front,) = made.node.fronts
        assert front.groups is not None
        view = front.groups.view(GROUP)
        assert view is not None
        assert view.dead_letter_topic == TOPIC, "as people see the group"


async def test_a_lock_that_ends_for_the_last_time_makes_a_letter(tmp_path: Path) -> None:
    async with lab(tmp_path, {**FAST, "kafka.group.share_delivery_count_limit": "1"}, records=1) as made:
        await bury_to(made)
        member = await made.member()
        assert len(await member.acquire()) == 1
        await member.fetch(max_wait_ms=10_000)  # until the lock's end wakes it
        assert [told(one)[1:] for one in await letters(made, 1)] == [
            (1, "Offset delivery count exceeded the threshold.")
        ]


async def test_letters_of_other_protocols_records_have_what_kafkas_readers_see(tmp_path: Path) -> None:
    async with lab(tmp_path, records=0) as made:
        await bury_to(made)
        await made.configure("errors.deadletterqueue.copy.record.enable", "true")
        log = log_of(made.node, "t")
        await log.ready()
        builder = FORMATS[FormatId.YDB].builder(0, 1)
        builder.add(Record(None, b"written with YDB", timestamp=1_000_000, offset=0))
        await append(log, Batch(builder.finish(), 1, int(FormatId.YDB), 1_000_000))
        member = await made.member()
        assert await member.acquire() == [(0, 0, 1)]
        assert await member.acknowledge(0, 0, REJECT) == 0
        assert [one.value for one in await letters(made, 1)] == [b"written with YDB"]


@pytest.mark.parametrize(
    ("topic", "config", "reason"),
    [
        ("letters", {}, "must begin with dlq."),
        (TOPIC, None, "there is no topic dlq.t"),
        (TOPIC, {}, "takes no dead letters"),
    ],
)
async def test_without_a_usable_topic_records_are_archived_and_the_log_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], topic: str, config: dict[str, str] | None, reason: str
) -> None:
    async with lab(tmp_path, records=1) as made:
        await bury_to(made, topic, make=False)
        if config is not None:
            await made.node.catalog.create_topic(topic, 1, config)
        member = await made.member()
        await member.acquire()
        assert await member.acknowledge(0, 0, REJECT) == 0
        await finished(made, 1)
        assert (topic in made.node.catalog.topics) == (config is not None)
    assert reason in "".join(capfd.readouterr())


async def test_a_missing_topic_is_made_if_the_nodes_configuration_says_so(tmp_path: Path) -> None:
    async with lab(tmp_path, records=1) as made:
        asked = m.IncrementalAlterConfigsRequest
        values = {"auto.create.topics.enable": "true", "topic.name.prefix": ""}
        changes = [asked.AlterableConfig(f"errors.deadletterqueue.{key}", 0, value) for key, value in values.items()]
        client = await made.client()
        answer = await client.call(1, asked(resources=[asked.AlterConfigsResource(4, "", changes)]))
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message
        await bury_to(made, "anything", make=False)
        member = await made.member()
        await member.acquire()
        assert await member.acknowledge(0, 0, REJECT) == 0
        assert len(await letters(made, 1, "anything")) == 1
        assert made.node.catalog.topics["anything"].config == {
            "errors.deadletterqueue.group.enable": "true",
            "message.timestamp.type": "CreateTime",
        }


async def test_a_node_writes_the_letters_that_its_predecessor_owes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        raise LogUnavailable("the owner is away")

    async with lab(tmp_path, records=2) as made:
        await bury_to(made)
        with monkeypatch.context() as broken:
            broken.setattr(dead_letters.DeadLetters, "_write", never)
            member = await made.member()
            await member.acquire()
            assert await member.acknowledge(0, 1, ACCEPT, REJECT) == 0
            await finished(made, 1)
    async with lab(tmp_path) as made:
        member = await made.member()
        await member.fetch()
        assert [told(one) for one in await letters(made, 1)] == [("1", 1, "Offset rejected by client.")]
        await finished(made, 2)


async def test_a_letter_that_cannot_be_written_for_a_moment_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tries = dead_letters.DeadLetters._write, [0]

    async def at_the_third(self: dead_letters.DeadLetters, *given: Any) -> int:
        tries[0] += 1
        if tries[0] < 3:
            raise LogUnavailable("the owner is away")
        return await write(self, *given)

    monkeypatch.setattr(dead_letters.DeadLetters, "_write", at_the_third)
    monkeypatch.setattr(dead_letters, "BACKOFF_S", 0.001)
    async with lab(tmp_path, records=1) as made:
        await bury_to(made)
        member = await made.member()
        await member.acquire()
        assert await member.acknowledge(0, 0, REJECT) == 0
        assert len(await letters(made, 1)) == 1


def test_records_with_a_letter_to_write_hold_up_the_start_and_come_no_more() -> None:
    state = SharePartition(0, 5)
    state.has_letters = True
    got = state.acquire(0, "m", 100, 0, [(0, 9, True)], 10, whole_batches=True, most_in_flight=100)
    assert [(one.first, one.last) for one in got] == [(0, 9)]
    state.acknowledge(0, "m", [Ack(0, 3, AckType.REJECT), Ack(4, 9, AckType.ACCEPT)], 100)
    assert (state.start, state.letters, state.is_busy) == (0, [Letter(0, 3, 1, True)], True)
    stored: Sequence[Any] = state.stored()
    assert stored[0] == (0, 3, RecordState.ARCHIVING, 1)
    again = SharePartition(0, 5, stored)
    assert (again.start, again.letters, again.next_offset()) == (0, [Letter(0, 3, 1, True)], 10)
    again.archive(again.letters.pop())
    assert (again.start, again.is_busy) == (10, False)
