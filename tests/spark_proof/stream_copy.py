"""kill -9 of the driver with its workers, and of the node, while a stream is copied: each record is there once.

`python -m tests.spark_proof.stream_copy --records 20000 --kills 6`; exit code 1 if anything is missing, there twice, or
out of order.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.node_process import NodeProcess
from tests.spark_pipeline.conftest import PIPELINE
from tests.spark_proof.copied import Copy

_LOOK_S = 0.05


def main() -> int:
    """Copy, kill, copy on, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=30.0, help="until the proof is given up")
    args = parser.parse_args()
    give_up = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory(prefix="anabranch-proof-") as scratch:
        directory = Path(scratch)
        with NodeProcess(directory / "node", listen=PIPELINE) as node:
            copy = Copy(node, directory, args.records)
            kills = 0
            while True:
                driver = copy.query("--offsets", str(max(1, args.records // 50)))
                if kills < args.kills and not _finished_before(driver, copy, kills + 1, args.kills + 1, give_up):
                    kills += 1
                    if kills % 2:
                        _kill(driver)
                        print(f"killed the driver with {copy.copied()} of {args.records} copied", flush=True)
                    else:
                        node.restart(kill=True)
                        print(f"killed the node with {copy.copied()} of {args.records} copied", flush=True)
                        code = driver.wait(max(1.0, give_up - time.monotonic()))
                        print(f"the driver ended with {code}", flush=True)
                    continue
                if driver.wait(max(1.0, give_up - time.monotonic())) == 0:
                    break
                print(copy.log.read_text(errors="replace")[-3000:])
            differences = copy.differences()
    for sentence in differences:
        print(sentence)
    print("DIFFERENT" if differences else f"{args.records} records, {kills} kills: each is there once, in order")
    return 1 if differences else 0


def _finished_before(driver: subprocess.Popen[bytes], copy: Copy, part: int, parts: int, give_up: float) -> bool:
    """Wait until the next part of the records was copied, or the driver has ended, which is told."""
    while copy.copied() < copy.records * part // parts:
        try:
            driver.wait(_LOOK_S)
            return True
        except subprocess.TimeoutExpired:
            if time.monotonic() > give_up:
                _kill(driver)
                raise SystemExit("the proof took too long") from None
    return False


def _kill(driver: subprocess.Popen[bytes]) -> None:
    """The driver and what it has started, Java first: nothing gets a chance to finish."""
    import psutil

    children = psutil.Process(driver.pid).children(recursive=True)
    for process in children:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()


if __name__ == "__main__":
    sys.exit(main())
