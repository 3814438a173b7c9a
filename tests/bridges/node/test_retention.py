"""What retention leaves alone for consumers that have not read it."""

from __future__ import annotations

import json
import time
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from bridges.catalog.config_types import InvalidConfig
from bridges.catalog.topics.config import RETAINED_FOR, TOPIC_CONFIGS, parse_retained_for, retained_for_text
from bridges.catalog.topics.topic import Import, Topic
from bridges.node.floors.retention import HandedOver, NeededByConsumers


class Log:
    """Ten records from offset 3 on, each written in the second of its offset."""

    topic, partition, log_start_offset = "t", 0, 3

    @property
    def upkeep(self) -> Log:
        return self

    def retention_offset(self, keep_ms: int, keep_bytes: int, now_ms: int) -> int | None:
        assert keep_bytes == -1
        older = min(10, (now_ms - keep_ms) // 1000)
        return older if older > 3 else None


def needed(consumers: dict[str, int], **committed: int) -> NeededByConsumers:
    positions = {(("consumers", name), "t", 0): SimpleNamespace(offset=offset) for name, offset in committed.items()}
    catalog: Any = SimpleNamespace(
        effective=lambda topic, key: {RETAINED_FOR: retained_for_text(consumers)}[key],
    )

    async def durable(*place: Any) -> Any:
        return positions.get(place)

    progress: Any = SimpleNamespace(durable=durable)
    return NeededByConsumers(catalog, progress)


@pytest.mark.parametrize(
    ("consumers", "committed", "now_ms", "first"),
    [
        ({}, {"a": 5}, 10_000, None),
        ({"a": 0}, {"a": 5, "b": 4}, 10_000, 5),
        ({"a": 0, "b": 0}, {"a": 5, "b": 4}, 10_000, 4),
        ({"a": 0}, {}, 1 << 60, 3),  # who has committed nothing reads from the beginning, however long that takes
        ({"a": 0}, {"a": 1}, 10_000, 3),
        ({"a": 4000}, {"a": 5}, 10_000, 6),  # what is older is not kept for it
        ({"a": 4000}, {"a": 8}, 10_000, 8),
        ({"a": 4000}, {}, 5_000, 3),
        ({"a": 4000, "b": 0}, {"a": 8, "b": 7}, 10_000, 7),
    ],
)
async def test_who_needs_what(
    consumers: dict[str, int], committed: dict[str, int], now_ms: int, first: int | None
) -> None:
    log: Any = Log()
    assert await needed(consumers, **committed).first(log, now_ms) == first


async def test_very_many_consumers() -> None:
    log: Any = Log()
    names = {f"c{number}": 0 for number in range(3000)}
    assert await needed(names, **dict.fromkeys(names, 9)).first(log, 10_000) == 9


def test_names_may_have_any_characters() -> None:
    waits = {"a,b=c": 0, 'quoted "name"': 7, "имя": 1}
    value = TOPIC_CONFIGS[RETAINED_FOR].canonical(retained_for_text(waits))
    assert dict(parse_retained_for(value)) == waits


@pytest.mark.parametrize(
    "value",
    ["", "a", "[]", "7", '{"a":-1}', '{"a":1.5}', '{"a":true}', '{"":1}', "[" * 100_000, json.dumps({"a": 2**63})],
)
def test_what_is_no_list_of_consumers(value: str) -> None:
    with pytest.raises(InvalidConfig):
        TOPIC_CONFIGS[RETAINED_FOR].parse(value)


def brought(name: str, handed_over_ms: int | None) -> Topic:
    return Topic(name, uuid.uuid4(), [], {}, 0, imported=Import("m", 0, 1, handed_over_ms))


def test_what_was_handed_over_is_left_alone_for_a_while_and_the_log_says_until_when(
    capfd: pytest.CaptureFixture[str],
) -> None:
    mine = Topic("mine", uuid.uuid4(), [], {}, 0)
    first, second, third = brought("a", 1_000), brought("b", None), brought("c", 90_000_000)
    kept = HandedOver(86_400_000)
    assert kept.find_released([mine, first, second], 2_000) == [mine]
    assert kept.find_released([mine, first, second], 86_400_999) == [mine]
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "retention does not act yet" in line]
    assert "1970-01-02T00:00:01+00:00" in line
    assert kept.find_released([mine, first, second, third], 86_401_000) == [mine, first], (
        "which is still being imported"
    )
    assert "1970-01-03T01:00:00+00:00" in capfd.readouterr().out
    assert HandedOver(0).find_released([mine, first, third], 90_000_000) == [mine, first, third]


def test_retention_of_a_fronts_own_is_told_what_to_leave_alone() -> None:
    now_ms = time.time_ns() // 1_000_000
    kept = HandedOver(3_600_000)
    assert not kept.holds(Topic("mine", uuid.uuid4(), [], {}, 0))
    assert kept.holds(brought("running", None))
    assert kept.holds(brought("young", now_ms - 60_000))
    assert not kept.holds(brought("old", now_ms - 7_200_000))
