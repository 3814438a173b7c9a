"""One schedule from a seed: clients write and read while things go wrong; then all is calm, and promises are checked.

python -m tests.sbp_back.range_server.object_log.simulate 1000        # the first thousand seeds
python -m tests.sbp_back.range_server.object_log.simulate --seed 17   # one, told line by line
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from hashlib import sha256

from tests.sbp_back.range_server.object_log.checker import Broken
from tests.sbp_back.range_server.object_log.nodes import Cluster, Rules

NODES = 3
PARTITIONS = 2
FAULTS_UNTIL = 12.0
PATIENCE = 40.0
"""Seconds of calm in which everybody must be able to write again."""


class Schedule:
    """A run of the cluster under faults."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.cluster = Cluster(seed, NODES, PARTITIONS, rules or Rules())
        self.world = self.cluster.world
        self.after_calm = [0] * PARTITIONS
        self.written = 0
        self._leader = [0] * PARTITIONS

    def run(self) -> Schedule:
        """Raises Broken."""
        for node in self.cluster.nodes:
            self.world.after(self.world.random.random(), node.start)
        for partition in range(PARTITIONS):
            self.world.after(self.world.random.random(), lambda partition=partition: self._write(partition))
            self.world.after(1.0, lambda partition=partition: self._read(partition))
        self.world.after(1.0, self._fault)
        self.world.run(FAULTS_UNTIL)
        self.world.calm = True
        self.cluster.tables.skew = 0.0
        for node in self.cluster.nodes:
            if node.paused:
                node.resume()
            if not node.alive:
                node.start()
        self.world.run(FAULTS_UNTIL + PATIENCE, lambda: all(count >= 3 for count in self.after_calm))
        self.cluster.checker.judge(self.cluster.contents())
        if not all(self.after_calm):
            raise Broken(f"no progress: {self.after_calm} written in {PATIENCE} s of calm")
        return self

    def digest(self) -> str:
        """Of everything that happened."""
        return sha256("\n".join(self.world.story).encode()).hexdigest()

    # --- clients ------------------------------------------------------------------------------------------------

    def _write(self, partition: int) -> None:
        """A value, to whoever is believed to own the partition; the next one when that is answered or given up."""
        world = self.world
        self.written += 1
        value = f"v{self.written}"
        node = self.cluster.nodes[self._leader[partition]]
        answered = False

        def reply(offset: int) -> None:
            # What a node has said is said, whether its client still waits or not.
            if offset >= 0:
                self.cluster.checker.acknowledge(partition, offset, value)
                world.tell(f"{value} is {partition}@{offset}")
            world.after(world.latency(0.002), lambda: next_one(offset))

        def next_one(offset: int) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            if offset >= 0 and world.calm:
                self.after_calm[partition] += 1
            if offset < 0:
                self._leader[partition] = world.random.randrange(NODES)
            world.after(0.05 if offset < 0 else world.random.random() * 0.2, lambda: self._write(partition))

        if node.alive and not world.chance(0.02):
            world.after(world.latency(0.002), node.mine(lambda: node.append(partition, value, reply)))
        world.after(1.5, lambda: next_one(-1))

    def _read(self, partition: int) -> None:
        world = self.world
        node = world.random.choice(self.cluster.nodes)
        if node.alive and not node.paused:
            for offset, value in node.read(partition):
                self.cluster.checker.show(partition, offset, value)
        world.after(0.3, lambda: self._read(partition))

    # --- faults -------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        world = self.world
        if world.calm:
            return
        random = world.random
        node = random.choice(self.cluster.nodes)
        match random.randrange(9):
            case 0 | 1 if node.alive:
                world.tell(f"kill n{node.number}")
                node.kill()
                world.after(random.uniform(0.2, 5.0), lambda: node.alive or world.calm or node.start())
            case 2 | 3 if node.alive and not node.paused:
                world.tell(f"pause n{node.number}")
                node.pause()
                world.after(random.uniform(0.5, 8.0), lambda: node.paused and node.resume())
            case 4:
                self.cluster.database.away_until = world.now + random.uniform(0.1, 3.0)
            case 5:
                self.cluster.store.away_until = world.now + random.uniform(0.1, 3.0)
            case 6:
                self.cluster.tables.skew = random.uniform(-5.0, 5.0)
            case 7 if node.alive and not node.paused:
                node.suspect()
            case _:
                if node.alive and not node.paused:
                    node.hand_over(random.randrange(PARTITIONS))
        world.after(random.uniform(0.1, 1.5), self._fault)


def first_broken(seeds: Iterable[int], rules: Rules | None = None) -> tuple[int, Broken] | None:
    """The first seed whose schedule breaks a promise, and how; None: none does."""
    for seed in seeds:
        try:
            Schedule(seed, rules).run()
        except Broken as broken:
            return seed, broken
    return None


def main(arguments: list[str]) -> int:
    """Exit code 1 when a promise was broken."""
    if arguments[:1] == ["--seed"]:
        schedule = Schedule(int(arguments[1]))
        try:
            schedule.run()
        finally:
            print("\n".join(schedule.world.story))
        return 0
    count = int(arguments[0]) if arguments else 1000
    began = time.monotonic()
    found = first_broken(range(count))
    if found is not None:
        print(f"seed {found[0]}: {found[1]}")
        return 1
    print(f"{count} schedules in {time.monotonic() - began:.1f} s: every promise kept")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
