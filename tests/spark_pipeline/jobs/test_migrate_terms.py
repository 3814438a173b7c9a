"""What becomes of settings: what holds for a topic at its source holds for it at the target, wherever it was said."""

from __future__ import annotations

from spark_pipeline.endpoints.base import TopicInfo
from spark_pipeline.endpoints.importer import Defaults
from spark_pipeline.jobs.migrate.terms import settings_unlike, terms_of

HAS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
"""What a target's topics have by themselves."""
DEFAULTS = Defaults(HAS)
KAFKA, YDB, PRAVEGA = (terms_of(f"{scheme}://host") for scheme in ("kafka", "ydb", "pravega"))


def test_what_brokers_say_for_all_topics_is_made_the_topics_own() -> None:
    topic = TopicInfo(
        "t",
        (0,),
        {"retention.bytes": "-1"},
        effective={
            **HAS,
            "retention.ms": "-1",
            "max.message.bytes": "2000000",
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": "2",
            "confluent.tier.enable": "false",
        },
    )
    config, left = KAFKA.topic(topic, {}, DEFAULTS)
    assert config == {
        "retention.ms": "-1",
        "max.message.bytes": "2000000",
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": "2",
        "retention.bytes": "-1",  # which the topic itself has
    }
    assert [one.what for one in left] == ["min.insync.replicas = 2"]


def test_what_is_the_same_on_both_sides_is_left_to_the_target() -> None:
    topic = TopicInfo("t", (0,), effective={**HAS, "retention.ms": " 604800000"})
    assert KAFKA.topic(topic, {}, DEFAULTS) == ({}, [])


def test_a_targets_own_defaults_do_not_hold_for_what_it_is_brought() -> None:
    topic = TopicInfo("t", (0,), effective=HAS)
    assert KAFKA.topic(topic, {}, Defaults({**HAS, "retention.ms": "60000"}))[0] == {"retention.ms": "604800000"}


def test_a_plan_knows_of_compaction_that_is_the_default_on_both_sides() -> None:
    compacted = {**HAS, "cleanup.policy": "compact"}
    assert KAFKA.topic(TopicInfo("t", (0,), effective=compacted), {}, Defaults(compacted))[0] == {
        "cleanup.policy": "compact"
    }


def test_a_size_beyond_what_the_target_takes_is_set_and_told_of() -> None:
    config, left = KAFKA.topic(TopicInfo("t", (0,), effective={**HAS, "max.message.bytes": "100000000"}), {}, DEFAULTS)
    assert config["max.message.bytes"] == "100000000"
    assert [one.what for one in left] == ["max.message.bytes = 100000000"]


def test_one_bound_of_old_brokers_for_times_holds_both_ways() -> None:
    old = {key: value for key, value in HAS.items() if not key.startswith("message.timestamp.")}
    topic = TopicInfo("t", (0,), effective={**old, "message.timestamp.difference.max.ms": "9223372036854775807"})
    assert KAFKA.topic(topic, {}, DEFAULTS)[0] == {"message.timestamp.after.max.ms": "9223372036854775807"}


def test_topics_of_ydb_have_nothing_of_the_targets_defaults() -> None:
    hard = {
        **HAS,
        "cleanup.policy": "compact",
        "retention.bytes": "1000",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "1000",
    }
    of_a_day = TopicInfo("t", (0,), {"retention_period": "86400s"})
    bounds = frozenset({"max.message.bytes", "message.timestamp.before.max.ms"})
    assert YDB.topic(of_a_day, {}, Defaults(hard, bounds))[0] == {
        "cleanup.policy": "delete",
        "max.message.bytes": "16773120",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.type": "CreateTime",
        "retention.bytes": "-1",
        "retention.ms": "86400000",
    }
    assert YDB.topic(of_a_day, {}, DEFAULTS)[0] == {"retention.ms": "86400000"}, "Kafka's own bounds are not for YDB"
    bounded = TopicInfo("t", (0,), {"retention_storage_mb": "3"})
    kept = YDB.topic(bounded, {}, DEFAULTS)[0]
    assert (kept["retention.ms"], kept["retention.bytes"]) == ("-1", "3145728")


def test_streams_of_pravega_have_nothing_of_the_targets_defaults() -> None:
    stream = TopicInfo("s.t", (0, 1), {"scaling": "fixed"})
    kept = PRAVEGA.topic(stream, {}, Defaults({**HAS, "retention.bytes": "1000"}))[0]
    assert (kept["retention.ms"], kept["retention.bytes"]) == ("-1", "-1")
    by_size = TopicInfo("s.t", (0, 1), {"scaling": "fixed", "retention.size": "3000"})
    assert PRAVEGA.topic(by_size, {}, DEFAULTS)[0]["retention.bytes"] == "1500"


def test_a_setting_that_holds_on_one_side_only_is_told() -> None:
    there = TopicInfo("t", (0,), effective={**HAS, "retention.ms": "-1", "min.insync.replicas": "2"})
    here = TopicInfo("t", (0,), effective=HAS)
    told = [(one.key, one.source, one.target) for one in settings_unlike(KAFKA, there, here)]
    assert told == [("retention.ms", "-1", "604800000")], "what has no effect at the target is told by the plan"
    assert settings_unlike(KAFKA, there, there) == []
