"""Backend processes whose data directory is removed while they run end with a sentence, and make nothing anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.external.cluster import SERVER_SETTINGS, Server


@pytest.mark.parametrize("replaced", [False, True])
def test_servers_without_their_data_directory_end(tmp_path: Path, replaced: bool) -> None:
    pd = Server("pd", tmp_path / "pd", [], SERVER_SETTINGS)
    with pd:
        server = Server("range-server", tmp_path / "rs", ["--pd", pd.address], SERVER_SETTINGS)
        with server:
            for one, lock in ((server, "LOCK"), (pd, "pd.lock")):
                shutil.rmtree(one.data)
                if replaced:
                    one.data.mkdir()
                    (one.data / lock).touch()
                assert one.process is not None
                assert one.process.wait(30) == 5
                said = one.log.read_text()
                assert f"data directory {one.data} was removed, or another one put in its place" in said
                assert "Traceback" not in said
                assert [left.name for left in one.data.iterdir()] == [lock] if replaced else not one.data.exists()
