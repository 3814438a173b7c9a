"""Runs the topic tests of YDB's SDK for Python, as its source distribution carries them, against a node of ours.

    python tests/compat/ydb_python/run.py                          # our node, compared with allowlist.txt
    python tests/compat/ydb_python/run.py --endpoint HOST:PORT     # another server

A test of the allowlist that does not pass makes the run fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from tests.compat.suites import Distribution, judge, run, run_pytest, show  # noqa: E402
from tests.node_process import ANY, NodeProcess  # noqa: E402

SDK = Distribution(
    name="ydb",
    version="3.33.2",
    sha256="927efa83bc7fec8366eebc01a100eb07389bacb4e9a1827cd801606836c66f86",
    needs=(
        "ydb==3.33.2",
        "docker==7.1.0",  # imported by the suite's fixtures, not used
        "freezegun==1.5.5",
        "pytest==7.4.4",
        "pytest-asyncio==0.21.2",  # newer ones have no event_loop fixture
        "pytest-docker==3.1.2",  # as docker
        "pytest-timeout==2.4.0",
    ),
)
ALLOWLIST = HERE / "allowlist.txt"
SECONDS_PER_TEST = 90
LISTEN = {"ydb": ANY}


def main() -> int:
    """Run; exit code 0 when every listed test passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", help="HOST:PORT of a running server instead of a node of ours")
    parser.add_argument("--only", default="", help="pytest -k expression")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "compat")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    source, python = SDK.install()
    shutil.rmtree(source / "ydb", ignore_errors=True)  # the installed one is tested, with what it was built for
    shutil.copyfile(HERE / "topics_conftest.py", source / "tests" / "topics" / "conftest.py")
    stem = args.output / "ydb-python"
    alone = ["-c", os.devnull, "--rootdir=.", "--asyncio-mode=auto"]  # or pytest finds the settings of our tests above
    arguments = [*alone, "tests/topics", f"--timeout={SECONDS_PER_TEST}", *(["-k", args.only] if args.only else [])]
    with tempfile.TemporaryDirectory(prefix="ydb-python-suite-") as scratch:
        node = NodeProcess(Path(scratch) / "data", listen=LISTEN)
        try:
            endpoint = args.endpoint or node.start().ydb
            environment = {**os.environ, "YDB_TEST_ENDPOINT": endpoint}
            found = run_pytest(python, arguments, source=source, environment=environment, stem=stem)
        finally:
            node.dispose()
    show(found, stem.with_suffix(".log"))
    if not found or args.endpoint:
        return 0 if found else 1
    return judge(found, ALLOWLIST, partial=bool(args.only))


if __name__ == "__main__":
    run(main)
