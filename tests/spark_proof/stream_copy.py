"""kill -9 of driver, executor, Python worker and node, in turns, while a stream is copied: each record is there once.

`python -m tests.spark_proof.stream_copy --records 20000 --kills 8`; exit code 1 if anything is missing, there twice, or
out of order, or if there was nothing to kill. The query runs on two executors of `local-cluster`, as on a cluster.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.node_process import NodeProcess
from tests.spark_pipeline.conftest import PIPELINE
from tests.spark_proof import victims
from tests.spark_proof.copied import Copy

_LOOK_S = 0.05
VICTIMS = ("Python workers", "driver", "executor", "node")


class Proof:
    """A copy that is killed until it is there."""

    def __init__(self, node: NodeProcess, copy: Copy, kills: int, give_up: float, master: str) -> None:
        self.node = node
        self.copy = copy
        self.wanted = kills
        self.kills = 0
        self.give_up = give_up
        self.master = master

    def run(self) -> None:
        """Start drivers, one after the other, until one has copied everything. Raises SystemExit."""
        offsets = str(max(1, self.copy.records // 50))
        while True:
            driver = self.copy.query("--offsets", offsets, "--master", self.master)
            try:
                while self.kills < self.wanted and self._reached(driver, self.kills + 1):
                    if self._kill(driver, VICTIMS[self.kills % len(VICTIMS)]):
                        self.kills += 1
                    else:
                        self._look(driver)  # an executor that was killed is started again, but not at once
                code = driver.wait(max(1.0, self.give_up - time.monotonic()))
            finally:
                if driver.poll() is None:
                    victims.kill_application(driver.pid)
                    driver.wait()
            if code == 0:
                break
            print(f"a driver ended with {code}", flush=True)
        if self.kills < self.wanted:
            raise SystemExit(f"everything was copied before {self.wanted} kills: take more records")

    def _reached(self, driver: subprocess.Popen[bytes], part: int) -> bool:
        """Wait until the next part of the records was copied; False if the driver has ended before."""
        while self.copy.copied() < self.copy.records * part // (self.wanted + 1):
            if self._look(driver):
                return False
        return driver.poll() is None

    def _look(self, driver: subprocess.Popen[bytes]) -> bool:
        """Whether the driver has ended. Raises SystemExit when all of it takes too long."""
        try:
            driver.wait(_LOOK_S)
            return True
        except subprocess.TimeoutExpired:
            if time.monotonic() > self.give_up:
                print(self.copy.log.read_text(errors="replace")[-3000:])
                raise SystemExit("the proof took too long") from None
            return False

    def _kill(self, driver: subprocess.Popen[bytes], victim: str) -> bool:
        """Whether there was one."""
        copied = self.copy.copied()
        if victim == "node":
            self.node.restart(kill=True)
            killed = 1
        elif victim == "driver":
            victims.kill_application(driver.pid)
            driver.wait()
            killed = 1
        elif victim == "executor":
            killed = victims.kill(victims.executors(driver.pid)[:1])
        else:
            killed = victims.kill(victims.python_workers(driver.pid))
        if killed:
            print(f"killed {victim} ({killed}) with {copied} of {self.copy.records} copied", flush=True)
        return bool(killed)


def main() -> int:
    """Copy, kill, copy on, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=30.0, help="until the proof is given up")
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anabranch-proof-") as scratch:
        directory = Path(scratch)
        with NodeProcess(directory / "node", listen=PIPELINE) as node:
            copy = Copy(node, directory, args.records)
            proof = Proof(node, copy, args.kills, time.monotonic() + 60 * args.minutes, args.master)
            proof.run()
            differences = copy.differences()
    for sentence in differences:
        print(sentence)
    print("DIFFERENT" if differences else f"{args.records} records, {proof.kills} kills: each is there once, in order")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
