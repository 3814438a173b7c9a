"""Groups of real consumers as the console's interface and the command line show them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.bridges.commands.test_cli import ok, run
from tests.kafka_front.groups.test_group_clients import (
    ALL,
    PARTITIONS,
    Reader,
    make_topic,
    produce,
    shared,
    unique,
    until,
)
from tests.node_process import NodeProcess


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def described(node: NodeProcess, group: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok("group", group, "--json", node=node))
    return found


def listed(node: NodeProcess, group: str) -> dict[str, Any]:
    [found] = [one for one in json.loads(ok("group", "--json", node=node)) if one["group"] == group]
    return dict(found)


def table(text: str, head: str) -> list[dict[str, str]]:
    """The rows of the table whose first column is ``head``, up to the next empty line."""
    lines = iter(text.splitlines())
    heads = next(line for line in lines if line.split()[:1] == [head]).split()
    rows = []
    for line in lines:
        if not line:
            break
        rows.append(dict(zip(heads, line.split(maxsplit=len(heads) - 1), strict=True)))
    return rows


def positions(reader: Reader) -> dict[int, int]:
    """The next offset by partition of what a reader is assigned."""
    return {p.partition: p.offset for p in reader.consumer.position(reader.consumer.assignment())}


def commit_without_joining(node: NodeProcess, group: str, *positions: tuple[str, int, int]) -> None:
    with closing(Consumer({"bootstrap.servers": node.kafka, "group.id": group})) as consumer:
        consumer.commit(offsets=[TopicPartition(*position) for position in positions], asynchronous=False)


def test_a_group_of_two_consumers_through_its_life(shared_node: NodeProcess, stack: ExitStack) -> None:
    node, topic, group = shared_node, make_topic(shared_node), unique("group")
    produce(node, topic, range(40))
    one = stack.enter_context(closing(Reader(node, group, topic, client_id="first", group_instance_id="static-1")))
    two = stack.enter_context(closing(Reader(node, group, topic, client_id="second")))
    until(lambda: shared(one, two), one, two)

    # Members and no commits.
    summary = listed(node, group)
    assert (summary["fronts"], summary["state"], summary["members"]) == (["kafka"], "Stable", 2)
    assert (summary["partitions"], summary["lag"]) == (0, None)
    found = described(node, group)
    members = {member["client_id"]: member for member in found["members"]}
    assert {name: member["partitions"] for name, member in members.items()} == {
        "first": {topic: sorted(one.partitions)},
        "second": {topic: sorted(two.partitions)},
    }
    assert (members["first"]["instance_id"], members["second"]["instance_id"]) == ("static-1", None)
    assert [(row["offset"], row["end_offset"], row["lag"]) for row in found["positions"]] == [(None, 10, None)] * 4

    # What Kafka's own interface tells is told here, too.
    admin = AdminClient({"bootstrap.servers": node.kafka})
    told = admin.describe_consumer_groups([group])[group].result(30)
    assert (found["state"], found["protocol"]) == ("Stable", told.partition_assignor)
    assert {
        (
            member.member_id,
            member.client_id,
            member.host,
            tuple(p.partition for p in member.assignment.topic_partitions),
        )
        for member in told.members
    } == {
        (member["member_id"], member["client_id"], member["host"], tuple(member["partitions"][topic]))
        for member in found["members"]
    }

    until(lambda: positions(one) | positions(two) == dict.fromkeys(ALL, 10), one, two)
    one.commit()
    two.commit()
    produce(node, topic, range(40, 48))
    text = ok("group", group, node=node).decode()
    facts = dict(line.split(maxsplit=1) for line in text.split("\n\n")[0].splitlines())
    assert facts == {
        "group": group,
        "protocol": "kafka",
        "state": "Stable",
        "kind": "classic",
        "type": "consumer",
        "strategy": told.partition_assignor,
        "generation": str(found["generation"]),
        "members": "2",
        "lag": "8",
    }
    reader_of = {p: members["first" if p in one.partitions else "second"] for p in ALL}
    rows = table(text, "TOPIC")
    for row in rows:  # how long, nobody could tell by the text; that it is known, one can
        assert float(row.pop("SECONDS").removeprefix(">=")) >= 0
    assert rows == [
        {
            "TOPIC": topic,
            "PARTITION": str(partition),
            "CURRENT-OFFSET": "10",
            "LOG-END-OFFSET": "12",
            "LAG": "2",
            "CONSUMER-ID": reader_of[partition]["member_id"],
            "HOST": reader_of[partition]["host"],
            "CLIENT-ID": reader_of[partition]["client_id"],
        }
        for partition in range(PARTITIONS)
    ]
    readers = {row["CLIENT-ID"]: row for row in table(text, "CONSUMER-ID")}
    assert readers["first"]["GROUP-INSTANCE-ID"] == "static-1"
    assert readers["second"]["GROUP-INSTANCE-ID"] == "-"
    assert {row["#PARTITIONS"] for row in readers.values()} == {"2"}
    assert readers["first"]["ASSIGNMENT"].startswith(f"{topic}(")
    with urllib.request.urlopen(f"{node.console}/metrics") as response:
        metrics = response.read().decode()
    for partition in range(PARTITIONS):
        labels = f'group="{group}",partition="{partition}",space="consumers",topic="{topic}"'
        assert f"anabranch_group_lag_records{{{labels}}} 2.0\n" in metrics

    # Commits and no members: a static member stays until its session ends, so it is removed.
    one.close()
    two.close()
    with closing(kafka.KafkaAdminClient(bootstrap_servers=node.kafka)) as remover:
        remover.remove_group_members(group, [kafka.admin.MemberToRemove(group_instance_id="static-1")])
    until(lambda: listed(node, group)["state"] == "Empty")
    summary = listed(node, group)
    assert (summary["fronts"], summary["state"], summary["members"]) == (["kafka"], "Empty", 0)
    assert (summary["topics"], summary["partitions"], summary["lag"]) == ([topic], PARTITIONS, 8)
    text = ok("group", group, node=node).decode()
    assert {row["CONSUMER-ID"] for row in table(text, "TOPIC")} == {"-"}
    assert "ASSIGNMENT" not in text

    # The topic is deleted, and its positions with it. Without the one in another topic the group would have neither
    # members nor positions, and go as soon as the node looks for such groups, as Kafka's do.
    other = make_topic(node)
    produce(node, other, range(PARTITIONS))
    commit_without_joining(node, group, (other, 2, 0))
    assert listed(node, group)["partitions"] == PARTITIONS + 1
    ok("topic", "delete", topic, "--yes", node=node)
    summary = listed(node, group)
    assert (summary["state"], summary["topics"], summary["partitions"], summary["lag"]) == ("Empty", [other], 1, 1)
    assert [(row["topic"], row["partition"]) for row in described(node, group)["positions"]] == [(other, 2)]


def test_every_way_to_ask_for_a_group(shared_node: NodeProcess) -> None:
    node, topic, group = shared_node, make_topic(shared_node), unique("group")
    commit_without_joining(node, group, (topic, 0, 0))
    words = [["group", group], ["group", "describe", group], ["group", "--", group]]
    texts = [ok(*arguments, node=node) for arguments in words]
    assert len(set(texts)) == 1
    assert (
        f"{topic}  0          0               0               0    0        -            -     -".encode() in texts[0]
    )
    forms = [["group", "--json", group], ["group", group, "--json"], ["group", "--json", "describe", group]]
    assert len({ok(*arguments, node=node) for arguments in forms}) == 1
    elsewhere = run("group", "--node", node.console, group, "--json", environ={"ANABRANCH_NODE": "http://127.0.0.1:1"})
    assert json.loads(elsewhere.stdout)["group"] == group
    lists = [json.loads(ok(*form, node=node)) for form in (["group", "--json"], ["group", "list", "--json"])]
    assert all(group in [one["group"] for one in found] for found in lists)
    assert any(row["GROUP"] == group for row in table(ok("group", node=node).decode(), "GROUP"))
    for arguments in (["group", "--help"], ["group", group, "--help"]):
        assert b"Usage: " in ok(*arguments, node=node)


def test_a_group_that_does_not_exist(shared_node: NodeProcess) -> None:
    for arguments in (["group", "missing"], ["group", "describe", "missing"], ["group", "missing", "--json"]):
        done = run(*arguments, node=shared_node)
        assert done.returncode == 1
        assert b"there is no group 'missing'" in done.stderr
        assert done.stdout == b""


def test_odd_names_neither_break_the_table_nor_reach_the_terminal(shared_node: NodeProcess) -> None:
    node, topic = shared_node, make_topic(shared_node)
    for group in (unique("a/b c%2F \x1b[31m\n"), unique("-v"), unique("--weiß")):
        commit_without_joining(node, group, (topic, 1, 0))
        assert described_after_dashes(node, group)["positions"][0]["topic"] == topic
        text = ok("group", "--", group, node=node).decode() + ok("group", node=node).decode()
        assert "\x1b" not in text
        assert all(line.isprintable() for line in text.splitlines())


def described_after_dashes(node: NodeProcess, group: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok("group", "--json", "--", group, node=node))
    assert found["group"] == group
    return found


def test_positions_of_a_group_are_kept_through_a_restart(node: NodeProcess, stack: ExitStack) -> None:
    topic, group = make_topic(node), unique("group")
    produce(node, topic, range(20))
    reader = stack.enter_context(closing(Reader(node, group, topic, session_timeout_ms=45_000)))
    until(lambda: len(reader.values) == 20, reader)
    reader.commit()
    before = described(node, group)
    node.restart(kill=True)
    # Nobody has used the partitions yet: the list does not open them, the details do.
    after = described(node, group)
    assert {**after, "positions": []} == {**before, "positions": []}
    assert [row["lag"] for row in after["positions"]] == [0] * PARTITIONS
