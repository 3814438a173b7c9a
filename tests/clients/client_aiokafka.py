"""aiokafka: asyncio, with protocol code of its own (and low versions of every request)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError

from tests.clients.api import ALL_ADMIN, EARLIEST, Abilities, Client, ClientError, Got, GroupState, Rec, Shares
from tests.clients.sharing import PATIENCE_SECONDS

Result = TypeVar("Result")


class AiokafkaClient(Client):
    name = "aiokafka"
    abilities = Abilities(
        void_records=False, asks_without_creating=False, admin=ALL_ADMIN - {"delete_group"}, transactions=True
    )

    def produce(
        self, topic: str, partition: int, records: Sequence[Rec], *, codec: str = "none", idempotent: bool = False
    ) -> list[int]:
        async def run() -> list[int]:
            async with AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks="all",
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=20,
            ) as producer:
                return await _send_all(producer, topic, partition, records)

        return _run(run())

    def consume(self, topic: str, counts: Mapping[int, int], *, starts: Mapping[int, int] | None = None) -> list[Got]:
        return _run(self._consume(topic, counts, starts or {}, "read_uncommitted"))

    async def _consume(
        self, topic: str, counts: Mapping[int, int], starts: Mapping[int, int], isolation: str
    ) -> list[Got]:
        async with AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, isolation_level=isolation, fetch_max_wait_ms=100
        ) as consumer:
            consumer.assign([TopicPartition(topic, partition) for partition in counts])
            for partition in counts:
                where = TopicPartition(topic, partition)
                if partition in starts:
                    consumer.seek(where, starts[partition])
                else:
                    await consumer.seek_to_beginning(where)
            left = {partition: count for partition, count in counts.items() if count}
            got: list[Got] = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                while left:
                    for batch in (await consumer.getmany(timeout_ms=500)).values():
                        for message in batch:
                            if left.get(message.partition, 0) > 0:
                                got.append(_got(message))
                                left[message.partition] -= 1
                    left = {partition: count for partition, count in left.items() if count}
            return got

    def _group_consumer(self, group: str, topic: str) -> Any:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset=EARLIEST,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
        )

    def consume_group(self, group: str, topic: str, count: int, *, protocol: str = "classic") -> list[Got]:
        assert protocol == "classic"

        async def run() -> list[Got]:
            async with self._group_consumer(group, topic) as consumer, asyncio.timeout(PATIENCE_SECONDS):
                got: list[Got] = []
                while len(got) < count:
                    polled = await consumer.getmany(timeout_ms=500, max_records=count - len(got))
                    got += [_got(message) for batch in polled.values() for message in batch]
                await consumer.commit()
                return got

        return _run(run())

    def share(self, group: str, topic: str, partitions: int, *, protocol: str = "classic") -> Shares:
        assert protocol == "classic"
        everything = frozenset(range(partitions))

        def held(consumer: Any) -> frozenset[int]:
            return frozenset(where.partition for where in consumer.assignment())

        async def run() -> Shares:
            async with asyncio.timeout(PATIENCE_SECONDS), self._group_consumer(group, topic) as second:
                async with self._group_consumer(group, topic) as first:
                    while not (held(first) and held(second) and held(first) | held(second) == everything) or (
                        held(first) & held(second)
                    ):
                        await asyncio.gather(first.getmany(timeout_ms=50), second.getmany(timeout_ms=50))
                    one, two = held(first), held(second)
                while held(second) != everything:
                    await second.getmany(timeout_ms=50)
                return Shares(one, two, held(second))

        return _run(run())

    def transact(self, topic: str, transactional_id: str, rounds: Sequence[tuple[bool, Sequence[Rec]]]) -> None:
        async def run() -> None:
            async with AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, transactional_id=transactional_id, linger_ms=20
            ) as producer:
                for commit, records in rounds:
                    await producer.begin_transaction()
                    await _send_all(producer, topic, 0, records)
                    if commit:
                        await producer.commit_transaction()
                    else:
                        await producer.abort_transaction()

        _run(run())

    def consume_committed(self, topic: str, count: int) -> list[Got]:
        return _run(self._consume(topic, {0: count}, {}, "read_committed"))

    def _admin(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with self._open_admin() as admin:
                return await call(admin)

        return _run(run())

    @asynccontextmanager
    async def _open_admin(self) -> AsyncIterator[Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        wanted = NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))
        answer = self._admin(lambda admin: admin.create_topics([wanted]))
        for _, code, message in answer.topic_errors:
            _check(code, message)

    def delete_topic(self, topic: str) -> None:
        for _, code in self._admin(lambda admin: admin.delete_topics([topic])).topic_error_codes:
            _check(code, topic)

    def topics(self) -> list[str]:
        return list(self._admin(lambda admin: admin.list_topics()))

    def partition_count(self, topic: str) -> int:
        [described] = self._admin(lambda admin: admin.describe_topics([topic]))
        _check(described["error_code"], topic)
        return len(described["partitions"])

    def config(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        [answer] = self._admin(lambda admin: admin.describe_configs([resource]))
        [(code, message, _kind, _name, entries)] = answer.resources
        _check(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def set_config(self, topic: str, values: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(values))
        for answer in self._admin(lambda admin: admin.alter_configs([resource])):
            for code, message, *_ in answer.resources:
                _check(code, message)

    def add_partitions(self, topic: str, total: int) -> None:
        self._admin(lambda admin: admin.create_partitions({topic: NewPartitions(total)}))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        wanted = {TopicPartition(topic, partition): RecordsToDelete(before)}
        self._admin(lambda admin: admin.delete_records(wanted))

    def offset(self, topic: str, partition: int, at: str | int) -> int:
        where = TopicPartition(topic, partition)

        async def run() -> int:
            async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap) as consumer:
                consumer.assign([where])
                if isinstance(at, int):
                    found = (await consumer.offsets_for_times({where: at}))[where]
                    return -1 if found is None else int(found.offset)
                ask = consumer.beginning_offsets if at == EARLIEST else consumer.end_offsets
                return int((await ask([where]))[where])

        return _run(run())

    def groups(self) -> list[str]:
        return [group[0] for group in self._admin(lambda admin: admin.list_consumer_groups())]

    def describe_group(self, group: str) -> GroupState:
        [answer] = self._admin(lambda admin: admin.describe_consumer_groups([group]))
        [(code, _group, state, _type, _protocol, members, *_)] = answer.groups
        _check(code, group)
        return GroupState(state, len(members))

    def committed(self, group: str, topic: str, partition: int) -> int:
        where = TopicPartition(topic, partition)
        answer = self._admin(lambda admin: admin.list_consumer_group_offsets(group, partitions=[where]))
        return int(answer[where].offset)


async def _send_all(producer: Any, topic: str, partition: int, records: Sequence[Rec]) -> list[int]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        futures = [
            await producer.send(
                topic,
                record.value,
                key=record.key,
                partition=partition,
                timestamp_ms=record.timestamp,
                headers=list(record.headers),
            )
            for record in records
        ]
        return [(await future).offset for future in futures]


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        return asyncio.run(work)
    except BrokerResponseError as error:
        raise ClientError(error.errno, str(error)) from error


def _check(code: int, message: str | None) -> None:
    if code:
        raise ClientError(code, message or "")


def _got(message: Any) -> Got:
    return Got(
        value=message.value,
        key=message.key,
        headers=tuple((name, value) for name, value in message.headers),
        timestamp=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )
