"""Answers to members' requests: each is given once, and none before its group is consistent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from anabranch_kit.run.barrier import Barrier
from kafka_front.service.groups.classic.group import Group, JoinCallback, JoinReply, Member, SyncReply
from kafka_front.wire.errors import ErrorCode

Reply = TypeVar("Reply")


class Answers:
    """The queue of answers. ``barrier`` counts the exceptions of their callbacks, each of which costs one request."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self._outbox: deque[Callable[[], None]] = deque()
        self._delivering = False

    def post(self, reply: Callable[[Reply], None], answer: Reply) -> None:
        """Queue an answer."""
        self._outbox.append(partial(reply, answer))

    def post_all(self, answers: Iterable[Callable[[], None]]) -> None:
        """Queue answers that are bound to their callbacks already."""
        self._outbox.extend(answers)

    def refuse_join(self, reply: JoinCallback, member_id: str, error: int, message: str | None = None) -> None:
        """Queue the error of a JoinGroup."""
        self.post(reply, JoinReply(member_id, error, message=message))

    def park_join(self, group: Group, member: Member, reply: JoinCallback) -> None:
        """Keep a JoinGroup, to be answered later."""
        displaced = group.park_join(member, reply)
        if displaced is not None:
            # The client has given up on that request; its connection, if it still lives, must not stay stuck.
            self.refuse_join(displaced, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)

    def answer_join(self, group: Group, member: Member, answer: JoinReply) -> None:
        """Queue the answer to a member's parked JoinGroup, if it has one."""
        reply = group.take_join(member)
        if reply is not None:
            self.post(reply, answer)

    def answer_sync(self, member: Member, answer: SyncReply) -> None:
        """Queue the answer to a member's parked SyncGroup, if it has one."""
        reply = member.sync
        if reply is not None:
            member.sync = None
            self.post(reply, answer)

    def deliver(self) -> None:
        """Give the queued answers, once the group is consistent: an answer may bring in the client's next request."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._outbox:
                self._barrier.call("answer to a group member", self._outbox.popleft())
        finally:
            self._delivering = False


def joined(
    group: Group,
    member: Member,
    *,
    with_members: bool,
    skip_assignment: bool = False,
    leader: str | None = None,
) -> JoinReply:
    """Return a member's answer to JoinGroup in the group's present generation."""
    return JoinReply(
        member.member_id,
        ErrorCode.NONE,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        (group.leader or "") if leader is None else leader,
        skip_assignment,
        group.joined_members() if with_members else (),
    )


def synced(group: Group, member: Member) -> SyncReply:
    """Return a member's answer to SyncGroup: its assignment."""
    return SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)
