"""The registry of request handlers by API key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafka_front.wire.apis import APIS, Api, advertised
from kafka_front.wire.message import Message

if TYPE_CHECKING:
    from kafka_front.context import Context


#: Called on the event loop with the context and the decoded request. Returns a response, a coroutine of one (the
#: connection runs it as a task), DEFERRED or NO_RESPONSE. A KafkaError becomes the API's error response.
Handler = Callable[["Context", Any], Any]


class Registry:
    """Handlers by API key. Only APIs registered here are advertised and answered."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        #: Makes the answer to an ApiVersions request of an unknown version; version 0 of that API can carry it.
        self.versions_mismatch: Callable[[], Message] | None = None

    def register(self, key: int, handler: Handler) -> None:
        """Serve an API. Raises ValueError for an unknown key or a second handler."""
        if key not in APIS:
            raise ValueError(f"API key {key} is not in the table")
        if key in self.handlers:
            raise ValueError(f"{APIS[key].name} has a handler already")
        self.handlers[int(key)] = handler

    def advertised(self) -> list[Api]:
        return advertised(self.handlers)
