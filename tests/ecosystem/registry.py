"""Apicurio Registry: schemas kept in a topic (its storage `kafkasql`), asked for as Confluent's clients ask."""

from __future__ import annotations

import json
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.java_server import SHORT_LIVED_JAVA, JavaServer, fetch_jars, free_port
from benchmarks.tools import TOOLS, making
from tests.ecosystem.application import Application
from tests.ecosystem.brokers import kill
from tests.ecosystem.passage import PATIENCE_S, WentWrong
from tests.node_process import NodeProcess

POM = Path(__file__).resolve().parent / "java" / "registry" / "pom.xml"
SCHEMAS = 120


def _program() -> Path:
    """The jar that runs, beside its libraries; unpacked once."""
    place = fetch_jars(POM, TOOLS / "registry")
    unpacked = place.with_name(place.name.replace("jars", "unpacked"))
    with making("java"):
        if not unpacked.is_dir():
            (archive,) = place.glob("*.tar.gz")
            scratch = unpacked.with_suffix(".part")
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
            scratch.rename(unpacked)
    (found,) = unpacked.glob("*-runner.jar")
    return found


class Registry(Application):
    """A process of it, at a port that it keeps."""

    started = "KafkaSQL storage bootstrapped"

    def __init__(self, directory: Path, server: str) -> None:
        super().__init__(directory, server)
        self.port = free_port()

    def command(self) -> Sequence[str]:
        options = {
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": self.server,
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
        }
        given = [f"-D{name}={value}" for name, value in options.items()]
        return ["java", "-Xmx512m", *SHORT_LIVED_JAVA, *given, "-jar", str(_program())]

    def call(self, method: str, path: str, body: object = None) -> Any:
        """What Confluent's interface answers; asked again while nobody does, or the server behind it is away."""
        data = None if body is None else json.dumps(body).encode()
        address = f"http://127.0.0.1:{self.port}/apis/ccompat/v7{path}"
        deadline = time.monotonic() + PATIENCE_S
        while True:
            asked = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
            try:
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                told = f"{method} {path}: {error.code} {error.read()[:500]!r}"
                if error.code < 500:
                    raise WentWrong(told) from None
            except OSError as error:
                told = f"{method} {path}: {error}"
            if time.monotonic() > deadline:
                raise WentWrong(told)
            time.sleep(0.2)


def _schema(number: int) -> dict[str, str]:
    fields = [{"name": f"field_{number}", "type": "string"}]
    return {"schema": json.dumps({"type": "record", "name": f"Record{number}", "fields": fields})}


def run(server: NodeProcess | JavaServer, directory: Path) -> str:
    """What was seen, in a line. Raises WentWrong, ServerFailed."""
    with Registry(directory / "registry", server.bootstrap) as registry:
        ids: list[int] = []
        for number in range(SCHEMAS):
            if number in (SCHEMAS // 4, 3 * SCHEMAS // 4):
                kill(registry)
            if number in (SCHEMAS // 2, 3 * SCHEMAS // 4):
                kill(server)
            found = registry.call("POST", f"/subjects/subject-{number % 40}/versions", _schema(number))
            ids.append(found["id"])
        kill(registry)
        if len(set(ids)) != SCHEMAS:
            raise WentWrong(f"{SCHEMAS} schemas have {len(set(ids))} ids")
        for number, one in enumerate(ids):
            told = registry.call("GET", f"/schemas/ids/{one}")["schema"]
            if json.loads(told) != json.loads(_schema(number)["schema"]):
                raise WentWrong(f"schema {one} is {told}, and was {_schema(number)}")
            again = registry.call("POST", f"/subjects/subject-{number % 40}", _schema(number))
            if (again["id"], again["version"]) != (one, number // 40 + 1):
                raise WentWrong(f"schema {one} of subject-{number % 40} is told as {again}")
        subjects = registry.call("GET", "/subjects")
        if len(subjects) != 40:
            raise WentWrong(f"40 subjects were made, {len(subjects)} are there")
    return f"{SCHEMAS} schemas of 40 subjects are what they were, each under its id"
