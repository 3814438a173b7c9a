"""Answers of Kafka's brokers as they are received: whatever the pieces, and wherever these were put."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_pipeline.endpoints.kafka_client import WideProtocol

LARGE = 256 * 1024


class Answers(WideProtocol):
    """Gives the bytes of answers in place of what they say."""

    def _process_response(self, frame: Any) -> bytes:
        return bytes(frame.read())


@given(
    st.lists(st.sampled_from([0, 1, 5, LARGE - 1, LARGE, LARGE + 3]), min_size=1, max_size=5),
    st.lists(st.integers(1, LARGE + 9), max_size=8).map(lambda some: [*some, 60_000]),
    st.booleans(),
)
def test_answers_are_whole_and_in_order_received_directly_or_not(
    sizes: list[int], pieces: list[int], directly: bool
) -> None:
    sent = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    rest = memoryview(b"".join(struct.pack(">i", len(one)) + one for one in sent))
    protocol = Answers()
    told: list[bytes] = []
    turn = 0
    while rest:
        piece = rest[: pieces[turn % len(pieces)]]
        turn += 1
        room = protocol.room() if directly else None
        if room is None:
            came: bytes | memoryview = bytes(piece)
        else:
            piece = piece[: len(room)]
            room[: len(piece)] = piece
            came = room[: len(piece)]
        rest = rest[len(piece) :]
        told += protocol.receive_bytes(came)
    assert told == sent
    assert protocol.room() is None
