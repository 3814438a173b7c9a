"""What is kept of what clients say of topics, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ydb_topic_front.service.topics import settings as topic_settings
from ydb_topic_front.service.topics.settings import NONE, TopicSettings
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.statuses import Status, YdbError

Create = messages["Ydb.Topic.CreateTopicRequest"]
Alter = messages["Ydb.Topic.AlterTopicRequest"]


def made(**fields: Any) -> TopicSettings:
    return topic_settings.created(Create(path="/local/t", **fields))


def test_all_that_is_kept_comes_back_from_its_bytes() -> None:
    settings = made(
        partitioning_settings={"min_active_partitions": 3, "auto_partitioning_settings": {"strategy": 2}},
        retention_period={"seconds": 60},
        retention_storage_mb=7,
        supported_codecs={"codecs": [1, 2, 2, 10_001]},
        partition_write_speed_bytes_per_second=5,
        attributes={"a": "1"},
        consumers=[
            {"name": "c", "important": True, "read_from": {"seconds": 9}, "attributes": {"x": "y"}},
            {"name": "b"},
        ],
        metering_mode=2,
        metrics_level=4,
    )
    again = TopicSettings.stored(settings.to_bytes())
    assert again.wanted == settings.wanted
    assert again.codecs == {1, 2, 10_001}
    assert list(again.consumers) == ["c", "b"]
    assert again.consumers["c"].important
    assert again.splits
    # Retention is the topic's configuration, and the path the catalog's.
    assert not again.wanted.HasField("retention_period")
    assert again.wanted.retention_storage_mb == 0
    assert again.wanted.path == ""


def test_retention_becomes_configuration() -> None:
    request = Create(retention_period={"seconds": 3, "nanos": 500_000_000}, retention_storage_mb=2)
    assert topic_settings.configuration(request) == {"retention.ms": "3500", "retention.bytes": "2097152"}
    assert topic_settings.configuration(Create()) == {}
    assert topic_settings.configuration_changes(Alter(set_retention_storage_mb=0)) == {"retention.bytes": None}
    assert topic_settings.configuration_changes(Alter()) == {}
    with pytest.raises(YdbError):
        topic_settings.configuration(Create(retention_period={}))


@pytest.mark.parametrize(
    "fields",
    [
        {"supported_codecs": {"codecs": [0]}},
        {"supported_codecs": {"codecs": [5]}},
        {"supported_codecs": {"codecs": [20_000]}},
        {"supported_codecs": {"codecs": list(range(10_000, 10_101))}},
        {"partitioning_settings": {"min_active_partitions": -1}},
        {"partitioning_settings": {"auto_partitioning_settings": {"strategy": 9}}},
        {
            "partitioning_settings": {
                "min_active_partitions": 5,
                "max_active_partitions": 4,
                "auto_partitioning_settings": {"strategy": 2},
            }
        },
        {
            "partitioning_settings": {
                "auto_partitioning_settings": {"partition_write_speed": {"up_utilization_percent": 20}}
            }
        },
        {"partition_write_burst_bytes": -1},
        {"attributes": {"": "x"}},
        {"attributes": {"x": "y" * topic_settings.MAX_BYTES}},
        {"consumers": [{"name": ""}]},
        {"consumers": [{"name": "a/b"}]},
        {"consumers": [{"name": "a"}, {"name": "a"}]},
        {"consumers": [{"name": "a", "supported_codecs": {"codecs": [7]}}]},
        {"consumers": [{"name": "a", "read_from": {"seconds": -1}}]},
        {"consumers": [{"name": str(number)} for number in range(topic_settings.MAX_CONSUMERS + 1)]},
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(YdbError) as refused:
        made(**fields)
    assert refused.value.status is Status.BAD_REQUEST


def test_partitions_may_be_merged_at_the_rate_at_which_others_are_split() -> None:
    for percent, other in ((70, 70), (100, 1)):
        speed = {"up_utilization_percent": percent, "down_utilization_percent": other}
        wanted = made(partitioning_settings={"auto_partitioning_settings": {"partition_write_speed": speed}})
        assert TopicSettings.stored(wanted.to_bytes()).wanted == wanted.wanted


def test_a_change_leaves_what_it_does_not_name() -> None:
    before = made(
        supported_codecs={"codecs": [1]}, attributes={"a": "1", "b": "2"}, consumers=[{"name": "c"}, {"name": "d"}]
    )
    kept = before.to_bytes()
    after = topic_settings.altered(
        before,
        Alter(
            alter_attributes={"a": "", "n": "3"},
            drop_consumers=["c"],
            add_consumers=[{"name": "c", "important": True}, {"name": "e"}],
            alter_consumers=[{"name": "d", "set_important": True, "alter_attributes": {"k": "v"}}],
            set_partition_write_speed_bytes_per_second=11,
        ),
    )
    assert dict(after.wanted.attributes) == {"b": "2", "n": "3"}
    assert [(name, one.important) for name, one in after.consumers.items()] == [("d", True), ("c", True), ("e", False)]
    assert after.consumers["d"].attributes["k"] == "v"
    assert after.codecs == {1}
    assert after.wanted.partition_write_speed_bytes_per_second == 11
    assert before.to_bytes() == kept
    assert topic_settings.altered(after, Alter(set_supported_codecs={})).codecs == frozenset()


def test_every_field_of_how_a_topic_is_split_can_be_altered() -> None:
    speed = {"set_stabilization_window": {"seconds": 7}, "set_up_utilization_percent": 60}
    splits = {"set_strategy": 2, "set_partition_write_speed": speed}
    change = {
        "set_min_active_partitions": 2,
        "set_max_active_partitions": 9,
        "alter_auto_partitioning_settings": splits,
    }
    before = made(partitioning_settings={"min_active_partitions": 2})
    wanted = topic_settings.altered(before, Alter(alter_partitioning_settings=change)).wanted.partitioning_settings
    assert (wanted.min_active_partitions, wanted.max_active_partitions) == (2, 9)
    auto = wanted.auto_partitioning_settings
    assert auto.strategy == 2
    assert auto.partition_write_speed.stabilization_window.seconds == 7
    assert auto.partition_write_speed.up_utilization_percent == 60
    unset = before.wanted.partitioning_settings.auto_partitioning_settings.partition_write_speed
    assert auto.partition_write_speed.down_utilization_percent == unset.down_utilization_percent


MANY = topic_settings.MAX_CONSUMERS + 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"drop_consumers": ["nobody"]}, Status.NOT_FOUND),
        ({"alter_consumers": [{"name": "nobody"}]}, Status.NOT_FOUND),
        ({"add_consumers": [{"name": "c"}]}, Status.ALREADY_EXISTS),
        ({"set_content_based_deduplication": True}, Status.UNSUPPORTED),
        ({"set_partition_write_burst_bytes": -1}, Status.BAD_REQUEST),
        # However few bytes they take, nothing is done for each.
        ({"add_consumers": [{}] * MANY}, Status.BAD_REQUEST),
        ({"alter_consumers": [{"name": "c"}] * MANY}, Status.BAD_REQUEST),
        ({"drop_consumers": ["c"] * MANY}, Status.BAD_REQUEST),
    ],
)
def test_changes_that_are_refused(fields: dict[str, Any], status: Status) -> None:
    with pytest.raises(YdbError) as refused:
        topic_settings.altered(made(consumers=[{"name": "c"}]), Alter(**fields))
    assert refused.value.status is status


def test_clients_are_told_the_defaults_of_auto_partitioning() -> None:
    target = messages["Ydb.Topic.PartitioningSettings"]()
    topic_settings.describe_partitioning(NONE, 4, target)
    assert target.min_active_partitions == 4
    speed = target.auto_partitioning_settings.partition_write_speed
    assert target.auto_partitioning_settings.strategy == 1
    assert (speed.stabilization_window.seconds, speed.up_utilization_percent, speed.down_utilization_percent) == (
        300,
        90,
        30,
    )


def test_retention_waits_for_consumers_that_say_so() -> None:
    settings = made(
        consumers=[
            {"name": "plain"},
            {"name": "important", "important": True, "availability_period": {"seconds": 9}},
            {"name": "for a while", "availability_period": {"seconds": 9, "nanos": 5_000_000}},
        ]
    )
    (value,) = topic_settings.retention_configuration(settings).values()
    assert value == '{"important":0,"for a while":9005}'
    assert set(topic_settings.retention_configuration(made(consumers=[{"name": "plain"}])).values()) == {None}
