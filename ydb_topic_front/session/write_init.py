"""First message of a StreamWrite (docs/protocols/ydb.md, "StreamWrite")."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.statuses import bad_request

MAX_NAME = 2048
"""Most characters of a producer's or a message group's name."""
MAX_META_BYTES = 16 * 1024
"""Most bytes of the session's metadata, which is stored with every batch."""

_InitRequest = messages["Ydb.Topic.StreamWriteMessage.InitRequest"]


class WriteInit(Struct, frozen=True):
    """Parsed ``InitRequest`` of a StreamWrite. ``producer`` is empty for a session without deduplication. ``partition``
    is the one the client insists on, ``generation`` the one in which the client located the partition at this node."""

    path: str
    producer: bytes
    partition: int | None
    generation: int | None
    meta: dict[str, str]

    def encoded_meta(self, address: str) -> bytes:
        """Encode the session's metadata as stored with batches. Like a YDB server, adds the client's address."""
        encoded: bytes = _InitRequest(write_session_meta={**self.meta, "_ip": address}).SerializeToString(
            deterministic=True
        )
        return encoded


def parse_init(request: Any) -> WriteInit:
    """Parse an ``InitRequest``. Raises YdbError."""
    which = request.WhichOneof("partitioning")
    producer, group = request.producer_id, request.message_group_id
    for name in (producer, group):
        if len(name) > MAX_NAME:
            raise bad_request(f"a producer's name has at most {MAX_NAME} characters, this one has {len(name)}")
    if producer and group and producer != group:
        raise bad_request("message_group_id must be the same as producer_id, or empty")
    meta = dict(request.write_session_meta)
    if sum(len(key) + len(value) for key, value in meta.items()) > MAX_META_BYTES // 4:
        # In characters, each of which takes up to four bytes.
        raise bad_request(f"the session's metadata is longer than {MAX_META_BYTES // 4} characters")
    partition = generation = None
    if which == "partition_id":
        partition = request.partition_id
    elif which == "partition_with_generation":
        partition = request.partition_with_generation.partition_id
        generation = request.partition_with_generation.generation
    if partition is not None and not 0 <= partition < 2**31:
        raise bad_request(f"there is no partition {partition}")
    return WriteInit(request.path, (group or producer).encode(), partition, generation, meta)
