"""A registry that is slow, down, or answers anything: what is asked of it, how often, and what is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from anabranch_kit.memory.budget import MemoryBudget
from bridges.console.schemas import registry as module
from bridges.console.schemas.registry import Registry, SchemaError
from tests.kit.clock import Clock
from tests.schema_registry import FakeRegistry, registry, silence


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with registry() as one:
        yield one


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


def ask(fake: FakeRegistry, clock: Clock, login: str = "", ca: str = "") -> Registry:
    budget = MemoryBudget(1 << 26, asyncio.get_running_loop().call_soon)
    return Registry(fake.url.replace("//", f"//{login}") + "/", ca, budget, clock)


async def test_a_schema_is_asked_for_once_with_all_that_it_refers_to(fake: FakeRegistry, clock: Clock) -> None:
    fake.register("a", '"int"')
    fake.register("b", '"long"', references=[{"name": "A", "subject": "a", "version": 1}])
    both = [{"name": "B", "subject": "b", "version": 1}, {"name": "A", "subject": "a", "version": 1}]
    number = fake.register("c", '"string"', references=both)
    asking = ask(fake, clock)
    found = await asyncio.gather(*(asking.find(number) for _ in range(5)))
    assert {one.number for one in found} == {0}
    assert (found[0].definition.text, list(found[0].definition.references)) == ('"string"', ["A", "B"])
    assert fake.asked == [f"/schemas/ids/{number}", "/subjects/b/versions/1", "/subjects/a/versions/1"]
    clock.now += 1e9
    await asking.find(number)
    assert len(fake.asked) == 3


async def test_a_guid_and_a_subject_are_asked_for_as_well(fake: FakeRegistry, clock: Clock) -> None:
    number = fake.register("a/b-value", '"int"')
    asking = ask(fake, clock)
    assert (await asking.find(UUID(int=number))).definition.text == '"int"'
    assert (await asking.find("a/b-value")).id == number
    newer = fake.register("a/b-value", '"long"')
    clock.now += module.PAUSE_S + 1
    assert (await asking.find("a/b-value")).id == newer


async def test_what_is_not_there_is_asked_for_again_after_a_pause(fake: FakeRegistry, clock: Clock) -> None:
    asking = ask(fake, clock)
    for _ in range(3):
        with pytest.raises(SchemaError, match="the schema registry has no /schemas/ids/1"):
            await asking.find(1)
    assert len(fake.asked) == 1
    fake.register("a", '"int"')
    clock.now += module.PAUSE_S + 1
    await asking.find(1)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda path: (500, b""), "has status 500"),
        (lambda path: (401, b""), "has status 401"),
        (lambda path: (302, b""), "has status 302"),
        (lambda path: (200, b" " * (2 << 20)), "has more than 1048576 bytes"),
        (silence(1.0), "no answer within 0.2 s"),
    ],
    ids=["fails", "refuses", "redirects", "huge", "slow"],
)
async def test_a_registry_that_fails_is_left_alone_for_a_while(
    fake: FakeRegistry, clock: Clock, monkeypatch: pytest.MonkeyPatch, fault: Any, reason: str
) -> None:
    if "no answer" in reason:
        monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    asking, fake.fault = ask(fake, clock), fault
    fake.register("a", '"int"')
    for number in (1, 2, 1):
        with pytest.raises(SchemaError, match=f"fails: .*{reason}"):
            await asking.find(number)
    assert len(fake.asked) == 1
    fake.fault = lambda path: None
    clock.now += module.PAUSE_S + 1
    await asking.find(1)


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b"{}", b'{"schema": 5}', b"[" * 100_000, b"\xff"])
async def test_nonsense_is_about_one_schema(fake: FakeRegistry, clock: Clock, body: bytes) -> None:
    fake.register("a", '"int"')
    asking, fake.fault = ask(fake, clock), lambda path: (200, body) if path.endswith("/2") else None
    with pytest.raises(SchemaError, match="answer about /schemas/ids/2 is none"):
        await asking.find(2)
    await asking.find(1)


async def test_references_have_an_end(fake: FakeRegistry, clock: Clock) -> None:
    for number in range(200):
        fake.register(
            f"s{number}",
            json.dumps(str(number)),
            "JSON",
            [{"name": f"n{number + 1}", "subject": f"s{number + 1}", "version": 1}],
        )
    asking = ask(fake, clock)
    with pytest.raises(SchemaError, match="refers to more than 100 others"):
        await asking.find(1)
    own = fake.register("own", '"x"', "JSON", [{"name": "own", "subject": "own", "version": 1}])
    assert list((await asking.find(own)).definition.references) == ["own"]


async def test_what_is_kept_has_bounds(fake: FakeRegistry, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 5)
    for number in range(10):
        fake.register("a", json.dumps({"type": "array", "items": "int", "doc": "x" * number}))
    asking = ask(fake, clock)
    for number in range(1, 11):
        await asking.find(number)
    assert [number for number in range(1, 11) if asking.find_kept(number) is not None] == [6, 7, 8, 9, 10]
    assert asking._size == asking._account.held == sum(one.size for one in asking._kept.values())


async def test_the_login_is_sent_to_the_registry_and_told_nobody(fake: FakeRegistry, clock: Clock) -> None:
    fake.register("a", '"int"')
    await ask(fake, clock, login="u:p%40@").find(1)
    fake.fault = lambda path: (401, b"") if path.endswith("/2") else None
    asking = ask(fake, clock, login=":t@")
    await asking.find(1)
    with pytest.raises(SchemaError) as refused:
        await asking.find(2)
    assert str(refused.value) == f"the schema registry {fake.url} fails: /schemas/ids/2 has status 401"
    assert fake.logins == {"Basic dTpwQA==", "Bearer t"}


async def test_a_file_of_authorities_that_is_missing_is_named(fake: FakeRegistry, clock: Clock) -> None:
    with pytest.raises(SchemaError, match=r"schemas\.ca = /missing: .* No such file"):
        await ask(fake, clock, ca="/missing").find(1)
