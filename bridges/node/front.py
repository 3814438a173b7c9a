"""What a protocol front-end must offer to be part of a node.

A front is found through the entry-point group ``anabranch.fronts``: each entry names a factory that is called with the
:class:`bridges.node.assembly.Node` and returns a :class:`Front`. Nothing else in this package knows which fronts there
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from bridges.catalog.group_view import GroupDirectory, GroupName, GroupSummary
from bridges.net.address import Address

ENTRY_POINTS = "anabranch.fronts"


class Front(Protocol):
    """One protocol, served on one or more listeners."""

    @property
    def name(self) -> str:
        """Short name of the protocol, as it appears in metrics and logs."""
        ...

    @property
    def listeners(self) -> Mapping[str, int]:
        """Listener names and their usual ports."""
        ...

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        """Listen on the given addresses; returns the real ones (ports chosen). Raises OSError if one is taken."""
        ...

    async def drain(self) -> None:
        """Accept nothing new and return when everything in flight is answered. May be cancelled after a time."""
        ...

    async def stop(self) -> None:
        """Close every connection and release everything. Called once, also when ``start`` failed."""
        ...


@runtime_checkable
class HasGroups(Protocol):
    """What a front may offer besides, if its protocol has consumer groups: the console then shows them."""

    @property
    def groups(self) -> GroupDirectory | None:
        """The groups that live in this front; None while it is not started."""
        ...


def group_directories(fronts: Iterable[Front]) -> dict[str, GroupDirectory]:
    """The directories of those fronts that have one now, by the front's name."""
    return {
        front.name: directory
        for front in fronts
        if isinstance(front, HasGroups) and (directory := front.groups) is not None
    }


def live_groups(fronts: Iterable[Front]) -> dict[GroupName, dict[str, GroupSummary]]:
    """The groups that live in any front: by their space and name, then by the front's."""
    found: dict[GroupName, dict[str, GroupSummary]] = {}
    for front, directory in group_directories(fronts).items():
        for summary in directory.summaries():
            found.setdefault((directory.space, summary.group_id), {})[front] = summary
    return found
