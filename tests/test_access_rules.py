"""Access rules hold whatever protocol a client speaks: made through one, they bind all, also after kill -9."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ydb
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from bridges.commands.cli import main
from tests.conftest import TEST_SETTINGS
from tests.node_process import ANY, NodeProcess
from tests.node_users import basic, login, rule, with_users

SECONDS = 30
USERS = ("root", "alice", "bob")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    data = tmp_path / "data"
    with_users(data, USERS)
    rules = {"auth.required": "true", "auth.rules": "deny", "auth.super_users": "User:root; User:nobody"}
    made = NodeProcess(
        data, settings={**TEST_SETTINGS, **rules}, listen=dict.fromkeys(("kafka", "ydb", "console"), ANY)
    )
    made.start()
    yield made
    made.dispose()


def quick_login(node: NodeProcess, user: str) -> dict[str, Any]:
    """Of a client that hears soon of what has changed."""
    return {**login(node.kafka, user), "topic.metadata.refresh.interval.ms": 500}


def produce(node: NodeProcess, user: str, topic: str) -> KafkaError | None:
    """How writing a record ended."""
    told: list[KafkaError | None] = []
    producer = Producer({**quick_login(node, user), "message.timeout.ms": 1000 * SECONDS, "acks": "all"})
    producer.produce(topic, b"one", on_delivery=lambda error, _: told.append(error))
    producer.flush(SECONDS)
    return told[0]


def consume(node: NodeProcess, user: str, group: str, topic: str) -> bytes | KafkaError:
    """The first record, or why there is none."""
    consumer = Consumer({**quick_login(node, user), "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(SECONDS)
        assert message is not None
        return message.error() or message.value()
    finally:
        consumer.close()


def driver(node: NodeProcess, user: str) -> ydb.Driver:
    made = ydb.Driver(
        endpoint=f"grpc://{node.ydb}",
        database="/Root",
        credentials=ydb.StaticCredentials.from_user_password(user, user),
    )
    made.wait(SECONDS)
    return made


def ask(node: NodeProcess, user: str, path: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{node.addresses['console']}{path}")
    request.add_header("Authorization", basic(user))
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def acl(node: NodeProcess, user: str, *arguments: str, code: int = 0) -> Any:
    environment = {
        "ANABRANCH_NODE": f"http://{node.addresses['console']}",
        "ANABRANCH_USER": user,
        "ANABRANCH_PASSWORD": user,
    }
    done = CliRunner().invoke(main, ["acl", *arguments, "--json"], env=environment, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if code == 0 else done.stderr


def test_rules_made_through_one_protocol_bind_all(node: NodeProcess) -> None:
    root = AdminClient(login(node.kafka, "root"))
    for future in root.create_topics([NewTopic("orders", 1), NewTopic("other", 1)]).values():
        future.result(SECONDS)
    write = rule("orders", "User:alice", AclOperation.WRITE)
    read = rule("ord", "User:alice", AclOperation.READ, pattern=ResourcePatternType.PREFIXED)
    group = rule("*", "User:alice", AclOperation.READ, kind=ResourceType.GROUP)
    for future in root.create_acls([write, read, group]).values():
        future.result(SECONDS)

    assert produce(node, "alice", "orders") is None
    refused = produce(node, "bob", "orders")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert consume(node, "alice", "g", "orders") == b"one"
    alice = AdminClient(login(node.kafka, "alice"))
    with pytest.raises(KafkaException) as caught:
        alice.create_acls([read])[read].result(SECONDS)
    assert caught.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED

    with driver(node, "alice") as connected, connected.topic_client.writer("/Root/orders", producer_id="p") as writer:
        writer.write_with_ack(b"two")
        described = connected.scheme_client.describe_path("/Root/orders")
        assert not described.effective_permissions, "who may not describe the node sees no rules"
    with driver(node, "root") as connected:
        described = connected.scheme_client.describe_path("/Root/orders")
        assert [(one.subject, one.permission_names) for one in described.permissions] == [
            ("alice", ["ydb.granular.update_row"])
        ]
        assert [(one.subject, one.permission_names) for one in described.effective_permissions] == [
            ("alice", ["ydb.granular.select_row", "ydb.granular.update_row"])
        ]
    with driver(node, "bob") as connected, pytest.raises(ydb.issues.Unauthorized):
        connected.topic_client.describe_topic("/Root/orders")

    assert ask(node, "alice", "/api/topics")[1]["topics"][0]["name"] == "orders"
    assert ask(node, "bob", "/api/topics") == (200, {"topics": []})
    assert ask(node, "bob", "/api/topics/orders")[0] == 403
    assert ask(node, "bob", "/api/acls")[0] == 403

    node.kill()
    node.start()
    assert consume(node, "alice", "g", "orders") == b"one"
    root = AdminClient(login(node.kafka, "root"))
    found = root.describe_acls(
        AclBindingFilter(
            ResourceType.TOPIC, "orders", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
    )
    assert {(one.name, one.operation) for one in found.result(SECONDS)} == {
        ("orders", AclOperation.WRITE),
        ("ord", AclOperation.READ),
    }

    acl(node, "root", "add", "--resource", "topic", "--name", "orders", "--principal", "User:*", "--operation", "write",
        "--deny")  # fmt: skip
    refused = produce(node, "alice", "orders")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with driver(node, "alice") as connected, pytest.raises(ydb.issues.Error):
        connected.topic_client.writer("/Root/orders", producer_id="p").write_with_ack(b"three", timeout=SECONDS)
    gone = acl(node, "root", "remove", "--principal", "User:*", "--yes")
    assert [one["allow"] for one in gone] == [False]
    assert produce(node, "alice", "orders") is None
    assert len(acl(node, "root", "list", "--about", "orders", "--resource", "topic")) == 2


def test_what_makes_no_rule_is_refused_in_a_sentence(node: NodeProcess) -> None:
    for arguments, words in (
        (("--resource", "topic", "--name", "t", "--principal", "alice", "--operation", "read"), "TYPE:NAME"),
        (
            ("--resource", "node", "--name", "t", "--principal", "User:a", "--operation", "read"),
            "the node takes no name",
        ),
        (("--resource", "topic", "--principal", "User:a", "--operation", "read"), "every other rule needs one"),
        (("--resource", "topic", "--name", "t", "--principal", "User:a", "--operation", "fly"), "operation is to be"),
    ):
        assert words in acl(node, "root", "add", *arguments, code=1)
    root = AdminClient(login(node.kafka, "root"))
    wrong = rule("t", "nobody", AclOperation.READ)
    right = rule("t", "User:alice", AclOperation.READ)
    done = root.create_acls([wrong, right])
    with pytest.raises(KafkaException) as caught:
        done[wrong].result(SECONDS)
    assert caught.value.args[0].code() == KafkaError.INVALID_REQUEST
    done[right].result(SECONDS)
    assert len(acl(node, "root", "list")) == 1
