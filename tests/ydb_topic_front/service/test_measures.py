"""What is measured of topics and consumers: told when they are described, and bounded."""

from __future__ import annotations

import time
import uuid
from types import SimpleNamespace
from typing import Any

from anabranch_kit.memory.budget import MemoryBudget
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.reading import Session, number_of
from ydb_topic_front.service.measures import READ_BYTES, WRITE_BYTES, Measures

NOW = time.time_ns() // 1_000_000
"""In ms, as of everything here."""
LATE_MS = 90_000


def topic() -> Any:
    return SimpleNamespace(topic_id=uuid.uuid4())


def milliseconds(told: Any) -> int:
    return int(told.seconds * 1000 + told.nanos // 1_000_000)


def test_lags_and_bytes_are_told(raw: RawClient, topic: str) -> None:
    c, d = f"{topic}-c", f"{topic}-d"
    raw.result("CreateTopic", path=topic, consumers=[{"name": c}, {"name": d}])
    stream = raw.stream("StreamWrite")
    stream.send(init_request={"path": topic})
    stream.receive()
    began = time.time()
    created = {"seconds": int(began) - LATE_MS // 1000}
    for number in (1, 2):
        message = {"seq_no": number, "data": bytes(1000), "created_at": created}
        stream.send(write_request={"messages": [message], "codec": 1})
        stream.receive()
    stream.cancel()

    def within(told: Any, least_ms: float) -> None:
        most = least_ms + (time.time() - began + 1) * 1000
        assert least_ms <= milliseconds(told) <= most, told

    described = raw.result("DescribeTopic", path=topic, include_stats=True)
    within(described.topic_stats.max_write_time_lag, LATE_MS)
    within(described.partitions[0].partition_stats.max_write_time_lag, LATE_MS)
    session = Session(raw, topic, consumer=c)
    number = number_of(session.started())
    session.read(2)
    session.commit(number, (0, 1))
    session.committed()
    found = raw.result("DescribeConsumer", path=topic, consumer=c, include_stats=True)
    stats = found.partitions[0].partition_consumer_stats
    for told in (stats, found.consumer.consumer_stats):
        within(told.max_write_time_lag, LATE_MS)
        within(told.max_read_time_lag, 0)
        within(told.max_committed_time_lag, 0)
        assert told.HasField("max_committed_time_lag")
        assert told.bytes_read.per_minute == told.bytes_read.per_hour == told.bytes_read.per_day > 2000
    assert abs(milliseconds(found.consumer.consumer_stats.min_partitions_last_read_time) - began * 1000) < 120_000
    session.commit(number, (1, 2))
    session.committed()
    session.end()
    found = raw.result("DescribeConsumer", path=topic, consumer=c, include_stats=True)
    stats = found.partitions[0].partition_consumer_stats
    assert milliseconds(stats.max_committed_time_lag) == 0, "all is committed"
    assert (stats.last_read_offset, stats.read_session_id) == (1, ""), "it is known also when nobody reads"
    other = raw.result("DescribeConsumer", path=topic, consumer=d, include_stats=True)
    assert other.consumer.consumer_stats.bytes_read.per_day == 0
    assert milliseconds(other.consumer.consumer_stats.max_committed_time_lag) >= 0
    raw.result("AlterTopic", path=topic, drop_consumers=[c])
    raw.result("AlterTopic", path=topic, add_consumers=[{"name": c}])
    again = raw.result("DescribeConsumer", path=topic, consumer=c)
    assert again.consumer.consumer_stats.bytes_read.per_day == 0


def test_a_topic_tells_what_its_consumers_have(raw: RawClient, topic: str) -> None:
    """Of all partitions together, only when asked for; what is not committed unless there is very much to look at."""
    names = [f"{topic}-c", f"{topic}-d"]
    raw.result("CreateTopic", path=topic, consumers=[{"name": name} for name in names])
    stream = raw.stream("StreamWrite")
    stream.send(init_request={"path": topic})
    stream.receive()
    stream.send(write_request={"messages": [{"seq_no": 1, "data": bytes(1000)}, {"seq_no": 2}], "codec": 1})
    stream.receive()
    written = time.time()
    stream.cancel()
    session = Session(raw, topic, consumer=names[0])
    number = number_of(session.started())
    session.read(2)
    session.commit(number, (0, 2))
    session.committed()
    session.end()
    assert not any(one.HasField("consumer_stats") for one in raw.result("DescribeTopic", path=topic).consumers)
    asked = time.time()
    described = raw.result("DescribeTopic", path=topic, include_stats=True)
    read, unread = (one.consumer_stats for one in described.consumers)
    alone = raw.result("DescribeConsumer", path=topic, consumer=names[0], include_stats=True)
    assert read == alone.consumer.consumer_stats
    assert read.bytes_read.per_minute > 1000
    assert milliseconds(read.max_committed_time_lag) == 0, "all is committed"
    assert read.HasField("max_committed_time_lag")
    since = (asked - written) * 1000
    assert since - 1 <= milliseconds(unread.max_committed_time_lag) <= since + (time.time() - asked + 1) * 1000
    assert unread.bytes_read.per_day == 0
    assert not unread.HasField("min_partitions_last_read_time")
    raw.result("AlterTopic", path=topic, add_consumers=[{"name": f"{topic}-{more}"} for more in range(1000)])
    many = raw.result("DescribeTopic", path=topic, include_stats=True).consumers
    assert not any(one.consumer_stats.HasField("max_committed_time_lag") for one in many)
    assert many[0].consumer_stats.bytes_read == read.bytes_read


async def test_what_was_not_used_for_longest_goes() -> None:
    limits = MemoryBudget(64 * 10 * READ_BYTES, lambda call: call())
    measures, one = Measures(limits), topic()
    for partition in range(15):
        measures.read(one, "c", partition, 5, partition, NOW, 0)
        measures.read(one, "c", 0, 5, partition, NOW, 0)
    kept = [partition for partition in range(15) if measures.of_consumer(one, "c", partition) is not None]
    assert kept == [0, *range(6, 15)]
    for partition in range(50):
        measures.written(one, partition, NOW - 5)
    assert measures.write_lag(one, 49) >= 5
    assert measures.write_lag(one, 0) == 0, "it was forgotten for others"
    assert limits.held == 10 * READ_BYTES + 30 * WRITE_BYTES
    await measures.expire(NOW + 3_600_000)
    assert limits.held == 10 * READ_BYTES, "lags of writing are those of a minute"
    await measures.expire(NOW + 48 * 3_600_000)
    assert limits.held == 0
