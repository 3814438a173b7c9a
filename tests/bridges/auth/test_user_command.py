"""``anabranch user``, and a node that notices what it did."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from bridges.auth import Principal
from bridges.auth.tokens import TokenError
from bridges.commands.cli import main
from bridges.metric_text import render
from bridges.node.assembly import Node
from bridges.node.front import Front, Listener
from bridges.node.listening import CONSOLE
from bridges.node.settings.config import load
from bridges.node.settings.sections import SettingsError
from bridges.node.storage.backend import LISTENERS
from tests.kit.waiting import until_asked


def user(*arguments: str, password: bytes = b"", code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["user", *arguments], input=password, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def test_users_are_added_listed_changed_and_removed(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    file = tmp_path / "data" / "users.json"
    done = user("add", "alice", *data, password=b"wonder\n")
    assert done.stdout == f"added alice in {file}\n"
    added = user("add", "bob", "--scram", "--json", *data, password=b"builder")
    assert json.loads(added.stdout) == {"user": "bob", "scram": ["SCRAM-SHA-256", "SCRAM-SHA-512"]}
    listed = json.loads(user("list", "--json", *data).stdout)
    assert listed == [
        {"user": "alice", "scram": []},
        {"user": "bob", "scram": ["SCRAM-SHA-256", "SCRAM-SHA-512"]},
    ]
    before = file.read_bytes()
    user("passwd", "bob", *data, password=b"changed\r\n")
    assert file.read_bytes() != before
    assert json.loads(user("list", "--json", *data).stdout) == listed
    user("remove", "alice", *data)
    assert user("list", *data).stdout.splitlines()[1].startswith("bob ")
    for secret in (b"wonder", b"builder", b"changed"):
        assert secret not in file.read_bytes()


def test_what_makes_no_sense_is_refused_in_a_sentence(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    user("add", "alice", *data, password=b"wonder\n")
    assert "there is a user alice already" in user("add", "alice", *data, password=b"x\n", code=1).stderr
    assert "there is no user bob" in user("remove", "bob", *data, code=1).stderr
    assert "there is no user bob" in user("passwd", "bob", *data, password=b"x\n", code=1).stderr
    assert "cannot be a user's name" in user("add", "a b", *data, password=b"x\n", code=2).stderr
    assert "a password has" in user("add", "bob", *data, password=b"", code=2).stderr
    assert "not UTF-8" in user("add", "bob", *data, password=b"\xff\n", code=2).stderr
    (tmp_path / "users.json").write_text("{")
    assert "no file of users" in user("list", *data, code=1).stderr


def test_the_file_may_lie_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.json"
    user("add", "alice", "--set", f"auth.users_file={file}", password=b"wonder\n")
    assert file.exists()


async def test_a_node_knows_who_was_added_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    settings = load({"data_dir": str(tmp_path / "data")}, environ={}, directory=tmp_path, fronts=()).settings
    node = Node(replace(settings, listen=dict.fromkeys((*LISTENERS, CONSOLE), "off")))
    await node.start()
    try:
        assert await node.authenticator.verify("alice", "wonder") is None
        await asyncio.to_thread(user, "add", "alice", "--data", str(tmp_path / "data"), password=b"wonder\n")
        await until_asked(lambda: node.authenticator.verify("alice", "wonder"))
        token = node.authenticator.issue(Principal("User", "alice"), 60, "test")
        await asyncio.to_thread(user, "remove", "alice", "--data", str(tmp_path / "data"))
        await until_asked(lambda: node.authenticator.verify("alice", "wonder"), lambda found: found is None)
        with pytest.raises(TokenError):
            node.authenticator.check(token, "test")
        scraped = render(node.metrics).decode()
        assert 'anabranch_authentications_total{result="succeeded"}' in scraped
    finally:
        await node.stop()


async def test_a_node_does_not_start_with_users_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("{")
    settings = load({"data_dir": str(tmp_path)}, environ={}, directory=tmp_path, fronts=()).settings
    with pytest.raises(SettingsError, match="no file of users"):
        await Node(settings).start()


async def test_where_clients_must_say_who_they_are_no_listener_may_be_unable_to_ask(tmp_path: Path) -> None:
    class Mute(Front):
        name = "mute"
        listeners = (Listener("mute", 1),)

    flags = {"data_dir": str(tmp_path), "auth.required": "true"}
    settings = load(flags, environ={}, directory=tmp_path, fronts=(Mute,)).settings
    with pytest.raises(SettingsError, match=r"clients cannot log in at listener mute.*listen\.mute = off"):
        await Node(settings).start()
