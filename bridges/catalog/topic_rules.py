"""A topic's settings as the hot path needs them: parsed once, dropped when they change."""

from __future__ import annotations

from msgspec import Struct

from bridges.catalog.topic import Change, TopicKind
from bridges.catalog.topics import Catalog

_FOREVER = 2**63 - 1


class TopicRules(Struct, frozen=True):
    """What a batch is checked against that a client of any protocol sends. Sizes in bytes, times in ms."""

    max_message_bytes: int
    log_append_time: bool
    before_max_ms: int
    after_max_ms: int
    compacted: bool
    internal: bool = False

    @property
    def bounds_past(self) -> bool:
        """Whether any record can be too old."""
        return self.before_max_ms != _FOREVER


class RulesCache:
    """Rules by topic name; every change of the catalog drops what it may have changed."""

    __slots__ = ("_catalog", "_rules")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._rules: dict[str, TopicRules] = {}
        catalog.on_change.append(self._changed)

    def _changed(self, change: Change) -> None:
        if change.topic is None:
            self._rules.clear()
        else:
            self._rules.pop(change.topic.name, None)

    def of(self, topic: str) -> TopicRules:
        """Rules of an existing topic. Raises TopicNotFound."""
        rules = self._rules.get(topic)
        if rules is None:
            effective = self._catalog.effective
            rules = self._rules[topic] = TopicRules(
                max_message_bytes=effective(topic, "max.message.bytes"),
                log_append_time=effective(topic, "message.timestamp.type") == "LogAppendTime",
                before_max_ms=effective(topic, "message.timestamp.before.max.ms"),
                after_max_ms=effective(topic, "message.timestamp.after.max.ms"),
                compacted="compact" in effective(topic, "cleanup.policy"),
                internal=self._catalog.topic(topic).kind is TopicKind.INTERNAL,
            )
        return rules
