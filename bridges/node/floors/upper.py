"""The floors of a node for its clients: fronts, console, membership, upkeep; and the whole house (:func:`serve`)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec import to_builtins

from anabranch_kit.net.address import Address
from anabranch_kit.run.clock import now_ms
from bridges.catalog.topics.config import node_config_of
from bridges.catalog.topics.topic import Change, ChangeKind
from bridges.clients import Clients
from bridges.cluster.at_owner import find_others
from bridges.console.clients.everywhere import ClientsEverywhere
from bridges.console.door import ConsoleDoor
from bridges.console.groups.lists import GroupLists
from bridges.console.groups.members import GroupMembers
from bridges.console.groups.states import GroupStates
from bridges.console.history.sampling import Recorder
from bridges.console.host import Host
from bridges.console.problems.nodes import serve as serve_problems
from bridges.console.problems.watch import Watch
from bridges.console.topics.emptying import TopicTrims
from bridges.console.topics.sizes import TopicSizes
from bridges.node import promises
from bridges.node.floors import lower as floors
from bridges.node.floors.checks import Checks
from bridges.node.floors.lower import Floors
from bridges.node.floors.upkeep import upkeep
from bridges.node.front import Front, FrontError, NodeFacts, NodeServices, SbpPlace
from bridges.node.listening import CLUSTER, CONSOLE
from bridges.node.storage import backend
from bridges.version import VERSION, find_commit

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from anabranch_kit.memory.budget import MemoryBudget
    from bridges.console.schemas.decoding import Schemas
    from bridges.node.floors.by_itself import ByItself
    from bridges.node.floors.plan import Ground, Plan
    from bridges.node.settings.sections import SchemaSettings
    from bridges.node.storage.data_dir import Restored

_OWNERS_S = 10.0
"""Seconds for which a node that joins a cluster waits until every slot has an owner."""

_log = structlog.get_logger("anabranch.node")


@asynccontextmanager
async def serve(plan: Plan) -> AsyncIterator[Floors]:
    """Open all floors. Raises StoreError, SettingsError, OSError, errors of the database."""
    async with (
        floors.ground(plan) as ground,
        floors.cluster(plan, ground) as place,
        floors.storage(plan, ground, place) as storage,
        floors.metadata(plan, ground, place, storage) as metadata,
        floors.log(plan, ground, place, storage, metadata) as log,
    ):
        host = _show(plan, ground, place, storage, metadata, log)
        below = Floors(plan, ground, place, storage, metadata, log, host)
        metadata.catalog.on_change.append(partial(_follow_catalog, below))
        plan.metrics.add_source(partial(_measure, below))
        serve_problems(host)
        GroupLists(host).serve()
        async with _fronts(below), _console(below), _membership(below), upkeep(below):
            yield below


def _show(
    plan: Plan,
    ground: Ground,
    place: ByItself,
    storage: backend.Backend,
    metadata: floors.Metadata,
    log: floors.Log,
) -> Host:
    settings, metrics, progress, cluster = plan.settings, plan.metrics, metadata.progress, place.cluster
    states = GroupStates(progress, plan.group_directories, cluster, place.peers)
    most = settings.limits.history_bytes
    clients = Clients(ground.budget)
    return Host(
        life=plan.life,
        describe=partial(_describe, plan, metadata.catalog.cluster_id, ground.restored),
        not_promised=[(limit.sentence, limit.chosen) for limit in promises.of_node(settings.sbp)],
        static_config=plan.static_config,
        batch_inflated_bytes=settings.limits.batch_inflated_bytes,
        http_line_bytes=settings.limits.http_line_bytes,
        metrics=metrics,
        stalls=plan.stalls,
        budget=ground.budget,
        db=ground.db,
        embedded=storage.embedded,
        cluster=cluster,
        scrape_workers=place.scrape_workers,
        authenticator=plan.authenticator,
        authorizer=metadata.authorizer,
        access_rules=metadata.access_rules,
        client_quotas=metadata.client_quotas,
        quotas=metadata.quotas,
        catalog=metadata.catalog,
        progress=progress,
        logs=log.logs,
        partitions=log.partitions,
        cleaner=log.cleaner,
        group_directories=plan.group_directories,
        job_directories=plan.job_directories,
        transaction_directories=plan.transaction_directories,
        group_states=states,
        group_members=GroupMembers(plan.group_readers, progress, cluster, place.peers),
        topic_sizes=TopicSizes(metadata.catalog, log.logs, cluster, place.peers),
        topic_trims=TopicTrims(metadata.catalog, log.logs, cluster, place.peers),
        clients=clients,
        clients_everywhere=ClientsEverywhere(clients, cluster, place.peers),
        recorder=Recorder(metrics, plan.stalls, log.logs, progress, states, ground.budget, most),
        watch=Watch(),
        peers=place.peers,
        check=Checks(plan, ground.restored).check,
        schemas=_schemas(plan.settings.schemas, ground.budget),
        connect=partial(_connect, plan, ground, place),
    )


def _schemas(settings: SchemaSettings, budget: MemoryBudget) -> Schemas | None:
    if not settings.registry:
        return None
    from bridges.console.schemas.decoding import Schemas  # few nodes have a registry
    from bridges.console.schemas.registry import Registry

    return Schemas(Registry(settings.registry, settings.ca, budget))


def _connect(plan: Plan, ground: Ground, place: ByItself, host: str) -> dict[str, str]:
    """Return what clients of each listener are configured with, if they reach this node at ``host``."""
    lines: dict[str, str] = {}
    others = find_others(place.cluster)
    for kind in plan.kinds:
        wanted = kind.listeners[0].name if kind.listeners else None
        for name, address in plan.addresses.items():
            if plan.listening.kind(name) != wanted:
                continue
            told = [plan.find_advertised(name) or Address(host, address.port)]
            told += [found for one in others if (found := one.address(name, host)) is not None]
            lines[name] = kind.connection_line(
                plan.settings.find_section(kind),
                [str(one) for one in told],
                tls=name in ground.tls.listeners,
                login=plan.authenticator.required_at(name),
            )
    return lines


def _describe(plan: Plan, cluster_id: str, restored: Restored | None) -> dict[str, object]:
    served_ms = plan.life.served_ms
    return {
        "version": VERSION,
        "commit": find_commit(),
        "pid": os.getpid(),
        "node_id": plan.settings.node.id,
        "cluster_id": cluster_id,
        "listeners": {name: str(address) for name, address in plan.addresses.items()},
        "uptime_ms": max(0, now_ms() - served_ms) if served_ms else 0,
        "data_dir": str(plan.settings.data_dir),
        "durability": plan.settings.sbp.durability,
        "restored": to_builtins(restored),
    }


def _measure(below: Floors) -> Iterator[Metric]:
    from bridges.node.node_metrics import of_node  # imported only in a node that is scraped

    return of_node(below.host, below.plan.settings.limits.group_lag_series)


def _follow_catalog(below: Floors, change: Change) -> None:
    """Pass a change of the catalog on to the parts that know of topics."""
    topic, logs = change.topic, below.log.logs
    if topic is None:
        return
    if change.kind is ChangeKind.DELETED:
        logs.topic_deleted(topic.name, range(len(topic.partitions)))
        below.metadata.progress.topic_gone(topic.name)
        below.plan.metrics.topic_deleted(topic.name)
        below.host.recorder.topic_gone(topic.name, len(topic.partitions))
    elif change.kind is ChangeKind.PARTITIONS:
        for partition in topic.partitions:
            if not partition.is_active:
                logs.sealed(topic.name, partition.index, partition.children)
    elif change.kind is ChangeKind.SEALED:
        for partition in topic.partitions:
            if partition.end is not None:
                logs.ended(topic.name, partition.index, partition.end)
    elif change.kind is ChangeKind.IMPORT:
        logs.importing(topic.name, range(len(topic.partitions)), topic.import_epoch)


# --- fronts -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _fronts(below: Floors) -> AsyncIterator[None]:
    plan = below.plan
    _tell_configuration(plan, plan.listen)
    try:
        for kind in plan.kinds:
            own = [listener.name for listener in kind.listeners]
            wanted = {name: address for name, address in plan.listen.items() if plan.listening.kind(name) in own}
            if wanted or not kind.listeners:
                front = kind(make_services(below, kind))
                plan.fronts.append(front)
                plan.addresses.update(await front.start(wanted))
        await below.ground.db.changes.follow(plan.metrics.barrier)
        _tell_configuration(plan, plan.addresses)
        yield
    finally:
        await plan.chores.close()  # those of fronts, if a floor above has failed to open
        for front in plan.fronts:
            await plan.life.step(f"stopping {front.name}", front.stop())


def _tell_configuration(plan: Plan, addresses: Mapping[str, Address]) -> None:
    """Update the node-level configuration with what is known now; ``addresses`` by listener. Raises FrontError."""
    settings = plan.settings
    config = node_config_of(settings.topic_defaults)
    for kind in plan.kinds:
        facts = NodeFacts(
            settings.find_section(kind),
            settings.node,
            settings.log,
            settings.data_dir,
            addresses,
            plan.listening.advertised(addresses),
            plan.authenticator.takes_oauth,
            settings.auth_options.kerberos,
        )
        values = kind.node_configuration(facts)
        if twice := sorted(config.keys() & values.keys()):
            raise FrontError(f"front {kind.name} sets {twice[0]}, which the node or another front sets already")
        config.update(values)
    plan.static_config.update(config)


def make_services(below: Floors, kind: type[Front]) -> NodeServices:
    """Return what a front gets from its node."""
    plan, ground, metadata, log = below.plan, below.ground, below.metadata, below.log
    settings = plan.settings
    return NodeServices(
        settings=settings.find_section(kind),
        limits=settings.limits,
        node_id=settings.node.id,
        rack=settings.node.rack,
        cluster_id=metadata.catalog.cluster_id,
        data_dir=settings.data_dir,
        catalog=metadata.catalog,
        partitions=log.partitions,
        logs=log.logs,
        owners=below.place.cluster,
        peers=below.place.peers,
        progress=metadata.progress.front(kind.name, kind.group_space),
        db=ground.db,
        works=plan.works,
        translator=log.translator,
        budget=ground.budget,
        authenticator=plan.authenticator,
        authorizer=metadata.authorizer,
        access_rules=metadata.access_rules,
        client_quotas=metadata.client_quotas,
        quotas=metadata.quotas,
        metrics=plan.metrics.front(kind.name),
        clients=below.host.clients,
        barrier=plan.metrics.barrier,
        every=plan.chores.every,
        rounds=plan.chores.rounds,
        is_kept=log.handed_over.holds,
        advertised=plan.find_advertised,
        own_names=settings.own_names,
        tls=ground.tls.listeners.get,
        sbp=partial(_find_streams, below),
        tickets=ground.tickets,
    )


def _find_streams(below: Floors) -> SbpPlace:
    """Return where other programs find the streams of partitions."""
    plan, storage = below.plan, below.storage
    sbp, identity = plan.settings.sbp, storage.home.identity
    if storage.embedded is None:
        # External servers that demand no tickets give all rights to everybody who reaches them, so they are not shown
        # to clients that must log in. A listener of this node is different: the operator has opened it deliberately.
        closed = plan.listening.asks_who and not storage.demands_tickets
        nodes = () if closed else tuple(Address.parse(one) for one in sbp.pd.split(","))
        return SbpPlace(nodes, sbp.dialect, sbp.flavor, sbp.tls, identity, sbp.tickets)
    advertised = plan.settings.advertise.get(backend.PD)
    found = plan.addresses.get(backend.PD) if advertised is None else Address.parse(advertised)
    is_open = {backend.PD, backend.RANGE_SERVER} <= plan.addresses.keys()
    open_to_others = (found,) if is_open and found is not None else ()
    has_tls = backend.PD in below.ground.tls.listeners
    return SbpPlace(open_to_others, "0.2", "anabranch", has_tls, identity, sbp.tickets)


# --- console, membership ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _console(below: Floors) -> AsyncIterator[None]:
    plan = below.plan
    if CONSOLE not in plan.listen:
        yield
        return
    settings, limits = plan.settings, plan.settings.limits
    console = ConsoleDoor(
        below.host,
        settings.own_names(CONSOLE),
        limits.http_connections,
        limits.http_request_ms / 1000,
        open_health=settings.auth.open_health,
    )
    tls = below.ground.tls.listeners.get(CONSOLE)
    try:
        plan.addresses[CONSOLE] = await console.start(plan.listen[CONSOLE], tls)
        yield
    finally:
        await plan.life.step("stopping the console", console.stop())


@asynccontextmanager
async def _membership(below: Floors) -> AsyncIterator[None]:
    """Own a share of the slots while inside; at the end, finish what is in flight."""
    plan, place, life = below.plan, below.place, below.plan.life
    if CLUSTER in plan.listen:
        tls = below.ground.tls
        at = await place.listen(plan.listen[CLUSTER], tls.listeners.get(CLUSTER), tls.peers)
        plan.addresses[CLUSTER] = at
    embedded = below.storage.embedded
    server_id = -1 if embedded is None else embedded.range_server.info.server_id
    await place.cluster.join(server_id, _list_advertised(plan), plan.settings.node.rack)
    await place.cluster.await_owners(_OWNERS_S)
    yield
    await life.step("ending compaction", below.log.cleaner.close())
    if life.drains and life.failure is None:
        # Workers stop together, or restart at once: nothing is handed over.
        if plan.worker is None:
            await life.step("handing over", life.unless_hurried(place.cluster.leave(plan.drain_s)))
        await _drain(below)


def _list_advertised(plan: Plan) -> dict[str, str]:
    """Return the address of each listener that this node, and other nodes on its behalf, tell clients."""
    found: dict[str, str] = {}
    for name, address in plan.addresses.items():
        host = socket.gethostname()
        if plan.worker is not None:
            # A client knows this machine by the name under which it has reached another worker. Workers know it as the
            # local host.
            here = "::1" if address.host == "::" else "127.0.0.1"
            host = here if name == CLUSTER else address.host
        found[name] = str(plan.find_advertised(name) or Address(host, address.port))
    return found


async def _drain(below: Floors) -> None:
    plan = below.plan
    named = {front.name: front.drain() for front in plan.fronts} | {CLUSTER: below.place.peers.drain()}
    drains = asyncio.gather(*named.values(), return_exceptions=True)
    if not await plan.life.unless_hurried(drains, plan.drain_s):
        _log.warning("the stop gave up requests in flight", waited_up_to_seconds=plan.drain_s)
        return
    for name, error in zip(named, drains.result(), strict=True):
        if isinstance(error, BaseException):
            _log.error("draining failed", front=name, exc_info=error)
