"""Runs kafka-python's own integration tests, as its source distribution carries them, against a node of ours.

    python tests/compat/kafka_python/run.py                  # our node, compared with allowlist.txt
    python tests/compat/kafka_python/run.py --broker kafka   # Apache Kafka, to know the ceiling

A test of the allowlist that does not pass makes the run fail.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.kafka_broker import KafkaBroker  # noqa: E402
from tests.compat.suites import Distribution, judge, run, run_pytest, show  # noqa: E402
from tests.node_process import NodeProcess  # noqa: E402

CLIENT = Distribution(
    name="kafka-python",
    version="3.0.12",
    sha256="4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65",
    needs=(
        "pytest==8.4.2",
        "pytest-mock==3.15.1",
        "pytest-timeout==2.4.0",
        "lz4==4.4.5",
        "zstandard==0.25.0",
        "crc32c==2.8",
        "python-snappy==0.7.3",
    ),
)
ALLOWLIST = HERE / "allowlist.txt"
SECONDS_PER_TEST = 120
NODE_SETTINGS = {
    "kafka.num_partitions": "4",
    "kafka.group.initial_rebalance_delay_ms": "0",
    "kafka.group.min_session_timeout_ms": "1000",
    "auth.rules": "allow",
}
KAFKA_SETTINGS = {"num.partitions": "4", "group.min.session.timeout.ms": "1000"}


@contextlib.contextmanager
def serving(kind: str, scratch: Path) -> Iterator[str]:
    """A broker of the kind asked for; yields its bootstrap address."""
    if kind == "node":
        with NodeProcess(scratch / "data", settings=NODE_SETTINGS) as node:
            yield node.bootstrap
    elif kind == "kafka":
        with KafkaBroker(scratch, settings=KAFKA_SETTINGS) as broker:
            yield broker.bootstrap
    else:
        yield kind


def main() -> int:
    """Run; exit code 0 when every listed test passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="node", help="node, kafka, or HOST:PORT of a running one")
    parser.add_argument("--only", default="", help="pytest -k expression")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "compat")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    source, python = CLIENT.install()
    (source / "test" / "__init__.py").touch()  # not in the distribution; without it Python's own "test" is found
    shutil.copyfile(HERE / "service.py", source / "test" / "service.py")
    stem = args.output / f"kafka-python-{args.broker.replace(':', '_')}"
    arguments = ["test/integration", f"--timeout={SECONDS_PER_TEST}", *(["-k", args.only] if args.only else [])]
    with (
        tempfile.TemporaryDirectory(prefix="kafka-python-suite-") as scratch,
        serving(args.broker, Path(scratch)) as bootstrap,
    ):
        environment = {
            **os.environ,
            "KAFKA_ROOT": scratch,
            "KAFKA_VERSION": "4.0.0",
            "KAFKA_URI": f"kafka://{bootstrap}",
        }
        found = run_pytest(python, arguments, source=source, environment=environment, stem=stem)
    show(found, stem.with_suffix(".log"))
    if not found or args.broker != "node":
        return 0 if found else 1
    return judge(found, ALLOWLIST, partial=bool(args.only))


if __name__ == "__main__":
    run(main)
