"""Envelope of every answer that is not a stream: an operation, or the status of the query service."""

from __future__ import annotations

from typing import Any

from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import Method
from ydb_topic_front.wire.statuses import Status, YdbError


def answer(method: Method, result: Any) -> bytes:
    """Encode the answer to a successful call; ``result`` is a message of ``method.result``, or None. Of the query
    service it is the whole response.

    The operation is always ready: clients never have to poll for it (docs/protocols/ydb.md, "Operations").
    """
    if not method.has_operation:
        response = messages[method.response]() if result is None else result
        response.status = Status.SUCCESS
        return bytes(response.SerializeToString())
    response = messages[method.response]()
    operation = response.operation
    operation.ready = True
    operation.status = Status.SUCCESS
    if result is None and method.result:
        result = messages[method.result]()
    if result is not None:
        operation.result.Pack(result)
    return bytes(response.SerializeToString())


def refusal(method: Method, error: YdbError) -> bytes:
    """Encode the answer to a call that failed with ``error``."""
    response = messages[method.response]()
    if method.has_operation:
        response.operation.ready = True
    error.tell(response.operation if method.has_operation else response)
    return bytes(response.SerializeToString())
