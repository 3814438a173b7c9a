"""The contract for backends of others: what settings may choose, and what is found when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from bridges import backends, formats
from bridges.backends import Backend
from bridges.entry_points import EntryPoint
from bridges.errors import BatchInvalid
from bridges.formats import FORMATS, format_of
from bridges.formats.raw import RawFormat
from bridges.node import promises
from bridges.node.settings.config import load
from bridges.node.settings.sections import SettingsError

NUMBER = 7
"""No format of ours has it, and fronts may not."""


class Cellar(Backend):
    speaks = ("cellar", "1")
    appends_move = False
    limits = (backends.Limit("a cellar floods", chosen=True),)


class SeventhFormat(RawFormat):
    id = NUMBER  # type: ignore[assignment]


class Asked(list[str]):
    """Groups of entry points that were looked up."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """Another package is installed."""
    module = ModuleType("cellar")
    module.Cellar, module.Seventh = Cellar, SeventhFormat  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cellar", module)
    groups = Asked()

    def found(group: str) -> Sequence[EntryPoint]:
        groups.append(group)
        return {
            backends.ENTRY_POINTS: [EntryPoint("cellar", "cellar:Cellar")],
            formats.ENTRY_POINTS: [EntryPoint(str(NUMBER), "cellar:Seventh")],
        }[group]

    monkeypatch.setattr(backends, "entry_points", found)
    monkeypatch.setattr(formats, "entry_points", found)
    monkeypatch.setattr(formats, "_absent", set())
    yield groups
    FORMATS.pop(NUMBER, None)


def given(path: Path, **sbp: str) -> None:
    flags = {f"sbp.{name}": value for name, value in {"mode": "external", "pd": "a:1", **sbp}.items()}
    promised = promises.of_node(load(flags, environ={}, directory=path).settings.sbp)
    assert any(limit.sentence == "a cellar floods" and limit.chosen for limit in promised)
    assert any("its partitions take no appends" in limit.sentence for limit in promised)


def test_settings_choose_a_backend_that_is_installed(tmp_path: Path, asked: Asked) -> None:
    given(tmp_path, flavor="cellar", dialect="1")
    for flavor, dialect in (("attic", "1"), ("cellar", "0.2"), ("anabranch", "1")):
        with pytest.raises(SettingsError) as refused:
            given(tmp_path, flavor=flavor, dialect=dialect)
        assert f"no servers of sbp.flavor = {flavor} speak sbp.dialect = {dialect}" in str(refused.value)
        assert "there are anabranch with 0.2, cellar with 1" in str(refused.value)


def test_our_own_servers_need_no_look_at_what_is_installed(tmp_path: Path, asked: Asked) -> None:
    load({"sbp.mode": "external", "sbp.pd": "a:1"}, environ={}, directory=tmp_path)
    load({"listen.sbp-pd": "127.0.0.1:0"}, environ={}, directory=tmp_path)
    assert not asked


@pytest.mark.parametrize("value", ["no_such_module:Cellar", "cellar:Seventh", "cellar:Nothing"])
def test_a_backend_that_cannot_be_loaded_is_told_in_a_sentence(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setattr(backends, "entry_points", lambda group: [EntryPoint("cellar", value)])
    with pytest.raises(SettingsError, match=f"the backend 'cellar'.*{value}"):
        given(tmp_path, flavor="cellar", dialect="1")


def test_a_format_of_an_installed_package_is_loaded_when_it_is_met(asked: Asked) -> None:
    assert NUMBER not in FORMATS
    assert isinstance(format_of(NUMBER), SeventhFormat)
    assert format_of(NUMBER) is FORMATS[NUMBER]
    for _ in range(3):
        with pytest.raises(BatchInvalid):
            format_of(6)
    assert asked == [formats.ENTRY_POINTS] * 2, "a number that nobody knows is looked up once"
