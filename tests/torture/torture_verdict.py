"""Compares what producers and consumers were told with what the log holds at the end."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tests.torture.torture_load import GroupMember, Place, Promises, parse, payload

READ_SECONDS = 120.0
SHOWN = 20  # violations of one kind that are spelled out


@dataclass(slots=True)
class Verdict:
    """Counts, and every broken promise in words."""

    acknowledged: int = 0
    stored: int = 0
    duplicates_allowed: int = 0
    unacknowledged_stored: int = 0
    violations: list[str] = field(default_factory=list)


def read_log(bootstrap: str, topics: Mapping[str, int]) -> dict[Place, dict[int, bytes]]:
    """Every record of the topics (name -> partitions) by place and offset. Raises TimeoutError when reading stalls."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"verdict-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
        }
    )
    places = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
    log: dict[Place, dict[int, bytes]] = {place: {} for place in places}
    try:
        ends = {
            place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=30, cached=False) for place in places
        }
        missing = {place: end - low for place, (low, end) in ends.items() if end > low}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in missing])
        last = time.monotonic()
        while any(len(log[place]) < count for place, count in missing.items()):
            for message in consumer.consume(10_000, 0.5):
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                topic, partition, offset, value = (
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.value(),
                )
                assert topic is not None
                assert partition is not None
                assert offset is not None
                assert isinstance(value, bytes)
                log[topic, partition][offset] = value
                last = time.monotonic()
            if time.monotonic() - last > READ_SECONDS:
                found = sum(len(records) for records in log.values())
                raise TimeoutError(f"reading stopped at {found} of {sum(missing.values())} records")
    finally:
        consumer.close()
    return log


def few(kind: str, found: Sequence[str]) -> list[str]:
    shown = [f"{kind}: {text}" for text in found[:SHOWN]]
    return shown + ([f"{kind}: and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])


def check_producer(seed: int, promises: Promises, log: Mapping[Place, Mapping[int, bytes]], verdict: Verdict) -> None:
    """Acknowledged records are there, none doubled where promised, order kept in every partition."""
    lost: list[str] = []
    for place, records in promises.acknowledged.items():
        for offset, number in records:
            verdict.acknowledged += 1
            stored = log[place].get(offset)
            if stored != payload(seed, promises.name, number):
                what = "nothing" if stored is None else repr(stored[:40])
                lost.append(f"{promises.name}'s record {number}, acknowledged at {place} offset {offset}: {what} there")
    doubled: list[str] = []
    disorder: list[str] = []
    known = {number for records in promises.acknowledged.values() for _, number in records}
    known.update(promises.anywhere)
    verdict.acknowledged += len(promises.anywhere)
    stored_somewhere: set[int] = set()
    for place, stored_records in log.items():
        if place[0] != promises.topic:
            continue
        first_seen: set[int] = set()
        highest = -1
        for offset in sorted(stored_records):
            name, number = parse(stored_records[offset])
            if name != promises.name:
                continue
            if stored_records[offset] != payload(seed, name, number):
                lost.append(f"{place} offset {offset} holds a damaged record {number} of {name}")
            if number in first_seen:
                verdict.duplicates_allowed += not promises.exactly_once
                if promises.exactly_once:
                    doubled.append(f"record {number} of {name} again at {place} offset {offset}")
                continue
            first_seen.add(number)
            if number < highest:
                disorder.append(f"record {number} of {name} after {highest} at {place} offset {offset}")
            highest = max(highest, number)
        if promises.exactly_once:
            doubled += [
                f"record {number} of {promises.name} in two partitions" for number in stored_somewhere & first_seen
            ]
        stored_somewhere |= first_seen
        verdict.unacknowledged_stored += len(first_seen - known)
    lost += [
        f"{promises.name}'s record {number}, acknowledged, is nowhere"
        for number in sorted(set(promises.anywhere) - stored_somewhere)
    ]
    verdict.violations += few("lost", lost) + few("doubled", doubled) + few("out of order", disorder)
    if promises.exactly_once and promises.refused:
        verdict.violations += few("refused", [f"{promises.name} {text}" for text in promises.refused])


def check_offsets(log: Mapping[Place, Mapping[int, bytes]], verdict: Verdict) -> None:
    """Offsets run from 0 without holes: nothing is trimmed or compacted in this test."""
    for place, records in log.items():
        verdict.stored += len(records)
        if records and sorted(records) != list(range(len(records))):
            verdict.violations.append(f"holes: the offsets of {place} are not 0..{len(records) - 1}")


def check_consumers(members: Iterable[GroupMember], log: Mapping[Place, Mapping[int, bytes]], verdict: Verdict) -> None:
    """What a consumer has ever been given is still there, the same."""
    for member in members:
        verdict.violations += few("unstable read", member.conflicts)
        vanished = []
        for (partition, offset), digest in member.seen.items():
            stored = log[member.topic, partition].get(offset)
            if stored is None or hashlib.blake2b(stored, digest_size=16).digest() != digest:
                vanished.append(f"{member.topic}[{partition}] offset {offset} was read and is now another or gone")
        verdict.violations += few("vanished", vanished)


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """The group's committed offsets by partition; partitions without one are left out."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        places = consumer.committed([TopicPartition(topic, partition) for partition in range(partitions)], 60)
        return {place.partition: place.offset for place in places if place.offset >= 0}
    finally:
        consumer.close()
