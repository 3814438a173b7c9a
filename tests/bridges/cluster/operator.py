"""Somebody who moves slots and drains nodes of a simulated cluster, and judges whether that is how things are then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bridges.cluster.slots import ANY
from tests.bridges.cluster.actors import Cluster
from tests.sbp_back.range_server.object_log.checker import Broken

_UNSURE = object()
"""What was asked got no answer: it may be done at any time."""


class Operator:
    """Wishes at random until all is calm; what was answered must hold for ever, whatever becomes of nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._pins: dict[int, Any] = {}
        self._drained: dict[int, Any] = {}
        self._open: dict[object, tuple[dict[int, Any], int]] = {}
        self._client = cluster.client(lambda step: step)

    def work(self) -> None:
        """One wish, and later the next one."""
        world, cluster = self._world, self._cluster
        if world.calm:
            return
        random, rules = world.random, cluster.rules
        node = random.choice(cluster.nodes).number
        slot = random.randrange(cluster.slots)
        match random.randrange(6):
            case 0 | 1 | 2:
                self._ask(
                    f"pin {slot} to n{node}", partial(rules.pin, slots=[slot], node_id=node), self._pins, slot, node
                )
            case 3:
                self._ask(f"unpin {slot}", partial(rules.unpin, slots=[slot]), self._pins, slot, ANY)
            case 4:
                self._ask(f"drain n{node}", partial(rules.drain, node_id=node), self._drained, node, True)
            case _:
                self._ask(f"undrain n{node}", partial(rules.undrain, node_id=node), self._drained, node, False)
        world.after(random.uniform(0.3, 2.0), self.work)

    def _ask(self, what: str, work: Callable[..., bool], told: dict[int, Any], key: int, value: Any) -> None:
        wish = object()
        self._open[wish] = told, key

        def done(answered: bool, taken: bool) -> None:
            self._open.pop(wish, None)
            self._world.tell(f"{what}: {taken if answered else 'perhaps'}")
            if not answered:
                told[key] = _UNSURE
            elif taken and told.get(key) is not _UNSURE:
                told[key] = value

        self._client.ask(work, done)

    def relent(self) -> None:
        """All is calm: nothing is wished any more, and somebody who stays may own something."""
        self._client.kill()
        if self._cluster.postgres is not None:
            self._cluster.postgres.server.end_holders(None, 0.0)
        for told, key in self._open.values():
            told[key] = _UNSURE
        drained = self.drained()
        alone = not any(node.stays and node.number not in drained for node in self._cluster.nodes)
        for number in sorted(drained):
            if alone or self._world.random.random() < 0.3:
                self._cluster.transaction(partial(self._cluster.rules.undrain, node_id=number))
                self._drained[number] = _UNSURE  # an answer to an earlier wish may be on its way

    def drained(self) -> set[int]:
        """Nodes that are to own nothing, as the database has it."""
        return {number for (number,) in self._cluster.connection.execute("SELECT node_id FROM cluster_drained")}

    def is_content(self) -> bool:
        """Whether those who are there own what they are to own, and of the rest like shares."""
        rows = self._cluster.connection.execute("SELECT slot, owner, pin FROM cluster_slots").fetchall()
        drained = self.drained()
        there = {node.number: node.start for node in self._cluster.nodes if node.alive and node.keeper is not None}
        able = {number: start for number, start in there.items() if number not in drained}
        sizes = dict.fromkeys(able.values(), 0)
        free = dict(sizes)
        for _, owner, pin in rows:
            if owner not in sizes or able.get(pin, owner) != owner:
                return False
            sizes[owner] += 1
            free[owner] += pin not in able
        # Whoever has something that he need not have has no more than is alike.
        return all(sizes[one] - least <= 1 for one in sizes if free[one] for least in [min(sizes.values())])

    def judge(self) -> None:
        """Raises Broken where something that was answered is forgotten."""
        pins = dict(self._cluster.connection.execute("SELECT slot, pin FROM cluster_slots").fetchall())
        drained = self.drained()
        for slot, pin in self._pins.items():
            if pin is not _UNSURE and pins[slot] != pin:
                raise Broken(f"slot {slot} was pinned to {pin}, and is to {pins[slot]}")
        for number, value in self._drained.items():
            if value is not _UNSURE and (number in drained) != value:
                raise Broken(f"node {number} was {'drained' if value else 'undrained'}, and is not")
        for node in self._cluster.nodes:
            if node.alive and node.leaves:
                raise Broken(f"node {node.number} was to stop, and has not")
