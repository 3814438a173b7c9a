"""Safeguards are found by what they say, not by how they are written, and nothing else is taken for them."""

from __future__ import annotations

import ast

import pytest

from tests.left_out import replaced

SOURCE = """
async def require(self, slot):
    owner = await self.settled(slot)  # for as long as it takes
    if owner is None or self.is_away(
        owner
    ):
        raise NotOwner(slot)
    try:
        return owner.address
    except LookupError:
        return None

async def find(self, slot):
    return self.settled(slot)
"""


def changed(part: str, instead: str, within: str = "") -> str:
    return ast.unparse(replaced(SOURCE, part, instead, within))


@pytest.mark.parametrize(
    ("part", "instead", "gone", "there"),
    [
        ("owner is None or self.is_away(owner)", "False", "owner is None", "if False:\n        raise"),
        ("if owner is None or self.is_away(owner):", "if True:", "is_away", "if True:\n        raise"),
        ("raise NotOwner(slot)", "", "raise", "pass"),
        ("except LookupError:\n    return None", "except LookupError:\n    return 5", "return None", "return 5"),
        ("except LookupError:", "except ValueError:", "LookupError", "except ValueError:\n        return None"),
        ("self.is_away(...)", "True", "is_away", "owner is None or True"),
    ],
)
def test_a_part_is_replaced_whatever_its_layout(part: str, instead: str, gone: str, there: str) -> None:
    made = changed(part, instead)
    assert gone not in made
    assert there in made


def test_names_may_have_been_changed_since() -> None:
    made = changed("leader is None or self.is_away(leader)", "self.is_away(leader)")
    assert "if self.is_away(owner):" in made
    assert "def require(self, slot):\n    return" not in made
    assert "return 5" in changed("return self.settled(at)", "return 5")


def test_what_is_not_there_or_more_than_once_is_no_safeguard() -> None:
    with pytest.raises(AssertionError, match="0 places look like"):
        changed("owner is None and self.is_away(owner)", "False")
    with pytest.raises(AssertionError, match="2 places look like"):
        changed("self.settled(slot)", "None")
    assert "return None\n\n" in changed("self.settled(slot)", "None", "find") + "\n\n"
    with pytest.raises(AssertionError, match="nothing is left of"):
        changed("peer is None or they.know(peer)", "False")
    with pytest.raises(AssertionError, match="one is a head"):
        changed("if owner is None or self.is_away(owner):", "pass")
