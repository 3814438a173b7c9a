"""The names of groups in order, in blocks."""

from __future__ import annotations

import random

import pytest

from bridges.catalog import group_names
from bridges.catalog.group_names import GroupNames
from bridges.catalog.views.groups import GroupName


def ordered(names: set[GroupName]) -> list[GroupName]:
    return sorted(names, key=lambda name: (name[1], name[0]))


@pytest.mark.parametrize("seed", range(5))
def test_names_that_come_and_go_stay_in_order_and_are_found_by_place(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_names, "BLOCK", 3)
    chance = random.Random(seed)
    all_names = [(space, f"g{number}") for space in ("a", "b") for number in range(30)]
    expected = set(chance.sample(all_names, 20))
    names = GroupNames(list(expected))
    for _ in range(500):
        name = chance.choice(all_names)
        if chance.random() < 0.5:
            names.add(name)
            expected.add(name)
        else:
            names.discard(name)
            expected.discard(name)
        skip, limit, descending = chance.randrange(25), chance.randrange(1, 9), chance.random() < 0.5
        whole = ordered(expected)[::-1] if descending else ordered(expected)
        assert len(names) == len(whole)
        assert list(names.walk(descending=descending)) == whole
        assert list(names.walk(name, descending=descending)) == [
            one for one in whole if (ordered({one, name})[0] == name) != descending and one != name
        ]
        assert names.page(skip, limit, descending=descending) == whole[skip : skip + limit]
    for name in all_names:
        names.discard(name)
    assert list(names.walk()) == names.page(0, 5) == []


@pytest.mark.parametrize("descending", [False, True])
def test_a_walk_goes_on_while_names_come_and_go(descending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_names, "BLOCK", 2)
    stays = [("s", f"stays{number:02}") for number in range(20)]
    names, met = GroupNames(stays), []
    for number, name in enumerate(names.walk(descending=descending)):
        met.append(name)
        names.add(("s", f"came{number:02}"))
        names.add(("s", f"stays{number:02}+"))
        names.discard(("s", f"came{number - 1:02}"))
        assert number < 200
    found = [name for name in met if name in set(stays)]
    assert found == (stays[::-1] if descending else stays)
