"""The catalog of topics: partitions and their SBP streams, names in every protocol, configuration, and counters.

Everything is kept in memory, which changes only after the change is durable in the node's database. Creating a topic
makes the SBP streams first; deleting one commits first and deletes the streams afterwards
(bridges/catalog/topics/streams.py).

Partitions are split and merged in one step (:meth:`Catalog.change_partitions`). The new streams are made as for any
creation, one commit makes the new partitions and seals the old ones, and then the old partitions' logs are sealed, with
retries until it succeeds (bridges/catalog/topics/seals.py). The commit is final, whatever happens afterwards.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from anabranch_kit.run.barrier import Barrier
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.task_set import TaskSet
from bridges.catalog.database.counters import Counters, identify
from bridges.catalog.database.sql import Connection, Database
from bridges.catalog.topics import config as topic_config
from bridges.catalog.topics import rows as topic_rows
from bridges.catalog.topics.lineage import WHOLE, KeyRange, PartitionInfo, active_heirs, check_change, related
from bridges.catalog.topics.lookup import TopicLookup
from bridges.catalog.topics.names import RESERVED, InvalidTopicName, Names, check_topic_name, derived_names
from bridges.catalog.topics.seals import Promise, Sealer, Seals
from bridges.catalog.topics.streams import StreamClient, TopicStreams
from bridges.catalog.topics.topic import (
    FOLLOWED,
    Beside,
    Change,
    ChangeKind,
    Import,
    InvalidPartitions,
    SplitNotAllowed,
    Topic,
    TopicEnded,
    TopicKind,
    TopicNotFound,
)
from bridges.errors import ImportFenced, TopicImporting, TopicInternal

T = TypeVar("T")

Also = Callable[[Connection], object]
"""A front's own part of a change, run inside the transaction of the change."""

_EVER = 10
"""A topic may have had this many times the partitions that it may have at once, spent ones included, because answers
about a whole topic list them, too."""

_NODE_CONFIG = "node config"
"""The kind of followed changes for the node-level configuration, as a whole."""

_log = structlog.get_logger("anabranch.catalog")


class CatalogOptions(Struct):
    """Options of a catalog. ``owns_streams``: the placement driver is inside the node and knows which streams the node
    has made, so the streams of an unfinished creation may be searched by number. ``node``: this node's number among
    those that share the database. ``static``: the node-level configuration from the node's settings. ``names``: the
    naming rules of protocols that fronts bring, by protocol."""

    replica: int = 1
    ack_count: int = 1
    owns_streams: bool = True
    node: int = 0
    max_partitions_per_topic: int = 10_000
    max_partitions: int = 100_000
    static: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, Names] = field(default_factory=dict)


class Catalog(TopicLookup):
    """The node's topics. Call :meth:`load` before anything else and :meth:`close` at the end.

    Functions in ``erasers`` run inside the transaction that deletes a topic, with its name, so that other tables lose
    their rows of it at the same instant. Functions in ``on_change`` are called on the loop after every change. Those in
    ``before_sealing`` run inside the transaction of :meth:`change_partitions`, with the topic's name; their errors
    refuse the change. While one of ``promises`` holds for a sealed partition, its end does not become final; call
    :meth:`seal_again` when it is kept.
    """

    def __init__(
        self,
        db: Database,
        client: StreamClient,
        options: CatalogOptions | None = None,
        erasers: Sequence[Callable[[Connection, str], None]] = (),
        barrier: Barrier | None = None,
        promises: Sequence[Promise] = (),
    ) -> None:
        self.options = options or CatalogOptions()
        super().__init__(self.options.static)
        self.on_change: list[Callable[[Change], None]] = []
        self.before_sealing: list[Callable[[Connection, str], object]] = []
        self.cluster_id = ""
        self._db = db
        self._erasers = tuple(erasers)
        self._barrier = barrier or Barrier()
        # Topics that are hidden because they are being deleted, by name.
        self._leaving: dict[str, Topic] = {}
        # Partitions that are being made: they count against limits from the moment they are allowed.
        self.making = 0
        self.counters = Counters(db)
        self._locks: dict[str, asyncio.Lock] = {}
        self._work = TaskSet()
        self._streams = TopicStreams(
            db,
            client,
            lambda: client.create_stream(self.options.replica, self.options.ack_count),
            self._barrier,
            inside=self.options.owns_streams,
            node=self.options.node,
        )
        self._seals = Seals(db, self._barrier, self._confirm_end, promises)

    # --- streams ----------------------------------------------------------------------------------------------------

    @property
    def pending_deletions(self) -> int:
        """Return the number of deleted topics' streams that the backend still has to delete."""
        return self._streams.pending

    @property
    def pending_seals(self) -> int:
        """Return the number of sealed partitions whose logs have still to confirm their end."""
        return len(self._seals)

    @property
    def left_streams(self) -> int:
        """Return the number of deleted topics' streams that the backend cannot delete: they stay there with their
        data."""
        return self._streams.left

    async def find(self, protocol: str, name: str) -> Topic | None:
        """Return the topic with this ``name`` in ``protocol``, also if another node has just made it, or None."""
        if (protocol, name) not in self.index.by_name:
            await self._db.changes.latest()
        return self.by_name(protocol, name)

    # --- start and end ----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read everything, give the cluster an id on first use, and clean up what a crash left behind."""
        self._db.changes.mirror(FOLLOWED, topic_rows.read_topics, self._follow)
        self._db.changes.mirror(
            _NODE_CONFIG, lambda connection, _: topic_rows.read_node_config(connection), self._follow_node_config
        )

        def read(connection: Connection) -> tuple[str, list[Topic], dict[str, str]]:
            topics = list(topic_rows.read_topics(connection))
            return identify(connection), topics, topic_rows.read_node_config(connection)

        self.cluster_id, topics, self._node_config = await self._db.surely(read)
        for topic in topics:
            self.index.add(topic)
            for partition in topic.partitions:
                if not partition.is_active and partition.end is None:
                    self._seals.want(topic, partition)
        for topic in topics:  # after all stored names
            self._name(topic)
        await self._streams.start({one.stream_id for topic in self.index.all.values() for one in topic.partitions})

    def start_sealing(self, seal: Sealer) -> None:
        """Seal the logs of sealed partitions with ``seal`` from now on, beginning with those that an earlier run
        left."""
        self._seals.start(seal)

    def seal_again(self, stream_id: int | None = None) -> None:
        """Retry failed seals: that of the partition with this stream, or all, as when this node becomes the owner of
        more."""
        self._seals.retry(stream_id)

    async def close(self) -> None:
        """Finish changes in flight; the next start deletes remaining streams and seals remaining logs."""
        await self._work.drain()
        await self._seals.close()
        await self._streams.close()

    # --- topics -----------------------------------------------------------------------------------------------------

    def check_new_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
        keys: Sequence[KeyRange] = (),
    ) -> None:
        """Raise what :meth:`create_topic` would raise for these arguments before it touches anything."""
        self._checked(name, partitions, config, names, keys, TopicKind.USER)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
        keys: Sequence[KeyRange] = (),
        kind: TopicKind = TopicKind.USER,
        also: Also | None = None,
        migration: str | None = None,
        origin: str = "",
        then: Callable[[], None] | None = None,
        beside: Beside | None = None,
    ) -> Topic:
        """Create a topic; when this returns, it is durable and ready for appends. Cancelling the caller does not stop
        the creation.

        ``names`` are its names in other protocols, where these differ from the derived names; only users' topics have
        derived names. ``keys`` are the ranges of the partitions, by number; without, each has the whole range. ``also``
        runs inside the transaction that makes the topic, for the data that a front keeps about it: both are stored or
        neither. ``then`` is called when that is durable, before the topic becomes visible. ``migration`` is the
        migration that fills the topic from elsewhere, and ``origin`` describes with what: no other client may write to
        the topic before :meth:`hand_over`. ``beside`` names the partitions whose owners also own these.

        Raises InvalidTopicName, TopicExists, NameCollision, InvalidPartitions, InvalidConfig, LogUnavailable (backend)
        or an error of the database.
        """

        def begin() -> Coroutine[Any, Any, Topic]:
            stored_config, all_names = self._checked(name, partitions, config, names, keys, kind)
            now = now_ms()
            imported = None if migration is None else Import(migration, 0, now, origin=origin)
            topic = Topic(name, uuid.uuid4(), [], stored_config, now, all_names, kind=kind, imported=imported)
            topic.beside = beside
            self.index.take_names(topic)
            self.making += partitions
            return self._create(topic, partitions, keys, also, then)

        return await self._decided(begin)

    def _checked(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None,
        names: Mapping[str, str] | None,
        keys: Sequence[KeyRange],
        kind: TopicKind,
    ) -> tuple[dict[str, str], dict[str, str]]:
        check_topic_name(name)
        if name in RESERVED and kind is not TopicKind.INTERNAL:
            raise InvalidTopicName(f"{name} is where a Kafka broker keeps its own state: choose another name")
        self.index.check_free(name)
        self._check_many(partitions)
        if keys and len(keys) != partitions:
            raise InvalidPartitions(f"{len(keys)} ranges of keys are given for {partitions} partitions")
        self._check_total(partitions)
        all_names = self._derived(name) if kind is TopicKind.USER else {}
        all_names.update(names or {})
        self.index.check_names(name, all_names)
        return topic_config.validate(config or {}), all_names

    def _derived(self, name: str) -> dict[str, str]:
        """Return the derived names of a user's topic, by protocol."""
        found = derived_names(name)
        for protocol, rule in self.options.names.items():
            if (own := rule.derived(name)) is not None:
                found[protocol] = own
        return found

    def _name(self, topic: Topic) -> None:
        """Give a topic that was made while a front was not installed the name in that front's protocol, if it is free.
        The name is not stored: it is derived again at every start."""
        if topic.kind is TopicKind.USER:
            for protocol, rule in self.options.names.items():
                own = rule.derived(topic.name) if protocol not in topic.names else None
                if own is not None and (protocol, own) not in self.index.by_name:
                    topic.names[protocol] = own
                    self.index.by_name[protocol, own] = topic

    def _check_many(self, partitions: int, spent: int = 0) -> None:
        limit = self.options.max_partitions_per_topic
        if not 1 <= partitions - spent <= limit:
            raise InvalidPartitions(f"a topic has 1 to {limit} partitions, not {partitions - spent}")
        if partitions > limit * _EVER:
            raise InvalidPartitions(f"a topic has {limit * _EVER} partitions at most, counting those of long ago")

    def _check_total(self, more: int) -> None:
        if self.index.partitions - self.index.spent + self.making + more > self.options.max_partitions:
            raise InvalidPartitions(
                f"{more} more partitions would exceed this node's limit of {self.options.max_partitions}"
            )

    @contextmanager
    def _allowed(self, more: int) -> Iterator[None]:
        """Count ``more`` partitions, which were just checked, against the limit while they are made."""
        self.making += more
        try:
            yield
        finally:
            self.making -= more

    async def _create(
        self,
        topic: Topic,
        partitions: int,
        keys: Sequence[KeyRange],
        also: Also | None,
        then: Callable[[], None] | None,
    ) -> Topic:
        try:
            wanted = [PartitionInfo(n, -1, keys[n] if keys else WHOLE) for n in range(partitions)]

            mark = self._mark(topic.name)

            def commit(connection: Connection, infos: list[PartitionInfo]) -> None:
                mark(connection)
                topic_rows.insert_topic(connection, topic, infos)
                if also is not None:
                    also(connection)

            def apply(infos: list[PartitionInfo]) -> None:
                topic.partitions.extend(infos)
                if then is not None:
                    self._barrier.call("topic made", then)
                self.index.add(topic)
                self._changed(Change(ChangeKind.CREATED, topic))

            await self._streams.make(wanted, commit, apply)
        except BaseException:
            if self.index.all.get(topic.name) is not topic:
                self.index.give_names_back(topic)
            raise
        finally:
            self.making -= partitions
        return topic

    async def delete_topic(self, name: str, migration: str | None = None, *, own: bool = False) -> None:
        """Delete a topic: when this returns nobody can find it, also after a crash. Its data is deleted in the
        background.

        A topic that is being imported can be deleted only with its ``migration``, a topic that is internal to a
        protocol only with ``own``. Raises TopicNotFound, TopicImporting, ImportFenced, TopicInternal or an error of the
        database.
        """
        if self.kind_of(name) is TopicKind.INTERNAL and not own:
            raise TopicInternal(f"{name} is internal to a protocol, and only that deletes it")
        self._check_owner(self._require(self.index.all, name), migration)
        await self._decided(lambda: self._delete(name, migration))

    async def _delete(self, name: str, migration: str | None) -> None:
        async with self._changing(name) as topic:
            self._check_owner(topic, migration)  # again, because it may have been handed over meanwhile
            # Hide it first: decisions from now on, such as commits of positions, must not see it any more.
            self.index.remove(topic)
            self._leaving[name] = topic
            mark = self._mark(name)

            def commit(connection: Connection) -> None:
                mark(connection)
                for eraser in self._erasers:
                    eraser(connection, name)
                topic_rows.delete_topic(connection, topic)

            try:
                # Flush before its streams are deleted, which the placement driver cannot undo: a loss of power must not
                # bring the topic back.
                await self._db.run(commit, flush=True, frees=True, then=lambda _: self._forget(topic))
            except BaseException:
                if self._leaving.pop(name, None) is topic:
                    self.index.add(topic)
                raise
            self._streams.doomed(partition.stream_id for partition in topic.partitions)

    def _forget(self, topic: Topic) -> None:
        """Forget a hidden topic whose deletion, by any node, is durable."""
        self._leaving.pop(topic.name, None)
        self.index.give_names_back(topic)
        for partition in topic.partitions:
            self._seals.forget(partition)
        self._changed(Change(ChangeKind.DELETED, topic))

    async def add_partitions(self, name: str, total: int, migration: str | None = None) -> Topic:
        """Give a topic ``total`` partitions, counting sealed ones; each new one has the whole range of keys.

        Only its ``migration`` may add partitions to a topic that is being imported. Raises TopicNotFound,
        InvalidPartitions, TopicEnded, LogUnavailable, TopicImporting, ImportFenced, TopicInternal.
        """
        self.check_partitions(name, total, migration)
        return await self._decided(lambda: self._add_partitions(name, total, migration))

    def check_partitions(self, name: str, total: int, migration: str | None = None) -> None:
        """Raise what :meth:`add_partitions` would raise for these arguments before it touches anything."""
        topic = self.topic(name)
        if topic.kind is TopicKind.INTERNAL:
            raise TopicInternal(f"{name} is internal to a protocol, and has the partitions that it needs")
        self._check_owner(topic, migration)
        have = len(topic.partitions)
        if not topic.active:
            raise TopicEnded(f"topic {name!r} was ended: all its partitions are sealed")
        if total <= have:
            raise InvalidPartitions(f"topic {name!r} has {have} partitions, and partitions cannot be taken away")
        self._check_many(total, topic.spent)
        self._check_total(total - have)

    async def _add_partitions(self, name: str, total: int, migration: str | None) -> Topic:
        async with self._changing(name) as topic:
            self.check_partitions(name, total, migration)  # again: another change may have come first
            epoch = topic.epoch + 1
            new = [PartitionInfo(n, -1, made_epoch=epoch) for n in range(len(topic.partitions), total)]
            mark = self._mark(name)

            def commit(connection: Connection, infos: list[PartitionInfo]) -> None:
                mark(connection)
                topic_rows.insert_partitions(connection, name, infos)
                topic_rows.store_epoch(connection, name, epoch)

            def apply(infos: list[PartitionInfo]) -> None:
                topic.partitions.extend(infos)
                topic.epoch = epoch
                self.index.partitions += len(infos)
                self._changed(Change(ChangeKind.PARTITIONS, topic))

            with self._allowed(len(new)):
                await self._streams.make(new, commit, apply)
            return topic

    async def change_partitions(self, name: str, seal: Sequence[int], make: Sequence[KeyRange]) -> Topic:
        """Seal the partitions numbered ``seal`` and make one for each range of ``make``, in one step.

        The new ones get the next numbers, in the order of ``make``, and begin the topic's next epoch. When this
        returns, all of it is durable, the new partitions are ready for appends, and the old ones take none any more.
        Appends in flight to the old ones are still decided, so their ends become known later (``PartitionInfo.end``,
        ChangeKind.SEALED). An error means that nothing has changed. Cancelling the caller does not stop the change.

        Raises TopicNotFound, SplitNotAllowed, InvalidChange (see :func:`bridges.catalog.topics.lineage.check_change`),
        InvalidPartitions (too many), LogUnavailable (backend) or an error of the database.
        """
        self.check_partition_change(name, seal, make)
        return await self._decided(lambda: self._change_partitions(name, tuple(seal), tuple(make)))

    def check_partition_change(self, name: str, seal: Sequence[int], make: Sequence[KeyRange]) -> None:
        """Raise what :meth:`change_partitions` would raise for these arguments before it touches anything."""
        topic = self.topic(name)
        self._check_owner(topic, None)
        if not self.effective(name, topic_config.SPLIT):
            raise SplitNotAllowed(
                f"topic {name!r} must not have its partitions split or merged: {topic_config.SPLIT} is not true, and "
                "Kafka producers could not follow"
            )
        check_change(topic.partitions, seal, make)
        self._check_many(len(topic.partitions) + len(make), topic.spent)
        self._check_total(len(make))

    async def _change_partitions(self, name: str, seal: tuple[int, ...], make: tuple[KeyRange, ...]) -> Topic:
        async with self._changing(name) as topic:
            self.check_partition_change(name, seal, make)  # again: another change may have come first
            epoch = topic.epoch + 1
            have = len(topic.partitions)
            new = [PartitionInfo(have + n, -1, keys, epoch) for n, keys in enumerate(make)]
            await self._replace(topic, seal, new, self.before_sealing)
            return topic

    async def repeat_partitions(
        self, name: str, numbers: Sequence[int], also: Callable[[Connection, Mapping[int, int]], object]
    ) -> Topic:
        """Make those of the partitions ``numbers`` once more that were split or merged, for appends that belong behind
        all their descendants.

        In one step, two epochs: the active descendants are sealed; their children are the repeated partitions, which
        are sealed as well and take only appends that were ``decided``; the children of these repeat the sealed
        descendants, and are active. So records of one key stay in order for readers that follow the lineage. A repeated
        partition has the owner of its original (:attr:`PartitionInfo.root`). ``also`` runs in the transaction, with the
        numbers of the sealed ones by root; its error means that nothing has changed.

        Raises TopicNotFound, TopicEnded, InvalidPartitions (too many), LogUnavailable (backend), the error of ``also``
        or an error of the database.
        """
        return await self._decided(lambda: self._repeat_partitions(name, tuple(numbers), also))

    async def _repeat_partitions(
        self, name: str, numbers: tuple[int, ...], also: Callable[[Connection, Mapping[int, int]], object]
    ) -> Topic:
        async with self._changing(name) as topic:
            known, have, epoch = topic.partitions, len(topic.partitions), topic.epoch + 1
            if not topic.active:
                raise TopicEnded(f"topic {name!r} was ended: all its partitions are sealed")
            active = {one.root for one in topic.active}
            former = [known[number] for number in numbers if known[number].root not in active]
            heirs = active_heirs(known, [one.index for one in former])
            self._check_many(have + len(former) + len(heirs), topic.spent)
            self._check_total(len(former) + len(heirs))
            new = [
                PartitionInfo(have + n, -1, one.keys, epoch, epoch + 1, beside=one.root) for n, one in enumerate(former)
            ]
            again = {one.root: have + n for n, one in enumerate(former)}
            have += len(former)
            new += [
                PartitionInfo(have + n, -1, known[heir].keys, epoch + 1, beside=known[heir].root)
                for n, heir in enumerate(heirs)
            ]
            await self._replace(topic, heirs, new, [lambda connection, _: also(connection, again)])
            return topic

    async def _replace(
        self,
        topic: Topic,
        seal: Sequence[int],
        new: Sequence[PartitionInfo],
        also: Sequence[Callable[[Connection, str], object]],
    ) -> None:
        """Seal partitions at the topic's next epoch, and make ``new`` ones, the last of which begin its latest."""
        epoch = topic.epoch + 1
        latest = new[-1].made_epoch if new else epoch
        mark = self._mark(topic.name)

        def commit(connection: Connection, infos: list[PartitionInfo]) -> None:
            for one in also:
                one(connection, topic.name)
            mark(connection)
            topic_rows.insert_partitions(connection, topic.name, infos)
            topic_rows.seal_partitions(connection, topic.name, seal, epoch)
            topic_rows.store_epoch(connection, topic.name, latest)

        def apply(infos: list[PartitionInfo]) -> None:
            gone = set(seal)
            topic.partitions[:] = related(
                [replace(one, sealed_epoch=epoch) if one.index in gone else one for one in topic.partitions] + infos
            )
            topic.epoch = latest
            self.index.partitions += len(infos)
            self._changed(Change(ChangeKind.PARTITIONS, topic))
            for number in (*seal, *(one.index for one in infos if not one.is_active)):
                self._seals.want(topic, topic.partitions[number])

        # Flush, because sealing ends the old streams, which the placement driver cannot undo.
        with self._allowed(len(new)):
            await self._streams.make(new, commit, apply, flush=True)

    async def give_back(self, name: str, numbers: Sequence[int]) -> None:
        """Stop counting these sealed partitions against limits, durably, because everything in them was trimmed.

        Raises TopicNotFound or an error of the database.
        """
        await self._decided(lambda: self._give_back(name, tuple(numbers)))

    async def _give_back(self, name: str, numbers: tuple[int, ...]) -> None:
        async with self._changing(name) as topic:
            ended = [topic.partitions[one] for one in numbers if one < len(topic.partitions)]
            spent = [one.index for one in ended if one.end is not None and not one.spent]
            mark = self._mark(name)

            def commit(connection: Connection) -> None:
                mark(connection)
                topic_rows.spend_partitions(connection, name, spent)

            def given_back(_: None) -> None:
                for number in spent:
                    topic.partitions[number] = replace(topic.partitions[number], spent=True)
                topic.spent += len(spent)
                self.index.spent += len(spent)

            await self._db.run(commit, then=given_back)

    # --- topics that are imported -----------------------------------------------------------------------------------

    @staticmethod
    def _check_owner(topic: Topic, migration: str | None) -> None:
        """Raise LogError unless ``migration``, or every client (None), may change the set of partitions."""
        running = topic.imported if topic.import_epoch >= 0 else None
        if migration is not None:
            if running is None or running.migration != migration:
                raise ImportFenced(f"topic {topic.name!r} is not being imported by migration {migration!r}")
        elif running is not None:
            raise TopicImporting(
                f"topic {topic.name!r} is being imported by migration {running.migration!r}: nobody else may change it "
                "before it is handed over"
            )

    async def take_import(self, name: str, migration: str) -> Topic:
        """Begin another run of ``migration``: a new epoch, durable when this returns, in which only this run may write.

        Raises TopicNotFound, ImportFenced (not its topic, or handed over).
        """
        self._check_owner(self.topic(name), migration)
        return await self._decided(lambda: self._take_import(name, migration))

    async def _take_import(self, name: str, migration: str) -> Topic:
        async with self._changing(name) as topic:
            self._check_owner(topic, migration)
            assert topic.imported is not None
            epoch = topic.imported.epoch + 1
            mark = self._mark(name)

            def commit(connection: Connection) -> None:
                mark(connection)
                topic_rows.store_import_epoch(connection, name, epoch)

            taken = replace(topic.imported, epoch=epoch)
            await self._db.run(commit, flush=True, then=lambda _: self._imported(topic, taken))
            return topic

    def _imported(self, topic: Topic, imported: Import) -> None:
        topic.imported = imported
        self._changed(Change(ChangeKind.IMPORT, topic))

    async def hand_over(self, names: Sequence[str], migration: str, epochs: Mapping[str, int]) -> list[Topic]:
        """End the import of topics, all in one durable step: from then on every client may write to them.

        ``epochs`` are those in which the caller has found the topics to be complete. A run that has taken a topic since
        may have written more, so nothing happens then. Topics that ``migration`` handed over before stay as they are.
        Raises TopicNotFound, ImportFenced.
        """
        return await self._decided(lambda: self._hand_over(sorted(set(names)), migration, epochs))

    async def _hand_over(self, names: list[str], migration: str, epochs: Mapping[str, int]) -> list[Topic]:
        async with AsyncExitStack() as stack:
            topics = [await stack.enter_async_context(self._changing(name)) for name in names]
            open_ones: list[tuple[Topic, Import]] = []
            now = now_ms()
            for topic in topics:
                if topic.imported is None or topic.imported.migration != migration:
                    raise ImportFenced(f"topic {topic.name!r} was not imported by migration {migration!r}")
                if topic.imported.is_running:
                    if topic.imported.epoch != epochs.get(topic.name):
                        raise ImportFenced(f"another run of migration {migration!r} has taken topic {topic.name!r}")
                    open_ones.append((topic, replace(topic.imported, handed_over_ms=now)))
            handed = [topic.name for topic, _ in open_ones]
            mark = self._mark(*handed)

            def commit(connection: Connection) -> None:
                mark(connection)
                topic_rows.store_import_end(connection, handed, now)

            def ended(_: None) -> None:
                for topic, imported in open_ones:
                    self._imported(topic, imported)

            await self._db.run(commit, flush=True, then=ended)
            return topics

    def _confirm_end(self, topic: Topic, number: int, end: int) -> None:
        topic.partitions[number] = replace(topic.partitions[number], end=end)
        self._changed(Change(ChangeKind.SEALED, topic))

    async def set_config(
        self,
        name: str,
        changes: Mapping[str, str | None],
        also: Also | None = None,
        then: Callable[[], None] | None = None,
    ) -> Topic:
        """Change a topic's configuration; None removes a key. Raises TopicNotFound, InvalidConfig.

        ``also`` runs inside the same transaction, for the data that a front keeps about the topic; its error is raised
        here, and nothing has changed then. ``then`` is called when that is durable, before the listeners. With ``also``
        Overtaken is raised, too: the caller has to decide again what ``also`` stores
        (:meth:`bridges.catalog.database.following.Changes.settle`).
        """
        self.check_config(name, changes)
        if also is not None:
            return await self._work.finish(self._set_config(name, changes, also, then))
        return await self._decided(lambda: self._set_config(name, changes, None, then))

    async def _set_config(
        self, name: str, changes: Mapping[str, str | None], also: Also | None, then: Callable[[], None] | None
    ) -> Topic:
        async with self._changing(name) as topic:
            config = self.check_config(name, changes)
            mark = self._mark(name)

            def commit(connection: Connection) -> None:
                mark(connection)
                topic_rows.replace_config(connection, name, config)
                if also is not None:
                    also(connection)

            def changed(_: None) -> None:
                if then is not None:
                    self._barrier.call("topic changed", then)
                self._configured(topic, config)

            await self._db.run(commit, then=changed)
            return topic

    def _configured(self, topic: Topic, config: dict[str, str]) -> None:
        if self.index.all.get(topic.name) is not topic:
            topic.config = config  # the topic is being deleted
            return
        topic.config = config
        self._changed(Change(ChangeKind.CONFIG, topic))

    async def set_node_config(self, changes: Mapping[str, str | None]) -> None:
        """Change the node-level configuration; None removes a key. Raises InvalidConfig."""
        checked = topic_config.validate_node_changes(changes)
        await self._decided(lambda: self._set_node_config(checked))

    async def _set_node_config(self, changes: Mapping[str, str | None]) -> None:
        mark = self._db.changes.mark(_NODE_CONFIG, [""])

        def commit(connection: Connection) -> None:
            mark(connection)
            topic_rows.change_node_config(connection, changes)

        def changed(_: None) -> None:
            for key, value in changes.items():
                if value is None:
                    self._node_config.pop(key, None)
                else:
                    self._node_config[key] = value
            self._changed(Change(ChangeKind.NODE_CONFIG))

        await self._db.run(commit, then=changed)

    # --- what other nodes change ------------------------------------------------------------------------------------

    def _mark(self, *names: str) -> Callable[[Connection], None]:
        """Return a function for a transaction that changes these topics, based on what memory holds now."""
        return self._db.changes.mark(FOLLOWED, names)

    def _decided(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """Run ``work``, which checks and commits, even if the caller is cancelled, and repeat it if another node was
        first."""
        return self._work.finish(self._db.changes.settle(work))

    def _follow(self, found: list[Topic], names: Collection[str] | None) -> None:
        """Bring memory in line with the database: ``found`` are the existing topics among ``names``, or all topics."""
        there = {topic.name: topic for topic in found}
        for name in names or there.keys() | self.index.all.keys() | self._leaving.keys():
            topic, known = there.get(name), self.index.all.get(name) or self._leaving.get(name)
            if known is not None and (topic is None or topic.topic_id != known.topic_id):
                if self.index.all.get(name) is known:
                    self.index.remove(known)
                self._forget(known)
                known = None
            if topic is not None and known is None:
                self.index.add(topic)
                self._name(topic)
                self._changed(Change(ChangeKind.CREATED, topic))
            elif topic is not None and known is not None:
                self._renew(known, topic)

    def _renew(self, known: Topic, now: Topic) -> None:
        """Apply another node's change of a topic."""
        counted = self.index.all.get(known.name) is known
        ended = [
            one
            for one, before in zip(now.partitions, known.partitions, strict=False)
            if one.end is not None and before.end is None
        ]
        more, spent = len(now.partitions) - len(known.partitions), now.spent - known.spent
        is_new_epoch, known.epoch, known.spent = now.epoch != known.epoch, now.epoch, now.spent
        known.partitions[:] = now.partitions
        if counted:
            self.index.partitions += more
            self.index.spent += spent
        if is_new_epoch:
            self._changed(Change(ChangeKind.PARTITIONS, known))
            for partition in known.partitions:
                if not partition.is_active and partition.end is None:
                    self._seals.want(known, partition)  # its owner seals it
        for partition in ended:
            self._seals.forget(partition)
        if ended:
            self._changed(Change(ChangeKind.SEALED, known))
        if now.imported is not None and now.imported != known.imported:
            self._imported(known, now.imported)
        if now.config != known.config:
            self._configured(known, now.config)

    def _follow_node_config(self, found: dict[str, str], _: object) -> None:
        if found != self._node_config:
            self._node_config.clear()
            self._node_config.update(found)
            self._changed(Change(ChangeKind.NODE_CONFIG))

    @asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[Topic]:
        """Serialise the changes of one topic; those of different topics run concurrently. Yields the topic."""
        topic = self._require(self.index.all, name)
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            if self.index.all.get(name) is not topic:
                raise TopicNotFound(f"topic {name!r} was deleted")
            try:
                yield topic
            finally:
                if name not in self.index.all:
                    # A waiter for this lock finds the topic deleted; a new topic with the same name gets a new lock.
                    self._locks.pop(name, None)

    def _changed(self, change: Change) -> None:
        # The change is durable already: an error of one listener must not keep it from its maker and the other
        # listeners.
        for callback in tuple(self.on_change):
            self._barrier.call("catalog change", callback, change)
