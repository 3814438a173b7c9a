"""Envelope of every answer that is not a stream."""

from __future__ import annotations

from typing import Any

from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import Method
from ydb_topic_front.wire.statuses import Status, YdbError


def answer(method: Method, result: Any) -> bytes:
    """Encode the answer to a successful call; ``result`` is a message of ``method.result``, or None.

    The operation is always ready: clients never have to poll for it (docs/protocols/ydb.md, "Operations").
    """
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
    response.operation.ready = True
    error.tell(response.operation)
    return bytes(response.SerializeToString())
