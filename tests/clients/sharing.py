"""The two-member group test, for libraries whose consumers are polled."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tests.clients.api import UNKNOWN_TOPIC_OR_PARTITION, Client, ClientError, Shares

PATIENCE_SECONDS = 150.0


class Member(Protocol):
    """One consumer of a group."""

    def poll(self) -> None:
        """Give the library a moment (some tenths of a second at most) to join, rebalance and fetch."""

    def partitions(self) -> frozenset[int]:
        """What is assigned to it now."""

    def close(self) -> None:
        """Leave the group."""


def share(join: Callable[[], Member], partitions: int) -> Shares:
    """Poll two members until they share all partitions, close the first, poll the second until it has them all."""
    everything = frozenset(range(partitions))
    deadline = time.monotonic() + PATIENCE_SECONDS
    first = join()
    second = join()
    try:
        while True:
            first.poll()
            second.poll()
            one, two = first.partitions(), second.partitions()
            if one and two and not one & two and one | two == everything:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"the members never shared the partitions: {sorted(one)} and {sorted(two)}")
        first.close()
        while second.partitions() != everything:
            second.poll()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the remaining member has only {sorted(second.partitions())}")
        return Shares(one, two, second.partitions())
    finally:
        first.close()
        second.close()


def await_topic(client: Client, topic: str, partitions: int) -> None:
    """Ask until the topic has that many partitions: a Kafka broker learns of a new topic after its controller."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            if client.partition_count(topic) == partitions:
                return
        except ClientError as error:
            if error.code != UNKNOWN_TOPIC_OR_PARTITION:
                raise
    raise TimeoutError(f"{topic} never had {partitions} partitions")


def group_members_left(client: Client, group: str) -> None:
    """Ask until the group has no members: some libraries leave it without waiting for the answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while client.describe_group(group).members:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{group} still has members")
