"""What ApiVersions tells, and the table of docs/compatibility.md that tells the same to people."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct

from kafka_front.wire import messages as m
from kafka_front.wire.apis import APIS, ApiKey
from kafka_front.wire.errors import ErrorCode as E
from tests.kafka_front.place import Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first use of Kafka's broker fetches it

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


class Row(Struct, frozen=True):
    """A request of the table; None: it is not offered."""

    name: str
    theirs: tuple[int, int] | None
    here: tuple[int, int] | None
    why: str


def versions(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def table() -> dict[int, Row]:
    """The rows by API key."""
    lines = PAGE.read_text().partition("| key | request |")[2].splitlines()[2:]
    rows = {}
    for line in lines[: lines.index("")]:
        key, name, theirs, here, why = (cell.strip() for cell in line.strip("|").split("|"))
        rows[int(key)] = Row(name, versions(theirs), versions(here), why)
    return rows


async def answered(place: Place, version: int) -> m.ApiVersionsResponse:
    response: m.ApiVersionsResponse = await place.call(version, m.ApiVersionsRequest("tests", "1"))
    assert response.error_code == 0
    return response


@pytest.mark.parametrize("version", range(6))
async def test_the_table_of_versions_tells_what_is_offered(place: Place, version: int) -> None:
    told = {row.api_key: (row.min_version, row.max_version) for row in (await answered(place, version)).api_keys}
    written = {key: row.here if place.ours else row.theirs for key, row in table().items()}
    assert told == {key: offered for key, offered in written.items() if offered is not None}


async def test_a_client_that_meets_another_node_than_it_expects_begins_anew(place: Place) -> None:
    cluster = (await place.call(1, m.DescribeClusterRequest())).cluster_id
    for expected, code in (
        ((cluster, place.node_id), E.NONE),
        ((None, -1), E.NONE),
        ((cluster, 77), E.REBOOTSTRAP_REQUIRED),
        (("another", place.node_id), E.REBOOTSTRAP_REQUIRED),
        ((cluster, -1), E.INVALID_REQUEST),
        ((None, place.node_id), E.INVALID_REQUEST),
    ):
        response = await place.call(5, m.ApiVersionsRequest("tests", "1", *expected))
        assert (response.error_code, bool(response.api_keys)) == (code, code == E.NONE), expected


async def test_no_feature_is_promised_that_is_not_there(place: Place) -> None:
    response = await answered(place, 4)
    told = {feature.name: feature.max_version_level for feature in response.finalized_features}
    if not place.ours:
        assert {"group.version", "share.version", "transaction.version"} <= told.keys()
        return
    assert told == {"group.version": 1, "share.version": 2, "streams.version": 1, "transaction.version": 2}
    assert told == {one.name: one.max_version for one in response.supported_features}
    offered = {row.api_key for row in response.api_keys}
    assert {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.END_TXN} <= offered


def test_what_is_not_offered_has_its_reason() -> None:
    for key, row in table().items():
        less = row.theirs is not None and (row.here is None or row.here < row.theirs)
        assert bool(row.why) is less, key
        if key in APIS:
            assert row.name == APIS[key].name
