"""Methods of all services that the front serves, with their request and result messages."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

TOPIC = "Ydb.Topic.V1.TopicService"
DISCOVERY = "Ydb.Discovery.V1.DiscoveryService"
AUTH = "Ydb.Auth.V1.AuthService"
SCHEME = "Ydb.Scheme.V1.SchemeService"
TABLE = "Ydb.Table.V1.TableService"


class Shape(Enum):
    """Kind of a method: a call or a stream."""

    CALL = "call"
    STREAM = "stream"
    """Both sides send as many messages as they like."""


class Method(NamedTuple):
    """One method; ``request``, ``response`` and ``result`` are names of messages. The response of a call is an
    operation that contains the result; ``result`` is empty if there is none."""

    service: str
    name: str
    shape: Shape
    request: str
    response: str
    result: str

    @property
    def path(self) -> str:
        """Return the method's path in HTTP/2."""
        return f"/{self.service}/{self.name}"


def _calls(service: str, package: str, *names: str, without_result: tuple[str, ...] = ()) -> list[Method]:
    return [
        Method(
            service,
            name,
            Shape.CALL,
            f"{package}.{name}Request",
            f"{package}.{name}Response",
            "" if name in without_result else f"{package}.{name}Result",
        )
        for name in names
    ]


def _stream(name: str) -> Method:
    package = f"Ydb.Topic.{name}Message"
    return Method(TOPIC, name, Shape.STREAM, f"{package}.FromClient", f"{package}.FromServer", "")


_ALL = [
    _stream("StreamWrite"),
    _stream("StreamRead"),
    _stream("StreamDirectRead"),
    *_calls(
        TOPIC,
        "Ydb.Topic",
        "CommitOffset",
        "UpdateOffsetsInTransaction",
        "CreateTopic",
        "DescribeTopic",
        "DescribePartition",
        "DescribeConsumer",
        "AlterTopic",
        "DropTopic",
    ),
    *_calls(DISCOVERY, "Ydb.Discovery", "ListEndpoints", "WhoAmI"),
    *_calls(AUTH, "Ydb.Auth", "Login"),
    *_calls(
        SCHEME,
        "Ydb.Scheme",
        "MakeDirectory",
        "RemoveDirectory",
        "ListDirectory",
        "DescribePath",
        "ModifyPermissions",
        without_result=("MakeDirectory", "RemoveDirectory", "ModifyPermissions"),
    ),
    *_calls(TABLE, "Ydb.Table", "CreateSession", "DeleteSession", "KeepAlive", without_result=("DeleteSession",)),
]

METHODS: Mapping[str, Method] = {method.name: method for method in _ALL}
"""All methods by name. Names are unique among these services."""
