"""Every example of docs/spark.md, in its order, as it stands there: `python -m tests.spark_proof.examples`.

Needs Java. The commands are run by bash, line for line, with a real Apache Kafka for the old cluster, S3Proxy for the
bucket, and the addresses of these. Exit code 1 as soon as a command, or a line of Python, fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.java_server import SHORT_LIVED_JAVA
from benchmarks.kafka_broker import KafkaBroker
from benchmarks.tools import ROOT
from tests.node_process import ANY, FRONTS, SELDOM, NodeProcess
from tests.ports import free_port
from tests.spark_pipeline.lake.s3_server import BUCKET, S3Server
from tests.spark_proof import victims
from tests.spark_proof.page import Example, examples, placed, run_python

RECORDS = 3_000
NEW_YEAR_MS = 1_356_998_400_000
YEAR_MS = 365 * 86_400_000
_SECONDS = 300.0


def fill(bootstrap: str, topic: str, partitions: int) -> None:
    """Flights of all of 2013, some of them United's."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it must outlive its futures
    admin.create_topics([NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    for number in range(RECORDS):
        value = f"{'UA' if number % 3 else 'AA'} {number}"
        producer.produce(topic, value, f"N{number % 90}", timestamp=NEW_YEAR_MS + number * (YEAR_MS // RECORDS))
    assert producer.flush(60) == 0


class Shell:
    """A bash that is given one example after the other; what is in the background stays with it."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._done = directory / "done"
        self.log = directory / "shell.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-e"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **environment},
                text=True,
            )

    def run(self, code: str) -> None:
        """Return when all of it has ended well, but for what runs in the background. Raises AssertionError."""
        assert self.process.stdin is not None
        self._done.unlink(missing_ok=True)
        self.process.stdin.write(f"{code}\ntouch {self._done}\n")
        self.process.stdin.flush()
        deadline = time.monotonic() + _SECONDS
        while not self._done.exists():
            ended = self.process.poll()
            if ended is not None or time.monotonic() > deadline:
                raise AssertionError(f"{code}\nended with {ended}:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.05)

    def close(self) -> None:
        """End it, and whatever it has started."""
        if self.process.poll() is None:
            victims.kill(victims.below(self.process.pid))
        self.process.kill()
        self.process.wait()


class Examples:
    """The page's world, and its examples in it."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        listen = dict.fromkeys((*FRONTS, *SELDOM), ANY)
        self.directory = directory
        self.node = stack.enter_context(NodeProcess(directory / "node" / "data", listen=listen))
        kafka = stack.enter_context(KafkaBroker(directory / "kafka", heap="512m", options=SHORT_LIVED_JAVA))
        (directory / "s3").mkdir()
        s3 = S3Server(directory / "s3")
        s3.start()
        stack.callback(s3.stop)
        s3.make_bucket()
        os.environ.update(s3.environment)
        for topic, partitions in (("orders", 2), ("orders-late", 1)):
            fill(kafka.bootstrap, topic, partitions)
        fill(self.node.kafka, "flights", 2)
        old = stack.enter_context(NodeProcess(directory / "old" / "data", listen={"kafka": ANY, "ydb": ANY}))
        for topic in ("flights", "shop.orders"):
            fill(old.kafka, topic, 2)
        admin = AdminClient({"bootstrap.servers": self.node.kafka})
        admin.create_topics([NewTopic("flights-copy", 2, 1)])["flights-copy"].result(30)
        at = self.node.addresses
        ports = {port: str(free_port()) for port in ("7077", "8180", "15002")}
        self.places = {
            "localhost:8090": at["pipeline"],
            "127.0.0.1:8090": at["pipeline"],
            "127.0.0.1:9092": at["kafka"],
            "127.0.0.1:2136": at["ydb"],
            "localhost:2136": at["ydb"],
            "db.example:2136": old.addresses["ydb"],
            "127.0.0.1:9090": at["pravega"],
            "old-broker:9092": kafka.bootstrap,
            "s3://bucket": f"s3://{BUCKET}",
            "archive+s3://bucket": f"archive+s3://{BUCKET}",
            **{place: f"{directory}{place}" for place in ("/tmp/flights", "/data/", "/var/lib/")},
            **ports,
        }
        for place in ("tmp", "data/lake", "var/lib/checkpoints"):
            (directory / place).mkdir(parents=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        daemons = {
            f"SPARK_{name}": str(directory / name.lower())
            for name in ("LOG_DIR", "PID_DIR", "WORKER_DIR", "LOCAL_DIRS")
        }
        # Spark finds data sources among the modules of the path's directories: those of a package that is installed as
        # a user does are there, those of an editable installation are not.
        environment = {"PATH": path, **daemons, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
        self.shell = Shell(directory, environment)
        stack.callback(self.shell.close)
        stop = [str(Path(pyspark.__file__).parent / "sbin" / "stop-connect-server.sh")]
        stack.callback(subprocess.run, stop, env={**os.environ, **environment}, check=False)
        self.names: dict[str, Any] = {}

    def run(self, example: Example) -> None:
        """Raises AssertionError."""
        code = placed(example.code, self.places)
        if example.language == "sh":
            self.shell.run(code)
            if "--follow &" in code.replace("\\\n", "") or code.rstrip().endswith("&"):
                self.under_way(code)
        elif example.section == "Clusters":
            self.remote(code)
        else:
            self.names.setdefault("spark", None)
            exec("from spark_pipeline.spark.session import session; spark = session('page')", self.names)
            run_python(code, self.names)

    def remote(self, code: str) -> None:
        """In a process of its own: a client of Spark Connect is none of Spark's. The server takes a while to start."""
        command = [sys.executable, "-c", code]
        deadline = time.monotonic() + _SECONDS
        while True:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
            if done.returncode == 0:
                break
            assert time.monotonic() < deadline, done.stderr.partition("JVM stacktrace")[0][-4000:]
        assert done.stdout.strip() == str(RECORDS), done.stdout

    def under_way(self, code: str) -> None:
        """Return when the job in the background has caught up, as the node's console tells it."""
        kind = "migrate" if "migrate" in code else "archive"
        deadline = time.monotonic() + _SECONDS
        while True:
            with urllib.request.urlopen(f"{self.node.console}/api/jobs", timeout=30) as answer:
                jobs = json.load(answer)["jobs"]
            if any(
                job["kind"] == kind
                and job["state"] == "running"
                and job["done"] > 0
                and job["done"] == job["total"]
                and job["details"].get("step", "following") == "following"
                for job in jobs
            ):
                return
            assert time.monotonic() < deadline, jobs
            assert self.shell.process.poll() is None, self.shell.log.read_text(errors="replace")[-4000:]
            time.sleep(0.2)


def main() -> int:
    """Run all of them."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-examples-")))
        page = Examples(stack, directory)
        for number, example in enumerate(examples(), 1):
            began = time.monotonic()
            if "from pravega://" in example.code:
                print(f"{number:2} {example.section}: left to tests.spark_proof.prove_streams")
                continue
            page.run(example)
            print(f"{number:2} {example.section} ({example.language}): {time.monotonic() - began:.0f} s", flush=True)
        spark = page.names.get("spark")
        if spark is not None:
            spark.stop()
    print("every example of docs/spark.md does what it says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
