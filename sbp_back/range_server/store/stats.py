"""Counters and gauges of a store, for metrics."""

from __future__ import annotations

from msgspec import Struct, field


class Requests(Struct):
    """Requests of one kind to the object storage, counting each try: ``answered``, or ``failed`` (503, or no answer in
    time, so that their effect is unknown); ``seconds`` until either; ``bytes`` of objects, both ways.
    """

    answered: int = 0
    failed: int = 0
    seconds: float = 0.0
    bytes: int = 0


class StoreStats(Struct):
    """Counters since the store was opened, and gauges; bytes and seconds. Read them on the event loop."""

    appends: int = 0
    """Entries that became durable."""
    append_bytes: int = 0
    refused_appends: int = 0
    """Append calls answered with an error."""
    pending_bytes: int = 0
    """Bytes of entries that wait to become durable."""
    stuck_seconds: float = 0.0
    """Seconds since a waiting entry last became durable."""
    groups: int = 0
    group_bytes: int = 0
    """Bytes written to the log, headers and padding included."""
    flush_seconds: float = 0.0
    flush_seconds_max: float = 0.0
    reads: int = 0
    reads_from_disk: int = 0
    """Reads that had to wait for the disk in the thread pool."""
    read_bytes: int = 0
    damaged_entries: int = 0
    """Entries found damaged when read."""
    segments: int = 0
    log_bytes: int = 0
    """Size of the segments up to the end of their data."""
    live_bytes: int = 0
    """Bytes of entries that can still be read."""
    disk_free: int = 0
    disk_full: bool = False
    """Appends are being refused for lack of space."""
    segments_deleted: int = 0
    evacuated_bytes: int = 0
    packed_bytes: int = 0
    """Bytes of objects of ranges that were written."""
    moved_bytes: int = 0
    """Part of ``live_bytes`` that is read from objects, and no more on the disk."""
    local_limit_bytes: int = 0
    """Most bytes that the log is to have on the disk; 0: no bound."""
    moving_fails: bool = False
    """Old data cannot be moved to objects for now, and stays on the disk."""
    moving_failures: int = 0
    """Failed attempts to move it."""
    replacing_bytes: int = 0
    """Bytes of entries that were written in the place of others."""
    checkpoints: int = 0
    maintenance_errors: int = 0
    """Index files or checkpoints that could not be written, or segments not removed; each is retried."""
    last_maintenance_error: str = ""
    recovery_seconds: float = 0.0
    recovery_scanned_bytes: int = 0
    recovery_cut_bytes: int = 0
    zeroed_bytes: int = 0
    objects: dict[str, Requests] = field(default_factory=dict)
    """Requests by operation, where data is kept in objects."""
