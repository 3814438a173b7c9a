"""What a topology means with the topics that exist."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kafka_front.service.groups.streams.topology import InternalTopic, Plan, Status, Subtopology, Topology, plan

COUNT = Subtopology("1", repartition_sources=(InternalTopic("r"),), changelogs=(InternalTopic("c"),))


def planned(topics: Mapping[str, int], *subtopologies: Subtopology) -> Plan:
    """The plan with these topics, by name and number of partitions."""
    return plan(Topology(0, subtopologies), lambda name: (name.encode(), topics[name]) if name in topics else None)


def counts(found: Plan) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in found.missing}


def test_internal_topics_have_the_partitions_of_what_flows_into_them() -> None:
    source = Subtopology("0", ("a", "b"), repartition_sinks=("r",))
    found = planned({"a": 3, "b": 7}, source, COUNT)
    assert counts(found) == {"r": 7, "c": 7}
    assert found.status == (Status.MISSING_INTERNAL_TOPICS, "Internal topics are missing: c, r")
    assert planned({"a": 3, "b": 7, "r": 7, "c": 7}, source, COUNT) == Plan({"0": 7, "1": 7})


def test_a_chain_of_repartition_topics_is_followed_in_any_order() -> None:
    chain = [
        Subtopology("2", repartition_sources=(InternalTopic("s"),)),
        Subtopology("1", repartition_sources=(InternalTopic("r"),), repartition_sinks=("s",)),
        Subtopology("0", ("a",), repartition_sinks=("r",)),
    ]
    assert counts(planned({"a": 5}, *chain)) == {"r": 5, "s": 5}


def test_a_circle_of_repartition_topics_is_told_to_the_members() -> None:
    circle = Subtopology("0", repartition_sources=(InternalTopic("r"),), repartition_sinks=("r",))
    assert planned({}, circle).status == (
        Status.INCORRECTLY_PARTITIONED_TOPICS,
        "Failed to compute number of partitions for repartition topics r",
    )


def test_missing_source_topics_are_named_the_first_of_many() -> None:
    many = Subtopology("0", tuple(f"t{number}" for number in range(9)))
    assert planned({"t0": 1}, many).status == (
        Status.MISSING_SOURCE_TOPICS,
        "Source topics t1, t2, t3 and 5 more are missing.",
    )


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        (Subtopology("0", ("a", "b"), copartitions=(("a", "b"),)), None),
        (Subtopology("0", ("a",), (InternalTopic("r", 3),), copartitions=(("a", "r"),)), {"r": 3}),
        (Subtopology("0", ("a",), (InternalTopic("r", 4),), copartitions=(("a", "r"),)), None),
        (Subtopology("0", (), (InternalTopic("r", 4), InternalTopic("s", 5)), copartitions=(("r", "s"),)), None),
        (
            Subtopology("0", (), (InternalTopic("r", 4), InternalTopic("s")), copartitions=(("r", "s"),)),
            {"r": 4, "s": 4},
        ),
        (Subtopology("0", ("a",), (InternalTopic("s"),), copartitions=(("a", "s"),)), {"s": 3}),
    ],
)
def test_topics_that_are_joined_have_one_number_of_partitions(
    join: Subtopology, expected: dict[str, int] | None
) -> None:
    feeds = Subtopology("9", ("b",), repartition_sinks=("s",))
    found = planned({"a": 3, "b": 6}, join, feeds)
    if expected is None:
        assert found.status is not None
        assert found.status[0] == Status.INCORRECTLY_PARTITIONED_TOPICS
    else:
        assert counts(found) == expected


def test_an_internal_topic_with_other_partitions_is_not_used() -> None:
    source = Subtopology("0", ("a",), changelogs=(InternalTopic("c"),))
    assert planned({"a": 2, "c": 1}, source).status == (
        Status.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic c has different number of partitions: expected 2, found 1",
    )
