"""Our tables of messages say what YDB's SDK was generated from; the private pool stands beside the SDK's."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pool
from ydb._grpc.v6.protos import (  # they lie in the default pool
    ydb_auth_pb2,
    ydb_discovery_pb2,
    ydb_scheme_pb2,
    ydb_table_pb2,
    ydb_topic_pb2,
)

from bridges.net.grpc_schema import Messages
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.operation import answer, refusal
from ydb_topic_front.wire.statuses import Status, YdbError

SDK = (ydb_auth_pb2, ydb_discovery_pb2, ydb_scheme_pb2, ydb_table_pb2, ydb_topic_pb2)
PACKAGES = ("Ydb", "Ydb.Issue", "Ydb.Operations", "Ydb.Discovery", "Ydb.Auth", "Ydb.Scheme", "Ydb.Table", "Ydb.Topic")


def _all(descriptors: Any) -> list[Any]:
    found = []
    for one in descriptors:
        found += [one, *_all(one.nested_types)]
    return found


OURS = [
    one
    for package in PACKAGES
    for one in _all(messages.pool.FindFileByName(f"{package}.table").message_types_by_name.values())
]


def _field(one: Any) -> tuple[object, ...]:
    kind = one.message_type or one.enum_type
    choice = one.containing_oneof
    return one.name, one.type, one.is_repeated, kind and kind.full_name, choice and choice.name, one.has_presence


@pytest.mark.parametrize("ours", OURS, ids=lambda one: str(one.full_name))
def test_a_message_has_the_fields_that_sdks_know(ours: Any) -> None:
    assert all(module.DESCRIPTOR.pool is descriptor_pool.Default() for module in SDK)
    theirs = descriptor_pool.Default().FindMessageTypeByName(ours.full_name)
    known = {one.number: _field(one) for one in theirs.fields}
    for one in ours.fields:
        assert known[one.number] == _field(one)
    if ours.full_name.startswith("Ydb.Topic."):
        assert {one.number for one in ours.fields} == set(known), "a field is missing"
    for enum in ours.enum_types:
        names = {value.number: value.name for value in theirs.enum_types_by_name[enum.name].values}
        assert {value.number: value.name for value in enum.values}.items() <= names.items()


def test_every_method_has_its_messages() -> None:
    for method in METHODS.values():
        for name in (method.request, method.response, method.result or method.response):
            assert messages[name].DESCRIPTOR.full_name == name


def test_a_call_is_answered_with_an_operation_that_the_sdk_reads() -> None:
    method = METHODS["DescribeTopic"]
    result = messages[method.result]()
    result.self.name = "there"
    operation = ydb_topic_pb2.DescribeTopicResponse.FromString(answer(method, result)).operation
    assert (operation.ready, operation.status) == (True, Status.SUCCESS)
    told = ydb_topic_pb2.DescribeTopicResult()
    assert operation.result.Unpack(told)
    assert told.self.name == "there"


def test_a_refusal_has_status_and_issue() -> None:
    raw = refusal(METHODS["DropTopic"], YdbError(Status.SCHEME_ERROR, "there is no such thing"))
    operation = ydb_topic_pb2.DropTopicResponse.FromString(raw).operation
    assert (operation.ready, operation.status) == (True, Status.SCHEME_ERROR)
    (issue,) = operation.issues
    assert (issue.message, issue.severity) == ("there is no such thing", 1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("message A\n  one string", "line 2"),
        ("message A\n  1 one", "no type"),
        ("message A\n  1 one string sometimes", "sometimes"),
        ("message A\n  1 one map<string,nothing>", "nothing"),
        ("message A.B", "line 1"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Messages({"Made.Up": text})


def test_tables_use_comments_optional_fields_choices_and_maps() -> None:
    made = Messages(
        {
            "Made.Up": """
            # anything
            message A  # what it is
              1 labels map<string,int64>
              2 late string optional
              3 one string in which
              4 other A.B in which
            message A.B
              1 colours repeated enum A.Colour
            enum A.Colour
              0 NONE
              5 RED
            """
        }
    )["Made.Up.A"]
    one = made(labels={"x": 3}, late="")
    one.other.colours.append(5)
    again = made.FromString(one.SerializeToString())
    assert dict(again.labels) == {"x": 3}
    assert again.HasField("late")
    assert again.WhichOneof("which") == "other"
    assert list(again.other.colours) == [5]
