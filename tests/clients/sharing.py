"""The two-member group test, for libraries whose consumers are polled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from tests.clients.api import UNKNOWN_TOPIC_OR_PARTITION, Client, ClientError, Shares

PATIENCE_SECONDS = 60.0
_LOOK_S = 0.02


class Member(Protocol):
    """One consumer of a group."""

    def poll(self) -> None:
        """Give the library a moment (some tenths of a second at most) to join, rebalance and fetch."""

    def partitions(self) -> frozenset[int]:
        """What is assigned to it now."""

    def close(self) -> None:
        """Leave the group."""


class _Polled(threading.Thread):
    """A member that is polled all the time, in a thread of its own, as an application does.

    kafka-python's takes note of what became of its joining only while it is polled. Polled in turn with another one, by
    the same thread, it misses that at times, joins again, and so does the other: for minutes, against any broker.
    """

    def __init__(self, member: Member) -> None:
        super().__init__(daemon=True)
        self._member = member
        self._leave = threading.Event()
        self._trouble: BaseException | None = None
        self._held: frozenset[int] = frozenset()
        self.start()

    def run(self) -> None:
        try:
            while not self._leave.is_set():
                self._member.poll()
                self._held = self._member.partitions()
            self._member.close()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._trouble = error

    @property
    def held(self) -> frozenset[int]:
        """What was assigned to it after the newest poll. Raises what that raised."""
        if self._trouble is not None:
            raise self._trouble
        return self._held

    def leave(self) -> None:
        """Return when it has left the group."""
        self._leave.set()
        self.join(PATIENCE_SECONDS)
        if self._trouble is not None:
            raise self._trouble


def share(join: Callable[[], Member], partitions: int) -> Shares:
    """Poll two members until they share all partitions, close the first, poll the second until it has them all."""
    everything = frozenset(range(partitions))
    deadline = time.monotonic() + PATIENCE_SECONDS
    first, second = _Polled(join()), _Polled(join())
    try:
        while True:
            one, two = first.held, second.held
            if one and two and not one & two and one | two == everything:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"the members never shared the partitions: {sorted(one)} and {sorted(two)}")
            time.sleep(_LOOK_S)
        first.leave()
        while second.held != everything:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the remaining member has only {sorted(second.held)}")
            time.sleep(_LOOK_S)
        return Shares(one, two, second.held)
    finally:
        first.leave()
        second.leave()


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
