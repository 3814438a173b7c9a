"""Runs the tests of Pravega's unchanged clients against a real Pravega: what it does not do is not to be demanded.

    python tests/compat/pravega/run.py                              # a standalone Pravega of its own
    python tests/compat/pravega/run.py --controller HOST:PORT       # one that runs, freshly started
    python tests/compat/pravega/run.py --only "stream_cuts"         # some of the tests

Tests that need a node, since they tell of kills or of other protocols, are skipped; any other that does not pass makes
the run fail.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.pravega_standalone import PravegaStandalone  # noqa: E402
from tests.compat.suites import run, run_pytest, show  # noqa: E402

TESTS = tuple(f"tests/pravega_front/test_{name}.py" for name in ("wheel", "java", "samples"))
SECONDS_PER_TEST = 300
"""Pravega looks for finished commits, scales and watermarks now and then only."""


@contextlib.contextmanager
def serving(controller: str) -> Iterator[str]:
    """A Pravega; yields the controller's address."""
    if controller:
        yield controller
        return
    with (
        tempfile.TemporaryDirectory(prefix="pravega-standalone-") as scratch,
        PravegaStandalone(Path(scratch)) as server,
    ):
        yield server.bootstrap


def main() -> int:
    """Run; exit code 0 when no test failed and most were run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--controller", default="", metavar="HOST:PORT", help="of a running Pravega")
    parser.add_argument("--only", default="", help="pytest -k expression")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "compat")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    stem = args.output / "pravega"
    arguments = [*TESTS, f"--timeout={SECONDS_PER_TEST}", *(["-k", args.only] if args.only else [])]
    with serving(args.controller) as controller:
        environment = os.environ | {"ANABRANCH_TEST_PRAVEGA": controller}
        found = run_pytest(Path(sys.executable), arguments, source=ROOT, environment=environment, stem=stem)
    show(found, stem.with_suffix(".log"))
    states = list(found.values())
    if "failed" in states or "passed" not in states:
        return 1
    return 0


if __name__ == "__main__":
    run(main)
