"""The offset of the highest timestamp (KIP-734), as a node and Apache Kafka find it."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Producer

from bridges.formats.kafka import encode
from bridges.formats.records import Record
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.kafka_front.place import Place
from tests.kit.waiting import until_asked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first use of Kafka's broker fetches it

AT = 1_700_000_000_000
VERSIONS = range(7, 12)


async def write(place: Place, topic: str, *batches: list[int], codec: int = 0) -> None:
    """Write batches whose records have these timestamps, in ms since ``AT``."""
    data, topics = m.ProduceRequest.PartitionProduceData, m.ProduceRequest.TopicProduceData
    for times in batches:
        records = bytes(encode([Record(None, b"value", timestamp=AT + one) for one in times], codec=codec))
        request = m.ProduceRequest(None, -1, 10_000, [topics(name=topic, partition_data=[data(0, records)])])
        (answer,) = (await place.call(9, request)).responses
        assert answer.partition_responses[0].error_code == E.NONE


async def highest(place: Place, topic: str, *, committed: bool = False, versions: range = VERSIONS) -> tuple[int, int]:
    """Offset and timestamp (ms since ``AT``) that all these versions of ListOffsets answer."""
    part, topics = m.ListOffsetsRequest.ListOffsetsPartition, m.ListOffsetsRequest.ListOffsetsTopic
    request = m.ListOffsetsRequest(-1, int(committed), [topics(topic, [part(0, timestamp=-3)])])
    found = set()
    for version in versions:
        answer = (await place.call(version, request)).topics[0].partitions[0]
        assert answer.error_code == E.NONE
        found.add((answer.offset, answer.timestamp))
    ((offset, timestamp),) = found
    return offset, timestamp if offset < 0 else timestamp - AT


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[0, 1, 2, 3, 4, 5, 6, 7, 8]], (8, 8)),
        ([[0, 0, 0, 0]], (0, 0)),
        ([[5], [9, 9, 3], [9], [2]], (1, 9)),
        ([[1], [4], [6], [8], [8]], (3, 8)),
        ([[9, 1], [3]], (0, 9)),
    ],
    ids=["rising", "equal", "equal in several batches", "alone", "falling"],
)
async def test_it_is_the_first_record_with_the_highest_timestamp(
    place: Place, batches: list[list[int]], expected: tuple[int, int], codec: int
) -> None:
    topic = await place.topic()
    assert await highest(place, topic) == (-1, -1)
    await write(place, topic, *batches, codec=codec)
    assert await highest(place, topic) == expected


@pytest.mark.parametrize("codec", [0, 4])
async def test_where_the_log_gives_the_times_it_is_the_first_record_of_the_last_moment(
    place: Place, codec: int
) -> None:
    topic = await place.topic(message_timestamp_type="LogAppendTime")
    for base in (0, 3, 6):
        await write(place, topic, [9, 5, 7], codec=codec)
        offset, timestamp = await highest(place, topic)
        assert offset == base
        assert timestamp >= 0
        await asyncio.sleep(0.002)  # the next moment, as clocks count it


@pytest.mark.parametrize("commit", [True, False])
async def test_records_of_a_transaction_count_once_it_has_ended(place: Place, commit: bool) -> None:
    topic = await place.topic()
    await write(place, topic, [1, 2])
    bootstrap = f"{place.client.host}:{place.client.port}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    await asyncio.to_thread(producer.init_transactions, 60)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0, timestamp=AT + 5)
    await asyncio.to_thread(producer.flush, 60)
    assert await highest(place, topic) == (2, 5)
    assert await highest(place, topic, committed=True) == (-1, -1)
    await asyncio.to_thread(producer.commit_transaction if commit else producer.abort_transaction, 60)
    await until_asked(  # the marker may come a moment after the answer
        lambda: highest(place, topic, committed=True, versions=VERSIONS[:1]), lambda found: found != (-1, -1)
    )
    found = await highest(place, topic, committed=True)
    # Kafka counts the marker as a record, which no client is ever given.
    assert found[0] == (2 if place.ours else 3)
    assert await highest(place, topic) == found
