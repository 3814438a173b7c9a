"""Configurations of groups and of client metrics, as Kafka's admin tools see them.

Names, types, defaults and bounds are those of Kafka 4.4 (KIP-848, 932, 1071, 1191, 1240 and 714). Subscriptions to
client metrics are stored and described, but no client is asked to report without ``kafka.client_metrics_url``, as with
a broker without a metrics plug-in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import re2

from bridges.catalog.config_types import ConfigDef, ConfigType, InvalidConfig, between, one_of, table

Configured = Callable[[str, str], int | None]
"""Returns a group's own value of a key, by the group's name and the key; None: the settings apply (KIP-848)."""

MILLISECONDS = ConfigType.INT
_DURATION = re.compile(r"P(?=.)(?:(\d{1,6})D)?(?:T(?=.)(?:(\d{1,8})H)?(?:(\d{1,9})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?")
_BY_DURATION = "by_duration:"
_MATCHED = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def nothing_configured(group_id: str, key: str) -> int | None:
    """Return None: a :data:`Configured` for groups without configuration."""
    return None


def looks_back_ms(reset: str) -> int | None:
    """Return how many ms before now a new share group with this ``share.auto.offset.reset`` begins to read; None for
    latest and earliest. Raises ValueError for any other text."""
    if not reset.startswith(_BY_DURATION):
        one_of("latest", "earliest")(reset)
        return None
    found = _DURATION.fullmatch(reset.removeprefix(_BY_DURATION).upper())
    if found is None:
        raise ValueError("must be latest, earliest or by_duration: and an ISO 8601 duration such as PT1H")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return int(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) / timedelta(milliseconds=1))


def _matches(rules: list[str]) -> None:
    for rule in rules:
        name, separator, pattern = rule.partition("=")
        if not separator or name.strip() not in _MATCHED:
            raise ValueError(f"{rule!r} is not one of {', '.join(_MATCHED)}, '=' and a regular expression")
        try:
            re2.compile(pattern.strip())
        except re2.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression") from error


def _once(names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise ValueError("names a metric twice")


def _no_internal_topic(name: str) -> None:
    if name.startswith("__"):
        raise ValueError("must not begin with __")


def _definition(name: str, default: str, doc: str, check: Any, kind: ConfigType = MILLISECONDS) -> ConfigDef:
    return ConfigDef(name, kind, default, doc, check, dynamic=True, honoured=True)


GROUP_CONFIGS: Mapping[str, ConfigDef] = table(
    *(
        definition
        for kind in ("consumer", "share", "streams")
        for definition in (
            _definition(
                f"{kind}.heartbeat.interval.ms", "5000", "Milliseconds between heartbeats of a member.", between(1)
            ),
            _definition(
                f"{kind}.session.timeout.ms",
                "45000",
                "Milliseconds without a heartbeat after which a member is taken for dead.",
                between(1),
            ),
        )
    ),
    _definition(
        "share.auto.offset.reset", "latest", "Where a new share group begins to read.", looks_back_ms, ConfigType.STRING
    ),
    _definition(
        "share.isolation.level",
        "read_uncommitted",
        "Which records a share group sees.",
        one_of("read_uncommitted", "read_committed"),
        ConfigType.STRING,
    ),
    _definition(
        "share.record.lock.duration.ms",
        "30000",
        "Milliseconds for which a member of a share group has a record for itself.",
        between(1_000),
    ),
    _definition(
        "share.delivery.count.limit", "5", "How often a share group gets a record at most (KIP-1240).", between(1)
    ),
    _definition(
        "share.partition.max.record.locks",
        "2000",
        "Most records of a partition that a share group has in flight (KIP-1240).",
        between(1),
    ),
    _definition(
        "share.renew.acknowledge.enable",
        "true",
        "Whether members may renew the lock of a record (KIP-1240).",
        None,
        ConfigType.BOOLEAN,
    ),
    _definition(
        "errors.deadletterqueue.topic.name",
        "",
        "Topic for records that a share group rejects or gets too often (KIP-1191); empty: none.",
        _no_internal_topic,
        ConfigType.STRING,
    ),
    _definition(
        "errors.deadletterqueue.copy.record.enable",
        "false",
        "Whether dead letters have key and value of the record, or only headers that name it (KIP-1191).",
        None,
        ConfigType.BOOLEAN,
    ),
    _definition(
        "streams.initial.rebalance.delay.ms",
        "3000",
        "Milliseconds the first rebalance of a streams group waits for more members.",
        between(0),
    ),
    _definition("streams.num.standby.replicas", "0", "Standby copies of a streams group's state.", between(0)),
)

CLIENT_METRICS_CONFIGS: Mapping[str, ConfigDef] = table(
    _definition("interval.ms", "300000", "Milliseconds between two reports of a client.", between(100, 3_600_000)),
    _definition("match", "", "Which clients report.", _matches, ConfigType.LIST),
    _definition("metrics", "", "Which metrics they report.", _once, ConfigType.LIST),
)


def usual(static: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration of a group that sets nothing of its own. ``static`` are the node's values, by node-level
    keys."""
    return {name: static.get(f"group.{name}", one.default or "") for name, one in GROUP_CONFIGS.items()}


def bounded(static: Mapping[str, str]) -> Callable[[Mapping[str, str]], None]:
    """Return a check of a group's own configuration. It raises InvalidConfig for a value beyond the node's bounds, or
    a session timeout that is not above the heartbeat interval."""
    otherwise = usual(static)

    def check(own: Mapping[str, str]) -> None:
        for key, value in own.items():
            kind, _, what = key.partition(".")
            for end, sign, word in (("min", -1, "greater"), ("max", 1, "less")):
                bound = f"group.{kind}.{end}.{what.removeprefix('num.')}"
                if bound in static and (int(value) - int(static[bound])) * sign > 0:
                    raise InvalidConfig(f"{key} must be {word} than or equal to {bound}, which is {static[bound]}")
        for kind in ("consumer", "share", "streams"):
            timeout, beat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            whole = {**otherwise, **own}
            if (timeout in own or beat in own) and int(whole[timeout]) <= int(whole[beat]):
                raise InvalidConfig(f"{timeout} must be greater than {beat}")

    return check
