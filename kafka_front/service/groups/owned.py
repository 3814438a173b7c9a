"""The groups that a node coordinates (see :mod:`kafka_front.service.owned_keys`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from anabranch_kit.run.turns import in_turns
from bridges.cluster.owned import Wanted
from kafka_front.dispatch import Handler, Registry
from kafka_front.service.owned_keys import OwnedKeys
from kafka_front.wire.apis import ApiKey

if TYPE_CHECKING:
    from bridges.catalog.progress import FrontProgress
    from bridges.cluster.ownership import Ownership
    from kafka_front.context import Context
    from kafka_front.service.groups.runtime import GroupRuntime

_NAMES: dict[int, Callable[[Any], Iterable[str]]] = {
    int(ApiKey.DESCRIBE_GROUPS): lambda request: request.groups,
    int(ApiKey.DELETE_GROUPS): lambda request: request.groups_names,
    int(ApiKey.CONSUMER_GROUP_DESCRIBE): lambda request: request.group_ids,
    int(ApiKey.STREAMS_GROUP_DESCRIBE): lambda request: request.group_ids,
    int(ApiKey.SHARE_GROUP_DESCRIBE): lambda request: request.group_ids,
    int(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS): lambda request: [group.group_id for group in request.groups],
}
"""Returns the groups that a request is about, for APIs that do not name one by ``group_id``."""
_OF_NONE = frozenset({int(ApiKey.FIND_COORDINATOR), int(ApiKey.LIST_GROUPS), int(ApiKey.OFFSET_FETCH)})
"""APIs that any node answers, for the groups of other nodes too."""


class OwnedGroups(OwnedKeys):
    """The groups that this node coordinates. ``loads`` load groups of each kind, by a filter for their
    names."""

    what = "group"

    def __init__(self, owners: Ownership, progress: FrontProgress, runtime: GroupRuntime) -> None:
        super().__init__(owners)
        self._progress = progress
        self._runtime = runtime
        self.loads: list[Callable[[Wanted], Awaitable[None]]] = [runtime.load]
        progress.holding = self.holding

    def guarding(self, registry: Registry) -> Registry:
        """Return a registry whose handlers run only if this node coordinates all groups of the request."""
        return _Guarding(registry, self)

    def slot(self, name: str) -> int:
        return self._owners.slot_of_key(self._progress.space, name)

    async def read(self, wanted: Wanted) -> None:
        await self._progress.reload(wanted, wanted.slots)

        def is_wanted(group_id: str) -> bool:
            return wanted(group_id) and self._owners.is_mine(self.slot(group_id))

        for load in self.loads:
            await load(Wanted(wanted.slots, is_wanted))

    async def give_up(self, slots: Collection[int], in_order: bool) -> None:
        async for group_id in in_turns(self._runtime.directory):
            if self.slot(group_id) in slots:
                self._runtime.let_go(group_id)
        if in_order:
            await self._runtime.journal.await_writes()
            await self._progress.await_writes()


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
