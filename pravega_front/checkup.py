"""Checks of ``anabranch doctor`` on topics that Pravega's clients use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bridges.catalog.topics.topic import TopicKind
from bridges.node.finding import Finding, note, warning
from pravega_front.listeners import SEGMENT_STORE

if TYPE_CHECKING:
    from bridges.catalog.database.sql import Connection
    from bridges.node.front import NodeFacts

_EVENT_BYTES = 8 * 1024 * 1024
"""Largest event that Pravega's clients send in one append; larger ones come in pieces."""
_NAMED = 5
_REFUSED = 'writers end with "stream is sealed"'


def refused_appends(db: Connection, facts: NodeFacts) -> Iterator[Finding]:
    """Yield findings on topics whose configuration makes the node refuse the appends of Pravega's clients."""
    made = {topic for (topic,) in db.execute("SELECT topic FROM front_pravega_streams")}
    query = (
        "SELECT topic, topic_config.key, value FROM topic_config JOIN topics ON topics.name = topic"
        f" WHERE kind = '{TopicKind.USER.value}' AND topic_config.key IN ('cleanup.policy', 'max.message.bytes')"
        " ORDER BY topic"
    )
    others = []
    for topic, key, value in db.execute(query):
        if key == "cleanup.policy":
            if "compact" not in value:
                continue
            why, remedy = f"{value}, and events have no keys", f"anabranch topic alter {topic} --config {key}=delete"
        elif int(value) < _EVENT_BYTES:
            why, remedy = f"{value}, and events have up to {_EVENT_BYTES}", f"raise {key} of the topic"
        else:
            continue
        if topic in made:
            yield warning("pravega", f"stream {topic} refuses appends ({key}={why}): {_REFUSED}", remedy)
        elif key == "cleanup.policy":
            others.append(topic)
    if others and SEGMENT_STORE in facts.listening:
        named = ", ".join(others[:_NAMED]) + (", ..." if len(others) > _NAMED else "")
        yield note(
            "pravega",
            f"Pravega's clients cannot write {len(others)} topics with cleanup.policy=compact ({named}): {_REFUSED}",
        )
