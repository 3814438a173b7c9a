"""Checks of the data directory: that it is usable, what its file system supports, how fast and how full its disk is."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from anabranch_kit.disk.files import Files, file_system_of
from anabranch_kit.disk.held import HeldFile
from bridges.node import promises
from bridges.node.finding import Finding, fine, note, warning, wrong
from bridges.node.settings.config import Settings
from bridges.node.storage import backend

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "virtiofs"})
_VOLATILE = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_FLUSHES = 32
_BLOCK = bytes(4096)
_SLOW_S = 0.020
_UNBELIEVABLE_S = 0.000_03
"""No device has data on stable media after so short a time."""
_LITTLE = 0.1
"""Free fraction of a file system below which it counts as nearly full."""


def check(settings: Settings) -> Iterator[Finding]:
    """Check the data directory of ``settings``, whether or not it exists yet."""
    data = settings.data_dir
    holder = holder_of(data)
    place = nearest(data)
    if holder is not None:
        yield fine("data directory", f"{data} is in use by process {holder}")
    elif not os.access(place, os.W_OK | os.X_OK):
        remedy = f"let this user write there (chown), or choose another one with data_dir; user id {os.geteuid()}"
        yield wrong("data directory", f"{place} cannot be written to", remedy)
        return
    else:
        yield fine("data directory", f"{data} is free" if data.is_dir() else f"{data} can be made")
    yield from check_kind(data, file_system_of(place))
    yield from check_space(settings, place)
    if os.access(place, os.W_OK | os.X_OK):
        yield from probe(place)
    for limit in promises.of_node(settings.sbp):
        if limit.chosen:
            yield warning(
                "durability", limit.sentence, "change what chose it if that is not meant (docs/operations.md)"
            )
        else:
            yield note("durability", limit.sentence)


def nearest(data: Path) -> Path:
    """Return ``data``, or the nearest existing directory above it."""
    place = data.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return place


def holder_of(data: Path) -> str | None:
    """Return the process that uses the data directory, None if none does."""
    path = data / "lock"
    if not path.is_file():
        return None
    try:
        HeldFile(path).release()
    except BlockingIOError:
        return path.read_text("ascii", "replace").strip()[:20] or "unknown"
    except OSError:
        return None  # the other checks report the cause
    return None


def check_kind(data: Path, kind: str) -> Iterator[Finding]:
    """Check ``kind``, the name of the file system that ``data`` is on."""
    if kind in _VOLATILE:
        remedy = "put data_dir on a disk; this is for tests"
        yield warning("file system", f"{data} is on {kind}, in memory: all of it is gone with the machine", remedy)
    elif kind in _NETWORK:
        yield warning(
            "file system",
            f"{data} is on {kind}, over the network: flushes take its round trips, and locks and flushes are only as "
            "good as its server",
            "prefer a local disk, or sbp.durability=object",
        )
    else:
        yield fine("file system", kind or "of a kind that the system does not name")


def check_space(settings: Settings, place: Path) -> Iterator[Finding]:
    """Check the free bytes and files."""
    status = os.statvfs(place)
    free, size = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    low = backend.store_options(settings.sbp).low_water
    told = f"{free / 1e9:.1f} of {size / 1e9:.1f} GB are free"
    if free < low:
        yield wrong(
            "disk",
            f"{told}: below {low / 1e9:.1f} GB (sbp.low_water_bytes) appends are refused",
            "make room, or lower retention.ms and retention.bytes of topics: deleting works on a full disk",
        )
    elif free < size * _LITTLE:
        yield warning("disk", told, "watch it: appends are refused when it is full (sbp.low_water_bytes)")
    else:
        yield fine("disk", told)
    for key, held in (
        ("sbp.object_cache_bytes", settings.sbp.object_cache_bytes),
        ("sbp.local_bytes", settings.sbp.local_bytes),
    ):
        if settings.sbp.objects and held > size:
            yield warning(
                "disk",
                f"{key} is {held / 1e9:.1f} GB, more than the whole disk has: it fills the disk before it is kept",
                f"{key} below {size / 1e9:.1f} GB, with room for the rest of the log",
            )
    if status.f_files and status.f_favail < 1000:
        remedy = "remove small files; each segment, index and snapshot is one"
        yield warning("disk", f"only {status.f_favail} more files can be made", remedy)


def probe(place: Path) -> Iterator[Finding]:
    """Test the file system of ``place`` in a directory that is removed again."""
    try:
        with tempfile.TemporaryDirectory(prefix=".anabranch-doctor-", dir=place) as made:
            files = Files()
            for lack in files.probe(Path(made)):
                yield warning("file system", lack, "prefer ext4 or xfs on a local disk")
            yield from check_flushes(flush_times(files, Path(made)), volatile=file_system_of(place) in _VOLATILE)
    except OSError as error:
        remedy = "see whether the disk is full, read-only or failing (dmesg)"
        yield wrong("disk", f"writing to {place} failed: {error.strerror}", remedy)


def flush_times(files: Files, directory: Path, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return how many seconds each of some small writes took to reach stable media. Raises OSError."""
    fd = files.open(directory / "flushes", os.O_RDWR | os.O_CREAT)
    times = []
    try:
        for turn in range(_FLUSHES):
            begun = clock()
            files.write(fd, [_BLOCK], turn * len(_BLOCK), True)
            times.append(clock() - begun)
    finally:
        files.close(fd)
    return times


def check_flushes(times: list[float], *, volatile: bool) -> Iterator[Finding]:
    """Check how fast flushes are. ``times``: seconds that each flush took."""
    middle, longest = statistics.median(times), max(times)
    told = f"a flush takes {middle * 1000:.2f} ms (longest of {len(times)}: {longest * 1000:.1f} ms)"
    if volatile:
        yield fine("flushes", told)
    elif middle < _UNBELIEVABLE_S:
        yield warning(
            "flushes",
            f"{told}: no disk is that fast, so something answers before the data is safe",
            "make sure that the controller's or host's write cache survives a loss of power, or switch it off",
        )
    elif middle > _SLOW_S:
        yield warning(
            "flushes",
            f"{told}: every acknowledgement waits for one",
            "use an SSD with power-loss protection, or sbp.durability=os where a loss of power may cost data",
        )
    else:
        yield fine("flushes", told)
