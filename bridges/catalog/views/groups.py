"""Consumer groups as operators see them: the views that a front gives the console and the command line.

A front reports who is in a group and who reads which partition. Committed positions belong to all fronts
(bridges/catalog/progress.py), so the node adds them, and the lag, itself (bridges/console/groups/requests.py).

The directories of all fronts of one space are together the registry of a group's members. A group of one space and name
has one coordinator, whatever its protocols, so that node's directories know all members. A group's members all use one
protocol at a time. A front asks the others (:meth:`bridges.catalog.progress.FrontProgress.require_free`) in the step in
which it lets a member in, and before it changes positions for a client that is not a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from msgspec import Struct

CONSUMERS = "consumers"
"""The space of groups that read topics and have a plain name: Kafka's consumer groups, YDB's consumers."""

GroupName = tuple[str, str]
"""Space and name of a group (see :mod:`bridges.catalog.progress`)."""

Place = tuple[str, int]
"""Topic and partition of a position."""


class GroupMemberView(Struct, frozen=True):
    """A member and the (topic, partition) pairs it reads; ``partitions`` is None if its assignment is opaque to the
    node."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[tuple[str, int], ...] | None
    software: str = ""
    """Name and version of the client library as it reports them; empty if unknown."""
    user: str = ""
    """The authenticated principal; empty without one."""


class GroupSummary(Struct, frozen=True):
    """One line of a list of groups; ``kind`` is the protocol's name for the type of group."""

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
    """The groups that clients joined through a front.

    Groups that have only committed positions are not in it. Reading it changes nothing.
    """

    @property
    def space(self) -> str:
        """Return the space of the groups' names (see :mod:`bridges.catalog.progress`). Fronts with the same space share
        groups."""
        ...

    def summaries(self) -> Iterable[GroupSummary]:
        """Return all groups, in any order; groups may come and go during the iteration."""
        ...

    def knows(self, group_id: str) -> bool:
        """Return whether the front knows all members of a group that this node coordinates. It does not until it has
        read the stored ones."""
        ...

    def summary(self, group_id: str) -> GroupSummary | None:
        """Return a group's line, None if there is no such group."""
        ...

    def view(self, group_id: str) -> GroupView | None:
        """Return a group, None if there is no such group."""
        ...


def records_behind(committed: int, start: int, end: int) -> int:
    """Return how many records a group has still to read in a partition that keeps the offsets from ``start`` to before
    ``end``.

    Records below ``start`` do not count, unlike in ``kafka-consumer-groups``.
    """
    return max(0, end - max(committed, start))


def live_groups(directories: Mapping[str, GroupDirectory]) -> Iterator[tuple[GroupName, str, GroupSummary]]:
    """Yield (name, front, summary) of the groups in the fronts' directories."""
    for front, directory in directories.items():
        for summary in directory.summaries():
            yield (directory.space, summary.group_id), front, summary
