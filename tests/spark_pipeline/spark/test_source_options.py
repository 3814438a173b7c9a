"""Options of the source: the words of Spark's connector for Kafka, and sentences for what cannot be."""

from __future__ import annotations

import pytest

from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.spark.sink import SinkSettings
from spark_pipeline.spark.source_options import Bound, SourceOptions, Topics

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def batch(**options: str) -> SourceOptions:
    return SourceOptions.parse(
        {"subscribe": "a", **{n.replace("__", "."): v for n, v in options.items()}}, streaming=False
    )


def stream(**options: str) -> SourceOptions:
    return SourceOptions.parse(
        {"subscribe": "a", **{n.replace("__", "."): v for n, v in options.items()}}, streaming=True
    )


def test_what_nothing_is_said_of() -> None:
    assert (batch().starting, batch().ending) == (Bound("earliest"), Bound("latest"))
    assert stream().starting == Bound("latest")
    assert batch().url == "anabranch://localhost:8090"
    assert batch().fail_on_data_loss
    assert stream().max_delay_ms == 15 * 60_000
    assert (batch().headers, batch().metadata) == (False, False)


def test_ways_to_say_what_is_read() -> None:
    assert SourceOptions.parse({"Subscribe": "a, b,a"}, streaming=True).topics == Topics(("a", "b"))
    assert SourceOptions.parse({"subscribePattern": "a.*"}, streaming=True).topics == Topics(pattern="a.*")
    assert SourceOptions.parse({"assign": '{"a":[1,0]}'}, streaming=True).topics == Topics(parts=(A1, A0))


def test_bounds_and_which_of_them_wins() -> None:
    offsets, times = '{"a":{"0":-2,"1":7}}', '{"a":{"0":1000,"1":2000}}'
    assert stream(startingOffsets="EARLIEST").starting == Bound("earliest")
    assert batch(startingOffsets=offsets).starting == Bound(offsets={A0: -2, A1: 7})
    by_time = Bound(timestamps={A0: 1000, A1: 2000})
    assert batch(startingOffsets=offsets, startingOffsetsByTimestamp=times).starting == by_time
    every = batch(startingOffsets=offsets, startingOffsetsByTimestamp=times, startingTimestamp="5")
    assert every.starting == Bound(timestamp=5)
    assert batch(endingOffsets='{"a":{"0":-1,"1":7}}').ending == Bound(offsets={A0: -1, A1: 7})


def test_sizes_times_and_what_is_for_the_endpoint() -> None:
    found = stream(
        maxBytesPerTrigger="4m", maxTriggerDelay="30s", minOffsetsPerTrigger="10", ARROW__BATCH__BYTES="512k", user="u"
    )
    assert (found.max_bytes, found.max_delay_ms, found.min_offsets) == (4 << 20, 30_000, 10)
    assert found.batch_bytes == 512 << 10
    assert found.endpoint == {"user": "u"}


def test_options_of_a_protocol_reach_its_endpoint() -> None:
    kafka = {"protocol": "kafka", "kafka.bootstrap.servers": "h:9092", "kafka.security.protocol": "SSL"}
    found = SourceOptions.parse({"subscribe": "a", **kafka}, streaming=True)
    assert found.url == "kafka://h:9092"
    assert found.endpoint["kafka.security.protocol"] == "SSL"
    assert batch(protocol="ydb", endpoint="ydb://h:2136").url == "ydb://h:2136"


@pytest.mark.parametrize(
    ("streaming", "options", "sentence"),
    [
        (False, {"subscribe": ""}, "names no topic"),
        (False, {"subscribePattern": "a"}, "exactly one of subscribe"),
        (False, {"assign": "{}", "subscribe": None}, "names no partition"),
        (False, {"assign": '{"a":["0"]}', "subscribe": None}, "no list of partitions"),
        (False, {"subscribe": None}, "exactly one of subscribe"),
        (False, {"subscribe": None, "subscribePattern": "a("}, "no regular expression"),
        (False, {"startingOffsets": "latest"}, "latest is for streams"),
        (False, {"startingOffsets": '{"a":{"0":-1}}'}, "latest, which is for streams"),
        (False, {"endingOffsets": "earliest"}, "would read nothing"),
        (False, {"endingOffsets": '{"a":{"0":-2}}'}, "would read nothing"),
        (True, {"endingOffsets": "latest"}, "a stream has no end"),
        (True, {"endingTimestamp": "5"}, "a stream has no end"),
        (True, {"startingOffsets": "newest"}, "not a JSON object"),
        (True, {"startingOffsets": '{"a":[1]}'}, "no object of partitions"),
        (True, {"startingOffsets": '{"a":{"0":-3}}'}, "'0': -3"),
        (True, {"startingOffsets": '{"a":{"0":true}}'}, "'0': True"),
        (True, {"startingTimestamp": "yesterday"}, "no number of milliseconds"),
        (True, {"maxOffsetsPerTrigger": "0"}, "not a number of at least 1"),
        (True, {"minPartitions": "many"}, "not a number of at least 1"),
        (True, {"maxBytesPerTrigger": "4 parsecs"}, "with one of the units"),
        (True, {"failOnDataLoss": "maybe"}, "neither true nor false"),
        (True, {"startingOffsetsByTimestampStrategy": "guess"}, "none of error, latest"),
        (True, {"protocol": "carrier pigeon"}, "none of sbp, kafka"),
        (True, {"protocol": "kafka"}, "needs an endpoint"),
        (True, {"protocol": "kafka", "endpoint": "anabranch://h"}, "is read from kafka://"),
        (True, {"kafka.auto.offset.reset": "earliest"}, "is not supported"),
        (True, {"kafka.value.deserializer": "x"}, "values are bytes"),
    ],
)
def test_what_cannot_be(streaming: bool, options: dict[str, str | None], sentence: str) -> None:
    given = {"subscribe": "a", **options}
    with pytest.raises(OptionError, match=sentence):
        SourceOptions.parse({name: value for name, value in given.items() if value is not None}, streaming=streaming)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"failOnDataLos": "false"}, r"anabranch:// has no option failOnDataLos: did you mean failondataloss\\?"),
        ({"fetch.byte": "1"}, r"anabranch:// has no option fetch.byte: did you mean fetch.bytes\?"),
        ({"kafka.bootstrap.servers": "h:9092"}, r"option kafka.bootstrap.servers is for protocol = kafka"),
        ({"kafka.isolation.level": "read_committed"}, "anabranch:// has none"),
        ({"protocol": "kafka", "kafka.bootstrap.servers": "h:1", "usr": "me"}, "kafka:// has no option usr"),
        ({"protocol": "pravega", "endpoint": "pravega://h/s", "user.name": "me"}, "pravega:// has no option user.name"),
    ],
)
def test_options_that_nobody_knows_are_not_left_out_silently(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        SourceOptions.parse({"subscribe": "a", **options}, streaming=True)
    url = options.get("endpoint", "anabranch://h")
    with pytest.raises(OptionError, match="has no option mistyped"):
        endpoint(url, {"mistyped": "1"})


@pytest.mark.parametrize("name", ["topics", "kafka.acks", "partitioner"])
def test_options_that_the_sink_does_not_know_are_not_left_out_silently(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name}"):
        SinkSettings.parse({"topic": "t", name: "1"})
    assert SinkSettings.parse({"topic": "t", "checkpointLocation": "/c"}).sink.topic == "t"
