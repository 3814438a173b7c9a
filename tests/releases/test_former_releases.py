"""Data that clients of three protocols left with a former release is the same to clients of this one.

``tests/releases/write.py`` makes a file for each release.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path

import pytest
import ydb
from pravega_client import StreamManager

from tests.kit.wheel import read_events
from tests.node_process import NodeProcess
from tests.releases.write import NUMBERS, PATIENCE, kept_releases, node_on, read


@pytest.mark.slow
@pytest.mark.parametrize("kept", kept_releases(), ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_data_of_a_former_release_opens(kept: Path, tmp_path: Path) -> None:
    with tarfile.open(kept) as packed:
        packed.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    with node_on(tmp_path / "data") as node:
        assert read(node) == expected
        check_ydb(node)
        check_pravega(node)
        # What this release has made of it opens as well.
        node.restart(kill=True)
        assert expected["records"].items() <= read(node)["records"].items()  # Pravega's readers have made streams


def check_ydb(node: NodeProcess) -> None:
    """The writer goes on behind its last number, the reader behind its position."""
    with ydb.Driver(endpoint=f"grpc://{node.ydb}", database="/local") as driver:
        driver.wait(timeout=PATIENCE)
        with driver.topic_client.writer("messages", producer_id="tower") as writer:
            assert writer.wait_init().last_seqno == NUMBERS
        with driver.topic_client.reader("messages", "board") as reader:
            message = reader.receive_message(timeout=PATIENCE)
            assert (message.data, message.metadata_items) == (b"message 1", {"from": b"tower"})


def check_pravega(node: NodeProcess) -> None:
    streams = StreamManager(f"tcp://{node.addresses['pravega']}")
    reader = streams.create_reader_group("signs", "default", "events").create_reader("gate")
    events = asyncio.run(read_events(reader, NUMBERS))
    assert events == [f"event {number}".encode() for number in range(NUMBERS)]
    reader.reader_offline()
