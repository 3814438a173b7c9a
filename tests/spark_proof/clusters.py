"""The same query on a standalone master with two workers, on `local-cluster`, and through Spark Connect.

On the standalone cluster one of the workers, with its executor, is killed meanwhile; the other one does the rest.

`python -m tests.spark_proof.clusters`; `--only standalone` for one of them. Exit code 1 if a copy differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark

from tests.node_process import NodeProcess
from tests.ports import free_port
from tests.spark_pipeline.conftest import PIPELINE
from tests.spark_proof import victims
from tests.spark_proof.copied import Copy

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
KINDS = ("standalone", "local-cluster", "connect")


@contextlib.contextmanager
def processes(directory: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list of processes that end with the block."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def spark_class(directory: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a daemon of Spark's; the pip package has no scripts for it, but what they call."""
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_WORKER_DIR": str(directory / "work"),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        # Spark Connect's server looks for data sources in the directories of the path: an editable package is in none.
        "PYTHONPATH": str(ROOT),
    }
    with (directory / "daemons.log").open("ab") as log:
        return subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment
        )


def where(kind: str, directory: Path, started: list[subprocess.Popen[bytes]]) -> tuple[str, ...]:
    """Start what ``kind`` needs; gives the arguments of the query. Spark's own clients wait until it is there."""
    if kind == "local-cluster":
        return ("--master", "local-cluster[2,1,1024]")
    if kind == "standalone":
        master = f"127.0.0.1:{free_port()}"
        host, _, port = master.partition(":")
        package = "org.apache.spark.deploy"
        at = ("--host", host, "--port", port, "--webui-port", str(free_port()))
        started.append(spark_class(directory, f"{package}.master.Master", *at))
        for _ in range(2):
            size = ("--cores", "1", "--memory", "1g", "--host", host, "--webui-port", str(free_port()))
            started.append(spark_class(directory, f"{package}.worker.Worker", *size, f"spark://{master}"))
        return ("--master", f"spark://{master}")
    port = str(free_port())
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2,3]")
    settings = (f"spark.connect.grpc.binding.port={port}", "spark.python.unix.domain.socket.enabled=true")
    confs = [word for one in (*settings, "spark.ui.enabled=false") for word in ("--conf", one)]
    started.append(spark_class(directory, "org.apache.spark.deploy.SparkSubmit", *server, *confs, "spark-internal"))
    return ("--remote", f"sc://127.0.0.1:{port}")


def kill_worker(worker: subprocess.Popen[bytes], query: subprocess.Popen[bytes], copy: Copy) -> None:
    """kill -9 of a machine, so to speak: the cluster's worker and its executor, when a third was copied."""
    while copy.copied() < copy.records // 3:
        with contextlib.suppress(subprocess.TimeoutExpired):
            query.wait(0.1)
            return
    count = victims.kill([*victims.below(worker.pid), psutil.Process(worker.pid)])
    print(f"standalone: killed a worker and what it had started ({count}) with {copy.copied()} copied", flush=True)


def _told(log: Path) -> str:
    """What a query that failed has said last, without the stack of Spark's server below it."""
    return log.read_text(errors="replace").partition("JVM stacktrace")[0][-4000:]


def main() -> int:
    """Each kind copies a topic of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3_000)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--minutes", type=float, default=10.0, help="until a copy is given up")
    args = parser.parse_args()
    failed = False
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-clusters-") as scratch,
        NodeProcess(Path(scratch) / "node", listen=PIPELINE) as node,
    ):
        for kind in KINDS if args.only is None else (args.only,):
            directory = Path(scratch) / kind
            directory.mkdir()
            with processes(directory) as started:
                copy = Copy(node, directory, args.records)
                arguments = where(kind, directory, started)
                query = copy.query("--offsets", str(args.records // 10), *arguments)
                if kind == "standalone":
                    kill_worker(started[1], query, copy)
                code = query.wait(60 * args.minutes)
            differences = copy.differences() if code == 0 else [_told(copy.log)]
            failed = failed or bool(differences)
            print(f"{kind}: {'FAILED' if differences else f'{args.records} records copied'}", *differences, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
