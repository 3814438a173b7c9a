"""Reads one partition of a YDB topic without a consumer: it commits nothing and disturbs no other reader."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from bridges.formats import FormatId
from bridges.formats.codecs.ydb import Codec
from bridges.formats.protobuf import put_bytes, put_varint
from bridges.formats.records import StoredBatch
from bridges.formats.ydb import DELTA_TAG, Head, created_ms, encode_batch
from spark_pipeline.core.errors import EndpointUnavailable, OffsetsGone, PipelineError
from spark_pipeline.core.ranges import OffsetRange
from spark_pipeline.endpoints.ydb.client import (
    CREDIT_BYTES,
    FromClient,
    Interrupted,
    WriteRequest,
    YdbClient,
    YdbStream,
)

_READER = "anabranch-pipeline"
_IDLE_S = 0.1
"""Seconds without a message before the reader asks for the server's position: the last offsets may have no messages."""
_SURE = 2
"""Consecutive positions at the end that prove it: a server may report its position before it sends what is below."""
_RETRY_S = 0.2


class YdbReading:
    """A reader of one topic's partitions, at ``path``."""

    def __init__(self, client: YdbClient, path: str) -> None:
        self._client = client
        self._path = path
        self._patience = client.options.patience

    def batches(self, wanted: OffsetRange) -> Iterator[StoredBatch]:
        """Yield the batches of a range, in order. A stream that ends is opened again at the reached offset.

        Raises OffsetsGone; EndpointUnavailable when nothing came until the client's patience ended.
        """
        at = wanted.start
        heard = time.monotonic()
        while at < wanted.end:
            try:
                for batch in self._once(wanted.within(at, wanted.end)):
                    at = batch.end_offset
                    yield batch
                    heard = time.monotonic()
                return
            except Interrupted:
                if time.monotonic() - heard > self._patience:
                    raise
                time.sleep(_RETRY_S)

    def since(self, topic: str, partition: int, written_ms: int, end: int) -> Generator[StoredBatch, None, None]:
        """Yield the batches written at a time or later, below offset ``end``."""
        yield from self._once(OffsetRange(topic, partition, 0, end), written_ms)

    def _once(self, wanted: OffsetRange, written_ms: int | None = None) -> Iterator[StoredBatch]:
        stream = self._client.stream()
        try:
            session = self._begin(stream, wanted, written_ms)
            yield from self._take(stream, session, wanted)
        finally:
            stream.close()

    def _begin(self, stream: YdbStream, wanted: OffsetRange, written_ms: int | None) -> int:
        """Open the session; return the id of its only partition session."""
        first = FromClient()
        first.init_request.reader_name = _READER
        first.init_request.auto_partitioning_support = True
        topic = first.init_request.topics_read_settings.add(path=self._path, partition_ids=[wanted.partition])
        if written_ms is not None:
            topic.read_from.seconds, rest = divmod(max(written_ms, 0), 1000)
            topic.read_from.nanos = rest * 1_000_000
        stream.send(first)
        deadline = time.monotonic() + self._client.options.timeout
        while True:
            answer = stream.next(max(0.0, deadline - time.monotonic()))
            if answer is None:
                raise Interrupted(f"YDB does not begin to send {wanted.part}")
            if answer.HasField("start_partition_session_request"):
                break
        asked = answer.start_partition_session_request
        if written_ms is None and asked.partition_offsets.start > wanted.start:
            raise OffsetsGone(wanted.topic, wanted.partition, wanted.start, asked.partition_offsets.start)
        session: int = asked.partition_session.partition_session_id
        begun = FromClient()
        begun.start_partition_session_response.partition_session_id = session
        if written_ms is None:
            begun.start_partition_session_response.read_offset = wanted.start
        stream.send(begun)
        stream.send(_credit(CREDIT_BYTES))
        return session

    def _take(self, stream: YdbStream, session: int, wanted: OffsetRange) -> Iterator[StoredBatch]:
        at = wanted.start
        heard = time.monotonic()
        asked, sure = False, 0
        while at < wanted.end:
            answer = stream.next(_IDLE_S)
            if answer is None:
                if time.monotonic() - heard > self._patience:
                    raise EndpointUnavailable(
                        f"YDB sends nothing of {wanted.part} from offset {at} on, and it should up to {wanted.end}"
                    )
                if not asked:
                    request = FromClient()
                    request.partition_session_status_request.partition_session_id = session
                    stream.send(request)
                    asked = True
                continue
            kind = answer.WhichOneof("server_message")
            if kind == "read_response":
                stream.send(_credit(answer.read_response.bytes_size))
                sure = 0
                received = [batch for data in answer.read_response.partition_data for batch in data.batches]
                for batch in (one for some in received for one in stored_batches(some, wanted.start, wanted.end)):
                    if batch.base_offset < at:
                        raise PipelineError(f"YDB sends offset {batch.base_offset} of {wanted.part} behind offset {at}")
                    at = batch.end_offset
                    yield batch
                heard = time.monotonic()  # after the caller has taken the batches, which may be slow
                at = max([at, *(some.message_data[-1].offset + 1 for some in received)])
            elif kind == "partition_session_status_response":
                asked = False
                sure = sure + 1 if answer.partition_session_status_response.read_offset >= wanted.end else 0
                if sure >= _SURE:
                    return
            elif kind == "end_partition_session":
                return  # the partition was split, and all its messages were sent
            elif kind == "stop_partition_session_request":
                raise Interrupted(f"YDB has taken {wanted.part} back")


def _credit(size: int) -> Any:
    request = FromClient()
    request.read_request.bytes_size = size
    return request


_META_TAG = 3 << 3 | 2
"""Tag of an entry of a write session's metadata, in a batch and in an InitRequest."""
_BATCH_BYTES = 4 * 1024 * 1024


def stored_batches(batch: Any, start: int, end: int) -> Iterator[StoredBatch]:
    """Yield the messages of a ``ReadResponse.Batch`` whose offsets are in ``[start, end)``, in batches of a few MiB."""
    some: list[Any] = []
    size = 0
    for one in batch.message_data:
        if not start <= one.offset < end:
            continue
        if some and size + len(one.data) > _BATCH_BYTES:
            yield _stored(batch, some)
            some, size = [], 0
        some.append(one)
        size += len(one.data)
    if some:
        yield _stored(batch, some)


def _stored(batch: Any, messages: Sequence[Any]) -> StoredBatch:
    base, until = messages[0].offset, messages[-1].offset + 1
    sparse = until - base != len(messages)
    producer = batch.producer_id or messages[0].message_group_id
    newest = max(
        (created_ms(one.created_at.seconds, one.created_at.nanos) for one in messages if one.HasField("created_at")),
        default=-1,
    )
    payload = encode_batch(
        Head(
            sparse,
            batch.codec or Codec.RAW,
            len(messages),
            messages[0].seq_no,
            messages[-1].seq_no,
            newest,
            producer.encode(),
            _session_meta(batch.write_session_meta),
        ),
        _written(messages, base if sparse else None),
    )
    written_ms = created_ms(batch.written_at.seconds, batch.written_at.nanos) if batch.HasField("written_at") else -1
    return StoredBatch(base, until, int(FormatId.YDB), payload, written_ms)


def _written(messages: Sequence[Any], base: int | None) -> bytes:
    """Encode the messages as a ``WriteRequest``; with their distances from ``base``, if it is given."""
    request = WriteRequest()
    for one in messages:
        target = request.messages.add()
        target.seq_no = one.seq_no
        if one.HasField("created_at"):
            target.created_at.CopyFrom(one.created_at)
        target.data = one.data
        target.uncompressed_size = one.uncompressed_size
        if one.metadata_items:
            target.metadata_items.extend(one.metadata_items)
        if base is not None:
            place = bytearray((DELTA_TAG,))
            put_varint(place, one.offset - base)
            target.MergeFromString(bytes(place))
    return bytes(request.SerializeToString())


def _session_meta(items: Any) -> bytes:
    """Encode the metadata in the order of their names: a map has no order, and equal batches need equal bytes."""
    out = bytearray()
    for name in sorted(items):
        entry = bytearray()
        put_bytes(entry, 0x0A, name.encode())
        put_bytes(entry, 0x12, items[name].encode())
        put_bytes(out, _META_TAG, entry)
    return bytes(out)
