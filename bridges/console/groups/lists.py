"""Lists of the groups of all nodes: each node lists those that it coordinates, and the lists become one.

A node is asked over a stream, which it writes no faster than it is read. For a page it writes the keys by which groups
are sorted, and is asked for the rows of the page then; for a whole list it writes the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from anabranch_kit.run.turns import Turns, in_turns
from bridges.auth import Operation, Principal, Resource, ResourceKind
from bridges.catalog.views.groups import GroupName
from bridges.cluster.at_owner import find_others
from bridges.console.groups.rows import GroupRows
from bridges.console.page import Page, chosen
from bridges.errors import LogError

if TYPE_CHECKING:
    from bridges.cluster.members import Member
    from bridges.cluster.peers.stream import PeerStream
    from bridges.console.host import Host

_GROUPS, _ROWS = "groups", "rows of groups"
_ASKED_S = 5.0
_KEYS_AT_ONCE = 1000
_ROWS_AT_ONCE = 100
"""Rows of a page in one answer, which is below the size that nodes take."""
_BYTES_AT_ONCE = 64 * 1024

Row = dict[str, Any]
Item = tuple[float, str, str, Row | None]
"""The number by which a list is sorted, a group, its space, and its row in a whole list."""


class Wanted(Struct, array_like=True, frozen=True):
    """A list of the groups that ``principal`` may see; with ``topic``, of those with positions in it."""

    principal: Principal
    page: Page
    topic: str = ""


class _RowsAsked(Struct, array_like=True, frozen=True):
    """The rows of some groups in a page of such a list."""

    of: Wanted
    names: list[GroupName]


class _Rows(Struct, array_like=True):
    rows: list[Row]


class GroupLists:
    """Access to the groups of all nodes, and the answers of this one."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._rows = GroupRows(node)

    def serve(self) -> None:
        """Answer other nodes from now on."""
        self._node.peers.serve_stream(_GROUPS, Wanted, self._tell)
        self._node.peers.serve(_ROWS, _RowsAsked, self._tell_rows)

    async def find(
        self, wanted: Wanted, stack: AsyncExitStack, unanswered: set[int]
    ) -> tuple[int, AsyncIterator[tuple[Member | None, Item]]]:
        """Return the number of groups, and these in order, each with its node if that is another one; ``stack`` ends
        the streams that they come from. Adds to ``unanswered`` the nodes whose groups are missing."""
        total, here = await self._here(wanted)
        members = find_others(self._node.cluster)
        told = await asyncio.gather(*(self._there(wanted, one, stack, unanswered) for one in members))
        parts = [(None, here), *((member, items) for member, (_, items) in zip(members, told, strict=True))]
        return total + sum(number for number, _ in told), _merged(parts, wanted.page)

    async def _there(
        self, wanted: Wanted, member: Member, stack: AsyncExitStack, unanswered: set[int]
    ) -> tuple[int, AsyncIterator[Item]]:
        """Return the number of a node's groups, and these as they are read; with ``stack`` its stream ends."""
        peers = self._node.peers

        async def read() -> AsyncIterator[Item]:
            try:
                while (some := await self._next(stream, list[Item])) is not None:
                    for one in some:
                        yield one
            except (LogError, TimeoutError):
                unanswered.add(member.node_id)

        try:
            async with asyncio.timeout(_ASKED_S):
                stream = await peers.stream(member, _GROUPS, wanted)
            stack.callback(peers.close_stream, member, stream)
            return await self._next(stream, int) or 0, read()
        except (LogError, TimeoutError):
            unanswered.add(member.node_id)
            return 0, _each(())

    @staticmethod
    async def _next(stream: PeerStream, kind: type[Any]) -> Any:
        """Return the next message, None at the end. Raises PeerUnreachable, TimeoutError."""
        async with asyncio.timeout(_ASKED_S):
            return await stream.receive(kind)

    async def rows_elsewhere(
        self, wanted: Wanted, found: Sequence[tuple[Member | None, GroupName]], unanswered: set[int]
    ) -> dict[GroupName, Row]:
        """Return the rows of the groups of other nodes."""
        names: dict[int, tuple[Member, list[GroupName]]] = {}
        for member, name in found:
            if member is not None:
                names.setdefault(member.node_id, (member, []))[1].append(name)
        rows_of: dict[GroupName, Row] = {}

        async def ask(member: Member, all_of_it: list[GroupName]) -> None:
            for start in range(0, len(all_of_it), _ROWS_AT_ONCE):
                asked = _RowsAsked(wanted, all_of_it[start : start + _ROWS_AT_ONCE])
                try:
                    told = await self._node.peers.ask(member, _ROWS, asked, _Rows, _ASKED_S)
                except LogError:
                    unanswered.add(member.node_id)
                    return
                rows_of.update({(row["space"], row["group"]): row for row in told.rows})

        await asyncio.gather(*(ask(*one) for one in names.values()))
        return rows_of

    # --- at each node -------------------------------------------------------------------------------------------------

    async def _tell(self, wanted: Wanted, stream: PeerStream) -> None:
        total, items = await self._here(wanted)
        await stream.write(msgspec.msgpack.encode(total))
        some: list[msgspec.Raw] = []
        size = 0
        async for one in items:
            some.append(msgspec.Raw(msgspec.msgpack.encode(one)))
            size += len(some[-1])
            if len(some) == _KEYS_AT_ONCE or size > _BYTES_AT_ONCE:
                await stream.write(msgspec.msgpack.encode(some))
                some, size = [], 0
        await stream.write(msgspec.msgpack.encode(some))
        await stream.done_writing()

    async def _tell_rows(self, asked: _RowsAsked) -> _Rows:
        found = (row for name in asked.names for row in self.row(asked.of, name))
        return _Rows([row async for row in in_turns(found) if row is not None])

    async def _here(self, wanted: Wanted) -> tuple[int, AsyncIterator[Item]]:
        """Return the number of this node's groups that are asked for, or 0 for a whole list, and the first of them: as
        many as the page may need, sorted."""
        page, listed = wanted.page, self._node.progress.listed
        descending, most = page.sort == "name" and page.descending, page.skip + page.limit
        if wanted.topic:
            names: Iterable[GroupName] = self._node.progress.readers_of(wanted.topic)
        else:
            names = listed.walk(descending=descending)
        if wanted.topic or page.sort != "name":
            first = msgspec.structs.replace(page, skip=0, limit=most)
            keys, total = await chosen(self._keys(wanted, names), first, descending=descending)
            return total, self._with_rows(wanted, keys) if page.whole else _each(keys)
        if page.whole:
            return 0, self._with_rows(wanted, self._keys(wanted, names))
        if self._sees_all(wanted):
            return len(listed), _each([(0.0, *name[::-1]) for name in listed.page(0, most, descending=descending)])
        keys, total = [], 0
        async for key in in_turns(self._keys(wanted, names)):
            if key is not None:
                if total < most:
                    keys.append(key)
                total += 1
        return total, _each(keys)

    def _sees_all(self, wanted: Wanted) -> bool:
        everything = self._node.authorizer.stand_in(wanted.principal) is None
        return self._node.group_states.all_are_here and everything and not wanted.page.search

    def _keys(self, wanted: Wanted, names: Iterable[GroupName]) -> Iterator[tuple[float, str, str] | None]:
        """Yield the keys of those of ``names`` that this node coordinates and that are asked for; None for others."""
        page, is_here, allows = wanted.page, self._node.group_states.is_here, self._node.authorizer.allows
        lags, summaries = self._node.recorder.lags, self._node.progress.summaries
        for name in names:
            if not (
                page.finds(name[1])
                and is_here(name)
                and allows(wanted.principal, Operation.DESCRIBE, Resource(ResourceKind.GROUP, name[1]))
            ):
                yield None
                continue
            value = 0.0
            if page.sort == "members":
                value = sum(summary.members for summary in summaries(name).values())
            elif page.sort in ("lag", "seconds"):
                value = lags.get(name, (0, 0.0))[page.sort == "seconds"]
            yield page.keyed(value), name[1], name[0]

    async def _with_rows(self, wanted: Wanted, keys: Iterable[tuple[float, str, str] | None]) -> AsyncIterator[Item]:
        """Yield the items of a whole list."""
        turns = Turns()
        for key in keys:
            await turns.rest()
            if key is None:
                continue
            for row in self.row(wanted, (key[2], key[1])):
                await turns.rest()
                if row is not None:
                    yield *key, row

    def row(self, wanted: Wanted, name: GroupName) -> Iterator[Row | None]:
        """Yield the row of a group of this node in such a list; None where much was done."""
        if wanted.topic:
            partitions = self._node.catalog.topic(wanted.topic).partitions
            return self._rows.in_topic(name, ((wanted.topic, info.index) for info in partitions))
        make: Callable[[Principal, GroupName], Iterator[Row | None]] = (
            self._rows.whole if wanted.page.whole else self._rows.short
        )
        return make(wanted.principal, name)


async def _each(keys: Iterable[tuple[float, str, str]]) -> AsyncIterator[Item]:
    turns = Turns()
    for key in keys:
        await turns.rest()
        yield *key, None


async def _merged(
    parts: Sequence[tuple[Member | None, AsyncIterator[Item]]], page: Page
) -> AsyncIterator[tuple[Member | None, Item]]:
    """Yield the items of all parts in order, each with its node; a group that moves meanwhile comes once."""
    choose = max if page.sort == "name" and page.descending else min
    heads = [(item, member, items) for member, items in parts if (item := await anext(items, None)) is not None]
    before: tuple[str, str] | None = None
    while heads:
        place = choose(range(len(heads)), key=lambda number: heads[number][0][:3])
        item, member, items = heads[place]
        following = await anext(items, None)
        heads[place : place + 1] = [] if following is None else [(following, member, items)]
        if item[1:3] != before:
            before = item[1:3]
            yield member, item
