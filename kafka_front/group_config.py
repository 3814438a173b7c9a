"""Configuration of groups and of client metrics as Kafka's admin tools see it.

Names, types and defaults are those of Kafka 4.2. What a share group may have of its own can be set for it. Those of
consumer groups follow the node's settings (``kafka.group``) and are the same for all groups; the others are for kinds
of groups and for metrics that Anabranch does not offer. So they are told and cannot be changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridges.catalog.config_types import INT_MAX, ConfigDef, ConfigType, between, one_of, table


def _fixed(name: str, kind: ConfigType, default: str, doc: str) -> ConfigDef:
    return ConfigDef(name, kind, default, doc, dynamic=False, honoured=False)


GROUP_CONFIGS: Mapping[str, ConfigDef] = table(
    *(
        definition
        for kind in ("consumer", "share", "streams")
        for definition in (
            _fixed(
                f"{kind}.heartbeat.interval.ms", ConfigType.INT, "5000", "Milliseconds between heartbeats of a member."
            ),
            _fixed(
                f"{kind}.session.timeout.ms",
                ConfigType.INT,
                "45000",
                "Milliseconds without a heartbeat after which a member is taken for dead.",
            ),
        )
    ),
    ConfigDef(
        "share.auto.offset.reset",
        ConfigType.STRING,
        "latest",
        "Where a new share group begins to read.",
        one_of("latest", "earliest"),
    ),
    ConfigDef(
        "share.isolation.level",
        ConfigType.STRING,
        "read_uncommitted",
        "Which records a share group sees.",
        one_of("read_uncommitted", "read_committed"),
    ),
    ConfigDef(
        "share.record.lock.duration.ms",
        ConfigType.INT,
        "30000",
        "Milliseconds for which a member of a share group has a record for itself.",
        between(1, INT_MAX),
    ),
    _fixed(
        "streams.initial.rebalance.delay.ms",
        ConfigType.INT,
        "3000",
        "Milliseconds the first rebalance of a streams group waits for more members.",
    ),
    _fixed("streams.num.standby.replicas", ConfigType.INT, "0", "Standby copies of a streams group's state."),
)

CLIENT_METRICS_CONFIGS: Mapping[str, ConfigDef] = table(
    _fixed("interval.ms", ConfigType.INT, "300000", "Milliseconds between two reports of a client."),
    _fixed("match", ConfigType.LIST, "", "Which clients report."),
    _fixed("metrics", ConfigType.LIST, "", "Which metrics they report."),
)
