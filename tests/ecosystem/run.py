"""`make ecosystem`: what lives around Kafka, run against a node as its users would, beside Apache Kafka if asked for.

    python -m tests.ecosystem.run                       # all, against our node
    python -m tests.ecosystem.run --only streams,tools
    python -m tests.ecosystem.run --broker kafka        # the same against Apache Kafka 4.2.1

Each application has a server of its own. What they need comes from Maven Central and PyPI and is kept below `.tools`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.java_server import JavaServer, ServerFailed
from tests.ecosystem import connect, copies, debezium, faust, registry, streams
from tests.ecosystem.brokers import KINDS, serving
from tests.ecosystem.tools import run as tools
from tests.node_process import NodeProcess

Run = Callable[[NodeProcess | JavaServer, Path], str]
APPLICATIONS: dict[str, Run] = {
    "streams": streams.run,
    "streams-groups": streams.run_in_streams_group,
    "connect": connect.run,
    "debezium": debezium.run,
    "flink": partial(copies.run, "flink"),
    "pekko": partial(copies.run, "pekko"),
    "registry": registry.run,
}
UNSTEADY: dict[str, Run] = {"faust": faust.run}
"""What runs when it is asked for only: Faust does not go on after every kill."""
BOTH: dict[str, Callable[[Path], str]] = {"tools": tools.run}
"""What compares the answers of a node and of Apache Kafka."""


def _seen(name: str, broker: str, directory: Path) -> str:
    """Run one with a server of its own. Raises AssertionError, ServerFailed."""
    if name in BOTH:
        return BOTH[name](directory)
    with serving(broker, directory) as server:
        try:
            return {**APPLICATIONS, **UNSTEADY}[name](server, directory)
        except (AssertionError, ServerFailed):
            print(server.tail(), flush=True)
            raise


def main() -> int:
    """Run the applications; exit code 0 when each kept its promises."""
    parser = argparse.ArgumentParser(description="Run what lives around Kafka against a node, or Apache Kafka.")
    parser.add_argument("--broker", choices=KINDS, default="node")
    usual = (*APPLICATIONS, *BOTH)
    known = (*usual, *UNSTEADY)
    parser.add_argument("--only", default="", help=f"of {', '.join(known)}, with commas between them")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else usual
    if unknown := set(wanted).difference(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    failed = []
    for name in wanted:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"ecosystem-{name}-") as scratch:
            try:
                seen = _seen(name, args.broker, Path(scratch))
            except (AssertionError, ServerFailed) as error:
                failed.append(name)
                print(f"FAILURE: {name}: {error}", flush=True)
            else:
                print(f"{name:10} {time.monotonic() - began:6.1f} s  {seen}", flush=True)
    print(f"{len(wanted) - len(failed)} of {len(wanted)} kept their promises with {args.broker}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
