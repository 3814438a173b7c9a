"""Which topics are compacted, and how: by their configuration, unless they are brought from elsewhere, or were just."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bridges.log.compaction.cleaner import CompactionPolicy

if TYPE_CHECKING:
    from bridges.catalog.topic import Topic
    from bridges.catalog.topics import Catalog


class Policies:
    """``holds``: whether a topic has to stay as it is for now (:class:`bridges.node.retention.HandedOver`)."""

    def __init__(self, catalog: Catalog, holds: Callable[[Topic], bool]) -> None:
        self._catalog = catalog
        self._holds = holds

    def of(self, name: str) -> CompactionPolicy | None:
        """That of a topic; None for one that is not compacted, or not now. Raises TopicNotFound."""
        effective = self._catalog.effective
        if "compact" not in effective(name, "cleanup.policy") or self._holds(self._catalog.topic(name)):
            return None
        return CompactionPolicy(
            effective(name, "min.cleanable.dirty.ratio"),
            effective(name, "min.compaction.lag.ms"),
            effective(name, "max.compaction.lag.ms"),
            effective(name, "delete.retention.ms"),
        )
