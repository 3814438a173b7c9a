"""Builds the driver programs of clients in other languages before the tests run: `python -m tests.build_drivers`.

A test has a time limit and may be one of several at once; a build of Rust takes minutes and all processors. What is
built already, or whose toolchain is missing, is passed over: its tests say so.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator

from tests.clients.client_remote import REMOTES
from tests.compose.helm import PROGRAM as HELM
from tests.conftest import TOOLS_OF_MARKER
from tests.drivers import Program
from tests.kafka_front.share.test_java import PROGRAM as SHARE_JAVA
from tests.pravega_front.java_client import PROGRAM as PRAVEGA_JAVA
from tests.s3_server import PROGRAM as S3_SERVER
from tests.ydb_topic_front.sdks.programs import SDKS


def programs() -> Iterator[Program]:
    """All drivers that tests start, the longest build first."""
    found = (
        [sdk.program for sdk in SDKS]
        + [remote.program for remote in REMOTES]
        + [PRAVEGA_JAVA, SHARE_JAVA, S3_SERVER, HELM]
    )
    yield from sorted(found, key=lambda program: program.marker != "rust")


def main() -> None:
    """Build what is not there."""
    for program in programs():
        if any(shutil.which(tool) is None for tool in TOOLS_OF_MARKER[program.marker]):
            continue
        begun = time.monotonic()
        if program.built():
            print(f"built {program.name} in {time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
