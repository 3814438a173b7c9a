"""Among several nodes each group is coordinated by one: the owner of the slot that its name lies in.

Who becomes the owner reads what the former one has stored, positions and members, before it answers for a group;
clients are told to come again meanwhile. Who is the owner no longer answers whoever waits, and forgets the group: its
members go on at the next owner, within their sessions. A node that was paused may find a request of a group in its
socket that is another's by now: whatever it stores asks in the same transaction whether the slot is still its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from bridges.cluster.members import State
from bridges.errors import LogError
from bridges.turns import in_turns
from kafka_front.dispatch import Handler, Registry
from kafka_front.wire.apis import ApiKey
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.progress import Holding
    from bridges.cluster.ownership import Ownership
    from kafka_front.context import Context

    from .runtime import GroupRuntime

_log = structlog.get_logger("anabranch.kafka.groups")

_AGAIN_S = 0.25

_NAMES: dict[int, Callable[[Any], Iterable[str]]] = {
    int(ApiKey.OFFSET_FETCH): lambda request: [group.group_id for group in request.groups] or [request.group_id],
    int(ApiKey.DESCRIBE_GROUPS): lambda request: request.groups,
    int(ApiKey.DELETE_GROUPS): lambda request: request.groups_names,
    int(ApiKey.CONSUMER_GROUP_DESCRIBE): lambda request: request.group_ids,
    int(ApiKey.SHARE_GROUP_DESCRIBE): lambda request: request.group_ids,
    int(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS): lambda request: [group.group_id for group in request.groups],
}
"""The groups that a request is about, where that is not one named by ``group_id``."""
_OF_NONE = frozenset({int(ApiKey.FIND_COORDINATOR), int(ApiKey.LIST_GROUPS)})


class Reloaded(Protocol):
    """What is used of :class:`bridges.catalog.progress.FrontProgress`."""

    holding: Callable[[str], Holding]

    @property
    def space(self) -> str: ...

    async def reload(self, wanted: Callable[[str], bool]) -> None: ...

    async def settled(self) -> None: ...


class OwnedGroups:
    """Those of the slots that this node acts for."""

    def __init__(self, owners: Ownership, progress: Reloaded, runtime: GroupRuntime) -> None:
        self._owners = owners
        self._progress = progress
        self._runtime = runtime
        # Slots of which everything is known here.
        self._known: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        progress.holding = lambda group_id: owners.holding(self._slot(group_id))
        owners.on_gained.append(self._gained)
        owners.on_lost.append(self._lost)

    def owns(self, group_id: str) -> bool:
        """Whether this node coordinates a group, and knows all of it."""
        return self._slot(group_id) in self._known

    def require(self, group_id: str) -> None:
        """Raises KafkaError where this node does not coordinate the group, or not yet."""
        slot = self._slot(group_id)
        if slot in self._known:
            return
        if self._owners.is_mine(slot):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the group has just come to this node")
        owner = self._owners.owner(slot)
        if owner is None or owner.state is State.ENDING:
            # This node's former self, say: clients that are told to look for another one find the same, and give up.
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the group's node has ended, and another follows")
        raise KafkaError(ErrorCode.NOT_COORDINATOR, "another node coordinates the group")

    async def close(self) -> None:
        """Read nothing more."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def guarding(self, registry: Registry) -> Registry:
        """A registry that asks of every handler's groups first whether they are this node's."""
        return _Guarding(registry, self)

    def _slot(self, group_id: str) -> int:
        return self._owners.slot_of_key(self._progress.space, group_id)

    def _gained(self, slots: Collection[int]) -> None:
        task = asyncio.get_running_loop().create_task(self._read(frozenset(slots)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, slots: frozenset[int]) -> None:
        def wanted(group_id: str) -> bool:
            return self._slot(group_id) in slots

        while mine := {slot for slot in slots if self._owners.is_mine(slot)}:
            epochs = {slot: self._owners.epoch(slot) for slot in mine}
            try:
                await self._progress.reload(wanted)
                await self._runtime.load(
                    lambda group_id: wanted(group_id) and self._owners.is_mine(self._slot(group_id))
                )
            except LogError as error:
                _log.warning("groups that came to this node could not be read", error=str(error))
                await asyncio.sleep(_AGAIN_S)
                continue
            still = {slot for slot in mine if self._owners.is_mine(slot)}
            if all(self._owners.epoch(slot) == epochs[slot] for slot in still):
                self._known |= still
                return

    async def _lost(self, slots: Collection[int], in_order: bool) -> None:
        gone = frozenset(slots)
        self._known -= gone
        async for group_id in in_turns([*self._runtime.directory]):
            if self._slot(group_id) in gone:
                self._runtime.let_go(group_id)
        if in_order:
            await self._runtime.journal.settled()
            await self._progress.settled()


def _named(request: Any) -> Iterable[str]:
    return [request.group_id]


class _Guarding(Registry):
    def __init__(self, inner: Registry, owned: OwnedGroups) -> None:
        super().__init__()
        self._inner = inner
        self._owned = owned

    def register(self, key: int, handler: Handler) -> None:
        if int(key) in _OF_NONE:
            self._inner.register(key, handler)
            return
        names = _NAMES.get(int(key), _named)

        def guarded(ctx: Context, request: Any) -> Any:
            for group_id in names(request):
                self._owned.require(group_id)
            return handler(ctx, request)

        self._inner.register(key, guarded)
