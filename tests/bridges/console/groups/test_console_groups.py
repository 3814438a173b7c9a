"""Consumer groups over HTTP and in the metrics: live groups of several fronts with the committed positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from anabranch_kit.net.address import Address
from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import (
    CONSUMERS,
    GroupDirectory,
    GroupMemberView,
    GroupSummary,
    GroupView,
    records_behind,
)
from bridges.console.history import sampling
from bridges.metric_text import render
from bridges.node.assembly import Node
from bridges.node.front import Front, NodeServices, group_directories
from sbp_back.errors import SbpError
from tests.bridges.node.test_node import PuppetFront, append, settings_of


@dataclass
class Directory(GroupDirectory):
    """Groups as a front tells them, by name."""

    known: dict[str, GroupView] = field(default_factory=dict)
    space: str = CONSUMERS
    came: Callable[[str], None] = lambda group: None

    def put(
        self, group: str, *members: GroupMemberView, state: str = "Stable", generation: int = 1, protocol: str = "range"
    ) -> None:
        summary = GroupSummary(group, "classic", state, "consumer", len(members))
        leader = members[0].member_id if members else None
        self.known[group] = GroupView(summary, generation, protocol, leader, members)
        self.came(group)

    def summaries(self) -> list[GroupSummary]:
        return [view.summary for view in self.known.values()]

    def knows(self, group_id: str) -> bool:
        return True

    def summary(self, group_id: str) -> GroupSummary | None:
        view = self.view(group_id)
        return None if view is None else view.summary

    def view(self, group_id: str) -> GroupView | None:
        return self.known.get(group_id)


class GroupFront(Front):
    """A front with groups; ``directory`` is None as long as a front has not been started."""

    listeners = ()
    directory: Directory | None

    def __init__(self, node: NodeServices) -> None:
        self.node = node
        if self.directory is not None and node is not None:
            self.directory.came = node.progress.came

    @property
    def groups(self) -> Directory | None:
        return self.directory

    async def start(self, listen: Mapping[str, Address]) -> Mapping[str, Address]:
        return {}

    async def drain(self) -> None: ...

    async def stop(self) -> None: ...


def reader(member_id: str, *partitions: tuple[str, int], instance_id: str | None = None) -> GroupMemberView:
    return GroupMemberView(member_id, instance_id, f"client of {member_id}", "/10.0.0.1", partitions)


@dataclass
class Lab:
    """A node with two fronts that have groups and one that has none."""

    node: Node
    one: Directory
    two: Directory

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        url = URL(f"http://{self.node.addresses['console']}{path}", encoded=True)
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.json()

    async def groups(self) -> dict[str, dict[str, Any]]:
        status, body = await self.get("/api/groups")
        assert status == 200
        names = [group["group"] for group in body["groups"]]
        assert names == sorted(names)
        return {group["group"]: group for group in body["groups"]}

    async def group(self, name: str) -> dict[str, Any]:
        status, body = await self.get(f"/api/groups/{quote(name, safe='')}")
        assert status == 200, body
        assert body["group"] == name
        return body

    async def commit(self, group: str, *positions: tuple[str, int, int]) -> None:
        await self.node.progress.front("kafka").commit(
            group, [(topic, index, Committed(offset)) for topic, index, offset in positions]
        )

    def samples(self, name: str) -> list[str]:
        return [line for line in render(self.node.metrics).decode().splitlines() if line.startswith(name)]


def lab_of(path: Path, **settings: str) -> Lab:
    one, two = Directory(), Directory()

    class One(GroupFront):
        name = "one"
        directory = one

    class Two(GroupFront):
        name = "two"
        directory = two

    class NotStarted(GroupFront):
        name = "bare"
        directory = None

    return Lab(Node(settings_of(path, **settings), fronts=[Two, One, NotStarted, PuppetFront]), one, two)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    lab = lab_of(tmp_path)
    await lab.node.start()
    await lab.node.catalog.create_topic("t", 3)
    for _ in range(5):
        await append(lab.node, "t", 0, 1)
    yield lab
    await lab.node.stop()


def lags(group: Mapping[str, Any]) -> dict[tuple[str, int], tuple[object, ...]]:
    keys = ("offset", "end_offset", "lag", "member_id")
    return {(one["topic"], one["partition"]): tuple(one[key] for key in keys) for one in group["positions"]}


async def test_members_and_positions_of_a_group_are_shown_together(lab: Lab) -> None:
    lab.one.put("g", reader("m1", ("t", 0), ("t", 1), instance_id="i1"), generation=7)
    await lab.node.progress.front("kafka").commit(
        "g", [("t", 0, Committed(2, 0, "note", commit_ms=99)), ("t", 2, Committed(0))]
    )
    assert await lab.group("g") == {
        "group": "g",
        "space": "consumers",
        "fronts": ["one"],
        "kind": "classic",
        "state": "Stable",
        "protocol_type": "consumer",
        "protocol": "range",
        "dead_letter_topic": "",
        "generation": 7,
        "leader": "m1",
        "trend": None,
        "members": [
            {
                "front": "one",
                "member_id": "m1",
                "instance_id": "i1",
                "client_id": "client of m1",
                "host": "/10.0.0.1",
                "software": "",
                "user": "",
                "partitions": {"t": [0, 1]},
            }
        ],
        "positions": [
            {
                "topic": "t",
                "partition": 0,
                "exists": True,
                "offset": 2,
                "start_offset": 0,
                "end_offset": 5,
                "last_stable_offset": 5,
                "lag": 3,
                "lag_seconds": mock.ANY,
                "lag_exact": mock.ANY,
                "member_id": "m1",
                "metadata": "note",
                "commit_ms": 99,
            },
            {
                "topic": "t",
                "partition": 1,
                "exists": True,
                "offset": None,
                "start_offset": 0,
                "end_offset": 0,
                "last_stable_offset": 0,
                "lag": None,
                "lag_seconds": None,
                "lag_exact": None,
                "member_id": "m1",
                "metadata": "",
                "commit_ms": None,
            },
            {
                "topic": "t",
                "partition": 2,
                "exists": True,
                "offset": 0,
                "start_offset": 0,
                "end_offset": 0,
                "last_stable_offset": 0,
                "lag": 0,
                "lag_seconds": 0.0,
                "lag_exact": True,
                "member_id": None,
                "metadata": "",
                "commit_ms": -1,
            },
        ],
        "lag": 3,
        "unknown_lags": 0,
        "causes": {"unread": 0, "held": 0, "worst": {"topic": "t", "partition": 0, "lag": 3}},
    }
    assert (await lab.groups())["g"] == {
        "group": "g",
        "space": "consumers",
        "fronts": ["one"],
        "kind": "classic",
        "state": "Stable",
        "protocol_type": "consumer",
        "members": 1,
        "topics": ["t"],
        "partitions": 2,
        "lag": 3,
        "unknown_lags": 0,
        "lag_seconds": None,
        "lag_exact": True,
        "trend": None,
    }


async def test_a_group_with_positions_only_is_an_empty_one_of_no_front(lab: Lab) -> None:
    await lab.commit("g", ("t", 0, 4))
    listed = (await lab.groups())["g"]
    assert (listed["fronts"], listed["state"], listed["members"], listed["lag"]) == ([], "Empty", 0, 1)
    group = await lab.group("g")
    assert (group["fronts"], group["state"], group["members"], group["generation"]) == ([], "Empty", [], None)
    assert lags(group) == {("t", 0): (4, 5, 1, None)}


async def test_a_group_with_members_only(lab: Lab) -> None:
    lab.one.put("g", reader("m", ("t", 0)))
    lab.one.put("joining", state="PreparingRebalance")
    listed = await lab.groups()
    assert (listed["g"]["members"], listed["g"]["partitions"], listed["g"]["lag"]) == (1, 0, None)
    assert listed["joining"]["state"] == "PreparingRebalance"
    group = await lab.group("g")
    assert lags(group) == {("t", 0): (None, 5, None, "m")}
    assert (group["lag"], group["unknown_lags"]) == (None, 0)
    assert (await lab.group("joining"))["positions"] == []


async def test_positions_and_assignments_of_what_does_not_exist(lab: Lab) -> None:
    # A commit may be on its way to the disk while its topic is deleted, and members may say anything.
    await lab.commit("g", ("gone", 0, 3), ("t", 9, 1), ("t", 0, 5))
    lab.one.put("g", reader("m", ("gone", 0), ("gone", 1), ("t", -1), ("t", 0), ("t", 77)))
    group = await lab.group("g")
    assert lags(group) == {
        ("gone", 0): (3, None, None, "m"),
        ("t", 0): (5, 5, 0, "m"),
        ("t", 9): (1, None, None, None),
    }
    assert [one["exists"] for one in group["positions"]] == [False, True, False]
    assert group["members"][0]["partitions"] == {"gone": [0, 1], "t": [-1, 0, 77]}
    assert (group["lag"], group["unknown_lags"]) == (0, 2)
    listed = (await lab.groups())["g"]
    assert (listed["topics"], listed["lag"], listed["unknown_lags"]) == (["gone", "t"], 0, 2)
    assert lab.samples("anabranch_group_lag_records{") == [
        'anabranch_group_lag_records{group="g",partition="0",space="consumers",topic="t"} 0.0'
    ]


async def test_a_topic_that_is_deleted_takes_its_positions_along(lab: Lab) -> None:
    await lab.commit("g", ("t", 0, 1))
    lab.one.put("g", reader("m", ("t", 0)))
    await lab.node.catalog.delete_topic("t")
    assert (await lab.group("g"))["positions"] == []
    assert (await lab.groups())["g"]["lag"] is None


async def test_an_opaque_assignment_is_told_as_unknown(lab: Lab) -> None:
    lab.one.put("g", GroupMemberView("m", None, "c", "/h", None))
    group = await lab.group("g")
    assert group["members"][0]["partitions"] is None
    assert group["positions"] == []


async def test_a_group_of_several_fronts_is_one_group(lab: Lab) -> None:
    lab.one.put("g", reader("m1", ("t", 0)), state="Stable", generation=3)
    lab.two.put("g", reader("m2", ("t", 0)), reader("m3", ("t", 1)), state="CompletingRebalance", generation=8)
    await lab.commit("g", ("t", 0, 1))
    listed = (await lab.groups())["g"]
    assert (listed["fronts"], listed["members"], listed["state"]) == (["one", "two"], 3, "CompletingRebalance")
    group = await lab.group("g")
    assert (group["fronts"], group["state"], group["generation"]) == (["one", "two"], "CompletingRebalance", 8)
    assert sorted((member["front"], member["member_id"]) for member in group["members"]) == [
        ("one", "m1"), ("two", "m2"), ("two", "m3"),
    ]  # fmt: skip
    assert [(one["partition"], one["offset"]) for one in group["positions"]] == [(0, 1), (1, None)]
    assert (await lab.get("/api/status"))[1]["groups"] == 1
    assert lab.samples("anabranch_groups ") == ["anabranch_groups 1.0"]


async def test_groups_of_one_name_in_two_spaces_are_two_groups(lab: Lab) -> None:
    lab.two.space = "readers"
    lab.one.put("g", reader("m1", ("t", 0)))
    lab.two.put("g", reader("r1", ("t", 1)), reader("r2"))
    await lab.node.progress.front("one").commit("g", [("t", 0, Committed(1))])
    await lab.node.progress.front("two", "readers").commit("g", [("t", 1, Committed(0))])

    status, body = await lab.get("/api/groups")
    listed = {(group["space"], group["group"]): (group["fronts"], group["members"]) for group in body["groups"]}
    assert (status, listed) == (200, {("consumers", "g"): (["one"], 1), ("readers", "g"): (["two"], 2)})
    assert {row["partition"]: row["offset"] for row in (await lab.group("g"))["positions"]} == {0: 1}
    status, theirs = await lab.get("/api/groups/g?space=readers")
    assert {row["partition"]: (row["offset"], row["member_id"]) for row in theirs["positions"]} == {1: (0, "r1")}
    assert lab.samples("anabranch_groups ") == ["anabranch_groups 2.0"]
    series = [line.split("}")[0] for line in lab.samples("anabranch_group_lag_records{")]
    assert len(series) == len(set(series)) == 2


async def test_there_is_no_such_group(lab: Lab) -> None:
    status, body = await lab.get("/api/groups/missing")
    assert (status, body["error"]) == (404, "there is no group 'missing'")


async def test_any_text_is_the_name_of_a_group(lab: Lab) -> None:
    names = ["a/b", "50%", "%2F", "wörter mit leerzeichen", "?x=1&y#z", "\x1b[31m\n", "list", "describe", "\U0001f600"]
    for name in names:
        await lab.commit(name, ("t", 0, 1))
    assert set(await lab.groups()) == set(names)
    for name in names:
        assert (await lab.group(name))["lag"] == 4


async def test_details_open_partitions_nobody_has_used_since_the_start(tmp_path: Path) -> None:
    first = lab_of(tmp_path)
    await first.node.start()
    await first.node.catalog.create_topic("t", 3)
    for _ in range(5):
        await append(first.node, "t", 0, 1)
    await first.commit("g", ("t", 0, 2), ("t", 1, 0))
    await first.node.stop()
    lab = lab_of(tmp_path)
    await lab.node.start()
    listed = (await lab.groups())["g"]
    assert (listed["lag"], listed["unknown_lags"]) == (None, 2)
    assert (await lab.group("g"))["lag"] == 3
    listed = (await lab.groups())["g"]
    assert (listed["lag"], listed["unknown_lags"]) == (3, 0)
    await lab.node.stop()


async def test_partitions_that_cannot_be_opened_are_shown_as_unknown(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.commit("g", ("t", 0, 1), ("t", 1, 0))

    async def refuse(*arguments: object) -> None:
        raise SbpError("the server is gone")

    monkeypatch.setattr(lab.node.floors.storage.client, "open", refuse)
    assert lags(await lab.group("g")) == {("t", 0): (1, 5, 4, None), ("t", 1): (0, None, None, None)}

    async def hang(*arguments: object) -> None:
        hanging.set()
        await let_go.wait()
        raise SbpError("the server is gone")

    hanging, let_go = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(lab.node.floors.storage.client, "open", hang)
    monkeypatch.setattr(sampling, "ASKED_S", 0.01)
    assert lags(await lab.group("g")) == {("t", 0): (1, 5, 4, None), ("t", 1): (0, None, None, None)}
    await hanging.wait()
    let_go.set()


async def test_a_group_that_goes_while_its_partitions_are_opened(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.commit("g", ("t", 1, 0))
    real = lab.node.floors.storage.client.open

    async def slow(*arguments: Any) -> Any:
        await lab.node.progress.front("kafka").delete("g")
        return await real(*arguments)

    monkeypatch.setattr(lab.node.floors.storage.client, "open", slow)
    assert (await lab.get("/api/groups/g"))[0] == 404


async def test_the_metric_of_lag_keeps_to_its_limit(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, limits__group_lag_series="3")
    await lab.node.start()
    await lab.node.catalog.create_topic("t", 3)
    for partition in range(3):
        await append(lab.node, "t", partition, 1)
    await lab.commit("large", ("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    assert len(lab.samples("anabranch_group_lag_records{")) == 3
    assert lab.samples("anabranch_group_lag_omitted") == ["anabranch_group_lag_omitted 0.0"]
    await lab.commit("small", ("t", 0, 0))
    await lab.commit("even smaller", ("t", 0, 0))
    # Whole groups, the small ones first: one large group does not hide all the others.
    assert lab.samples("anabranch_group_lag_records{") == [
        'anabranch_group_lag_records{group="even smaller",partition="0",space="consumers",topic="t"} 1.0',
        'anabranch_group_lag_records{group="small",partition="0",space="consumers",topic="t"} 1.0',
    ]
    assert lab.samples("anabranch_group_lag_omitted") == ["anabranch_group_lag_omitted 3.0"]
    await lab.node.stop()


@pytest.mark.parametrize(
    ("committed", "start", "end", "behind"),
    [(0, 0, 5, 5), (5, 0, 5, 0), (0, 3, 5, 2), (9, 0, 5, 0), (-1, 0, 5, 5), (0, 5, 5, 0)],
)
def test_records_behind(committed: int, start: int, end: int, behind: int) -> None:
    assert records_behind(committed, start, end) == behind


def test_only_fronts_with_groups_are_asked(tmp_path: Path) -> None:
    class One(GroupFront):
        name = "one"
        directory = Directory()

    class Later(GroupFront):
        name = "later"
        directory = None

    node: Any = None
    assert group_directories([PuppetFront(node), One(node), Later(node)]) == {"one": One.directory}
