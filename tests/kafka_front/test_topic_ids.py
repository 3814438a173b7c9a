"""Topics asked for by id instead of by name (KIP-516), against a node and against Apache Kafka; a topic that is made
anew under its name has another id, and whoever knows the old one neither reads nor writes it.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from bridges.formats.kafka import encode
from bridges.formats.records import Record
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.kafka_front.place import Place, create, new

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first use of Kafka's broker fetches it

PRODUCE, COMMIT = 13, 10
NOBODY = uuid.UUID(int=2**100).bytes


async def topic_of(place: Place, partitions: int = 1) -> tuple[str, bytes]:
    """Name and id of a topic that is ready for use."""
    name = await place.topic(partitions)
    return name, await id_of(place, name)


async def id_of(place: Place, name: str) -> bytes:
    asked = [m.MetadataRequest.MetadataRequestTopic(name=name)]
    response = await place.call(13, m.MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    assert response.error_code == E.NONE
    topic_id: bytes = response.topics[0].topic_id
    return topic_id


async def made_anew(place: Place, name: str) -> bytes:
    """Delete a topic and make another of the same name, which is ready for use."""
    await place.call(5, m.DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000))
    await place.gone(name)
    await place.eventually(7, create(new(name, 1)), E.TOPIC_ALREADY_EXISTS)
    await place.settled(name, 1)
    return await id_of(place, name)


def batch(*values: bytes) -> memoryview:
    return memoryview(bytearray(encode([Record(None, value, (), 1_700_000_000_000) for value in values])))


async def produce(place: Place, version: int = PRODUCE, **values: Any) -> dict[bytes, tuple[int, int]]:
    """Write a value to partition 0 of each topic (by the hexadecimal form of its id): error code and offset."""
    data, topic = m.ProduceRequest.PartitionProduceData, m.ProduceRequest.TopicProduceData
    topics = [
        topic(topic_id=bytes.fromhex(one), partition_data=[data(0, batch(value))]) for one, value in values.items()
    ]
    response = await place.call(version, m.ProduceRequest(None, -1, 10_000, topics))
    return {
        topic.topic_id: (topic.partition_responses[0].error_code, topic.partition_responses[0].base_offset)
        for topic in response.responses
    }


def fetch(
    *asked: tuple[bytes, int], session: int = 0, epoch: int = -1, wait_ms: int = 0, committed: bool = False
) -> m.FetchRequest:
    part, topic = m.FetchRequest.FetchPartition, m.FetchRequest.FetchTopic
    return m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=int(committed),
        session_id=session,
        session_epoch=epoch,
        topics=[
            topic(topic_id=one, partitions=[part(0, fetch_offset=offset, partition_max_bytes=1 << 20)])
            for one, offset in asked
        ],
    )


def told(response: m.FetchResponse) -> dict[bytes, tuple[int, bytes]]:
    """Error code and bytes of partition 0 by topic id."""
    return {
        topic.topic_id: (topic.partitions[0].error_code, bytes(topic.partitions[0].records or b""))
        for topic in response.responses
    }


@pytest.mark.parametrize("version", range(13, 19))
async def test_what_is_written_by_id_is_read_by_id(place: Place, version: int) -> None:
    _, one = await topic_of(place)
    _, other = await topic_of(place)
    written = await produce(place, **{one.hex(): b"first", NOBODY.hex(): b"nowhere", other.hex(): b"second"})
    assert written == {one: (E.NONE, 0), other: (E.NONE, 0), NOBODY: (E.UNKNOWN_TOPIC_ID, -1)}
    response = await place.call(version, fetch((one, 0), (NOBODY, 0), (other, 0)))
    assert response.error_code == E.NONE
    found = told(response)
    assert found.pop(NOBODY) == (E.UNKNOWN_TOPIC_ID, b"")
    assert {key: code for key, (code, _) in found.items()} == {one: E.NONE, other: E.NONE}
    assert b"first" in found[one][1]
    assert b"second" in found[other][1]


async def test_partitions_are_answered_in_the_order_that_was_asked_for(place: Place) -> None:
    _, one = await topic_of(place, 2)
    _, other = await topic_of(place)
    asked = fetch((one, 0), (other, 0), (one, 0))
    asked.topics[2].partitions[0].partition = 1
    response = await place.call(13, asked)
    found = [(topic.topic_id, [part.partition_index for part in topic.partitions]) for topic in response.responses]
    assert found == [(one, [0]), (other, [0]), (one, [1])]


async def test_a_session_by_id_waits_and_tells_what_is_new(place: Place) -> None:
    _, one = await topic_of(place)
    _, idle = await topic_of(place)
    opened = await place.call(18, fetch((one, 0), (idle, 0), epoch=0))
    assert opened.session_id
    for number, committed in enumerate((False, True), start=1):
        # The second one waits on what rests since the first.
        request = fetch(session=opened.session_id, epoch=number, wait_ms=60_000, committed=committed)
        request.topics = fetch((one, number - 1)).topics
        async with type(place.client)(place.client.host, place.client.port) as second:
            waiting = asyncio.create_task(place.call(18, request))
            value = f"value {number}".encode()
            part, topic = m.ProduceRequest.PartitionProduceData, m.ProduceRequest.TopicProduceData
            data = [topic(topic_id=one, partition_data=[part(0, batch(value))])]
            await second.call(PRODUCE, m.ProduceRequest(None, -1, 10_000, data))
            found = told(await waiting)
        assert list(found) == [one]
        assert value in found[one][1]


async def test_a_session_is_by_name_or_by_id(place: Place) -> None:
    name, one = await topic_of(place)
    request = fetch(epoch=0)
    request.topics = [m.FetchRequest.FetchTopic(topic=name, partitions=[m.FetchRequest.FetchPartition(0)])]
    opened = await place.call(12, request)
    response = await place.call(13, fetch((one, 0), session=opened.session_id, epoch=1))
    assert response.error_code == E.FETCH_SESSION_TOPIC_ID_ERROR


async def test_a_topic_made_anew_is_neither_read_nor_written_by_its_old_id(place: Place) -> None:
    name, old = await topic_of(place)
    await produce(place, **{old.hex(): b"of the old one"})
    opened = await place.call(17, fetch((old, 0), epoch=0))
    assert b"of the old one" in told(opened)[old][1]
    anew = await made_anew(place, name)
    assert anew != old
    # In a session it is known which name it was.
    inside = await place.call(17, fetch((old, 1), session=opened.session_id, epoch=1))
    assert told(inside) == {old: (E.INCONSISTENT_TOPIC_ID, b"")}
    again = await place.call(17, fetch(session=opened.session_id, epoch=2))
    assert told(again) == {old: (E.INCONSISTENT_TOPIC_ID, b"")}, "it is told until the client forgets it"
    request = fetch((anew, 0), session=opened.session_id, epoch=3)
    request.forgotten_topics_data = [m.FetchRequest.ForgottenTopic(topic_id=old, partitions=[0])]
    assert told(await place.call(17, request)) == {anew: (E.NONE, b"")}
    assert told(await place.call(17, fetch((old, 0)))) == {old: (E.UNKNOWN_TOPIC_ID, b"")}
    assert await produce(place, **{old.hex(): b"too late"}) == {old: (E.UNKNOWN_TOPIC_ID, -1)}
    assert await produce(place, **{anew.hex(): b"of the new one"}) == {anew: (E.NONE, 0)}
    assert await commits(place, f"g-{uuid.uuid4()}", {old: 1, anew: 2}) == {old: E.UNKNOWN_TOPIC_ID, anew: E.NONE}


async def test_a_request_that_waits_when_its_topic_goes_is_answered(place: Place) -> None:
    name, one = await topic_of(place)
    async with type(place.client)(place.client.host, place.client.port) as second:
        waiting = asyncio.create_task(second.call(16, fetch((one, 0), wait_ms=60_000)))
        await place.call(5, m.DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000))
        code, records = told(await waiting)[one]
    gone = {E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID}
    assert code in (gone if place.ours else {*gone, E.NOT_LEADER_OR_FOLLOWER})
    assert records == b""


# --- positions -------------------------------------------------------------------------------------------------------


def commit(group: str, offsets: dict[bytes, int]) -> m.OffsetCommitRequest:
    topic, part = m.OffsetCommitRequest.OffsetCommitRequestTopic, m.OffsetCommitRequest.OffsetCommitRequestPartition
    return m.OffsetCommitRequest(
        group_id=group,
        topics=[topic(topic_id=one, partitions=[part(0, offset)]) for one, offset in offsets.items()],
    )


async def commits(place: Place, group: str, offsets: dict[bytes, int]) -> dict[bytes, int]:
    """Error codes of partition 0 by topic id, of a commit to a coordinator that is there."""
    await place.eventually(4, m.FindCoordinatorRequest(coordinator_keys=[group]), E.COORDINATOR_NOT_AVAILABLE)
    lagging = (E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE)
    response = await place.eventually(COMMIT, commit(group, offsets), *lagging)
    return {topic.topic_id: topic.partitions[0].error_code for topic in response.topics}


async def committed(place: Place, group: str, *asked: bytes) -> dict[bytes, tuple[int, int]]:
    """Offset and error code by topic id; of everything if nothing is named."""
    topic, of_group = m.OffsetFetchRequest.OffsetFetchRequestTopics, m.OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [topic(topic_id=one, partition_indexes=[0]) for one in asked] or None
    response = await place.call(COMMIT, m.OffsetFetchRequest([of_group(group, topics=topics)]))
    (found,) = response.groups
    assert found.error_code == E.NONE
    return {
        topic.topic_id: (topic.partitions[0].committed_offset, topic.partitions[0].error_code) for topic in found.topics
    }


async def test_positions_are_committed_and_fetched_by_id(place: Place) -> None:
    group = f"g-{uuid.uuid4()}"
    _, one = await topic_of(place)
    _, other = await topic_of(place)
    assert await commits(place, group, {one: 7, NOBODY: 8}) == {one: E.NONE, NOBODY: E.UNKNOWN_TOPIC_ID}
    found = await committed(place, group, NOBODY, one, other)
    assert found == {one: (7, E.NONE), other: (-1, E.NONE), NOBODY: (-1, E.UNKNOWN_TOPIC_ID)}
    assert list(found) == [one, other, NOBODY], "unknown ids last, as a broker has them"
    assert await committed(place, group) == {one: (7, E.NONE)}
    assert await commits(place, group, {NOBODY: 1}) == {NOBODY: E.UNKNOWN_TOPIC_ID}


# --- offsets by position ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 12))
async def test_positions_that_a_version_does_not_know_are_refused(place: Place, version: int) -> None:
    name, one = await topic_of(place)
    await produce(place, **{one.hex(): b"value"})
    since = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -7: 99}
    found = {}
    for position in since:
        part, topic = m.ListOffsetsRequest.ListOffsetsPartition, m.ListOffsetsRequest.ListOffsetsTopic
        request = m.ListOffsetsRequest(-1, 0, [topic(name, [part(0, timestamp=position)])])
        answer = (await place.call(version, request)).topics[0].partitions[0]
        found[position] = (answer.error_code, answer.offset)
    expected = {-1: 1, -2: 0, -3: 0, -4: 0, -5: -1, -6: -1}
    assert found == {
        position: (E.NONE, expected[position]) if version >= first else (E.UNSUPPORTED_VERSION, -1)
        for position, first in since.items()
    }
