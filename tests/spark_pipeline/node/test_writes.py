"""Exactly once for sinks, without Spark: attempts, commits, aborts, repetitions, and what happens in between."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from bridges.auth import Operation, Principal, Resource
from bridges.auth.passwords import Cost, PasswordHash
from bridges.auth.users import User, change
from bridges.catalog.views.transactions import TransactionNotFound
from spark_pipeline.core.client.node_client import NodeClient, NodeError, NodeOptions
from spark_pipeline.core.client.sink_client import SinkBatch, SinkDriver, SinkTask, TakesRecords, Written
from spark_pipeline.core.encoding.kafka import EncodedBatch
from spark_pipeline.node.sinks import attempts as write_attempts
from spark_pipeline.node.sinks import routes as write_routes
from spark_pipeline.node.sinks import tables as write_tables
from spark_pipeline.node.sinks import writes
from tests.spark_pipeline.node.pipeline_lab import Lab, batch_of, client_of, committed, node_of, open_lab


def task_of(client: NodeClient, batch: SinkBatch, task: int = 0, timeout_ms: int = 60_000) -> SinkTask:
    return SinkTask(client, batch, task, timeout_ms=timeout_ms, request_bytes=1 << 20)


def write(client: NodeClient, batch: SinkBatch, task: int, places: Sequence[tuple[str, int, EncodedBatch]]) -> Written:
    attempt = task_of(client, batch, task)
    if not attempt.begin():
        return Written(None, sum(place[2].count for place in places), committed=True)
    for place in places:
        attempt.add(*place)
    return attempt.finish()


async def settled(lab: Lab, *places: tuple[str, int]) -> None:
    """No transaction is open there."""
    for place in places or (("t", 0), ("t", 1)):
        log = lab.log(*place)
        await log.until(lambda log=log: not log.state.transactions.open)  # type: ignore[misc]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = await open_lab(tmp_path)
    await made.node.catalog.create_topic("t", 2)
    yield made
    await made.close()


FIRST = SinkBatch("query", 0)


async def test_a_batch_is_seen_when_it_is_committed_and_not_before(lab: Lab) -> None:
    written = await lab.ask(
        write,
        lab.client,
        FIRST,
        0,
        [("t", 0, batch_of(b"a", b"b")), ("t", 1, batch_of(b"c")), ("t", 0, batch_of(b"d"))],
    )
    assert (written.records, written.committed) == (4, False)
    assert await committed(lab, "t") == []
    assert lab.log("t").high_watermark == 3
    assert await lab.ask(SinkDriver(lab.client).commit, FIRST, [written]) is False
    assert await committed(lab, "t") == [b"a", b"b", b"d"]
    assert await committed(lab, "t", 1) == [b"c"]


async def test_a_batch_that_is_committed_is_neither_written_nor_committed_nor_aborted_again(lab: Lab) -> None:
    driver = SinkDriver(lab.client)
    written = await lab.ask(write, lab.client, FIRST, 0, [("t", 0, batch_of(b"a"))])
    zombie = task_of(lab.client, FIRST)
    assert await lab.ask(zombie.begin)
    await lab.ask(driver.commit, FIRST, [written])
    assert await lab.ask(driver.commit, FIRST, [written]) is True
    assert await lab.ask(driver.abort, FIRST, [written]) is True
    assert await lab.ask(driver.abort, FIRST) is True
    assert (await lab.ask(write, lab.client, FIRST, 0, [("t", 0, batch_of(b"a"))])).committed
    zombie.add("t", 0, batch_of(b"late"))
    with pytest.raises(NodeError, match="not open any more"):
        await lab.ask(zombie.flush)
    assert await committed(lab, "t") == [b"a"]


async def test_one_batch_is_written_to_each_of_its_topics(lab: Lab) -> None:
    await lab.node.catalog.create_topic("u", 1)
    driver = SinkDriver(lab.client)
    for topic in ("t", "u", "t"):
        batch = SinkBatch("query", 0, target=topic)
        written = await lab.ask(write, lab.client, batch, 0, [(topic, 0, batch_of(b"to " + topic.encode()))])
        assert await lab.ask(driver.commit, batch, [written]) is written.committed
    assert await committed(lab, "t") == [b"to t"]
    assert await committed(lab, "u") == [b"to u"]


async def test_a_batch_that_is_lower_than_the_last_does_not_vanish(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    driver = SinkDriver(lab.client)
    for number in range(3):
        batch = SinkBatch("query", number, target="t")
        await lab.ask(driver.commit, batch, [await lab.ask(write, lab.client, batch, 0, [("t", 0, batch_of(b"a"))])])
    lower, last = SinkBatch("query", 1, target="t"), SinkBatch("query", 2, target="t")
    with pytest.raises(NodeError, match="comes with batch 1 for t, and has committed batch 2") as caught:
        await lab.ask(write, lab.client, lower, 0, [("t", 0, batch_of(b"others"))])
    assert caught.value.kind == "BatchGoesBack"
    assert caught.value.status == 409, "it is not tried again"
    capfd.readouterr()
    for _ in range(2):  # as several tasks do
        left_out = SinkTask(lab.client, lower, 0, timeout_ms=9_000, request_bytes=1 << 20, skip_lower=True)
        assert not await lab.ask(left_out.begin)
    assert (await lab.ask(write, lab.client, last, 0, [])).committed
    said = [line for line in capfd.readouterr().out.splitlines() if "not written again" in line]
    assert ["batch=1" in said[0], "batch=2" in said[1], len(said)] == [True, True, 2]
    assert all("query=query" in line and "target=t" in line for line in said)
    assert await committed(lab, "t") == [b"a"] * 3


async def test_a_batch_with_the_last_ones_number_and_other_rows_does_not_vanish(lab: Lab) -> None:
    driver = SinkDriver(lab.client)
    written = await lab.ask(write, lab.client, FIRST, 0, [("t", 0, batch_of(b"a", b"b"))])
    first = replace(written, digest=2**64 - 1)
    await lab.ask(driver.commit, FIRST, [first, Written(None, digest=5)])
    repeated = Written(None, 2, committed=True, digest=4)
    assert await lab.ask(driver.commit, FIRST, [repeated]) is True, "by other tasks, in another order"
    for other in (replace(repeated, records=3), replace(repeated, digest=7)):
        with pytest.raises(NodeError, match=f"committed with 2 rows, and comes with {other.records} rows") as caught:
            await lab.ask(driver.commit, FIRST, [other])
        assert (caught.value.kind, caught.value.status) == ("BatchDiffers", 409), "it is not tried again"
    assert await lab.ask(partial(driver.commit, compare=False), FIRST, [other]) is True, "as lowerBatches=skip asks for"
    # A node of an earlier release goes on with the query, and leaves the content of the batch before where it was.
    row = lab.writes.sinks["query", ""]
    lab.writes.sinks["query", ""] = row._replace(batch=1)
    assert await lab.ask(driver.commit, SinkBatch("query", 1), [other]) is True
    assert await committed(lab, "t") == [b"a", b"b"]


async def test_whoever_runs_a_query_next_writes_its_last_batch_not_twice(tmp_path: Path) -> None:
    def edit(users: dict[str, User]) -> None:
        for name in ("alice", "bob"):
            users[name] = User(name, PasswordHash.from_password(name, Cost(16, 1, 1)), {})

    (tmp_path / "data").mkdir()
    change(tmp_path / "data" / "users.json", edit)
    lab = await open_lab(tmp_path)
    await lab.node.catalog.create_topic("t", 2)
    alice, bob = (client_of(lab.node, user=name, password=name) for name in ("alice", "bob"))
    batch = SinkBatch("query", 0, target="t")
    zombie = task_of(alice, batch)
    assert await lab.ask(zombie.begin)
    written = await lab.ask(write, alice, batch, 0, [("t", 0, batch_of(b"alice"))])
    with pytest.raises(NodeError, match="no attempt of batch 0"):
        await lab.ask(SinkDriver(bob).commit, batch, [written])
    assert await lab.ask(SinkDriver(bob).abort, batch) is False, "and ends nothing of another's"
    await lab.ask(SinkDriver(alice).commit, batch, [written])
    again = await lab.ask(write, bob, batch, 0, [("t", 0, batch_of(b"alice"))])
    assert again.committed
    assert await lab.ask(SinkDriver(bob).commit, batch, [again]) is True
    later = SinkBatch("query", 1, target="t")
    half = task_of(alice, later)
    assert await lab.ask(half.begin)
    half.add("t", 1, batch_of(b"half"))
    await lab.ask(half.flush)
    await lab.ask(SinkDriver(bob).commit, later, [await lab.ask(write, bob, later, 0, [("t", 0, batch_of(b"bob"))])])
    await settled(lab)
    assert await committed(lab, "t") == [b"alice", b"bob"]
    assert await committed(lab, "t", 1) == [], "what the one before had open holds nobody back"
    for client in (alice, bob):
        client.close()
    await lab.close()


async def test_what_earlier_versions_have_committed_is_not_written_again(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path)
    await lab.node.catalog.create_topic("t", 1)
    now_ms = time.time_ns() // 1_000_000

    def as_before(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
        for table in ("committed", "attempts", "places", "sinks"):
            connection.execute(f"DROP TABLE IF EXISTS front_pipeline_{table}")
        write_tables.create(connection)
        rows = [("alice", "query", 4, 0, now_ms), ("bob", "query", 5, 0, now_ms), ("bob", "other", 0, 1, now_ms)]
        connection.executemany("INSERT INTO front_pipeline_sinks VALUES (?, ?, ?, ?, ?)", rows)
        attempt = (7, 0, "alice", "query", 6, 0, 0, 60_000, now_ms)
        connection.execute("INSERT INTO front_pipeline_attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", attempt)
        write_tables.add_targets(connection)
        write_tables.add_content(connection)
        return connection.execute("SELECT * FROM front_pipeline_committed ORDER BY query").fetchall()

    assert await lab.node.db.run(as_before) == [("other", "*", 0, 1, now_ms, ""), ("query", "*", 5, 0, now_ms, "")]
    await lab.close()
    lab = await open_lab(tmp_path)
    batches = [SinkBatch("query", number, target="t") for number in range(4, 7)]
    with pytest.raises(NodeError, match="has committed batch 5"):
        await lab.ask(write, lab.client, batches[0], 0, [("t", 0, batch_of(b"4"))])
    assert (await lab.ask(write, lab.client, batches[1], 0, [("t", 0, batch_of(b"5"))])).committed
    written = await lab.ask(write, lab.client, batches[2], 0, [("t", 0, batch_of(b"6"))])
    assert await lab.ask(SinkDriver(lab.client).commit, batches[2], [written]) is False
    assert await committed(lab, "t") == [b"6"]
    await lab.close()


async def test_only_the_attempts_that_the_driver_names_count(lab: Lab) -> None:
    slow = task_of(lab.client, FIRST, 0)
    await lab.ask(slow.begin)
    slow.add("t", 0, batch_of(b"slow"))
    await lab.ask(slow.flush)
    failed = await lab.ask(write, lab.client, FIRST, 0, [("t", 0, batch_of(b"failed")), ("t", 1, batch_of(b"half"))])
    speculative = await lab.ask(write, lab.client, FIRST, 0, [("t", 0, batch_of(b"good"))])
    other = await lab.ask(write, lab.client, FIRST, 1, [("t", 0, batch_of(b"other"))])
    await lab.ask(SinkDriver(lab.client).commit, FIRST, [speculative, other])
    await settled(lab)
    assert sorted(await committed(lab, "t")) == [b"good", b"other"]
    assert await committed(lab, "t", 1) == []
    slow.add("t", 0, batch_of(b"later"))
    with pytest.raises(NodeError, match="not open any more"):
        await lab.ask(slow.flush)
    with pytest.raises(NodeError, match="no attempt of batch 1"):
        await lab.ask(SinkDriver(lab.client).commit, SinkBatch("query", 1), [failed])
    assert lab.log("t").high_watermark == lab.log("t").last_stable_offset


async def test_a_commit_that_names_an_attempt_that_is_gone_decides_nothing(lab: Lab) -> None:
    driver = SinkDriver(lab.client)
    good = await lab.ask(write, lab.client, FIRST, 0, [("t", 0, batch_of(b"good"))])
    gone = await lab.ask(write, lab.client, FIRST, 1, [("t", 0, batch_of(b"gone"))])
    assert await lab.ask(driver.abort, FIRST, [gone]) is False
    with pytest.raises(NodeError, match=r"no attempt of batch 0|not open any more") as caught:
        await lab.ask(driver.commit, FIRST, [good, gone])
    assert caught.value.kind == "AttemptGone"
    again = await lab.ask(write, lab.client, FIRST, 1, [("t", 0, batch_of(b"again"))])
    assert await lab.ask(driver.commit, FIRST, [good, again]) is False
    await settled(lab)
    assert await committed(lab, "t") == [b"good", b"again"]


async def test_two_drivers_of_one_query_commit_a_batch_once(lab: Lab) -> None:
    drivers = [client_of(lab.node) for _ in range(2)]
    written = [await lab.ask(write, one, FIRST, 0, [("t", 0, batch_of(b"%d" % at))]) for at, one in enumerate(drivers)]
    answers = await asyncio.gather(
        *(lab.ask(SinkDriver(one).commit, FIRST, [what]) for one, what in zip(drivers, written, strict=True))
    )
    assert sorted(answers) == [False, True]
    await settled(lab)
    assert await committed(lab, "t") == [b"%d" % answers.index(False)]
    for one in drivers:
        one.close()


async def test_batches_of_a_query_follow_one_another_with_the_same_producers(lab: Lab) -> None:
    driver = SinkDriver(lab.client)
    producers = set()
    for number in range(5):
        batch = SinkBatch("query", number)
        written = await lab.ask(write, lab.client, batch, 0, [("t", 0, batch_of(b"%d" % number))])
        await lab.ask(driver.commit, batch, [written])
        assert written.attempt is not None
        producers.add(written.attempt)
    assert await committed(lab, "t") == [b"0", b"1", b"2", b"3", b"4"]
    assert len(producers) == 5
    assert await lab.ask(driver.commit, SinkBatch("query", 3), []) is True
    # Another query has batches of its own, and one without records is decided like any.
    assert await lab.ask(driver.commit, SinkBatch("other", 0), []) is False
    assert await lab.ask(driver.commit, SinkBatch("other", 0), []) is True


async def test_who_begins_is_told_what_takes_records(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.node.catalog.create_topic("small", 3, {"max.message.bytes": "5000"})
    attempt = task_of(lab.client, FIRST)
    assert await lab.ask(attempt.begin, ["t", "small", "nowhere"])
    assert attempt.told == {"t": TakesRecords((0, 1), 1_048_588), "small": TakesRecords((0, 1, 2), 5_000)}
    # Who may not write there, or would be told too much at once, is not told: what is asked next says why.
    monkeypatch.setattr(write_routes, "PARTITIONS", 2)
    assert await lab.ask(attempt.begin, ["t", "small"])
    assert attempt.told.keys() == {"t"}
    with pytest.raises(NodeError, match="topics has 11 items"):
        await lab.ask(attempt.begin, [str(number) for number in range(11)])


async def test_requests_that_are_repeated_change_nothing(lab: Lab) -> None:
    asked = {"query": "q", "batch": 0, "task": 0, "nonce": "n", "timeout_ms": 1_000}
    begun = await lab.ask(lab.client.post, "/v1/sink/begin", asked)
    assert await lab.ask(lab.client.post, "/v1/sink/begin", asked) == begun
    batches = [batch_of(b"a"), batch_of(b"b", b"c")]
    parts: list[bytes] = []
    for number, batch in enumerate(batches):
        parts += [batch.header(begun["producer"], begun["epoch"], number), bytes(batch.body)]
    told = [["t", 0, batch.size] for batch in batches]
    head = json.dumps({"producer": begun["producer"], "epoch": begun["epoch"], "batches": told}).encode()
    body = [len(head).to_bytes(4) + head, *parts]
    first = await lab.ask(lab.client.post_bytes, "/v1/sink/append", body)
    assert first == {"offsets": [[0, 1], [1, 3]]}
    assert await lab.ask(lab.client.post_bytes, "/v1/sink/append", body) == first
    commit = {"query": "q", "batch": 0, "attempts": [[begun["producer"], begun["epoch"]]], "once": False}
    assert await lab.ask(lab.client.post, "/v1/sink/commit", commit) == {"already": False, "visible": True}
    assert await lab.ask(lab.client.post, "/v1/sink/commit", commit) == {"already": True, "visible": True}
    assert await committed(lab, "t") == [b"a", b"b", b"c"]


async def test_requests_of_a_large_attempt_keep_their_order_and_their_errors(lab: Lab) -> None:
    def large(spoil: bool) -> Written:
        task = SinkTask(lab.client, FIRST, 0, timeout_ms=60_000, request_bytes=66 * 1024)
        task.begin()
        try:
            for number in range(20):
                topic = "nowhere" if spoil and number == 9 else "t"
                task.add(topic, 0, batch_of(b"%d" % number, bytes(1_000)))
            return task.finish()
        except NodeError:
            task.abort(10)
            raise

    with pytest.raises(NodeError, match="no partition 0 of a topic 'nowhere'"):
        await lab.ask(large, True)
    await settled(lab)
    written = await lab.ask(large, False)
    assert written.records == 40
    await lab.ask(SinkDriver(lab.client).commit, FIRST, [written])
    assert [one for one in await committed(lab, "t") if len(one) < 5] == [b"%d" % number for number in range(20)]


async def test_what_nobody_ends_is_aborted_after_its_silence(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    for module in (writes, write_attempts):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns))
    attempt = task_of(lab.client, FIRST, timeout_ms=300)
    await lab.ask(attempt.begin)
    attempt.add("t", 0, batch_of(b"a"))
    await lab.ask(attempt.flush)
    await lab.append("t", [b"behind"])
    log = lab.log("t")
    assert (log.last_stable_offset, log.high_watermark) == (0, 2)
    now += 0.4
    await log.until(lambda: log.last_stable_offset == log.high_watermark == 3)
    assert await committed(lab, "t") == [b"behind"]
    with pytest.raises(NodeError, match=r"no attempt|not open"):
        await lab.ask(SinkDriver(lab.client).commit, FIRST, [Written(attempt.attempt)])


async def test_operators_see_an_attempt_that_holds_up_readers_and_abort_it(lab: Lab) -> None:
    attempt, other = task_of(lab.client, FIRST), task_of(lab.client, FIRST, 1)
    for one, topic in ((attempt, ("t", 0)), (other, ("t", 1))):
        await lab.ask(one.begin)
        one.add(*topic, batch_of(b"a"))
        await lab.ask(one.flush)
    (directory,) = lab.node.transaction_directories.values()
    found = {view.producer_id: view for view in directory.transactions()}
    assert len(found) == 2
    (holding,) = [one for one in directory.writing_to("t", 0) if one is not None]
    assert holding.producer_id in lab.log("t").state.transactions.open
    assert (holding.state, holding.places, holding.timeout_ms) == ("Open", {"t": {0}}, 60_000)
    assert holding.transactional_id.startswith("query/0/0/")
    assert directory.view(holding.transactional_id) == holding
    for nobody in ("query/0/0/", "query/0/0/1.x", f"other/{holding.transactional_id}", "9" * 5000 + ".1"):
        assert directory.view(nobody) is None
        with pytest.raises(TransactionNotFound):
            await directory.abort(nobody)
    told = await directory.abort(holding.transactional_id)
    assert (told.state, told.started_ms) == ("Ended", None)
    assert lab.log("t").last_stable_offset == lab.log("t").high_watermark == 2
    with pytest.raises(NodeError, match=r"no attempt|not open"):
        await lab.ask(SinkDriver(lab.client).commit, FIRST, [Written(attempt.attempt)])
    assert await lab.ask(SinkDriver(lab.client).commit, FIRST, [Written(other.attempt)]) is False
    assert await committed(lab, "t", 1) == [b"a"], "the other task's is another transaction"


async def test_a_batch_that_is_heard_of_goes_on_but_not_for_ever(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    for module in (writes, write_attempts):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns))
    attempt = task_of(lab.client, FIRST, timeout_ms=60_000)
    await lab.ask(attempt.begin)
    now += 50
    attempt.add("t", 0, batch_of(b"a"))
    await lab.ask(attempt.flush)
    now += 50
    await lab.writes.expire(0)
    attempt.add("t", 0, batch_of(b"a"))
    await lab.ask(attempt.flush)
    now += 61
    await lab.writes.expire(0)
    assert lab.writes.expired == 1
    attempt = task_of(lab.client, SinkBatch("another", 0), timeout_ms=3_600_000)
    await lab.ask(attempt.begin)
    for _ in range(24):
        now += 3_599
        await lab.writes.expire(0)
        attempt.add("t", 0, batch_of(b"a"))
        await lab.ask(attempt.flush)
    assert lab.writes.expired == 1
    now += 30
    await lab.writes.expire(0)
    assert lab.writes.expired == 2


async def test_queries_are_remembered_for_long(lab: Lab) -> None:
    driver = SinkDriver(lab.client)
    await lab.ask(driver.commit, SinkBatch("stream", 0), [])
    await lab.ask(driver.commit, SinkBatch("job", 0, once=True), [])
    now_ms, day_ms = time.time_ns() // 1_000_000, 86_400_000
    await lab.writes.forget(now_ms + 2 * day_ms)
    assert await lab.ask(driver.commit, SinkBatch("stream", 0), []) is True
    assert await lab.ask(driver.commit, SinkBatch("job", 0, once=True), []) is False
    await lab.writes.forget(now_ms + 366 * day_ms)
    assert await lab.ask(driver.commit, SinkBatch("stream", 0), []) is False


async def test_a_topic_that_is_deleted_meanwhile_keeps_nobody(lab: Lab) -> None:
    await lab.node.catalog.create_topic("gone", 1)
    written = await lab.ask(write, lab.client, FIRST, 0, [("gone", 0, batch_of(b"a")), ("t", 0, batch_of(b"b"))])
    await lab.node.catalog.delete_topic("gone")
    await lab.node.catalog.create_topic("gone", 1)
    await lab.ask(SinkDriver(lab.client).commit, FIRST, [written])
    assert await committed(lab, "t") == [b"b"]
    assert lab.log("gone").high_watermark == 0


async def test_the_rows_of_attempts_go_when_they_have_ended(lab: Lab) -> None:
    for number in range(3):
        batch = SinkBatch("query", number)
        written = await lab.ask(write, lab.client, batch, 0, [("t", 0, batch_of(b"a"))])
        await lab.ask(write, lab.client, batch, 0, [("t", 1, batch_of(b"b"))])
        await lab.ask(SinkDriver(lab.client).commit, batch, [written])
    await settled(lab)

    def left(connection: sqlite3.Connection) -> list[int]:
        tables = ("attempts", "places", "committed")
        return [connection.execute(f"SELECT count(*) FROM front_pipeline_{one}").fetchone()[0] for one in tables]

    while await lab.node.db.run(left) != [0, 0, 1]:
        pass  # each look is a commit of the database, which the removals share


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sequence": -1}, "a sequence number"),
        ({"producer_id": 99}, "its attempt's producer id"),
        ({"epoch": 5}, "its attempt's producer id"),
        ({"transactional": False}, "transactional batches"),
    ],
)
async def test_a_batch_that_is_not_the_attempts_own(lab: Lab, change: dict[str, int], complaint: str) -> None:
    with pytest.raises(NodeError, match=complaint) as caught:
        await lab.ask(send, lab, batch_of(b"a"), change)
    assert caught.value.status == 400
    assert lab.log("t").high_watermark == 0


def send(lab: Lab, batch: EncodedBatch, change: dict[str, int], topic: str = "t", spoil: int = -1) -> None:
    asked = {"query": "q", "batch": 0, "task": 0, "nonce": "n", "timeout_ms": 60_000}
    begun = lab.client.post("/v1/sink/begin", asked)
    stamp = {"producer_id": begun["producer"], "epoch": begun["epoch"], "sequence": 0, **change}
    payload = bytearray(batch.header(**stamp) + bytes(batch.body))
    if spoil >= 0:
        payload[spoil] ^= 1
    told = {"producer": begun["producer"], "epoch": begun["epoch"], "batches": [[topic, 0, len(payload)]]}
    head = json.dumps(told).encode()
    lab.client.post_bytes("/v1/sink/append", [len(head).to_bytes(4) + head, payload])


async def test_batches_that_a_topic_does_not_take(lab: Lab) -> None:
    create = lab.node.catalog.create_topic
    await create("compacted", 1, {"cleanup.policy": "compact"})
    await create("small", 1, {"max.message.bytes": "100"})
    await create("strict", 1, {"message.timestamp.before.max.ms": "1000"})
    await create("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    for topic, complaint in (
        ("compacted", "takes no record without a key"),
        ("small", "exceeds max.message.bytes 100"),
        ("strict", "further from the node's clock"),
        ("nowhere", "no partition 0 of a topic 'nowhere'"),
    ):
        with pytest.raises(NodeError, match=complaint):
            await lab.ask(send, lab, batch_of(b"x" * 100), {}, topic)
    with pytest.raises(NodeError, match="checksum"):
        await lab.ask(send, lab, batch_of(b"x"), {}, "t", 65)
    await lab.ask(send, lab, batch_of(b"x", key=b"k"), {}, "compacted")
    await lab.ask(send, lab, batch_of(b"x"), {}, "stamped")
    found = await lab.log("stamped").find_max_timestamp()
    assert found is not None
    assert found[1] > 1_000_000_000_000


def framed(head: bytes) -> bytes:
    return len(head).to_bytes(4) + head


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"\0\0", "length of its head"),
        (b"\0\0\0\x09{}", "length of its head"),
        (b"\x7f\0\0\0{}", "length of its head"),
        (b"\0\0\0\x02[]", "not a JSON object"),
        (b"\0\0\0\x02{}", "batches is not a list"),
        (framed(b'{"batches": [["t", 0, 1000]]}'), "its head describes 1033"),
        (framed(b'{"batches": [["t", 0]]}'), "topic, partition and size"),
    ],
)
async def test_requests_that_are_no_batches(lab: Lab, body: bytes, complaint: str) -> None:
    with pytest.raises(NodeError, match=complaint) as caught:
        await lab.ask(lab.client.post_bytes, "/v1/sink/append", [body])
    assert caught.value.status == 400
    assert lab.node.budget.held == 0


async def test_others_attempts_are_nobodys_business(tmp_path: Path) -> None:
    class Doorman:
        def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
            return (resource.name, operation) != ("read-only", Operation.WRITE)

    node = node_of(tmp_path)
    node.authorizer = Doorman()
    await node.start()
    lab = Lab(node, client_of(node))
    await node.catalog.create_topic("read-only", 1)
    with pytest.raises(NodeError, match="you may not write topic 'read-only'") as caught:
        await lab.ask(send, lab, batch_of(b"x"), {}, "read-only")
    assert caught.value.status == 403
    await lab.close()


async def test_a_node_that_is_started_again_knows_what_was_decided_and_what_is_open(tmp_path: Path) -> None:
    lab = await open_lab(tmp_path)
    await lab.node.catalog.create_topic("t", 2)
    options = NodeOptions.parse(f"anabranch://{lab.node.addresses['pipeline']}")
    client = NodeClient(options)
    driver = SinkDriver(client)
    done = await lab.ask(write, client, FIRST, 0, [("t", 0, batch_of(b"first"))])
    await lab.ask(driver.commit, FIRST, [done])
    second = SinkBatch("query", 1)
    written = await lab.ask(write, client, second, 0, [("t", 0, batch_of(b"second"))])
    half = task_of(client, second, 1)
    await lab.ask(half.begin)
    half.add("t", 1, batch_of(b"third"))
    await lab.ask(half.flush)
    fresh = task_of(client, second, 2)
    await lab.ask(fresh.begin)
    fresh.add("t", 1, batch_of(b"fourth"))
    await lab.node.stop()
    node = node_of(tmp_path, listen__pipeline=str(lab.node.addresses["pipeline"]))
    await node.start()
    lab = Lab(node, client)
    assert (await lab.ask(write, client, FIRST, 0, [("t", 0, batch_of(b"first"))])).committed
    half.add("t", 1, batch_of(b"more"))
    rest = [await lab.ask(half.finish), await lab.ask(fresh.finish)]
    assert await lab.ask(driver.commit, second, [written, *rest]) is False
    assert await committed(lab, "t") == [b"first", b"second"]
    assert sorted(await committed(lab, "t", 1)) == [b"fourth", b"more", b"third"]
    await lab.close()
