"""A node imports what its clients have use for: each of these packages costs a start time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from bridges.node.assembly import Node
from bridges.node.config import load

async def lived(path, opened):
    off = {f"listen.{name}": "off" for name in ("ydb", "pravega", "pravega-segmentstore")}
    flags = {"data_dir": path, **off, **{f"listen.{name}": "127.0.0.1:0" for name in opened}}
    node = Node(load(flags, environ={}, directory=Path(path).parent).settings)
    await node.start()
    started = sorted({name.partition(".")[0] for name in sys.modules} | {*sys.modules})
    reader, writer = await asyncio.open_connection(node.addresses["console"].host, node.addresses["console"].port)
    writer.write(b"GET /readyz HTTP/1.0\\r\\n\\r\\n")
    answer = (await reader.read()).decode()
    await node.stop()
    print("\\n" + json.dumps([started, answer]))

asyncio.run(lived(sys.argv[1], ["kafka", "console", "pipeline", "sbp-pd", "sbp-range-server"]))
"""

UNUSED = {
    "aiohttp": "the console and the pipeline: when somebody asks",
    "prometheus_client": "metrics: when somebody scrapes",
    "grpc": "of fronts that are off",
    "google": "protobuf, likewise",
    "kio": "the codec's layouts are files",
    "hypothesis": "what kio imports where it is installed",
    "rich": "what structlog imports where it is installed",
    "typing_extensions": "what msgspec does",
    "pyarrow": "for Spark",
    "pydantic": "pyiceberg brings it",
    "crc32c": "all but its extension",
    "importlib.metadata": "entry points are found without it",
    "tomllib": "settings in a file: where there is one",
    "sbp_back.client.foreign": "for servers of elastic-stream",
    "sbp_back.document.server": "the specification document's dialect",
    "sbp_back.document.v01": "likewise",
    "ydb_topic_front.serving": "a front that is off",
    "pravega_front.serving": "likewise",
    "spark_pipeline.node.serving": "when somebody asks",
}


def test_a_start_imports_nothing_that_nobody_has_asked_for(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "data")]
    told = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    started, answer = json.loads(told.splitlines()[-1])  # behind what it logs
    assert UNUSED.keys() & set(started) == set()
    assert {"kafka_front.serving", "bridges.console.door"} <= set(started)
    assert answer.startswith("HTTP/1.0 200 OK")
    assert json.loads(answer.partition("\r\n\r\n")[2])["ready"] is True


def test_who_has_use_for_rich_imports_it_as_ever() -> None:
    program = "import bridges, sys; assert 'rich' not in sys.modules; from rich.progress import Progress"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
