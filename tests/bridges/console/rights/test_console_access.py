"""The console address asks who its clients are, and the authorizer what they may do."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from bridges.auth import NODE, Operation, Principal, Resource, ResourceKind
from bridges.auth.authenticator import Authenticator
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.users import User, change
from bridges.catalog.progress import Committed
from bridges.catalog.views.groups import CONSUMERS, GroupDirectory, GroupMemberView, GroupSummary, GroupView
from bridges.catalog.views.transactions import TransactionView
from bridges.commands.cli import main
from bridges.node.assembly import Node
from bridges.node.settings.config import load

ALICE = ("alice", "wönder")


@dataclass
class Doorman:
    """Denies what it is told to, and what is called ``shut``."""

    denied: set[tuple[Operation, ResourceKind]] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        self.asked.add(str(principal))
        return resource.name != "shut" and (operation, resource.kind) not in self.denied

    def stand_in(self, principal: Principal) -> Principal | None:
        return principal


@dataclass
class Lab:
    node: Node
    doorman: Doorman
    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, login: tuple[str, str] | None = ALICE, **options: Any) -> Any:
        """Status and body."""
        url = f"http://{self.node.addresses['console']}{path}"
        if login is not None:
            token = base64.b64encode(":".join(login).encode()).decode()
            options["headers"] = {"Authorization": f"Basic {token}"}
        async with self.session.request(method, url, **options) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text


async def open_lab(path: Path, **flags: str) -> Lab:
    def edit(users: dict[str, User]) -> None:
        users["alice"] = User("alice", PasswordHash.from_password("wönder", Cost(16, 1, 1)), {})

    change(path / "users.json", edit)
    closed = {"listen.sbp-pd": "off", "listen.sbp-range-server": "off"}
    flags = {"data_dir": str(path), "listen.console": "127.0.0.1:0", **closed, **flags}
    node = Node(load(flags, environ={}, directory=path, fronts=()).settings)
    node.authorizer = doorman = Doorman()
    await node.start()
    for name in ("open", "shut"):
        await node.catalog.create_topic(name, 1)
    positions = node.progress.front("test")
    await positions.commit("shut", [("open", 0, Committed(0))])
    await positions.commit("g", [(name, 0, Committed(0)) for name in ("open", "shut")])
    return Lab(node, doorman, aiohttp.ClientSession())


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = await open_lab(tmp_path, **{"auth.required": "true"})
    yield made
    await made.session.close()
    await made.node.stop()


async def test_who_does_not_say_who_it_is_is_asked(lab: Lab) -> None:
    url = f"http://{lab.node.addresses['console']}"
    for path in ("/", "/static/app.js", "/api/status", "/api/topics", "/api/groups", "/nothing"):
        async with lab.session.get(url + path) as answer:
            assert answer.status == 401, path
            assert answer.headers["WWW-Authenticate"].startswith('Basic realm="anabranch"')
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await lab.ask("GET", path, None))[0] == 200
    assert (await lab.ask("GET", "/"))[0] == 200
    assert (await lab.ask("GET", "/api/status"))[0] == 200
    assert lab.doorman.asked == {"User:alice"}


async def test_why_a_node_is_not_healthy_is_told_to_those_only_who_may_look_at_it(lab: Lab) -> None:
    lab.node.fail("/secret/place/node.db is damaged")
    status, body = await lab.ask("GET", "/healthz", None)
    assert (status, body["healthy"]) == (503, False)
    assert "secret" not in str(body)
    status, body = await lab.ask("GET", "/healthz")
    assert (status, body["failure"]) == (503, "/secret/place/node.db is damaged")
    lab.doorman.denied = {(Operation.DESCRIBE, ResourceKind.NODE)}
    status, body = await lab.ask("GET", "/healthz")
    assert status == 503
    assert "secret" not in str(body)


async def test_what_is_not_so_is_refused(lab: Lab) -> None:
    for login in (("alice", "wrong"), ("bob", "wönder"), ("", "")):
        assert (await lab.ask("GET", "/api/topics", login))[0] == 401
    for header in ("", "Basic", "Basic !!", "Basic YWxpY2U=", "Basic /w==", "Bearer abc"):
        assert (await lab.ask("GET", "/api/topics", None, headers={"Authorization": header}))[0] == 401
    assert lab.doorman.asked == set()
    assert lab.node.catalog.topics.keys() == {"open", "shut"}


async def test_metrics_name_topics_and_groups_to_those_who_may_know_of_them(lab: Lab) -> None:
    for name in ("open", "shut"):
        log = lab.node.logs.get(name, 0)
        assert log is not None
        await log.ready()
        lab.node.metrics.front("test").topic(name).appended(1, 1, 1)
    strangers = (await lab.ask("GET", "/metrics", None))[1]
    assert 'topic="' not in strangers
    assert 'group="' not in strangers
    assert "anabranch_topics 2.0" in strangers, "numbers are for everybody"
    told = (await lab.ask("GET", "/metrics"))[1]
    assert 'topic="open"' in told
    assert 'group="g"' in told
    assert "shut" not in told
    lab.doorman.denied = {(Operation.DESCRIBE, ResourceKind.GROUP)}
    told = (await lab.ask("GET", "/metrics"))[1]
    assert 'topic="open"' in told
    assert 'group="' not in told


async def test_transactional_ids_are_named_to_those_who_may_know_of_them(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time_ns() // 1_000_000 - 60_000
    places = {"open": {0}, "shut": {0}}
    views = {
        name: TransactionView(name, "Ongoing", number, 0, 90_000, began, began, places, {"g", "shut"})
        for number, name in enumerate(("mine", "shut"))
    }

    class Coordinated:
        timed_out, ids = 3, 2
        ids = 2

        def transactions(self) -> list[TransactionView]:
            return [*views.values()]

        def view(self, transactional_id: str) -> TransactionView | None:
            return views.get(transactional_id)

        async def read_others(self) -> list[TransactionView]:
            return []

        async def find(self, transactional_id: str) -> TransactionView | None:
            return self.view(transactional_id)

        def writing_to(self, topic: str, partition: int) -> list[TransactionView]:
            return [*views.values()]

        async def forget(self, wanted: Callable[[str], bool], before_ms: int) -> int:
            return sum(map(wanted, [view.transactional_id for view in self.transactions()]))

        async def abort(self, transactional_id: str) -> TransactionView:
            return views[transactional_id]

    monkeypatch.setattr(Node, "transaction_directories", property(lambda _: {"test": Coordinated()}))
    for login in (None, ALICE):
        told = (await lab.ask("GET", "/metrics", login))[1]
        assert 'anabranch_transactions{front="test",state="Ongoing"} 2.0' in told, "numbers are for everybody"
        assert 'anabranch_transactions_timed_out_total{front="test"} 3.0' in told
        named = re.findall(r'anabranch_transaction_open_seconds{.*transactional_id="(.*)"} (\d+)', told)
        assert [(name, int(seconds) >= 60) for name, seconds in named] == ([("mine", True)] if login else [])
    listed = (await lab.ask("GET", "/api/transactions"))[1]["transactions"]
    assert [one["transactional_id"] for one in listed] == ["mine"]
    status, found = await lab.ask("GET", "/api/transactions/mine")
    assert (status, found["groups"], found["partitions"]) == (200, ["g"], [{"topic": "open", "partition": 0}])
    assert (await lab.ask("POST", "/api/transactions/mine/abort"))[0] == 200
    assert 'anabranch_transactional_ids{front="test"} 2.0' in (await lab.ask("GET", "/metrics"))[1]
    unknown = {"name": "nobody", "prefix": True}
    with capture_logs() as told_of:
        assert await lab.ask("POST", "/api/transactions/forget", json=unknown) == (200, {"forgotten": 0})
    assert not told_of, "nothing to warn of"
    everything = {"name": "", "prefix": True}
    assert await lab.ask("POST", "/api/transactions/forget", json=everything) == (200, {"forgotten": 1}), "but shut"
    assert (await lab.ask("POST", "/api/transactions/forget", json={"name": "shut"}))[0] == 403
    for method, path in (("GET", "shut"), ("POST", "shut/abort")):
        assert (await lab.ask(method, f"/api/transactions/{path}"))[0] == 403
    lab.doorman.denied = {(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID)}
    assert (await lab.ask("POST", "/api/transactions/mine/abort"))[0] == 403
    lab.doorman.denied = {(Operation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID)}
    assert "mine" not in str((await lab.ask("GET", "/metrics"))[1])
    assert "mine" not in str((await lab.ask("GET", "/api/transactions"))[1])
    assert (await lab.ask("GET", "/api/transactions/mine"))[0] == 403


async def test_whose_guess_it_is_goes_by_the_address(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    verify = Authenticator.verify

    async def noted(self: Authenticator, name: str, password: str, source: str = "") -> Principal | None:
        seen.append(source)
        return await verify(self, name, password, source)

    monkeypatch.setattr(Authenticator, "verify", noted)
    assert (await lab.ask("GET", "/api/topics"))[0] == 200
    assert seen == ["127.0.0.1"]


async def test_topics_and_groups_that_one_may_not_see_are_left_out(lab: Lab) -> None:
    assert [topic["name"] for topic in (await lab.ask("GET", "/api/topics"))[1]["topics"]] == ["open"]
    assert [group["group"] for group in (await lab.ask("GET", "/api/groups"))[1]["groups"]] == ["g"]
    rows = (await lab.ask("GET", "/api/groups/g"))[1]["positions"]
    assert [row["topic"] for row in rows] == ["open"]
    listed = (await lab.ask("GET", "/api/groups"))[1]["groups"][0]
    assert (listed["topics"], listed["partitions"]) == (["open"], 1)


async def test_members_read_what_one_may_see(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    class Joined(GroupDirectory):
        space = CONSUMERS

        def summaries(self) -> list[GroupSummary]:
            return []

        def view(self, group_id: str) -> GroupView | None:
            member = GroupMemberView("m", None, "", "", (("open", 0), ("shut", 0), ("open", 1)))
            return GroupView(GroupSummary(group_id, "consumer", "Stable", "", 1), 1, "uniform", None, (member,))

    monkeypatch.setattr(Node, "group_directories", property(lambda _: {"test": Joined()}))
    (member,) = (await lab.ask("GET", "/api/groups/g"))[1]["members"]
    assert member["partitions"] == {"open": [0, 1]}


REQUESTS: list[tuple[str, str, Any, Operation]] = [
    ("POST", "/api/topics", {"name": "shut"}, Operation.CREATE),
    ("GET", "/api/topics/shut", None, Operation.DESCRIBE),
    ("PATCH", "/api/topics/shut", {"partitions": 2}, Operation.ALTER),
    ("PATCH", "/api/topics/shut", {"config": {"retention.ms": 5}}, Operation.ALTER_CONFIGS),
    ("DELETE", "/api/topics/shut", None, Operation.DELETE),
    ("POST", "/api/topics/shut/partitions/0/skip", {"offset": 0}, Operation.DELETE),
    ("POST", "/api/topics/shut/records", None, Operation.WRITE),
    ("GET", "/api/topics/shut/records", None, Operation.READ),
    ("GET", "/api/groups/shut", None, Operation.DESCRIBE),
]


async def test_what_one_may_not_do_is_refused(lab: Lab) -> None:
    for method, path, body, operation in REQUESTS:
        status, answer = await lab.ask(method, path, json=body)
        assert status == 403, (method, path)
        # What is asked for that is not there looks the same.
        assert "you may not" in answer["error"]
        # With that operation alone denied, nothing else stands in the way of the refusal.
        kind = ResourceKind.GROUP if "groups" in path else ResourceKind.TOPIC
        lab.doorman.denied = {(operation, kind)}
        status, answer = await lab.ask(method, path.replace("shut", "open"), json=body)
        assert (status, f"you may not {operation.value}" in answer["error"]) == (403, True), (method, path)
        lab.doorman.denied = set()
    lab.doorman.denied = {(Operation.DESCRIBE, NODE.kind)}
    assert (await lab.ask("GET", "/api/status"))[0] == 403
    topics = lab.node.catalog.topics
    assert {name: (len(topic.partitions), topic.config) for name, topic in topics.items()} == {
        "open": (1, {}),
        "shut": (1, {}),
    }


async def test_commands_say_who_they_are(lab: Lab) -> None:
    address = str(lab.node.addresses["console"])

    def topics(node: str, **environ: str | None) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["topic", "list", "--node", node], env=environ)
        return done.exit_code, done.output

    def run() -> None:
        nobody = {"ANABRANCH_USER": None, "ANABRANCH_PASSWORD": None}
        code, output = topics(f"http://{address}", **nobody)
        assert (code, "say who you are" in output) == (1, True)
        alice = {"ANABRANCH_USER": "alice", "ANABRANCH_PASSWORD": "wönder"}
        code, output = topics(f"http://{address}", **alice)
        assert (code, "open" in output) == (0, True)
        code, output = topics(f"http://alice:w%C3%B6nder@{address}", **nobody)
        assert (code, "open" in output) == (0, True)
        code, output = topics(f"http://{address}", ANABRANCH_USER="alice", ANABRANCH_PASSWORD=None)
        assert (code, "is to be in ANABRANCH_PASSWORD" in output) == (2, True)
        code, output = topics("http://alice:secret@127.0.0.1:1", **nobody)
        assert (code, "secret" in output) == (3, False)

    await asyncio.to_thread(run)


async def test_health_may_be_kept_from_strangers_and_anonymous_may_be_somebody(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path / "one", **{"auth.required": "true", "auth.open_health": "false"})
    try:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await lab.ask("GET", path, None))[0] == 401
            assert (await lab.ask("GET", path))[0] == 200
    finally:
        await lab.session.close()
        await lab.node.stop()
    lab = await open_lab(tmp_path / "two")
    try:
        assert (await lab.ask("GET", "/api/topics", None))[0] == 200
        assert (await lab.ask("GET", "/api/topics"))[0] == 200
        assert lab.doorman.asked == {"User:ANONYMOUS", "User:alice"}
        assert (await lab.ask("GET", "/api/topics", ("alice", "wrong")))[0] == 401
    finally:
        await lab.session.close()
        await lab.node.stop()


async def test_listeners_of_the_backend_that_nobody_asked_for_stay_closed(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path, **{"auth.required": "true", "listen.sbp-pd": "127.0.0.1:0"})
    try:
        assert lab.node.addresses.keys() == {"console", "sbp-pd"}
    finally:
        await lab.session.close()
        await lab.node.stop()
