"""Rows of topics in the node's database: each function is a part of its caller's transaction."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence

from bridges.catalog.database.sql import Connection, upsert
from bridges.catalog.topics import former
from bridges.catalog.topics.lineage import KeyRange, PartitionInfo, related
from bridges.catalog.topics.topic import Beside, Import, Topic, TopicKind

_NAMES_PER_QUERY = 200
"""Topics in one query."""


def read_topics(connection: Connection, names: Collection[str] | None = None) -> list[Topic]:
    """Return all topics, of every kind, or those with these names."""
    if names is None:
        return _read_topics(connection, ())
    wanted = sorted(names)
    parts = (wanted[first : first + _NAMES_PER_QUERY] for first in range(0, len(wanted), _NAMES_PER_QUERY))
    return [topic for part in parts for topic in _read_topics(connection, part)]


def _read_topics(connection: Connection, which: Sequence[str]) -> list[Topic]:
    topics: dict[str, Topic] = {}
    among = f"IN ({', '.join('?' * len(which))})"
    of_topic = f"WHERE topic {among}" if which else ""
    for name, topic_id, created_ms, epoch, kind, first_number, beside in connection.execute(
        "SELECT name, topic_id, created_ms, epoch, kind, first_number, beside FROM topics "
        f"{f'WHERE name {among}' if which else ''}",
        which,
    ):
        topic = Topic(name, uuid.UUID(bytes=topic_id), [], {}, created_ms, epoch=epoch, kind=TopicKind(kind))
        topic.first_number = first_number
        if beside:
            other, *numbers = json.loads(beside)
            topic.beside = Beside(bytes.fromhex(other), tuple(numbers))
        topics[name] = topic
    for name, index, stream_id, low, high, spent, made, sealed, end, beside in connection.execute(
        "SELECT topic, idx, stream_id, key_low, key_high, spent, made_epoch, sealed_epoch, sealed_end, beside "
        f"FROM partitions {of_topic} ORDER BY idx",
        which,
    ):
        keys = KeyRange.from_stored(low, high)
        info = PartitionInfo(index, stream_id, keys, made, sealed, end, spent=bool(spent), beside=beside)
        topics[name].partitions.append(info)
        topics[name].spent += spent
    for name, key, value in connection.execute(f"SELECT topic, key, value FROM topic_config {of_topic}", which):
        topics[name].config[key] = value
    for protocol, other, name in connection.execute(f"SELECT protocol, name, topic FROM topic_names {of_topic}", which):
        topics[name].names[protocol] = other
    query = f"SELECT topic, migration, epoch, begun_ms, handed_over_ms, origin FROM imports {of_topic}"
    for name, *imported in connection.execute(query, which):
        topics[name].imported = Import(*imported)
    for topic in topics.values():
        topic.partitions = related(topic.partitions)
    return list(topics.values())


def insert_topic(connection: Connection, topic: Topic, partitions: Iterable[PartitionInfo]) -> None:
    """Insert a new topic, whose partitions are not in ``topic`` yet; sets ``topic.first_number``."""
    name = topic.names.get(former.PROTOCOL)
    topic.first_number = 0 if name is None else former.first_number(connection, name)
    beside = "" if topic.beside is None else json.dumps([topic.beside.topic_id.hex(), *topic.beside.partitions])
    connection.execute(
        "INSERT INTO topics (name, topic_id, created_ms, kind, first_number, beside) VALUES (?, ?, ?, ?, ?, ?)",
        (topic.name, topic.topic_id.bytes, topic.created_ms, topic.kind.value, topic.first_number, beside),
    )
    insert_partitions(connection, topic.name, partitions)
    _insert_config(connection, topic.name, topic.config)
    connection.executemany(
        "INSERT INTO topic_names VALUES (?, ?, ?)",
        [(protocol, other, topic.name) for protocol, other in topic.names.items()],
    )
    if (one := topic.imported) is not None:
        connection.execute(
            "INSERT INTO imports (topic, migration, epoch, begun_ms, origin) VALUES (?, ?, ?, ?, ?)",
            (topic.name, one.migration, one.epoch, one.begun_ms, one.origin),
        )


def delete_topic(connection: Connection, topic: Topic) -> None:
    """Delete the topic and its rows here; its streams are marked for deletion."""
    connection.executemany(
        "INSERT INTO doomed_streams VALUES (?)", [(partition.stream_id,) for partition in topic.partitions]
    )
    if (name := topic.names.get(former.PROTOCOL)) is not None:
        former.remember(connection, name, topic.first_number + len(topic.partitions))
    connection.execute("DELETE FROM topics WHERE name = ?", (topic.name,))


def insert_partitions(connection: Connection, topic: str, infos: Iterable[PartitionInfo]) -> None:
    connection.executemany(
        "INSERT INTO partitions (topic, idx, stream_id, key_low, key_high, made_epoch, sealed_epoch, beside) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (topic, one.index, one.stream_id, *one.keys.stored, one.made_epoch, one.sealed_epoch, one.beside)
            for one in infos
        ],
    )


def seal_partitions(connection: Connection, topic: str, numbers: Iterable[int], epoch: int) -> None:
    """Store that partitions take no more appends from ``epoch`` on; their ends are stored later."""
    connection.executemany(
        "UPDATE partitions SET sealed_epoch = ? WHERE topic = ? AND idx = ?",
        [(epoch, topic, number) for number in numbers],
    )


def spend_partitions(connection: Connection, topic: str, numbers: Iterable[int]) -> None:
    """Store that everything in these sealed partitions was trimmed."""
    connection.executemany(
        "UPDATE partitions SET spent = 1 WHERE topic = ? AND idx = ?", [(topic, number) for number in numbers]
    )


def store_epoch(connection: Connection, topic: str, epoch: int) -> None:
    """Store the topic's epoch: the number of changes of its set of partitions."""
    connection.execute("UPDATE topics SET epoch = ? WHERE name = ?", (epoch, topic))


def store_import_epoch(connection: Connection, topic: str, epoch: int) -> None:
    """Store the epoch of another run that has taken the topic."""
    connection.execute("UPDATE imports SET epoch = ? WHERE topic = ?", (epoch, topic))


def store_import_end(connection: Connection, topics: Iterable[str], now_ms: int) -> None:
    """Store that all of ``topics`` are handed over."""
    connection.executemany("UPDATE imports SET handed_over_ms = ? WHERE topic = ?", [(now_ms, one) for one in topics])


def replace_config(connection: Connection, topic: str, config: Mapping[str, str]) -> None:
    connection.execute("DELETE FROM topic_config WHERE topic = ?", (topic,))
    _insert_config(connection, topic, config)


def _insert_config(connection: Connection, topic: str, config: Mapping[str, str]) -> None:
    connection.executemany(
        "INSERT INTO topic_config VALUES (?, ?, ?)", [(topic, key, value) for key, value in config.items()]
    )


def read_node_config(connection: Connection) -> dict[str, str]:
    """Return the node-level configuration that was set while running."""
    return dict(connection.execute("SELECT key, value FROM node_config"))


def change_node_config(connection: Connection, changes: Mapping[str, str | None]) -> None:
    """Set keys, and remove those whose value is None."""
    for key, value in changes.items():
        if value is None:
            connection.execute("DELETE FROM node_config WHERE key = ?", (key,))
        else:
            connection.execute(upsert("node_config", "key", "value"), (key, value))
