"""Writes numbered records to one topic at a steady rate, reads them as a group, and says what was lost or doubled.

    load.py --bootstrap node1:19092,node2:19092 --rate 200

Metrics are at port 9100. Told to end (SIGTERM), it waits for its last reports, reads what was acknowledged and prints
one JSON object; exit code 1: something was lost or doubled, or could not be read.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from judge import Judge
from prometheus_client import Counter, Gauge, Histogram, start_http_server

BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
PATIENCE_S = 60.0
TELL_S = 10.0


class Load:
    """A producer and a member of a group, in a thread each, that share a judge."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.run = secrets.token_hex(4)
        self.finish = threading.Event()
        self.read_all = threading.Event()
        self.judge = Judge()
        self.lock = threading.Lock()
        self.silence = 0.0
        """Longest time between two acknowledgements while records were under way, in seconds."""
        self._last = time.monotonic()
        self.reports = Counter("load_reports", "Delivery reports.", ["result"])
        self.given = Counter("load_given", "Records that were read; again: not for the first time.", ["times"])
        self.took = Histogram("load_acknowledged_seconds", "From a record's sending to its report.", buckets=BUCKETS)
        self.came = Histogram("load_read_seconds", "From a record's sending to its reading.", buckets=BUCKETS)
        for name in ("lost", "doubled", "unread", "silence_seconds"):
            gauge = Gauge(f"load_{name}", f"What the judge says: {name}.")
            gauge.set_function(lambda name=name: self.told()[name])

    def told(self) -> dict[str, float]:
        """Everything so far, in numbers."""
        with self.lock:
            judge = self.judge
            return {
                "acknowledged": judge.acknowledged,
                "failed": judge.failed,
                "read": judge.read,
                "again": judge.again,
                "unread": judge.unread(),
                "lost": judge.lost,
                "doubled": judge.doubled,
                "silence_seconds": round(self.silence, 3),
            }

    def make_topic(self) -> None:
        """Raises KafkaException when there is none, and nobody makes it."""
        admin = AdminClient({"bootstrap.servers": self.args.bootstrap})
        config = {"retention.ms": "3600000"}
        made = admin.create_topics([NewTopic(self.args.topic, self.args.partitions, config=config)])
        try:
            made[self.args.topic].result(PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        described = admin.list_topics(self.args.topic, timeout=PATIENCE_S).topics[self.args.topic]
        self.args.partitions = len(described.partitions)

    def write(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.args.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        padding = b"." * max(0, self.args.bytes - 40)
        began, count = time.monotonic(), 0
        while not self.finish.is_set():
            due = int((time.monotonic() - began) * self.args.rate)
            if due - count > 60 * self.args.rate:  # nobody answers: what is under way is enough
                began, due = time.monotonic() - count / self.args.rate, count
            for one in range(count, due):
                partition, number = one % self.args.partitions, one // self.args.partitions
                now = time.monotonic()
                with self.lock:
                    self.judge.sent(partition, number)
                value = f"{self.run}:{number}:{now:.6f}:".encode() + padding
                producer.produce(
                    self.args.topic, value, partition=partition, on_delivery=self._report(partition, number, now)
                )
            count = due
            producer.poll(0.01)
        producer.flush(PATIENCE_S + 120)

    def _report(self, partition: int, number: int, sent: float) -> Callable[[KafkaError | None, Message], None]:
        def told(error: KafkaError | None, _: Message) -> None:
            now = time.monotonic()
            self.reports.labels("failed" if error else "acknowledged").inc()
            with self.lock:
                self.judge.told(partition, number, error)
                if error is None:
                    self.silence = max(self.silence, min(now - self._last, now - sent))
                    self._last = now
            if error is None:
                self.took.observe(now - sent)

        return told

    def read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.args.bootstrap,
                "group.id": f"load-{self.run}",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
            }
        )
        consumer.subscribe([self.args.topic])
        while not self.read_all.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            self._take(message)
        consumer.close()

    def _take(self, message: Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        if not isinstance(value, bytes) or partition is None or offset is None:
            return
        parts = value.split(b":", 3)
        if parts[0] != self.run.encode():
            return  # of an earlier run
        with self.lock:
            first = self.judge.given(partition, offset, int(parts[1]))
        self.given.labels("first" if first else "again").inc()
        if first:
            self.came.observe(time.monotonic() - float(parts[2]))

    def work(self) -> int:
        """Until told to end; the exit code."""
        self.make_topic()
        start_http_server(self.args.metrics)
        threads = [threading.Thread(target=work, name=work.__name__) for work in (self.write, self.read)]
        for thread in threads:
            thread.start()
        while not self.finish.wait(TELL_S):
            print(json.dumps(self.told()), flush=True)
        threads[0].join()
        deadline = time.monotonic() + PATIENCE_S
        while self.told()["unread"] and time.monotonic() < deadline:
            time.sleep(0.1)
        self.read_all.set()
        threads[1].join()
        told = self.told()
        print(json.dumps(told | {"faults": self.judge.faults}), flush=True)
        return 1 if told["lost"] or told["doubled"] or told["unread"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", default="load")
    parser.add_argument("--partitions", type=int, default=12, help="of the topic, if there is none yet")
    parser.add_argument("--rate", type=float, default=200.0, help="records a second")
    parser.add_argument("--bytes", type=int, default=200, help="of a record")
    parser.add_argument("--metrics", type=int, default=9100, help="port")
    args = parser.parse_args()
    load = Load(args)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: load.finish.set())
    return load.work()


if __name__ == "__main__":
    sys.exit(main())
