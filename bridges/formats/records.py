"""Records as fronts exchange them when one protocol reads what another wrote (design, section 3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class Record:
    """One record; ``timestamp`` in ms since the epoch, -1 unknown; ``offset`` -1 until it is stored.

    ``producer`` and ``sequence`` name who wrote it where the writer's protocol says so.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    timestamp: int = -1
    offset: int = -1
    producer: str | None = None
    sequence: int = -1


class StoredBatch(NamedTuple):
    """A batch as it lies in the log: offsets ``[base_offset, end_offset)``, format flags, the format's own bytes."""

    base_offset: int
    end_offset: int
    flags: int
    payload: Buffer
