"""The topics that a node knows, in memory: found by name in every protocol, by id and by partition."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bridges.catalog.config_types import ConfigSource, ConfigValue, InvalidConfig
from bridges.catalog.topics import config as topic_config
from bridges.catalog.topics.lineage import PartitionInfo
from bridges.catalog.topics.names import collision_key
from bridges.catalog.topics.topic import (
    NOT_IMPORTING,
    NameCollision,
    Topic,
    TopicExists,
    TopicKind,
    TopicNotFound,
    partition_of,
)


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
        self.taken: dict[str, Topic] = {}  # by collision key, also while a topic is being created or deleted

    def check_free(self, name: str) -> None:
        """Raise TopicExists or NameCollision if no topic can be named ``name``."""
        taken = self.taken.get(collision_key(name))
        if taken is None:
            return
        if taken.name == name:
            state = "already exists" if name in self.all else "is being created or deleted"
            raise TopicExists(f"Topic '{name}' {state}.")
        raise NameCollision(f"topic {name!r} and the existing {taken.name!r} differ only in '.' and '_'")

    def check_names(self, name: str, names: Mapping[str, str]) -> None:
        """Raise NameCollision if one of the protocols' names for this topic belongs to another topic."""
        for protocol, other in names.items():
            owner = self.by_name.get((protocol, other))
            if owner is not None:
                raise NameCollision(f"{protocol} would call topic {name!r} {other!r}, as it calls {owner.name!r}")

    def take_names(self, topic: Topic) -> None:
        """Reserve the names of a topic that is being created."""
        self.taken[collision_key(topic.name)] = topic
        for protocol, other in topic.names.items():
            self.by_name[protocol, other] = topic

    def give_names_back(self, topic: Topic) -> None:
        """Release the names of a topic that was deleted, or not created. A name that another topic has by now stays
        with it."""
        if self.taken.get(collision_key(topic.name)) is topic:
            del self.taken[collision_key(topic.name)]
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


class TopicLookup:
    """Answers about existing topics and their configuration; ``static`` is the node-level configuration from the node's
    settings."""

    def __init__(self, static: Mapping[str, str]) -> None:
        self._static = static
        self.index = TopicIndex()
        self._node_config: dict[str, str] = {}

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Return the listed topics by canonical name (a live view)."""
        return MappingProxyType(self.index.listed)

    @property
    def hidden(self) -> Mapping[str, Topic]:
        """Return the topics of kinds that are not listed, by canonical name (a live view).

        Only the maker of a hidden topic knows how to use it, so nothing else leads to it: not the names, ids and
        partitions that clients request, and not retention. :meth:`bridges.log.logs.Logs.hidden` returns its logs.
        Hidden topics are created and deleted like others, and never change otherwise.
        """
        return MappingProxyType(self.index.hidden)

    @property
    def by_id(self) -> Mapping[bytes, Topic]:
        """Return the listed topics by the 16 bytes of their ids (a live view)."""
        return MappingProxyType(self.index.by_id)

    @property
    def partition_count(self) -> int:
        return self.index.partitions

    def topic(self, name: str) -> Topic:
        """Return the listed topic named ``name``. Raises TopicNotFound."""
        return self._require(self.index.listed, name)

    @staticmethod
    def _require(topics: Mapping[str, Topic], name: str) -> Topic:
        found = topics.get(name)
        if found is None:
            raise TopicNotFound(f"there is no topic {name!r}")
        return found

    def by_name(self, protocol: str, name: str) -> Topic | None:
        return self.index.by_name.get((protocol, name))

    def stream_of(self, topic: str, partition: int) -> int | None:
        """Return the SBP stream of a partition, or None if there is no such partition."""
        found = self.partition(topic, partition)
        return None if found is None else found.stream_id

    def hidden_stream_of(self, topic: str, partition: int) -> int | None:
        """Return the SBP stream of a hidden topic's partition, or None if there is no such partition."""
        found = partition_of(self.index.hidden.get(topic), partition)
        return None if found is None else found.stream_id

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """Return a partition of a listed topic, or None if there is no such partition."""
        return partition_of(self.index.listed.get(topic), partition)

    def sealed_as(self, topic: str, partition: int) -> tuple[tuple[int, ...], int | None] | None:
        """Return (children, final end if it is known) of a sealed partition; None for an active one."""
        found = self.partition(topic, partition)
        return None if found is None or found.is_active else (found.children, found.end)

    def effective(self, topic: str, key: str) -> Any:
        """Return a topic's effective configuration value, typed (see
        :func:`bridges.catalog.topics.config.effective`)."""
        return topic_config.effective(key, self._require(self.index.all, topic).config, self._node_config, self._static)

    def defaults(self) -> dict[str, ConfigValue]:
        """Return the configuration of a topic without overrides, by key."""
        static = self._static
        return {key: topic_config.resolve(key, {}, self._node_config, static) for key in topic_config.TOPIC_CONFIGS}

    def configured(self, topic: str, key: str, otherwise: Any) -> Any:
        """Return the value of :meth:`effective` if an operator has configured it, for the topic or the node; else
        ``otherwise``."""
        config = self._require(self.index.all, topic).config
        found = topic_config.resolve(key, config, self._node_config, self._static)
        return otherwise if found.source is ConfigSource.DEFAULT else self.effective(topic, key)

    def kind_of(self, topic: str) -> TopicKind:
        """Return the kind of a topic, hidden ones included. Raises TopicNotFound."""
        return self._require(self.index.all, topic).kind

    def id_of(self, topic: str) -> bytes | None:
        """Return the id of a topic, hidden ones included; None if there is no topic with that name."""
        found = self.index.all.get(topic)
        return None if found is None else found.topic_id.bytes

    def place_of(self, topic: str, partition: int) -> tuple[bytes, int] | None:
        """Return the topic id and partition number that decide who owns a partition, hidden topics included; None if
        there is no such topic."""
        found = self.index.all.get(topic)
        return None if found is None else found.place(partition)

    def import_epoch(self, topic: str, partition: int) -> int:
        """Return the run of a migration that may write to a partition (see :attr:`Topic.import_epoch`)."""
        found = self.index.listed.get(topic)
        return NOT_IMPORTING if found is None else found.import_epoch

    @property
    def node_config(self) -> Mapping[str, str]:
        """Return the node-level configuration set while running (a live view); bridges/catalog/topics/config.py has
        the keys."""
        return MappingProxyType(self._node_config)

    def check_config(self, name: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Return the topic's configuration after ``changes`` (None removes a key). Raises TopicNotFound,
        InvalidConfig."""
        merged = dict(self.topic(name).config)
        for key, value in changes.items():
            if value is not None:
                merged[key] = value
            elif key in topic_config.TOPIC_CONFIGS:
                merged.pop(key, None)
            else:
                raise InvalidConfig(f"{key!r} is not a topic configuration")
        return topic_config.validate(merged)
