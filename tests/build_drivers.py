"""Builds what tests need of other languages, beside the tests: `python -m tests.build_drivers [--long]`.

A test has a time limit, and a build of Rust takes minutes. So each toolchain builds its programs one after the other,
beside the other toolchains and beside tests that need none of them; a test waits before its time begins
(`tests.drivers.await_builds`). What is built already, or whose toolchain is missing, is passed over: its tests say so.
What only tests marked `long` need is built with `--long` alone.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks import kafka_broker
from tests.clients.client_remote import REMOTES
from tests.compose.helm import PROGRAM as HELM
from tests.conftest import TOOLS_OF_MARKER
from tests.drivers import Program, building
from tests.ecosystem.streams import PROGRAM as STREAMS_JAVA
from tests.kafka_front.share.test_java import PROGRAM as SHARE_JAVA
from tests.pravega_front.java_client import PROGRAM as PRAVEGA_JAVA
from tests.s3_server import PROGRAM as S3_SERVER
from tests.ydb_topic_front.sdks.programs import SDKS


def programs(*, long: bool) -> Mapping[str, Sequence[Program]]:
    """Return the drivers that tests start, by toolchain; ``long``: also what only tests marked so need."""
    found = (
        [S3_SERVER]
        + [sdk.program for sdk in SDKS if long or sdk.program.marker != "rust"]
        + [remote.program for remote in REMOTES]
        + [PRAVEGA_JAVA, SHARE_JAVA, STREAMS_JAVA]
        + ([HELM] if long else [])
    )
    by_toolchain: dict[str, list[Program]] = {}
    for program in found:
        by_toolchain.setdefault(program.marker, []).append(program)
    return by_toolchain


def build(toolchain: str, all_of_it: Sequence[Program]) -> None:
    """Build what is not there of one toolchain."""
    with building(toolchain):
        if toolchain == "java":
            report("the jars of Apache Kafka", kafka_broker.install_jars)
        for program in all_of_it:
            report(program.name, program.built)


def report(name: str, make: Callable[[], object]) -> None:
    """Say how long it took to make something, if it took long."""
    begun = time.monotonic()
    make()
    if (took := time.monotonic() - begun) >= 1:
        print(f"built {name} in {took:.0f} s", file=sys.stderr)


def main() -> None:
    """Build what is not there, each toolchain beside the others."""
    found = {
        toolchain: all_of_it
        for toolchain, all_of_it in programs(long="--long" in sys.argv[1:]).items()
        if all(shutil.which(tool) is not None for tool in TOOLS_OF_MARKER[toolchain])
    }
    with ThreadPoolExecutor(len(found) or 1) as pool:
        for built in [pool.submit(build, *one) for one in found.items()]:
            built.result()


if __name__ == "__main__":
    main()
