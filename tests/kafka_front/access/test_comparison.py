"""Who may do what is what Apache Kafka says: its answers to every API key with every right, beside those of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_front.wire.apis import APIS
from tests.conftest import TEST_SETTINGS
from tests.kafka_front.access.comparison import USERS, ask, differences, kafka, recorded
from tests.kafka_front.access.questions import QUESTIONS, WITHOUT_RIGHTS, Home
from tests.node_process import ANY, NodeProcess
from tests.node_users import with_users

SETTINGS = {
    **TEST_SETTINGS,
    "auth.required": "true",
    "auth.rules": "deny",
    "auth.super_users": "User:root",
    "kafka.auto_create_topics": "false",
}


DELETES = (
    "a rule that denies the deletion of a topic, or that none allows, holds whatever rights of the cluster there are"
)
CREATES = "a topic that rights of the cluster let be created may be created, and that is told"
DIFFERENT = {
    **dict.fromkeys([("DeleteTopics", "all but topic delete"), ("DeleteTopics", "only cluster delete")], DELETES),
    **dict.fromkeys(
        [("Metadata", "all but topic create"), ("DescribeTopicPartitions", "all but topic create")], CREATES
    ),
}
"""Where a node is meant to answer otherwise: API and rights."""


async def test_a_node_answers_every_key_with_every_right_as_kafka_does(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with_users(data, ["root", *USERS.values()])
    node = NodeProcess(data, settings=SETTINGS, listen={"kafka": ANY})
    with node:
        found = differences(await ask(node.kafka, patient=False), recorded())
    assert [one.text for one in found if one.place not in DIFFERENT] == []
    assert {one.place for one in found} == set(DIFFERENT)


def test_every_key_is_asked_about() -> None:
    home = Home("u.", producer=(1, 0))
    home.ids = dict.fromkeys((home.t, home.d, home.i), bytes(16))
    asked = {question.request(home).API_KEY for question in QUESTIONS}
    assert asked | WITHOUT_RIGHTS == set(APIS), "a new key needs a question, or is one that nobody needs a right for"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(900)
async def test_the_recorded_answers_are_those_of_kafka(tmp_path: Path) -> None:
    with kafka(tmp_path) as broker:
        found = differences(await ask(broker.bootstrap, patient=True), recorded())
    assert [one.text for one in found] == [], "python -m tests.kafka_front.access.comparison writes them anew"
