"""Settings of a store."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from anabranch_kit.disk.files import Files
from sbp_back.range_server.store.layout.format import BLOCK

KIB = 1024
MIB = 1024 * KIB
OBJECTS = "objects"
"""Directory in a store's directory whose log is in object storage: the local part of it."""
MOVED = "moved"
"""Directory in a store's directory whose old data is in object storage: the list of that data."""
MIN_SEGMENT_BYTES = 64 * KIB
MAX_SEGMENT_BYTES = 2 * 1024 * MIB
"""Positions inside a segment are kept in 32 bits."""
EVACUATE_KEEP = 2
"""The newest segments (the one being written included) that are never evacuated."""
READ_THREADS = 2
"""Threads for reads that miss the page cache, and as many for reads of objects."""


class StoreOptions(Struct):
    """Limits and choices of one store; sizes in bytes. ``validate`` raises ``ValueError``."""

    segment_bytes: int = 256 * MIB
    durability: Literal["fsync", "os", "object"] = "fsync"
    """``fsync``: acknowledged data survives power loss. ``os``: it survives the death of the process only. ``object``:
    it is in the object store at ``objects``, and needs nothing of this machine."""

    objects: str = ""
    object_log: str = "0"
    """Name of this server's log in ``objects``: each server that shares them needs its own."""

    object_linger_seconds: float = 0.05
    """With ``object``: least seconds between groups, unless they are full."""

    object_index_every: int = 1000
    """Objects behind the last index after which the next one is written."""

    object_index_seconds: float = 600.0
    """Or seconds after it, if anything has changed."""

    object_grace_seconds: float = 600.0
    """Seconds after which objects that no index names any more are deleted."""

    object_cache_bytes: int = 4096 * MIB
    """Most bytes of objects kept on the local disk; at least three segments."""

    object_range_bytes: int = 64 * MIB
    """Entries of a range that lie among others' are rewritten as an object of about this size, at most twice as
    large.
    """

    object_mixed_bytes: int = 1024 * MIB
    """Bytes that may lie among others' before ranges get smaller objects."""

    local_bytes: int | None = None
    """With ``fsync`` and ``objects``: bytes of the log above which old data is moved there, the oldest first; None:
    never.
    """

    group_max_bytes: int = 8 * MIB
    """A group takes no further append once it is this large (one larger append still makes a group)."""

    group_max_records: int = 4096

    retention_bytes: int | None = None
    """Upper bound of the log's size on disk: beyond it the oldest data is trimmed, whichever stream it belongs to."""

    low_water_bytes: int | None = None
    """Appends are refused while the file system has less free space than this (default: a segment and 32 MiB), so
    that trims, seals, deletions and the evacuation of old segments can still be written."""

    control_reserve_bytes: int = MIB
    """Allocated space ahead of the write position that only control records may use (at most 1/8 of a segment)."""

    allocate_step_bytes: int = 16 * MIB
    """Disk space is reserved in steps of this size ahead of the write position."""

    zero_ahead_bytes: int = 16 * MIB
    """Distance ahead of the write position up to which zeros are written in the background; 0 turns it off. With ``os``
    it is off: only flushed writes gain by it.
    """

    evacuate_below: float = 0.25
    """A sealed segment with a smaller share of live bytes is evacuated: the rest is copied to the tail."""

    evacuate_batch_bytes: int = MIB
    """Bytes that evacuation keeps in flight."""

    max_open_segments: int = 256
    maintenance_seconds: float = 1.0
    """Seconds between checks of free space and reclaiming."""

    accept_data_loss: bool = False
    """Open a store whose acknowledged data is damaged by cutting the log before the damage."""

    cluster_id: str | None = None
    """Written into a new store; an existing store of another cluster is refused."""

    server_id: int | None = None
    """Like ``cluster_id``; None leaves an existing store's id as it is (-1 in a new one: not yet known)."""

    files: Files = field(default_factory=Files)

    def validate(self) -> None:
        if not MIN_SEGMENT_BYTES <= self.segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(f"segment_bytes must be from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}")
        if self.segment_bytes % 4096:
            raise ValueError("segment_bytes must be a multiple of 4096")
        if self.durability not in ("fsync", "os", "object"):
            raise ValueError("durability must be 'fsync', 'os' or 'object'")
        if self.durability == "object":
            if not self.objects:
                raise ValueError("durability 'object' needs the place of the objects: set sbp.objects")
            if self.object_cache_bytes < 3 * self.segment_bytes:
                raise ValueError("the cache of objects must have room for three segments")
        if self.objects and not 1 <= self.object_range_bytes <= MAX_SEGMENT_BYTES // 2:
            raise ValueError(f"object_range_bytes must be from 1 to {MAX_SEGMENT_BYTES // 2}")
        if self.group_max_bytes < 1 or self.group_max_records < 1:
            raise ValueError("group limits must be positive")
        if not 0.0 <= self.evacuate_below < 1.0:
            raise ValueError("evacuate_below must be at least 0 and below 1")
        if self.cluster_id is not None and len(self.cluster_id.encode()) > 36:
            raise ValueError("cluster_id must be at most 36 bytes of UTF-8")

    @property
    def moves(self) -> bool:
        """Return whether old data of a log on disk is in object storage, or may get there."""
        return self.durability == "fsync" and bool(self.objects)

    @property
    def durable(self) -> bool:
        """Return whether everything that is acknowledged survives loss of power."""
        return self.durability != "os"

    @property
    def zero_ahead(self) -> int:
        return self.zero_ahead_bytes if self.durable else 0

    @property
    def low_water(self) -> int:
        return self.segment_bytes + 32 * MIB if self.low_water_bytes is None else self.low_water_bytes

    @property
    def largest_entry(self) -> int:
        """Return the bytes of the longest entry that fits a segment, behind the headers of a group of its own."""
        return self.segment_bytes - 2 * BLOCK - self.control_reserve

    @property
    def control_reserve(self) -> int:
        reserve = min(self.control_reserve_bytes, self.segment_bytes // 8)
        return max(reserve - reserve % 4096, 4096)
