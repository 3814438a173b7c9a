"""Checks of the machine's resources: file descriptors, memory, and other programs that parts of the product need."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from bridges.node.finding import Finding, fine, note, warning
from bridges.node.process import descriptors
from bridges.node.settings.config import Settings
from bridges.node.settings.quantities import format_size

_MIB = 1024**2
_PROCESS_BYTES = 64 * _MIB
"""Memory of an idle node."""


def check(settings: Settings) -> Iterator[Finding]:
    """Check this machine for a node with ``settings``."""
    yield from check_descriptors(settings, descriptors.raise_limit())
    yield from check_memory(settings, available_bytes())
    yield from check_java(shutil.which("java"), spark=_has_spark())


def check_descriptors(settings: Settings, allowed: int) -> Iterator[Finding]:
    """Check that ``allowed``, the process's limit of file descriptors, suffices for the connections."""
    _, lowered = descriptors.fit(settings, allowed)
    if lowered is None:
        yield fine("descriptors", f"{allowed} file descriptors are enough for the connections that are allowed")
    else:
        remedy = "allow more: LimitNOFILE= of a systemd unit, --ulimit nofile= of a container, ulimit -n of a shell"
        yield warning("descriptors", lowered, remedy)


def bounded_bytes(settings: Settings) -> int:
    """Return the approximate bound on a node's memory: its caches, its budget, one decompressed batch."""
    limits = settings.limits
    return (
        _PROCESS_BYTES
        + limits.connections_memory_bytes
        + limits.translated_bytes
        + limits.batch_inflated_bytes
        + settings.log.tail_cache_bytes
    )


def check_memory(settings: Settings, available: int | None) -> Iterator[Finding]:
    """Check that a node's memory bound fits into ``available`` bytes, None if unknown."""
    wanted = bounded_bytes(settings)
    if available is None:
        yield note("memory", f"a node may take about {format_size(wanted)}; how much there is cannot be told")
    elif wanted > available:
        yield warning(
            "memory",
            f"a node may take {wanted // _MIB} MiB, and there are {available // _MIB} MiB: under load it may be killed",
            "lower limits.connections_memory_bytes, limits.translated_bytes or log.tail_cache_bytes, or give it more",
        )
    else:
        yield fine("memory", f"a node takes {wanted // _MIB} MiB at most of {available // _MIB} MiB")


def available_bytes(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup"), page: int | None = None
) -> int | None:
    """Return the memory that the process can have: the machine's, or less if its control group says so; None if
    unknown.
    """
    found = []
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (groups / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # otherwise "max"
            found.append(int(text))
    return min(found, default=None)


def check_java(java: str | None, *, spark: bool) -> Iterator[Finding]:
    """Check for a Java runtime. ``java``: its path; ``spark``: whether the data pipeline is installed."""
    if spark and java is None:
        remedy = "install a Java runtime, 17 or newer, for archives, replays, audits and bulk migrations with Spark"
        yield note("java", "there is none, which Spark needs; a node does not", remedy)
    elif spark:
        yield fine("java", f"{java}, for Spark")


def _has_spark() -> bool:
    from importlib.util import find_spec

    return find_spec("pyspark") is not None
