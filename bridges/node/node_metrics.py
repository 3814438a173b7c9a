"""Metrics of a node as a whole: its partitions, consumers, memory, database and store."""

from __future__ import annotations

import heapq
import os
import platform
import resource
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from anabranch_kit.memory import heap
from anabranch_kit.memory.budget import Kind, MemoryBudget
from anabranch_kit.run.clock import now_ms
from anabranch_kit.run.stalls import BUCKETS
from anabranch_kit.run.turns import sorting
from bridges.catalog.views.groups import live_groups, records_behind
from bridges.catalog.views.jobs import RUNNING
from bridges.catalog.views.transactions import KeepsIds, TransactionDirectory, TransactionView
from bridges.cluster.members import State
from bridges.cluster.slots import ANY
from bridges.log.compaction.cleaner import STATES
from bridges.metric_text import SLICE, cumulative, gauge, slices, total, totals, value, values
from bridges.node.process.log_limit import LOG_LIMIT
from bridges.version import VERSION, find_commit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anabranch_kit.run.stalls import LoopStalls
    from bridges.catalog.views.groups import GroupName
    from bridges.cluster.service import Cluster
    from bridges.console.host import Host
    from bridges.log.compaction.cleaner import Cleaner
    from bridges.net.quotas import Quotas
    from sbp_back.range_server.store import StoreStats
    from sbp_back.range_server.store.stats import Requests


_LONG_MS = 10_000
_LONGEST = 50
"""Most long-open transactions with a sample of their own: others come and go, and would each be a new series."""


def of_node(node: Host, lag_series: int) -> Iterator[Metric]:
    """Yield all metrics of this module; ``lag_series``: most positions with a series of their own."""
    yield from _about(node)
    yield from stall_metrics(node.stalls)
    yield from _partitions(node)
    yield from _unstable(node)
    yield from _compaction(node.cleaner)
    yield from _lag(node, lag_series)
    yield from _jobs(node)
    yield from transaction_metrics(node.transaction_directories(), now_ms())
    if node.embedded is not None:
        yield from store_metrics(node.embedded.store.stats)


def _about(node: Host) -> Iterator[Metric]:
    yield value("anabranch_node_id", "Number of this node.", node.cluster.node_id)
    yield value("anabranch_topics", "Number of topics.", len(node.catalog.topics))
    yield value("anabranch_partitions", "Number of partitions of all topics.", node.catalog.partition_count)
    yield value(
        "anabranch_partitions_open",
        "Partitions that this node has open for writing.",
        sum(log.is_open for log in node.logs),
    )
    yield value(
        "anabranch_streams_to_delete",
        "Streams of deleted topics that are still to be deleted.",
        node.catalog.pending_deletions,
    )
    yield value(
        "anabranch_streams_left", "Streams of deleted topics that the backend cannot delete.", node.catalog.left_streams
    )
    yield value("anabranch_tail_cache_bytes", "Bytes of batches in the tail cache.", node.logs.cache.total)
    yield from _groups(node)
    yield from process_metrics()
    yield from budget_metrics(node.budget)
    logins = {"succeeded": node.authenticator.succeeded, "failed": node.authenticator.failed}
    yield totals("anabranch_authentications", "Logins with a password or token, by result.", ("result",), logins)
    yield total("anabranch_denials", "Requests refused because the client lacks the right.", node.metrics.denied)
    yield from quota_metrics(node.quotas)
    yield total("anabranch_database_commits", "Durable commits of the node's database.", node.db.commits)
    yield total(
        "anabranch_database_closures", "Changes and queries in the durable commits of the database.", node.db.closures
    )
    yield value("anabranch_database_waiting", "Changes and queries that wait for the database.", node.db.waiting)
    yield total("anabranch_database_seconds", "Seconds spent in the database's transactions.", node.db.seconds)
    yield value(
        "anabranch_database_busy_seconds",
        "Seconds that the database's current transaction has taken.",
        node.db.busy_seconds,
    )
    yield total(
        "anabranch_database_refused", "Changes and queries refused because the database failed.", node.db.refused
    )


def cluster_metrics(cluster: Cluster) -> Iterator[Metric]:
    """Yield metrics of ownership as this node sees it. For a node id, the newest start counts."""
    keeper = cluster.keeper
    members = {member.node_id: member for member in sorted(keeper.members.values(), key=lambda one: one.start)}
    owned = Counter(slot.owner for slot in keeper.slots)
    states = Counter(member.state.value for member in keeper.members.values())
    by_state = {state.value: states[state.value] for state in State}
    yield values("anabranch_cluster_members", "Nodes of the cluster, by state.", ("state",), by_state)
    slots = {str(node_id): owned[member.start] for node_id, member in sorted(members.items())}
    yield values("anabranch_cluster_slots", "Slots that a node owns.", ("node",), slots)
    silent = {str(node_id): keeper.still(member.start) for node_id, member in sorted(members.items())}
    yield values("anabranch_cluster_silent_seconds", "Seconds since the last heartbeat of a node.", ("node",), silent)
    # A node that is down keeps its pins.
    pinned = Counter(str(slot.pin) for slot in keeper.slots if slot.pin != ANY)
    text = "Slots that an operator moved to a node, which pins them."
    yield values("anabranch_cluster_slots_pinned", text, ("node",), pinned)
    yield value("anabranch_cluster_slots_unowned", "Slots without an owner.", keeper.unowned)
    yield value("anabranch_cluster_slots_acting", "Slots that this node serves now.", len(keeper.acting))
    yield total("anabranch_cluster_takeovers", "Dead nodes from which this node took over.", cluster.taken_over)
    yield total("anabranch_cluster_slots_given", "Slots that this node handed over to other nodes.", cluster.given)


def _compaction(cleaner: Cleaner) -> Iterator[Metric]:
    counts = cleaner.counts
    yield total("anabranch_compaction_passes", "Compaction passes over a partition.", counts.passes)
    yield total("anabranch_compaction_failures", "Compaction passes that failed.", counts.failures)
    yield total("anabranch_compaction_read_bytes", "Bytes that compaction read.", counts.read_bytes)
    yield total("anabranch_compaction_written_bytes", "Bytes that compaction wrote.", counts.written_bytes)
    yield total("anabranch_compaction_removed_bytes", "Bytes that compaction removed.", counts.removed_bytes)
    states = Counter(view.state for view in cleaner.views.values())
    by_state = {state: states[state] for state in STATES}
    yield values("anabranch_compaction_partitions", "Partitions of compacted topics, by state.", ("state",), by_state)
    dirty = sum(view.dirty_bytes for view in cleaner.views.values())
    yield value(
        "anabranch_compaction_dirty_bytes", "Bytes appended since the last pass, over all compacted partitions.", dirty
    )


def quota_metrics(quotas: Quotas) -> Iterator[Metric]:
    """Yield metrics of throttling by kind of quota, not by name: clients choose names."""
    limiters = {key.value: limiter for key, limiter in quotas.limiters.items()}
    for name, text, family, attribute in (
        ("anabranch_throttled", "Waits of clients for a quota.", totals, "throttled"),
        (
            "anabranch_throttled_seconds",
            "Seconds that clients waited for a quota, over all clients.",
            totals,
            "seconds",
        ),
        ("anabranch_throttled_clients", "Connections and streams that wait for a quota now.", values, "waiting"),
    ):
        yield family(name, text, ("quota",), {key: getattr(one, attribute) for key, one in limiters.items()})


def stall_metrics(stalls: LoopStalls) -> Iterator[Metric]:
    """Yield metrics of the event loop's delays."""
    family = HistogramMetricFamily(
        "anabranch_loop_stall_seconds", "Delay of the event loop, measured ten times a second."
    )
    family.add_metric([], cumulative(BUCKETS, stalls.buckets), stalls.seconds)
    yield family
    yield value(
        "anabranch_loop_stall_longest_seconds", "Longest delay of the event loop since the start.", stalls.longest
    )


@cache
def _started() -> float:
    """Return when the process started, by the wall clock of the first call. Raises OSError."""
    with open("/proc/self/stat", "rb") as stat:
        ticks = int(stat.read().rpartition(b")")[2].split()[19])  # since boot: proc(5), starttime
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def process_metrics() -> Iterator[Metric]:
    text = "Always 1; the labels are the versions of Anabranch and Python, and the commit of Anabranch."
    build = (VERSION, platform.python_version(), find_commit() or "")
    yield values("anabranch_build_info", text, ("version", "python", "commit"), {build: 1})
    with suppress(OSError):  # no /proc
        yield value("anabranch_start_time_seconds", "Start time of the process, in seconds since 1970.", _started())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield total("anabranch_cpu_seconds", "Processor seconds used by the process.", usage.ru_utime + usage.ru_stime)
    yield value("anabranch_memory_peak_bytes", "Peak resident memory of the process.", usage.ru_maxrss * 1024)
    with suppress(OSError):  # no /proc
        yield value("anabranch_memory_bytes", "Resident memory of the process.", heap.resident())
    text = "Log lines suppressed by logging.repeated_lines."
    yield totals("anabranch_log_lines_left_out", text, ("like",), LOG_LIMIT.left_out)


def budget_metrics(budget: MemoryBudget) -> Iterator[Metric]:
    """Yield metrics of the memory that connections hold."""
    held = {kind.name.lower(): budget.by_kind[kind] for kind in Kind}
    yield values("anabranch_connections_memory_bytes", "Memory that connections hold, by purpose.", ("kind",), held)
    yield value("anabranch_connections_memory_limit_bytes", "Limit of the memory of connections.", budget.total)
    yield value("anabranch_connections_memory_waiting", "Connections that wait for memory.", budget.waiting)
    yield total(
        "anabranch_connections_memory_refused", "Times that a connection had to wait for memory.", budget.refused
    )


def _partitions(node: Host) -> Iterator[Metric]:
    labels = ("topic", "partition")
    logs = [log for log in node.logs if log.is_open]
    for name, text, read in (
        ("anabranch_partition_end_offset", "High watermark of a partition.", attrgetter("high_watermark")),
        ("anabranch_partition_start_offset", "Log start of a partition.", attrgetter("log_start_offset")),
    ):
        for some in slices(logs):
            yield values(name, text, labels, {(log.topic, str(log.partition)): read(log) for log in some})
    text = "Records from the last stable offset to the high watermark."
    for some in slices(logs):
        behind = {
            (log.topic, str(log.partition)): log.high_watermark - log.last_stable_offset
            for log in some
            if log.high_watermark != log.last_stable_offset
        }
        yield values("anabranch_partition_unstable_records", text, labels, behind)


def _unstable(node: Host) -> Iterator[Metric]:
    text = "Seconds for which readers of committed data have waited for an open transaction; measured every 20 s."
    for some in slices([*node.watch.unstable().items()]):
        waited = {(topic, str(partition)): seconds for (topic, partition), seconds in some}
        yield values("anabranch_partition_unstable_seconds", text, ("topic", "partition"), waited)


def transaction_metrics(directories: Mapping[str, TransactionDirectory], now_ms: int) -> Iterator[Metric]:
    """Yield metrics of the transactions that fronts coordinate; by name those open for longest."""
    number = ("anabranch_transactions", "Transactional ids in memory, by state.", ("front", "state"))
    states: Counter[tuple[str, str]] = Counter()
    longest: list[tuple[int, str, str, TransactionView]] = []
    for front, directory in directories.items():
        for place, view in enumerate(directory.transactions(), 1):
            states[front, view.state] += 1
            open_ms = view.open_ms(now_ms)
            if open_ms is not None and open_ms >= _LONG_MS:
                keep = heapq.heappushpop if len(longest) >= _LONGEST else heapq.heappush
                keep(longest, (open_ms, front, view.transactional_id, view))
            if not place % SLICE:
                yield values(*number, {})
    yield values(*number, dict(sorted(states.items())))
    text = "Transactional ids of all nodes, with or without an open transaction; counted once a minute."
    kept = {front: directory.ids for front, directory in directories.items() if isinstance(directory, KeepsIds)}
    yield values("anabranch_transactional_ids", text, ("front",), kept)
    text = "Transactions aborted because their timeout passed."
    timed_out = {front: directory.timed_out for front, directory in directories.items()}
    yield totals("anabranch_transactions_timed_out", text, ("front",), timed_out)
    text = "Seconds since the begin of a transaction that has been open for 10 s or more; the 50 longest."
    seconds = {
        (front, name, str(view.producer_id)): open_ms / 1000
        for open_ms, front, name, view in sorted(longest, reverse=True)
    }
    labels = ("front", "transactional_id", "producer_id")
    yield values("anabranch_transaction_open_seconds", text, labels, seconds)


def _jobs(node: Host) -> Iterator[Metric]:
    views = [view for directory in node.job_directories().values() for view in directory.jobs()]
    states = Counter((view.kind, view.state) for view in views)
    text = "Jobs of the data pipeline that reported to this node."
    yield values("anabranch_jobs", text, ("kind", "state"), states)
    labels = ("kind", "name", "job", "unit")
    for name, text, attribute in (
        ("anabranch_job_done", "Work that a running job has done, in the job's unit.", "done"),
        ("anabranch_job_rate", "Work that a running job does per second, as the job reports it.", "rate"),
        ("anabranch_job_remaining", "Work that a running job has left, if known.", "remaining"),
    ):
        for some in slices([view for view in views if view.state == RUNNING]):
            amounts = {(view.kind, view.name, view.job_id, view.unit): getattr(view, attribute) for view in some}
            known = {key: amount for key, amount in amounts.items() if amount is not None}
            yield values(name, text, labels, known)


def _groups(node: Host) -> Iterator[Metric]:
    about = ("anabranch_groups", "Consumer groups with members or committed positions.")
    kinds: Counter[tuple[str, str]] = Counter()
    for number, (_, front, summary) in enumerate(live_groups(node.group_directories()), 1):
        kinds[front, summary.kind] += 1
        if not number % SLICE:
            yield gauge(*about)
    yield value(*about, len(node.progress.listed))
    joined = dict(sorted(kinds.items()))
    yield values("anabranch_groups_joined", "Groups with members, by kind.", ("front", "kind"), joined)


def _lag_family() -> GaugeMetricFamily:
    return gauge(
        "anabranch_group_lag_records",
        "Records between a group's position and the end.",
        "group",
        "topic",
        "partition",
        "space",
    )


def _lag(node: Host, lag_series: int) -> Iterator[Metric]:
    groups: list[tuple[int, GroupName]] = []
    for number, name in enumerate(node.progress.names(), 1):
        if node.group_states.is_here(name):
            groups.append((len(node.progress.of_group(name)), name))
        if not number % SLICE:
            yield _lag_family()
    room = lag_series
    omitted = 0
    # A group is shown completely or not at all, so that sums are right. The order is the same at every scrape.
    in_order: list[tuple[int, GroupName]] = []
    for number, one in enumerate(sorting(groups)):
        if one is not None:
            in_order.append(one)
        if one is None or not number % SLICE:
            yield _lag_family()
    for some in slices(in_order):
        told = _lag_family()
        for size, (space, group) in some:
            if size > room:
                omitted += size
                continue
            for (topic, partition), committed in list(node.progress.of_group((space, group)).items()):
                log = node.logs.in_use(topic, partition)
                if log is not None:
                    behind = records_behind(committed.offset, log.log_start_offset, log.high_watermark)
                    told.add_metric([group, topic, str(partition), space], behind)
                    room -= 1
                if len(told.samples) >= SLICE:
                    yield told
                    told = _lag_family()
        yield told
    omitted += yield from _shared(node, room)
    yield value(
        "anabranch_group_lag_omitted", "Positions without a lag series, above limits.group_lag_series.", omitted
    )
    text = "Age in seconds of the oldest record that a lagging group has not read; measured every 20 s."
    for behind_now in slices([*islice(node.recorder.lags.items(), lag_series)]):
        late = {(group, space): seconds for (space, group), (_, seconds, _) in behind_now}
        yield values("anabranch_group_lag_seconds", text, ("group", "space"), late)


def _shared(node: Host, room: int) -> Generator[Metric, None, int]:
    """Show the partitions of groups whose members share records, as last sampled; return how many had no ``room``."""
    omitted = 0
    labels = ("group", "topic", "partition", "space")
    lags = _lag_family()
    acquired = gauge(
        "anabranch_share_group_acquired_records", "Records that members of a share group have now.", *labels
    )
    again = gauge(
        "anabranch_share_group_redelivered_records",
        "Unfinished records of a share group that were delivered more than once.",
        *labels,
    )
    for (space, group), places in [*node.recorder.shared.items()]:
        if len(places) > room:
            omitted += len(places)
            continue
        room -= len(places)
        for one in places:
            key = [group, one.topic, str(one.partition), space]
            if (log := node.logs.in_use(one.topic, one.partition)) is not None:
                lags.add_metric(key, one.lag(log.log_start_offset, log.high_watermark))
            acquired.add_metric(key, one.acquired)
            again.add_metric(key, sum(records for count, records in one.deliveries.items() if count > 1))
    yield from (lags, acquired, again)
    return omitted


_STORE_TOTALS = {
    "appends": "Batches made durable.",
    "append_bytes": "Bytes of batches made durable.",
    "refused_appends": "Appends refused with an error.",
    "groups": "Groups of appends that share one write and one flush.",
    "group_bytes": "Bytes written to the write-ahead log.",
    "flush_seconds": "Seconds spent in flushes.",
    "reads": "Reads of the store.",
    "reads_from_disk": "Reads that waited for the disk.",
    "read_bytes": "Bytes read from the store.",
    "damaged_entries": "Damaged batches that a read found; readers never get them.",
    "segments_deleted": "Segment files deleted.",
    "evacuated_bytes": "Bytes copied out of segment files to delete them.",
    "packed_bytes": "Bytes rewritten as objects that hold one partition's data.",
    "moving_failures": "Failed attempts to move old data to objects; the store retries them.",
    "checkpoints": "Checkpoints written.",
    "maintenance_errors": "Failed maintenance work; the store retries it.",
}
_STORE_VALUES = {
    "pending_bytes": "Bytes of batches that wait to become durable.",
    "stuck_seconds": "Seconds since the last progress of appends that wait to become durable; 0 if none wait.",
    "segments": "Segment files of the write-ahead log.",
    "log_bytes": "Bytes of data in the segment files.",
    "live_bytes": "Bytes of batches that can be read.",
    "moved_bytes": "Bytes of batches that lie in objects and no longer on the disk.",
    "local_limit_bytes": "Limit of the log's bytes on the disk (sbp.local_bytes); 0: no limit.",
    "moving_fails": "1 while old data cannot be moved to objects and stays on the disk.",
    "disk_free": "Free bytes of the data directory's file system.",
    "disk_full": "1 while appends are refused because the disk is full.",
    "flush_seconds_max": "Seconds of the longest flush since the start.",
    "recovery_seconds": "Seconds that the last recovery took.",
}


def store_metrics(stats: StoreStats) -> Iterator[Metric]:
    """Yield metrics of a store, inside a node or in a separate range server."""
    for name, text in _STORE_TOTALS.items():
        yield total(f"anabranch_store_{name}", text, getattr(stats, name))
    for name, text in _STORE_VALUES.items():
        yield value(f"anabranch_store_{name}", text, float(getattr(stats, name)))
    if stats.objects:
        yield from _object_metrics(stats.objects)


def _object_metrics(objects: Mapping[str, Requests]) -> Iterator[Metric]:
    requests = {(operation, "answered"): one.answered for operation, one in objects.items()}
    requests |= {(operation, "failed"): one.failed for operation, one in objects.items()}
    text = "Requests to the object storage, one per attempt."
    yield totals("anabranch_objects_requests", text, ("operation", "result"), requests)
    text = "Seconds until requests to the object storage were answered or failed."
    seconds = {operation: one.seconds for operation, one in objects.items()}
    yield totals("anabranch_objects_seconds", text, ("operation",), seconds)
    text = "Bytes of objects sent to or received from the object storage."
    yield totals("anabranch_objects_bytes", text, ("operation",), {name: one.bytes for name, one in objects.items()})
