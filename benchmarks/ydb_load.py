"""Writers and readers of YDB's topics for benchmarks: raw gRPC with requests made beforehand, and the SDK."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import Any

import grpc
import ydb
import ydb.aio

from ydb_topic_front.wire.messages import (
    StreamReadFromClient,
    StreamReadFromServer,
    StreamWriteFromClient,
    StreamWriteFromServer,
    messages,
)
from ydb_topic_front.wire.methods import METHODS
from ydb_topic_front.wire.statuses import Status

MESSAGE_BYTES = 1000
WINDOW = 32
"""Requests, or for the SDK calls of ``write``, that a writer has on its way."""
WINDOW_BYTES = 6_000_000
CREDIT = 16 * 1024 * 1024
DATABASE = "/local"
_METADATA = (("x-ydb-database", DATABASE),)
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def requests_of(batch: int, number: int, size: int = MESSAGE_BYTES) -> list[bytes]:
    """``number`` WriteRequests of ``batch`` messages of ``size`` bytes, as the SDK for Python sends them."""
    data = os.urandom(size)
    numbers = itertools.count(1)
    made = []
    for _ in range(number):
        message = StreamWriteFromClient()
        message.write_request.codec = 1
        now = time.time_ns()
        for index in range(batch):
            one = message.write_request.messages.add(seq_no=next(numbers), data=data, uncompressed_size=size)
            one.created_at.seconds, one.created_at.nanos = (now + index) // 10**9, (now + index) % 10**9
        made.append(message.SerializeToString())
    return made


class Raw:
    """A channel without an SDK."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)

    async def close(self) -> None:
        await self._channel.close()

    async def create(self, path: str, partitions: int, consumer: str) -> None:
        """Make a topic with a consumer."""
        method = METHODS["CreateTopic"]
        settings = {"min_active_partitions": partitions}
        request = messages[method.request](path=path, partitioning_settings=settings, consumers=[{"name": consumer}])
        raw = await self._channel.unary_unary(method.path)(request.SerializeToString(), metadata=_METADATA)
        operation = messages[method.response].FromString(raw).operation
        assert operation.status == Status.SUCCESS, operation

    async def write(self, path: str, partition: int, requests: list[bytes], producer: str) -> None:
        """Send all requests in one stream, some at a time; return when all are acknowledged."""
        call = self._channel.stream_stream(METHODS["StreamWrite"].path)(metadata=_METADATA)
        init = StreamWriteFromClient()
        init.init_request.path = path
        init.init_request.producer_id = producer
        init.init_request.partition_id = partition
        await call.write(init.SerializeToString())
        assert StreamWriteFromServer.FromString(await call.read()).status == Status.SUCCESS
        window = asyncio.Semaphore(min(WINDOW, max(2, WINDOW_BYTES // len(requests[0]))))

        async def send() -> None:
            for request in requests:
                await window.acquire()
                await call.write(request)

        sending = asyncio.create_task(send())
        for _ in requests:
            raw = await call.read()
            assert raw is not grpc.aio.EOF, "the stream ended"
            window.release()
        await sending
        response = StreamWriteFromServer.FromString(raw)
        last = StreamWriteFromClient.FromString(requests[-1]).write_request.messages[-1].seq_no
        assert response.write_response.acks[-1].seq_no == last, response
        assert response.write_response.acks[-1].HasField("written")
        await call.done_writing()
        call.cancel()

    async def read(
        self, path: str, partition: int, consumer: str, number: int, credit: int = CREDIT, rest: float = 0.0
    ) -> None:
        """Take ``number`` messages of a partition, giving back the credit of every response, after so many seconds."""
        call = self._channel.stream_stream(METHODS["StreamRead"].path)(metadata=_METADATA)
        init = StreamReadFromClient()
        init.init_request.consumer = consumer
        init.init_request.topics_read_settings.add(path=path, partition_ids=[partition])
        await call.write(init.SerializeToString())
        first = StreamReadFromClient()
        first.read_request.bytes_size = credit
        await call.write(first.SerializeToString())
        found = 0
        while found < number:
            message = StreamReadFromServer.FromString(await call.read())
            assert message.status == Status.SUCCESS, message
            if message.HasField("start_partition_session_request"):
                session = message.start_partition_session_request.partition_session.partition_session_id
                reply: Any = StreamReadFromClient()
                reply.start_partition_session_response.partition_session_id = session
                await call.write(reply.SerializeToString())
            elif message.HasField("read_response"):
                response = message.read_response
                found += sum(len(batch.message_data) for data in response.partition_data for batch in data.batches)
                if rest:
                    await asyncio.sleep(rest)
                again = StreamReadFromClient()
                again.read_request.bytes_size = response.bytes_size
                await call.write(again.SerializeToString())
        call.cancel()


class Sdk:
    """YDB's SDK for Python with asyncio."""

    def __init__(self, address: str) -> None:
        self._driver = ydb.aio.Driver(endpoint=f"grpc://{address}", database=DATABASE)

    async def open(self) -> None:
        await self._driver.wait(timeout=60, fail_fast=True)

    async def close(self) -> None:
        await self._driver.stop()

    async def write(self, path: str, partition: int, batch: int, number: int) -> None:
        """``number`` calls of write with ``batch`` messages each, then wait for the last acknowledgement."""
        data: Any = [os.urandom(MESSAGE_BYTES)] * batch
        client: Any = self._driver.topic_client  # the SDK's own hints do not fit its codecs
        async with client.writer(path, partition_id=partition, codec=ydb.TopicCodec.RAW) as writer:
            for call in range(number):
                await writer.write(data)
                if call % WINDOW == WINDOW - 1:
                    await writer.flush()
            await writer.flush()

    async def read(self, path: str, partition: int, consumer: str, number: int) -> None:
        """Take ``number`` messages in the batches that the SDK makes."""
        selector = ydb.TopicReaderSelector(path=path, partitions=[partition])
        async with self._driver.topic_client.reader(selector, consumer) as reader:
            found = 0
            while found < number:
                found += len((await reader.receive_batch()).messages)
