"""The session helper: its settings, and what it says where Spark cannot run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.spark.session import JavaMissing, require_java, session, started
from spark_pipeline.spark.sink import refuse
from tests.node_process import NodeProcess


def fake_java(path: Path, says: str) -> Path:
    java = path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return path


def test_no_java_is_told_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="no java on the path: install openjdk-17-jre-headless"):
        session()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"JAVA_HOME = .* has no java"):
        require_java()


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ('openjdk version "1.8.0_392"', "is Java 8"),
        ('openjdk version "11.0.21" 2023-10-17', "is Java 11"),
        ("no words of a version", "does not tell its version"),
    ],
)
def test_a_java_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, sentence: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, says)))
    with pytest.raises(JavaMissing, match=sentence):
        require_java()


def test_a_java_that_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, 'openjdk version "17.0.9" 2023-10-17')))
    require_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path)


def test_a_setting_that_breaks_sinks_is_refused() -> None:
    name = "spark.sql.execution.arrow.compression.codec"
    with pytest.raises(PipelineError, match="lz4 breaks sinks"):
        refuse({name: "LZ4"})
    refuse({name: "zstd"})


def test_what_spark_had_no_time_to_start_is_begun_once_again(caplog: pytest.LogCaptureFixture) -> None:
    begun = []

    def fail(times: int, says: str) -> str:
        begun.append(says)
        if len(begun) <= times:
            raise RuntimeError(f"org.apache.spark.SparkException: {says}")
        return "done"

    assert started(lambda: fail(1, "Python worker failed to connect back.")) == "done"
    assert len(begun) == 2
    assert "once again" in caplog.text
    begun.clear()
    with pytest.raises(RuntimeError, match="connect back"):
        started(lambda: fail(2, "Python worker failed to connect back."))
    begun.clear()
    with pytest.raises(RuntimeError, match="something else"):
        started(lambda: fail(1, "something else"))
    assert len(begun) == 1


_tries: list[int] = []


@pytest.mark.spark
def test_a_test_with_spark_is_run_again_for_the_same_reason() -> None:
    _tries.append(1)
    if len(_tries) == 1:
        raise RuntimeError("Python worker failed to connect back")
    assert len(_tries) == 2


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_source_is_found_wherever_a_session_is_made(pipeline_node: NodeProcess, tmp_path: Path) -> None:
    """Outside of a checkout too, where the package is installed editable."""
    program = f"""
from spark_pipeline.spark.session import session, started

spark = session("elsewhere", "local[1]", {{"spark.ui.enabled": "false"}})
rows = spark.read.format("anabranch").option("endpoint", "anabranch://{pipeline_node.addresses["pipeline"]}")
print("rows:", started(lambda: rows.option("subscribe", "elsewhere").load().count()))
"""
    admin = AdminClient({"bootstrap.servers": pipeline_node.kafka})
    admin.create_topics([NewTopic("elsewhere", 1, 1)])["elsewhere"].result(30)
    producer = Producer({"bootstrap.servers": pipeline_node.kafka})
    for _ in range(3):
        producer.produce("elsewhere", b"value")
    assert producer.flush(30) == 0
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert "rows: 3" in done.stdout, done.stderr[-3000:]
