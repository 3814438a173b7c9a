"""The session helper: its settings, and what it says where Spark cannot run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from spark_pipeline.core.errors import PipelineError
from spark_pipeline.spark.session import JavaMissing, refuse, require_java, session


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
