"""A topic's settings as the hot path needs them: parsed once, and dropped when they change."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import force_setattr

from bridges.catalog.topics.catalog import Catalog
from bridges.catalog.topics.config import MAX_MESSAGE_BYTES
from bridges.catalog.topics.topic import Change, TopicKind

_FOREVER = 2**63 - 1


class TopicRules(Struct, frozen=True):
    """The limits that a batch from a client of any protocol must satisfy. Sizes in bytes, times in ms."""

    max_message_bytes: int
    log_append_time: bool
    before_max_ms: int
    after_max_ms: int
    compacted: bool
    internal: bool = False
    max_record_bytes: int = _FOREVER
    """This field and the next two: the limits for formats other than Kafka's. They apply only where an operator
    configured them."""
    record_before_ms: int = _FOREVER
    record_after_ms: int = _FOREVER
    glance_bytes: int = -1
    """A batch of Kafka's of at most so many bytes is checked by its times alone; derived, -1 where the rules demand
    more of each batch."""

    def __post_init__(self) -> None:
        if not (self.log_append_time or self.compacted or self.bounds_past or self.internal):
            force_setattr(self, "glance_bytes", self.max_message_bytes)

    @property
    def bounds_past(self) -> bool:
        """Return whether a record can be too old."""
        return self.before_max_ms != _FOREVER


UNBOUNDED = TopicRules(_FOREVER, False, _FOREVER, _FOREVER, False)
"""The rules of a topic that demands nothing."""

_SIZE = "max.message.bytes"
_TYPE = "message.timestamp.type"
_BEFORE = "message.timestamp.before.max.ms"
_AFTER = "message.timestamp.after.max.ms"
_POLICY = "cleanup.policy"


def demands(config: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a topic's configuration that :class:`TopicRules` need, for a hidden topic whose records will
    become another topic's."""
    return {key: config[key] for key in (_SIZE, _TYPE, _BEFORE, _AFTER, _POLICY) if key in config}


class RulesCache:
    """Rules by topic name; a change of the catalog drops the rules that it may affect."""

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

    def rules_of(self, topic: str) -> TopicRules:
        """Return the rules of an existing topic, hidden ones included. Raises TopicNotFound."""
        rules = self._rules.get(topic)
        if rules is None:
            effective, configured = self._catalog.effective, self._catalog.configured
            rules = self._rules[topic] = TopicRules(
                max_message_bytes=min(effective(topic, _SIZE), MAX_MESSAGE_BYTES),
                log_append_time=effective(topic, _TYPE) == "LogAppendTime",
                before_max_ms=effective(topic, _BEFORE),
                after_max_ms=effective(topic, _AFTER),
                compacted="compact" in effective(topic, _POLICY),
                internal=self._catalog.kind_of(topic) is TopicKind.INTERNAL,
                max_record_bytes=configured(topic, _SIZE, _FOREVER),
                record_before_ms=configured(topic, _BEFORE, _FOREVER),
                record_after_ms=configured(topic, _AFTER, _FOREVER),
            )
        return rules
