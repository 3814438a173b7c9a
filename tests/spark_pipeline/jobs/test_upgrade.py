"""``anabranch upgrade-to-cluster``: a node by itself becomes one of a cluster, with all that its clients know of it."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ydb
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from anabranch_kit.sql.schemas import Schemas
from bridges.node.settings.config import load
from sbp_back.range_server.store.upkeep.copying import Held
from spark_pipeline.core.throttle import Throttle
from spark_pipeline.jobs.upgrade.upgrade import Upgrade, UpgradeFailed
from tests.conftest import TEST_SETTINGS, NodeFactory
from tests.node_process import ANY, NodeFailed, NodeProcess
from tests.postgres import Postgres
from tests.pravega_front.controller_client import ControllerClient
from tests.s3_server import ACCESS, s3_server
from tests.spark_pipeline.jobs.upgrades import (
    IN_CLUSTER,
    LONG,
    PATIENCE,
    Alone,
    Found,
    RawKafka,
    all_records,
    await_commit,
    command,
    orders,
    position,
    report,
    settings_of,
    upgraded,
)


def cluster(factory: NodeFactory, data: Path, database: str, objects: str) -> list[NodeProcess]:
    """The node that was alone, and another one."""
    first = factory(data.name, settings=settings_of(database, objects), listen=IN_CLUSTER)
    return [first, factory("other", settings=settings_of(database, objects, 2), listen=IN_CLUSTER)]


def test_clients_of_all_protocols_find_in_the_cluster_what_the_node_had(
    tmp_path: Path, postgres: Postgres, node_factory: NodeFactory
) -> None:
    alone = Alone(tmp_path / "data", TEST_SETTINGS)
    database, objects = postgres.made(), f"file://{tmp_path}/bucket"
    try:
        alone.fill()
        before = all_records(alone.node)
        assert sum(map(len, before.values())) > 600
        alone.node.kill()
        found = report(upgraded(alone.node.data, settings_of(database, objects)))
        assert found["finished"]
        assert found["entries"] > 0

        nodes = cluster(node_factory, alone.node.data, database, objects)
        for node in nodes:
            assert all_records(node) == before
        assert position(nodes[1], "readers", "orders", 2) == 41
        raw = RawKafka(nodes[0], "money")
        assert raw.produce(alone.producer, 1) == (0, alone.once)
        assert raw.produce(alone.producer, 2)[0] == 0
        raw.close()
        for transactional in ("hanging", "mover"):
            producer = Producer({"bootstrap.servers": nodes[1].kafka, "transactional.id": transactional, **LONG})
            producer.init_transactions(PATIENCE)
            producer.begin_transaction()
            producer.produce("money", f"again {transactional}".encode(), partition=0)
            producer.commit_transaction(PATIENCE)
        values = [row[2] for row in all_records(nodes[0])["money/0"][1:]]
        assert values == [b"move 0", b"move 2", b"once 0", b"once 1", b"once 2", b"again hanging", b"again mover"]

        with ydb.Driver(endpoint=f"grpc://{nodes[1].ydb}", database="/local") as driver:
            driver.wait(timeout=PATIENCE, fail_fast=True)
            Alone.write_flights(driver, 20)  # again: its client does not know yet that it is there
            Alone.write_flights(driver, 21, 22)
            with driver.topic_client.reader("flights", "readers") as reader:
                read: list[bytes] = []
                while b"flight 22" not in read:
                    batch = reader.receive_batch(timeout=PATIENCE)
                    assert batch is not None
                    read += [one.data for one in batch.messages]
        assert [row[2] for row in all_records(nodes[0])["flights/0"][1:]] == [b"flight %d" % n for n in range(1, 23)]
        assert read == [b"flight %d" % n for n in range(alone.read + 1, 23)]

        calls = ControllerClient(nodes[0].addresses["pravega"])
        await_commit(calls, alone.txn)
        calls.close()
        events = [row[2] for name, rows in all_records(nodes[1]).items() if "events" in name for row in rows[1:]]
        assert events.count(b"in the transaction") == 2
        assert events.count(b"before the scale") == 1
    finally:
        alone.node.dispose()


@pytest.fixture
def small(tmp_path: Path) -> NodeProcess:
    """A node by itself that has some records, and has ended."""
    node = NodeProcess(tmp_path / "data", settings=TEST_SETTINGS)
    with node.lent():
        admin = AdminClient({"bootstrap.servers": node.kafka})
        for future in admin.create_topics([NewTopic("orders", 3, 1)]).values():
            future.result(PATIENCE)
        orders(node, "first", 60)
        node.kill()
    return node


def in_cluster(node: NodeProcess, settings: dict[str, str]) -> NodeProcess:
    listen = dict.fromkeys(("kafka", "console", "cluster", "sbp-pd", "sbp-range-server"), ANY)
    return NodeProcess(node.data, settings={**TEST_SETTINGS, **settings}, listen=listen)


def await_end_of(node: NodeProcess) -> None:
    """Of workers, too, which the kernel ends with their parent: whoever gets the lock knows that all have."""
    with (node.data / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def read_alone(node: NodeProcess) -> Found:
    with node.lent():
        return all_records(node)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_an_upgrade_that_is_killed_anywhere_is_finished_by_the_next(
    tmp_path: Path, postgres: Postgres, small: NodeProcess, every: int
) -> None:
    before = read_alone(small)
    original = tmp_path / "original"
    shutil.copytree(small.data, original)

    def killed(step: str, number: int) -> tuple[int, str]:
        settings = settings_of(databases[number], f"file://{tmp_path}/bucket{number}")
        argv = command(small.data, settings)[3:]
        run = [sys.executable, "-m", "tests.spark_pipeline.jobs.upgrade_killed", step, *argv]
        done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    databases = [postgres.made()]
    code, told = killed("none", 0)
    assert code == 0, told
    steps, ends = map(int, told.partition("steps: ")[2].split()[:2])
    # Some of those that copy, and all of the end, where things are renamed.
    chosen = [*map(str, range(3, steps - ends, (steps - ends) // 4)), *(f"end{n}" for n in range(1, ends + 1))][::every]
    for number, step in enumerate(chosen, 1):
        databases.append(postgres.made())
        shutil.rmtree(small.data)
        shutil.copytree(original, small.data)
        code, told = killed(step, number)
        assert code == -9, f"step {step}: {told}"
        settings = settings_of(databases[number], f"file://{tmp_path}/bucket{number}")
        marked = (small.data / "cluster").exists()
        # Never both: whoever has the metadata has the directory named, and what is left there is known to be a node's.
        assert marked or not Schemas(settings["cluster.database"]).exists("anabranch")
        assert (small.data / "node.db").exists() or not (small.data / "sbp" / "wal").exists()
        if marked:  # nobody serves it alone any more
            with pytest.raises(NodeFailed, match=r"upgrade-to-cluster|start the node with cluster\.database"):
                small.start()
        assert report(upgraded(small.data, settings))["finished"]
        assert sorted(one.name for one in (small.data / "single-node").iterdir())[0] == "node.db"
        if number % 6 == 0 or number == len(chosen):
            assert read_alone(in_cluster(small, settings)) == before
    assert (small.data / "sbp" / "objects").is_dir()
    assert report(upgraded(small.data, settings))["finished"]  # nothing is left to be done
    assert (small.data / "sbp" / "objects").is_dir()


def test_what_the_node_did_after_an_upgrade_that_was_ended_is_taken_along(
    tmp_path: Path, postgres: Postgres, small: NodeProcess
) -> None:
    settings = settings_of(postgres.made(), f"file://{tmp_path}/bucket")
    run = [sys.executable, "-m", "tests.spark_pipeline.jobs.upgrade_killed", "switch"]
    done = subprocess.run([*run, *command(small.data, settings)[3:]], timeout=120, check=False)
    assert done.returncode == -9
    (small.data / "cluster").unlink(missing_ok=True)
    with small.lent():
        admin = AdminClient({"bootstrap.servers": small.kafka})
        for future in admin.delete_records([TopicPartition("orders", 0, 7)]).values():
            future.result(PATIENCE)
        orders(small, "second", 60)
        before = all_records(small)
    assert report(upgraded(small.data, settings))["finished"]
    assert read_alone(in_cluster(small, settings)) == before


def test_what_cannot_be_taken_along_is_refused_in_a_sentence_and_nothing_is_changed(
    tmp_path: Path, postgres: Postgres, small: NodeProcess
) -> None:
    database = postgres.made()
    settings = settings_of(database, f"file://{tmp_path}/bucket")

    def refused(given: dict[str, str], code: int, *words: str, data: Path = small.data) -> None:
        done = upgraded(data, given)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        for word in words:
            assert word in done.stderr

    refused(settings | {"cluster.database": ""}, 2, "cluster.database is not set")
    refused(settings | {"sbp.durability": "fsync"}, 2, "sbp.durability=object")
    refused(settings, 1, "no directory", data=tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    refused(settings, 1, "no node.db", data=tmp_path / "empty")
    refused(settings | {"cluster.database": "postgresql://nobody@127.0.0.1:1/none"}, 1, "cannot use cluster.database")
    before = read_alone(small)
    with small.lent():
        refused(settings, 1, "is in use")
    # Another cluster's database, and another one's bucket.
    other = settings_of(postgres.made(), f"file://{tmp_path}/other")
    with in_cluster(NodeProcess(tmp_path / "stranger"), other).lent():
        pass
    refused(settings | {"cluster.database": other["cluster.database"]}, 1, "metadata of cluster", "already")
    refused(settings | {"sbp.objects": other["sbp.objects"]}, 1, "belongs to cluster")
    assert not (small.data / "cluster").exists()
    assert read_alone(small) == before
    assert report(upgraded(small.data, settings))["finished"]
    with pytest.raises(NodeFailed, match=r"start the node with cluster\.database"):
        small.start()
    # A copy from before, and the cluster's bucket without its database.
    shutil.copytree(small.data / "single-node", tmp_path / "again")
    refused(settings, 1, "metadata of cluster", data=tmp_path / "again")
    refused(settings | {"cluster.database": postgres.made()}, 1, "which is complete", data=tmp_path / "again")


def test_damage_is_named_and_nothing_is_claimed(tmp_path: Path, postgres: Postgres, small: NodeProcess) -> None:
    with small.lent():  # ends in order, so that only who reads the entry meets it
        assert small.terminate() == 0
    (segment,) = (small.data / "sbp" / "wal").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(b"first 31 ")] ^= 1
    segment.write_bytes(content)
    settings = settings_of(postgres.made(), f"file://{tmp_path}/bucket")
    done = upgraded(small.data, settings)
    assert done.returncode == 1
    assert "partition 1 of topic orders" in done.stderr
    assert "is damaged" in done.stderr
    assert not Schemas(settings["cluster.database"]).exists("anabranch")
    assert not (small.data / "cluster").exists()
    assert (small.data / "node.db").exists()


def test_a_copy_that_is_not_the_same_is_made_again_and_then_refused(
    tmp_path: Path, postgres: Postgres, small: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(
        settings_of(postgres.made(), f"file://{tmp_path}/bucket") | {"data_dir": str(small.data)}, environ={}
    ).settings
    digests = Upgrade._digests
    wrong: Iterator[bool] = iter(())

    async def changed(self: Upgrade, held: Held, *, told: bool = True) -> dict[int, tuple[int, bytes]]:
        found = await digests(self, held, told=told)
        if told or not found or not next(wrong, False):
            return found
        return {number: (count, bytes(len(digest))) for number, (count, digest) in found.items()}

    monkeypatch.setattr(Upgrade, "_digests", changed)
    upgrade = Upgrade(settings, Throttle(None), lambda *_: None)
    wrong = itertools.repeat(True)
    with pytest.raises(UpgradeFailed, match=r"partition . of topic orders is not what was copied"):
        asyncio.run(upgrade.run())
    assert not (small.data / "cluster").exists()
    wrong = iter((True, False))
    found = asyncio.run(upgrade.run())
    assert found["finished"]
    assert found["copied_bytes"] > 0  # it was there, and one was copied anew


def test_workers_of_one_machine_become_one_node(tmp_path: Path, postgres: Postgres, node_factory: NodeFactory) -> None:
    node = node_factory("data", settings={"node.workers": "2", "node.worker_port_step": "0"})
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for future in admin.create_topics([NewTopic("orders", 3, 1)]).values():
        future.result(PATIENCE)
    orders(node, "first", 60)
    node.restart()
    orders(node, "second", 60)
    before = all_records(node)
    node.kill()
    await_end_of(node)
    assert (node.data / "sbp-1" / "wal").exists()
    settings = settings_of(postgres.made(), f"file://{tmp_path}/bucket")
    assert report(upgraded(node.data, settings))["finished"]
    found = in_cluster(node, settings)
    with found.lent():
        assert all_records(found) == before
        orders(found, "third", 60)
        assert sum(map(len, all_records(found).values())) == 3 + 180


@pytest.mark.go
@pytest.mark.slow
def test_the_bucket_may_be_one_of_s3(
    tmp_path: Path, postgres: Postgres, small: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_alone(small)
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    with s3_server(tmp_path / "store") as endpoint:
        for name, value in {**ACCESS, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        settings = settings_of(postgres.made(), "s3://bucket/prefix")
        assert report(upgraded(small.data, settings, "--throttle", "1MB/s"))["finished"]
        assert read_alone(in_cluster(small, settings)) == before
