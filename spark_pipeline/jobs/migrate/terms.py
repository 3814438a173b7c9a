"""The terms on which topics of each kind of source move: the settings that the target takes, and those that it leaves.

What counts is the value in effect for a topic, whether set or default: a source's defaults are not the target's. So
each kind of source translates the effective values of its topics into the target's settings. Values that differ from
the target's defaults are written into the plan, and set for the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from bridges.catalog.config_types import LONG_MAX, InvalidConfig
from bridges.catalog.topics import config as topic_config
from bridges.catalog.topics.names import derived_names
from spark_pipeline.core.errors import OptionError
from spark_pipeline.endpoints.base import TopicInfo
from spark_pipeline.endpoints.importer import Defaults
from spark_pipeline.endpoints.kafka.endpoint import KafkaEndpoint
from spark_pipeline.endpoints.migration import MigrationSource
from spark_pipeline.jobs.migrate.plan import NotCarried, carried

TARGET_YDB = "ydb"
"""The target's option for the URL of its YDB listener."""

_HONOURED = {key: one.honoured for key, one in topic_config.TOPIC_CONFIGS.items()}
_MIB = 1024 * 1024

Carried = tuple[dict[str, str], list[NotCarried]]
"""A topic's configuration at the target, and the settings that are not carried."""


class Terms(Protocol):
    """The terms of one kind of source."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        """Return what is never carried, or not in this migration."""

    def effective_settings(self, topic: TopicInfo) -> dict[str, str]:
        """Return a topic's effective settings at the source, as configuration of the target."""

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str], defaults: Defaults) -> Carried:
        """Return a topic's configuration at the target, whose defaults are ``defaults``, and the settings left."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """A setting whose effective values for a topic differ between source and target."""

    topic: str
    key: str
    source: str
    target: str


def settings_unlike(terms: Terms, there: TopicInfo, here: TopicInfo) -> list[Unlike]:
    """Return the settings with an effect whose values for a topic differ between source and target."""
    wanted = terms.effective_settings(there)
    differ = _differing(wanted, here.effective) if here.effective else {}
    return [
        Unlike(there.name, key, value, here.effective.get(key, ""))
        for key, value in sorted(differ.items())
        if _HONOURED[key]
    ]


def _differing(wanted: Mapping[str, str], has: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of ``wanted`` that the target knows and for which it ``has`` another value."""
    return {
        key: value
        for key, value in wanted.items()
        if key in _HONOURED and _canonical(key, value) != _canonical(key, has.get(key, ""))
    }


def _explicit(wanted: Mapping[str, str], defaults: Defaults) -> dict[str, str]:
    """Return the settings that a topic from another protocol than Kafka's must set.

    These are its retention in any case, and no bounds of sizes and times where the target's operator has set bounds for
    all topics.
    """
    bounds = {key: value for key, value in _UNBOUNDED.items() if key in defaults.configured}
    return {"retention.ms": wanted["retention.ms"], **_differing({**bounds, **wanted}, defaults.config)}


def _canonical(key: str, value: str) -> str:
    try:
        return topic_config.TOPIC_CONFIGS[key].canonical(value)
    except InvalidConfig:
        return value


def terms_of(url: str) -> Terms:
    """Return the terms of the source at ``url``. Raises OptionError."""
    scheme = urlsplit(url).scheme
    found = _TERMS.get(scheme.removesuffix("+tls"))
    if found is None:
        raise OptionError(f"topics are migrated from kafka://, ydb:// and pravega://, not from {scheme or url!r}")
    return found


def _listed(*rows: tuple[str, str], changed: bool = False) -> list[NotCarried]:
    return [NotCarried("", what, why, changed) for what, why in rows]


def _sealed(topic: TopicInfo, what: str, why: str) -> list[NotCarried]:
    """Return a note about partitions that are sealed at the source but take records at the target.

    ``what`` is formatted with their numbers, ``why`` is the reason.
    """
    sealed = [str(number) for number, state in topic.states.items() if state != "active"]
    return [NotCarried(topic.name, what.format(", ".join(sealed)), why, changed=True)] if sealed else []


_USERS = ("users and passwords", "the source tells nobody its users' passwords: give them with `anabranch user add`")
_PERMISSIONS = ("permissions", "make them at the target with kafka-acls")
_LARGE = "a batch that is brought fits a frame of the backend; the run says where"
_MEMBERS = ("members of groups", "consumers join anew at the target, and go on at their committed positions")


# --- Kafka ----------------------------------------------------------------------------------------------------------


_POLICY, _LARGEST = "cleanup.policy", "max.message.bytes"
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
_DIFFERENCE = "message.timestamp.difference.max.ms"
_OF_BROKERS = {
    "offsets.retention.minutes": (
        "what is carried is kept until its group commits here; from then on the target's kafka.group."
        "offsets_retention_ms holds"
    ),
    "producer.id.expiration.ms": "the target's log.producer_idle_ms holds",
    "transactional.id.expiration.ms": "the target's own holds",
    "transaction.max.timeout.ms": "the target's own holds",
}
"""Broker settings of how long client state is kept, and what the target does instead."""


class KafkaTerms:
    """The terms of Kafka's topics: batches and configurations are carried unchanged."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        found = _listed(
            _USERS,
            (
                "states of producers",
                "producers ask for a new id at the target; until they do, their repetitions are not known",
            ),
            _MEMBERS,
        )
        found += _listed(
            ("leader epochs", "each cluster counts its own; they are the only bytes of a batch that are not kept"),
            changed=True,
        )
        if not isinstance(source, KafkaEndpoint):
            return found
        found += _listed(
            *((f"{key} = {value}", _OF_BROKERS[key]) for key, value in source.broker_config(_OF_BROKERS).items()),
            changed=True,
        )
        return found + _listed(*source.left_behind())

    def effective_settings(self, topic: TopicInfo) -> dict[str, str]:
        found = {**topic.effective, **topic.config}
        bound = found.get(_DIFFERENCE)
        if bound is not None and _AFTER not in found:  # before KIP-937 one bound held for the past and the future
            found |= {_AFTER: bound, _BEFORE: bound}
        return {key: value for key, value in found.items() if key in _HONOURED}

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str], defaults: Defaults) -> Carried:
        wanted = self.effective_settings(topic)
        config = {**topic.config, **_differing(wanted, defaults.config)}
        if "compact" in wanted.get(_POLICY, ""):
            config[_POLICY] = wanted[_POLICY]  # the verification treats compacted topics differently
        largest = config.get(_LARGEST, "")
        left: list[NotCarried] = []
        if largest.isascii() and largest.isdigit() and int(largest) > topic_config.MAX_MESSAGE_BYTES:
            why = f"it is set, but the target refuses batches of more than {topic_config.MAX_MESSAGE_BYTES} bytes"
            left.append(NotCarried(topic.name, f"{_LARGEST} = {largest}", why, changed=True))
        taken, refused = carried(topic.name, config, _HONOURED, _check_config)
        return taken, left + refused


def _check_config(key: str, value: str) -> None:
    try:
        topic_config.validate({key: value})
    except InvalidConfig as error:
        raise ValueError(str(error)) from error


# --- YDB ------------------------------------------------------------------------------------------------------------

CONSUMERS = "consumers"
"""Key of the endpoint's topic configuration: the names of the consumers, separated by commas."""
_BY_YDB = frozenset(
    {
        "supported_codecs",
        "partition_write_speed_bytes_per_second",
        "partition_write_burst_bytes",
        "metering_mode",
        CONSUMERS,
    }
)
"""Settings that only YDB's clients see: they are set through the target's YDB listener, if it is known."""


_KEPT = {_POLICY: "delete", "retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "CreateTime"}
_UNBOUNDED = {_LARGEST: str(topic_config.MAX_MESSAGE_BYTES), _BEFORE: str(LONG_MAX), _AFTER: str(LONG_MAX)}
"""Values of this and ``_KEPT`` for topics whose system has no such setting, whatever the target's defaults are."""


class YdbTerms:
    """The terms of YDB's topics: messages, producers' numbers, retention; others through the target's YDB listener."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        return _listed(
            _USERS,
            _PERMISSIONS,
            _MEMBERS,
            (
                "producers all of whose messages are gone from the source",
                "YDB tells of a producer's last seq_no only by its messages: such a producer begins anew",
            ),
            ("messages of more than 15 MiB", _LARGE),
        ) + _listed(("times of writing", "the target tells when a message came here; created_at is kept"), changed=True)

    def effective_settings(self, topic: TopicInfo) -> dict[str, str]:
        found = dict(_KEPT)  # YDB leaves the period out if messages are kept for ever
        if (period := topic.config.get("retention_period")) is not None:
            found["retention.ms"] = str(round(float(period.removesuffix("s")) * 1000))
        if (megabytes := topic.config.get("retention_storage_mb")) is not None:
            found["retention.bytes"] = str(int(megabytes) * _MIB)
        return found

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str], defaults: Defaults) -> Carried:
        config = _explicit(self.effective_settings(topic), defaults)
        left: list[NotCarried] = []
        for key, value in sorted(topic.config.items()):
            if key in ("path", "retention_period", "retention_storage_mb"):
                continue
            if key not in _BY_YDB and not key.startswith("attributes."):
                left.append(
                    NotCarried(topic.name, f"{key} = {value}", "the target's partitions do not split by themselves")
                )
            elif TARGET_YDB not in target_options:
                option = f"--target-option {TARGET_YDB}=ydb://HOST:2136/local"
                why = f"give {option} to plan and cutover, or set it by YDB's AlterTopic"
                left.append(NotCarried(topic.name, f"{key} = {value}", why))
        why = "all partitions take messages at the target; producers go on in those that have their last ones"
        left += _sealed(topic, "partitions {} are split or merged", why)
        derived = derived_names(topic.name).get("ydb")
        path = topic.config.get("path", derived)
        if path != derived:
            left.append(NotCarried(topic.name, f"the path {path}", f"YDB's clients find it at {derived}", changed=True))
        return config, left


# --- Pravega --------------------------------------------------------------------------------------------------------


class PravegaTerms:
    """The terms of Pravega's streams: events, at offsets that are their positions in bytes; retention."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        return _listed(
            _USERS,
            _PERMISSIONS,
            (
                "positions of reader groups",
                "their clients keep them in forms of their own: let readers finish at the source, or begin anew here",
            ),
            (
                "routing keys, writers and times of events",
                "Pravega does not keep the keys and the times, and does not tell its writers",
            ),
            ("transactions that are open", "what was not committed is in no segment; a cut-over does not wait for it"),
            ("events of more than 15 MiB", _LARGE),
            ("key-value tables, and streams of bytes that are no events", "only events are records"),
        )

    def effective_settings(self, topic: TopicInfo) -> dict[str, str]:
        found = dict(_KEPT)  # streams without a policy are kept for ever
        if (kept_ms := topic.config.get("retention.time")) is not None:
            found["retention.ms"] = kept_ms
        if (size := topic.config.get("retention.size")) is not None:
            found["retention.bytes"] = str(max(1, int(size) // max(1, len(topic.partitions))))
        return found

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str], defaults: Defaults) -> Carried:
        config = _explicit(self.effective_settings(topic), defaults)
        left: list[NotCarried] = []
        for key, value in sorted(topic.config.items()):
            if key not in ("retention.time", "retention.size") and (key, value) != ("scaling", "fixed"):
                left.append(
                    NotCarried(topic.name, f"{key} = {value}", "set it by a client's updateStream at the target")
                )
        why = "all of them take events at the target, each for an equal part of the keys"
        return config, left + _sealed(topic, "segments {} were scaled or sealed", why)


_TERMS: dict[str, Terms] = {
    "kafka": KafkaTerms(),
    "ydb": YdbTerms(),
    "pravega": PravegaTerms(),
}
