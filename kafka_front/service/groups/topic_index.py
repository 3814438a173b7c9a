"""The topics that groups subscribe to, by name and by regular expression.

Patterns are those of RE2, whose matching time is bounded by the name's length; they must match a whole name. Each
pattern is compiled and matched with all names once for all groups, in slices off the event loop. A later topic is
matched with all patterns in the same way, and a group learns of it with the next request of a member.

Patterns match no internal topics and none that the subscriber may not describe: a consumer with such a topic in its
assignment would ask for its metadata for ever. So matches are kept per view, which is a pattern and a viewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import re2
import structlog
from msgspec import Struct

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.sliced import Sliced, SlicedWorks
from anabranch_kit.run.turns import portions, worked_off
from bridges.auth import Principal
from bridges.catalog.topics.topic import Change, ChangeKind, TopicKind
from kafka_front.service.groups.consumer.group import Partitions, View
from kafka_front.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from bridges.catalog.topics.catalog import Catalog

_log = structlog.get_logger("anabranch.kafka.groups")

_SLICE = 200
_COMPILED_BYTES = 1 << 20
MAX_PATTERN = 4_096
"""Longest pattern, in characters."""
MAX_PATTERNS = 1_000
"""Most different views of all groups."""
MAX_MATCHES = 1_000_000
"""Most names that all views may match together."""


class _Pattern(Struct):
    compiled: Any
    names: set[str]


class TopicIndex:
    """The existing topics, and those that patterns match. ``in_use`` returns the groups' views; ``shows`` returns
    whether a principal may describe a topic."""

    def __init__(
        self,
        catalog: Catalog,
        in_use: Callable[[], Collection[View]],
        works: SlicedWorks | None = None,
        barrier: Barrier | None = None,
        shows: Callable[[Principal, str], bool] = lambda viewer, topic: True,
    ) -> None:
        self.version = 0
        """A number that rises whenever an answer of the other methods may have changed."""
        self._catalog = catalog
        self._in_use = in_use
        self._works = works
        self._barrier = barrier or Barrier()
        self._shows = shows
        self._patterns: dict[View, _Pattern] = {}
        self._wanted: dict[View, int] = {}  # of requests in progress
        self._changed: dict[str, None] = {}  # names of created or deleted topics
        self._worker: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        catalog.on_change.append(self._on_change)

    def find(self, name: str) -> tuple[bytes, int] | None:
        """Return id and number of partitions of a topic; None if there is none."""
        topic = self._catalog.topics.get(name)
        return None if topic is None else (topic.topic_id.bytes, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._catalog.by_id.get(topic_id)
        return None if topic is None else topic.name

    def name_partitions(self, partitions: Partitions) -> list[tuple[bytes, str, list[int]]]:
        """Return partitions as tools see them: id and name of each topic that exists, and its partitions in order."""
        return [
            (topic_id, name, sorted(numbers))
            for topic_id, numbers in partitions.items()
            if (name := self.name_of(topic_id)) is not None
        ]

    def seen(self, view: View) -> Collection[str]:
        """Return the names of the topics in a view, which must have been learned before."""
        known = self._patterns.get(view)
        return () if known is None else known.names

    async def learn(self, view: View, then: Callable[[], None]) -> None:
        """Call ``then`` when a view's topics are known, before the view can be evicted.

        Raises KafkaError for an invalid regular expression, or if limits are exceeded.
        """
        self._wanted[view] = self._wanted.get(view, 0) + 1
        try:
            if view not in self._patterns:
                async with self._lock:  # a matching in progress would miss the new view
                    if view not in self._patterns:
                        await self._learn(view)
            then()
        finally:
            self._wanted[view] -= 1
            if not self._wanted[view]:
                del self._wanted[view]

    async def _learn(self, view: View) -> None:
        if len(view.pattern) > MAX_PATTERN:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"a pattern may have {MAX_PATTERN} characters")
        if len(self._patterns) >= MAX_PATTERNS:
            self._forget_unused()
        if len(self._patterns) >= MAX_PATTERNS:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the groups have {MAX_PATTERNS} patterns, the most that a node holds: subscribe by names",
            )
        # A topic created from here on is matched after this, with all patterns known then.
        found = await self._run(_compiled_and_matched(view.pattern, list(self._names(self._catalog.topics))))
        found.names = await self._visible_names(view, found.names)
        if len(found.names) + sum(len(one.names) for one in self._patterns.values()) > MAX_MATCHES:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the groups' patterns match {MAX_MATCHES} names, the most that a node holds: subscribe by names",
            )
        self._patterns[view] = found

    async def _visible_names(self, view: View, names: Iterable[str]) -> set[str]:
        viewer, shows = view.viewer, self._shows
        if viewer is None:
            return set(names)
        shown: set[str] = set()
        async for some in portions(names):
            shown.update(name for name in some if shows(viewer, name))
        return shown

    def _names(self, names: Iterable[str]) -> Iterable[str]:
        topics = self._catalog.topics
        return (name for name in names if name in topics and topics[name].kind is not TopicKind.INTERNAL)

    def _forget_unused(self) -> None:
        kept = set(self._in_use())
        for view in [one for one in self._patterns if one not in kept and one not in self._wanted]:
            del self._patterns[view]

    # --- topics that come and go ---------------------------------------------------------------------------------

    def _on_change(self, change: Change) -> None:
        if change.topic is None or change.kind not in (ChangeKind.CREATED, ChangeKind.DELETED, ChangeKind.PARTITIONS):
            return
        self.version += 1
        if change.kind is not ChangeKind.PARTITIONS:
            self._match((change.topic.name,))

    def rules_changed(self) -> None:
        """Match all topics again: changed access rules may show viewers other topics."""
        self._match(self._catalog.topics)

    def _match(self, names: Iterable[str]) -> None:
        if not (self._patterns or self._lock.locked()):
            return
        self._changed.update(dict.fromkeys(names))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._match_changed())

    async def _match_changed(self) -> None:
        try:
            while self._changed:
                async with self._lock:
                    self._forget_unused()
                    changed, self._changed = list(self._changed), {}
                    there = set(self._names(changed))
                    patterns = [(view, one.compiled) for view, one in self._patterns.items()]
                    try:
                        found = await self._run(_matches(patterns, sorted(there)))
                        shown = [
                            (self._patterns[view], await self._visible_names(view, names)) for view, names in found
                        ]
                    except Exception as error:  # noqa: BLE001 - counted: groups keep their former matches
                        self._barrier.caught("matching of topics with patterns", error)
                        continue
                    for one, names in shown:
                        one.names.difference_update(changed)
                        one.names.update(names)
                    self.version += 1
        finally:
            self._worker = None

    async def close(self) -> None:
        """Stop matching."""
        self._catalog.on_change.remove(self._on_change)
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def _run(self, work: Sliced[Any]) -> Any:
        return await (worked_off(work) if self._works is None else self._works.finish(work))


def _compiled_and_matched(pattern: str, names: list[str]) -> Sliced[_Pattern]:
    options = re2.Options()
    options.max_mem = _COMPILED_BYTES
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {reason}.",
        ) from None
    found = _Pattern(compiled, set())
    for start in range(0, len(names), _SLICE):
        found.names.update(name for name in names[start : start + _SLICE] if compiled.fullmatch(name) is not None)
        yield None
    return found


def _matches(patterns: list[tuple[View, Any]], names: list[str]) -> Sliced[list[tuple[View, list[str]]]]:
    found = []
    for one, compiled in patterns:
        matching: list[str] = []
        for start in range(0, len(names), _SLICE):
            matching += [name for name in names[start : start + _SLICE] if compiled.fullmatch(name) is not None]
            yield None
        found.append((one, matching))
    return found
