"""What is built and released is whole, and says of which commit it is."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bridges import version

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]


def commit_of(directory: Path) -> str:
    asked = subprocess.run(["git", "-C", directory, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip("no checkout, or git does not trust it")
    return asked.stdout.strip()


def test_a_checkout_knows_its_commit_without_git() -> None:
    version.find_commit.cache_clear()
    assert version.find_commit() == commit_of(ROOT)


@pytest.mark.parametrize("state", ["a branch", "packed", "a commit", "a further work tree"])
def test_a_commit_is_read_from_any_state_of_a_checkout(tmp_path: Path, state: str) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True)

    git("init", "--initial-branch", "main/line")
    git("commit", "--allow-empty", "--message", "one")
    place = tmp_path
    if state == "packed":
        git("pack-refs", "--all")
    elif state == "a commit":
        git("checkout", "--detach")
    elif state == "a further work tree":
        place = tmp_path / "further"
        git("worktree", "add", "-b", "further", str(place))
    assert version.read_commit(place / ".git").strip() == commit_of(place)


def test_what_is_built_has_the_commit_in_it(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "bridges" / version.COMMIT).read_text().strip() == commit_of(ROOT)
    script = "from bridges.version import version_line; print(version_line())"
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert told.stdout == f"anabranch {version.VERSION} ({commit_of(ROOT)[:12]})\n"


def test_an_image_gets_every_package_and_its_build_steps() -> None:
    let_in = (ROOT / ".dockerignore").read_text().splitlines()
    needed = [*(package.removesuffix("*") for package in PACKAGES), "pyproject.toml", "setup.py"]
    assert [name for name in needed if f"!{name}" not in let_in] == []


def test_the_workflow_calls_what_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    called = re.findall(r"run: make ([a-z-]+)", workflow)
    assert called
    assert set(called) <= targets
    assert "run: .ci/run" in workflow


def test_the_changelog_has_this_version() -> None:
    assert re.search(rf"^## .*\b{re.escape(version.VERSION)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_every_promise_of_compatibility_names_tests_that_exist() -> None:
    text = (ROOT / "docs/releases.md").read_text()
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) >= 5
    assert [name for name in named if f"def {name}(" not in tests] == []
