"""A whole node, its log and its SQLite files in one schedule, and the power goes between any two system calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from msgspec import Struct, field

from anabranch_kit.errors import StoreError
from bridges.errors import LogError
from sbp_back.errors import SbpError
from tests.depth import examples, timeout
from tests.kafka_front.node_lab import log_of, serving
from tests.node_process import NodeProcess
from tests.power_trace import built, steps
from tests.sbp_back.range_server.store.power_loss import HOW, NAMES, Disk, Step, write_image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(timeout(300))]

RECORDS = 40


class Said(Struct):
    """What clients were told by some place in the trace, and which deletions they had asked for by then: of those that
    nobody was told of the topics may be there or not."""

    at: int
    made: set[str] = field(default_factory=set)
    going: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    retention: str | None = None
    records: int = 0
    committed: int = 0


class Run(Struct):
    steps: list[tuple[int, Step]]
    said: list[Said]

    def images(self, rng: Random, count: int, broken: frozenset[str] = frozenset()) -> Iterator[tuple[Said, Disk]]:
        """The disk at ``count`` places, and what was promised by then."""
        ends = [*sorted(rng.choices([at for at, _ in self.steps], k=count - 1)), self.steps[-1][0]]
        disk, done = Disk(broken), 0
        for end in ends:
            while done < len(self.steps) and self.steps[done][0] <= end:
                disk.apply(self.steps[done][1])
                done += 1
            yield [one for one in self.said if one.at <= end][-1], disk


def recorded(directory: Path, monkeypatch: pytest.MonkeyPatch, durability: str = "fsync") -> Run:
    """A node's life: topics, records, positions and deletions, each of which a client was told is done."""
    root, trace = directory / "root", directory / "trace"
    root.mkdir()
    library = built(directory)
    settings = {"sbp.durability": durability, "sbp.segment_bytes": "4MiB", "sbp.low_water_bytes": "1MiB"}
    node = NodeProcess(root / "data", settings=settings)
    node.log, node.ready_file = directory / "log", directory / "ready"
    said = [Said(0)]

    def told(**changes: object) -> None:
        latest = said[-1]
        known = {name: getattr(latest, name) for name in Said.__struct_fields__}
        said.append(Said(**{**known, **changes, "at": trace.stat().st_size}))

    with monkeypatch.context() as patched:
        for name, value in (("LD_PRELOAD", library), ("POWER_ROOT", root), ("POWER_TRACE", trace)):
            patched.setenv(name, str(value))
        node.start()
    try:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0})
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g"})
        for number in range(RECORDS):
            if number % 10 == 0:
                name = "t" if not number else f"other-{number}"
                admin.create_topics([NewTopic(name, 2, 1)])[name].result(20)
                told(made=said[-1].made | {name})
            producer.produce("t", b"%d" % number, partition=0)
            assert producer.flush(20) == 0
            told(records=number + 1)
            if number % 3 == 0:
                consumer.commit(offsets=[TopicPartition("t", 0, number + 1)], asynchronous=False)
                told(committed=number + 1)
            if number == 15:
                entry = ConfigEntry("retention.ms", "123456789", incremental_operation=AlterConfigOpType.SET)
                resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[entry])
                admin.incremental_alter_configs([resource])[resource].result(20)
                told(retention="123456789")
            if number % 10 == 5 and number > 10:
                name = f"other-{number - 5}"
                told(going=said[-1].going | {name})
                admin.delete_topics([name])[name].result(20)
                told(gone=said[-1].gone | {name})
        consumer.close()
        node.kill()
    finally:
        node.dispose()
    found = Run(list(steps(trace.read_bytes())), said)
    disk = Disk()
    for _, step in found.steps:
        disk.apply(step)
    image = disk.image(Random(0), "all", "all")
    for path in root.rglob("*"):
        if path.is_file() and not path.name.endswith("-shm"):
            assert image[str(path.relative_to(root))] == path.read_bytes(), f"what was written to {path} was not seen"
    return found


async def check(said: Said, directory: Path) -> None:
    """A node that starts on what was found keeps all that clients were told."""
    async with serving(directory) as node:
        topics = node.catalog.topics
        assert said.made - said.going <= set(topics), "a topic is lost"
        assert not said.gone & set(topics), "a deleted topic is back"
        if said.retention is not None:
            assert topics["t"].config.get("retention.ms") == said.retention, "a configuration is lost"
        if said.committed:
            committed = node.progress.front("kafka").committed("g", "t", 0)
            assert committed is not None
            assert committed.offset >= said.committed, "a committed position is lost"
        if said.records:
            log = log_of(node, "t")
            await log.ready()
            assert log.high_watermark >= said.records, "acknowledged records are lost"
            at = 0
            while at < said.records:
                at = (await log.read_batches(at, 1 << 20))[-1].end_offset


async def noticed(
    run: Run, directory: Path, seed: int, count: int, broken: frozenset[str] = frozenset()
) -> Exception | None:
    """What is found wrong in one of ``count`` states of the disk."""
    rng = Random(seed)
    for number, (said, disk) in enumerate(run.images(rng, count, broken)):
        data, names = (HOW[1], NAMES[1]) if number % 2 else (rng.choice(HOW), rng.choice(NAMES))
        place = directory / f"{seed}-{number}"
        place.mkdir()
        write_image(disk.image(rng, data, names), place)
        if not (place / "data").exists():
            assert not said.made
            continue
        try:
            await check(said, place)
        except (AssertionError, LogError, SbpError, StoreError, OSError) as error:
            error.add_note(f"seed {seed}, state {number}: data {data}, names {names}, clients were told {said}")
            return error
    return None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield recorded(tmp_path_factory.mktemp("run"), monkeypatch)


async def test_nothing_that_clients_were_told_is_lost_with_the_power(run: Run, tmp_path: Path) -> None:
    error = await noticed(run, tmp_path, 1, examples(24))
    if error is not None:
        raise error


def sites(run: Run, wanted: Callable[[str], bool]) -> frozenset[str]:
    found = frozenset(str(step[-1]) for _, step in run.steps if step[0] in ("flush", "sync", "sync_directory"))
    chosen = frozenset(filter(wanted, found))
    assert chosen, sorted(found)
    return chosen


@pytest.mark.parametrize(
    "left_out",
    ["flushed write of data/sbp/wal/", "flush of data/node.db-wal", "flush of data/sbp/pd.sqlite-wal"],
)
async def test_a_flush_that_is_left_out_is_noticed(run: Run, tmp_path: Path, left_out: str) -> None:
    broken = sites(run, lambda site: site.startswith(left_out))
    assert await noticed(run, tmp_path, 2, 12, broken) is not None


async def test_sqlite_that_does_not_flush_its_commits_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``PRAGMA synchronous = NORMAL``, which is what the node asks for where only its own death is survived."""
    weaker = recorded(tmp_path, monkeypatch, "os")
    assert await noticed(weaker, tmp_path, 3, 12) is not None
