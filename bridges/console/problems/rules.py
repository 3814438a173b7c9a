"""The rules by which something is wrong: the table for the console's first screen and for Prometheus' alerts.

A rule compares one value with a threshold. Prometheus computes the value with ``expr``; a node computes the same value
itself (:mod:`bridges.console.problems.measuring`). ``python -m bridges.console.problems.rules`` prints
compose/monitoring/alerts.yml.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import Enum

from msgspec import Struct


class Severity(Enum):
    """The importance of a problem."""

    CRITICAL = "critical"
    """Clients wait, or something was lost."""
    WARNING = "warning"
    NOTE = "note"
    """Nothing is wrong, but somebody who looks should know it."""


class Unit(Enum):
    """The unit of a rule's value."""

    COUNT = ""
    SECONDS = "humanizeDuration"
    SHARE = "humanizePercentage"


class Rule(Struct, frozen=True, kw_only=True):
    """A rule: something is wrong while the value of ``expr`` is above ``threshold``.

    ``expr``, ``sentence`` and ``remedy`` have the threshold as ``{threshold}``. In a sentence ``{node}`` is the node,
    ``{value}`` the value, and any other name in braces a label. ``lasting``: for how long it must be so before
    Prometheus raises an alert; the console shows it at once.
    """

    name: str
    severity: Severity
    expr: str
    threshold: float = 0
    unit: Unit = Unit.COUNT
    lasting: str = ""
    sentence: str
    remedy: str

    def tell(self, node: str, value: float, labels: Mapping[str, str]) -> str:
        """Return the sentence for a value that a node has measured."""
        return self.sentence.format_map({**labels, "node": node, "value": _format_value(value, self.unit)})

    @property
    def alert(self) -> str:
        """Return the sentence as a template of Prometheus."""
        told = "{{ $value | " + (self.unit.value or "humanize") + " }}"
        return self.sentence.format_map(
            _Templates(node="{{ $labels.instance }}", silent="{{ $labels.node }}", value=told)
        )

    @property
    def query(self) -> str:
        """Return the expression of the alert."""
        return self.expr.replace("{threshold}", f"{self.threshold:g}")


class _Templates(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "{{ $labels." + name + " }}"


def _format_value(value: float, unit: Unit) -> str:
    if unit is Unit.SHARE:
        return f"{value:.0%}"
    if unit is Unit.COUNT:
        return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:.0f} {name}"
    return f"{value:.3g} s" if value < 1 else f"{value:.0f} s"


class Problem(Struct, frozen=True, kw_only=True):
    """Something that is wrong at node ``node``, and what to do.

    ``about``: the rule's name, or the subject of the doctor's finding. ``topic``, ``group`` (of ``space``): what it is
    about. ``more``: the number of further problems of this rule that are left out.
    """

    severity: Severity
    sentence: str
    remedy: str = ""
    about: str
    node: int = -1
    topic: str | None = None
    group: str | None = None
    space: str = ""
    more: int = 0


class Measured(Struct, frozen=True):
    """A value for a rule. ``labels``: as Prometheus would have them. ``detail``: a text to end the sentence with."""

    value: float
    labels: Mapping[str, str] = {}
    detail: str = ""
    space: str = ""


_SERVER_ERRORS = ("UNKNOWN_SERVER_ERROR", "CORRUPT_MESSAGE", "KAFKA_STORAGE_ERROR", "INTERNAL_ERROR")
SERVER_ERRORS = frozenset(_SERVER_ERRORS)
"""Errors that a node answers because of itself, not because of its client."""

RULES = (
    Rule(
        name="Down",
        severity=Severity.CRITICAL,
        expr='1 - up{job="anabranch"} > {threshold}',
        lasting="30s",
        sentence="{node} does not answer",
        remedy="Its log says why it stopped, if it did; the exit codes are in docs/operations.md. Clients of what it "
        "owned wait until another node has taken over. Start it again.",
    ),
    Rule(
        name="DiskFull",
        severity=Severity.CRITICAL,
        expr="anabranch_store_disk_full > {threshold}",
        sentence="{node} refuses writes: its disk is full",
        remedy="Reads and deletions go on, and writes resume when there is room. Delete topics, shorten retention or "
        "add space.",
    ),
    Rule(
        name="DiskFillsUp",
        severity=Severity.WARNING,
        expr="-predict_linear(anabranch_store_disk_free[1h], 6 * 3600) > {threshold} "
        "and anabranch_store_disk_full == 0",
        lasting="15m",
        sentence="{node} has no disk left within six hours at the rate of the last one",
        remedy="Retention gives space back by whole segments; what is kept longest is seen under Topics.",
    ),
    Rule(
        name="Damage",
        severity=Severity.CRITICAL,
        expr="increase(anabranch_store_damaged_entries_total[15m]) > {threshold}",
        sentence="{node} has read data that does not match its checksum",
        remedy="Its readers get an error at that offset; what lies before and behind it is served. See "
        'docs/operations.md, "When something is wrong".',
    ),
    Rule(
        name="Defect",
        severity=Severity.WARNING,
        expr="sum by (instance, kind) (increase(anabranch_callback_failures_total[15m])) > {threshold}",
        sentence="an unexpected error in {node} ({kind})",
        remedy="It cost one request, and is a bug to report with the line of the log that says `a callback failed`.",
    ),
    Rule(
        name="Stalls",
        severity=Severity.WARNING,
        expr="histogram_quantile(0.99, sum by (instance, le) (rate(anabranch_loop_stall_seconds_bucket[5m]))) > "
        "{threshold}",
        threshold=0.25,
        unit=Unit.SECONDS,
        lasting="5m",
        sentence="{node} keeps its clients waiting: its event loop is late by {value}",
        remedy="The machine has too little processor time for it, or something is worked on that should not be. "
        "docs/profile.md finds what.",
    ),
    Rule(
        name="Stuck",
        severity=Severity.CRITICAL,
        expr='max by (instance) ({__name__=~"anabranch_store_stuck_seconds|anabranch_database_busy_seconds"}) > '
        "{threshold}",
        threshold=10,
        unit=Unit.SECONDS,
        sentence="{node} has waited {value} for its disk, object storage or database",
        remedy="What was appended meanwhile is not acknowledged. "
        'See docs/operations.md, "A process that stands still".',
    ),
    Rule(
        name="RequestErrors",
        severity=Severity.WARNING,
        expr='sum by (instance, front) (rate(anabranch_request_errors_total{error=~"'
        + "|".join(_SERVER_ERRORS)
        + '"}[5m])) > {threshold}',
        lasting="5m",
        sentence="{node} answers clients of {front} with errors that are not theirs",
        remedy="The log has a line for each kind.",
    ),
    Rule(
        name="GroupFallsBehind",
        severity=Severity.WARNING,
        expr="max by (instance, group) (anabranch_group_lag_seconds) > {threshold} and on (instance, group) "
        "sum by (instance, group) (deriv(anabranch_group_lag_records[5m])) > 0",
        threshold=300,
        unit=Unit.SECONDS,
        lasting="10m",
        sentence="group {group} is {value} behind, and falls further behind",
        remedy="`anabranch group` shows its members. Add members, or find what holds them up. "
        "What retention takes before they come to it is gone for them.",
    ),
    Rule(
        name="TransactionHangs",
        severity=Severity.WARNING,
        expr="anabranch_partition_unstable_seconds > {threshold}",
        threshold=900,
        unit=Unit.SECONDS,
        sentence="readers of committed data in {topic}, partition {partition}, have waited {value} for a transaction",
        remedy="It is open for longer than a transaction may be by default. Look at it under Transactions, and abort "
        "it there or with `anabranch transaction abort`.",
    ),
    Rule(
        name="MemoryShort",
        severity=Severity.WARNING,
        expr="anabranch_connections_memory_waiting > {threshold}",
        lasting="5m",
        sentence="{value} connections of {node} wait for memory",
        remedy="Raise limits.connections_memory_bytes, or find the clients that ask for much and take little.",
    ),
    Rule(
        name="WrongPasswords",
        severity=Severity.WARNING,
        expr='rate(anabranch_authentications_total{result="failed"}[5m]) > {threshold}',
        threshold=1,
        lasting="5m",
        sentence="{node} is given wrong passwords, {value} a second",
        remedy="Somebody guesses, or an application has an old one; the log names their addresses.",
    ),
    Rule(
        name="JobSilent",
        severity=Severity.WARNING,
        expr='anabranch_jobs{state="silent"} > {threshold}',
        lasting="5m",
        sentence="{value} of the data pipeline's jobs ({kind}) have not been heard of for a minute",
        remedy="`anabranch migrate status` and its siblings tell how far it came; it goes on where it ended when it is "
        "started again.",
    ),
    Rule(
        name="JobFailed",
        severity=Severity.WARNING,
        expr='anabranch_jobs{state=~"failed|different"} > {threshold}',
        sentence="{value} of the data pipeline's jobs ({kind}) ended as {state}",
        remedy="Jobs shows what it says. `different`: two sides that should be the same are not, so look at them "
        "before anything is deleted. It is shown for a week after its last report.",
    ),
    Rule(
        name="NodeSilent",
        severity=Severity.CRITICAL,
        expr="min by (node) (anabranch_cluster_silent_seconds) > {threshold}",
        threshold=30,
        unit=Unit.SECONDS,
        sentence="no heartbeat of node {silent} has been seen for {value}",
        remedy="Others have taken over what it owned, if they could. Its own log, if it runs, says what it does not "
        'reach. See docs/operations.md, "What each outage does".',
    ),
    Rule(
        name="SlotsUnowned",
        severity=Severity.CRITICAL,
        expr="min(anabranch_cluster_slots_unowned) > {threshold}",
        lasting="1m",
        sentence="{value} slots have no owner: their partitions and groups answer nobody",
        remedy="Whoever takes over has to reach the database and the object storage, and needs sbp.durability=object. "
        "`anabranch cluster status` shows who is `ending`.",
    ),
    Rule(
        name="NodesComeAndGo",
        severity=Severity.WARNING,
        expr="sum(increase(anabranch_cluster_takeovers_total[30m])) > {threshold}",
        threshold=3,
        sentence="{value} nodes were taken for dead in half an hour",
        remedy="They end, or are slower to show themselves than cluster.lease_ms allows. Look for stalls, short "
        "processors, a database that is slow.",
    ),
    Rule(
        name="ObjectStorageFails",
        severity=Severity.CRITICAL,
        expr='sum by (instance) (rate(anabranch_objects_requests_total{result="failed"}[2m])) / '
        "sum by (instance) (rate(anabranch_objects_requests_total[2m])) > {threshold}",
        threshold=0.1,
        unit=Unit.SHARE,
        lasting="1m",
        sentence="{value} of the requests of {node} to the object storage fail",
        remedy="Writes wait until they succeed; nothing is acknowledged before, and nothing is lost. Reads of what is "
        "in the cache go on. Its log says what the storage answers.",
    ),
    Rule(
        name="OldDataStays",
        severity=Severity.WARNING,
        expr="anabranch_store_moving_fails > {threshold} or (anabranch_store_log_bytes > "
        "2 * anabranch_store_local_limit_bytes and anabranch_store_local_limit_bytes > 0)",
        lasting="15m",
        sentence="{node} does not move its old data to objects, and its disk fills up",
        remedy="Its log says what the object storage answers. Nothing is lost, and writes go on until the disk is "
        'full. See docs/operations.md, "A disk for what is recent, object storage for what is old".',
    ),
    Rule(
        name="ObjectStorageSlow",
        severity=Severity.WARNING,
        expr='sum by (instance) (rate(anabranch_objects_seconds_total{operation="put"}[5m])) / '
        'sum by (instance) (rate(anabranch_objects_requests_total{operation="put"}[5m])) > {threshold}',
        threshold=1,
        unit=Unit.SECONDS,
        lasting="5m",
        sentence="a put of {node} takes {value} on average",
        remedy="Every acknowledgement waits for one.",
    ),
    Rule(
        name="DatabaseRefuses",
        severity=Severity.CRITICAL,
        expr="sum by (instance) (rate(anabranch_database_refused_total[1m])) > {threshold}",
        lasting="30s",
        sentence="{node} cannot commit to its database",
        remedy="Open partitions are written and read; topics, positions of groups and producer ids do not change, and "
        "clients are told to try again.",
    ),
    Rule(
        name="TransactionalIdsMany",
        severity=Severity.WARNING,
        expr="max by (instance) (anabranch_transactional_ids) > {threshold}",
        threshold=500_000,
        lasting="10m",
        sentence="{node} keeps {value} transactional ids",
        remedy="Producers use new names all the time, as Flink's do by default. Give them names that they use again, "
        "and forget the old ones with `anabranch transaction forget PREFIX --prefix --idle-for 1d`.",
    ),
    Rule(
        name="DatabaseBusy",
        severity=Severity.WARNING,
        expr="sum by (instance) (rate(anabranch_database_seconds_total[5m])) > {threshold}",
        threshold=0.9,
        unit=Unit.SHARE,
        lasting="10m",
        sentence="{node} spends {value} of the time in its database's transactions",
        remedy="It is the database that bounds this node now. Commit positions less often, or give the database a "
        "faster disk.",
    ),
)
BY_NAME = {rule.name: rule for rule in RULES}


def alerts_file() -> str:
    """Return the text of compose/monitoring/alerts.yml."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# What somebody should be told of: the rules of the console's first screen."
    yield "# Made by `python -m bridges.console.problems.rules`; change the rules there."
    yield "groups:"
    yield "  - name: anabranch"
    yield "    rules:"
    for place, rule in enumerate(RULES):
        if place:
            yield ""
        yield f"      - alert: Anabranch{rule.name}"
        yield f"        expr: {_quoted(rule.query)}"
        if rule.lasting:
            yield f"        for: {rule.lasting}"
        yield f"        labels: {{severity: {rule.severity.value}}}"
        yield "        annotations:"
        yield f"          summary: {_quoted(rule.alert)}"
        yield f"          description: {_quoted(rule.remedy)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


if __name__ == "__main__":
    sys.stdout.write(alerts_file())
