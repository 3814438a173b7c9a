"""Speed of the Kafka codec beside kio's and kafka-python's: microseconds per operation, best of five.

    python benchmarks/kafka_codec.py [--json]

Every case is checked for equal bytes before it is timed. kio's reader
is native code that copies record bytes; ours gives views of the frame.
"""

from __future__ import annotations

import argparse
import io
import json
import timeit
from collections.abc import Callable
from typing import Any

from kafka.protocol import consumer, metadata, producer
from kio.serial import entity_reader, entity_writer

from kafka_front.wire import codec
from kafka_front.wire import messages as m

Case = tuple[str, Callable[[], Any], Callable[[], Any] | None, Callable[[], Any] | None]


def kio_class(module: str, name: str) -> Any:
    return getattr(__import__(f"kio.schema.{module}", fromlist=[name]), name)


def joined(key: int, version: int, request: bool, message: Any) -> bytes:
    out: list[Any] = []
    (codec.request_encoder if request else codec.response_encoder)(key, version)(message, out)
    return b"".join(out)


def decoding(name: str, key: int, version: int, request: bool, message: Any, module: str, theirs: Any) -> Case:
    data = joined(key, version, request, message)
    decode = (codec.request_decoder if request else codec.response_decoder)(key, version)
    direction = "request" if request else "response"
    read = entity_reader(kio_class(f"{module}.v{version}.{direction}", type(message).__name__))
    assert decode(data, 0) == message
    return (
        f"decode {name}",
        lambda: decode(data, 0),
        lambda: read(data, 0),
        lambda: theirs.decode(data, version=version),
    )


def encoding(name: str, key: int, version: int, build: Callable[[], Any], module: str) -> Case:
    encode = codec.response_encoder(key, version)
    data = joined(key, version, False, build())
    cls = kio_class(f"{module}.v{version}.response", type(build()).__name__)
    entity = entity_reader(cls)(data, 0)[0]
    write = entity_writer(cls)

    def ours() -> list[Any]:
        out: list[Any] = []
        encode(build(), out)
        return out

    def kio() -> bytes:
        out = io.BytesIO()
        write(out, entity)
        return out.getvalue()

    assert b"".join(ours()) == kio()
    return f"build+encode {name}", ours, kio, None


def produce_request(partitions: int, size: int) -> m.ProduceRequest:
    partition = m.ProduceRequest.PartitionProduceData
    records = memoryview(bytes(size))
    return m.ProduceRequest(
        acks=-1,
        timeout_ms=30000,
        topic_data=[
            m.ProduceRequest.TopicProduceData(
                name="benchmark", partition_data=[partition(index=i, records=records) for i in range(partitions)]
            )
        ],
    )


def produce_response(partitions: int) -> m.ProduceResponse:
    partition = m.ProduceResponse.PartitionProduceResponse
    return m.ProduceResponse(
        responses=[
            m.ProduceResponse.TopicProduceResponse(
                name="benchmark",
                partition_responses=[
                    partition(index=i, base_offset=123456 + i, log_start_offset=0) for i in range(partitions)
                ],
            )
        ]
    )


def fetch_request(partitions: int) -> m.FetchRequest:
    partition = m.FetchRequest.FetchPartition
    topics = [
        m.FetchRequest.FetchTopic(
            topic="benchmark",
            partitions=[
                partition(partition=i, fetch_offset=99, partition_max_bytes=1 << 20) for i in range(partitions)
            ],
        )
    ]
    return m.FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics if partitions else [])


def fetch_response(partitions: int, records: bytes) -> m.FetchResponse:
    partition = m.FetchResponse.PartitionData
    return m.FetchResponse(
        responses=[
            m.FetchResponse.FetchableTopicResponse(
                topic="benchmark",
                partitions=[
                    partition(partition_index=i, high_watermark=1000, last_stable_offset=1000, records=records)
                    for i in range(partitions)
                ],
            )
        ]
    )


def metadata_response(partitions: int) -> m.MetadataResponse:
    partition = m.MetadataResponse.MetadataResponsePartition
    return m.MetadataResponse(
        brokers=[m.MetadataResponse.MetadataResponseBroker(0, "127.0.0.1", 9092)],
        cluster_id="benchmark",
        topics=[
            m.MetadataResponse.MetadataResponseTopic(
                name="benchmark",
                partitions=[
                    partition(partition_index=i, leader_id=0, leader_epoch=0, replica_nodes=[0], isr_nodes=[0])
                    for i in range(partitions)
                ],
            )
        ],
    )


def cases() -> list[Case]:
    rows = []
    for partitions, size in ((1, 100), (4, 16 * 1024), (4, 256 * 1024), (100, 1024)):
        name = f"Produce v9 {partitions}x{size}B"
        rows.append(decoding(name, 0, 9, True, produce_request(partitions, size), "produce", producer.ProduceRequest))
    rows += [encoding(f"ProduceResponse v9 {n}p", 0, 9, lambda n=n: produce_response(n), "produce") for n in (1, 100)]  # type: ignore[misc]
    rows += [
        decoding(f"Fetch v12 {n}p", 1, 12, True, fetch_request(n), "fetch", consumer.FetchRequest) for n in (0, 1, 50)
    ]
    for partitions, size in ((4, 64 * 1024), (1, 1024 * 1024), (50, 16 * 1024)):
        records = bytes(size)
        name = f"FetchResponse v12 {partitions}x{size // 1024}KB"
        rows.append(encoding(name, 1, 12, lambda p=partitions, r=records: fetch_response(p, r), "fetch"))  # type: ignore[misc]
    rows.append(encoding("MetadataResponse v12 1000p", 3, 12, lambda: metadata_response(1000), "metadata"))
    rows.append(
        decoding(
            "MetadataResponse v12 1000p", 3, 12, False, metadata_response(1000), "metadata", metadata.MetadataResponse
        )
    )
    rows.append(encoding("HeartbeatResponse v4", 12, 4, m.HeartbeatResponse, "heartbeat"))
    return rows


def best(work: Callable[[], Any]) -> float:
    """Microseconds per call, best of five runs of about 50 ms each."""
    timer = timeit.Timer(work)
    once = max(timer.timeit(3) / 3, 1e-7)
    number = max(1, int(0.05 / once))
    return min(timer.repeat(5, number)) / number * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object per case")
    as_json = parser.parse_args().json
    if not as_json:
        print(f"{'microseconds per operation':<44}{'ours':>10}{'kio':>10}{'kafka-python':>14}")
    for name, ours, kio, python in cases():
        row = {"case": name, "ours": best(ours), "kio": best(kio) if kio else None}
        row["kafka_python"] = best(python) if python else None
        if as_json:
            print(json.dumps(row))
        else:
            columns = [f"{row[k]:.2f}" if row[k] is not None else "-" for k in ("ours", "kio", "kafka_python")]
            print(f"{name:<44}{columns[0]:>10}{columns[1]:>10}{columns[2]:>14}", flush=True)


if __name__ == "__main__":
    main()
