"""Hostile bytes: nothing but WireError, and never more memory than the bytes justify."""

from __future__ import annotations

import importlib.util
import random
import struct
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_front.wire import codec
from kafka_front.wire import messages as m
from kafka_front.wire.apis import APIS, Api
from kafka_front.wire.primitives import MAX_ELEMENTS, WireError, uvarint
from tests.depth import examples
from tests.fuzz.harness import run
from tests.kafka_front.kio_oracle import value_of

ALL = [(api.key, version) for api in APIS.values() for version in range(api.first, api.last + 1)]
UNLIMITED = settings(deadline=None, suppress_health_check=list(HealthCheck))


def _target() -> ModuleType:
    path = Path(__file__).parent.parent / "fuzz" / "fuzz_kafka_wire.py"
    spec = importlib.util.spec_from_file_location("fuzz_kafka_wire", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FUZZ = _target()
SEEDS: dict[str, bytes] = FUZZ.seeds()


def decodes(key: int, version: int, request: bool, data: bytes) -> bool:
    """Whether ``data`` is a message; any exception but WireError fails the test."""
    try:
        (codec.request_decoder if request else codec.response_decoder)(key, version)(data, 0)
    except WireError:
        return False
    return True


def encoded(message: Any, version: int, request: bool) -> bytes:
    out: list[Any] = []
    (codec.request_encoder if request else codec.response_encoder)(message.API_KEY, version)(message, out)
    return b"".join(out)


@settings(UNLIMITED, max_examples=examples(100))
@given(st.binary(max_size=300))
def test_random_frames_break_nothing(data: bytes) -> None:
    FUZZ.one_input(data)


@settings(UNLIMITED, max_examples=examples(150))
@given(st.sampled_from(ALL), st.booleans(), st.binary(max_size=200))
def test_random_bodies_are_read_or_refused(which: tuple[int, int], request: bool, data: bytes) -> None:
    decodes(*which, request, data)


def test_seeds_are_valid_and_stable() -> None:
    assert len(SEEDS) == len(ALL)
    for frame in SEEDS.values():
        codec.decode_request(frame)
        FUZZ.one_input(frame)


def test_seeds_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", "--seeds", str(tmp_path / "corpus")])
    run(FUZZ.one_input, FUZZ.seeds, ("kafka_front.wire.",))
    assert len(list((tmp_path / "corpus").iterdir())) == len(ALL)


@settings(UNLIMITED, max_examples=examples(250))
@given(
    st.sampled_from(sorted(SEEDS)),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["flip", "insert", "delete", "huge"]), st.binary(max_size=6))),
)
def test_mutated_requests_break_nothing(name: str, changes: list[tuple[float, str, bytes]]) -> None:
    data = bytearray(SEEDS[name])
    for place, kind, noise in changes:
        at = 4 + int(place * (len(data) - 4))
        if kind == "flip":
            data[at : at + len(noise)] = noise
        elif kind == "insert":
            data[at:at] = noise
        elif kind == "delete":
            del data[at : at + len(noise)]
        else:
            data[at : at + 4] = struct.pack(">i", 2**31 - 1 - len(noise))
    FUZZ.one_input(bytes(data))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@pytest.mark.parametrize("request_", [True, False], ids=["request", "response"])
def test_every_truncation_is_an_error(api: Api, request_: bool) -> None:
    """No message is the beginning of another one, so a cut message can never pass for a whole one."""

    @settings(UNLIMITED, max_examples=examples(3))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.integers(api.first, api.last))
        value = data.draw(value_of(codec.message_type(api.key, version, request_).body))
        whole = encoded(value, version, request_)
        for end in range(len(whole)):
            assert not decodes(api.key, version, request_, whole[:end])
        # Brokers ignore what follows a request; a client may expect better of a response.
        assert decodes(api.key, version, request_, whole + b"\0") == request_
        assert decodes(api.key, version, request_, whole)

    check()


HUGE = [2**35, 2**32 - 1, 2**31 - 1, 2**31, 2**28, 100_000]


@pytest.mark.parametrize("which", ALL, ids=lambda which: f"{APIS[which[0]].name}-{which[1]}")
def test_huge_lengths_allocate_nothing(which: tuple[int, int]) -> None:
    """A length that the bytes do not justify, put over every position of every message, costs no memory."""
    chance = random.Random(repr(which))
    forms = [struct.pack(">i", -2), struct.pack(">i", 2**31 - 1), struct.pack(">h", 32767)]
    forms += [_varint(number) for number in HUGE]
    requests = [SEEDS[f"{APIS[which[0]].name}-{which[1]}"][8:]]
    decodes(*which, True, b"")
    decodes(*which, False, b"")
    tracemalloc.start()
    try:
        for data in requests:
            for at in range(len(data)):
                form = chance.choice(forms)
                decodes(*which, True, data[:at] + form + data[at + chance.choice([0, len(form)]) :])
        for form in forms:
            for lead in range(8):
                decodes(*which, False, bytes(lead) + form + bytes(30))
        assert tracemalloc.get_traced_memory()[1] < 400_000
    finally:
        tracemalloc.stop()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_the_packet_that_kills_other_readers() -> None:
    """A dozen bytes of Produce with a compact array of 2^35 elements (docs/protocols/kafka.md, rule 9)."""
    frame = struct.pack(">hhih", 0, 9, 1, -1) + b"\0" + b"\0" + struct.pack(">hi", 1, 1) + _varint(2**35)
    with pytest.raises(WireError):
        codec.decode_request(frame)


def test_elements_are_bounded_in_total() -> None:
    """Many small arrays cannot add up to more than one message may hold."""
    topic = m.FetchRequest.FetchTopic
    partition = m.FetchRequest.FetchPartition()
    request = m.FetchRequest(topics=[topic(topic="t", partitions=[partition] * 50_000)] * 22)
    data = encoded(request, 4, True)
    assert MAX_ELEMENTS < 22 * 50_000
    with pytest.raises(WireError, match="elements"):
        codec.request_decoder(1, 4)(data, 0)
    fewer = m.FetchRequest(topics=[topic(topic="t", partitions=[partition] * 50_000)] * 2)
    assert len(codec.request_decoder(1, 4)(encoded(fewer, 4, True), 0).topics) == 2


def test_unknown_tagged_fields_are_skipped() -> None:
    """In the header, in every structure, next to known ones (KIP-482)."""
    tags = b"\2" + uvarint(7) + uvarint(3) + b"abc" + uvarint(100_000) + uvarint(200) + bytes(200)
    body = b"".join(
        [
            _text("group"),  # ConsumerGroup-less Heartbeat 4: group id, generation, member, instance
            struct.pack(">i", 3),
            _text("member"),
            b"\0",
        ]
    )
    frame = struct.pack(">hhih", 12, 4, 1, 2) + b"id" + tags + body + tags
    header, message = codec.decode_request(frame)
    assert header.client_id == "id"
    assert message == m.HeartbeatRequest(group_id="group", generation_id=3, member_id="member")
    # Fetch 12: cluster id is the known tag 0 of the request.
    request = m.FetchRequest(topics=[])
    data = encoded(request, 12, True)
    assert data.endswith(b"\0")
    known = uvarint(0) + uvarint(4) + b"\4abc"
    mixed = data[:-1] + b"\2" + known + uvarint(9) + uvarint(1) + b"x"
    assert codec.request_decoder(1, 12)(mixed, 0).cluster_id == "abc"
    with pytest.raises(WireError, match="wrong length"):
        codec.request_decoder(1, 12)(data[:-1] + b"\1" + uvarint(0) + uvarint(5) + b"\4abcx", 0)
    with pytest.raises(WireError):
        codec.request_decoder(1, 12)(data[:-1] + b"\1" + uvarint(50) + uvarint(5) + b"ab", 0)


def _text(value: str) -> bytes:
    return uvarint(len(value) + 1) + value.encode()


def test_the_request_for_all_topics_as_librdkafka_sends_it() -> None:
    """Its version 2.16 leaves three bytes of a four byte length in a flexible request."""
    frame = bytes.fromhex("0003000c00000003000772646b61666b6100 00 0000 00 010000")
    header, message = codec.decode_request(frame)
    assert (header.key, header.version, header.client_id) == (3, 12, "rdkafka")
    assert message == m.MetadataRequest(topics=None, allow_auto_topic_creation=False)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 4, struct.pack(">i", 0) + b"\2"),  # a bool that is neither 0 nor 1
        (12, 0, struct.pack(">h", 2) + b"\xc3\x28" + bytes(6)),  # bad UTF-8
        (12, 0, struct.pack(">h", 3) + b"\xed\xa0\x80" + bytes(6)),  # a surrogate
        (12, 0, struct.pack(">h", -1) + bytes(6)),  # null where there must be a string
        (12, 0, struct.pack(">h", -2) + bytes(6)),
        (12, 4, _varint(0) + bytes(6)),  # null, compact
        (12, 4, _varint(40_000) + bytes(39_999) + bytes(6)),  # longer than any string may be
        (2, 1, struct.pack(">ii", -1, -1)),  # null where there must be an array
        (2, 1, struct.pack(">ii", -1, -7)),
        (3, 1, struct.pack(">i", -2)),
        (0, 3, struct.pack(">hhiihi", -1, 1, 1, 1, 0, 1) + struct.pack(">ii", 0, -2)),  # records of a negative size
    ],
)
def test_invalid_values_are_refused(key: int, version: int, body: bytes) -> None:
    assert not decodes(key, version, True, body)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (4, m.HeartbeatRequest(group_id=None)),  # type: ignore[arg-type]
        (0, m.HeartbeatRequest(group_id="x" * 32_768)),
        (4, m.HeartbeatRequest(group_id="x" * 32_768)),
        (4, m.HeartbeatRequest(generation_id=2**31)),
        (4, m.HeartbeatRequest(group_id="\ud800")),
        (4, m.FetchResponse(responses=None)),  # type: ignore[arg-type]
        (0, m.MetadataRequest(topics=None)),
        (3, m.DeleteTopicsRequest(topic_names=["a", None])),  # type: ignore[list-item]
    ],
)
def test_messages_that_cannot_be_written_are_refused(version: int, message: Any) -> None:
    with pytest.raises(WireError):
        encoded(message, version, type(message).__name__.endswith("Request"))


def test_the_longest_string_is_read_as_it_was_written() -> None:
    for version in (0, 4):
        message = m.HeartbeatRequest(group_id="x" * 32_767)
        assert codec.request_decoder(12, version)(encoded(message, version, True), 0) == message
