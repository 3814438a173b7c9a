"""StreamRead and CommitOffset, by a client that sees every message: what SDKs never send is here, too."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from tests.conftest import TEST_SETTINGS, NodeFactory
from tests.node_process import NodeProcess
from tests.ydb_topic_front.conftest import LISTEN
from tests.ydb_topic_front.raw import RawClient
from tests.ydb_topic_front.reading import Session, number_of, write
from ydb_topic_front.wire.statuses import Status


@pytest.fixture
def made(raw: RawClient, topic: str) -> str:
    """The path of a topic with two partitions and a consumer ``c``."""
    path = f"/local/{topic}"
    raw.result("CreateTopic", path=path, partitioning_settings={"min_active_partitions": 2}, consumers=[{"name": "c"}])
    return path


def test_what_was_written_is_read_and_committed(raw: RawClient, made: str) -> None:
    write(raw, made, b"one", b"two", codec=2, metadata_items=[{"key": "a", "value": b"b"}], uncompressed_size=7)
    session = Session(raw, made)
    requests = {one.partition_session.partition_id: one for one in (session.started(), session.started())}
    assert set(requests) == {0, 1}
    request = requests[0]
    assert request.partition_session.path == made
    assert (request.committed_offset, request.partition_offsets.start, request.partition_offsets.end) == (0, 0, 2)
    (data,) = (response := session.receive("read_response")).partition_data
    assert 0 <= response.bytes_size - data.ByteSize() < 10
    assert data.partition_session_id == number_of(request)
    (batch,) = data.batches
    assert (batch.producer_id, batch.codec) == ("", 2)
    assert batch.written_at.seconds > 1_700_000_000
    assert [(one.offset, one.seq_no, one.data, one.uncompressed_size) for one in batch.message_data] == [
        (0, 1, b"one", 7),
        (1, 2, b"two", 7),
    ]
    assert [(item.key, item.value) for item in batch.message_data[0].metadata_items] == [("a", b"b")]
    session.commit(number_of(request), (0, 2))
    assert session.committed() == {number_of(request): 2}
    described = raw.result("DescribeConsumer", path=made, consumer="c")
    stats = described.partitions[0].partition_consumer_stats
    assert (stats.committed_offset, stats.read_session_id, stats.last_read_offset) == (2, session.session_id, 1)
    write(raw, made, b"three")
    assert [one.offset for one in session.read(1)] == [2], "what comes later is pushed"
    assert session.end() == []
    assert (
        raw.result("DescribeConsumer", path=made, consumer="c").partitions[0].partition_consumer_stats.read_session_id
        == ""
    )


def test_the_next_session_goes_on_at_the_committed_position(raw: RawClient, made: str) -> None:
    write(raw, made, b"0", b"1", b"2", b"3")
    first = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    number = number_of(first.started())
    assert len(first.read(4)) == 4
    first.commit(number, (2, 3))
    first.commit(number, (0, 2))
    assert first.committed() == {number: 3}
    first.end()
    second = Session(raw, made.removeprefix("/local/"), topics_read_settings=[{"path": made, "partition_ids": [0]}])
    request = second.started()
    assert (request.committed_offset, request.partition_offsets.start) == (3, 3)
    assert [one.data for one in second.read(1)] == [b"3"]
    second.end()


def test_a_client_may_read_from_further_on_and_commit_as_it_starts(raw: RawClient, made: str) -> None:
    write(raw, made, *(b"%d" % number for number in range(10)))
    session = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    number = number_of(session.started(read_offset=7, commit_offset=5))
    assert session.committed() == {number: 5}
    assert [one.offset for one in session.read(3)] == [7, 8, 9]
    session.end()


def test_credits_bound_what_is_sent(raw: RawClient, made: str) -> None:
    write(raw, made, *(bytes(1000) for _ in range(20)))
    session = Session(raw, made, credit=0, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    number = number_of(session.started())
    # Without credit nothing comes: what is answered next is a question asked meanwhile.
    session.stream.send(partition_session_status_request={"partition_session_id": number})
    status = session.receive("partition_session_status_response")
    assert (status.partition_offsets.start, status.partition_offsets.end, status.read_offset) == (0, 20, 0)
    assert status.write_time_high_watermark.seconds > 1_700_000_000
    debt = 0
    for credit, messages in ((1, 1), (1, 1), (3500, 3)):
        session.stream.send(read_request={"bytes_size": debt + credit})
        response = session.receive("read_response")
        assert len(response.partition_data[0].batches[0].message_data) == messages
        debt = response.bytes_size - credit
        if debt < 0:
            break
    # What is left of the credit brings one more, which takes more than that.
    assert len(session.read(1)) == 1
    session.end()


@pytest.mark.parametrize(
    "init",
    [
        {},
        {"topics_read_settings": [{"path": ""}], "consumer": "c"},
        {"topics_read_settings": [{"path": "PATH"}], "consumer": "nobody"},
        {"topics_read_settings": [{"path": "PATH"}]},
        {"topics_read_settings": [{"path": "PATH", "partition_ids": [2]}], "consumer": "c"},
        {"topics_read_settings": [{"path": "PATH"}, {"path": "PATH"}], "consumer": "c"},
    ],
)
def test_what_cannot_be_read_is_refused(raw: RawClient, made: str, init: dict[str, Any]) -> None:
    for settings in init.get("topics_read_settings", ()):
        settings["path"] = settings["path"].replace("PATH", made)
    stream = raw.stream("StreamRead")
    stream.send(init_request=init)
    (message,) = stream.rest()
    assert message.status == Status.BAD_REQUEST
    if init.get("consumer") == "nobody":
        assert "no read rule" in message.issues[0].message


def test_a_reader_of_an_unknown_topic_is_refused(raw: RawClient, made: str) -> None:
    stream = raw.stream("StreamRead")
    stream.send(init_request={"topics_read_settings": [{"path": f"{made}/nowhere"}], "consumer": "c"})
    assert [message.status for message in stream.rest()] == [Status.SCHEME_ERROR]


SAYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "init twice": lambda number: {"init_request": {}},
    "nothing": lambda number: {},
    "credit of nothing": lambda number: {"read_request": {"bytes_size": 0}},
    "no commits": lambda number: {"commit_offset_request": {}},
    "no offsets": lambda number: {"commit_offset_request": {"commit_offsets": [{"partition_session_id": number}]}},
    "direct": lambda number: {"direct_read_ack": {"partition_session_id": number}},
    "not asked to stop": lambda number: {"stop_partition_session_response": {"partition_session_id": number}},
    "started twice": lambda number: {"start_partition_session_response": {"partition_session_id": number}},
    **{
        f"commit of {start} to {end}": lambda number, start=start, end=end: {  # type: ignore[misc]
            "commit_offset_request": {
                "commit_offsets": [{"partition_session_id": number, "offsets": [{"start": start, "end": end}]}]
            }
        }
        for start, end in ((0, 2), (3, 3), (4, 3), (3, 100))
    },
}


@pytest.mark.parametrize("says", SAYS)
def test_what_breaks_the_protocol_ends_the_stream(raw: RawClient, made: str, says: str) -> None:
    write(raw, made, *[b"x"] * 5)
    session = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    number = number_of(session.started())
    session.read(5)
    session.commit(number, (0, 3))
    assert session.committed() == {number: 3}
    session.stream.send(**SAYS[says](number))
    assert session.refusal()[0] == Status.BAD_REQUEST


@pytest.mark.parametrize("waits", [True, False])
def test_nothing_is_committed_twice(raw: RawClient, made: str, waits: bool) -> None:
    """As with YDB, whether or not the first commit was answered: SDKs do not repeat what they know to be committed."""
    write(raw, made, *[b"x"] * 5)
    session = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    number = number_of(session.started())
    session.read(5)
    session.commit(number, (0, 3))
    if waits:
        assert session.committed() == {number: 3}
    session.commit(number, (0, 3))
    status, message = session.refusal()
    assert status == Status.BAD_REQUEST
    assert "committed before" in message


def test_the_first_message_is_an_init_request(raw: RawClient) -> None:
    for first in ({"read_request": {"bytes_size": 1}}, {"update_token_request": {"token": ""}}, {}):
        stream = raw.stream("StreamRead")
        stream.send(**first)
        assert [message.status for message in stream.rest()] == [Status.BAD_REQUEST]
    stream = raw.stream("StreamRead")
    stream.send_raw(b"\xff\xff\xff")
    assert [message.status for message in stream.rest()] == [Status.BAD_REQUEST]


def test_what_is_unknown_is_passed_over(raw: RawClient, made: str) -> None:
    write(raw, made, b"x")
    session = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    number = number_of(session.started())
    session.read(1)
    session.commit(77, (0, 1))
    session.stream.send(partition_session_status_request={"partition_session_id": 77})
    session.stream.send(start_partition_session_response={"partition_session_id": 77})
    session.stream.send(update_token_request={"token": "new"})
    session.receive("update_token_response")
    session.commit(number, (0, 1))
    assert session.committed() == {number: 1}
    session.end()


def test_without_a_consumer(raw: RawClient, made: str) -> None:
    write(raw, made, b"0", b"1", partition=1)
    session = Session(raw, consumer="", topics_read_settings=[{"path": made, "partition_ids": [1]}])
    other = Session(raw, consumer="", topics_read_settings=[{"path": made, "partition_ids": [0, 1]}])
    request = session.started(read_offset=1)
    assert (request.committed_offset, request.partition_offsets.end) == (0, 2)
    assert [one.data for one in session.read(1)] == [b"1"]
    assert {other.started().partition_session.partition_id for _ in range(2)} == {0, 1}
    assert [one.data for one in other.read(2)] == [b"0", b"1"]
    other.end()
    session.commit(number_of(request), (0, 1))
    assert session.refusal()[0] == Status.BAD_REQUEST


def test_partitions_are_shared_and_handed_over(raw: RawClient, made: str) -> None:
    write(raw, made, b"a0", partition=0)
    write(raw, made, b"b0", partition=1)
    first = Session(raw, made)
    numbers = {number_of(one): one.partition_session.partition_id for one in (first.started(), first.started())}
    assert {one.data for one in first.read(2)} == {b"a0", b"b0"}
    second = Session(raw, made)
    stop = first.receive("stop_partition_session_request")
    assert stop.graceful
    moving = numbers[stop.partition_session_id]
    # It gets nothing more, and may still commit what it has.
    write(raw, made, b"late", partition=moving)
    first.commit(stop.partition_session_id, (0, 1))
    assert first.committed() == {stop.partition_session_id: 1}
    first.stream.send(stop_partition_session_response={"partition_session_id": stop.partition_session_id})
    request = second.started()
    assert (request.partition_session.partition_id, request.committed_offset) == (moving, 1)
    assert [one.data for one in second.read(1)] == [b"late"]
    # Who goes away without a word leaves everything to the others.
    first.stream.cancel()
    assert second.started().partition_session.partition_id == 1 - moving
    assert len(second.read(1)) == 1
    second.end()


def test_a_position_is_set_from_outside(raw: RawClient, made: str) -> None:
    write(raw, made, *[b"x"] * 5)
    session = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    number = number_of(session.started())
    session.read(5)
    place = {"path": made, "partition_id": 0, "consumer": "c"}
    raw.result("CommitOffset", **place, offset=4, read_session_id=session.session_id)
    assert session.committed() == {number: 4}
    session.commit(number, (0, 5))
    assert session.committed() == {number: 5}
    raw.result("CommitOffset", **place, offset=2)
    assert session.refusal()[0] == Status.SESSION_EXPIRED
    again = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    assert again.started().committed_offset == 2
    assert len(again.read(3)) == 3
    again.end()
    for wrong, status in (
        ({"offset": 6}, Status.BAD_REQUEST),
        ({"offset": -1}, Status.BAD_REQUEST),
        ({"offset": 1, "partition_id": 9}, Status.BAD_REQUEST),
        ({"offset": 1, "consumer": "nobody"}, Status.BAD_REQUEST),
        ({"offset": 1, "read_session_id": "nobody's"}, Status.SESSION_EXPIRED),
        ({"offset": 1, "path": f"{made}/nowhere"}, Status.SCHEME_ERROR),
    ):
        assert raw.call("CommitOffset", **{**place, **wrong}).status == status


def test_what_was_confirmed_behind_a_hole_is_stored_when_somebody_else_fills_it(raw: RawClient, made: str) -> None:
    write(raw, made, *[b"x"] * 5)
    session = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    number = number_of(session.started())
    session.commit(number, (1, 3))
    session.stream.send(partition_session_status_request={"partition_session_id": number})
    assert session.receive("partition_session_status_response").committed_offset == 0
    place = {"path": made, "partition_id": 0, "consumer": "c"}
    raw.result("CommitOffset", **place, offset=1, read_session_id=session.session_id)
    assert session.committed() == {number: 1}
    assert session.committed() == {number: 3}
    found = raw.result("DescribeConsumer", path=made, consumer="c")
    assert found.partitions[0].partition_consumer_stats.committed_offset == 3
    session.end()


def test_readers_end_with_their_topic_or_consumer(raw: RawClient, made: str) -> None:
    session = Session(raw, made)
    session.started()
    raw.result("AlterTopic", path=made, drop_consumers=["c"])
    assert session.refusal()[0] == Status.BAD_REQUEST
    session = Session(raw, consumer="", topics_read_settings=[{"path": made, "partition_ids": [0]}])
    session.started()
    raw.result("DropTopic", path=made)
    assert session.refusal()[0] == Status.SCHEME_ERROR


def test_partitions_that_are_added_are_read(raw: RawClient, made: str) -> None:
    session = Session(raw, made)
    assert {session.started().partition_session.partition_id for _ in range(2)} == {0, 1}
    raw.result("AlterTopic", path=made, alter_partitioning_settings={"set_min_active_partitions": 3})
    assert session.started().partition_session.partition_id == 2
    write(raw, made, b"new", partition=2)
    assert [one.data for one in session.read(1)] == [b"new"]
    session.end()


def test_a_large_batch_comes_in_parts(raw: RawClient, made: str) -> None:
    bodies = [bytes([number % 256]) * 3000 for number in range(1000)] + [bytes(3_000_000)] + [b"last"]
    write(raw, made, *bodies)
    session = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    session.started()
    found: list[bytes] = []
    while len(found) < len(bodies):
        response = session.receive("read_response")
        part = [one.data for data in response.partition_data for batch in data.batches for one in batch.message_data]
        assert response.bytes_size < 1_100_000 or len(part) == 1
        found += part
    assert found == bodies
    session.end()


def status_of(session: Session, number: int) -> Any:
    session.stream.send(partition_session_status_request={"partition_session_id": number})
    return session.receive("partition_session_status_response")


def after(raw: RawClient, path: str) -> int:
    """Ms since the epoch later than what was written so far, and past."""
    session = Session(raw, path, topics_read_settings=[{"path": path, "partition_ids": [0]}])
    last = status_of(session, number_of(session.started())).write_time_high_watermark
    session.end()
    written = last.seconds * 1000 + last.nanos // 1_000_000
    while time.time_ns() // 1_000_000 <= written + 2:
        pass
    return int(written) + 1


def test_reading_begins_at_a_time(raw: RawClient, made: str) -> None:
    for body in (b"0", b"1", b"2"):
        write(raw, made, body, body)
    later = after(raw, made)
    write(raw, made, b"new")
    read_from = {"seconds": later // 1000, "nanos": later % 1000 * 1_000_000}
    session = Session(raw, made, topics_read_settings=[{"path": made, "partition_ids": [0], "read_from": read_from}])
    request = session.started()
    assert (request.committed_offset, request.partition_offsets.start) == (0, 0)
    assert [(one.offset, one.data) for one in session.read(1)] == [(6, b"new")]
    session.commit(number_of(request), (0, 7))
    assert session.committed() == {number_of(request): 7}, "what was left out is committed with what was read"
    session.end()
    # A consumer may have a time of its own; the later one counts.
    raw.result("AlterTopic", path=made, add_consumers=[{"name": "late", "read_from": read_from}])
    late = Session(raw, made, consumer="late", topics_read_settings=[{"path": made, "partition_ids": [0]}])
    late.started()
    assert [one.offset for one in late.read(1)] == [6]
    late.end()


def test_what_is_too_old_is_left_out(raw: RawClient, made: str) -> None:
    write(raw, made, b"0", b"1")
    after(raw, made)
    settings = {"path": made, "partition_ids": [0], "max_lag": {"nanos": 1_000_000}}
    session = Session(raw, made, topics_read_settings=[settings])
    assert status_of(session, number_of(session.started())).read_offset == 2
    session.end()
    session = Session(raw, made, topics_read_settings=[{**settings, "max_lag": {"seconds": 3600}}])
    session.started()
    assert [one.data for one in session.read(2)] == [b"0", b"1"]
    session.end()


def test_commits_in_very_many_pieces(raw: RawClient, made: str) -> None:
    write(raw, made, *[b""] * 30_000)
    session = Session(raw, made, credit=0, topics_read_settings=[{"path": made, "partition_ids": [0]}])
    number = number_of(session.started())
    session.commit(number, *((start, start + 1) for start in range(19_998, 0, -2)))
    session.commit(number, *((start, start + 1) for start in range(19_999, 0, -2)))
    session.commit(number, (0, 1))
    while session.committed() != {number: 20_000}:
        pass
    # With a hole before each they are bounded, and so is a message.
    session.commit(number, *((start, start + 1) for start in range(20_001, 30_000, 2)))
    session.commit(number, *((start, start + 1) for start in range(20_002, 30_000, 2)))
    session.stream.send_raw(b"\x1a\x80\x80\x80\x01" + bytes(2 << 20))
    assert session.refusal()[0] == Status.BAD_REQUEST


def test_a_consumer_that_reads_is_shown_as_a_group(ydb_node: NodeProcess, raw: RawClient, made: str) -> None:
    consumer = f"c-{made[7:]}"
    raw.result("AlterTopic", path=made, add_consumers=[{"name": consumer}])
    write(raw, made, b"0", b"1", b"2")
    session = Session(raw, made, consumer=consumer, reader_name="reader 7")
    requests = {one.partition_session.partition_id: number_of(one) for one in (session.started(), session.started())}
    session.read(3)
    session.commit(requests[0], (0, 2))
    session.committed()
    with urllib.request.urlopen(f"{ydb_node.console}/api/groups/{consumer}") as response:
        group = json.load(response)
    assert (group["fronts"], group["kind"], group["state"], group["lag"]) == (["ydb"], "consumer", "Stable", 1)
    (member,) = group["members"]
    assert (member["member_id"], member["client_id"]) == (session.session_id, "reader 7")
    assert member["partitions"] == {made[7:]: [0, 1]}
    assert (group["positions"][0]["offset"], group["positions"][0]["member_id"]) == (2, session.session_id)
    session.end()


def test_members_are_shown_as_what_they_call_themselves(ydb_node: NodeProcess, made: str) -> None:
    consumer = f"c-{made[7:]}"
    headers = {"x_ydb_sdk_build_info": "some-sdk/1.2", "x_ydb_application_name": "billing"}
    with RawClient(ydb_node.ydb, **headers) as raw, RawClient(ydb_node.ydb) as plain:
        raw.result("AlterTopic", path=made, add_consumers=[{"name": consumer}])
        sessions = [
            Session(raw, made, consumer=consumer, reader_name="reader 7"),
            Session(raw, made, consumer=consumer),
            Session(plain, made, consumer=consumer),
        ]
        with urllib.request.urlopen(f"{ydb_node.console}/api/groups/{consumer}") as response:
            members = {member["member_id"]: member for member in json.load(response)["members"]}
        shown = [members[session.session_id] for session in sessions]
        assert [member["client_id"] for member in shown[:2]] == ["reader 7", "billing"]
        assert [member["software"] for member in shown[:2]] == ["some-sdk/1.2"] * 2
        assert shown[2]["client_id"] == shown[2]["software"] != ""
        assert "grpc" in shown[2]["software"], "at least which library it calls with"
        assert {member["host"] for member in shown} == {"127.0.0.1"}
        assert {member["user"] for member in shown} == {""}
        command = [sys.executable, "-m", "bridges", "group", consumer, "--node", ydb_node.console]
        table = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "some-sdk/1.2" in table
        assert "SOFTWARE" in table
        assert "USER" not in table, "nobody has said who it is"
        for session in sessions:
            session.end()


def ended(session: Session) -> grpc.StatusCode | None:
    """What a stream is ended with before all was read; None if it is not."""
    try:
        session.read(40_000)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return code
    return None


def test_who_takes_nothing_is_cut_while_memory_is_short(node_factory: NodeFactory) -> None:
    """Others read on, and clients that go away in the middle of an answer are nobody's failure."""
    settings = {**TEST_SETTINGS, "limits.connections_memory_bytes": "32MiB", "ydb.reader_patience_ms": "2s"}
    node = node_factory(settings=settings, listen=LISTEN)
    with RawClient(node.ydb) as raw, RawClient(node.ydb) as stuck:
        raw.result("CreateTopic", path="t", consumers=[{"name": "c"}])
        for _ in range(40):
            write(raw, "t", *[bytes(1000)] * 1000)
        wanted = [{"path": "t", "partition_ids": [0]}]
        sessions = [Session(stuck, consumer="", credit=1 << 40, topics_read_settings=wanted) for _ in range(60)]
        for session in sessions:
            session.started()
        reader = Session(raw, consumer="", credit=1 << 40, topics_read_settings=wanted)
        reader.started()
        assert len(reader.read(40_000)) == 40_000
        # Mostly some have been cut by now. Each of them is told so when it takes something again; others read on.
        ends = [ended(session) for session in sessions[:10]]
        assert set(ends) <= {None, grpc.StatusCode.UNAVAILABLE}
        for session in sessions:
            session.stream.cancel()
        reader.end()
    node.terminate()
    log = node.log.read_text()
    assert "a callback failed" not in log
    assert '"level": "error"' not in log
