"""A group of consumers that goes on reading while its topics are moved, and then goes on at the new place."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, Message

Row = tuple[str, int, int, bytes | None]
"""Topic, partition, offset, value."""
_POLL_S = 0.2
_SECONDS = 120.0


class LiveGroup:
    """One consumer, in a thread of its own, that stays a member of its group whether it reads or waits.

    What it has got is committed before it waits or leaves: so whatever it gets twice, or not at all, is the move's
    fault. Every record counts, of committed transactions only.
    """

    def __init__(self, bootstrap: str, topics: Sequence[str], partitions: int, records: int) -> None:
        """Reads ``records`` to begin with. ``partitions``: of all ``topics`` together."""
        self.name = f"live-{uuid.uuid4().hex[:8]}"
        self.topics = list(topics)
        self.got: list[Row] = []
        self._partitions = partitions
        self._wanted = records
        self._to_the_end = False
        self._leave = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._reached = False
        self._stored = False
        self._thread = self._start(bootstrap)
        self._await(f"{records} records")

    # --- for the proof ----------------------------------------------------------------------------------------------

    def read(self, records: int) -> None:
        """Have it read so many more, commit them, and wait. Raises AssertionError if it does not get them."""
        with self._changed:
            self._wanted = len(self.got) + records
            self._reached = False
        self._await(f"{records} records more")

    def move(self, bootstrap: str) -> None:
        """It leaves where it is, and its group goes on at ``bootstrap``, to the end of all partitions."""
        self._leave = True
        self._thread.join(_SECONDS)
        with self._changed:
            self._leave, self._reached, self._to_the_end = False, False, True
        self._thread = self._start(bootstrap)
        self._await("the end of all partitions")
        self.close()

    def close(self) -> None:
        """It leaves its group."""
        self._leave = True
        self._thread.join(_SECONDS)

    def _await(self, what: str) -> None:
        with self._changed:
            reached = self._changed.wait_for(lambda: self._reached or self._failure is not None, _SECONDS)
        if not reached or self._failure is not None:
            raise AssertionError(f"{self.name} did not get {what}: {len(self.got)}, {self._failure}")

    # --- the consumer -----------------------------------------------------------------------------------------------

    def _start(self, bootstrap: str) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(bootstrap,), name=self.name, daemon=True)
        thread.start()
        return thread

    def _run(self, bootstrap: str) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": self.name,
                "auto.offset.reset": "earliest",  # without its position it would get records twice
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.subscribe(self.topics)
            self._consume(consumer)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            consumer.close()

    def _consume(self, consumer: Consumer) -> None:
        ended: set[tuple[str, int]] = set()
        while not self._leave:
            if not self._to_the_end and len(self.got) >= self._wanted:
                self._commit(consumer)
                self._rest(consumer)
                continue
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            if self._take(message):
                consumer.store_offsets(message)
                self._stored = True
            else:
                ended.add((str(message.topic()), int(message.partition() or 0)))
            if self._to_the_end and len(ended) == self._partitions:
                self._commit(consumer)
                self._tell()
                return

    def _take(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            place = str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)
            self.got.append((*place, message.value()))
            return True
        if error.code() != KafkaError._PARTITION_EOF:
            raise AssertionError(error)
        return False

    def _rest(self, consumer: Consumer) -> None:
        """Stay a member without taking anything until more is wanted."""
        assigned = consumer.assignment()
        consumer.pause(assigned)
        self._tell()
        while not self._leave and len(self.got) >= self._wanted:
            consumer.poll(_POLL_S)
        consumer.resume(assigned)

    def _commit(self, consumer: Consumer) -> None:
        if self._stored:
            consumer.commit(asynchronous=False)
            self._stored = False

    def _tell(self) -> None:
        with self._changed:
            self._reached = True
            self._changed.notify_all()
