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
QUERY = "Ydb.Query.V1.QueryService"


class Shape(Enum):
    """Kind of a method: a call or a stream."""

    CALL = "call"
    STREAM = "stream"
    """Both sides send as many messages as they like."""


class Method(NamedTuple):
    """One method; ``request``, ``response`` and ``result`` are names of messages. The response of a call is an
    operation that contains the result; ``result`` is empty if there is none. The query service's responses have their
    status themselves, without an operation."""

    service: str
    name: str
    shape: Shape
    request: str
    response: str
    result: str

    @property
    def key(self) -> str:
        """Return the name by which handlers are registered: the query service and the table service share names."""
        return f"Query.{self.name}" if self.service == QUERY else self.name

    @property
    def has_operation(self) -> bool:
        """Return whether a call's response is an operation."""
        return self.service != QUERY

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
    *(
        Method(QUERY, name, Shape.CALL, f"Ydb.Query.{name}Request", f"Ydb.Query.{name}Response", "")
        for name in ("CreateSession", "DeleteSession", "BeginTransaction", "CommitTransaction", "RollbackTransaction")
    ),
    Method(QUERY, "AttachSession", Shape.STREAM, "Ydb.Query.AttachSessionRequest", "Ydb.Query.SessionState", ""),
    Method(
        QUERY, "ExecuteQuery", Shape.STREAM, "Ydb.Query.ExecuteQueryRequest", "Ydb.Query.ExecuteQueryResponsePart", ""
    ),
    *_calls(TABLE, "Ydb.Table", "CreateSession", "DeleteSession", "KeepAlive", without_result=("DeleteSession",)),
]

METHODS: Mapping[str, Method] = {method.key: method for method in _ALL}
"""All methods by :attr:`Method.key`."""
