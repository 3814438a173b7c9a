"""Node-level configuration as Kafka's admin tools see it."""

from __future__ import annotations

import pytest

from bridges.catalog.config_types import ConfigSource, ConfigType, InvalidConfig
from bridges.catalog.topics.config import TOPIC_DEFAULTS
from kafka_front import node_config
from kafka_front.node_config import DYNAMIC, NODE_CONFIGS


def test_every_default_is_acceptable_and_canonical() -> None:
    for name, definition in NODE_CONFIGS.items():
        assert name == definition.name
        assert definition.doc.endswith(".")
        if definition.default is not None and name != "broker.id":
            assert definition.canonical(definition.default) == definition.default, name


def test_what_may_change_is_what_topics_default_to_and_what_is_marked() -> None:
    assert TOPIC_DEFAULTS.items() <= NODE_CONFIGS.items()
    assert {name for name, one in NODE_CONFIGS.items() if one.dynamic} <= TOPIC_DEFAULTS.keys() | DYNAMIC.keys()


def test_a_dynamic_value_of_a_node_comes_before_its_setting() -> None:
    value = node_config.resolve("message.max.bytes", {}, {})
    assert (value.value, value.source, value.read_only) == ("1048588", ConfigSource.DEFAULT, False)
    value = node_config.resolve("message.max.bytes", {"message.max.bytes": "9"}, {"message.max.bytes": "8"})
    assert (value.value, value.source) == ("9", ConfigSource.DYNAMIC_NODE)
    assert value.synonyms[1:] == [
        ("message.max.bytes", "8", ConfigSource.STATIC_NODE),
        ("message.max.bytes", "1048588", ConfigSource.DEFAULT),
    ]
    value = node_config.resolve("node.id", {}, {"node.id": "3"})
    assert (value.value, value.read_only, value.synonyms) == ("3", True, [("node.id", "3", ConfigSource.STATIC_NODE)])
    value = node_config.resolve("log.dirs", {}, {})
    assert (value.value, value.source) == (None, ConfigSource.DEFAULT)
    with pytest.raises(InvalidConfig):
        node_config.resolve("nope", {}, {})
    assert NODE_CONFIGS["log.retention.hours"].type is ConfigType.INT
    assert not NODE_CONFIGS["log.retention.hours"].dynamic
