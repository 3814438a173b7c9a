"""The problems of all nodes: asks the others, and answers them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import Struct

from bridges.cluster.at_owner import ask_others
from bridges.console.problems.measuring import find_problems, name_of, tell
from bridges.console.problems.rules import BY_NAME, Measured, Problem, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bridges.console.host import Host

_KIND = "problems"
_ASKED_S = 3.0
_ORDER = list(Severity)


class Asked(Struct, array_like=True):
    """The question to another node for its problems."""


class Told(Struct, array_like=True):
    """The problems of a node, and how many others it has taken for dead in half an hour."""

    problems: list[Problem]
    takeovers: int


def serve(node: Host) -> None:
    """Answer other nodes that ask for this node's problems."""
    node.peers.serve(_KIND, Asked, lambda _: _find_here(node))


async def _find_here(node: Host) -> Told:
    return Told(await find_problems(node), node.watch.takeovers(node))


async def find_everywhere(node: Host) -> list[Problem]:
    """Return the problems of all nodes: nodes that do not answer first, then by importance."""
    here, (answers, down) = await asyncio.gather(
        _find_here(node), ask_others(node.cluster, node.peers, _KIND, Asked(), Told, _ASKED_S)
    )
    told = [here, *answers]
    problems = [problem for one in told for problem in one.problems]
    problems += _find_of_cluster(node, [one.takeovers for one in told])
    problems.sort(key=lambda one: _ORDER.index(one.severity))
    down |= node.cluster.outages().silent.keys() - {one.node_id for one in node.cluster.nodes}
    rule = BY_NAME["Down"]
    return [one for down_id in sorted(down) for one in tell(rule, [Measured(1)], f"node {down_id}", down_id)] + problems


def _find_of_cluster(node: Host, takeovers: Sequence[int]) -> list[Problem]:
    outages, here = node.cluster.outages(), node.cluster.node_id

    def measured() -> Iterator[tuple[str, Measured]]:
        for one in node.cluster.nodes:
            yield "NodeSilent", Measured(outages.silent.get(one.node_id, 0.0), {"silent": str(one.node_id)})
        yield "SlotsUnowned", Measured(outages.unowned)
        yield "NodesComeAndGo", Measured(sum(takeovers))

    return [
        problem
        for name, one in measured()
        if one.value > BY_NAME[name].threshold
        for problem in tell(BY_NAME[name], [one], name_of(node, here), here)
    ]
