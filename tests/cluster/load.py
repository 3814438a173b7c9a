"""Kafka clients that write and read beside faults, and know what they were told."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.history.history import Poll, Recorder
from tests.kit.waiting import wait_until

PATIENCE = 120
PARTITIONS = 12
TOPIC = "flights"
GROUP = "readers"


def leaders(admin: AdminClient) -> dict[int, int]:
    described = admin.list_topics(TOPIC, timeout=PATIENCE).topics[TOPIC]
    return {number: partition.leader for number, partition in described.partitions.items()}


def await_leaders(admin: AdminClient, wanted: set[int]) -> dict[int, int]:
    began = time.monotonic()
    while set((found := leaders(admin)).values()) != wanted:
        assert time.monotonic() - began < PATIENCE, found
        time.sleep(0.2)
    return found


def members_of(bootstrap: str) -> str:
    """State and members of the readers' group. Without members, a member that does not close has left: what it does not
    end is inside its library."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_consumer_groups([GROUP], request_timeout=PATIENCE)[GROUP].result(PATIENCE)
    return f"state {found.state.name}, members {[(one.client_id, one.member_id) for one in found.members]}"


class Writer:
    """Produces to all partitions in turns; knows what was acknowledged, and the longest time without anything."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed: list[object] = []
        self.longest = 0.0
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self._last: dict[int, float] = {}
        self._count = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})

    def _told(self, error: object, message: object) -> None:
        if error:
            self.failed.append(error)
            return
        now = time.monotonic()
        partition = message.partition()
        self.longest = max(self.longest, now - self._last.get(partition, now))
        self._last[partition] = now
        self.acknowledged[partition, message.offset()] = message.value()
        self.ends[partition] = message.offset() + 1

    def write(self, seconds: float = PATIENCE, over: threading.Event | None = None) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (over is not None and over.is_set()):
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, b"%d" % self._count, partition=partition, on_delivery=self._told)
                self._count += 1
            self._producer.poll(0.01)

    def close(self) -> int:
        """The number of records written."""
        assert self._producer.flush(PATIENCE) == 0
        return self._count


class Reader(threading.Thread):
    """A member of a group; ``seen`` is shared by its members."""

    def __init__(self, bootstrap: str, seen: dict[tuple[int, int], int]) -> None:
        super().__init__(daemon=True)
        self.seen = seen
        self.longest = 0.0
        self.over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([TOPIC])
        last = 0.0
        while not self.over.is_set():
            message = self._consumer.poll(0.2)
            if message is None or message.error():
                continue
            now = time.monotonic()
            self.longest = max(self.longest, now - last if last else 0.0)
            last = now
            place = (message.partition(), message.offset())
            self.seen[place] = self.seen.get(place, 0) + 1
        self._consumer.close()


class Load:
    """A writer and two members of a group, at work while the block lasts."""

    def __init__(self, bootstrap: str) -> None:
        self.writer = Writer(bootstrap)
        self.written = 0
        self._bootstrap = bootstrap
        self.seen: dict[tuple[int, int], int] = {}
        self.readers = [Reader(bootstrap, self.seen) for _ in range(2)]
        self._over = threading.Event()
        self._writing = threading.Thread(target=self.writer.write, kwargs={"over": self._over})

    def __enter__(self) -> Load:
        for thread in (*self.readers, self._writing):
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_writing()
        for reader in self.readers:
            reader.over.set()
        for reader in self.readers:
            reader.join(PATIENCE)
        open_still = sum(reader.is_alive() for reader in self.readers)
        assert not open_still, f"{open_still} members do not close; the group has {members_of(self._bootstrap)}"

    def _stop_writing(self) -> None:
        self._over.set()
        self._writing.join()

    def end(self) -> None:
        """Stop writing, and return when the group has read all of it."""
        self._stop_writing()
        self.written = self.writer.close()
        wait_until(lambda: len(self.seen) >= self.written)

    def judge(self) -> None:
        """Offset by offset there is what was acknowledged, everything was, and nothing is there twice."""
        print(
            f"{self.written} records, the longest time without an acknowledgement {self.writer.longest:.2f} s, "
            f"without a record for a member of the group {max(reader.longest for reader in self.readers):.2f} s"
        )
        assert self.writer.failed == []
        assert read_all(self._bootstrap) == self.writer.acknowledged
        assert sorted(map(int, self.writer.acknowledged.values())) == list(range(self.written))


def await_acknowledged(writer: Writer, more: int) -> None:
    """Return when each partition has so many more records."""
    began = time.monotonic()
    wanted = {partition: writer.ends[partition] + more for partition in range(PARTITIONS)}
    while any(writer.ends[partition] < end for partition, end in wanted.items()):
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)


def read_all(bootstrap: str, partitions: int = PARTITIONS) -> dict[tuple[int, int], bytes]:
    """What a reader of committed data is given from beginning to end."""
    options = {"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False}
    consumer = Consumer(
        {**options, "enable.partition.eof": True, "fetch.wait.max.ms": 20, "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(partitions)])
    found: dict[tuple[int, int], bytes] = {}
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
        else:
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


def keep_all(bootstrap: str, recorder: Recorder, partitions: int = PARTITIONS) -> int:
    """Read it all into a history; gives how much there is."""
    began = recorder.now()
    found = read_all(bootstrap, partitions)
    recorder.keep(
        Poll(
            client=recorder.client,
            invoked=began,
            told=recorder.now(),
            protocol="kafka",
            session="whole",
            records=[(f"{TOPIC}/{number}", offset, value.decode()) for (number, offset), value in found.items()],
            whole=True,
        )
    )
    return len(found)
