"""Subscriptions and assignments inside the opaque bytes of the group protocol."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_front.service.groups.classic.embedded import EmbeddedFormatError, assigned_partitions, subscribed_topics
from tests.kafka_front.groups.lab import assignment, subscription

TOPICS = st.lists(st.text(max_size=20), unique=True, max_size=6)
PARTITIONS = st.dictionaries(st.text(max_size=20), st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=6)


@given(TOPICS, st.binary(max_size=20))
def test_property_subscription(topics: list[str], tail: bytes) -> None:
    assert subscribed_topics(subscription(*topics, tail=tail)) == set(topics)


@given(PARTITIONS)
def test_property_assignment(partitions: dict[str, list[int]]) -> None:
    assert assigned_partitions(assignment(partitions)) == partitions


def test_no_assignment_is_no_partitions() -> None:
    assert assigned_partitions(b"") == {}


@given(st.binary(max_size=60))
def test_fuzz_bytes_decode_or_fail_with_the_one_error(data: bytes) -> None:
    for decode in (subscribed_topics, assigned_partitions):
        with contextlib.suppress(EmbeddedFormatError):
            decode(data)


@given(PARTITIONS.filter(bool), st.data())
def test_fuzz_truncation_is_noticed(partitions: dict[str, list[int]], data: st.DataObject) -> None:
    whole = assignment(partitions)[:-4]  # without the user data, which is not read
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(EmbeddedFormatError):
        assigned_partitions(whole[:cut])


def test_a_length_beyond_the_bytes_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(EmbeddedFormatError, match="array of 2147483647 items"):
        subscribed_topics(b"\x00\x00\x7f\xff\xff\xff")
    with pytest.raises(EmbeddedFormatError, match="array of -1 items"):
        subscribed_topics(b"\x00\x00\xff\xff\xff\xff")


def test_negative_version_is_refused() -> None:
    with pytest.raises(EmbeddedFormatError):
        subscribed_topics(b"\xff\xff\x00\x00\x00\x00")
