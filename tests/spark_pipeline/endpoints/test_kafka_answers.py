"""Answers of Kafka's brokers as they are received: whatever the pieces, and whether into their own memory or not."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.parser import KafkaProtocol

from spark_pipeline.core.ranges import TopicPartition
from spark_pipeline.endpoints.base import Positions
from spark_pipeline.endpoints.kafka.client import WideTransport, _Frame
from spark_pipeline.endpoints.kafka.endpoint import KafkaEndpoint

AT_ONCE = 64 * 1024
PIECE = 90_000
"""What a local socket takes without a reader."""


def test_a_log_that_is_trimmed_and_grows_while_it_is_looked_at_is_told_its_real_end() -> None:
    """Its start lies within a batch: what takes that for the end takes no batch any more."""
    part = TopicPartition("t", 0)
    answers = iter([1, 1, 5, 20, 20])  # committed, high watermark, start; and both ends again

    class Growing(KafkaEndpoint):
        def _offsets(self, at: Mapping[TopicPartition, int], isolation: int) -> dict[TopicPartition, int]:
            return {part: next(answers) for part in at}

    assert Growing("kafka://127.0.0.1:1", {}).positions([part]) == {part: Positions(5, 20, 20)}


class Answers(KafkaProtocol):  # type: ignore[misc]
    """Gives the bytes of answers in place of what they say."""

    large = 0

    def _process_response(self, frame: Any) -> bytes:
        self.large += isinstance(frame, _Frame)
        return bytes(frame.read(5) + frame.read())


@given(
    st.lists(
        st.sampled_from([0, 1, 5, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE, 6 * AT_ONCE]), min_size=1, max_size=5
    ),
    st.lists(st.integers(1, PIECE), max_size=8).map(lambda some: [*some, 60_000]),
)
def test_answers_are_whole_and_in_order_received_directly_or_not(sizes: list[int], pieces: list[int]) -> None:
    sent = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    rest = memoryview(b"".join(struct.pack(">i", len(one)) + one for one in sent))
    broker, ours = socket.socketpair()
    with broker, ours:
        ours.setblocking(False)
        protocol, transport = Answers(), WideTransport(None, ours)
        transport.set_protocol(SimpleNamespace(parser=protocol))
        told: list[bytes] = []
        turn = 0
        while rest:
            piece = rest[: pieces[turn % len(pieces)]]
            turn += 1
            broker.sendall(piece)
            rest = rest[len(piece) :]
            left = len(piece)
            while left:
                frame = protocol._rbuffer
                before = 0 if frame is None else frame.tell()
                data, error = transport._sock_recv()
                assert error is None
                left -= len(data) or frame.tell() - before
                told += protocol.receive_bytes(data)
        assert told == sent
        assert protocol.large >= any(size == 6 * AT_ONCE for size in sizes)
        assert transport._sock_recv() == (b"", None)
        broker.close()
        assert isinstance(transport._sock_recv()[1], kafka_errors.KafkaConnectionError)
