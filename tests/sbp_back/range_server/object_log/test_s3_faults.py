"""A store whose log is in a real S3 server, with faults between the two."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch_kit.errors import StoreCorrupt, StoreError
from sbp_back.range_server.object_log.object_store import ObjectStore
from sbp_back.range_server.store import StoreOptions
from tests.kit.waiting import until
from tests.s3_server import ACCESS, s3_server
from tests.sbp_back.range_server.object_log.object_harness import indexed
from tests.sbp_back.range_server.object_log.s3_faults import Fault, Faults, Handler, between
from tests.sbp_back.range_server.store.store_harness import KIB, Driver, entry_bytes, make_entry

pytestmark = [pytest.mark.go, pytest.mark.slow]


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    (tmp_path / "s3" / "bucket").mkdir(parents=True)
    monkeypatch.setattr("sbp_back.range_server.object_log.objects.bucket.AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("sbp_back.range_server.object_log.objects.bucket.MOST_AGAIN_SECONDS", 0.02)
    with s3_server(tmp_path / "s3") as endpoint, between(endpoint) as (proxied, faults):
        for name, value in {**ACCESS, "AWS_ENDPOINT_URL": proxied}.items():
            monkeypatch.setenv(name, value)
        yield faults


def options(**changes: object) -> StoreOptions:
    values: dict[str, object] = {
        "objects": "s3://bucket/prefix",
        "group_max_bytes": 4 * KIB,
        "object_index_seconds": 0.05,
        "maintenance_seconds": 0.02,
    }
    return indexed(Path(), **{**values, **changes})


def sometimes(fault: Fault, share: float = 0.4, seed: int = 1) -> Fault:
    dice = random.Random(seed)
    return lambda handler: dice.random() < share and fault(handler)


def slow_down(handler: Handler) -> bool:
    return handler.error(503, "SlowDown")


def internal(handler: Handler) -> bool:
    return handler.error(500, "InternalError")


def conflict(handler: Handler) -> bool:
    """Another request for the key was under way: neither was this put done nor is there another object."""
    return handler.command == "PUT" and handler.error(409, "ConditionalRequestConflict")


def answer_lost(handler: Handler) -> bool:
    handler.forward(handler.body)
    return handler.cut()


def truncated_upload(handler: Handler) -> bool:
    """The server gets a part of it, with the length of the whole, and then nothing."""
    if handler.command != "PUT":
        return False
    import socket

    with socket.create_connection(handler.server_address, 5) as there:
        head = f"PUT {handler.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in handler.headers.items())
        there.sendall(head.encode() + b"\r\n" + handler.body[: len(handler.body) // 2])
    return handler.cut()


def truncated_answer(handler: Handler) -> bool:
    if handler.command != "GET":
        return False
    status, headers, data = handler.forward(handler.body)
    handler.answer(status, headers, data, len(data) // 2)
    return True


def expired(handler: Handler) -> bool:
    return handler.error(400, "ExpiredToken")


def forbidden(handler: Handler) -> bool:
    return handler.error(403, "AccessDenied")


def full(handler: Handler) -> bool:
    return handler.command == "PUT" and handler.error(507, "InsufficientStorage")


@pytest.mark.parametrize(
    "fault",
    [slow_down, internal, conflict, answer_lost, truncated_upload, truncated_answer, expired, full],
    ids=lambda fault: str(fault.__name__),
)
async def test_faults_on_the_way_delay_and_lose_nothing(tmp_path: Path, faults: Faults, fault: Fault) -> None:
    """Writing, indexes, deletions, a start, adopting: whatever is met, it is tried again."""
    driver = Driver(tmp_path / "one", options())
    driver.store.assign_server_id(1)
    faults.fault = sometimes(fault)
    await driver.create(1)
    for first in range(0, 60, 10):
        await asyncio.gather(*(driver.append(make_entry(1, base, size=KIB)) for base in range(first, first + 10)))
    await driver.trim(1, 20)
    other = Driver(tmp_path / "two", options(object_log="2"))
    other.store.assign_server_id(2)
    await other.store.adopt(1)
    assert faults.met > 5
    got = await other.read_all(1, 20)
    assert [entry_bytes(e) for e in got] == [entry_bytes(make_entry(1, b, size=KIB)) for b in range(20, 60)]
    faults.fault = None
    other.close()


@pytest.mark.parametrize("fault", [slow_down, forbidden, full], ids=lambda fault: str(fault.__name__))
async def test_a_store_that_refuses_for_a_while_stops_nothing_for_good(
    tmp_path: Path, faults: Faults, fault: Fault
) -> None:
    driver = Driver(tmp_path / "one", options())
    await driver.create(1)
    await driver.append(make_entry(1, 0))
    faults.fault = fault
    waiting = [driver.append(make_entry(1, base)) for base in (1, 2)]
    trimming = driver.trim(1, 1)
    await until(lambda: faults.met >= 10)
    assert not any(one.done() for one in (*waiting, trimming))
    assert [e.base_offset for e in await driver.read(1)] == [0]
    assert sum(one.failed for one in driver.store.stats.objects.values()) >= 9
    before = driver.store.stats.checkpoints
    faults.fault = None
    await asyncio.gather(*waiting, trimming)
    assert [e.base_offset for e in await driver.read(1, 1)] == [1, 2]
    await until(lambda: driver.store.stats.checkpoints != before)  # indexes go on, too
    assert driver.failures == []
    driver.close()


@pytest.mark.parametrize("done", [False, True], ids=["request lost", "answer lost"])
async def test_a_store_that_swallows_requests_for_a_moment_holds_up_nobody(
    tmp_path: Path, faults: Faults, done: bool
) -> None:
    over = threading.Event()
    driver = Driver(tmp_path / "one", options())
    await driver.create(1)

    def swallow(handler: Handler) -> bool:
        if done:
            handler.forward(handler.body)
        over.wait(60)
        return handler.cut()

    faults.fault = swallow
    waiting = driver.append(make_entry(1, 0))
    seen = len(faults.seen)
    await until(lambda: len(faults.seen) > seen)
    faults.fault = None
    began = time.monotonic()
    await waiting
    assert time.monotonic() - began < 10, "the request that was swallowed times out after 15 s"
    assert [e.base_offset for e in await driver.read(1)] == [0]
    over.set()
    driver.close()


async def test_damaged_bytes_of_a_real_server_name_object_and_range(tmp_path: Path, faults: Faults) -> None:
    former = Driver(tmp_path / "one", options(object_index_seconds=1000.0))
    await former.create(1)
    for base in range(0, 30, 10):
        await former.append(*(make_entry(1, at) for at in range(base, base + 10)))
    driver = Driver(tmp_path / "two", options())
    bad = make_entry(1, 14).payload[:10]

    def flip(path: str, data: bytes) -> bytes:
        at = data.find(bytes(bad))
        return data if at < 0 else data[:at] + b"!" + data[at + 1 :]

    faults.change = flip
    assert [e.base_offset for e in await driver.read(1)] == list(range(14))
    with pytest.raises(StoreCorrupt, match=r"offset 14 of range 0 of stream 1 \(object \d+ of incarnation 0"):
        await driver.read(1, 14)
    assert [e.base_offset for e in await driver.read(1, 15)] == list(range(15, 30))
    driver.close()


async def test_an_old_listing_hides_nothing(tmp_path: Path, faults: Faults) -> None:
    """Every listing is the one of an earlier time: nothing at all."""
    former = Driver(tmp_path / "one", options(object_index_every=5))
    await former.create(1)
    for base in range(30):
        await former.append(make_entry(1, base))

    def empty(handler: Handler) -> bool:
        if handler.command != "GET" or "list-type" not in handler.path:
            return False
        body = (
            b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
            b"<Prefix></Prefix><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
            b"</ListBucketResult>"
        )
        handler.answer(200, [("Content-Type", "application/xml")], body)
        return True

    faults.fault = empty
    driver = Driver(tmp_path / "two", options())
    assert faults.met > 2
    assert driver.store.ranges[1, 0].next_offset == 30
    assert [e.base_offset for e in await driver.read_all(1)] == list(range(30))
    driver.close()


async def test_credentials_that_are_wrong_at_the_start_are_told(tmp_path: Path, faults: Faults) -> None:
    faults.fault = forbidden
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        for module in ("objects.bucket", "ownership.logs", "object_recovery"):
            patch.setattr(f"sbp_back.range_server.object_log.{module}.PATIENCE", 0.1)
        with pytest.raises(StoreError, match=r"objects cannot be reached.*(AccessDenied|403)"):
            ObjectStore.open(tmp_path / "one", options())


@pytest.mark.parametrize(
    "fault", [slow_down, conflict, answer_lost, truncated_upload], ids=lambda fault: str(fault.__name__)
)
async def test_objects_of_ranges_are_written_in_spite_of_faults(tmp_path: Path, faults: Faults, fault: Fault) -> None:
    small = options(object_range_bytes=32 * KIB, object_mixed_bytes=64 * KIB, object_cache_bytes=192 * KIB)
    driver = Driver(tmp_path / "one", small)
    faults.fault = sometimes(fault, 0.2)
    await driver.create(1)
    await driver.create(2)
    for base in range(60):
        await driver.append(*(make_entry(stream, base, size=4 * KIB) for stream in (1, 2)))
    await until(lambda: driver.store.stats.packed_bytes >= 300 * KIB and driver.store.stats.segments_deleted >= 2)
    assert faults.met > 5
    faults.fault = None
    driver.reopen()
    other = Driver(tmp_path / "two", small)
    for stream in (1, 2):
        got = [entry_bytes(entry) for entry in await other.read_all(stream)]
        assert got == [entry_bytes(make_entry(stream, base, size=4 * KIB)) for base in range(60)]
    other.close()
