"""The stored form of a group."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_front.service.groups.classic.snapshot import (
    GroupSnapshot,
    MemberSnapshot,
    SnapshotError,
    decode_snapshot,
    encode_snapshot,
)

MEMBERS = st.builds(
    MemberSnapshot,
    st.text(),
    st.none() | st.text(),
    st.text(),
    st.text(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.lists(st.tuples(st.text(), st.binary()), max_size=3).map(tuple),
    st.binary(),
)
SNAPSHOTS = st.builds(
    GroupSnapshot,
    st.integers(0, 2**31 - 1),
    st.none() | st.text(),
    st.none() | st.text(),
    st.none() | st.text(),
    st.integers(-(2**60), 2**60),
    st.lists(MEMBERS, max_size=4).map(tuple),
)


@given(SNAPSHOTS)
def test_property_round_trip(snapshot: GroupSnapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


MARK = b"kafka classic group\n"


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_fuzz_other_content_is_refused(content: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode_snapshot(MARK + content)


@given(st.binary().filter(lambda blob: not blob.startswith(MARK)))
def test_groups_of_another_kind_are_left_alone(blob: bytes) -> None:
    assert decode_snapshot(blob) is None


def test_another_version_is_named() -> None:
    with pytest.raises(SnapshotError, match=r"version 1: Invalid value 2 - at `\$\.version`"):
        decode_snapshot(MARK + b'{"version": 2}')
