"""What is measured: one workload is one call of a client program against one server, and its numbers."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.group_members import join_all
from benchmarks.probe import Watch

CLIENT_SECONDS = 300.0
Metrics = dict[str, float]


class RunFailed(Exception):
    """A client program ended badly or lost records; the message carries its output."""


class Loaded(Protocol):
    """Who is under load."""

    @property
    def bootstrap(self) -> str:
        """Addresses for Kafka clients."""
        ...

    @property
    def pid(self) -> int | Sequence[int]:
        """Of its process, or of all of them."""
        ...


@dataclass(slots=True)
class Bench:
    """What every workload needs: client programs and the server under load."""

    driver: Path
    jars: Path | None
    server: Loaded


@dataclass(frozen=True, slots=True)
class Workload:
    """``run`` makes its own topic, loads the server and returns its numbers; ``headline`` is the one compared."""

    name: str
    headline: str
    unit: str
    higher_is_better: bool
    run: Callable[[Bench], Metrics] = field(compare=False)


def client(command: Sequence[str]) -> str:
    """Run a client program to its end; its standard output. Raises RunFailed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{command[0]} did not end in {CLIENT_SECONDS} s") from error
    if done.returncode != 0:
        raise RunFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-800:]}{done.stderr[-800:]}")
    return done.stdout


def drive(bench: Bench, command: str, topic: str, *options: str) -> dict[str, float]:
    """Call the librdkafka driver; its JSON."""
    line = [str(bench.driver), command, "-b", bench.server.bootstrap, "-t", topic, *options]
    result: dict[str, float] = json.loads(client(line).splitlines()[-1])
    return result


class Topic:
    """A topic for one workload, deleted afterwards so that its bytes do not weigh on the next."""

    def __init__(self, bench: Bench, partitions: int) -> None:
        self.name = f"bench-{uuid.uuid4().hex[:12]}"
        self._partitions = partitions
        self._admin = AdminClient({"bootstrap.servers": bench.server.bootstrap})

    def __enter__(self) -> str:
        for future in self._admin.create_topics([NewTopic(self.name, self._partitions, 1)]).values():
            future.result(30)
        return self.name

    def __exit__(self, *_: object) -> None:
        for future in self._admin.delete_topics([self.name]).values():
            future.result(60)


def _rates(result: dict[str, float], watch: Watch, prefix: str) -> Metrics:
    gigabytes = result["bytes"] / 1e9
    return {
        f"{prefix}_mb_per_s": result["bytes"] / 1e6 / result["seconds"],
        f"{prefix}_records_per_s": result["records"] / result["seconds"],
        f"{prefix}_broker_cpu_per_gb": watch.usage.cpu_seconds / gigabytes,
        f"{prefix}_client_cpu_per_gb": result["client_cpu"] / gigabytes,
        f"{prefix}_broker_peak_rss_mb": watch.usage.peak_rss / 1e6,
    }


def throughput(size: int, partitions: int, records: int) -> Callable[[Bench], Metrics]:
    """Produce with acks=all and linger 5 ms, then read everything back; order and number are checked."""

    def run(bench: Bench) -> Metrics:
        common = ("-n", str(records), "-p", str(partitions))
        with Topic(bench, partitions) as topic:
            with Watch(bench.server.pid) as watch:
                result = drive(bench, "produce", topic, *common, "-s", str(size), "-X", "acks=all", "-X", "linger.ms=5")
            metrics = _rates(result, watch, "produce")
            with Watch(bench.server.pid) as watch:
                result = drive(bench, "consume", topic, *common)
            metrics.update(_rates(result, watch, "consume"))
            return metrics

    return run


def single_records(in_flight: int, records: int) -> Callable[[Bench], Metrics]:
    """Requests of one 100-byte record each, acks=all, to one partition, with a bound of requests on the way."""

    def run(bench: Bench) -> Metrics:
        options = ["-X", "acks=all", "-X", "linger.ms=0", "-X", "batch.num.messages=1"]
        options += ["-X", f"max.in.flight.requests.per.connection={in_flight}"]
        with Topic(bench, 1) as topic, Watch(bench.server.pid) as watch:
            result = drive(bench, "produce", topic, "-n", str(records), "-s", "100", "-p", "1", *options)
        return {
            "requests_per_s": result["records"] / result["seconds"],
            "broker_cpu_us_per_request": watch.usage.cpu_seconds / result["records"] * 1e6,
        }

    return run


def latency(rate: int, seconds: float) -> Callable[[Bench], Metrics]:
    """100-byte records at a fixed rate, linger 0, acks=all; time from due to consumed by a long poll, microseconds."""

    def run(bench: Bench) -> Metrics:
        warm = int(rate * min(2.0, seconds / 3))
        records = int(rate * seconds) + warm
        options = ["-n", str(records), "-r", str(rate), "-w", str(warm), "-s", "100"]
        options += ["-P", "acks=all", "-P", "linger.ms=0"]
        with Topic(bench, 1) as topic, Watch(bench.server.pid) as watch:
            line = [str(bench.driver), "latency", "-b", bench.server.bootstrap, "-t", topic, *options]
            result = json.loads(client(line).splitlines()[-1])
        metrics = {f"end_to_end_{key}_us": value for key, value in result["end_to_end_us"].items()}
        metrics.update({f"acknowledge_{key}_us": value for key, value in result["acknowledge_us"].items()})
        metrics["broker_cpu_us_per_record"] = watch.usage.cpu_seconds / records * 1e6
        return metrics

    return run


def transactions(each: int, records: int) -> Callable[[Bench], Metrics]:
    """100-byte records in transactions of ``each``, one transaction after the other by one producer, to one partition;
    then all of it is read as a reader of committed data and as one of all data reads it."""

    def run(bench: Bench) -> Metrics:
        count = records - records % each
        options = ("-n", str(count), "-s", "100", "-k", str(each))
        with Topic(bench, 1) as topic:
            mine = ("-X", f"transactional.id={topic}", "-X", "acks=all", "-X", "linger.ms=5")
            with Watch(bench.server.pid) as watch:
                line = [str(bench.driver), "transact", "-b", bench.server.bootstrap, "-t", topic, *options, *mine]
                result = json.loads(client(line).splitlines()[-1])
            done = result["transactions"]
            metrics = {
                "transactions_per_s": done / result["seconds"],
                "records_per_s": result["records"] / result["seconds"],
                "broker_cpu_ms": watch.usage.cpu_seconds / done * 1e3,
                "client_cpu_ms": result["client_cpu"] / done * 1e3,
            }
            metrics.update({f"transaction_{key}_us": value for key, value in result["transaction_us"].items()})
            for isolation in ("read_committed", "read_uncommitted"):
                how = ("-X", f"isolation.level={isolation}")
                with Watch(bench.server.pid) as watch:
                    result = drive(bench, "consume", topic, "-n", str(count), "-p", "1", "-k", str(each), *how)
                metrics[f"{isolation}_records_per_s"] = result["records"] / result["seconds"]
                metrics[f"{isolation}_broker_cpu_us_per_record"] = watch.usage.cpu_seconds / count * 1e6
        return metrics

    return run


def group(members: int) -> Callable[[Bench], Metrics]:
    """Members of a group of KIP-848 that join together, each on a connection of its own: time until they have all
    partitions, two each, as they all know it, and CPU."""

    def run(bench: Bench) -> Metrics:
        with Topic(bench, 2 * members) as topic, Watch(bench.server.pid) as watch:
            try:
                settled = join_all(bench.server.bootstrap, topic, members)
            except (RuntimeError, TimeoutError) as error:
                raise RunFailed(str(error)) from error
        return {
            "settled_seconds": settled,
            "broker_cpu_seconds": watch.usage.cpu_seconds,
        }

    return run


def _java(bench: Bench, tool: str, *options: str) -> str:
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return client(["java", "-Xmx512m", quiet, "-cp", f"{bench.jars}/*", f"org.apache.kafka.tools.{tool}", *options])


def java_tools(size: int, records: int) -> Callable[[Bench], Metrics]:
    """Kafka's own ProducerPerformance (its defaults: idempotent, acks=all, linger 5 ms) and ConsumerPerformance."""

    def run(bench: Bench) -> Metrics:
        with Topic(bench, 1) as topic:
            common = ("--bootstrap-server", bench.server.bootstrap, "--topic", topic, "--num-records", str(records))
            with Watch(bench.server.pid) as watch:
                text = _java(bench, "ProducerPerformance", *common, "--record-size", str(size), "--throughput", "-1")
            final = text.strip().splitlines()[-1]
            found = re.search(r"([\d.]+) records/sec \(([\d.]+) MB/sec\)[^\n]*?([\d.]+) ms 99th", final)
            if found is None or not final.startswith(f"{records} records sent"):
                raise RunFailed(f"ProducerPerformance printed: {final}")
            metrics = {
                "produce_records_per_s": float(found.group(1)),
                "produce_mb_per_s": float(found.group(2)) * 2**20 / 1e6,
                "produce_p99_ms": float(found.group(3)),
                "produce_broker_cpu_per_gb": watch.usage.cpu_seconds / (records * size / 1e9),
            }
            with Watch(bench.server.pid) as watch:
                text = _java(bench, "ConsumerPerformance", *common)
            header, values = (line.split(", ") for line in text.strip().splitlines()[-2:])
            row = dict(zip((name.strip() for name in header), values, strict=True))
            if int(row["data.consumed.in.nMsg"]) < records:
                raise RunFailed(f"ConsumerPerformance read {row['data.consumed.in.nMsg']} of {records} records")
            metrics["consume_records_per_s"] = float(row["fetch.nMsg.sec"])
            metrics["consume_mb_per_s"] = float(row["fetch.MB.sec"]) * 2**20 / 1e6
            metrics["consume_broker_cpu_per_gb"] = watch.usage.cpu_seconds / (records * size / 1e9)
            return metrics

    return run


def workloads(*, quick: bool) -> list[Workload]:
    """All workloads; quick ones are a tenth of the size and only tell that everything works."""
    cut = 10 if quick else 1
    seconds = 2.0 if quick else 10.0
    found = []
    for size, label, records in ((100, "100 B", 3_000_000), (1000, "1 KB", 600_000)):
        for partitions in (1, 50):
            name = f"librdkafka, {label}, {partitions} partition{'s' if partitions > 1 else ''}"
            run = throughput(size, partitions, records // cut)
            found.append(Workload(f"produce+consume: {name}", "produce_mb_per_s", "MB/s", True, run))
    found.append(
        Workload("1-record requests, pipelined", "requests_per_s", "req/s", True, single_records(64, 200_000 // cut))
    )
    found.append(
        Workload("1-record requests, one at a time", "requests_per_s", "req/s", True, single_records(1, 10_000 // cut))
    )
    for rate in (100, 1000):
        name = f"latency at {rate}/s"
        found.append(Workload(name, "end_to_end_p99_us", "us", False, latency(rate, seconds)))
    for each, records in ((1, 2_000), (10, 20_000), (100, 200_000), (1000, 1_000_000)):
        name = f"transactions of {each}"
        found.append(Workload(name, "records_per_s", "rec/s", True, transactions(each, records // cut)))
    members = 200 // cut
    found.append(Workload(f"{members} members join", "settled_seconds", "s", False, group(members)))
    for size, label, records in ((100, "100 B", 2_000_000), (1000, "1 KB", 400_000)):
        name = f"Java tools, {label}, 1 partition"
        found.append(Workload(name, "produce_mb_per_s", "MB/s", True, java_tools(size, records // cut)))
    return found
