from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.catalog.config_types import ConfigSource, InvalidConfig, to_text
from bridges.catalog.topics.config import (
    RETAINED_FOR,
    SPLIT,
    TOPIC_CONFIGS,
    TOPIC_DEFAULTS,
    effective,
    resolve,
    validate,
    validate_node_changes,
)
from tests.kafka_facts import TOPIC_KEYS


@pytest.mark.parametrize("definitions", [TOPIC_CONFIGS, TOPIC_DEFAULTS], ids=["topic", "defaults"])
def test_every_default_is_acceptable_and_canonical(definitions) -> None:
    for name, definition in definitions.items():
        assert name == definition.name
        assert definition.doc.endswith(".")
        if definition.default is not None:
            assert definition.canonical(definition.default) == definition.default, name


def test_every_synonym_is_a_node_configuration() -> None:
    for definition in TOPIC_CONFIGS.values():
        for synonym in definition.synonyms:
            node = TOPIC_DEFAULTS[synonym.name]
            if synonym.scale == 1:
                assert node.type is definition.type


def test_keys_of_kafka_4_are_there() -> None:
    # The names Kafka 4.2 lists for a topic.
    assert set(TOPIC_CONFIGS) == {*TOPIC_KEYS, SPLIT, RETAINED_FOR}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", ""),
        ("retention.ms", "-2"),
        ("retention.ms", "1.5"),
        ("retention.ms", str(2**63)),
        ("retention.ms", "٣"),
        ("retention.ms", "9" * 5000),
        ("max.message.bytes", str(2**31)),
        ("max.message.bytes", "-1"),
        ("cleanup.policy", "forget"),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", "delete,"),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("preallocate", "yes"),
        ("compression.gzip.level", "0"),
        ("follower.replication.throttled.replicas", "1-2"),
        ("no.such.key", "1"),
    ],
)
def test_what_is_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=key.replace(".", r"\.")):
        validate({key: value})


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("retention.ms", " -1 ", "-1"),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("preallocate", "TRUE", "true"),
        ("min.cleanable.dirty.ratio", "0.25", "0.25"),
        ("follower.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "0:1,1:2", "0:1,1:2"),
        ("max.message.bytes", str(100 << 20), str(100 << 20)),
        ("compression.gzip.level", "-1", "-1"),
    ],
)
def test_what_is_accepted_and_how_it_is_kept(key: str, value: str, stored: str) -> None:
    assert validate({key: value}) == {key: stored}


def test_keys_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction"):
        validate({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})
    with pytest.raises(InvalidConfig, match=r"local\.retention"):
        validate({"local.retention.ms": "10", "retention.ms": "9"})
    assert validate({"local.retention.ms": "10", "retention.ms": "-1"})


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=20))
def test_any_text_is_either_refused_or_kept_stably(key: str, value: str) -> None:
    definition = TOPIC_CONFIGS[key]
    try:
        stored = definition.canonical(value)
    except InvalidConfig:
        return
    assert definition.canonical(stored) == stored
    assert to_text(definition.parse(stored)) == stored


def test_where_a_value_comes_from() -> None:
    value = resolve("retention.ms", {}, {}, {})
    assert (value.value, value.source, value.is_default) == ("604800000", ConfigSource.DEFAULT, True)
    static = {"log.retention.hours": "2", "log.retention.minutes": "3"}
    value = resolve("retention.ms", {}, {}, static)
    assert (value.value, value.source) == ("180000", ConfigSource.STATIC_NODE)
    value = resolve("retention.ms", {}, {"log.retention.ms": "7"}, static)
    assert (value.value, value.source) == ("7", ConfigSource.DYNAMIC_NODE)
    value = resolve("retention.ms", {"retention.ms": "5"}, {"log.retention.ms": "7"}, static)
    assert (value.value, value.source) == ("5", ConfigSource.TOPIC)
    assert value.synonyms == [
        ("retention.ms", "5", ConfigSource.TOPIC),
        ("log.retention.ms", "7", ConfigSource.DYNAMIC_NODE),
        ("log.retention.minutes", "3", ConfigSource.STATIC_NODE),
        ("log.retention.hours", "2", ConfigSource.STATIC_NODE),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]
    assert effective("retention.ms", {}, {}, {"log.retention.hours": "-1"}) == -1
    with pytest.raises(InvalidConfig):
        resolve("nope", {}, {}, {})


def test_node_changes_are_checked() -> None:
    assert validate_node_changes({"log.retention.ms": " 5", "message.max.bytes": None}) == {
        "log.retention.ms": "5",
        "message.max.bytes": None,
    }
    for wrong in ({"log.retention.ms": "x"}, {"listeners": "a"}, {"nope": None}, {"log.retention.hours": "5"}):
        with pytest.raises(InvalidConfig):
            validate_node_changes(wrong)
