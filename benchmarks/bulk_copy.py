"""Topics carried in bulk: by `anabranch migrate`, by MirrorMaker 2, and by a loop of a consumer and a producer, each in
a process of its own, whose CPU is measured. Each deletes its copy again.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mirror_maker import MirrorMaker
from benchmarks.spark_load import BATCH_BYTES, cpu, create, delete, plain_copy


@dataclass(frozen=True, slots=True)
class Copied:
    """Seconds from the first record to the last one that was durable, and CPU seconds of copier and servers; what the
    copier's process takes to start is not among them."""

    seconds: float
    client_cpu: float
    server_cpu: float


def _command(arguments: Sequence[str]) -> tuple[dict[str, Any], float]:
    """The JSON object that a command of this Python's prints, and the CPU seconds that it used."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    told: dict[str, Any] = json.loads(done.stdout)
    return told, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def migrate(source: str, target: str, topic: str, directory: Path, pids: Sequence[int], *more: str) -> Copied:
    """Carry a topic to a node (URLs of both), and delete it there again."""
    plan = directory / f"plan-{uuid.uuid4().hex}.json"
    anabranch = ("-m", "bridges", "migrate")
    _command([*anabranch, "plan", "--from", source, "--to", target, "--topics", topic, "-o", str(plan), "--json"])
    server = cpu(*pids)
    told, client = _command([*anabranch, "run", str(plan), "--quiet", *more])
    server = cpu(*pids) - server
    _, start = _command([*anabranch, "run", str(plan), "--quiet", *more])  # there is nothing left to copy
    _command([*anabranch, "abort", str(plan), "--delete"])
    return Copied(told["bytes"] / told["bytes_per_second"], client - start, server)


def loop(source: str, target: str, topic: str, partitions: int, count: int, pids: Sequence[int]) -> Copied:
    """The same with a loop, from one cluster of Kafka's, or what speaks like one, to another (bootstrap addresses)."""
    to = f"looped-{uuid.uuid4().hex[:8]}"
    create(target, to, partitions)
    server = cpu(*pids)
    arguments = [source, target, topic, to, str(partitions), str(count)]
    told, client = _command(["-m", "benchmarks.bulk_copy", *arguments])
    server = cpu(*pids) - server
    _, start = _command(["-m", "benchmarks.bulk_copy", *arguments[:-1], "0"])
    delete(target, to)
    return Copied(told["seconds"], client - start, server)


def mirror(
    directory: Path, source: str, target: str, topic: str, partitions: int, count: int, pids: Sequence[int]
) -> Copied:
    """The same with MirrorMaker 2, whose start is not counted."""
    made = MirrorMaker(directory, source, target, topic, partitions, BATCH_BYTES, f"m{uuid.uuid4().hex[:8]}")
    create(target, made.copy, partitions)
    with made:
        found = Copied(*made.copied(partitions, count, pids))
    delete(target, made.copy)
    return found


def main() -> int:
    """The loop, as a process: prints the seconds it took."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name in ("source", "target", "topic", "to"):
        parser.add_argument(name)
    for name in ("partitions", "count"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    print(json.dumps({"seconds": plain_copy(**vars(args))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
