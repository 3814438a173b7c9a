"""Consumer groups as people look at them: what a front tells the console and the command line about its groups.

A front tells who is in a group and who reads what. Committed positions belong to all fronts
(bridges/catalog/progress.py), so the node adds them, and the lag, itself (bridges/console/groups.py).

The directories of all fronts of one space are the registry of a group's members: a group of one space and name has one
coordinator, whatever its protocols, so that node's directories know all members. Only members of one protocol are in a
group at a time. Each front asks the others (:meth:`bridges.catalog.progress.FrontProgress.require_free`) in the step in
which it lets a member in, and before it changes positions for a client that is no member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from msgspec import Struct

CONSUMERS = "consumers"
"""The space of groups that read topics and are called by a plain name: Kafka's consumer groups, YDB's consumers."""

GroupName = tuple[str, str]
"""Space and name of a group (see :mod:`bridges.catalog.progress`)."""

Place = tuple[str, int]
"""Topic and partition, in which a group has a position."""


class GroupMemberView(Struct, frozen=True):
    """A member and the (topic, partition) pairs it reads; ``partitions`` is None if its assignment is opaque to us."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[tuple[str, int], ...] | None
    software: str = ""
    """Name and version of what it reads with, as it says itself; empty if that is not known."""
    user: str = ""
    """Who it has proved to be; empty for nobody."""


class GroupSummary(Struct, frozen=True):
    """One line of a list of groups; ``kind`` is the protocol's name for the sort of group."""

    group_id: str
    kind: str
    state: str
    protocol_type: str
    members: int


class GroupView(Struct, frozen=True):
    """Everything a front knows about one of its groups; ``protocol`` is how its members share the partitions."""

    summary: GroupSummary
    generation: int
    protocol: str
    leader: str | None
    members: tuple[GroupMemberView, ...]


class GroupDirectory(Protocol):
    """The groups that live in a front: those clients joined through it.

    Groups of which there are but committed positions are none of them. Looking at groups changes nothing.
    """

    @property
    def space(self) -> str:
        """Whose names the groups have (see :mod:`bridges.catalog.progress`): fronts of one space mean the same
        group."""
        ...

    def summaries(self) -> Iterable[GroupSummary]:
        """All groups, in any order; groups may come and go while they are looked at."""
        ...

    def knows(self, group_id: str) -> bool:
        """Whether all members of a group are known that this node coordinates: stored ones may not be read yet."""
        ...

    def summary(self, group_id: str) -> GroupSummary | None:
        """One group's line, None if there is no such group."""
        ...

    def view(self, group_id: str) -> GroupView | None:
        """One group, None if there is no such group."""
        ...


def records_behind(committed: int, start: int, end: int) -> int:
    """Records a group has still to read in a partition that keeps the offsets from ``start`` to before ``end``.

    Records that are no longer there do not count, which is where this differs from ``kafka-consumer-groups``.
    """
    return max(0, end - max(committed, start))


def live_groups(directories: Mapping[str, GroupDirectory]) -> Iterator[tuple[GroupName, str, GroupSummary]]:
    """The groups that live in any front, given each front's: (name, front, summary), one by one."""
    for front, directory in directories.items():
        for summary in directory.summaries():
            yield (directory.space, summary.group_id), front, summary
