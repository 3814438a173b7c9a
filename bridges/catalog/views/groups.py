"""Consumer groups as operators see them: the views that a front gives the console and the command line.

A front reports who is in a group and who reads which partition. Committed positions belong to all fronts
(bridges/catalog/progress.py), so the node adds them, and the lag, itself (bridges/console/groups/requests.py).

The directories of all fronts of one space are together the registry of a group's members. A group of one space and name
has one coordinator, whatever its protocols, so that node's directories know all members. A group's members all use one
protocol at a time. A front asks the others (:meth:`bridges.catalog.progress.FrontProgress.require_free`) in the step in
which it lets a member in, and before it changes positions for a client that is not a member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    """Everything a front knows about one of its groups; ``protocol`` is how its members share the partitions, and
    ``dead_letter_topic`` the topic for records that they cannot process, empty if there is none."""

    summary: GroupSummary
    generation: int
    protocol: str
    leader: str | None
    members: tuple[GroupMemberView, ...]
    dead_letter_topic: str = ""


class SharedPlace(Struct, frozen=True):
    """A partition of a group whose members share the records of a partition (Kafka's share groups).

    No record below ``start`` is delivered again. Behind it, ``acquired`` records are with members now, ``done`` are
    finished, and ``deliveries`` counts the unfinished ones that were delivered before, by number of deliveries.
    """

    topic: str
    partition: int
    start: int
    acquired: int
    done: int
    deliveries: dict[int, int]

    def lag(self, start: int, end: int) -> int:
        """Return how many records of a partition that keeps the offsets from ``start`` to before ``end`` are not
        finished."""
        return max(0, records_behind(self.start, start, end) - self.done)


class GroupDirectory(Protocol):
    """The groups that clients joined through a front.

    Groups that have only committed positions are not in it. Reading it changes nothing. A front that keeps nothing of
    groups, or whose members share no records, inherits those methods.
    """

    @property
    def space(self) -> str:
        """Return the space of the groups' names (see :mod:`bridges.catalog.progress`). Fronts with the same space share
        groups."""
        ...

    def summaries(self) -> Iterable[GroupSummary]:
        """Return all groups, in any order; groups may come and go during the iteration."""
        ...

    def __contains__(self, group_id: object) -> bool:
        """Return whether there is such a group. A front calls :meth:`~bridges.catalog.progress.FrontProgress.came` and
        ``went`` when that changes."""
        return isinstance(group_id, str) and self.summary(group_id) is not None

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

    def sharing(self) -> Collection[str]:
        """Return the groups whose members share the records of partitions; they may come and go meanwhile."""
        return ()

    async def shared(self, group_id: str) -> Sequence[SharedPlace]:
        """Return the partitions of a group whose members share records; none for other groups. Raises LogError."""
        return ()

    async def forget(self, group_id: str) -> None:
        """Delete everything that this front keeps of a group without members, but positions. Raises GroupHeld if a
        member has joined, and other LogErrors."""
        return


def occupied(group: str, views: Mapping[str, GroupView]) -> str:
    """Return the sentence that says who is in a group: its members by front."""
    told = []
    for front, view in sorted(views.items()):
        if view.members:
            first, many = view.members[0], len(view.members)
            count = "a member" if many == 1 else f"{many} members"
            client = first.client_id or first.member_id
            told.append(f"{count} through {front} ({client} at {first.client_host.lstrip('/')})")
    return f"group {group!r} has {' and '.join(told)}"


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
