"""A gRPC server that only does what no server of YDB's topics can do without: `python -m benchmarks.ydb_bare`.

It parses what writers send and acknowledges every message, in order, without keeping anything; to readers it sends the
same response over and over as long as they give credit. Prints its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from bridges.net.grpc_server import GrpcLimits, options
from ydb_topic_front.wire.messages import (
    StreamReadFromClient,
    StreamReadFromServer,
    StreamWriteFromClient,
    StreamWriteFromServer,
    messages,
)
from ydb_topic_front.wire.methods import DISCOVERY, METHODS, TOPIC
from ydb_topic_front.wire.operation import answer
from ydb_topic_front.wire.statuses import Status

_LIMITS = GrpcLimits(message_bytes=64_000_000, streams=1000, streams_per_connection=100, idle_seconds=600)


async def _write(_: object, context: Any) -> None:
    """One StreamWrite: a message parsed and an ack for each, as a plain server would."""
    offset = 0
    while True:
        raw = await context.read()
        if raw is grpc.aio.EOF:
            return
        request = StreamWriteFromClient.FromString(raw)
        response = StreamWriteFromServer(status=Status.SUCCESS)
        if request.HasField("write_request"):
            acks = response.write_response.acks
            for message in request.write_request.messages:
                ack = acks.add()
                ack.seq_no = message.seq_no
                ack.written.offset = offset
                offset += 1
            response.write_response.write_statistics.persisting_time.nanos = 1
        else:
            response.init_response.session_id = "bare"
            response.init_response.partition_id = 0
        await context.write(response.SerializeToString())


def _batch(count: int, size: int) -> tuple[bytes, int]:
    """A read_response of ``count`` messages, and the bytes of credit it takes."""
    response = StreamReadFromServer(status=Status.SUCCESS)
    data = response.read_response.partition_data.add(partition_session_id=1)
    batch = data.batches.add(producer_id="bare", codec=1)
    for number in range(count):
        batch.message_data.add(offset=number, seq_no=number + 1, data=bytes(size), uncompressed_size=size)
    response.read_response.bytes_size = response.ByteSize()
    raw: bytes = response.SerializeToString()
    return raw, response.read_response.bytes_size


async def _read(_: object, context: Any) -> None:
    """One StreamRead of a consumer whose name is the number of messages in each response."""
    raw = await context.read()
    request = StreamReadFromClient.FromString(raw).init_request
    response, cost = _batch(int(request.consumer), 1000)
    opened = StreamReadFromServer(status=Status.SUCCESS)
    opened.init_response.session_id = "bare"
    await context.write(opened.SerializeToString())
    start = StreamReadFromServer(status=Status.SUCCESS)
    start.start_partition_session_request.partition_session.partition_session_id = 1
    start.start_partition_session_request.partition_session.path = request.topics_read_settings[0].path
    start.start_partition_session_request.partition_offsets.end = 1 << 40
    await context.write(start.SerializeToString())
    credit, started, given = 0, False, asyncio.Event()

    async def credits_of() -> None:
        nonlocal credit, started
        while (raw := await context.read()) is not grpc.aio.EOF:
            message = StreamReadFromClient.FromString(raw)
            if message.HasField("read_request"):
                credit += message.read_request.bytes_size
            elif message.HasField("start_partition_session_response"):
                started = True
            given.set()

    reading = asyncio.create_task(credits_of())
    try:
        while True:
            while started and credit > 0:
                credit -= cost
                await context.write(response)
            given.clear()
            await given.wait()
    finally:
        reading.cancel()


async def _serve() -> None:
    server = grpc.aio.server(options=options(_LIMITS))
    streams = {"StreamWrite": _write, "StreamRead": _read}
    handlers = {name: grpc.stream_stream_rpc_method_handler(handler) for name, handler in streams.items()}
    endpoints = messages["Ydb.Discovery.ListEndpointsResult"]()

    async def list_endpoints(raw: bytes, context: object) -> bytes:
        return answer(METHODS["ListEndpoints"], endpoints)

    found = {"ListEndpoints": grpc.unary_unary_rpc_method_handler(list_endpoints)}
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(TOPIC, handlers), grpc.method_handlers_generic_handler(DISCOVERY, found)]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    endpoints.endpoints.add(address="127.0.0.1", port=port, node_id=1)
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_serve())
