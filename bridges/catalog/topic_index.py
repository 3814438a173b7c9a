"""Indexes of topics in memory: by name in every protocol, and by id."""

from __future__ import annotations

from collections.abc import Mapping

from bridges.catalog.names import collision_key
from bridges.catalog.topic import NameCollision, Topic, TopicExists


class TopicIndex:
    """The existing topics, and the names that are taken.

    ``all``, ``listed`` and ``hidden`` are by canonical name. ``by_id`` and ``by_name`` (protocol and name there) have
    listed topics only; ``by_id`` uses the 16 bytes that requests carry, which are cheap to look up. ``partitions`` is
    the number of partitions of all topics.
    """

    def __init__(self) -> None:
        self.all: dict[str, Topic] = {}
        self.listed: dict[str, Topic] = {}
        self.hidden: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self.by_name: dict[tuple[str, str], Topic] = {}
        self.partitions = 0
        self.spent = 0
        self._taken: dict[str, Topic] = {}  # by collision key, also while a topic is being created or deleted

    def check_free(self, name: str) -> None:
        """Raise TopicExists or NameCollision if no topic can be named ``name``."""
        taken = self._taken.get(collision_key(name))
        if taken is None:
            return
        if taken.name == name:
            state = "exists" if name in self.all else "is being created or deleted"
            raise TopicExists(f"topic {name!r} {state}")
        raise NameCollision(f"topic {name!r} and the existing {taken.name!r} differ only in '.' and '_'")

    def check_names(self, name: str, names: Mapping[str, str]) -> None:
        """Raise NameCollision if one of the protocols' names for this topic belongs to another topic."""
        for protocol, other in names.items():
            owner = self.by_name.get((protocol, other))
            if owner is not None:
                raise NameCollision(f"{protocol} would call topic {name!r} {other!r}, as it calls {owner.name!r}")

    def take_names(self, topic: Topic) -> None:
        """Reserve the names of a topic that is being created."""
        self._taken[collision_key(topic.name)] = topic
        for protocol, other in topic.names.items():
            self.by_name[protocol, other] = topic

    def give_names_back(self, topic: Topic) -> None:
        """Release the names of a topic that was deleted, or not created. A name that another topic has by now stays
        with it."""
        if self._taken.get(collision_key(topic.name)) is topic:
            del self._taken[collision_key(topic.name)]
        for key in topic.names.items():
            if self.by_name.get(key) is topic:
                del self.by_name[key]

    def add(self, topic: Topic) -> None:
        """Add a topic that exists from now on, or again."""
        self.all[topic.name] = topic
        if topic.kind.listed:
            self.listed[topic.name] = self.by_id[topic.topic_id.bytes] = topic
        else:
            self.hidden[topic.name] = topic
        self.partitions += len(topic.partitions)
        self.spent += topic.spent
        self.take_names(topic)

    def remove(self, topic: Topic) -> None:
        """Remove a topic from all look-ups. Its name stays taken (:meth:`give_names_back`)."""
        del self.all[topic.name]
        if topic.kind.listed:
            del self.listed[topic.name]
            del self.by_id[topic.topic_id.bytes]
        else:
            del self.hidden[topic.name]
        self.partitions -= len(topic.partitions)
        self.spent -= topic.spent
        for key in topic.names.items():
            if self.by_name.get(key) is topic:
                del self.by_name[key]
