"""Node-level defaults of topic configuration, shared by the topics of every protocol. The dynamic ones may change while
the node runs."""

from __future__ import annotations

from collections.abc import Mapping

from bridges.catalog.config_types import LONG_MAX, ConfigDef, ConfigType, InvalidConfig, between, table
from bridges.catalog.topic_config import TOPIC_CONFIGS

# Of several keys with one meaning, the coarsest carries the default, as in Kafka.
_HOURS = {"log.retention.hours": "168", "log.roll.hours": "168", "log.roll.jitter.hours": "0"}
_HOURS["log.flush.scheduler.interval.ms"] = str(LONG_MAX)


def _topic_defaults() -> list[ConfigDef]:
    """Return the definition of every node-level synonym of a topic key."""
    definitions: dict[str, ConfigDef] = {}
    for topic in TOPIC_CONFIGS.values():
        for place, synonym in enumerate(topic.synonyms):
            scaled = synonym.scale != 1
            default = topic.default if place == 0 and len(topic.synonyms) == 1 else None
            unit = {60_000: "minutes", 3_600_000: "hours"}.get(synonym.scale)
            doc = f"Default of the topic configuration {topic.name}{f', in {unit}' if unit else ''}. {topic.doc}"
            definitions[synonym.name] = ConfigDef(
                synonym.name,
                ConfigType.INT if scaled else topic.type,
                _HOURS.get(synonym.name, default),
                doc,
                between(-1, LONG_MAX // synonym.scale) if scaled else topic.check,
                dynamic=not scaled and synonym.name != "log.flush.scheduler.interval.ms",
                honoured=topic.honoured,
            )
    return list(definitions.values())


TOPIC_DEFAULTS: Mapping[str, ConfigDef] = table(*_topic_defaults())
"""The node-level synonyms of topic keys (bridges/catalog/topic_config.py), by name."""


def from_settings(topic_defaults: Mapping[str, str]) -> dict[str, str]:
    """Translate the setting ``topic_defaults`` from topic keys to node-level keys."""
    synonyms = ((TOPIC_CONFIGS[key].synonyms, value) for key, value in topic_defaults.items())
    return {own[0].name: value for own, value in synonyms if own}


def validate_changes(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Check changes of dynamic keys (None removes) and return them in stored form. Raises InvalidConfig."""
    checked: dict[str, str | None] = {}
    for key, value in changes.items():
        definition = TOPIC_DEFAULTS.get(key)
        if definition is None:
            raise InvalidConfig(f"{key!r} is not a node configuration")
        if not definition.dynamic:
            raise InvalidConfig(f"{key} cannot be changed while the node runs")
        checked[key] = None if value is None else definition.canonical(value)
    return checked
