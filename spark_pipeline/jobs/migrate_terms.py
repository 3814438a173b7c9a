"""On which terms topics of each kind of source move: what the target takes of their settings, and what is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from bridges.catalog import topic_config
from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.names import derived_names
from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.plan import NotCarried, carried
from spark_pipeline.endpoints.base import TopicInfo
from spark_pipeline.endpoints.kafka import KafkaEndpoint
from spark_pipeline.endpoints.migration import MigrationSource

TARGET_YDB = "ydb"
"""The option of a target that says where its YDB listener is, as a URL of an endpoint."""

_HONOURED = {key: one.honoured for key, one in topic_config.TOPIC_CONFIGS.items()}
_MIB = 1024 * 1024

Carried = tuple[dict[str, str], list[NotCarried]]
"""A topic's configuration as the target has it, and what is left."""


class Terms(Protocol):
    """The terms of one kind of source."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        """What is never carried, or not in this migration."""

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str]) -> Carried:
        """What becomes of a topic's settings."""


def terms_of(url: str) -> Terms:
    """Those of the source at ``url``. Raises OptionError."""
    scheme = urlsplit(url).scheme
    found = _TERMS.get(scheme)
    if found is None:
        raise OptionError(f"topics are migrated from kafka://, ydb:// and pravega://, not from {scheme or url!r}")
    return found


def _listed(*rows: tuple[str, str]) -> list[NotCarried]:
    return [NotCarried("", what, why) for what, why in rows]


_USERS = ("users and passwords", "the source tells nobody its users' passwords: give them with `anabranch user add`")
_MEMBERS = ("members of groups", "consumers join anew at the target, and go on at their committed positions")


# --- Kafka ----------------------------------------------------------------------------------------------------------


class KafkaTerms:
    """Batches and configurations as they are."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        found = _listed(
            _USERS,
            ("client quotas", "the target has none"),
            (
                "states of producers",
                "producers ask for a new id at the target; until they do, their repetitions are not known",
            ),
            _MEMBERS,
            ("leader epochs", "each cluster counts its own; they are the only bytes of a batch that are not kept"),
        )
        acls = source.acl_count() if isinstance(source, KafkaEndpoint) else None
        if acls:
            found += _listed((f"{acls} ACLs", "the target lets everybody whom it knows do everything"))
        return found

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str]) -> Carried:
        return carried(topic.name, topic.config, _HONOURED, _check_config)


def _check_config(key: str, value: str) -> None:
    try:
        topic_config.validate({key: value})
    except InvalidConfig as error:
        raise ValueError(str(error)) from error


# --- YDB ------------------------------------------------------------------------------------------------------------

CONSUMERS = "consumers"
"""In a topic's configuration, as the endpoint has it: their names, with commas."""
_BY_YDB = frozenset(
    {
        "supported_codecs",
        "partition_write_speed_bytes_per_second",
        "partition_write_burst_bytes",
        "metering_mode",
        CONSUMERS,
    }
)
"""Settings that only YDB's clients see: they are made through the target's YDB listener, if it is known."""


class YdbTerms:
    """Messages as they are, producers' numbers, retention; other settings through the target's YDB listener."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        return _listed(
            _USERS,
            ("permissions", "the target lets everybody whom it knows do everything"),
            _MEMBERS,
            ("times of writing", "the target tells when a message came here; created_at is kept"),
            (
                "producers all of whose messages are gone from the source",
                "YDB tells of a producer's last seq_no only by its messages: such a producer begins anew",
            ),
            ("messages of more than 15 MiB", "a batch that is brought fits a frame of the backend; the run says where"),
        )

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str]) -> Carried:
        config = {"retention.ms": "-1"}  # YDB has no word for it but leaving the period out
        left: list[NotCarried] = []
        for key, value in sorted(topic.config.items()):
            if key == "path":
                continue
            if key == "retention_period":
                config["retention.ms"] = str(round(float(value.removesuffix("s")) * 1000))
            elif key == "retention_storage_mb":
                config["retention.bytes"] = str(int(value) * _MIB)
            elif key not in _BY_YDB and not key.startswith("attributes."):
                left.append(
                    NotCarried(topic.name, f"{key} = {value}", "the target's partitions do not split by themselves")
                )
            elif TARGET_YDB not in target_options:
                option = f"--target-option {TARGET_YDB}=ydb://HOST:2136/local"
                why = f"give {option} to plan and cutover, or set it by YDB's AlterTopic"
                left.append(NotCarried(topic.name, f"{key} = {value}", why))
        sealed = [number for number, state in topic.states.items() if state != "active"]
        if sealed:
            what = f"partitions {', '.join(map(str, sealed))} are split or merged"
            why = "all partitions take messages at the target; producers go on in those that have their last ones"
            left.append(NotCarried(topic.name, what, why))
        derived = derived_names(topic.name).get("ydb")
        path = topic.config.get("path", derived)
        if path != derived:
            left.append(NotCarried(topic.name, f"the path {path}", f"YDB's clients find it at {derived}"))
        return config, left


# --- Pravega --------------------------------------------------------------------------------------------------------


class PravegaTerms:
    """Events as they are, at offsets that are their positions in bytes; retention."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        return _listed(
            _USERS,
            ("permissions", "the target lets everybody whom it knows do everything"),
            (
                "positions of reader groups",
                "their clients keep them in forms of their own: let readers finish at the source, or begin anew here",
            ),
            (
                "routing keys, writers and times of events",
                "Pravega does not keep the keys and the times, and does not tell its writers",
            ),
            ("transactions that are open", "what was not committed is in no segment; a cut-over does not wait for it"),
            ("events of more than 15 MiB", "a batch that is brought fits a frame of the backend; the run says where"),
            ("key-value tables, and streams of bytes that are no events", "only events are records"),
        )

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str]) -> Carried:
        config = {"retention.ms": "-1"}  # Pravega's streams without a policy are kept for ever
        left: list[NotCarried] = []
        for key, value in sorted(topic.config.items()):
            if key == "retention.time":
                config["retention.ms"] = value
            elif key == "retention.size":
                config["retention.bytes"] = str(max(1, int(value) // max(1, len(topic.partitions))))
            elif (key, value) != ("scaling", "fixed"):
                left.append(
                    NotCarried(topic.name, f"{key} = {value}", "set it by a client's updateStream at the target")
                )
        sealed = [number for number, state in topic.states.items() if state != "active"]
        if sealed:
            what = f"segments {', '.join(map(str, sealed))} were scaled or sealed"
            why = "all of them take events at the target, each for an equal part of the keys"
            left.append(NotCarried(topic.name, what, why))
        return config, left


_TERMS: dict[str, Terms] = {
    "kafka": KafkaTerms(),
    "ydb": YdbTerms(),
    "ydb+tls": YdbTerms(),
    "pravega": PravegaTerms(),
    "pravega+tls": PravegaTerms(),
}
