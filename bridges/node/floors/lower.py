"""The floors of a node: each is opened on the floors below, and closed before them.

ground (directory, database) -> cluster (its place among nodes) -> storage (the backend) -> metadata (catalog,
positions, quotas, rules) -> log (partition logs, compaction). The floors for clients stand on these
(:mod:`bridges.node.floors.upper`). A floor that fails to open closes what it has opened. Closing takes every step, even
if earlier ones fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct, to_builtins

from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.net.address import Address
from bridges.auth import Authorizer
from bridges.auth.quotas import QuotaRules
from bridges.auth.tokens import KeysError
from bridges.auth.users import UsersError
from bridges.catalog.client_quotas import ClientQuotas
from bridges.catalog.database import front_tables
from bridges.catalog.database.counters import identify
from bridges.catalog.database.pd_identity import StreamHome
from bridges.catalog.database.sql import Connection, Database
from bridges.catalog.progress import Progress, erase_topic
from bridges.catalog.topics.catalog import Catalog, CatalogOptions
from bridges.catalog.topics.rules import RulesCache
from bridges.formats import Translator
from bridges.log.compaction.cleaner import Cleaner, CleanerOptions
from bridges.log.ledger.rules import RULES
from bridges.log.logs import LogOptions, Logs
from bridges.log.remote.partitions import Partitions
from bridges.log.retention import Retention
from bridges.log.stores import ERASERS, load_stores
from bridges.net.quotas import Quotas
from bridges.node.floors import by_itself
from bridges.node.floors.by_itself import ByItself
from bridges.node.floors.plan import Ground, Plan
from bridges.node.floors.retention import HandedOver, NeededByConsumers, Policies, limits_of
from bridges.node.listening import CLUSTER, CONSOLE
from bridges.node.settings.sections import SettingsError
from bridges.node.settings.tls import Tls
from bridges.node.storage import backend, databases
from bridges.node.storage.data_dir import DataDirectory

if TYPE_CHECKING:
    from bridges.backends import Served
    from bridges.catalog.access_rules import AccessRules
    from bridges.console.host import Host
    from bridges.log.partition.partition_log import PartitionLog
    from bridges.node.front import Front
    from bridges.node.settings.config import Settings

_log = structlog.get_logger("anabranch.node")


@asynccontextmanager
async def ground(plan: Plan) -> AsyncIterator[Ground]:
    """Open the ground floor. Raises StoreError, SettingsError, errors of the database."""
    settings, worker = plan.settings, plan.worker
    inner = backend.LISTENERS if settings.sbp.mode == "embedded" else ()
    able = [CONSOLE, CLUSTER, *plan.listening.able_of_tls(), *inner]
    tls = Tls(settings.tls, settings.sbp, able, plan.listen)
    plan.reloads.append(tls.reload)
    budget = MemoryBudget(settings.limits.connections_memory_bytes, asyncio.get_running_loop().call_soon)
    directory = DataDirectory(settings.data_dir) if worker is None else worker.directory
    try:
        try:
            await plan.authenticator.load()
        except (UsersError, KeysError) as error:
            raise SettingsError(str(error)) from None
        tickets = None
        if settings.sbp.tickets:
            from bridges.auth.tickets import TicketOffice  # imported only with tickets

            tickets = TicketOffice(lambda: plan.authenticator.keys, settings.ticket_seconds)
        engine = databases.engine_of(settings, directory, worker)
        db = Database(engine, on_failed=lambda error: plan.life.fail(str(error)))
        try:
            await db.open()
            await databases.repeated(lambda: db.run(partial(_migrate_fronts, plan)), shared=engine.shared)
            if settings.cluster.database:
                await databases.check_cluster(db, directory)
            elif worker is not None:
                await db.run(identify)
            await db.changes.begin()
            restored = directory.read_restored()
            if restored is not None:
                _log.info("this data directory was restored from a backup", **to_builtins(restored))
            yield Ground(directory, db, budget, tls, tickets, restored)
        finally:
            await plan.life.step("following other nodes", db.changes.close())
            await plan.life.step("closing the database", db.close())
    finally:
        plan.authenticator.close()
        directory.release()


def _migrate_fronts(plan: Plan, connection: Connection) -> None:
    for kind in plan.kinds:
        # Nodes of a cluster may be of neighbouring releases; opening the database has checked that.
        mixed = bool(plan.settings.cluster.database)
        front_tables.migrate(connection, kind.name, kind.migrations, newer=mixed)
        formats = [int(plug.id) for plug in kind.formats]
        front_tables.claim_numbers(connection, kind.name, formats, kind.ledger_rules)


@asynccontextmanager
async def cluster(plan: Plan, below: Ground) -> AsyncIterator[ByItself]:
    """Become a member, before the log is opened: opening it fences any node that has it.

    Raises StoreError, errors of the database.
    """
    settings, worker, db = plan.settings, plan.worker, below.db
    if worker is None and not settings.cluster.database:
        place = await by_itself.enter(plan, below)
    else:
        from bridges.node.floors import among_others  # imported only with other nodes or workers

        place = await among_others.enter(plan, below)
    try:
        if not settings.cluster.database and (worker is None or worker.number == 0):
            await databases.inherit(db, plan.nodes_of_file, settings.node.id)
        yield place
    finally:
        await plan.life.step("leaving the cluster", place.close())


@asynccontextmanager
async def storage(plan: Plan, below: Ground, place: ByItself) -> AsyncIterator[backend.Backend]:
    """Start the backend. Raises StoreError, OSError.

    Before it is closed, another node takes over, as this one appends no more; until then others read from this range
    server.
    """
    settings, life, retiring = plan.settings, plan.life, asyncio.Event()

    def fail(reason: str) -> None:
        if retiring.is_set():
            _log.info("the range server writes nothing any more", reason=reason)  # another node has taken over
        else:
            life.fail(reason)

    started = await backend.start_backend(
        settings,
        below.directory,
        {name: plan.listen[name] for name in backend.LISTENERS if name in plan.listen},
        fail,
        StreamHome(below.db),
        below.budget,
        plan.metrics.barrier,
        below.tls,
        plan.worker,
        below.tickets,
    )
    try:
        if settings.cluster.database:
            await databases.join_cluster(below.db, below.directory)
        plan.addresses.update(started.addresses)
        try:
            yield started
        finally:
            if life.failure is None and plan.worker is None:
                retiring.set()
                seconds = plan.drain_s if life.served_ms else 0.0
                await life.step("having others take over", life.unless_hurried(place.cluster.retire(seconds)))
    finally:
        await plan.life.step("closing the backend", started.close())


class Metadata(Struct, frozen=True):
    """The metadata floor: topics, positions, quotas and access rules, loaded from the database."""

    catalog: Catalog
    progress: Progress
    quotas: Quotas
    client_quotas: ClientQuotas
    access_rules: AccessRules | None
    authorizer: Authorizer


@asynccontextmanager
async def metadata(plan: Plan, below: Ground, place: ByItself, started: backend.Backend) -> AsyncIterator[Metadata]:
    """Load the metadata. Raises errors of the database."""
    settings, db, barrier = plan.settings, below.db, plan.metrics.barrier
    rules, authorizer = await _load_rules(plan, db)
    quotas = Quotas(QuotaRules(), settings.auth.quota_clients, barrier)
    client_quotas = ClientQuotas(db, quotas.rules, settings.auth.max_quotas, quotas.changed)
    await client_quotas.load()
    # A node alone stores no slots: it has one, and may become a cluster's with others.
    slots = {"slot_of": place.cluster.slot_of_key} if db.engine.shared else {}
    progress = Progress(db, plan.group_directories, **slots)
    await progress.load()
    options = CatalogOptions(
        max_partitions=settings.limits.max_partitions,
        max_partitions_per_topic=settings.limits.max_partitions_per_topic,
        static=plan.static_config,
        owns_streams=settings.sbp.mode == "embedded",
        node=settings.node.id,
        names={kind.name: kind.names for kind in plan.kinds if kind.names is not None},
    )
    of_fronts = (eraser for kind in plan.kinds for eraser in kind.erasers)
    promises = [promise for kind in plan.kinds for promise in kind.promises]
    catalog = Catalog(db, started.client, options, (erase_topic, *ERASERS, *of_fronts), barrier, promises)
    try:
        await catalog.load()
        # Another worker may take over a worker's log only when that worker is removed for good: until then it restarts
        # at once.
        in_objects = settings.sbp.durability == "object" and plan.worker is None
        await place.begin(catalog, started.embedded if in_objects else None)
        yield Metadata(catalog, progress, quotas, client_quotas, rules, authorizer)
    finally:
        await plan.life.step("closing the catalog", catalog.close())


async def _load_rules(plan: Plan, db: Database) -> tuple[AccessRules | None, Authorizer]:
    auth = plan.settings.auth
    if auth.rules == "off":
        return None, plan.authorizer
    from bridges.auth.rule_authorizer import RuleAuthorizer  # imported only with rules
    from bridges.catalog.access_rules import AccessRules

    rules = AccessRules(db, auth.max_rules)
    await rules.load()
    allowed, denied = auth.rules == "allow", plan.metrics.count_denial
    authorizer = RuleAuthorizer(rules.rules, plan.settings.super_users, otherwise=allowed, denied=denied)
    rules.on_change.append(authorizer.changed)
    return rules, authorizer


class Log(Struct, frozen=True):
    """The log floor: the partition logs, wherever they are, and the work on all of them."""

    logs: Logs
    partitions: Partitions
    retention: Retention
    cleaner: Cleaner
    translator: Translator
    handed_over: HandedOver


@asynccontextmanager
async def log(
    plan: Plan, below: Ground, place: ByItself, started: backend.Backend, known: Metadata
) -> AsyncIterator[Log]:
    """Make the partition logs, each of which is opened at its first use. Raises errors of the database."""
    settings, db, catalog, barrier = plan.settings, below.db, known.catalog, plan.metrics.barrier
    stores = await load_stores(db, barrier)
    flushed = settings.sbp.durability != "os" or settings.sbp.mode != "embedded"
    logs = Logs(
        started.client,
        catalog,
        stores,
        place.cluster,
        _log_options(settings, plan.kinds),
        RulesCache(catalog).rules_of,
        plan.works,
        barrier,
        None if flushed else partial(_take_positions_back, known.progress),
        partial(place.elsewhere, catalog, barrier),
    )
    retention = Retention(logs, partial(limits_of, catalog), NeededByConsumers(catalog, known.progress).first)
    partitions = Partitions(logs, place.forwarding(catalog, barrier, logs), db.changes.latest)
    handed_over = HandedOver(settings.migrate.grace_ms)
    options = CleanerOptions(settings.log.cleaner_buffer_bytes, settings.log.cleaner_bytes_per_second)
    cleaner = Cleaner(logs, stores.cleaned, Policies(catalog, handed_over.holds).find_policy, options)
    limits, held = settings.limits, partial(below.budget.account(lambda: None).count, Kind.READS)
    translator = Translator(limits.translated_bytes, plan.works, limits.batch_inflated_bytes, held)
    place.cluster.on_gained.append(lambda slots: catalog.seal_again())
    catalog.start_sealing(logs.seal)
    started.attach(logs)
    others: Sequence[Served] = ()
    try:
        if started.embedded is not None:
            others = await backend.serve_others(settings, started.embedded, plan.listen, catalog, logs, below.budget)
        plan.addresses.update({name: Address(*at) for other in others for name, at in other.addresses.items()})
        yield Log(logs, partitions, retention, cleaner, translator, handed_over)
    finally:
        await plan.life.step("forwarding nothing more", partitions.close())
        await plan.life.step("reading nothing more of other nodes", logs.elsewhere.close())
        await plan.life.step("answering no other node", place.peers.close())
        for other in others:  # their clients append through the partition logs
            await plan.life.step("stopping listeners of other backends", other.close())
        await plan.life.step("ending retention", retention.close())
        await plan.life.step("closing partition logs", logs.close())
        await plan.life.step("ending work on records", asyncio.to_thread(plan.works.close))


class Floors(Struct, frozen=True):
    """The open floors below the fronts, and the node as its console sees it."""

    plan: Plan
    ground: Ground
    place: ByItself
    storage: backend.Backend
    metadata: Metadata
    log: Log
    host: Host


async def _take_positions_back(progress: Progress, log: PartitionLog, end: int) -> None:
    """Move positions beyond the end of a log back to it: without flushes, a loss of power may have cut the
    log's end.
    """
    groups = await progress.not_beyond(log.topic, log.partition, end)
    if groups:
        _log.warning(
            "consumers had read further than the log goes, which has lost its end: they go on where it ends",
            topic=log.topic,
            partition=log.partition,
            end=end,
            groups=[name for _, name in groups],
        )


def _log_options(settings: Settings, fronts: Iterable[type[Front]]) -> LogOptions:
    log = settings.log
    return LogOptions(
        tail_cache_bytes=log.tail_cache_bytes,
        snapshot_bytes=log.snapshot_bytes,
        max_producers_per_partition=log.max_producers_per_partition,
        max_producers=log.max_producers,
        producer_idle_ms=log.producer_idle_ms,
        event_writers_per_partition=log.event_writers_per_partition,
        event_writer_idle_ms=log.event_writer_idle_ms,
        seq_no_producers_per_partition=log.seq_no_producers_per_partition,
        seq_no_producer_idle_ms=log.seq_no_producer_idle_ms,
        positions_idle_ms=log.positions_idle_ms,
        transactions_per_partition=log.transactions_per_partition,
        open_concurrency=log.open_concurrency,
        inflated_bytes=settings.limits.batch_inflated_bytes,
        rules=RULES | {kind: rule for front in fronts for kind, rule in front.ledger_rules.items()},
    )
