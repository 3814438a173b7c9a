"""Transactions of topics, call by call: what YDB's server answers (docs/ydb.md, "Transactions")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.ydb_topic_front.raw import RawClient, RawStream
from tests.ydb_topic_front.reading import Session as Reader
from tests.ydb_topic_front.reading import write as written
from tests.ydb_topic_front.service.test_write import Session
from ydb_topic_front.wire.messages import messages
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.statuses import Status

IN_TX = "written_in_tx"
MODE: dict[str, Any] = {"serializable_read_write": {}}


@pytest.fixture
def path(raw: RawClient, topic: str) -> str:
    found = f"/local/{topic}"
    raw.result("CreateTopic", path=found, consumers=[{"name": "c"}], partitioning_settings={"min_active_partitions": 2})
    return found


def ask(raw: RawClient, name: str, **fields: Any) -> Any:
    """The query service's answer to a call."""
    method = METHODS[f"Query.{name}"]
    request = messages[method.request](**fields).SerializeToString()
    return messages[method.response].FromString(raw.bytes(method.path, request))


class Client:
    """A session that a stream is attached to."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw
        created = ask(raw, "CreateSession")
        assert created.status == Status.SUCCESS
        assert f"node_id={created.node_id}&" in created.session_id
        self.id = created.session_id
        self.stream: RawStream = raw.stream("Query.AttachSession")
        self.stream.send(session_id=self.id)
        assert self.stream.receive().status == Status.SUCCESS

    def begin(self) -> dict[str, str]:
        """The identity of a new transaction."""
        begun = ask(self.raw, "BeginTransaction", session_id=self.id, tx_settings=MODE)
        assert begun.status == Status.SUCCESS, begun
        return {"id": begun.tx_meta.id, "session": self.id}

    def commit(self, tx: dict[str, str]) -> Any:
        return ask(self.raw, "CommitTransaction", session_id=self.id, tx_id=tx["id"])

    def rollback(self, tx: dict[str, str]) -> Any:
        return ask(self.raw, "RollbackTransaction", session_id=self.id, tx_id=tx["id"])

    def read(self, tx: dict[str, str], path: str, *ranges: tuple[int, int], consumer: str = "c") -> Any:
        """Add offsets of partition 0 that a consumer has read."""
        offsets = [{"start": start, "end": end} for start, end in ranges]
        topics = [{"path": path, "partitions": [{"partition_id": 0, "partition_offsets": offsets}]}]
        return self.raw.call("UpdateOffsetsInTransaction", tx=tx, consumer=consumer, topics=topics)

    def execute(self, text: str, **control: Any) -> Any:
        stream = self.raw.stream("Query.ExecuteQuery")
        stream.send(session_id=self.id, tx_control=control, query_content={"text": text})
        (part,) = stream.rest()
        return part


@pytest.fixture
def client(raw: RawClient) -> Iterator[Client]:
    client = Client(raw)
    yield client
    client.stream.cancel()


class Writer(Session):
    """A write session whose requests may belong to transactions."""

    def stage(self, tx: dict[str, str], *seq_nos: int) -> list[tuple[int, str]]:
        data = [{"seq_no": seq_no, "data": b"%d" % seq_no} for seq_no in seq_nos]
        self.stream.send(write_request={"messages": data, "codec": 1, "tx": tx})
        answer = self.stream.receive()
        assert answer.status == Status.SUCCESS, answer
        return [(ack.seq_no, ack.WhichOneof("message_write_status")) for ack in answer.write_response.acks]


def text_of(answer: Any) -> str:
    return str(answer.issues[0].message)


def end_of(raw: RawClient, path: str, partition: int = 0) -> int:
    found = raw.result("DescribePartition", path=path, partition_id=partition, include_stats=True)
    return int(found.partition.partition_stats.partition_offsets.end)


def bodies(raw: RawClient, path: str, count: int) -> list[bytes]:
    reader = Reader(raw, path, consumer="c")
    for _ in range(2):
        reader.started()
    found = [message.data for message in reader.read(count)]
    reader.end()
    return found


def test_nothing_of_a_transaction_is_there_before_its_commit_and_all_of_it_after(
    raw: RawClient, path: str, client: Client
) -> None:
    tx = client.begin()
    writer, other = Writer(raw, path, partition_id=0, producer_id="p"), Writer(raw, path, partition_id=1)
    assert writer.stage(tx, 1, 2) == [(1, IN_TX), (2, IN_TX)]
    assert other.stage(tx, 7) == [(7, IN_TX)]
    assert (end_of(raw, path, 0), end_of(raw, path, 1)) == (0, 0)
    assert other.write(8) == [(8, 0)]  # an ordinary message of the same stream
    assert Writer(raw, path, partition_id=0, producer_id="p").init.last_seq_no == 0
    assert client.commit(tx).status == Status.SUCCESS
    assert sorted(bodies(raw, path, 4)) == [b"1", b"2", b"7", b"data"]
    assert Writer(raw, path, partition_id=0, producer_id="p").init.last_seq_no == 2
    assert client.rollback(tx).status == Status.NOT_FOUND


def test_what_is_rolled_back_was_never_there(raw: RawClient, path: str, client: Client) -> None:
    tx = client.begin()
    writer = Writer(raw, path, partition_id=0, producer_id="p")
    writer.stage(tx, 1)
    assert client.rollback(tx).status == Status.SUCCESS
    again = client.begin()
    assert writer.stage(again, 1) == [(1, IN_TX)]
    assert client.commit(again).status == Status.SUCCESS
    assert bodies(raw, path, 1) == [b"1"]


def test_a_number_that_was_staged_is_skipped_through_any_stream(raw: RawClient, path: str, client: Client) -> None:
    tx = client.begin()
    first = Writer(raw, path, partition_id=0, producer_id="p")
    first.stage(tx, 1, 2)
    second = Writer(raw, path, partition_id=0, producer_id="p")
    assert second.stage(tx, 1, 2, 3) == [(1, "skipped"), (2, "skipped"), (3, IN_TX)]
    assert second.stage(tx, 3) == [(3, "skipped")]
    assert client.commit(tx).status == Status.SUCCESS
    assert bodies(raw, path, 3) == [b"1", b"2", b"3"]


def test_without_a_producer_all_that_is_staged_is_stored(raw: RawClient, path: str, client: Client) -> None:
    tx = client.begin()
    writer = Writer(raw, path, partition_id=0)
    assert [writer.stage(tx, 1), writer.stage(tx, 1)] == [[(1, IN_TX)], [(1, IN_TX)]]
    assert client.commit(tx).status == Status.SUCCESS
    assert bodies(raw, path, 2) == [b"1", b"1"]


def test_a_producer_s_numbers_are_compared_at_the_commit(raw: RawClient, path: str, client: Client) -> None:
    early, late = client.begin(), client.begin()
    writer = Writer(raw, path, partition_id=0, producer_id="p")
    writer.stage(early, 1)
    writer.stage(late, 2)
    assert client.commit(late).status == Status.SUCCESS
    answer = client.commit(early)
    assert answer.status == Status.ABORTED
    assert "MinSeqNo violation failure" in text_of(answer)
    tx = client.begin()
    writer.stage(tx, 3)
    assert client.commit(tx).status == Status.SUCCESS
    assert bodies(raw, path, 2) == [b"2", b"3"]


def test_offsets_are_committed_only_from_where_the_consumer_is(raw: RawClient, path: str) -> None:
    written(raw, path, b"a", b"b", b"c")
    first, second = Client(raw), Client(raw)
    one, other = first.begin(), second.begin()
    assert first.read(one, path, (0, 1), (1, 2)).status == Status.SUCCESS
    assert second.read(other, path, (0, 1)).status == Status.SUCCESS
    assert first.commit(one).status == Status.SUCCESS
    assert second.commit(other).status == Status.ABORTED
    third = second.begin()
    assert second.read(third, path, (2, 3)).status == Status.SUCCESS
    raw.result("CommitOffset", path=path, partition_id=0, consumer="c", offset=3)
    assert second.commit(third).status == Status.ABORTED
    found = raw.result("DescribeConsumer", path=path, consumer="c", include_stats=True)
    assert found.partitions[0].partition_consumer_stats.committed_offset == 3


def test_writes_of_a_transaction_whose_offsets_are_refused_are_not_there(raw: RawClient, path: str) -> None:
    written(raw, path, b"a")
    client = Client(raw)
    tx = client.begin()
    writer = Writer(raw, path, partition_id=1, producer_id="p")
    writer.stage(tx, 1)
    client.read(tx, path, (0, 1))
    raw.result("CommitOffset", path=path, partition_id=0, consumer="c", offset=1)
    assert client.commit(tx).status == Status.ABORTED
    again = client.begin()
    writer.stage(again, 1)  # the refused one has not used the number
    assert client.commit(again).status == Status.SUCCESS
    assert bodies(raw, path, 1) == [b"1"]


def test_a_read_session_goes_on_behind_a_commit(raw: RawClient, path: str, client: Client) -> None:
    written(raw, path, b"a", b"b")
    reader = Reader(raw, path, consumer="c")
    sessions = [reader.started(), reader.started()]
    session = next(one for one in sessions if one.partition_session.partition_id == 0)
    assert len(reader.read(2)) == 2
    tx = client.begin()
    client.read(tx, path, (0, 2))
    assert client.commit(tx).status == Status.SUCCESS
    written(raw, path, b"c")
    assert [message.data for message in reader.read(1)] == [b"c"]
    number = session.partition_session.partition_session_id
    reader.commit(number, (2, 3))
    assert reader.committed() == {number: 3}


@pytest.mark.parametrize(
    ("ranges", "consumer", "status"),
    [
        ([(0, 2), (1, 3)], "c", Status.BAD_REQUEST),
        ([(0, 0)], "c", Status.BAD_REQUEST),
        ([(0, 1)], "unknown", Status.BAD_REQUEST),
    ],
)
def test_offsets_that_cannot_be_are_refused(
    raw: RawClient, path: str, client: Client, ranges: list[tuple[int, int]], consumer: str, status: Status
) -> None:
    assert client.read(client.begin(), path, *ranges, consumer=consumer).status == status


def test_a_hole_between_offsets_aborts_the_commit(raw: RawClient, path: str, client: Client) -> None:
    written(raw, path, b"a", b"b", b"c")
    tx = client.begin()
    assert client.read(tx, path, (0, 1), (2, 3)).status == Status.SUCCESS
    assert client.commit(tx).status == Status.ABORTED


def test_offsets_beyond_the_end_abort_the_commit(raw: RawClient, path: str, client: Client) -> None:
    tx = client.begin()
    client.read(tx, path, (0, 1))
    assert client.commit(tx).status == Status.ABORTED


def test_what_is_unknown_is_told(raw: RawClient, path: str, client: Client) -> None:
    gone = "ydb://session/3?node_id=1&id=gone"
    assert ask(raw, "BeginTransaction", session_id=gone, tx_settings=MODE).status == Status.BAD_SESSION
    assert ask(raw, "BeginTransaction", session_id="gone", tx_settings=MODE).status == Status.BAD_REQUEST
    assert ask(raw, "DeleteSession", session_id=gone).status == Status.SUCCESS
    stream = raw.stream("Query.AttachSession")
    stream.send(session_id=gone)
    assert [one.status for one in stream.rest()] == [Status.BAD_SESSION]
    unknown = {"id": "LAZY_TX", "session": client.id}
    for answer in (client.commit(unknown), client.rollback(unknown), client.read(unknown, path, (0, 1))):
        assert (answer.status, text_of(answer)) == (Status.NOT_FOUND, "Transaction not found: LAZY_TX")
        assert answer.issues[0].issue_code == 2015
    writer = Writer(raw, path, partition_id=0)
    writer.stream.send(write_request={"messages": [{"seq_no": 1}], "codec": 1, "tx": unknown})
    (last,) = writer.stream.rest()
    assert (last.status, text_of(last)) == (Status.NOT_FOUND, "Transaction not found: LAZY_TX")
    assert client.commit({"id": ""}).status == Status.BAD_REQUEST
    assert raw.call("UpdateOffsetsInTransaction", consumer="c").status == Status.BAD_REQUEST
    assert client.read(client.begin(), f"{path}-gone", (0, 1)).status == Status.SCHEME_ERROR


@pytest.mark.parametrize("settings", [None, {}, {"online_read_only": {}}, {"stale_read_only": {}}], ids=str)
def test_modes_without_open_transactions(raw: RawClient, client: Client, settings: Any) -> None:
    assert ask(raw, "BeginTransaction", session_id=client.id, tx_settings=settings).status == Status.BAD_REQUEST


def test_a_session_has_ten_open_transactions(client: Client) -> None:
    some = [client.begin() for _ in range(10)]
    refused = ask(client.raw, "BeginTransaction", session_id=client.id, tx_settings=MODE)
    assert refused.status == Status.BAD_SESSION
    client.rollback(some[0])
    client.begin()


def test_a_session_ends_with_its_stream_and_its_transactions_with_it(raw: RawClient, path: str) -> None:
    client = Client(raw)
    tx = client.begin()
    writer = Writer(raw, path, partition_id=0, producer_id="p")
    writer.stage(tx, 1)
    assert ask(raw, "DeleteSession", session_id=client.id).status == Status.SUCCESS
    assert client.stream.rest() == []
    assert client.commit(tx).status == Status.BAD_SESSION
    other = Client(raw)
    other.stream.cancel()
    with pytest.raises(grpc.RpcError):
        other.stream.rest()
    while ask(raw, "BeginTransaction", session_id=other.id, tx_settings=MODE).status != Status.BAD_SESSION:
        pass  # the node learns that the client has gone
    assert end_of(raw, path) == 0


def test_a_query_is_one_literal(raw: RawClient, path: str, client: Client) -> None:
    part = client.execute("SELECT 1", begin_tx=MODE)
    assert part.status == Status.SUCCESS
    assert part.result_set.rows[0].items[0].int32_value == 1
    tx = {"id": part.tx_meta.id, "session": client.id}
    Writer(raw, path, partition_id=0).stage(tx, 1)
    part = client.execute("select 'x' as res;", tx_id=tx["id"], commit_tx=True)
    assert (part.result_set.columns[0].name, part.result_set.rows[0].items[0].bytes_value) == ("res", b"x")
    assert bodies(raw, path, 1) == [b"1"]
    refused = client.execute("SELECT * FROM t")
    assert refused.status == Status.UNSUPPORTED
    assert "SELECT" in text_of(refused)


def test_a_topic_that_is_deleted_meanwhile_aborts_the_commit(raw: RawClient, path: str, client: Client) -> None:
    tx = client.begin()
    Writer(raw, path, partition_id=0).stage(tx, 1)
    raw.result("DropTopic", path=path)
    raw.result("CreateTopic", path=path)
    assert client.commit(tx).status == Status.ABORTED
    assert end_of(raw, path) == 0
