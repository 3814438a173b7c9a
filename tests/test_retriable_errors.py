"""What the log or the database cannot do now, every protocol says with a code after which its clients come again."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import bridges
import kafka_front
import pravega_front
import spark_pipeline.node
import ydb_topic_front
from bridges.catalog.database.sql import DatabaseClosed, DatabaseError
from bridges.errors import LogError, LogUnavailable, StorageFull
from bridges.http.errors import status_of
from bridges.net.grpc_server import Code
from kafka_front.service.log_errors import code_for
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode
from pravega_front.controller.dispatch import refusal_of
from ydb_topic_front.failures import translate_error
from ydb_topic_front.wire.statuses import Status

LEADERS = {0, 1, 2, 3, 21, 23, 27, 61, 75, 78, 79}
"""Requests that Kafka's clients send to a partition's leader, or that ask where that is."""
CONTROLLERS = {
    19,
    20,
    29,
    30,
    31,
    32,
    33,
    34,
    35,
    37,
    38,
    39,
    40,
    41,
    43,
    44,
    45,
    46,
    48,
    49,
    50,
    51,
    55,
    57,
    60,
    64,
    71,
    72,
    74,
    80,
    81,
    94,
}
"""Those of which they look for the controller, or for any broker."""
WITHOUT = {17, 18, 36}
"""Those before a client is known, which ask neither logs nor the database."""


def retriable() -> list[type[LogError]]:
    """Every error that says of itself that it passes, of all packages."""
    for package in (bridges, kafka_front, pravega_front, ydb_topic_front, spark_pipeline.node):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    return [kind for kind in kinds(LogError) if kind.retriable]


def kinds(root: type[LogError]) -> Iterator[type[LogError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from kinds(kind)


def one(kind: type[LogError]) -> LogError:
    return kind.__new__(kind, "it passes")


def test_clients_of_every_protocol_come_again_after_what_passes() -> None:
    found = retriable()
    assert {DatabaseError, DatabaseClosed, LogUnavailable, StorageFull} <= set(found)
    for error in map(one, found):
        assert translate_error(error).status in (Status.UNAVAILABLE, Status.OVERLOADED), error
        assert refusal_of(error).code is Code.UNAVAILABLE, error
        assert status_of(error) in (503, 507), error
        for key in APIS.keys() - WITHOUT:
            code = code_for(key, error)
            if key in LEADERS:
                assert code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR), (error, key)
            elif key in CONTROLLERS:
                # A full disk is told to the user, who alone can do something: no other controller has more room.
                assert code is (
                    ErrorCode.KAFKA_STORAGE_ERROR if isinstance(error, StorageFull) else ErrorCode.NOT_CONTROLLER
                ), (error, key)
            else:
                assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE, (error, key)


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.CREATE_TOPICS, ApiKey.END_TXN])
def test_what_does_not_pass_is_not_repeated(key: ApiKey) -> None:
    for kind in kinds(LogError):
        if kind.__module__ == "bridges.errors" and not kind.retriable:
            assert code_for(key, one(kind)) not in (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.NOT_CONTROLLER,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
