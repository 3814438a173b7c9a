"""Runs Apache Kafka's own integration tests against nodes of ours.

    python tests/compat/kafka_tests/run.py                          # every class of tests.txt
    python tests/compat/kafka_tests/run.py --only kafka.api.TransactionsTest
    python tests/compat/kafka_tests/run.py --only kafka.server.ProduceRequestTest --test testSimpleProduceRequest

The tests come from the test jars of Kafka's release on Maven Central. Two of their classes are replaced by ours of the
same names, which stand before the jars on the class path (`java/`): the base of the older tests, and the cluster of
those with `@ClusterTest`. Each cluster is one node, however many brokers the test asks for; this program starts it,
with the broker's properties as settings (`broker_settings.py`).

`tests.txt` has a line for every test of its classes: its name alone if it passes, and the reason after a colon if it
does not. The run fails if a test that should pass does not, if one passes that has a reason, and if either side misses
one.
"""

from __future__ import annotations

import argparse
import json
import re
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from tests.compat.kafka_tests.broker_settings import settings_for  # noqa: E402
from tests.compat.suites import read_list, run  # noqa: E402
from tests.drivers import java  # noqa: E402
from tests.node_process import NodeProcess  # noqa: E402

TESTS = HERE / "tests.txt"
PROGRAM = java("kafka-tests", HERE / "java" / "pom.xml", "org.junit.platform.console.ConsoleLauncher")
CLASS_SECONDS = 3600.0
"""A class of tests is ended when it takes longer."""


class NodeRequests(socketserver.StreamRequestHandler):
    """One connection from a test, which is one node: `start`, `stop`, and its end as the connection ends."""

    def handle(self) -> None:
        """Answer a line of JSON with a line of JSON until the test closes the connection."""
        node: NodeProcess | None = None
        with tempfile.TemporaryDirectory(prefix="kafka-tests-") as scratch:
            try:
                for line in self.rfile:
                    request = json.loads(line)
                    answer: dict[str, object] = {}
                    try:
                        if request["do"] == "stop" and node is not None:
                            node.stop()
                        else:
                            node = node or NodeProcess(
                                Path(scratch) / "data",
                                settings=settings_for(request["properties"]),
                                listen={"kafka": "127.0.0.1:0"},
                            )
                            node.start()
                            answer["port"] = node.port
                    except AssertionError as error:
                        answer["error"] = str(error)
                    self.wfile.write(json.dumps(answer).encode() + b"\n")
            finally:
                if node is not None:
                    node.dispose()


class NodeServer(socketserver.ThreadingTCPServer):
    """Starts nodes for tests, which ask for them on a port of loopback. Its end waits for the nodes'."""


def outcomes(report: Path) -> dict[str, tuple[str, str]]:
    """Return state (passed, failed, skipped) and first line of the error for each test of a JUnit report."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        # testX(String, String)[1]: the parameters' types say nothing, their number tells invocations apart.
        method = re.sub(r"\(.*?\)", "", case.get("name", ""))
        name = f"{case.get('classname')}#{method}"
        state, detail = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                state = "skipped" if child.tag == "skipped" else "failed"
                message = child.get("message") or (child.text or "").strip()
                detail = f"{child.get('type', '').rpartition('.')[2]} {message}".splitlines()[0][:300]
        found[name] = (state, detail)
    return found


def run_class(
    name: str,
    launcher: Sequence[str],
    port: int,
    logs: Path,
    methods: Sequence[str],
    running: set[subprocess.Popen[bytes]],
) -> dict[str, tuple[str, str]]:
    """Run one class in a JVM of its own, which is in ``running`` meanwhile."""
    selected = [f"--select-method={name}#{method}" for method in methods] or [f"--select-class={name}"]
    options = [
        "-Xmx1g",
        f"-Danabranch.runner={port}",
        "-Dorg.slf4j.simpleLogger.log.org.apache.kafka=error",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
    ]
    console = ["execute", *selected, "--include-classname=.*", "--details=tree", "--disable-banner"]
    console += [
        "--disable-ansi-colors",
        f"--reports-dir={logs / name}",
        "--config=junit.jupiter.extensions.autodetection.enabled=true",
    ]
    report = logs / name / "TEST-junit-jupiter.xml"
    report.unlink(missing_ok=True)
    # The last of two options counts: the launcher's own are for small programs.
    place = launcher.index("-cp")
    command = [*launcher[:place], *options, *launcher[place:], *console]
    with (logs / f"{name}.log").open("wb") as output:
        jvm = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        running.add(jvm)
        try:
            jvm.wait(CLASS_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{name} was ended after {CLASS_SECONDS:.0f} s")
            jvm.kill()
            jvm.wait()
        running.remove(jvm)
    return outcomes(report) if report.exists() else {}


def judge(found: Mapping[str, tuple[str, str]], expected: Mapping[str, str]) -> int:
    """Compare with the list; returns the exit code."""
    broken = 0
    for name in sorted(found.keys() | expected.keys()):
        state, detail = found.get(name, ("missing", ""))
        reason = expected.get(name)
        if state == "passed" and reason == "":
            continue
        if state in ("failed", "skipped") and reason:
            continue
        broken += 1
        if reason is None:
            print(f"FAILURE: {name} {state} and is not in tests.txt: {detail}")
        elif reason:
            print(f"FAILURE: {name} {state} and has a reason in tests.txt not to pass")
        else:
            print(f"FAILURE: {name} {state} and should pass: {detail}")
    return 1 if broken else 0


def table(found: Mapping[str, tuple[str, str]]) -> str:
    """Return the number of tests that passed and of all tests, by class, as Markdown."""
    total, passed = Counter[str](), Counter[str]()
    for name, (state, _) in found.items():
        total[name.partition("#")[0]] += 1
        passed[name.partition("#")[0]] += state == "passed"
    lines = ["| class | passed | of |", "|---|---|---|"]
    lines += [f"| `{name}` | {passed[name]} | {total[name]} |" for name in sorted(total)]
    return "\n".join([*lines, f"| all | {passed.total()} | {total.total()} |"]) + "\n"


def main() -> int:
    """Run the tests; exit code 0 when each did what the list says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated classes")
    parser.add_argument("--test", action="append", default=[], help="method of the class, with its parameters' types")
    parser.add_argument("--jobs", type=int, default=2, help="classes at the same time")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "compat", help="logs and result table")
    args = parser.parse_args()
    logs = args.output.resolve() / "kafka-tests"
    logs.mkdir(parents=True, exist_ok=True)
    expected = read_list(TESTS)
    classes = args.only.split(",") if args.only else list(dict.fromkeys(name.partition("#")[0] for name in expected))
    launcher = PROGRAM.command()
    found: dict[str, tuple[str, str]] = {}
    running: set[subprocess.Popen[bytes]] = set()
    with NodeServer(("127.0.0.1", 0), NodeRequests) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            run_one = partial(
                run_class,
                launcher=launcher,
                port=server.server_address[1],
                logs=logs,
                methods=args.test,
                running=running,
            )
            with ThreadPoolExecutor(args.jobs) as pool:
                try:
                    for ran in pool.map(run_one, classes):
                        for test, (state, detail) in sorted(ran.items()):
                            print(f"{state:8} {test}  {detail}", flush=True)
                        found |= ran
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    for jvm in list(running):
                        jvm.kill()
                    raise
        finally:
            server.shutdown()
    logs.with_suffix(".md").write_text(table(found))
    print(table(found))
    if args.test:
        return 0
    return judge(found, {name: why for name, why in expected.items() if name.partition("#")[0] in classes})


if __name__ == "__main__":
    run(main)
