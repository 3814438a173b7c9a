"""One schedule from a seed: clients write while nodes come, go and fail; then all is calm, and promises are checked.

python -m tests.bridges.cluster.simulate 1000        # the first thousand seeds
python -m tests.bridges.cluster.simulate --seed 17   # one, told line by line
python -m tests.bridges.cluster.simulate --workers 1000     # nodes are workers of one machine
python -m tests.bridges.cluster.simulate --postgres 1000    # nodes reach PostgreSQL by a wire that breaks
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from hashlib import sha256

from bridges.cluster.slots import sizes_of
from tests.bridges.cluster.actors import Cluster, Rules
from tests.bridges.cluster.operator import Operator
from tests.sbp_back.range_server.object_log.checker import Broken

NODES = 3
SLOTS = 7
FAULTS_UNTIL = 12.0
PATIENCE = 30.0
"""Seconds of calm in which everybody must be able to write again, and all shares be alike."""
LATE = 8.0
"""Seconds of calm after which no request of an earlier time arrives any more."""
QUIET = 5.0
"""Seconds behind all that in which nothing may move any more."""


class Schedule:
    """A run of the cluster under faults."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.cluster = Cluster(seed, NODES, SLOTS, rules or Rules())
        self.world = self.cluster.world
        self.operator = Operator(self.cluster)
        self.after_calm = [0] * SLOTS
        self.written = 0

    def run(self) -> Schedule:
        """Raises Broken."""
        world, cluster = self.world, self.cluster
        for node in cluster.nodes:
            world.after(world.random.random(), node.begin)
        for slot in range(SLOTS):
            world.after(world.random.random(), lambda slot=slot: self._write(slot))
        world.after(2.0, self._fault)
        world.after(2.0, self.operator.work)
        world.run(FAULTS_UNTIL)
        world.calm = True
        calm_since = world.now  # later, where somebody waited for the database
        for node in cluster.nodes:
            if node.paused:
                node.resume()
        # Some never come back: others have to end them. A worker's parent sees to it that it does.
        if cluster.rules.workers:
            coming = [node for node in cluster.nodes if not node.alive]
        elif any(node.stays for node in cluster.nodes):
            coming = [node for node in cluster.nodes if not node.alive and world.random.random() < 0.5]
        else:
            coming = cluster.nodes
        for node in coming:
            node.begin()
        self.operator.relent()
        world.run(calm_since + PATIENCE, self._is_settled)
        if not all(self.after_calm):
            raise Broken(f"no progress: {self.after_calm} written in {PATIENCE} s of calm")
        if not self._is_settled():
            raise Broken(f"shares are not alike after {PATIENCE} s of calm: {self._sizes()}")
        world.run(calm_since + LATE)
        moves = cluster.moves
        world.run(world.now + QUIET)
        if cluster.moves != moves:
            raise Broken("slots move though nothing has happened")
        self.operator.judge()
        cluster.checker.judge({slot: cluster.logs.contents(slot) for slot in range(SLOTS)})
        if cluster.postgres is not None:
            cluster.postgres.judge()
        return self

    def digest(self) -> str:
        """Of everything that happened."""
        return sha256("\n".join(self.world.story).encode()).hexdigest()

    def _sizes(self) -> dict[int, int]:
        return dict(sizes_of(owner for (owner,) in self.cluster.connection.execute("SELECT owner FROM cluster_slots")))

    def _is_settled(self) -> bool:
        if min(self.after_calm) < 3:
            return False
        return self.operator.is_content() and not any(
            node.alive and node.keeper and node.keeper.unsettled() for node in self.cluster.nodes
        )

    # --- clients ------------------------------------------------------------------------------------------------

    def _write(self, slot: int) -> None:
        """A value, to whoever says that it acts for the slot; the next one when that is answered or given up."""
        world = self.world
        self.written += 1
        value = f"v{self.written}"
        acting = [node for node in self.cluster.nodes if node.keeper is not None and slot in node.keeper.acting]
        node = world.random.choice(acting or self.cluster.nodes)
        answered = False

        def reply(offset: int) -> None:
            # What a node has said is said, whether its client still waits or not.
            if offset >= 0:
                self.cluster.checker.acknowledge(slot, offset, value)
                if world.calm:
                    self.after_calm[slot] += 1
            world.after(0.05, next_one)

        def next_one() -> None:
            nonlocal answered
            if not answered:
                answered = True
                self._write(slot)

        if node.alive:
            world.after(world.latency(0.002), node.mine(lambda: node.append(slot, value, reply)))
        world.after(1.0, next_one)

    # --- faults -------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        world = self.world
        if world.calm:
            return
        random = world.random
        node = random.choice(self.cluster.nodes)
        match random.randrange(7):
            case 0 | 1 if node.alive:
                world.tell(f"kill n{node.number}")
                node.kill()
                world.after(random.uniform(0.2, 5.0), lambda: node.alive or world.calm or node.begin())
            case 2 | 3 if node.alive and not node.paused:
                world.tell(f"pause n{node.number}")
                node.pause()
                world.after(random.uniform(0.5, 6.0), lambda: node.paused and node.resume())
            case 4:
                self.cluster.leave(random.uniform(0.1, 3.0))
            case 5 if node.alive and not node.paused:
                node.stop()
                world.after(random.uniform(3.0, 6.0), lambda: node.alive or world.calm or node.begin())
            case _:
                self.cluster.backend.away_until = world.now + random.uniform(0.1, 1.0)
        world.after(random.uniform(0.1, 1.5), self._fault)


def first_broken(seeds: Iterable[int], rules: Rules | None = None) -> tuple[int, Broken] | None:
    """The first seed whose schedule breaks a promise, and how; None: none does."""
    for seed in seeds:
        schedule = Schedule(seed, rules)
        try:
            schedule.run()
        except Broken as broken:
            return seed, broken
        finally:
            schedule.cluster.close()
    return None


def main(arguments: list[str]) -> int:
    """Exit code 1 when a promise was broken."""
    rules = Rules(workers=arguments[:1] == ["--workers"], postgres=arguments[:1] == ["--postgres"])
    arguments = arguments[rules.workers or rules.postgres :]
    if arguments[:1] == ["--seed"]:
        schedule = Schedule(int(arguments[1]), rules)
        try:
            schedule.run()
        finally:
            print("\n".join(schedule.world.story))
        return 0
    count = int(arguments[0]) if arguments else 1000
    began = time.monotonic()
    found = first_broken(range(count), rules)
    if found is not None:
        print(f"seed {found[0]}: {found[1]}")
        return 1
    print(f"{count} schedules in {time.monotonic() - began:.1f} s: every promise kept")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
