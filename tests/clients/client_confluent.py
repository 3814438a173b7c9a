"""confluent-kafka: librdkafka under Python."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients.api import ALL_ADMIN, EARLIEST, LARGEST, Abilities, Client, ClientError, Got, GroupState, Rec, Shares
from tests.clients.sharing import PATIENCE_SECONDS, share


class ConfluentClient(Client):
    name = "confluent-kafka"
    abilities = Abilities(admin=ALL_ADMIN, transactions=True, new_group_protocol=True)

    def produce(
        self, topic: str, partition: int, records: Sequence[Rec], *, codec: str = "none", idempotent: bool = False
    ) -> list[int]:
        producer = self._producer({"compression.type": codec, "enable.idempotence": idempotent})
        return self._send_all(producer, topic, partition, records)

    def _producer(self, settings: Mapping[str, Any]) -> Any:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "linger.ms": 20,
                "message.max.bytes": LARGEST,
                **settings,
            }
        )

    @staticmethod
    def _send_all(producer: Any, topic: str, partition: int, records: Sequence[Rec]) -> list[int]:
        offsets: list[int] = []
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(message.offset())

        for record in records:
            stamp = {} if record.timestamp is None else {"timestamp": record.timestamp}
            producer.produce(
                topic,
                record.value,
                key=record.key,
                partition=partition,
                headers=list(record.headers),
                on_delivery=delivered,
                **stamp,
            )
        if producer.flush(PATIENCE_SECONDS):
            raise TimeoutError(f"only {len(offsets)} of {len(records)} records were acknowledged")
        if errors:
            raise ClientError(errors[0].code(), errors[0].str())
        return offsets

    def _consumer(self, settings: Mapping[str, Any]) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.auto.commit": False,
                "auto.offset.reset": EARLIEST,
                "fetch.wait.max.ms": 100,
                **settings,
            }
        )

    def consume(self, topic: str, counts: Mapping[int, int], *, starts: Mapping[int, int] | None = None) -> list[Got]:
        return self._consume(topic, counts, starts or {}, "read_uncommitted")

    def _consume(self, topic: str, counts: Mapping[int, int], starts: Mapping[int, int], isolation: str) -> list[Got]:
        consumer = self._consumer({"group.id": "unused", "isolation.level": isolation})
        try:
            consumer.assign([TopicPartition(topic, part, starts.get(part, OFFSET_BEGINNING)) for part in counts])
            left = {partition: count for partition, count in counts.items() if count}
            got: list[Got] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while left:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"still missing {left} after {len(got)} records")
                for message in consumer.consume(500, 0.2):
                    record = _got(message)
                    if left.get(record.partition, 0) > 0:
                        got.append(record)
                        left[record.partition] -= 1
                left = {partition: count for partition, count in left.items() if count}
            return got
        finally:
            consumer.close()

    def _group_consumer(self, group: str, topic: str, protocol: str) -> Any:
        settings: dict[str, Any] = {"group.id": group, "group.protocol": protocol}
        if protocol == "classic":
            settings |= {"heartbeat.interval.ms": 300, "session.timeout.ms": 10_000}
        consumer = self._consumer(settings)
        consumer.subscribe([topic])
        return consumer

    def consume_group(self, group: str, topic: str, count: int, *, protocol: str = "classic") -> list[Got]:
        consumer = self._group_consumer(group, topic, protocol)
        try:
            got: list[Got] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(got) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"only {len(got)} of {count} records")
                got += [_got(message) for message in consumer.consume(count - len(got), 0.2)]
            consumer.commit(asynchronous=False)
            return got
        finally:
            consumer.close()

    def share(self, group: str, topic: str, partitions: int, *, protocol: str = "classic") -> Shares:
        return share(lambda: _Member(self._group_consumer(group, topic, protocol)), partitions)

    def transact(self, topic: str, transactional_id: str, rounds: Sequence[tuple[bool, Sequence[Rec]]]) -> None:
        producer = self._producer({"transactional.id": transactional_id})
        producer.init_transactions(PATIENCE_SECONDS)
        for commit, records in rounds:
            producer.begin_transaction()
            self._send_all(producer, topic, 0, records)
            if commit:
                producer.commit_transaction(PATIENCE_SECONDS)
            else:
                producer.abort_transaction(PATIENCE_SECONDS)

    def consume_committed(self, topic: str, count: int) -> list[Got]:
        return self._consume(topic, {0: count}, {}, "read_committed")

    @cached_property
    def _admin(self) -> Any:
        # Kept: futures of an admin client that is collected fail with "handle is terminating".
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        _only(self._admin.create_topics([wanted]))

    def delete_topic(self, topic: str) -> None:
        _only(self._admin.delete_topics([topic]))

    def topics(self) -> list[str]:
        return list(self._admin.list_topics(timeout=PATIENCE_SECONDS).topics)

    def partition_count(self, topic: str) -> int:
        return len(_only(self._admin.describe_topics(TopicCollection([topic]))).partitions)

    def config(self, topic: str) -> dict[str, str | None]:
        entries = _only(self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return {name: entry.value for name, entry in entries.items()}

    def set_config(self, topic: str, values: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        _only(self._admin.incremental_alter_configs([resource]))

    def add_partitions(self, topic: str, total: int) -> None:
        _only(self._admin.create_partitions([NewPartitions(topic, total)]))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        _only(self._admin.delete_records([TopicPartition(topic, partition, before)]))

    def offset(self, topic: str, partition: int, at: str | int) -> int:
        if isinstance(at, int):
            wanted = OffsetSpec.for_timestamp(at)
        else:
            wanted = OffsetSpec.earliest() if at == EARLIEST else OffsetSpec.latest()
        return int(_only(self._admin.list_offsets({TopicPartition(topic, partition): wanted})).offset)

    def groups(self) -> list[str]:
        return [group.group_id for group in _result(self._admin.list_consumer_groups()).valid]

    def describe_group(self, group: str) -> GroupState:
        described = _only(self._admin.describe_consumer_groups([group]))
        state = described.state.name.title().replace("_", "")
        return GroupState(state, len(described.members))

    def committed(self, group: str, topic: str, partition: int) -> int:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
        [answer] = _only(self._admin.list_consumer_group_offsets([wanted])).topic_partitions
        return max(int(answer.offset), -1)  # librdkafka has -1001 for "none"

    def delete_group(self, group: str) -> None:
        _only(self._admin.delete_consumer_groups([group]))


class _Member:
    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.closed = False

    def poll(self) -> None:
        self.consumer.poll(0.1)

    def partitions(self) -> frozenset[int]:
        return frozenset(where.partition for where in self.consumer.assignment())

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.consumer.close()


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(PATIENCE_SECONDS)
    except KafkaException as error:
        raise ClientError(error.args[0].code(), error.args[0].str()) from error


def _only(futures: Mapping[Any, Future[Any]]) -> Any:
    [future] = futures.values()
    return _result(future)


def _got(message: Any) -> Got:
    if message.error() is not None:
        raise ClientError(message.error().code(), message.error().str())
    return Got(
        value=message.value(),
        key=message.key(),
        headers=tuple(message.headers() or ()),
        timestamp=message.timestamp()[1],
        partition=message.partition(),
        offset=message.offset(),
    )
