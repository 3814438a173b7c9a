"""Faust, the library of stream processing for Python: a word count with exactly-once processing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.java_server import JavaServer
from benchmarks.python_environment import install_environment
from benchmarks.tools import ROOT, TOOLS
from tests.ecosystem.application import Application
from tests.ecosystem.brokers import topics
from tests.ecosystem.passage import Came, Passage, WentWrong, carry
from tests.ecosystem.streams import WORDS, policies
from tests.node_process import NodeProcess

LOCK = ROOT / "requirements" / "faust.lock"
SCRIPT = Path(__file__).resolve().parent / "python" / "word_count.py"
CHANGELOG = "faust-count-words-changelog"
COUNTED = 3000


class WordCount(Application):
    """The application, in an environment of its own; its table is in memory, so that each start restores it."""

    started = "Worker ready"

    def command(self) -> Sequence[str]:
        """Made once."""
        python = install_environment(LOCK, TOOLS / "faust")
        place = str(self.directory / "data")
        return [str(python), "-u", str(SCRIPT), self.server, place, "worker", "-l", "info", "--without-web"]


def run(server: NodeProcess | JavaServer, directory: Path) -> str:
    """What was seen, in a line. Raises WentWrong, ServerFailed.

    What Faust calls exactly once is not, with any server: what the application sends is not part of its transactions,
    and an event may be counted in a transaction that does not have its position. So no word may be counted less often
    than it was written, and no count may be left out.
    """
    topics(server.bootstrap, "lines", "counts")
    words = [word.encode() for word in random.Random(7).choices(WORDS, k=COUNTED)]
    written = Counter(words)

    def counted(came: Sequence[Came]) -> bool:
        last = _last(came)
        return all(last.get(word, 0) >= often for word, often in written.items())

    application = WordCount(directory / "faust", server.bootstrap)
    passage = Passage(words, "lines", "counts", COUNTED, keyed_by_value=True)
    came = carry(server, application, passage, settled=counted)
    told = {(one.key, int(one.value or b"0")) for one in came}
    if missing := {(word, count + 1) for word, often in written.items() for count in range(often)} - told:
        raise WentWrong(f"{len(missing)} counts were never told: {sorted(missing)[:3]}")
    if "compact" not in policies(server.bootstrap, [CHANGELOG])[CHANGELOG]:
        raise WentWrong(f"{CHANGELOG} is not compacted")
    surplus = sum(_last(came).values()) - COUNTED
    return f"{len(written)} words counted, {surplus} of {COUNTED} twice, {len(came) - COUNTED} counts told again"


def _last(came: Sequence[Came]) -> dict[bytes | None, int]:
    """The last count of each word, in the order of the log."""
    return {one.key: int(one.value or b"0") for one in _in_order(came)}


def _in_order(came: Sequence[Came]) -> list[Came]:
    return sorted(came, key=lambda one: (one.partition, one.offset))
