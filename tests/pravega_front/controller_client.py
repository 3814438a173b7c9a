"""Calls to the controller, one at a time."""

from __future__ import annotations

from typing import Any

import grpc

from pravega_front.wire.controller import METHODS, SERVICE, ScaleStatus, message


class ControllerClient:
    """A channel to a controller at ``host:port``; methods have the names that they have on the wire."""

    def __init__(self, address: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._channel = grpc.insecure_channel(address)
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        request_name, answer_name = METHODS[name]
        call = self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=message(answer_name).FromString,
        )

        def ask(**fields: Any) -> Any:
            return call(message(request_name)(**fields), timeout=120, metadata=self._metadata)

        return ask

    def close(self) -> None:
        self._channel.close()


def stream(scope: str, name: str) -> Any:
    """The name of a stream, as calls have it."""
    return message("StreamInfo")(scope=scope, stream=name)


def scale(controller: ControllerClient, scope: str, name: str, sealed: list[int], ranges: list[list[float]]) -> None:
    """Have segments, by their ids, sealed and others made in their place."""
    new = [{"start": low, "end": high} for low, high in ranges]
    started = controller.scale(streamInfo=stream(scope, name), sealedSegments=sealed, newKeyRanges=new)
    assert started.status == ScaleStatus.STARTED
