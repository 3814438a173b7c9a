"""Runs librdkafka's own broker tests against a node of ours, or against Apache Kafka to know the ceiling.

    python tests/compat/librdkafka/run.py                  # our node, compared with allowlist.txt
    python tests/compat/librdkafka/run.py --broker kafka   # Apache Kafka
    python tests/compat/librdkafka/run.py --only 0012,0081

A few tests, those of logins among them, run a second time against a node of ours whose clients have to log in over TLS;
their names end with `@sasl_ssl`. Each test runs in a process of its own with a time limit. A test of the allowlist that
does not pass makes the run fail; a test that passes without being listed is reported, so that the list grows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.kafka_broker import kafka_cluster  # noqa: E402
from benchmarks.kafka_tools import install_distribution  # noqa: E402
from benchmarks.librdkafka import VERSION, install  # noqa: E402
from tests.certificates import Authority  # noqa: E402
from tests.compat.suites import read_list, run  # noqa: E402
from tests.node_process import NodeProcess  # noqa: E402

ALLOWLIST = HERE / "allowlist.txt"
REASONS = HERE / "reasons.txt"
LOCAL_FLAGS = ("TEST_F_LOCAL", "TEST_F_MANUAL", "TEST_F_SOCKEM")
DEFAULT_SECONDS = 180.0
# In the suite's quick mode these do nothing and call it passed, so they run whole.
SHARE_GROUPS = frozenset(f"{number:04}" for number in range(170, 187))
WHOLE = SHARE_GROUPS | {"0018", "0019", "0026", "0045", "0050", "0061", "0082", "0089", "0102", "0122", "0132", "0142"}
EMPTY_SECONDS = 0.001  # a broker test that took less has spoken to nobody
# These do more than the others; the limits are about four times what they need on an idle machine.
SECONDS = {"0045": 420.0, "0081": 420.0, "0056": 300.0, "0102": 300.0, "0113": 600.0, "0103": 420.0, "0132": 300.0}
SECONDS |= dict.fromkeys(SHARE_GROUPS, 420.0) | {"0174": 1500.0}
# Have many parts, and a limit of their own for all of them.
MULTIPLIERS = {"0170": 3.0, "0174": 3.0}

KAFKA_BROKERS = 3  # some tests create topics with three replicas
# What the suite asks of a broker, in each server's own words.
KAFKA_SETTINGS = {
    "num.partitions": "4",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "transaction.max.timeout.ms": "900000",
}
NODE_SETTINGS = {
    "kafka.num_partitions": "4",
    "kafka.group.initial_rebalance_delay_ms": "0",
    "kafka.group.min_session_timeout_ms": "1000",
    "kafka.group.share_min_record_lock_duration_ms": "1000",
    "auth.rules": "allow",
}
SECURED = "sasl_ssl"
"""Scenario of the second pass."""
SECURED_NUMBERS = frozenset(["0001", "0005", "0012", "0017", "0135", "0142"])
USER, PASSWORD = "suite", "let me in"
NO_AUTO_CREATION = {"kafka": {"auto.create.topics.enable": "false"}, "node": {"kafka.auto_create_topics": "false"}}


@dataclass(frozen=True, slots=True)
class Unit:
    """One process of the test-runner: all tests of one number and scenario."""

    number: str
    scenario: str
    names: tuple[str, ...]

    def told(self, name: str) -> str:
        """What one of its tests is called in lists."""
        return f"{name}@{SECURED}" if self.scenario == SECURED else name


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the tests go: address, and lines of configuration that their clients need besides."""

    bootstrap: str
    client: str = ""


@dataclass(slots=True)
class Outcome:
    """What became of one test: passed, failed, skipped, empty (did nothing), timeout or crashed; seconds; a reason."""

    name: str
    state: str
    seconds: float
    detail: str = ""


def broker_tests(source: str) -> list[Unit]:
    """The tests that need a broker, from the table in the test-runner's source."""
    table = source[source.index("struct test tests[] = {") :]
    table = table[: table.index("{NULL}")]
    units: dict[tuple[str, str], list[str]] = {}
    secured: dict[str, list[str]] = {}
    for entry in re.split(r"\b_TEST\(", table)[1:]:
        name = entry[: entry.index(",")].strip()
        if name.endswith("_mock"):
            continue  # speaks only to the library's own mock of a broker
        if any(flag + bad in entry for flag in LOCAL_FLAGS for bad in (",", ")", " ")):
            continue
        scenario = re.search(r'\.scenario\s*=\s*"([^"]*)"', entry)
        chosen = scenario.group(1).split(",")[0] if scenario else "default"
        number = name.split("_")[0]
        units.setdefault((number, chosen), []).append(name)
        if number in SECURED_NUMBERS and chosen == "default":
            secured.setdefault(number, []).append(name)
    found = [Unit(number, scenario, tuple(names)) for (number, scenario), names in sorted(units.items())]
    return found + [Unit(number, SECURED, tuple(names)) for number, names in sorted(secured.items())]


def _detail(output: str) -> str:
    """The first line that says why a test failed or was skipped."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    for pattern in (r"TEST FAILURE\s*\n#+[^\n]*\n?([^\n]*)", r'reason:\s*"?([^\n]*)', r"SKIPPING TEST: ([^\n]*)"):
        if found := re.search(pattern, plain):
            return found.group(1).strip()[:300]
    found_fail = re.search(r"(?:Test|TEST)[^\n]*(?:failed|FAIL)[^\n]*", plain)
    return found_fail.group(0).strip()[:300] if found_fail else ""


class Suite:
    """The built suite and how to call it."""

    def __init__(self, protocol: str, logs: Path, jobs: int, factor: float) -> None:
        self.library = install()
        self.distribution = install_distribution()
        self.protocol = protocol
        self.logs = logs
        self.jobs = jobs
        self.factor = factor
        self.units = broker_tests((self.library.tests / "test.c").read_text())

    def run(self, unit: Unit, broker: Broker) -> list[Outcome]:
        """Run one unit in a process group of its own, which is ended at its time limit."""
        bootstrap = broker.bootstrap
        stem = self.logs / f"{unit.number}-{unit.scenario}"
        config = stem.with_suffix(".conf")
        report = stem.with_suffix(".json")
        report.unlink(missing_ok=True)
        own = f"test.timeout.multiplier={MULTIPLIERS.get(unit.number, 1.0)}\n"
        config.write_text(f"metadata.broker.list={bootstrap}\ntest.topic.random=true\n{own}{broker.client}")
        environment = {
            **self.library.environment,
            "TESTS": unit.number,
            "TEST_KAFKA_VERSION": "4.2.0",
            "TEST_REPORT": str(report),
            "RDKAFKA_TEST_CONF": str(config),
            "KAFKA_PATH": str(self.distribution),
            "BROKERS": bootstrap,
            "TEST_CONSUMER_GROUP_PROTOCOL": self.protocol,
        }
        limit = SECONDS.get(unit.number, DEFAULT_SECONDS) * self.factor
        command = ["./test-runner", "-L", "-E", "-p1", "-s", "default" if unit.scenario == SECURED else unit.scenario]
        if unit.number not in WHOLE:
            command.append("-Q")
        began = time.monotonic()
        log = stem.with_suffix(".log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.library.tests,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit)
                ending = "crashed" if process.returncode < 0 else "failed"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                ending = "timeout"
        seconds = time.monotonic() - began
        text = log.read_text(errors="replace")
        try:
            states = json.loads(report.read_text(errors="replace"))["tests"]
        except (OSError, ValueError, KeyError):
            return [Outcome(unit.told(name), ending, seconds, _detail(text)) for name in unit.names]
        found = []
        for name in unit.names:
            state = states.get(name, {}).get("state", "FAILED").lower()
            state = {"running": "failed", "dns": "failed"}.get(state, state)
            took = float(states.get(name, {}).get("duration", seconds))
            if state == "passed" and took < EMPTY_SECONDS:
                state = "empty"
            found.append(Outcome(unit.told(name), state, took, "" if state == "passed" else _detail(text)))
        return found

    def run_all(self, units: list[Unit], broker: Broker) -> list[Outcome]:
        """Run units, ``jobs`` at a time, and say how each went as it ends."""

        def one(unit: Unit) -> list[Outcome]:
            outcomes = self.run(unit, broker)
            for outcome in outcomes:
                print(f"{outcome.state:8} {outcome.seconds:6.1f} s  {outcome.name}  {outcome.detail}", flush=True)
            return outcomes

        with ThreadPoolExecutor(self.jobs) as pool:
            return [outcome for outcomes in pool.map(one, units) for outcome in outcomes]

    def run_again(self, units: list[Unit], broker: Broker) -> dict[str, Outcome]:
        """Run units once more, one at a time; their outcomes by name, with a note that it was the second try."""
        repeated = {}
        for unit in units:
            for outcome in self.run(unit, broker):
                print(f"{outcome.state:8} {outcome.seconds:6.1f} s  {outcome.name}  (second try)", flush=True)
                outcome.detail = f"second try; {outcome.detail}"
                repeated[outcome.name] = outcome
        return repeated


@contextlib.contextmanager
def serving(kind: str, scenario: str, extra: dict[str, str], scratch: Path) -> Iterator[Broker]:
    """A broker of the kind asked for, set up for the scenario."""
    if kind not in ("node", "kafka"):
        yield Broker(kind)  # an address: somebody else's broker
        return
    settings = dict(KAFKA_SETTINGS if kind == "kafka" else NODE_SETTINGS)
    if scenario == "noautocreate":
        settings.update(NO_AUTO_CREATION[kind])
    settings.update(extra)
    directory = scratch / f"{kind}-{scenario}"
    if kind == "kafka":
        with kafka_cluster(directory, KAFKA_BROKERS, settings=settings) as bootstrap:
            yield Broker(bootstrap)
        return
    client = ""
    if scenario == SECURED:
        directory.mkdir(parents=True)
        authority = Authority(directory, "authority")
        cert, key = authority.issue("node")
        settings |= {"kafka.sasl_max_reauth_ms": "10s"}  # logins end, also those of tests that are not about them
        settings |= {"auth_required.kafka": "true", "tls.kafka.cert": str(cert), "tls.kafka.key": str(key)}
        add = [sys.executable, "-m", "bridges", "user", "add", USER, "--scram", "--data", str(directory / "data")]
        subprocess.run(add, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)
        client = (
            f"security.protocol=sasl_ssl\nssl.ca.location={authority.cert}\n"
            f"sasl.mechanism=SCRAM-SHA-256\nsasl.username={USER}\nsasl.password={PASSWORD}\n"
        )
    with NodeProcess(directory / "data", settings=settings) as node:
        yield Broker(node.bootstrap, client)


def table(outcomes: list[Outcome], broker: str, protocol: str) -> str:
    """The result as Markdown, with the reason of every test that did not pass."""
    reasons = read_list(REASONS)
    count = Counter(outcome.state for outcome in outcomes)
    summary = ", ".join(f"{number} {state}" for state, number in count.most_common())
    lines = [f"librdkafka tests of {VERSION} against {broker}, {protocol} groups: {summary}", ""]
    lines += ["| test | result | seconds | why |", "|---|---|---|---|"]
    for outcome in outcomes:
        why = (
            outcome.detail
            if outcome.state == "passed"
            else reasons.get(outcome.name, outcome.detail).replace("|", "\\|")
        )
        lines.append(f"| {outcome.name} | {outcome.state} | {outcome.seconds:.1f} | {why} |")
    return "\n".join(lines) + "\n"


def verdict(outcomes: list[Outcome], listed: set[str]) -> int:
    """Compare with the allowlist; returns the exit code."""
    state = {outcome.name: outcome.state for outcome in outcomes}
    broken = sorted(name for name in listed & state.keys() if state[name] != "passed")
    fresh = sorted(name for name, value in state.items() if value == "passed" and name not in listed)
    for name in broken:
        print(f"FAILURE: {name} is on the allowlist and {state[name]}")
    for name in fresh:
        print(f"passes and is not on the allowlist, add it: {name}")
    passed = sum(1 for value in state.values() if value == "passed")
    print(f"{passed} of {len(state)} passed, {len(broken)} of the allowlist did not")
    return 1 if broken else 0


def main() -> int:
    """Run the suite; exit code 0 when every listed test passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="node", help="node, kafka, or HOST:PORT of a running one")
    parser.add_argument("--only", default="", help="comma-separated test numbers")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--factor", type=float, default=1.0, help="multiplies every time limit")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic", help="group protocol")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="more broker settings")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "compat", help="logs and result table")
    args = parser.parse_args()
    wanted = {number for number in args.only.split(",") if number}
    output = args.output.resolve()
    logs = output / f"librdkafka-{args.broker.replace(':', '_')}-{args.protocol}"
    logs.mkdir(parents=True, exist_ok=True)
    suite = Suite(args.protocol, logs, args.jobs, args.factor)
    extra = dict(item.split("=", 1) for item in args.set)
    listed = set(read_list(ALLOWLIST))
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="librdkafka-suite-") as scratch:
        for scenario in ("default", "noautocreate", *([SECURED] if args.broker == "node" else [])):
            units = [u for u in suite.units if u.scenario == scenario and (not wanted or u.number in wanted)]
            if units:
                with serving(args.broker, scenario, extra, Path(scratch)) as broker:
                    found = suite.run_all(units, broker)
                    # Some tests depend on who joins a group first: a listed one gets a second try, alone.
                    again = {o.name for o in found if o.name in listed and o.state != "passed"}
                    repeated = suite.run_again([u for u in units if again & set(map(u.told, u.names))], broker)
                    outcomes += [repeated.get(outcome.name, outcome) for outcome in found]
    outcomes.sort(key=lambda outcome: outcome.name)
    result = output / f"{logs.name}.md"
    result.write_text(table(outcomes, args.broker, args.protocol))
    print(f"table: {result}")
    if args.broker != "node":
        print(f"{sum(1 for outcome in outcomes if outcome.state == 'passed')} of {len(outcomes)} passed")
        return 0
    return verdict(outcomes, listed)


if __name__ == "__main__":
    run(main)
