"""Members that a group refuses for good are logged once, with the reason and the remedy, and fill no memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from kafka_front.service.groups import refusals
from kafka_front.service.groups.refusals import Refusals
from kafka_front.wire.errors import ErrorCode
from tests.kafka_front.groups import wire_client as w
from tests.kafka_front.groups.lab import subscription
from tests.kafka_front.groups.test_consumer_requests import Member
from tests.kafka_front.groups.test_group_requests import Place, place

__all__ = ["place"]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def here(place: Place) -> Place:
    if not place.ours:
        pytest.skip("about the log of a node")
    return place


async def refused(here: Place, group: str, **fields: Any) -> int:
    """The error of a JoinGroup of a client that repeats it."""
    client = await here.client("late")
    codes = {(await client.call(5, w.join(group, **fields))).error_code for _ in range(3)}
    (code,) = codes
    return int(code)


@pytest.mark.parametrize(
    ("fields", "error", "remedy"),
    [
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT, "session.timeout.ms is 1, not 1000 to"),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "at least one assignor"),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a group.id of its own"),
        (
            {"protocols": w.protocols(("mine", subscription("t")))},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "all its members know range, this one does not: give all members of a group the same partition.assignment",
        ),
    ],
)
async def test_a_classic_member_is_logged_once_with_the_remedy(
    here: Place, fields: dict[str, Any], error: ErrorCode, remedy: str
) -> None:
    group = here.group()
    client = await here.client()
    first = await client.call(3, w.join(group))
    await client.call(3, w.sync(group, first.member_id, first.generation_id, {first.member_id: b""}))
    with structlog.testing.capture_logs() as lines:
        assert await refused(here, group, **fields) == error
    (line,) = lines
    assert remedy in line.pop("reason")
    assert line == {
        "event": "a member is refused",
        "log_level": "warning",
        "group": group,
        "client": "late",
        "host": "127.0.0.1",
        "error": error.name,
    }


async def test_a_full_group_and_a_taken_instance_are_logged(here: Place) -> None:
    group = here.group()
    old = await here.client("old")
    first = await old.call(5, w.join(group, group_instance_id="one"))
    await old.call(3, w.sync(group, first.member_id, first.generation_id, {first.member_id: b""}))
    new = await here.client("new")
    await new.call(5, w.join(group, group_instance_id="one"))
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            answer = await old.call(3, w.heartbeat(group, first.member_id, first.generation_id, "one"))
            assert answer.error_code == ErrorCode.FENCED_INSTANCE_ID
        other = here.group()
        for number in range(5):
            answer = await Member(await here.client(f"member {number}"), other).beat()
        assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    said = [(line["client"], line["error"], line["reason"]) for line in lines]
    taken = "another member has taken over group.instance.id 'one': if both are to run, give each an id of its own"
    assert said == [
        ("old", "FENCED_INSTANCE_ID", taken),
        ("member 4", "GROUP_MAX_SIZE_REACHED", "the group has 4 members: raise kafka.group.max_size to let more in"),
    ]


async def test_a_member_of_the_new_protocol_is_logged_unless_it_leaves_or_joins_again(here: Place) -> None:
    member = Member(await here.client("late"), here.group())
    with structlog.testing.capture_logs() as lines:
        for fields in ({"server_assignor": "mine"}, {"subscribed_topic_regex": "("}, {"member_epoch": -1}):
            for _ in range(2):
                assert (await member.beat(**fields)).error_code
        assert (await member.beat()).error_code == ErrorCode.NONE
        assert (await member.beat(member_epoch=member.epoch + 1)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert [(line["error"], line["client"]) for line in lines] == [
        ("UNSUPPORTED_ASSIGNOR", "late"),
        ("INVALID_REGULAR_EXPRESSION", "late"),
    ]
    assert "Supported assignors: " in lines[0]["reason"]


def test_names_of_clients_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MOST", 3)
    found = Refusals()
    with structlog.testing.capture_logs() as lines:
        for number in (0, 1, 2, 0, 3, 0, 1):
            ctx: Any = SimpleNamespace(client_id=f"{number}", connection=SimpleNamespace(peer=("host", 1)))
            found.note(ctx, "g", ErrorCode.INVALID_REQUEST, "reason")
    assert [line["client"] for line in lines] == ["0", "1", "2", "3", "1"], "the least recent one is forgotten"
    assert len(found.logged) == 3
