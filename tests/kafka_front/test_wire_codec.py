"""The generated codec against kio, over every API, version and direction we know."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kio.schema.index import schema_name_map

from benchmarks.kafka_broker import install_jars
from kafka_front.wire import codec, make_messages
from kafka_front.wire.apis import APIS, Api, ApiKey
from kafka_front.wire.primitives import UnsupportedVersion, WireError, read_uvarint, uvarint
from kafka_front.wire.schema import LAYOUTS
from tests.depth import examples
from tests.kafka_front.kio_oracle import kio_class, kio_decode, kio_encode, kio_has, to_kio, value_of

ALL = [(api, request) for api in APIS.values() for request in (True, False)]
IDS = [f"{api.name}{'Request' if request else 'Response'}" for api, request in ALL]


def encode(value: Any, key: int, version: int, request: bool) -> bytes:
    out: list[Any] = []
    (codec.request_encoder if request else codec.response_encoder)(key, version)(value, out)
    return b"".join(out)


def decode(data: bytes, key: int, version: int, request: bool) -> Any:
    return (codec.request_decoder if request else codec.response_decoder)(key, version)(data, 0)


@pytest.mark.parametrize(("api", "request_"), ALL, ids=IDS)
def test_bytes_equal_kios_and_read_back(api: Api, request_: bool) -> None:
    versions = range(api.first, api.last + 1)
    strategies = {v: value_of(codec.message_type(api.key, v, request_).body) for v in versions}

    @settings(max_examples=examples(max(20, 2 * len(versions))), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(versions)).flatmap(lambda v: st.tuples(st.just(v), strategies[v])))
    def check(pair: tuple[int, Any]) -> None:
        version, value = pair
        data = encode(value, api.key, version, request_)
        again = decode(data, api.key, version, request_)
        assert again == value
        assert decode(bytearray(data), api.key, version, request_) == value
        if kio_has(api.key, version):
            assert data == kio_encode(value, api.key, version, request_)
            cls = kio_class(api.key, version, request_)
            layout = codec.message_type(api.key, version, request_).body
            assert kio_decode(data, api.key, version, request_) == to_kio(again, cls, layout)

    check()


SINCE_KIO = {
    (ApiKey.API_VERSIONS, 5),
    (ApiKey.TXN_OFFSET_COMMIT, 6),
    (ApiKey.DELETE_GROUPS, 3),
    (ApiKey.STREAMS_GROUP_HEARTBEAT, 1),
    (ApiKey.STREAMS_GROUP_DESCRIBE, 1),
    (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0),
    (ApiKey.UNREGISTER_CONTROLLER, 0),
}
"""What Kafka 4.4 has and kio has not: its layouts are those of Kafka's schemas, and Kafka's clients speak them."""


def test_known_layouts_are_all_of_kios_and_what_is_newer() -> None:
    known = {(api.key, version) for api in APIS.values() for version in range(api.first, api.last + 1)}
    assert {(key, version) for key, version in known if not kio_has(key, version)} == SINCE_KIO | {
        (ApiKey.PRODUCE, version) for version in range(3)
    }
    for api in APIS.values():
        assert set(schema_name_map.get(api.module, ())) <= set(range(api.first, api.last + 1)), api.name
        assert api.first <= api.lowest <= api.highest <= api.last


@pytest.mark.java
@pytest.mark.timeout(600)  # the first use of Kafka's jars fetches them
def test_messages_file_is_current() -> None:
    (jar,) = install_jars().glob("kafka-clients-*.jar")
    files = make_messages.files(jar)
    for path, text in files.items():
        assert path.read_text() == text
    assert {*LAYOUTS.iterdir(), make_messages.TARGET} == files.keys()


def test_unknown_versions_are_refused() -> None:
    for key, version in ((0, 99), (0, -1), (1, 3), (4, 0), (32767, 0)):
        with pytest.raises(UnsupportedVersion):
            codec.request_decoder(key, version)


@given(st.integers(0, 2**32 - 1))
def test_an_unsigned_varint_is_read_as_it_was_written(value: int) -> None:
    data = uvarint(value)
    assert read_uvarint(data, 0) == (value, len(data))


def test_overlong_uvarint_is_refused() -> None:
    with pytest.raises(WireError):
        read_uvarint(b"\xff\xff\xff\xff\xff\x01", 0)
    with pytest.raises(WireError):
        read_uvarint(b"\xff\xff\xff\xff\x7f", 0)


NOT_OF_KAFKA_PYTHON = {34, 38, 39, 40, 41, 64, 68, 69, 71, 72, *range(76, 95)}


@pytest.mark.parametrize(("api", "request_"), ALL, ids=IDS)
def test_kafka_python_reads_and_writes_the_same(api: Api, request_: bool) -> None:
    """An independent implementation: what it reads from our bytes, it writes as the same bytes."""
    theirs = kafka_python_class(api, request_)
    if theirs is None:
        assert api.key in NOT_OF_KAFKA_PYTHON, f"kafka-python has no {api.name}"
        return
    versions = range(max(api.first, theirs.valid_versions[0]), min(api.last, theirs.valid_versions[1]) + 1)
    strategies = {v: value_of(codec.message_type(api.key, v, request_).body) for v in versions}

    @settings(max_examples=examples(max(10, 2 * len(versions))), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(versions)).flatmap(lambda v: st.tuples(st.just(v), strategies[v])))
    def check(pair: tuple[int, Any]) -> None:
        version, value = pair
        if api.key == ApiKey.API_VERSIONS and not request_:
            value.error_code = 0  # it reads every failed one as version 0
        data = encode(value, api.key, version, request_)
        read = theirs.decode(data, version=version)
        read._header = None  # it expects a header when it writes again
        assert bytes(read.encode(version=version)) == data

    check()


def kafka_python_class(api: Api, request: bool) -> Any:
    name = api.name + ("Request" if request else "Response")
    for module in (admin, consumer, metadata, producer, sasl):
        found = getattr(module, name, None)
        if found is not None:
            return found
    return None
