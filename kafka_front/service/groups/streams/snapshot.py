"""The stored form of a streams group: that of a consumer group, with another first line and the topology in its
head."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kafka_front.service.groups.consumer.snapshot import decode_lines, encode_group
from kafka_front.service.groups.streams.group import StreamsGroup
from kafka_front.service.groups.streams.topology import Topology

_MARK = b"kafka streams group\n"


def encode_streams(group: StreamsGroup, to_unix: Callable[[int], int]) -> bytes:
    """Return the stored form of a group; ``to_unix`` converts times of the coordinator's clock."""
    more = {"topology": group.topology, "standbys": group.standbys}
    return encode_group(group, to_unix, _MARK, more)


def decode_streams(group_id: str, blob: bytes, from_unix: Callable[[int], int]) -> StreamsGroup | None:
    """Read a stored group; None if it is of another kind. Raises SnapshotError."""

    def more(group: StreamsGroup, head: dict[str, object]) -> None:
        topology = msgspec.convert(head["topology"], Topology | None)
        if topology is not None:
            group.takes(topology)
        group.standbys = msgspec.convert(head["standbys"], int)

    return decode_lines(group_id, blob, from_unix, _MARK, StreamsGroup, more)
