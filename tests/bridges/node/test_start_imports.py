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
from bridges.node.settings.config import load

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

WITHOUT_THE_ADD_ON = """
import asyncio, json, sys
from pathlib import Path

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition("sbp_document")[1]:
            raise ImportError(name + " is not installed")

sys.meta_path.insert(0, Blocker())

from bridges.backends import BackendError, installed
from bridges.formats import FormatId, decode
from bridges.formats.kafka import encode
from bridges.formats.records import Record
from bridges.log.partition.partition_log import Batch
from bridges.node.assembly import Node
from bridges.node.settings.config import load

async def append(log, payload, count, format_id):
    done = asyncio.get_running_loop().create_future()
    batch = Batch(payload, count, format_id, 5)
    log.append(batch, lambda at, error: done.set_result(at) if error is None else done.set_exception(error))
    await done

async def bodies(log):
    return [one.value.decode() for batch in await log.read_batches(0, 1 << 20) for one in decode(batch)]

async def lived(path):
    listen = ("kafka", "ydb", "pravega", "pravega-segmentstore", "console", "pipeline", "sbp-pd", "sbp-range-server")
    at = {f"listen.{name}": "127.0.0.1:0" for name in listen}
    settings = load({"data_dir": path, **at}, environ={}, directory=Path(path).parent).settings
    node = Node(settings)
    await node.start()
    await node.catalog.create_topic("orders", 1)
    log = node.logs.get("orders", 0)
    kafka = encode([Record(b"k", b"kafka's", timestamp=5)])
    await append(log, kafka, 1, int(FormatId.KAFKA))
    first = await bodies(log)
    await node.stop()
    node = Node(settings)
    await node.start()
    log = node.logs.get("orders", 0)
    await log.ready()
    again = await bodies(log)
    await node.stop()
    try:
        installed()
        refused = ""
    except BackendError as error:
        refused = str(error)
    print("\\n" + json.dumps([first, again, refused]))

asyncio.run(lived(sys.argv[1]))
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
    "psycopg": "PostgreSQL: of nodes of a cluster",
    "bridges.cluster.peers.peers": "talking to other nodes: where there are some",
    "bridges.cluster.service": "likewise",
    "bridges.log.remote.forwarded_appends": "likewise",
    "bridges.log.remote.log_elsewhere": "likewise",
    "sbp_back.range_server.object_log": "logs in objects, and old data that moves there",
    "sbp_document": "servers that are not Anabranch's, and their dialects",
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


def test_a_node_lives_without_the_specification_document(tmp_path: Path) -> None:
    """As it does by default."""
    command = [sys.executable, "-c", WITHOUT_THE_ADD_ON, str(tmp_path / "data")]
    told = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    first, again, refused = json.loads(told.splitlines()[-1])
    assert first == again == ["kafka's"]
    assert "sbp_document is not installed" in refused


def test_who_has_use_for_rich_imports_it_as_ever() -> None:
    program = "import bridges, sys; assert 'rich' not in sys.modules; from rich.progress import Progress"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
