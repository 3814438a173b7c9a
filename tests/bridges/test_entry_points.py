"""Entry points are those that importlib.metadata tells of."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from bridges.entry_points import EntryPoint, entry_points
from bridges.node.front import ENTRY_POINTS, installed

TEXT = "[other]\na = no:one\n\n[things]\n# none of them\nb = json:dumps\n a=json.decoder : JSONDecoder.decode [extra]\n"


def about(directory: Path, called: str, text: str = TEXT) -> None:
    place = directory / called
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {called.partition('-')[0]}\nVersion: 1\n")
    (place / "entry_points.txt").write_text(text)


def told(group: str) -> list[tuple[str, str]]:
    return sorted((point.name, point.value) for point in metadata.entry_points(group=group))


def test_of_everything_that_is_installed() -> None:
    groups = {point.group for one in metadata.distributions() for point in one.entry_points}
    assert {ENTRY_POINTS, "console_scripts"} <= groups
    for group in groups:
        assert [(point.name, point.value) for point in entry_points(group)] == told(group), group
    assert [front.name for front in installed()] == [name for name, _ in told(ENTRY_POINTS)]


def test_without_what_takes_long_to_import() -> None:
    program = "import sys, bridges.node.settings.config as c; c.schema(); print('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"


def test_of_two_of_one_distribution_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about(tmp_path / "one", "Thing_A-1.dist-info")
    about(tmp_path / "two", "thing.a-2.dist-info", "[things]\nz = never:seen\n")
    about(tmp_path / "two", "another.egg-info", "[things]\nc = json:loads\n")
    (tmp_path / "two" / "no-1.dist-info").write_text("no directory")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "one"), str(tmp_path / "missing"), str(tmp_path / "two")])
    assert [(point.name, point.value) for point in entry_points("things")] == told("things")
    assert [point.name for point in entry_points("things")] == ["a", "b", "c"]
    assert entry_points("thing") == []


@pytest.mark.parametrize("name", ["things.zip", "things.egg"])
def test_entry_points_are_found_in_archives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about(tmp_path / "sources", "thing-1.dist-info", TEXT)
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        for path in (tmp_path / "sources").rglob("*"):
            archive.write(path, path.relative_to(tmp_path / "sources"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / name)])
    assert [point.name for point in entry_points("things")] == ["a", "b"]


def test_of_finders_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Finder:
        @staticmethod
        def find_spec(*_: object) -> None:
            return None

        @staticmethod
        def find_distributions(*_: object) -> list[metadata.Distribution]:
            return [metadata.PathDistribution(tmp_path / "thing-1.dist-info")]

    about(tmp_path, "thing-1.dist-info")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert [point.name for point in entry_points("things")] == ["a", "b"]


def test_what_they_name() -> None:
    assert EntryPoint("a", "json.decoder : JSONDecoder.decode [extra]").load() is json.JSONDecoder.decode
    assert EntryPoint("b", "json").load() is json
    with pytest.raises(ImportError):
        EntryPoint("c", "json.none:what").load()
    with pytest.raises(AttributeError):
        EntryPoint("d", "json:none").load()
