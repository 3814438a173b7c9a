"""Kafka Streams: a word count with exactly-once processing, whose state is lost and restored from its changelog."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from benchmarks.java_server import JavaServer
from tests.drivers import java
from tests.ecosystem.application import Application
from tests.ecosystem.brokers import topics
from tests.ecosystem.passage import Came, Passage, Reader, WentWrong, Writer, carry
from tests.node_process import NodeProcess

POM = Path(__file__).resolve().parent / "java" / "streams" / "pom.xml"
APPLICATION = "word-count"
WORDS = tuple(f"word{number}" for number in range(40))
LINES, WORDS_IN_LINE = 2000, 5
COMPACTION_S = 90.0


PROGRAM = java("streams", POM, "anabranch.ecosystem.WordCount")
CLASSIC = ("consumer.session.timeout.ms=6000", "consumer.heartbeat.interval.ms=2000")
STREAMS = ("group.protocol=streams",)
"""Settings of the application, whose tasks a member of the group assigns or the node does (KIP-1071)."""


class WordCount(Application):
    """The application; ``bootstrap`` is the server's."""

    started = "state RUNNING"

    def __init__(self, directory: Path, server: str, settings: Sequence[str] = CLASSIC) -> None:
        super().__init__(directory, server)
        self.state = directory / "state"
        self.settings = settings

    def command(self) -> Sequence[str]:
        """Built once."""
        return [*PROGRAM.command(), self.server, APPLICATION, str(self.state), *self.settings]

    def restored_records(self) -> int:
        """How many records of the changelog it has read back since it started."""
        return sum(int(found) for found in re.findall(r"restored \S+ records (\d+)", self.tail()))


def counted_once(came: Sequence[Came], lines: Sequence[bytes]) -> None:
    """Raises WentWrong unless each word's counts are 1, 2, 3 ... in the order of the log, up to how often it was
    written."""
    counts: dict[str, list[int]] = defaultdict(list)
    for one in sorted(came, key=lambda one: (one.partition, one.offset)):
        counts[(one.key or b"").decode()].append(int(one.value or b"0"))
    written = Counter(word for line in lines for word in line.decode().split())
    for word, often in written.items():
        if counts[word] != list(range(1, often + 1)):
            off = next((i for i, count in enumerate(counts[word]) if count != i + 1), len(counts[word]))
            raise WentWrong(
                f"{word} was written {often} times; counts around the first wrong one: "
                f"{counts[word][max(0, off - 2) : off + 3]}"
            )
    if counts.keys() - written.keys():
        raise WentWrong(f"counted what nobody wrote: {sorted(counts.keys() - written.keys())[:3]}")


def policies(bootstrap: str, names: Sequence[str]) -> dict[str, str]:
    """The cleanup.policy of topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    return {resource.name: told.result(30)["cleanup.policy"].value for resource, told in asked.items()}


def _compacted(bootstrap: str, changelog: str, written: int) -> int:
    """How many records are left in the changelog, once it was compacted. Raises WentWrong when that takes too long."""
    until = time.monotonic() + COMPACTION_S
    while True:
        reader = Reader(bootstrap, changelog)
        left = len(reader.rest())
        reader.close()
        if left < written // 2:
            return left
        if time.monotonic() > until:
            raise WentWrong(f"{left} of {written} records are in {changelog} after {COMPACTION_S:g} s")


def run_in_streams_group(server: NodeProcess | JavaServer, directory: Path) -> str:
    """What :func:`run` does, with tasks that the server assigns (KIP-1071)."""
    return run(server, directory, STREAMS)


def run(server: NodeProcess | JavaServer, directory: Path, settings: Sequence[str] = CLASSIC) -> str:
    """What was seen, in a line. Raises WentWrong, ServerFailed."""
    topics(server.bootstrap, "lines", "counts")
    chosen = random.Random(7)
    lines = [" ".join(chosen.choices(WORDS, k=WORDS_IN_LINE)).encode() for _ in range(LINES)]
    application = WordCount(directory / "streams", server.bootstrap, settings)
    passage = Passage(lines, "lines", "counts", LINES * WORDS_IN_LINE)
    came = carry(server, application, passage, lost=lambda: shutil.rmtree(application.state))
    counted_once(came, lines)
    restored = application.restored_records()
    if not restored:
        raise WentWrong("nothing was restored from the changelog")
    changelog = f"{APPLICATION}-counts-changelog"
    if policies(server.bootstrap, [changelog])[changelog] != "compact":
        raise WentWrong(f"{changelog} is not compacted")
    seen = f"{len(came)} counts of {len(WORDS)} words right, {restored} records restored"
    if not isinstance(server, NodeProcess):
        return f"{seen}; the active segment is not compacted"
    left = _compacted(server.bootstrap, changelog, len(came))
    shutil.rmtree(application.state)
    reader = Reader(server.bootstrap, "counts")
    with application:
        Writer(server.bootstrap, "lines", lines[:100], 400).finish()
        reader.until(len(came) + 100 * WORDS_IN_LINE, application)
        counted_once(reader.rest(), lines + lines[:100])
    reader.close()
    return f"{seen}; {left} left in the compacted changelog, from which counting goes on"
