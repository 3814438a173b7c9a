"""A node whose data directory is removed while it runs ends with a sentence, and makes nothing anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bridges.auth.authenticator import Authenticator, AuthOptions
from tests.node_process import ANY, NodeProcess


@pytest.mark.parametrize("replaced", [False, True])
def test_a_node_without_its_data_directory_ends(tmp_path: Path, replaced: bool) -> None:
    node = NodeProcess(tmp_path / "data", listen={"console": ANY, "kafka": ANY})
    with node:
        shutil.rmtree(node.data)
        if replaced:
            node.data.mkdir()
            (node.data / "lock").touch()
        assert node.process is not None
        assert node.process.wait(30) == 5
        said = node.log.read_text()
    assert "was removed, or another one put in its place" in said
    assert "Traceback" not in said
    assert [one.name for one in node.data.iterdir()] == ["lock"] if replaced else not node.data.exists()


async def test_token_keys_that_somebody_has_taken_away_are_not_made_anew(tmp_path: Path) -> None:
    keys = tmp_path / "keys" / "token-keys.json"
    auth = Authenticator(AuthOptions(tmp_path / "users.json", keys))
    await auth.load()
    shutil.rmtree(keys.parent)
    await auth.refresh()
    assert not keys.parent.exists()
    auth.close()
