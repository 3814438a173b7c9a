"""Metrics of clients (KIP-714): who is asked for which, what is refused, and what a collector gets."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bridges.errors import BatchInvalid
from kafka_front.service.telemetry.otlp import label
from kafka_front.wire import messages as m
from kafka_front.wire.errors import ErrorCode as E
from tests.clients.api import Rec
from tests.clients.client_remote import REMOTES, RemoteClient
from tests.kafka_front.groups.wire_client import WireClient
from tests.kafka_front.node_lab import serving

SECONDS = 60.0
CLIENT_METRICS, SET = 16, 0
INSTANCE = bytes(range(16))
PREFIX = "org.apache.kafka.producer."


def _messages() -> Any:
    """OTLP's MetricsData, as far as the node reads it."""
    file = descriptor_pb2.FileDescriptorProto(name="otlp.proto", package="t", syntax="proto3")
    bytes_, text, kind = 12, 9, 11
    for name, fields in {
        "AnyValue": [("string_value", 1, text, ""), ("other", 9, bytes_, "")],
        "KeyValue": [("key", 1, text, ""), ("value", 2, kind, "AnyValue")],
        "Resource": [("attributes", 1, kind, "*KeyValue"), ("dropped", 2, 13, "")],
        "ResourceMetrics": [("resource", 1, kind, "Resource"), ("scope_metrics", 2, bytes_, "*"), ("url", 3, text, "")],
        "MetricsData": [("resource_metrics", 1, kind, "*ResourceMetrics")],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, type_, of in fields:
            added = message.field.add(name=field, number=number, type=type_, label=3 if of.startswith("*") else 1)
            if of.strip("*"):
                added.type_name = f".t.{of.strip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.MetricsData"))


MetricsData = _messages()


def metrics(**claimed: str) -> bytes:
    data = MetricsData()
    for scope in (b"scope 1", b"scope 2"):
        one = data.resource_metrics.add(scope_metrics=[scope, b"more"], url="u")
        one.resource.dropped = 7
        for name, value in claimed.items():
            one.resource.attributes.add(key=name).value.string_value = value
    return bytes(data.SerializeToString())


def read(body: bytes) -> list[tuple[dict[str, str], list[bytes]]]:
    data = MetricsData.FromString(body)
    return [
        ({pair.key: pair.value.string_value for pair in one.resource.attributes}, list(one.scope_metrics))
        for one in data.resource_metrics
    ]


def test_a_client_does_not_say_who_it_is() -> None:
    labeled = label(metrics(client_id="another", rack="r"), {"client_id": "c", "principal": "User:a"})
    expected = {"client_id": "c", "principal": "User:a", "rack": "r"}
    assert read(labeled) == [(expected, [scope, b"more"]) for scope in (b"scope 1", b"scope 2")]
    first = MetricsData.FromString(labeled).resource_metrics[0]
    assert (first.url, first.resource.dropped, len(first.resource.attributes)) == ("u", 7, 3)
    assert label(b"", {"client_id": "c"}) == b""


@pytest.mark.parametrize("broken", [metrics()[:-1], b"\x0a", b"\x0a\x05\x0a", b"\xff" * 20, b"\x0a\x02\x0a\x09"])
def test_metrics_that_cannot_be_read_are_refused(broken: bytes) -> None:
    with pytest.raises(BatchInvalid):
        label(broken, {"client_id": "c"})


def test_metrics_of_very_many_fields_are_refused() -> None:
    with pytest.raises(BatchInvalid, match="fields"):
        label(b"\x0a\x00" * 100_001, {"client_id": "c"})


class Collector:
    """A collector that answers with ``statuses`` first, and then takes everything."""

    def __init__(self, *statuses: int) -> None:
        self.bodies: asyncio.Queue[bytes] = asyncio.Queue()
        self._statuses = list(statuses)

    async def take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        if self._statuses:
            return web.Response(status=self._statuses.pop(0))
        self.bodies.put_nowait(await request.read())
        return web.Response()

    async def next(self) -> list[tuple[dict[str, str], list[bytes]]]:
        return read(await asyncio.wait_for(self.bodies.get(), SECONDS))


@asynccontextmanager
async def collecting(tmp_path: Path, *statuses: int) -> AsyncIterator[tuple[Collector, WireClient]]:
    collector = Collector(*statuses)
    app = web.Application()
    app.router.add_post("/v1/metrics", collector.take)
    async with TestServer(app) as server:
        flags = {"kafka.client_metrics_url": f"http://127.0.0.1:{server.port}/v1/metrics"}
        async with serving(tmp_path, flags) as node:
            address = node.addresses["kafka"]
            async with WireClient(address.host, address.port) as client:
                yield collector, client


async def subscribe(client: WireClient, name: str, **config: str) -> None:
    of = m.IncrementalAlterConfigsRequest
    rows = [of.AlterableConfig({"interval": "interval.ms"}.get(key, key), SET, value) for key, value in config.items()]
    answer = await client.call(1, of([of.AlterConfigsResource(CLIENT_METRICS, name, rows)]))
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


async def ask(client: WireClient, instance: bytes = INSTANCE) -> Any:
    return await client.call(0, m.GetTelemetrySubscriptionsRequest(instance))


async def push(client: WireClient, subscription: int, data: bytes = b"", codec: int = 0, last: bool = False) -> E:
    return E((await client.call(0, m.PushTelemetryRequest(INSTANCE, subscription, last, codec, data))).error_code)


async def test_a_client_reports_what_the_subscriptions_for_it_want(tmp_path: Path) -> None:
    async with collecting(tmp_path, 503) as (collector, client):
        nothing = await ask(client, bytes(16))
        assert nothing.client_instance_id != bytes(16)
        assert (nothing.requested_metrics, nothing.push_interval_ms) == ([], 300_000)
        await subscribe(client, "one", interval="100", metrics=f"{PREFIX},b", match="client_id=wi.e")
        await subscribe(client, "two", interval="200", metrics="a", match="client_source_address=127[.]0[.]0[.]1")
        await subscribe(client, "others", interval="300", metrics="c", match="client_id=wir")
        wanted = await ask(client)
        assert (wanted.requested_metrics, wanted.push_interval_ms) == (["a", "b", PREFIX], 100)
        assert (sorted(wanted.accepted_compression_types), wanted.telemetry_max_bytes) == ([1, 2, 3, 4], 1 << 20)
        zipped = gzip.compress(metrics(client_id="a lie"))
        assert await push(client, wanted.subscription_id, zipped, codec=1) == E.NONE
        for attributes, _ in await collector.next():  # again after 503
            assert attributes["client_id"] == "wire"
            assert attributes["client_instance_id"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
            assert (attributes["client_source_address"], attributes["principal"]) == ("127.0.0.1", "User:ANONYMOUS")
        await subscribe(client, "two", metrics="*")
        assert await push(client, wanted.subscription_id, zipped, codec=1, last=True) == E.UNKNOWN_SUBSCRIPTION_ID
        changed = await ask(client)
        assert changed.requested_metrics == ["*"]
        assert changed.subscription_id != wanted.subscription_id


async def test_what_a_client_may_not_push_is_refused(tmp_path: Path) -> None:
    async with collecting(tmp_path) as (collector, client):
        await subscribe(client, "all", interval="3600000", metrics="*")
        wanted = await ask(client)
        assert (await ask(client)).error_code == E.THROTTLING_QUOTA_EXCEEDED
        assert await push(client, wanted.subscription_id, metrics(), codec=7) == E.UNSUPPORTED_COMPRESSION_TYPE
        assert await push(client, wanted.subscription_id, metrics()) == E.THROTTLING_QUOTA_EXCEEDED
        for number, (data, codec, code) in enumerate(
            (
                (bytes((1 << 20) + 1), 0, E.TELEMETRY_TOO_LARGE),
                (gzip.compress(bytes(9 << 20)), 1, E.INVALID_RECORD),
                (b"\x0a\x05", 0, E.INVALID_RECORD),
            ),
            start=1,
        ):
            instance = bytes([number]) * 16
            pushed = m.PushTelemetryRequest(instance, (await ask(client, instance)).subscription_id, False, codec, data)
            assert (await client.call(0, pushed)).error_code == code
        none = m.PushTelemetryRequest(bytes(16), wanted.subscription_id)
        assert (await client.call(0, none)).error_code == E.INVALID_REQUEST
        assert await push(client, wanted.subscription_id, metrics(), last=True) == E.NONE
        assert await push(client, wanted.subscription_id, metrics(), last=True) == E.INVALID_REQUEST
        assert len(await collector.next()) == 2


async def test_without_a_collector_no_client_is_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        address = node.addresses["kafka"]
        async with WireClient(address.host, address.port) as client:
            offered = {row.api_key for row in (await client.call(3, m.ApiVersionsRequest("tests", "1"))).api_keys}
            assert not {71, 72} & offered


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(300)
async def test_javas_producer_pushes_its_metrics(tmp_path: Path) -> None:
    remote = next(remote for remote in REMOTES if remote.name == "java-new")
    async with collecting(tmp_path) as (collector, client):
        await subscribe(client, "producers", interval="1000", metrics=PREFIX, match="client_software_name=.*java.*")
        bootstrap = f"{client.host}:{client.port}"

        def produce() -> None:
            with closing(remote.program.start()) as driver:
                java = RemoteClient(bootstrap, remote.name, remote.abilities, driver, {})
                java.create_topic("t", 1)
                while collector.bodies.empty():  # until the producer's first push, about a second later
                    java.produce("t", 0, [Rec(b"value")])

        await asyncio.to_thread(produce)
        found = await collector.next()
        assert found[0][0]["client_software_name"] == "apache-kafka-java"
        assert any(PREFIX.encode() in scope for _, scopes in found for scope in scopes)
