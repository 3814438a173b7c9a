"""The parts of a running store that its reader, its maintenance and the store itself share. Owned by the event loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from sbp_back.range_server.store.index import StoreState
from sbp_back.range_server.store.layout.checkpoint import Kept
from sbp_back.range_server.store.options import MOVED, StoreOptions
from sbp_back.range_server.store.segment import OpenSegments, Segment
from sbp_back.range_server.store.stats import StoreStats

T = TypeVar("T")


class Background(Protocol):
    """Executor of ``work`` on another thread; then calls ``then`` on the event loop with its result or its
    ``OSError``.
    """

    def __call__(self, work: Callable[[], T], then: Callable[[T | OSError], None], /) -> None: ...


class Log:
    """State, segments in order of their bases (the last one is being written), and the positions that are known to be
    on disk.
    """

    def __init__(self, directory: Path, options: StoreOptions, state: StoreState, segments: list[Segment]) -> None:
        self.directory = directory
        self.options = options
        self.files = options.files
        self.state = state
        self.segments = segments
        self.next_seq = 1
        """Number of the group after the last one that was applied."""
        self.newest: Kept | None = None
        """The newest durable checkpoint."""
        self.fallback: Kept | None = None
        """The checkpoint before it, from which the log could be opened if the newest were damaged."""
        self.elsewhere: list[Segment] = []
        """Objects of ranges to which old entries were moved, from segments that may be gone."""
        self.opened = OpenSegments(options.files, options.max_open_segments)
        self.stats = StoreStats()

    @property
    def wal(self) -> Path:
        return self.directory / "wal"

    @property
    def ckpt(self) -> Path:
        return self.directory / "ckpt"

    @property
    def moved(self) -> Path:
        return self.directory / MOVED

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def checkpoint_lsn(self) -> int:
        """Return the position of the newest durable checkpoint; 0 when there is none."""
        return 0 if self.newest is None else self.newest.lsn

    @property
    def fallback_lsn(self) -> int:
        """Return the position of the durable checkpoint before the newest; 0 when there is none: recovery then needs
        the whole log.
        """
        return 0 if self.fallback is None else self.fallback.lsn

    @property
    def lsn(self) -> int:
        """Return the log position behind the last group that was applied."""
        return self.active.base + self.active.used
