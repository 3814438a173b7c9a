"""A member that subscribes to a pattern reads what it may describe of the topics that match, and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bridges.auth import Operation, ResourceKind
from bridges.auth.rules import ANY, Pattern, Rule, RuleFilter
from bridges.node.assembly import Node
from tests.kafka_front.groups.test_consumer_requests import Member
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import serving
from tests.kafka_front.test_reauthentication import log_in
from tests.node_users import with_users

RULES = {"auth.required": "true", "auth.rules": "deny"}
SECONDS = 30


def may(user: str, operation: Operation, name: str, kind: ResourceKind = ResourceKind.TOPIC, host: str = ANY) -> Rule:
    return Rule(kind, Pattern.LITERAL, name, f"User:{user}", host, operation, True)


class Lab:
    """A node with the topics ``seen`` and ``hidden``, and members of one group that subscribe to all topics."""

    def __init__(self, stack: AsyncExitStack, node: Node) -> None:
        self._stack = stack
        self.node = node

    async def rule(self, *rules: Rule) -> None:
        assert self.node.floors.metadata.access_rules is not None
        await self.node.floors.metadata.access_rules.add(rules)

    async def client(self, user: str) -> WireClient:
        address = self.node.addresses["kafka"]
        client = await self._stack.enter_async_context(WireClient(address.host, address.port))
        assert (await log_in(client, user, user)).error_code == 0
        return client

    async def member(self, user: str) -> Member:
        await self.rule(may(user, Operation.READ, "g", ResourceKind.GROUP))
        client = await self.client(user)
        return Member(client, "g", subscribed_topic_names=None, subscribed_topic_regex=".*")

    def topics(self, member: Member) -> set[str]:
        return {self.node.catalog.by_id[topic_id].name for topic_id in member.held}

    async def until(self, wanted: set[str], member: Member, *others: Member) -> None:
        """Return when a member reads just these topics, which it and the others report until then."""
        async with asyncio.timeout(SECONDS):
            while self.topics(member) != wanted:
                for one in (member, *others):
                    assert (await one.beat()).error_code == 0
                await asyncio.sleep(0.01)


@pytest.fixture
def users(tmp_path: Path) -> None:
    with_users(tmp_path / "data", ["alice", "bob"])


async def lab_on(stack: AsyncExitStack, directory: Path) -> Lab:
    node = await stack.enter_async_context(serving(directory, RULES))
    for name in ("seen", "hidden"):
        if name not in node.catalog.topics:
            await node.catalog.create_topic(name, 2)
    return Lab(stack, node)


@pytest.mark.usefixtures("users")
async def test_each_member_reads_what_it_may_describe(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        lab = await lab_on(stack, tmp_path)
        await lab.rule(may("alice", Operation.READ, "seen"), may("bob", Operation.READ, ANY))
        alice, bob = await lab.member("alice"), await lab.member("bob")
        await lab.until({"seen"}, alice)
        assert sorted(alice.partitions) == [0, 1], "what nobody else reads is all hers"
        await lab.until({"hidden"}, bob, alice)
        assert lab.topics(alice) == {"seen"}
        epoch = alice.epoch
        await bob.beat(member_epoch=-1)
        async with asyncio.timeout(SECONDS):
            while alice.epoch == epoch:
                await alice.beat()
        assert lab.topics(alice) == {"seen"}, "she does not read what he leaves behind"


@pytest.mark.usefixtures("users")
async def test_a_member_reads_another_topic_when_the_rules_change(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        lab = await lab_on(stack, tmp_path)
        await lab.rule(may("alice", Operation.READ, "seen"))
        alice = await lab.member("alice")
        await lab.until({"seen"}, alice)
        await lab.rule(may("alice", Operation.READ, "hidden"))
        await lab.until({"hidden", "seen"}, alice)
        assert lab.node.floors.metadata.access_rules is not None
        await lab.node.floors.metadata.access_rules.remove([RuleFilter(name="hidden")])
        await lab.until({"seen"}, alice)
        await lab.node.catalog.create_topic("later", 1)
        await lab.rule(may("alice", Operation.DESCRIBE, "later", host="127.0.0.1"))
        await lab.until({"later", "seen"}, alice)


@pytest.mark.usefixtures("users")
async def test_what_a_member_may_describe_is_known_after_a_restart(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        lab = await lab_on(stack, tmp_path)
        await lab.rule(may("alice", Operation.READ, "seen"), may("bob", Operation.READ, ANY))
        alice = await lab.member("alice")
        await lab.until({"seen"}, alice)
    async with AsyncExitStack() as stack:
        lab = await lab_on(stack, tmp_path)
        bob = await lab.member("bob")
        await lab.until({"hidden"}, bob)  # not before alice has given something back, whom nobody has heard yet
        alice.client = await lab.client("alice")
        epoch = alice.epoch
        assert (await alice.beat(subscribed_topic_regex=None)).error_code == 0
        assert alice.epoch >= epoch
        assert lab.topics(alice) == {"seen"}
