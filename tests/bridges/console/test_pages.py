"""Pages of topics, groups and their parts: searched, sorted, bounded; pictures; positions that are reset; records that
are searched for, and seen from every side."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import GroupMemberView
from bridges.console import paging
from bridges.formats import FormatId
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch
from bridges.node.assembly import Node
from tests.bridges.console.groups.test_console_groups import Directory, GroupFront
from tests.bridges.node.test_node import append, settings_of


@dataclass
class Lab:
    node: Node
    session: aiohttp.ClientSession
    directory: Directory

    async def get(self, path: str, status: int = 200) -> dict[str, Any]:
        async with self.session.get(path) as answer:
            body = await answer.read()
            assert len(body) < 256 * 1024
            assert answer.status == status, body
            return dict(json.loads(body))

    async def post(self, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
        async with self.session.post(path, json=body) as answer:
            assert answer.status == status, await answer.text()
            return dict(await answer.json())

    async def lines(self, path: str) -> list[dict[str, Any]]:
        async with self.session.get(path) as answer:
            assert answer.status == 200, await answer.text()
            return [json.loads(line) for line in (await answer.text()).splitlines()]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    known = Directory()

    class One(GroupFront):
        name = "one"
        directory = known

    node = Node(settings_of(tmp_path), fronts=[One])
    await node.start()
    async with aiohttp.ClientSession(f"http://{node.addresses['console']}") as session:
        yield Lab(node, session, known)
    await node.stop()


async def test_topics_are_searched_sorted_and_cut(lab: Lab) -> None:
    for name, partitions in (("apples", 1), ("Pears", 3), ("pineapples", 2)):
        await lab.node.catalog.create_topic(name, partitions)
    await append(lab.node, "apples", 0, 1)

    async def names(query: str) -> list[str]:
        return [row["name"] for row in (await lab.get(f"/api/topics?{query}"))["topics"]]

    assert await names("limit=10") == ["Pears", "apples", "pineapples"]
    assert await names("limit=10&descending=true") == ["pineapples", "apples", "Pears"]
    assert await names("limit=10&sort=partitions&descending=true") == ["Pears", "pineapples", "apples"]
    assert await names("limit=10&sort=records&descending=true") == ["apples", "Pears", "pineapples"]
    assert await names("limit=10&search=APPLE") == ["apples", "pineapples"]
    page = await lab.get("/api/topics?limit=2")
    assert (page["total"], page["next"]) == (3, 2)
    page = await lab.get("/api/topics?limit=2&skip=2")
    assert (page["total"], page["next"], len(page["topics"])) == (3, None, 1)
    assert (await lab.get("/api/topics?limit=2&skip=3"))["topics"] == []
    for wrong in ("limit=0", "limit=x", "limit=1&sort=colour", "limit=1&skip=-1", f"limit=1&search={'x' * 300}"):
        await lab.get(f"/api/topics?{wrong}", 400)


async def test_no_page_is_larger_than_an_answer_may_be(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MOST_BYTES", 2_000)
    for number in range(30):
        await lab.node.catalog.create_topic(f"{'t' * 100}{number:02}", 1)
    seen: list[str] = []
    skip: int | None = 0
    while skip is not None:
        page = await lab.get(f"/api/topics?limit=500&skip={skip}&history=true")
        assert len(json.dumps(page)) < 2_500
        seen += [row["name"] for row in page["topics"]]
        skip = page["next"]
    assert seen == sorted(seen)
    assert len(seen) == 30


async def test_rates_and_pictures_of_what_has_gone_through(lab: Lab) -> None:
    await lab.node.catalog.create_topic("words", 1)
    lab.node.metrics.front("one").topic("words").appended(1, 400, 6_000)
    await append(lab.node, "words", 0, 1)
    await lab.node.progress.front("one").commit("readers", [("words", 0, Committed(0))])
    await lab.node.floors.host.recorder.sample()
    for path in ("/api/history", "/api/topics/words/history", "/api/groups/readers/history"):
        for span, step in (("hour", 20), ("day", 600)):
            assert (await lab.get(f"{path}?span={span}"))["step_s"] == step
    await lab.get("/api/history?span=year", 400)
    await lab.get("/api/topics/none/history", 404)
    topic = await lab.get("/api/topics/words/history")
    assert set(topic["fronts"]) == {"one"}
    assert len(topic["fronts"]["one"]["records_in"]) == 180
    group = await lab.get("/api/groups/readers/history")
    assert [(one["topic"], one["partition"]) for one in group["places"]] == [("words", 0)]
    row = (await lab.get("/api/groups?limit=1"))["groups"][0]
    assert (row["lag"], row["lag_exact"], row["topic_count"]) == (1, False, 1)


async def test_partitions_tell_their_keys_and_relations(lab: Lab) -> None:
    from bridges.catalog.topics.lineage import KeyRange

    await lab.node.catalog.create_topic("tree", 1, {"anabranch.partitions.split": "true"})
    await append(lab.node, "tree", 0, 1)
    halves = [KeyRange.of_doubles(0.0, 0.5), KeyRange.of_doubles(0.5, 1.0)]
    await lab.node.catalog.change_partitions("tree", [0], halves)
    page = await lab.get("/api/topics/tree?limit=10")
    assert [(one["active"], one["keys"], one["parents"], one["children"]) for one in page["partitions"]] == [
        (False, [0.0, 1.0], [], [1, 2]),
        (True, [0.0, 0.5], [0], []),
        (True, [0.5, 1.0], [0], []),
    ]
    assert (await lab.get("/api/topics/tree?limit=1&skip=2"))["partitions"][0]["partition"] == 2


async def test_positions_are_shown_before_they_are_set_and_not_while_members_run(lab: Lab) -> None:
    await lab.node.catalog.create_topic("words", 2)
    for number in range(10):
        await append(lab.node, "words", 0, 1_000 + number)
    await lab.node.progress.front("one").commit("readers", [("words", 0, Committed(5))])
    path, committed = "/api/groups/readers/reset", lab.node.progress.committed

    async def target(to: str, **more: object) -> int:
        body = {"topics": ["words"], "partitions": [0], "to": to, **more}
        shown = await lab.post(path, {**body, "dry_run": True})
        before = committed(("consumers", "readers"), "words", 0)
        assert before is not None
        assert shown["positions"][0]["before"] == before.offset
        assert await lab.post(path, body) == {**shown, "dry_run": False}
        after = committed(("consumers", "readers"), "words", 0)
        assert after is not None
        assert after.front == "one"
        assert shown["positions"][0]["change"] == after.offset - before.offset
        return after.offset

    assert await target("earliest") == 0
    assert await target("latest") == 10
    assert await target("offset", offset=7) == 7
    assert await target("offset", offset=70) == 10
    assert await target("time", time_ms=1_004) == 4
    assert await target("time", time_ms=2_000) == 10
    assert len((await lab.post(path, {"topics": ["words"], "to": "earliest"}))["positions"]) == 2
    for wrong, status in (
        ({"topics": ["words"]}, 400),
        ({"topics": ["words"], "to": "middle"}, 400),
        ({"topics": ["words"], "to": "offset"}, 400),
        ({"topics": ["words"], "to": "latest", "partitions": [9]}, 404),
        ({"topics": ["none"], "to": "latest"}, 404),
    ):
        await lab.post(path, wrong, status)
    await lab.post("/api/groups/nobody/reset", {"topics": ["words"], "to": "latest"}, 404)
    lab.directory.put("readers", GroupMemberView("m", None, "c", "/1", (("words", 0),)))
    await lab.post(path, {"topics": ["words"], "to": "latest"}, 409)
    await lab.post(path, {"topics": ["words"], "to": "latest", "dry_run": True}, 409)


async def test_who_commits_between_the_look_and_the_change_is_not_overwritten(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.node.catalog.create_topic("words", 1)
    await append(lab.node, "words", 0, 1)
    front = lab.node.progress.front("one")
    await front.commit("readers", [("words", 0, Committed(0))])
    from bridges.console.groups import resets

    before = resets.ResetHandlers._target

    async def slow(handlers: resets.ResetHandlers, log: Any, body: dict[str, Any]) -> int:
        await front.commit("readers", [("words", 0, Committed(1))])
        return await before(handlers, log, body)

    monkeypatch.setattr(resets.ResetHandlers, "_target", slow)
    await lab.post("/api/groups/readers/reset", {"topics": ["words"], "to": "earliest"}, 409)
    left = lab.node.progress.committed(("consumers", "readers"), "words", 0)
    assert left is not None
    assert left.offset == 1


async def test_records_are_searched_within_a_bound(lab: Lab) -> None:
    await lab.node.catalog.create_topic("words", 1)
    records = [
        {
            "key": f"k{number}",
            "value": f"value {number}",
            "headers": {"colour": "red" if number % 2 else "blue"},
            "timestamp": 1_000 + number,
        }
        for number in range(100)
    ]
    body = "".join(json.dumps(record) + "\n" for record in records)
    async with lab.session.post("/api/topics/words/records", data=body) as answer:
        assert answer.status == 200
    path = "/api/topics/words/records"

    async def found(query: str) -> tuple[list[int], dict[str, Any]]:
        *lines, last = await lab.lines(f"{path}?{query}")
        return [line["offset"] for line in lines], last

    assert await found("key=k7") == ([7], {"looked": 100, "next": {"0": 100}})
    assert (await found("text=value%2099"))[0] == [99]
    assert (await found("text=k42"))[0] == [42]
    assert (await found("header=colour%3Dred&limit=3")) == ([1, 3, 5], {"looked": 6, "next": {"0": 6}})
    assert (await found("header=colour&limit=1"))[0] == [0]
    assert (await found("header=shape"))[0] == []
    assert await found("text=value%2050&look=10") == ([], {"looked": 10, "next": {"0": 10}})
    assert (await found("text=value%2050&look=100&offset=10"))[0] == [50]
    assert (await found("since_ms=1040&until_ms=1042"))[0] == [40, 41, 42]
    assert [line["offset"] for line in await lab.lines(f"{path}?since_ms=1098")] == [98, 99]
    for wrong in ("since_ms=1&offset=1", "look=0", "until_ms=x"):
        await lab.get(f"{path}?{wrong}", 400)


async def test_a_record_as_each_protocol_sees_it(lab: Lab) -> None:
    await lab.node.catalog.create_topic("words", 1)
    log = lab.node.logs.get("words", 0)
    assert log is not None
    record = Record(b"k", None, [("h", b"\xff")], timestamp=1_000)
    batch = encode([record])
    from anabranch_kit.run.awaited import awaited

    await awaited(lambda settle: log.append(Batch(batch, 1, int(FormatId.KAFKA), 1_000), settle))
    seen = await lab.get("/api/topics/words/partitions/0/records/0")
    assert seen["stored"]["format"] == "kafka"
    assert seen["kafka"] == {
        "offset": 0, "timestamp": 1_000, "key": {"text": "k", "size": 1}, "value": None,
        "headers": [["h", {"base64": "/w==", "size": 1}]], "producer_id": None, "sequence": None, "translated": False,
    }  # fmt: skip
    assert seen["pravega"] == {
        "event": {"text": "", "size": 0}, "event_bytes": 8, "has_no_place_for": ["key", "headers"], "translated": True,
    }  # fmt: skip
    assert seen["ydb"]["metadata_items"] == [
        ["__key", {"text": "k", "size": 1}],
        ["h", {"base64": "/w==", "size": 1}],
        ["anabranch.tombstone", {"text": "", "size": 0}],
    ]
    assert (seen["ydb"]["seq_no"], seen["ydb"]["translated"]) == (1, True)
    await lab.get("/api/topics/words/partitions/0/records/1", 404)
    await lab.get("/api/topics/words/partitions/1/records/0", 404)
    await lab.get("/api/topics/words/partitions/0/records/x", 400)


async def test_promises_and_users(lab: Lab) -> None:
    told = await lab.get("/api/promises")
    assert told["durability"] == "fsync"
    assert any("one copy" in one["sentence"] for one in told["not_promised"])
    assert await lab.get("/api/users") == {"users": []}
    assert await lab.get("/api/users?limit=5") == {"users": [], "total": 0, "next": None}


async def test_rules_quotas_and_users_come_as_pages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        entity = {"user": f"user{number}"}
        await lab.post("/api/quotas", {"entity": entity, "values": {"producer_byte_rate": 1000}})
    page = await lab.get("/api/quotas?limit=2&skip=1")
    assert [one["entity"]["user"] for one in page["quotas"]] == ["user1", "user2"]
    assert (page["total"], page["next"]) == (5, 3)
    assert (await lab.get("/api/quotas?limit=9&search=USER4"))["total"] == 1
    assert (await lab.get("/api/quotas?limit=1&descending=true"))["quotas"][0]["entity"] == {"user": "user4"}
    assert len((await lab.get("/api/quotas"))["quotas"]) == 5
    assert await lab.get("/api/jobs?limit=9") == {"jobs": [], "total": 0, "next": None}
    await lab.get("/api/quotas?limit=1&sort=size", 400)


async def test_groups_of_a_topic_with_their_lag_in_it(lab: Lab) -> None:
    for name in ("words", "others"):
        await lab.node.catalog.create_topic(name, 2)
        for number in range(10):
            await append(lab.node, name, number % 2, 1_000 + number)
    front = lab.node.progress.front("one")
    both = [(name, number, Committed(1)) for name in ("words", "others") for number in (0, 1)]
    await front.commit("slow", both)
    await front.commit("quick", [("words", 0, Committed(5))])
    await front.commit("elsewhere", [("others", 0, Committed(0))])
    lab.directory.put("quick", GroupMemberView("m", None, "c", "/1", (("words", 0),)))
    await lab.node.floors.host.recorder.sample()
    for query in ("", "?limit=10"):
        quick, slow = (await lab.get(f"/api/topics/words/groups{query}"))["groups"]
        assert (quick["group"], quick["fronts"], quick["members"], quick["partitions"]) == ("quick", ["one"], 1, 1)
        assert (quick["lag"], quick["lag_seconds"], quick["trend"]) == (0, 0.0, None)
        assert (slow["group"], slow["lag"], slow["partitions"], slow["unknown_lags"]) == ("slow", 8, 2, 0)
        assert slow["lag_seconds"] > 0
    page = await lab.get("/api/topics/words/groups?limit=1&sort=lag&descending=true")
    assert ([one["group"] for one in page["groups"]], page["total"], page["next"]) == (["slow"], 2, 1)
    assert (await lab.get("/api/topics/words/groups?limit=9&search=UIC"))["total"] == 1
    pictured = (await lab.get("/api/topics/words/history"))["groups"]
    assert [(one["group"], len(one["records"])) for one in pictured] == [("slow", 180)]
    await lab.get("/api/topics/none/groups", 404)
    await lab.get("/api/topics/words/groups?limit=1&sort=members", 400)
