"""Runs kafka-python's own integration tests, as its source distribution carries them, against a node of ours.

    python tests/compat/kafka_python/run.py                  # our node, compared with allowlist.txt
    python tests/compat/kafka_python/run.py --broker kafka   # Apache Kafka, to know the ceiling

A test of the allowlist that does not pass makes the run fail.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.anabranch_node import AnabranchNode  # noqa: E402
from benchmarks.kafka_broker import KafkaBroker  # noqa: E402

VERSION = "3.0.12"
SHA256 = "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
NEEDS = (
    "pytest==8.4.2",
    "pytest-mock==3.15.1",
    "pytest-timeout==2.4.0",
    "lz4==4.4.5",
    "zstandard==0.25.0",
    "crc32c==2.8",
    "python-snappy==0.7.3",
)
TOOLS = ROOT / ".tools" / "kafka-python"
ALLOWLIST = HERE / "allowlist.txt"
SECONDS_PER_TEST = 120
NODE_SETTINGS = {
    "kafka.num_partitions": "4",
    "kafka.group.initial_rebalance_delay_ms": "0",
    "kafka.group.min_session_timeout_ms": "1000",
}
KAFKA_SETTINGS = {"num.partitions": "4", "group.min.session.timeout.ms": "1000"}


class SetUpFailed(Exception):
    """The suite could not be had; the message carries the end of the failing step's output."""


def _step(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise SetUpFailed(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-3000:]}")


def install(tools: Path = TOOLS) -> tuple[Path, Path]:
    """(source tree, Python with what the suite needs), fetched and made once per version."""
    key = hashlib.sha256(repr((SHA256, NEEDS)).encode()).hexdigest()[:12]
    home = tools / f"{VERSION}-{key}"
    source, python = home / f"kafka_python-{VERSION}", home / "venv" / "bin" / "python"
    if not (home / "made").exists():
        home.mkdir(parents=True, exist_ok=True)
        options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(home)]
        _step([sys.executable, "-m", "pip", "download", *options, f"kafka-python=={VERSION}"], home)
        archive = home / f"kafka_python-{VERSION}.tar.gz"
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != SHA256:
            raise SetUpFailed(f"kafka-python {VERSION} has the hash {digest}, expected {SHA256}")
        with tarfile.open(archive) as packed:
            packed.extractall(home, filter="data")
        (source / "test" / "__init__.py").touch()  # not in the distribution; without it Python's own "test" is found
        _step([sys.executable, "-m", "venv", str(home / "venv")], home)
        _step([str(python), "-m", "pip", "install", "--quiet", *NEEDS], home)
        (home / "made").touch()
    shutil.copyfile(HERE / "service.py", source / "test" / "service.py")
    return source, python


@contextlib.contextmanager
def serving(kind: str, scratch: Path) -> Iterator[str]:
    """A broker of the kind asked for; yields its bootstrap address."""
    if kind == "node":
        with AnabranchNode(scratch, settings=NODE_SETTINGS) as node:
            yield node.bootstrap
    elif kind == "kafka":
        with KafkaBroker(scratch, settings=KAFKA_SETTINGS) as broker:
            yield broker.bootstrap
    else:
        yield kind


def outcomes(report: Path) -> dict[str, str]:
    """Test name -> passed, failed or skipped, from pytest's report."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        found[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return found


def main() -> int:
    """Run; exit code 0 when every listed test passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="node", help="node, kafka, or HOST:PORT of a running one")
    parser.add_argument("--only", default="", help="pytest -k expression")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "compat")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    source, python = install()
    stem = args.output / f"kafka-python-{args.broker.replace(':', '_')}"
    report, log = stem.with_suffix(".xml"), stem.with_suffix(".log")
    report.unlink(missing_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="kafka-python-suite-") as scratch,
        serving(args.broker, Path(scratch)) as bootstrap,
        log.open("wb") as output,
    ):
        environment = {
            **os.environ,
            "KAFKA_ROOT": scratch,
            "KAFKA_VERSION": "4.0.0",
            "KAFKA_URI": f"kafka://{bootstrap}",
        }
        command = [str(python), "-m", "pytest", "test/integration", f"--timeout={SECONDS_PER_TEST}", "-q", "-ra"]
        command += [
            "-p",
            "no:cacheprovider",
            f"--junitxml={report.resolve()}",
            *(["-k", args.only] if args.only else []),
        ]
        subprocess.run(
            command,
            cwd=source,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if not report.exists():
        print(f"pytest wrote no report; see {log}")
        return 1
    found = outcomes(report)
    for name, state in sorted(found.items()):
        print(f"{state:8} {name}")
    print(", ".join(f"{number} {state}" for state, number in Counter(found.values()).most_common()), f"({log})")
    if args.broker != "node":
        return 0
    lines = ALLOWLIST.read_text().splitlines() if ALLOWLIST.exists() else []
    listed = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    broken = sorted(name for name in listed if found.get(name, "passed" if args.only else "missing") != "passed")
    for name in broken:
        print(f"FAILURE: {name} is on the allowlist and {found.get(name, 'missing')}")
    for name in sorted(name for name, state in found.items() if state == "passed" and name not in listed):
        print(f"passes and is not on the allowlist, add it: {name}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
