"""On which terms topics of each kind of source move: what the target takes of their settings, and what is left.

What counts is what holds for a topic, wherever that was said: a source's defaults are no target's. So each kind of
source says what holds for its topics in the target's words, and whatever a topic of the target would not have by itself
is written down in the plan, and made the topic's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from bridges.catalog import topic_config
from bridges.catalog.config_types import LONG_MAX, InvalidConfig
from bridges.catalog.names import derived_names
from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.plan import NotCarried, carried
from spark_pipeline.endpoints.base import TopicInfo
from spark_pipeline.endpoints.importer import Defaults
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

    def wanted(self, topic: TopicInfo) -> dict[str, str]:
        """What holds for a topic at the source, as configuration of the target."""

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str], defaults: Defaults) -> Carried:
        """What becomes of a topic's settings; ``defaults``: what the target's topics have by themselves."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """A setting that holds for a topic at the source, and what holds for it at the target instead."""

    topic: str
    key: str
    source: str
    target: str


def settings_unlike(terms: Terms, there: TopicInfo, here: TopicInfo) -> list[Unlike]:
    """The settings with an effect in which a topic of the target is not what it is at the source."""
    wanted = terms.wanted(there)
    differ = _differing(wanted, here.effective) if here.effective else {}
    return [
        Unlike(there.name, key, value, here.effective.get(key, ""))
        for key, value in sorted(differ.items())
        if _HONOURED[key]
    ]


def _differing(wanted: Mapping[str, str], has: Mapping[str, str]) -> dict[str, str]:
    """Those of ``wanted`` that are known at the target and mean something else than what it ``has``."""
    return {
        key: value
        for key, value in wanted.items()
        if key in _HONOURED and _canonical(key, value) != _canonical(key, has.get(key, ""))
    }


def _explicit(wanted: Mapping[str, str], defaults: Defaults) -> dict[str, str]:
    """What a topic of another protocol than Kafka's has to set: how long it keeps its messages in any case, and that
    sizes and times are not bounded where the target's operator has bounded them for all topics."""
    bounds = {key: value for key, value in _UNBOUNDED.items() if key in defaults.configured}
    return {"retention.ms": wanted["retention.ms"], **_differing({**bounds, **wanted}, defaults.config)}


def _canonical(key: str, value: str) -> str:
    try:
        return topic_config.TOPIC_CONFIGS[key].canonical(value)
    except InvalidConfig:
        return value


def terms_of(url: str) -> Terms:
    """Those of the source at ``url``. Raises OptionError."""
    scheme = urlsplit(url).scheme
    found = _TERMS.get(scheme.removesuffix("+tls"))
    if found is None:
        raise OptionError(f"topics are migrated from kafka://, ydb:// and pravega://, not from {scheme or url!r}")
    return found


def _listed(*rows: tuple[str, str]) -> list[NotCarried]:
    return [NotCarried("", what, why) for what, why in rows]


def _sealed(topic: TopicInfo, what: str, why: str) -> list[NotCarried]:
    """``what`` is said of the partitions that take nothing more at the source, and ``why`` they do at the target."""
    sealed = [str(number) for number, state in topic.states.items() if state != "active"]
    return [NotCarried(topic.name, what.format(", ".join(sealed)), why)] if sealed else []


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
"""Settings of brokers that say how long what clients count on is kept, and what holds for it at the target."""


class KafkaTerms:
    """Batches and configurations as they are."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        found = _listed(
            _USERS,
            (
                "states of producers",
                "producers ask for a new id at the target; until they do, their repetitions are not known",
            ),
            _MEMBERS,
            ("leader epochs", "each cluster counts its own; they are the only bytes of a batch that are not kept"),
        )
        if not isinstance(source, KafkaEndpoint):
            return found
        found += _listed(
            *((f"{key} = {value}", _OF_BROKERS[key]) for key, value in source.broker_config(_OF_BROKERS).items())
        )
        return found + _listed(*source.left_behind())

    def wanted(self, topic: TopicInfo) -> dict[str, str]:
        found = {**topic.effective, **topic.config}
        bound = found.get(_DIFFERENCE)
        if bound is not None and _AFTER not in found:  # before KIP-937 one bound held for the past and the future
            found |= {_AFTER: bound, _BEFORE: bound}
        return {key: value for key, value in found.items() if key in _HONOURED}

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str], defaults: Defaults) -> Carried:
        wanted = self.wanted(topic)
        config = {**topic.config, **_differing(wanted, defaults.config)}
        if "compact" in wanted.get(_POLICY, ""):
            config[_POLICY] = wanted[_POLICY]  # what is compacted is compared otherwise: the plan has to know
        largest = config.get(_LARGEST, "")
        left: list[NotCarried] = []
        if largest.isascii() and largest.isdigit() and int(largest) > topic_config.MAX_MESSAGE_BYTES:
            why = f"it is set, but the target refuses batches of more than {topic_config.MAX_MESSAGE_BYTES} bytes"
            left.append(NotCarried(topic.name, f"{_LARGEST} = {largest}", why))
        taken, refused = carried(topic.name, config, _HONOURED, _check_config)
        return taken, left + refused


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


_KEPT = {_POLICY: "delete", "retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "CreateTime"}
_UNBOUNDED = {_LARGEST: str(topic_config.MAX_MESSAGE_BYTES), _BEFORE: str(LONG_MAX), _AFTER: str(LONG_MAX)}
"""This and the above: what holds for topics of systems that have no word for it, whatever the target's defaults are."""


class YdbTerms:
    """Messages as they are, producers' numbers, retention; other settings through the target's YDB listener."""

    def always(self, source: MigrationSource, target_options: Mapping[str, str]) -> list[NotCarried]:
        return _listed(
            _USERS,
            _PERMISSIONS,
            _MEMBERS,
            ("times of writing", "the target tells when a message came here; created_at is kept"),
            (
                "producers all of whose messages are gone from the source",
                "YDB tells of a producer's last seq_no only by its messages: such a producer begins anew",
            ),
            ("messages of more than 15 MiB", _LARGE),
        )

    def wanted(self, topic: TopicInfo) -> dict[str, str]:
        found = dict(_KEPT)  # to keep messages for ever is said by leaving the period out
        if (period := topic.config.get("retention_period")) is not None:
            found["retention.ms"] = str(round(float(period.removesuffix("s")) * 1000))
        if (megabytes := topic.config.get("retention_storage_mb")) is not None:
            found["retention.bytes"] = str(int(megabytes) * _MIB)
        return found

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str], defaults: Defaults) -> Carried:
        config = _explicit(self.wanted(topic), defaults)
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
            left.append(NotCarried(topic.name, f"the path {path}", f"YDB's clients find it at {derived}"))
        return config, left


# --- Pravega --------------------------------------------------------------------------------------------------------


class PravegaTerms:
    """Events as they are, at offsets that are their positions in bytes; retention."""

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

    def wanted(self, topic: TopicInfo) -> dict[str, str]:
        found = dict(_KEPT)  # streams without a policy are kept for ever
        if (kept_ms := topic.config.get("retention.time")) is not None:
            found["retention.ms"] = kept_ms
        if (size := topic.config.get("retention.size")) is not None:
            found["retention.bytes"] = str(max(1, int(size) // max(1, len(topic.partitions))))
        return found

    def topic(self, topic: TopicInfo, target_options: Mapping[str, str], defaults: Defaults) -> Carried:
        config = _explicit(self.wanted(topic), defaults)
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
