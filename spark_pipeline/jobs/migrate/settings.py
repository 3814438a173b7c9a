"""The carrying of more than records: settings that only YDB's clients see, and positions of groups.

The settings are codecs, speeds, attributes and consumers, by both sides' YDB listeners. A consumer must exist before
its readers come. Positions are exact offsets, since offsets are the same on both sides.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from spark_pipeline.core.errors import OptionError
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.endpoints.importer import Importer
from spark_pipeline.endpoints.migration import MigrationSource
from spark_pipeline.jobs.migrate.copying import Route
from spark_pipeline.jobs.migrate.plan import Plan
from spark_pipeline.jobs.migrate.terms import TARGET_YDB

_SPEEDS = ("partition_write_speed_bytes_per_second", "partition_write_burst_bytes")


def carry_settings(plan: Plan, source: MigrationSource, route: Route) -> dict[str, Any] | None:
    """Make the settings of the plan's topics at the target equal to the source's; it can be repeated.

    Returns by topic what was changed; None if the source is not YDB or the target's YDB listener is not known. Raises
    OptionError, PipelineError.
    """
    url = route.target_ydb
    if not plan.source.startswith(("ydb:", "ydb+tls:")) or not url:
        return None
    from spark_pipeline.endpoints.ydb.endpoint import YdbEndpoint

    with closing(endpoint(url, route.target_options)) as target:
        if not isinstance(target, YdbEndpoint) or not isinstance(source, YdbEndpoint):
            raise OptionError(f"--target-option {TARGET_YDB} is {url!r}, not ydb://HOST:PORT/DATABASE")
        done: dict[str, Any] = {}
        for topic in plan.topics:
            changes = _changes(source.describe(topic.name), target.describe(topic.name))
            if changes:
                path = target.path(topic.name)
                target.ask(lambda driver: driver.topic_client.alter_topic(path, **changes))  # noqa: B023 - called at once
            done[topic.name] = {
                name: [one.name for one in value] if name.endswith("consumers") else str(value)
                for name, value in changes.items()
            }
        return done


def _changes(there: Any, here: Any) -> dict[str, Any]:
    """Return the changes that make ``here`` equal to ``there``, as arguments of the SDK's alter_topic."""
    changes: dict[str, Any] = {}
    if sorted(there.supported_codecs) != sorted(here.supported_codecs):
        changes["set_supported_codecs"] = list(there.supported_codecs)
    for name in _SPEEDS:
        if getattr(there, name) != getattr(here, name):
            changes[f"set_{name}"] = getattr(there, name)
    attributes = {name: value for name, value in there.attributes.items() if here.attributes.get(name) != value}
    if attributes:
        changes["alter_attributes"] = attributes
    if there.metering_mode and there.metering_mode != here.metering_mode:
        changes["set_metering_mode"] = there.metering_mode
    known = {one.name for one in here.consumers}
    added = [one for one in there.consumers if one.name not in known]
    if added:
        changes["add_consumers"] = added
    return changes


_POSITIONS_PER_REQUEST = 5_000
_BUSY = frozenset({"Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})


def sync_groups(plan: Plan, source: MigrationSource, target: Importer) -> dict[str, Any]:
    """Set the groups' positions at the target to those at the source, for topics of the plan; it can be repeated.

    The report says by group how many positions were set, which were kept because a consumer has committed at the
    target, which lie ahead of the copied offsets, and whether the group still has members at the source.
    """
    names = {topic.name for topic in plan.topics}
    states = source.group_states()
    told: dict[str, Any] = {}
    for group, positions in sorted(source.group_positions().items()):
        wanted = [(part, at.offset, at.metadata) for part, at in sorted(positions.items()) if part.topic in names]
        if not wanted:
            continue
        done: dict[str, Any] = {"set": 0, "kept": [], "ahead": [], "members": states.get(group, "") in _BUSY}
        for start in range(0, len(wanted), _POSITIONS_PER_REQUEST):
            answer = target.positions(group, wanted[start : start + _POSITIONS_PER_REQUEST])
            done["set"] += answer.set
            done["kept"] += [list(one) for one in answer.kept]
            done["ahead"] += [list(one) for one in answer.ahead]
        told[group] = done
    return {
        "groups": told,
        "set": sum(one["set"] for one in told.values()),
        "kept": sum(len(one["kept"]) for one in told.values()),
        "ahead": sum(len(one["ahead"]) for one in told.values()),
    }
