"""Clients in other languages: driver programs that take commands as JSON lines and answer with JSON lines."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.api import ALL_ADMIN, Abilities, Client, ClientError, Got, GroupState, Rec, Shares
from tests.clients.sharing import PATIENCE_SECONDS

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".tools" / "clients"


class Driver:
    """A running driver program; one command at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors: deque[str] = deque(maxlen=100)
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def call(self, command: Mapping[str, Any]) -> Any:
        """Run one command. Raises ClientError when the client failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(2 * PATIENCE_SECONDS, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise AssertionError(f"the driver ended during {command['op']}:\n{''.join(self._errors)}")
        answer = json.loads(line)
        if answer.get("error") is not None:
            raise ClientError(answer["error"], answer.get("message", ""))
        return answer.get("result")

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()


def _b64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _unb64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _encode(records: Sequence[Rec]) -> list[dict[str, Any]]:
    return [
        {
            "key": _b64(record.key),
            "value": _b64(record.value),
            "headers": [[name, _b64(value)] for name, value in record.headers],
            "timestamp": record.timestamp,
        }
        for record in records
    ]


def _decode(records: Sequence[Mapping[str, Any]]) -> list[Got]:
    return [
        Got(
            key=_unb64(record["key"]),
            value=_unb64(record["value"]),
            headers=tuple((name, _unb64(value)) for name, value in record["headers"]),
            timestamp=record["timestamp"],
            partition=record["partition"],
            offset=record["offset"],
        )
        for record in records
    ]


class RemoteClient(Client):
    """A client library behind a driver program."""

    def __init__(self, bootstrap: str, name: str, abilities: Abilities, driver: Driver) -> None:
        super().__init__(bootstrap)
        self.name = name
        self.abilities = abilities
        self._driver = driver

    def _call(self, op: str, **arguments: Any) -> Any:
        return self._driver.call({"op": op, "bootstrap": self.bootstrap, **arguments})

    def produce(
        self, topic: str, partition: int, records: Sequence[Rec], *, codec: str = "none", idempotent: bool = False
    ) -> list[int]:
        offsets = self._call(
            "produce", topic=topic, partition=partition, records=_encode(records), codec=codec, idempotent=idempotent
        )
        return list(offsets)

    def consume(self, topic: str, counts: Mapping[int, int], *, starts: Mapping[int, int] | None = None) -> list[Got]:
        got = self._call("consume", topic=topic, counts=counts, starts=starts or {}, isolation="read_uncommitted")
        return _decode(got)

    def consume_group(self, group: str, topic: str, count: int, *, protocol: str = "classic") -> list[Got]:
        return _decode(self._call("consume_group", group=group, topic=topic, count=count, protocol=protocol))

    def share(self, group: str, topic: str, partitions: int, *, protocol: str = "classic") -> Shares:
        answer = self._call("share", group=group, topic=topic, partitions=partitions, protocol=protocol)
        first, second, after = (frozenset(part) for part in answer)
        return Shares(first, second, after)

    def transact(self, topic: str, transactional_id: str, rounds: Sequence[tuple[bool, Sequence[Rec]]]) -> None:
        encoded = [[commit, _encode(records)] for commit, records in rounds]
        self._call("transact", topic=topic, transactional_id=transactional_id, rounds=encoded)

    def consume_committed(self, topic: str, count: int) -> list[Got]:
        return _decode(self._call("consume", topic=topic, counts={0: count}, starts={}, isolation="read_committed"))

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        self._call("create_topic", topic=topic, partitions=partitions, config=dict(config or {}))

    def delete_topic(self, topic: str) -> None:
        self._call("delete_topic", topic=topic)

    def topics(self) -> list[str]:
        return list(self._call("topics"))

    def partition_count(self, topic: str) -> int:
        return int(self._call("partition_count", topic=topic))

    def config(self, topic: str) -> dict[str, str | None]:
        return dict(self._call("config", topic=topic))

    def set_config(self, topic: str, values: Mapping[str, str]) -> None:
        self._call("set_config", topic=topic, values=dict(values))

    def add_partitions(self, topic: str, total: int) -> None:
        self._call("add_partitions", topic=topic, total=total)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._call("delete_records", topic=topic, partition=partition, before=before)

    def offset(self, topic: str, partition: int, at: str | int) -> int:
        return int(self._call("offset", topic=topic, partition=partition, at=at))

    def groups(self) -> list[str]:
        return list(self._call("groups"))

    def describe_group(self, group: str) -> GroupState:
        state, members = self._call("describe_group", group=group)
        return GroupState(state, members)

    def committed(self, group: str, topic: str, partition: int) -> int:
        return int(self._call("committed", group=group, topic=topic, partition=partition))

    def delete_group(self, group: str) -> None:
        self._call("delete_group", group=group)


@dataclass(frozen=True, slots=True)
class Remote:
    """How to build and run one driver. ``build`` gets an empty directory and returns the command to run from it."""

    name: str
    marker: str
    sources: Sequence[Path]
    build: Callable[[Path], Sequence[str]]
    run: Callable[[Path], Sequence[str]]
    abilities: Abilities
    variant: str = ""

    def start(self) -> Driver:
        """Build the driver unless that was done from the same sources, and start it."""
        digest = hashlib.sha256(self.variant.encode())
        for source in self.sources:
            digest.update(source.read_bytes())
        built = CACHE / f"{self.name}-{digest.hexdigest()[:12]}"
        if not built.is_dir():
            CACHE.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=CACHE))
            try:
                command = self.build(scratch)
                done = subprocess.run(
                    command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
                )
                if done.returncode != 0:
                    raise AssertionError(f"building {self.name} failed:\n{done.stdout[-4000:]}")
                scratch.rename(built)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return Driver(self.run(built))


def _java(name: str, version: str, *, new_group_protocol: bool) -> Remote:
    pom = HERE / "java" / "pom.xml"

    def build(directory: Path) -> Sequence[str]:
        goals = ["compile", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        places = [f"-Dbuild.to={directory}", f"-DoutputDirectory={directory}/jars", f"-Dkafka.version={version}"]
        return ["mvn", "-B", "-q", "-f", str(pom), *goals, *places]

    def run(directory: Path) -> Sequence[str]:
        options = ["-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return ["java", *options, "-cp", f"{directory}/classes:{directory}/jars/*", "anabranch.tests.Driver"]

    return Remote(
        name=name,
        marker="java",
        sources=[pom, *sorted((HERE / "java" / "src").rglob("*.java"))],
        build=build,
        run=run,
        abilities=Abilities(admin=ALL_ADMIN, transactions=True, new_group_protocol=new_group_protocol),
        variant=version,
    )


def _go() -> Remote:
    source = HERE / "go"

    def build(directory: Path) -> Sequence[str]:
        return ["go", "build", "-C", str(source), "-o", f"{directory}/driver", "."]

    return Remote(
        name="franz-go",
        marker="go",
        sources=[source / "go.mod", source / "go.sum", source / "main.go"],
        build=build,
        run=lambda directory: [str(directory / "driver")],
        abilities=Abilities(admin=ALL_ADMIN, transactions=True),
    )


def _kafkajs() -> Remote:
    source = HERE / "node"
    names = ["package.json", "package-lock.json", "driver.js"]

    def build(directory: Path) -> Sequence[str]:
        for name in names:
            shutil.copy(source / name, directory)
        return ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]

    return Remote(
        name="kafkajs",
        marker="node",
        sources=[source / name for name in names],
        build=build,
        run=lambda directory: ["node", str(directory / "driver.js")],
        abilities=Abilities(
            null_headers=False,
            ordered_headers=False,
            admin=ALL_ADMIN,
            transactions=True,
        ),
    )


REMOTES = (
    _java("java-new", "4.4.0", new_group_protocol=True),
    _java("java-old", "3.4.1", new_group_protocol=False),
    _go(),
    _kafkajs(),
)
"""The newest Java client, the one inside Spark 3.5, franz-go and kafkajs."""
