"""What Produce answers about records that a topic refuses: a node and Apache Kafka alike."""

from __future__ import annotations

from bridges.formats.kafka import encode
from bridges.formats.records import Record
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.kafka_front.place import Place


async def test_records_out_of_time_are_named_and_the_batch_is_refused_in_a_brokers_words(place: Place) -> None:
    topic = await place.topic(message_timestamp_before_max_ms="1000")
    records = memoryview(bytearray(encode([Record(None, b"old", (), 1_000), Record(None, b"older", (), 500)])))
    data = [
        m.ProduceRequest.TopicProduceData(
            name=topic, partition_data=[m.ProduceRequest.PartitionProduceData(0, records)]
        )
    ]
    response = await place.call(9, m.ProduceRequest(None, -1, 10_000, data))
    (answer,) = response.responses[0].partition_responses
    assert answer.error_code == E.INVALID_TIMESTAMP
    assert answer.error_message == "One or more records have been rejected due to invalid timestamp"
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert all("timestamp" in error.batch_index_error_message.lower() for error in answer.record_errors)
