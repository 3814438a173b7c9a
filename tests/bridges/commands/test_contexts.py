"""Contexts: addresses and logins of nodes that commands keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bridges.commands.cli import main
from bridges.commands.client import NodeClient
from bridges.commands.contexts import Context, choose

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command with contexts of its own, and expects its code."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NODE", "CONTEXT", "USER", "PASSWORD"):
        monkeypatch.delenv(f"ANABRANCH_{name}", raising=False)

    def run(*words: str, code: int = 0, stdin: str = "") -> Result:
        done = CliRunner().invoke(main, words, input=stdin, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    return run


def login(name: str, context: Context) -> str | None:
    return NodeClient(name, context)._login.get("Authorization")


def test_the_first_is_current_and_options_and_the_environment_come_first(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose(None, None) == ("", Context("http://127.0.0.1:8080"))
    run("context", "set", "one", "--node", "http://one:1")
    run("context", "set", "two", "--node", "http://two:2", "--user", "alice")
    assert choose(None, None) == ("one", Context("http://one:1"))
    run("context", "use", "two")
    monkeypatch.setenv("ANABRANCH_CONTEXT", "one")
    assert choose(None, None)[0] == "one"
    monkeypatch.setenv("ANABRANCH_NODE", "http://three:3")
    assert choose(None, None) == ("", Context("http://three:3"))
    assert choose(None, "two") == ("two", Context("http://two:2", "alice"))
    assert choose("http://four:4", "two") == ("", Context("http://four:4"))


def test_a_password_is_for_its_own_address_and_user_and_nobody_else_may_read_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("context", "set", "one", "--node", "http://one:1", "--user", "alice", "--password", "--json")
    told: dict[str, Any] = json.loads(run(*words, stdin="secret\n").stdout)
    assert told["keeps_password"]
    assert "secret" not in run("context", "list", "--json").stdout + run("context", "current").stdout
    (file,) = tmp_path.rglob("contexts.json")
    assert file.stat().st_mode & 0o777 == 0o600
    kept = login(*choose(None, None))
    assert kept is not None
    assert login(*choose("http://other:1", None)) is None
    monkeypatch.setenv("ANABRANCH_USER", "bob")
    monkeypatch.setenv("ANABRANCH_PASSWORD", "other")
    assert login(*choose(None, None)) != kept
    monkeypatch.delenv("ANABRANCH_USER")
    monkeypatch.delenv("ANABRANCH_PASSWORD")
    run("context", "set", "one", "--node", "http://elsewhere:1")
    assert choose(None, None)[1].password is None, "it was for the address before"
    run("context", "set", "one", "--node", "http://alice:secret@one:1", code=2)


def test_errors_name_the_context_and_the_address(run: Run) -> None:
    run("context", "set", "gone", "--node", "http://127.0.0.1:1")
    failed = run("topic", "list", "--json", code=3)
    assert "http://127.0.0.1:1 (context gone)" in json.loads(failed.stderr)["error"]
    run("context", "use", "nothing", code=2)
    assert "there is no context 'nothing'" in run("status", "--context", "nothing", code=2).stderr
    run("context", "delete", "gone")
    assert json.loads(run("context", "current", "--json").stdout)["node"] == "http://127.0.0.1:8080"


def test_a_file_that_is_none_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "anabranch").mkdir()
    (tmp_path / "anabranch" / "contexts.json").write_text("{")
    assert "contexts.json" in run("topic", "list", code=2).stderr
