"""Archives in S3-compatible storage: each record once, whoever commits at the same time, as in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_pipeline.core.digest import digest
from spark_pipeline.core.errors import OptionError
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.core.rows import Columns
from spark_pipeline.endpoints.base import endpoint
from spark_pipeline.jobs.archive.command import command as archive_command
from spark_pipeline.jobs.archive.run import ArchiveRun
from spark_pipeline.jobs.archive.upkeep import compact, expire
from spark_pipeline.jobs.archive.verify import verify
from spark_pipeline.jobs.engine import LocalEngine
from spark_pipeline.lake.archive import Archive, Description
from spark_pipeline.lake.store import Store
from spark_pipeline.lake.table import Overtaken
from tests.spark_pipeline.lake.records import FLIGHTS, records, written
from tests.spark_pipeline.lake.s3_server import BUCKET, S3Server

pytestmark = pytest.mark.java
COLUMNS = Columns.select(headers=True)
END = 110


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as made:
        made.make_bucket()
        yield made


@pytest.fixture(autouse=True)
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log, in a directory."""
    place = tmp_path_factory.mktemp("source") / "log"
    log = Archive.make(str(place), Description(partitioning="none"))
    log.learn({FLIGHTS.topic: (FLIGHTS.partition,)})
    batch = records(0, END, every=timedelta(minutes=20), skip=9)
    log.records.commit(written(log.records, [batch], by="none"), {}, {FLIGHTS: END})
    return f"archive://{place}"


def description_of(kind: str, tmp_path: Path) -> Description:
    return Description(kind, catalog=f"sqlite:///{tmp_path}/catalog.db" if kind == "iceberg" else "")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_an_archive_in_s3(kind: str, source: str, tmp_path: Path) -> None:
    place = f"s3://{BUCKET}/{tmp_path.name}"
    description = description_of(kind, tmp_path)

    def run() -> ArchiveRun:
        return ArchiveRun(source, {}, place, (".*",), description, LocalEngine(2), step_offsets=60, piece_offsets=30)

    assert run().available_now().rows == END - 13
    assert run().available_now().steps == 0
    everything = OffsetRange(FLIGHTS.topic, FLIGHTS.partition, 0, END)
    here, there = (digest(endpoint(url).read(everything, COLUMNS)) for url in (source, f"archive+{place}"))
    assert here == there
    archive = Archive.open(place)
    done = compact(archive, LocalEngine(2))
    assert done.files_after < done.files_before
    gone = expire(archive, before=None, vacuum_before=datetime.now(UTC) + timedelta(hours=1))
    assert gone.vacuumed_files >= done.files_before
    report = verify(place, source, {}, [], 3, LocalEngine(2))
    assert report["equal"], report["differences"]
    assert report["records"] == END - 13


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_two_at_the_same_time_in_s3(kind: str, source: str, tmp_path: Path) -> None:
    place = f"s3://{BUCKET}/{tmp_path.name}"
    description = description_of(kind, tmp_path)
    others: list[str] = []

    def overtaken(step: str) -> None:
        if step == "records:before-commit" and not others:
            others.append(step)
            ArchiveRun(source, {}, place, (".*",), description, LocalEngine(1)).available_now()

    with pytest.raises(Overtaken):
        ArchiveRun(source, {}, place, (".*",), description, LocalEngine(1), crash=overtaken).available_now()
    assert others
    report = verify(place, source, {}, [], 2, LocalEngine(2))
    assert report["equal"], report["differences"]
    assert report["records"] == END - 13


def test_what_s3_says_is_told(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("s3://", "s3:///prefix", "ftp://host/x"):
        with pytest.raises(OptionError):
            Store.at(place)
    with pytest.raises(OptionError, match="catalog"):
        Archive.make(f"s3://{BUCKET}/{tmp_path.name}", Description("iceberg"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    result = CliRunner().invoke(archive_command, ["status", f"s3://{BUCKET}/nothing"])
    assert result.exit_code == 1
    assert "anabranch: " in result.output
