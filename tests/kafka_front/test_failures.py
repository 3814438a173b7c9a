"""Error responses of every API: writable in every version, and with the items that were asked about."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from kafka_front import failures
from kafka_front.wire import codec
from kafka_front.wire import messages as m
from kafka_front.wire.apis import APIS, Api, ApiKey, advertised
from kafka_front.wire.errors import ErrorCode, KafkaError
from tests.kafka_front.place import error_codes

CODE = int(ErrorCode.UNKNOWN_SERVER_ERROR)


def filled(message: Any, root: type) -> Any:
    """Give every array one element, and every string a text of its own."""
    hints = type(message).__init__.__annotations__
    for name in message.__slots__:
        hint = hints[name].removesuffix(" | None")
        if hint.startswith(f"list[{root.__name__}."):
            inner = getattr(root, hint.removeprefix(f"list[{root.__name__}.").removesuffix("]"))
            setattr(message, name, [filled(inner(), root)])
        elif hint == "list[str]":
            setattr(message, name, [f"an item of {name}"])
        elif hint == "list[int]":
            setattr(message, name, [31])
        elif hint == "str":
            setattr(message, name, f"the {name}")
        elif hint == "int" and name.endswith(("index", "partition")):
            setattr(message, name, 37)
    return message


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_api_can_say_that_it_failed(api: Api) -> None:
    request = filled(getattr(m, api.name + "Request")(), getattr(m, api.name + "Request"))
    lowest = 0 if api.key == ApiKey.PRODUCE else api.lowest
    for version in range(lowest, api.highest + 1):
        # What a version of the request cannot carry is not there to be repeated.
        parts = codec.encode_request(version, 1, None, request)
        _, asked = codec.decode_request(b"".join(parts)[4:])
        response = failures.response(api.key, version, asked, CODE, "it broke")
        assert response is not None
        frame = b"".join(codec.encode_response(api.key, version, 1, response))[4:]
        _, told = codec.decode_response(api.key, version, frame)
        codes = error_codes(told)
        assert CODE in codes, f"version {version} does not carry the error"
        assert set(codes) <= {CODE, 0}


def test_items_are_repeated() -> None:
    topic, partition = m.ProduceRequest.TopicProduceData, m.ProduceRequest.PartitionProduceData
    produce = m.ProduceRequest(
        topic_data=[topic(name="a", partition_data=[partition(3), partition(5)]), topic(name="b")]
    )
    told = failures.response(0, 9, produce, 7, "why")
    assert isinstance(told, m.ProduceResponse)
    assert [
        (t.name, [(p.index, p.error_code, p.base_offset) for p in t.partition_responses]) for t in told.responses
    ] == [
        ("a", [(3, 7, -1), (5, 7, -1)]),
        ("b", []),
    ]
    topics = m.CreateTopicsRequest(
        [m.CreateTopicsRequest.CreatableTopic("x"), m.CreateTopicsRequest.CreatableTopic("y")]
    )
    created = failures.response(19, 7, topics, 7, "why")
    assert isinstance(created, m.CreateTopicsResponse)
    assert [(t.name, t.error_code, t.error_message) for t in created.topics] == [("x", 7, "why"), ("y", 7, "why")]
    fetch = m.FetchRequest(
        topics=[m.FetchRequest.FetchTopic(topic="t", partitions=[m.FetchRequest.FetchPartition(partition=4)])]
    )
    old, new = failures.response(1, 6, fetch, 7), failures.response(1, 12, fetch, 7)
    assert isinstance(old, m.FetchResponse)
    assert [(t.topic, [(p.partition_index, p.error_code) for p in t.partitions]) for t in old.responses] == [
        ("t", [(4, 7)])
    ]
    assert isinstance(new, m.FetchResponse)
    assert (new.error_code, new.responses) == (7, [])


def test_a_request_that_could_not_be_read_has_no_items() -> None:
    assert failures.response(ApiKey.PRODUCE, 9, None, CODE) is None
    heartbeat = failures.response(ApiKey.HEARTBEAT, 4, None, CODE)
    assert heartbeat == m.HeartbeatResponse(error_code=CODE)


def test_error_codes_are_kafkas() -> None:
    since_kio = {"group_deletion_failed", "streams_topology_description_update_failed", "controller_id_not_registered"}
    ours = {code.name.lower(): int(code) for code in ErrorCode}
    assert {name: ours[name] for name in ours.keys() - since_kio} == {code.name: int(code) for code in KioErrorCode}
    assert since_kio <= ours.keys()
    assert {int(code) for code in ErrorCode if code.retriable} == {int(code) for code in KioErrorCode if code.retriable}


def test_kafka_error_names_itself() -> None:
    assert str(KafkaError(3)) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert (str(KafkaError(3, "gone")), KafkaError(3, "gone").code) == ("gone", 3)


def test_what_every_known_client_needs_is_offered() -> None:
    """An intersection with every client (docs/protocols/kafka.md, rules A-G)."""
    java_minimum = {0: 3, 1: 4, 2: 1, 3: 0, 8: 2, 9: 1, 10: 0, 11: 2, 19: 2, 20: 1, 22: 0, 23: 2, 29: 1, 32: 1}
    for key, minimum in java_minimum.items():
        assert APIS[key].highest >= minimum, "rule D"
    old_maximum = {0: 7, 1: 11, 2: 3, 3: 4, 8: 3, 9: 3, 10: 1, 11: 5, 12: 1, 13: 1, 14: 3, 19: 3, 20: 1, 32: 2, 33: 1}
    for key, maximum in old_maximum.items():
        assert APIS[key].advertised <= maximum, "rule A"
    assert APIS[0].advertised == 0, "rule B"
    assert [APIS[key].advertised for key in (10, 11, 17)] == [0, 0, 0], "rule C"
    assert (APIS[8].highest, APIS[9].highest) >= (9, 9), "rule E"
    assert min(APIS[26].highest, APIS[28].highest) >= 5, "rule G"
    assert [api.key for api in advertised([18, 3, 0])] == [0, 3, 18]
