"""kafka-python: its own protocol code, in pure Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.errors import BrokerResponseError, for_code

from tests.clients.api import ALL_ADMIN, EARLIEST, LARGEST, Abilities, Client, ClientError, Got, GroupState, Rec, Shares
from tests.clients.sharing import PATIENCE_SECONDS, share


class KafkaPythonClient(Client):
    name = "kafka-python"
    abilities = Abilities(
        void_records=False, null_headers=False, config_errors=False, admin=ALL_ADMIN, transactions=True
    )

    def produce(
        self, topic: str, partition: int, records: Sequence[Rec], *, codec: str = "none", idempotent: bool = False
    ) -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=20,
            max_request_size=LARGEST,
        )
        with closing(producer):
            futures = [self._send(producer, topic, partition, record) for record in records]
            producer.flush(PATIENCE_SECONDS)
            return [int(future.get(PATIENCE_SECONDS).offset) for future in futures]

    @staticmethod
    def _send(producer: Any, topic: str, partition: int, record: Rec) -> Any:
        return producer.send(
            topic,
            record.value,
            key=record.key,
            headers=list(record.headers),
            partition=partition,
            timestamp_ms=record.timestamp,
        )

    def consume(self, topic: str, counts: Mapping[int, int], *, starts: Mapping[int, int] | None = None) -> list[Got]:
        return self._consume(topic, counts, starts or {}, "read_uncommitted")

    def _consume(self, topic: str, counts: Mapping[int, int], starts: Mapping[int, int], isolation: str) -> list[Got]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, isolation_level=isolation, fetch_max_wait_ms=100
        )
        with closing(consumer):
            consumer.assign([TopicPartition(topic, partition) for partition in counts])
            for partition in counts:
                where = TopicPartition(topic, partition)
                if partition in starts:
                    consumer.seek(where, starts[partition])
                else:
                    consumer.seek_to_beginning(where)
            left = {partition: count for partition, count in counts.items() if count}
            got: list[Got] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while left:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"still missing {left} after {len(got)} records")
                for batch in consumer.poll(timeout_ms=500).values():
                    for message in batch:
                        if left.get(message.partition, 0) > 0:
                            got.append(_got(message))
                            left[message.partition] -= 1
                left = {partition: count for partition, count in left.items() if count}
            return got

    def _group_consumer(self, group: str, topic: str) -> Any:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset=EARLIEST,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
        )
        # A leader that does not know the partitions yet assigns nothing to anybody, and joins again once it does, which
        # may cost it its membership without its noticing.
        consumer.partitions_for_topic(topic)
        return consumer

    def consume_group(self, group: str, topic: str, count: int, *, protocol: str = "classic") -> list[Got]:
        assert protocol == "classic"
        with closing(self._group_consumer(group, topic)) as consumer:
            got: list[Got] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(got) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"only {len(got)} of {count} records")
                polled = consumer.poll(timeout_ms=500, max_records=count - len(got))
                got += [_got(message) for batch in polled.values() for message in batch]
            consumer.commit()
            return got

    def share(self, group: str, topic: str, partitions: int, *, protocol: str = "classic") -> Shares:
        assert protocol == "classic"
        return share(lambda: _Member(self._group_consumer(group, topic)), partitions)

    def transact(self, topic: str, transactional_id: str, rounds: Sequence[tuple[bool, Sequence[Rec]]]) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=transactional_id, linger_ms=20)
        with closing(producer):
            producer.init_transactions()
            for commit, records in rounds:
                producer.begin_transaction()
                for future in [self._send(producer, topic, 0, record) for record in records]:
                    future.get(PATIENCE_SECONDS)
                if commit:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()

    def consume_committed(self, topic: str, count: int) -> list[Got]:
        return self._consume(topic, {0: count}, {}, "read_committed")

    def _admin(self, call: Callable[[Any], Any]) -> Any:
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
            try:
                return call(admin)
            except BrokerResponseError as error:
                raise ClientError(error.errno, str(error)) from error

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        wanted = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config or {})}}
        self._admin(lambda admin: admin.create_topics(wanted))

    def delete_topic(self, topic: str) -> None:
        self._admin(lambda admin: admin.delete_topics([topic]))

    def topics(self) -> list[str]:
        return list(self._admin(lambda admin: admin.list_topics()))

    def partition_count(self, topic: str) -> int:
        [described] = self._admin(lambda admin: admin.describe_topics([topic]))
        _check(described["error_code"], topic)
        return len(described["partitions"])

    def config(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        answer = self._admin(lambda admin: admin.describe_configs([resource], config_filter="all"))
        return {name: entry["value"] for name, entry in answer["topic"][topic].items()}

    def set_config(self, topic: str, values: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(values))
        self._admin(lambda admin: admin.alter_configs([resource]))

    def add_partitions(self, topic: str, total: int) -> None:
        self._admin(lambda admin: admin.create_partitions({topic: total}))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._admin(lambda admin: admin.delete_records({TopicPartition(topic, partition): before}))

    def offset(self, topic: str, partition: int, at: str | int) -> int:
        where = TopicPartition(topic, partition)
        wanted = at if isinstance(at, int) else OffsetSpec.EARLIEST if at == EARLIEST else OffsetSpec.LATEST
        answer = self._admin(lambda admin: admin.list_partition_offsets({where: wanted}))
        return int(answer[where].offset)

    def groups(self) -> list[str]:
        return [group["group_id"] for group in self._admin(lambda admin: admin.list_groups())]

    def describe_group(self, group: str) -> GroupState:
        described = self._admin(lambda admin: admin.describe_groups([group]))[group]
        return GroupState(described["group_state"], len(described["members"]))

    def committed(self, group: str, topic: str, partition: int) -> int:
        where = TopicPartition(topic, partition)
        answer = self._admin(lambda admin: admin.list_group_offsets({group: [where]}))
        return int(answer[group][where].offset)

    def delete_group(self, group: str) -> None:
        result = self._admin(lambda admin: admin.delete_groups([group]))[group]
        if result != "OK":
            code = next(code for code in range(1, 134) if for_code(code).__name__ == result)
            raise ClientError(code, result)


class _Member:
    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer

    def poll(self) -> None:
        self.consumer.poll(timeout_ms=200)

    def partitions(self) -> frozenset[int]:
        return frozenset(where.partition for where in self.consumer.assignment())

    def close(self) -> None:
        self.consumer.close()


def _check(code: int, message: str) -> None:
    if code:
        raise ClientError(code, message)


def _got(message: Any) -> Got:
    return Got(
        value=message.value,
        key=message.key,
        headers=_headers(message.headers),
        timestamp=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )


def _headers(pairs: Iterable[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, value) for name, value in pairs)
