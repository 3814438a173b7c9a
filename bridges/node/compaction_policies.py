"""Compaction policies of topics: by their configuration, except while, or shortly after, a topic is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bridges.log.compaction.cleaner import CompactionPolicy

if TYPE_CHECKING:
    from bridges.catalog.topic import Topic
    from bridges.catalog.topics import Catalog


class Policies:
    """The compaction policies of all topics.

    ``holds``: whether a topic must stay as it is for now (:class:`bridges.node.retention.HandedOver`).
    """

    def __init__(self, catalog: Catalog, holds: Callable[[Topic], bool]) -> None:
        self._catalog = catalog
        self._holds = holds

    def of(self, name: str) -> CompactionPolicy | None:
        """Return the policy of a topic, None if it is not compacted, or not now. Raises TopicNotFound."""
        effective = self._catalog.effective
        if "compact" not in effective(name, "cleanup.policy") or self._holds(self._catalog.topic(name)):
            return None
        return CompactionPolicy(
            effective(name, "min.cleanable.dirty.ratio"),
            effective(name, "min.compaction.lag.ms"),
            effective(name, "max.compaction.lag.ms"),
            effective(name, "delete.retention.ms"),
        )
